//! Evaluates a parsed expression.

use std::rc::Rc;

use serde_json::Value;

use super::EvalError;
use super::functions;
use super::names::{self, Found};
use super::operators;
use super::parser::Expr;
use super::patterns::Patterns;
use super::strings::shown;
use super::types;
use super::value::{Evaluated, Fields, Fuel, Text, Val, equal, keys};

/// The evaluation of one expression, with its variables. `'e` is the expression's lifetime, `'a` that of the resource.
pub(super) struct Evaluation<'e, 'a> {
    pub(super) variables: Vec<(&'e str, Val<'a>)>,
    pub(super) fuel: &'e Fuel,
    pub(super) patterns: &'e Patterns,
}

impl<'e, 'a> Evaluation<'e, 'a> {
    pub(super) fn eval(&mut self, expr: &'e Expr) -> Evaluated<'a> {
        self.fuel.burn(1)?;
        match expr {
            Expr::Literal(value) => Ok(value.clone()),
            Expr::Name(name) => self.variable(name),
            Expr::Select { of, field, optional } => self.select(of, field, *optional),
            Expr::Has { of, field } => {
                let found = self.select(of, field, true)?;
                Ok(Val::Bool(matches!(found, Val::Optional(Some(_)))))
            }
            Expr::Operation { operator, args } => match &args[..] {
                [of] => operators::apply(operator, &[self.eval(of)?], self.fuel),
                [left, right] => {
                    let args = [self.eval(left)?, self.eval(right)?];
                    operators::apply(operator, &args, self.fuel)
                }
                _ => Err(EvalError::Overload),
            },
            Expr::Call { name, args, .. } => self.call(name, args),
            Expr::List(items) => self.list(items),
            Expr::Map(entries) => self.map(entries),
            Expr::And(parts) => self.junction(parts, false),
            Expr::Or(parts) => self.junction(parts, true),
            Expr::If(parts) => {
                let [condition, yes, no] = &**parts;
                match self.eval(condition)? {
                    Val::Bool(true) => self.eval(yes),
                    Val::Bool(false) => self.eval(no),
                    _ => Err(EvalError::Overload),
                }
            }
            Expr::Macro {
                name,
                over,
                variables,
                parts,
            } => self.expand(name, over, variables, parts),
        }
    }

    fn variable(&self, name: &str) -> Evaluated<'a> {
        let found = self.variables.iter().rev().find(|(known, _)| *known == name);
        found
            .map(|(_, value)| value.clone())
            .or_else(|| types::named(name).map(|(name, _)| Val::Type(name)))
            .ok_or_else(|| EvalError::Error(format!("undeclared reference to '{name}'")))
    }

    fn select(&mut self, of: &'e Expr, field: &str, optional: bool) -> Evaluated<'a> {
        let of = self.eval(of)?;
        let (of, optional) = match of {
            Val::Optional(None) => return Ok(Val::Optional(None)),
            Val::Optional(Some(value)) => (Rc::unwrap_or_clone(value), true),
            of => (of, optional),
        };
        match (self.field(&of, field)?, optional) {
            (found, true) => Ok(Val::Optional(found.map(Rc::new))),
            (Some(value), false) => Ok(value),
            (None, false) => Err(EvalError::Error(format!("no such key: {field}"))),
        }
    }

    /// Returns the value of a field or a key, if it is there.
    fn field(&self, of: &Val<'a>, field: &str) -> Result<Option<Val<'a>>, EvalError> {
        let value = match of {
            Val::Object(map, schema, fields) => {
                let undefined = || EvalError::Error(format!("undefined field '{field}'"));
                let (name, schema) = match names::field(field, schema, *fields).ok_or_else(undefined)? {
                    Found::Text => match map.get(field) {
                        Some(Value::String(text)) => return Ok(Some(Val::Text(Text::Of(text)))),
                        _ => return Ok(None),
                    },
                    Found::Metadata => {
                        let metadata = map.get("metadata").and_then(Value::as_object);
                        return Ok(metadata.map(|map| Val::Object(map, &Value::Null, Fields::Metadata)));
                    }
                    Found::Declared(name, schema) => (name, schema),
                };
                match map.get(name) {
                    None | Some(Value::Null) => None,
                    Some(value) => {
                        let read = Val::read(value, schema, false, self.fuel)?;
                        Some(read.ok_or_else(undefined)?)
                    }
                }
            }
            map if map.is_map() => map.get(&Val::made(field), self.fuel)?,
            _ => return Err(EvalError::Overload),
        };
        Ok(value)
    }

    fn call(&mut self, name: &str, args: &'e [Expr]) -> Evaluated<'a> {
        if functions::is_left(name) {
            // The first argument may be such a call itself. Another one may have a variable.
            if let Some(first) = args.first() {
                self.eval(first)?;
            }
            return Err(EvalError::Unknown(name.to_owned()));
        }
        if let ("or" | "orValue", [of, other]) = (name, args) {
            return match (self.eval(of)?, name) {
                (Val::Optional(None), _) => self.eval(other),
                (of @ Val::Optional(_), "or") => Ok(of),
                (Val::Optional(Some(value)), _) => Ok(Rc::unwrap_or_clone(value)),
                _ => Err(EvalError::Overload),
            };
        }
        let args = args.iter().map(|expr| self.eval(expr));
        let args = args.collect::<Result<Vec<_>, _>>()?;
        functions::call(name, &args, self.fuel, self.patterns)
    }

    fn list(&mut self, items: &'e [(Expr, bool)]) -> Evaluated<'a> {
        // A value takes more memory than a step takes time.
        self.fuel.burn(2 * items.len())?;
        let mut list = Vec::with_capacity(items.len());
        for (item, optional) in items {
            match (self.eval(item)?, optional) {
                (value, false) => list.push(value),
                (Val::Optional(value), true) => list.extend(value.map(Rc::unwrap_or_clone)),
                _ => return Err(EvalError::Overload),
            }
        }
        Ok(Val::list(list))
    }

    fn map(&mut self, entries: &'e [(Expr, Expr, bool)]) -> Evaluated<'a> {
        self.fuel.burn(4 * entries.len())?;
        let mut map = Vec::with_capacity(entries.len());
        // The API server makes a map of constants once, without a look at its keys.
        let is_constant = entries
            .iter()
            .all(|(key, value, _)| matches!((key, value), (Expr::Literal(_), Expr::Literal(_))));
        for (key, value, optional) in entries {
            let key = self.eval(key)?;
            let value = match (self.eval(value)?, optional) {
                (value, false) => value,
                (Val::Optional(Some(value)), true) => Rc::unwrap_or_clone(value),
                (Val::Optional(None), true) => continue,
                _ => return Err(EvalError::Overload),
            };
            if is_constant {
                let known = map
                    .iter_mut()
                    .find(|(known, _)| matches!(equal(known, &key, self.fuel), Ok(true)));
                if let Some((_, known)) = known {
                    *known = value;
                    continue;
                }
            }
            self.insert(&mut map, key, value)?;
        }
        Ok(Val::Map(Rc::new(map)))
    }

    fn insert(
        &self,
        map: &mut Vec<(Val<'a>, Val<'a>)>,
        key: Val<'a>,
        value: Val<'a>,
    ) -> Result<(), EvalError> {
        for (known, _) in &*map {
            if equal(known, &key, self.fuel)? {
                return Err(EvalError::Error(format!(
                    "Failed with repeated key: {}",
                    shown(&key)
                )));
            }
        }
        map.push((key, value));
        Ok(())
    }

    /// Evaluates `&&` or `||`, of which `decides` is the value that decides whatever the other parts are, even if
    /// evaluating them fails.
    fn junction(&mut self, parts: &'e [Expr], decides: bool) -> Evaluated<'a> {
        let mut fault = None;
        for part in parts {
            let part = self.eval(part);
            if part_decides(part, decides, &mut fault)? {
                return Ok(Val::Bool(decides));
            }
        }
        fault.map_or(Ok(Val::Bool(!decides)), Err)
    }

    fn expand(
        &mut self,
        name: &str,
        over: &'e Expr,
        variables: &'e [String],
        parts: &'e [Expr],
    ) -> Evaluated<'a> {
        let over = self.eval(over)?;
        if let Val::Optional(value) = &over {
            let ("optMap" | "optFlatMap", [variable], [part]) = (name, variables, parts) else {
                return Err(EvalError::Overload);
            };
            let Some(value) = value else {
                return Ok(Val::Optional(None));
            };
            let value = self.with(&[(variable, Val::clone(value))], part)?;
            return match (name, value) {
                ("optMap", value) => Ok(Val::some(value)),
                (_, value @ Val::Optional(_)) => Ok(value),
                _ => Err(EvalError::Overload),
            };
        }
        let count = over.len().ok_or(EvalError::Overload)?;
        if over.is_map() {
            self.fuel.burn(3 * count)?;
        }
        let names = keys(&over);
        let (mut list, mut map, mut found, mut fault) = (Vec::new(), Vec::new(), 0, None);
        for index in 0..count {
            self.fuel.burn(1)?;
            let (key, value) = match names.get(index) {
                Some(key) if variables.len() == 2 => (key.clone(), over.get(key, self.fuel)?),
                // With one variable, the keys of a map are its items.
                Some(key) => (Val::Null, Some(key.clone())),
                None => (Val::Int(index as i64), over.item(index, self.fuel)?),
            };
            let value = value.ok_or_else(|| EvalError::Error("undefined items".to_owned()))?;
            let bound = match variables {
                [variable] => [(variable, value.clone()), (variable, value.clone())],
                [first, second] => [(first, key.clone()), (second, value.clone())],
                _ => return Err(EvalError::Overload),
            };
            let first = self.with(&bound, &parts[0]);
            match name {
                "all" | "exists" => {
                    if part_decides(first, name == "exists", &mut fault)? {
                        return Ok(Val::Bool(name == "exists"));
                    }
                    continue;
                }
                "exists_one" | "existsOne" => {
                    found += usize::from(truth(&first?)?);
                    continue;
                }
                "filter" => {
                    if truth(&first?)? {
                        list.push(value);
                    }
                    continue;
                }
                _ => {}
            }
            let made = match parts {
                [_, transform] => match truth(&first?)? {
                    true => self.with(&bound, transform)?,
                    false => continue,
                },
                _ => first?,
            };
            match name {
                "transformMap" => self.insert(&mut map, key, made)?,
                "transformMapEntry" => {
                    for key in keys(&made) {
                        if let Some(value) = made.get(&key, self.fuel)? {
                            self.insert(&mut map, key, value)?;
                        }
                    }
                }
                _ => list.push(made),
            }
        }
        match (name, fault) {
            (_, Some(fault)) => Err(fault),
            ("all", _) => Ok(Val::Bool(true)),
            ("exists", _) => Ok(Val::Bool(false)),
            ("exists_one" | "existsOne", _) => Ok(Val::Bool(found == 1)),
            ("transformMap" | "transformMapEntry", _) => Ok(Val::Map(Rc::new(map))),
            ("map" | "filter" | "transformList", _) => Ok(Val::list(list)),
            _ => Err(EvalError::Overload),
        }
    }

    /// Evaluates an expression with more variables.
    fn with(&mut self, bound: &[(&'e String, Val<'a>)], expr: &'e Expr) -> Evaluated<'a> {
        let before = self.variables.len();
        self.variables
            .extend(bound.iter().map(|(name, value)| (name.as_str(), value.clone())));
        let value = self.eval(expr);
        self.variables.truncate(before);
        value
    }
}

/// Reports whether one part decides a junction. Remembers why one could not be evaluated: another may decide.
///
/// # Errors
/// When the evaluation must end.
fn part_decides(
    part: Evaluated<'_>,
    decides: bool,
    fault: &mut Option<EvalError>,
) -> Result<bool, EvalError> {
    let why = match part {
        Ok(Val::Bool(value)) => return Ok(value == decides),
        Ok(_) => EvalError::Overload,
        Err(EvalError::Cost) => return Err(EvalError::Cost),
        Err(why) => why,
    };
    // What is unknown could decide, what fails cannot.
    if fault.is_none() || matches!(why, EvalError::Unknown(_)) {
        *fault = Some(why);
    }
    Ok(false)
}

const fn truth(value: &Val<'_>) -> Result<bool, EvalError> {
    match value {
        Val::Bool(value) => Ok(*value),
        _ => Err(EvalError::Overload),
    }
}
