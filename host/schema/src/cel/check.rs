//! Checks the types of an expression, as the API server does before it takes a definition.
//!
//! What an expression could cost is not estimated.

use std::collections::HashMap;
use std::sync::Arc;

use serde_json::Value;

use super::EvalError;
use super::functions;
use super::names;
use super::parser::{Expr, MESSAGE};
use super::patterns::Patterns;
use super::re2::{Unusable, compiled};
use super::strings::{Clause, clauses};
use super::types::{self, Inference, Type};
use super::value::{Evaluated, Fuel, Val};

/// Maximum number of bytes of a compiled pattern that is a constant.
const PATTERN: usize = 4 << 20;
/// The functions that convert a value. The API server calls them for constants.
const CONVERSIONS: [&str; 9] = [
    "bool",
    "bytes",
    "double",
    "duration",
    "dyn",
    "int",
    "string",
    "timestamp",
    "uint",
];

/// Returns why an expression about a value of a schema is refused; `None` if it has the wanted type.
pub(super) fn problem(
    expr: &Expr,
    schema: &Value,
    is_root: bool,
    optional_old: bool,
    wanted: &'static str,
) -> Option<String> {
    let this = Type::of(schema, is_root)?;
    let old = if optional_old {
        Type::Optional(Arc::new(this.clone()))
    } else {
        this.clone()
    };
    let mut check = Check {
        variables: vec![("self".to_owned(), this), ("oldSelf".to_owned(), old)],
        inference: Inference::default(),
        is_mixed: false,
        calls: HashMap::new(),
    };
    match check.type_of(expr) {
        Err(why) => Some(why),
        Ok(found) => {
            let found = check.inference.resolved(&found);
            (found != Type::Simple(wanted))
                .then(|| format!("must be of type {wanted}, and is of type {found}"))
        }
    }
}

type Found<'s> = Result<Type<'s>, String>;

struct Check<'s> {
    variables: Vec<(String, Type<'s>)>,
    inference: Inference<'s>,
    /// Within the arguments of `format`, lists may have items of several types.
    is_mixed: bool,
    /// The types of calls by their places in memory: the items of a list for `format` are looked at twice.
    calls: HashMap<*const Expr, Type<'s>>,
}

impl<'s> Check<'s> {
    fn type_of(&mut self, expr: &Expr) -> Found<'s> {
        Ok(match expr {
            Expr::Literal(value) => types::named(value.type_name()).map_or(Type::Dyn, |(_, type_)| type_),
            Expr::Name(name) => self.name(name)?,
            Expr::Select { of, field, optional } => {
                let of = self.type_of(of)?;
                self.field(&of, field, *optional)?
            }
            Expr::Has { of, field } => {
                let of = self.type_of(of)?;
                self.field(&of, field, false)?;
                Type::Simple("bool")
            }
            Expr::Operation { operator, args } => self.call(operator, false, args)?,
            Expr::Call {
                name,
                is_method,
                args,
            } => {
                let place = std::ptr::from_ref(expr);
                if let Some(known) = self.calls.get(&place) {
                    return Ok(known.clone());
                }
                let type_ = self.call(name, *is_method, args)?;
                self.calls.insert(place, type_.clone());
                type_
            }
            Expr::List(items) => {
                let item = self.inference.fresh();
                for (of, optional) in items {
                    self.item(of, *optional, &item)?;
                }
                Type::List(Arc::new(self.inference.resolved(&item)))
            }
            Expr::Map(entries) => {
                let (key, value) = (self.inference.fresh(), self.inference.fresh());
                for (of_key, of_value, optional) in entries {
                    self.item(of_key, false, &key)?;
                    self.item(of_value, *optional, &value)?;
                }
                let [key, value] = [key, value].map(|of| Arc::new(self.inference.resolved(&of)));
                Type::Map(key, value)
            }
            Expr::And(parts) | Expr::Or(parts) => {
                let operator = if matches!(expr, Expr::And(_)) { "&&" } else { "||" };
                for part in parts {
                    self.truth(part, operator)?;
                }
                Type::Simple("bool")
            }
            Expr::If(parts) => {
                let [condition, yes, no] = &**parts;
                self.truth(condition, "?:")?;
                let (yes, no) = (self.type_of(yes)?, self.type_of(no)?);
                let of = self.inference.fresh();
                if !self.inference.unify(&of, &yes) || !self.inference.unify(&of, &no) {
                    return Err(self.no_overload("?:", &[Type::Simple("bool"), yes, no]));
                }
                of
            }
            Expr::Macro {
                name,
                over,
                variables,
                parts,
            } => self.macro_(name, over, variables, parts)?,
        })
    }

    fn name(&self, name: &str) -> Found<'s> {
        let found = self.variables.iter().rev().find(|(known, _)| known == name);
        match found {
            Some((_, type_)) => Ok(type_.clone()),
            None => types::named(name)
                .map(|(_, type_)| Type::Kind(Arc::new(type_)))
                .ok_or_else(|| format!("undeclared reference to '{name}'")),
        }
    }

    fn truth(&mut self, expr: &Expr, operator: &str) -> Result<(), String> {
        let found = self.type_of(expr)?;
        match self.inference.unify(&Type::Simple("bool"), &found) {
            true => Ok(()),
            false => Err(self.no_overload(operator, &[found])),
        }
    }

    fn field(&mut self, of: &Type<'s>, field: &str, optional: bool) -> Found<'s> {
        let (of, optional) = match self.inference.resolved(of) {
            Type::Optional(of) => (self.inference.resolved(&of), true),
            of => (of, optional),
        };
        let found = match of {
            Type::Dyn | Type::Var(_) => Type::Dyn,
            Type::Map(_, value) => (*value).clone(),
            Type::Object(schema, fields) => names::field(field, schema, fields)
                .and_then(|found| Type::field(schema, &found))
                .ok_or_else(|| format!("undefined field '{field}'"))?,
            other => return Err(format!("type '{other}' does not support field selection")),
        };
        Ok(if optional {
            Type::Optional(Arc::new(found))
        } else {
            found
        })
    }

    /// Checks an item of a list or a map.
    fn item(&mut self, expr: &Expr, optional: bool, type_: &Type<'s>) -> Result<(), String> {
        let mut found = self.type_of(expr)?;
        if optional {
            let inner = self.inference.fresh();
            if !self
                .inference
                .unify(&Type::Optional(Arc::new(inner.clone())), &found)
            {
                return Err(format!("expected type 'optional_type' but found '{found}'"));
            }
            found = inner;
        }
        let before = self.inference.resolved(type_);
        let is_other = |check: &Self| {
            let found = check.inference.resolved(&found);
            (before == Type::Dyn) != (found == Type::Dyn) && !matches!(before, Type::Var(_))
        };
        if !self.is_mixed && is_other(self) || !self.inference.unify(type_, &found) {
            if self.is_mixed {
                self.inference.set(type_, Type::Dyn);
                return Ok(());
            }
            return Err(format!(
                "expected type '{before}' but found '{}'",
                self.inference.resolved(&found)
            ));
        }
        Ok(())
    }

    /// Returns the type of a call.
    fn call(&mut self, name: &str, is_method: bool, args: &[Expr]) -> Found<'s> {
        if name == "sortBy" && is_method || name == MESSAGE {
            // They are not evaluated here. The argument of the first has a variable.
            return Ok(Type::Dyn);
        }
        let declared = match name {
            "<=" | ">" | ">=" => "<",
            "!=" => "==",
            other => other,
        };
        let mut given = Vec::with_capacity(args.len());
        let (of, others) = args.split_at(usize::from(is_method));
        for of in of {
            given.push(self.type_of(of)?);
        }
        if !types::is_declared(declared) {
            return Err(format!("undeclared reference to '{name}'"));
        }
        let was_mixed = self.is_mixed;
        self.is_mixed |= name == "format";
        for arg in others {
            given.push(self.type_of(arg)?);
        }
        self.is_mixed = was_mixed;
        let mut result: Option<Type<'s>> = None;
        for signature in types::signatures(declared, is_method) {
            let before = self.inference.mark();
            let (wanted, found) = types::arguments_and_result(signature, self.inference.reserve(2));
            let mut pairs = wanted.iter().zip(&given);
            if wanted.len() != given.len()
                || !pairs.all(|(wanted, given)| self.inference.unify(wanted, given))
            {
                self.inference.undo(before);
                continue;
            }
            let found = self.inference.resolved(&found);
            result = Some(match result {
                // Several fit what is only known when the rule is evaluated.
                Some(other) if other != found => Type::Dyn,
                _ => found,
            });
        }
        let result = result.ok_or_else(|| self.no_overload(name, &given))?;
        self.constants(name, args)?;
        Ok(result)
    }

    fn no_overload(&self, name: &str, args: &[Type<'s>]) -> String {
        let args: Vec<String> = args
            .iter()
            .map(|arg| self.inference.resolved(arg).to_string())
            .collect();
        // As the API server writes operators.
        let name = match name {
            "!" => "!_",
            "-" if args.len() == 1 => "-_",
            "[]" => "_[_]",
            "[?]" => "_[?_]",
            "?:" => "_?_:_",
            "in" => "@in",
            _ if name.starts_with(char::is_alphabetic) => name,
            _ => &format!("_{name}_"),
        };
        format!(
            "found no matching overload for '{name}' applied to '({})'",
            args.join(", ")
        )
    }

    /// Checks what the API server computes of constants.
    fn constants(&mut self, name: &str, args: &[Expr]) -> Result<(), String> {
        match (name, args) {
            ("matches" | "find" | "findAll", [_, Expr::Literal(Val::Text(pattern)), ..]) => {
                if let Err(Unusable::Syntax(why)) = compiled(pattern, PATTERN) {
                    return Err(format!("invalid {name} argument: {why}: `{}`", &**pattern));
                }
            }
            ("format", [Expr::Literal(Val::Text(text)), Expr::List(items)]) => {
                return self.clauses(text, items);
            }
            (_, [arg]) if CONVERSIONS.contains(&name) => {
                if let Some(Err(EvalError::Error(why))) = constant(arg).map(|value| converted(name, value)) {
                    return Err(why);
                }
            }
            _ => {}
        }
        Ok(())
    }

    fn clauses(&mut self, text: &str, items: &[(Expr, bool)]) -> Result<(), String> {
        let clauses = clauses(text)?;
        let wanted = clauses
            .iter()
            .filter(|clause| matches!(clause, Clause::Value { .. }))
            .count();
        if wanted > items.len() {
            return Err(format!("index {} out of range", items.len()));
        }
        if wanted < items.len() {
            return Err(format!(
                "too many arguments supplied to string.format (expected {wanted}, got {})",
                items.len()
            ));
        }
        let values = clauses.iter().filter_map(|clause| match clause {
            Clause::Value { form, .. } => Some(form),
            Clause::Text(_) => None,
        });
        let was_mixed = std::mem::replace(&mut self.is_mixed, true);
        let mut given: Vec<(char, &Expr)> = values.copied().zip(items.iter().map(|(item, _)| item)).collect();
        while let Some((form, item)) = given.pop() {
            if let (Expr::List(items), 's') = (item, form) {
                given.extend(items.iter().map(|(item, _)| ('s', item)));
            }
            let type_ = self.type_of(item)?;
            let type_ = self.inference.resolved(&type_);
            let allowed: &[&str] = match form {
                'd' | 'o' => &["int", "uint"],
                'f' | 'e' => &["double", "string"],
                'b' => &["int", "uint", "bool"],
                'x' | 'X' => &["int", "uint", "string", "bytes"],
                _ => &[
                    "int",
                    "uint",
                    "double",
                    "bool",
                    "string",
                    "timestamp",
                    "bytes",
                    "duration",
                    "null",
                ],
            };
            let fits = match &type_ {
                Type::Simple(name) => allowed.contains(name),
                Type::List(_) | Type::Map(..) | Type::Kind(_) => form == 's',
                Type::Dyn | Type::Var(_) => true,
                _ => false,
            };
            if !fits {
                return Err(format!("error during formatting: %{form} takes no {type_}"));
            }
        }
        self.is_mixed = was_mixed;
        Ok(())
    }

    fn macro_(&mut self, name: &str, over: &Expr, variables: &[String], parts: &[Expr]) -> Found<'s> {
        let range = self.type_of(over)?;
        let range = self.inference.resolved(&range);
        let before = self.variables.len();
        let optional = name == "optMap" || name == "optFlatMap";
        let (first, second) = match &range {
            Type::Optional(of) if optional => ((**of).clone(), None),
            Type::Dyn | Type::Var(_) => (Type::Dyn, Some(Type::Dyn)),
            Type::List(of) if !optional => match variables {
                [_] => ((**of).clone(), None),
                _ => (Type::Simple("int"), Some((**of).clone())),
            },
            Type::Map(key, value) if !optional => ((**key).clone(), Some((**value).clone())),
            other => return Err(format!("'{name}' is called for a value of type '{other}'")),
        };
        let bound = variables.iter().zip([Some(first.clone()), second.clone()]);
        self.variables
            .extend(bound.filter_map(|(name, type_)| Some((name.clone(), type_?))));
        let mut types = Vec::with_capacity(parts.len());
        for part in parts {
            types.push(self.type_of(part)?);
        }
        self.variables.truncate(before);
        let made = types.last().cloned().unwrap_or(Type::Dyn);
        let is_test =
            |check: &mut Self, type_: &Type<'s>| check.inference.unify(&Type::Simple("bool"), type_);
        let tests = match name {
            "all" | "exists" | "exists_one" | "existsOne" | "filter" => &types[..],
            _ => &types[..types.len() - 1],
        };
        for test in tests {
            if !is_test(self, test) {
                return Err(format!("the test of '{name}' is of type '{test}', not 'bool'"));
            }
        }
        let key = match (&range, variables) {
            (Type::List(_), [_]) => Type::Simple("int"),
            _ => first.clone(),
        };
        Ok(match name {
            "all" | "exists" | "exists_one" | "existsOne" => Type::Simple("bool"),
            "filter" => Type::List(Arc::new(first)),
            "map" | "transformList" => Type::List(Arc::new(made)),
            "transformMap" => Type::Map(Arc::new(key), Arc::new(made)),
            "transformMapEntry" => match self.inference.resolved(&made) {
                map @ (Type::Map(..) | Type::Dyn) => map,
                other => return Err(format!("'{name}' makes a '{other}', not a map")),
            },
            "optMap" => Type::Optional(Arc::new(made)),
            _ => match self.inference.resolved(&made) {
                optional @ (Type::Optional(_) | Type::Dyn) => optional,
                other => return Err(format!("'{name}' makes a '{other}', not an optional value")),
            },
        })
    }
}

/// Returns the value of a literal, also one that is converted.
fn constant(expr: &Expr) -> Option<Val<'static>> {
    match expr {
        Expr::Literal(value) => Some(value.clone()),
        Expr::Call { name, args, .. } if CONVERSIONS.contains(&&**name) => match &args[..] {
            [arg] => converted(name, constant(arg)?).ok(),
            _ => None,
        },
        _ => None,
    }
}

fn converted(name: &str, value: Val<'static>) -> Evaluated<'static> {
    functions::call(name, &[value], &Fuel::unlimited(), &Patterns::default())
}
