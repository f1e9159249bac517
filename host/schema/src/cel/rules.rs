//! Applies the rules of a schema to an object, in the order of its fields.

use std::borrow::Cow;
use std::collections::HashMap;
use std::rc::Rc;
use std::time::{Duration, Instant};

use serde_json::Value;

use super::EvalError;
use super::check;
use super::eval::Evaluation;
use super::parser::{Expr, parse};
use super::patterns::Patterns;
use super::value::{Fuel, Val};
use crate::{field, inner};

/// What one rule may cost for one value. The API server's limit.
const RULE: u64 = 1_000_000;
/// What all rules may cost for one object. The API server's limit.
const OBJECT: u64 = 10_000_000;
/// What a rule costs for each value, even if it does not apply.
const APPLIED: u64 = 10;
/// Maximum number of violations that are reported.
const REPORTED: usize = 50;
/// Maximum number of bytes of a message that an expression makes.
const MESSAGE: usize = 5 << 10;
/// Maximum number of bytes of a key or a value in a message.
const SHOWN: usize = 1 << 10;
/// How long the rules may take for one object. Tests of plugins run slower, and their verdicts must not depend on it.
const TIME: Duration = Duration::from_millis(if cfg!(debug_assertions) { 2_000 } else { 200 });
/// Why no more rules are applied.
const EXHAUSTED: &str =
    "validation failed due to running out of cost budget, no further validation rules will be run";

/// What the rules say about an object.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct RuleVerdict {
    /// The violated rules, in the API server's words: `spec.a: Invalid value: "object": message`.
    pub violations: Vec<String>,
    /// The rules that only the API server can evaluate, and why.
    pub left: Vec<String>,
}

/// Applies the rules of a schema to an object that fits the schema. `old` is the object that it replaces.
pub fn validate(schema: &Value, object: &Value, old: Option<&Value>) -> RuleVerdict {
    applied(schema, object, old, Instant::now() + TIME).verdict
}

/// Applies the rules until a deadline.
fn applied(schema: &Value, object: &Value, old: Option<&Value>, deadline: Instant) -> Walk {
    let mut walk = Walk {
        path: String::new(),
        verdict: RuleVerdict::default(),
        fuel: Fuel::new(OBJECT, deadline),
        is_exhausted: false,
        parsed: HashMap::new(),
        with_rules: HashMap::new(),
        patterns: Patterns::default(),
    };
    if walk.has_rules(schema) {
        walk.value(schema, object, old, None);
    }
    walk
}

/// Returns every rule of a whole schema that the API server refuses, with its path in the schema and why.
pub fn problems(schema: &Value, path: &str) -> Vec<(String, String)> {
    let mut found = Vec::new();
    refused(schema, path, true, true, &mut found);
    found
}

/// `has_old` is false within lists whose items have no identity.
fn refused(schema: &Value, path: &str, is_root: bool, has_old: bool, found: &mut Vec<(String, String)>) {
    let is_resource = is_root || schema["x-kubernetes-embedded-resource"] == true;
    for (index, rule) in rules(schema).iter().enumerate() {
        let optional_old = rule["optionalOldSelf"] == true;
        let mut uses_old = false;
        for (name, wanted) in [("rule", "bool"), ("messageExpression", "string")] {
            let Some(text) = rule[name].as_str().filter(|text| !text.trim().is_empty()) else {
                continue;
            };
            let why = match parse(text) {
                Err(why) => Some(format!("is no expression in CEL: {why}")),
                Ok((expr, found_old)) => {
                    uses_old |= name == "rule" && found_old;
                    check::problem(&expr, schema, is_resource, optional_old, wanted)
                }
            };
            let at = format!("{path}.x-kubernetes-validations[{index}].{name}");
            found.extend(why.map(|why| (at, why)));
        }
        let at = format!("{path}.x-kubernetes-validations[{index}]");
        if uses_old && !has_old {
            found.push((
                at,
                "oldSelf cannot be used in a list that is no map: its items have no identity".to_owned(),
            ));
        } else if !uses_old && !rule["optionalOldSelf"].is_null() {
            found.push((
                at,
                "optionalOldSelf is set, and the rule does not use oldSelf".to_owned(),
            ));
        }
    }
    let has_old = has_old && (schema["type"] != "array" || schema["x-kubernetes-list-type"] == "map");
    for (keyword, name, inner) in inner(schema) {
        let at = format!("{path}.{keyword}");
        let at = match name {
            Some(name) => field(&at, name),
            None => at,
        };
        refused(inner, &at, false, has_old, found);
    }
}

fn rules(schema: &Value) -> &[Value] {
    schema["x-kubernetes-validations"]
        .as_array()
        .map_or(&[], Vec::as_slice)
}

/// An expression, and whether it uses `oldSelf`; or why it is none.
type Parsed = Result<(Expr, bool), String>;

fn shortened(text: &str) -> Cow<'_, str> {
    if text.len() <= SHOWN {
        return Cow::Borrowed(text);
    }
    Cow::Owned(format!("{}…", &text[..text.floor_char_boundary(SHOWN)]))
}

struct Walk {
    /// The path of the current value.
    path: String,
    verdict: RuleVerdict,
    fuel: Fuel,
    is_exhausted: bool,
    /// Each expression by its place in memory.
    parsed: HashMap<*const Value, Rc<Parsed>>,
    /// Whether there are rules within each schema.
    with_rules: HashMap<*const Value, bool>,
    patterns: Patterns,
}

impl Walk {
    fn has_rules(&mut self, schema: &Value) -> bool {
        let key = std::ptr::from_ref(schema);
        if let Some(known) = self.with_rules.get(&key) {
            return *known;
        }
        let mut found = !rules(schema).is_empty();
        for (_, _, inner) in inner(schema) {
            // Of all of them, for later.
            found |= self.has_rules(inner);
        }
        self.with_rules.insert(key, found);
        found
    }

    fn is_done(&self) -> bool {
        self.is_exhausted || self.verdict.violations.len() >= REPORTED
    }

    /// `nearest` is what the value is in, with what that replaces. It counts where the value itself has no counterpart, as
    /// in a list whose items have no identity.
    fn value<'a>(
        &mut self,
        schema: &'a Value,
        value: &'a Value,
        old: Option<&'a Value>,
        nearest: Option<(&'a Value, &'a Value)>,
    ) {
        // Null stands for a value that is not there.
        if self.is_done() || value.is_null() {
            return;
        }
        if self.fuel.take(0).is_err() {
            return self.exhausted(schema, EXHAUSTED);
        }
        let old = old.filter(|old| !old.is_null());
        let nearest = old.map(|old| (old, value)).or(nearest);
        for rule in rules(schema) {
            if self.is_done() {
                return;
            }
            if self.fuel.rest() == 0 || self.fuel.take(APPLIED).is_err() {
                return self.exhausted(schema, EXHAUSTED);
            }
            self.rule(schema, rule, value, old, nearest);
        }
        match value {
            Value::Array(items) if self.has_rules(&schema["items"]) => {
                // The items of other lists have no identity.
                let keys = schema["x-kubernetes-list-map-keys"]
                    .as_array()
                    .filter(|_| schema["x-kubernetes-list-type"] == "map");
                let identity = |item: &'a Value| {
                    let keys = keys?.iter().filter_map(Value::as_str);
                    Some(keys.map(|key| item[key].to_string()).collect::<Vec<_>>())
                };
                let mut known = HashMap::new();
                for item in old.and_then(Value::as_array).into_iter().flatten() {
                    if let Some(identity) = identity(item) {
                        known.entry(identity).or_insert(item);
                    }
                }
                for (index, item) in items.iter().enumerate() {
                    let old = identity(item).and_then(|identity| known.get(&identity).copied());
                    let step = ["[", &index.to_string(), "]"];
                    self.within(step, &schema["items"], item, old, nearest);
                }
            }
            Value::Object(fields) => {
                for (name, value) in fields {
                    let declared = schema["properties"].get(name);
                    let schema = declared.unwrap_or(&schema["additionalProperties"]);
                    if !self.has_rules(schema) {
                        continue;
                    }
                    // Keys are long.
                    let shown = shortened(name);
                    let step = match declared {
                        Some(_) if self.path.is_empty() => ["", &shown, ""],
                        Some(_) => [".", &shown, ""],
                        None => ["[", &shown, "]"],
                    };
                    self.within(step, schema, value, old.and_then(|old| old.get(name)), nearest);
                }
            }
            _ => {}
        }
    }

    fn within<'a>(
        &mut self,
        step: [&str; 3],
        schema: &'a Value,
        value: &'a Value,
        old: Option<&'a Value>,
        nearest: Option<(&'a Value, &'a Value)>,
    ) {
        let end = self.path.len();
        self.path.extend(step);
        self.value(schema, value, old, nearest);
        self.path.truncate(end);
    }

    fn rule<'a>(
        &mut self,
        schema: &'a Value,
        rule: &'a Value,
        value: &'a Value,
        old: Option<&'a Value>,
        nearest: Option<(&'a Value, &'a Value)>,
    ) {
        let text = rule["rule"].as_str().unwrap_or_default().trim();
        let given = rule["message"].as_str().unwrap_or_default().trim();
        let shown = if given.is_empty() { text } else { given };
        let parsed = self.parse(&rule["rule"]);
        let (expr, is_transition) = match &*parsed {
            Ok((expr, is_transition)) => (expr, *is_transition),
            Err(why) => return self.failed(schema, &format!("rule compile error: {why}")),
        };
        let is_optional = rule["optionalOldSelf"] == true;
        if is_transition && !is_optional && old.is_none() {
            return;
        }
        self.fuel.begin(RULE);
        let read = |value: &'a Value| Val::read(value, schema, self.path.is_empty(), &self.fuel);
        let read = read(value).and_then(|this| Ok((this, old.map(read).transpose()?)));
        let (this, before) = match read {
            Ok(read) => read,
            Err(EvalError::Error(why)) => {
                return self.failed(schema, &format!("{why} evaluating rule: {shown}"));
            }
            Err(_) => return self.too_costly(schema, shown),
        };
        let (Some(this), false) = (this, matches!(before, Some(None))) else {
            return self.leave(shown, "the schema gives its value no type");
        };
        let before = before.flatten();
        let mut variables = vec![("self", this)];
        if is_optional {
            variables.push(("oldSelf", Val::Optional(before.map(Rc::new))));
        } else if let Some(before) = before {
            variables.push(("oldSelf", before));
        }
        let found = self.evaluate(expr, &variables);
        match found {
            Ok(Val::Bool(true)) => {}
            // What an update does not change is not refused.
            Ok(_) if !is_transition && nearest.is_some_and(|(old, new)| old == new) => {}
            Ok(_) => {
                let message = self.message(rule, &variables);
                let message = message.unwrap_or_else(|| match given {
                    "" => format!("failed rule: {text}"),
                    given => given.to_owned(),
                });
                self.violated(schema, rule, value, &message);
            }
            Err(EvalError::Unknown(name)) => {
                let why = format!("`{name}` is not evaluated here");
                self.leave(shown, &why);
            }
            Err(EvalError::Error(why)) => {
                self.failed(schema, &format!("{why} evaluating rule: {shown}"));
            }
            Err(EvalError::Overload) => {
                let why = format!(
                    "'no such overload': call arguments did not match a supported operator, function or macro signature \
                     for rule: {shown}"
                );
                self.failed(schema, &why);
            }
            Err(EvalError::Cost) => self.too_costly(schema, shown),
        }
    }

    fn too_costly(&mut self, schema: &Value, shown: &str) {
        let why = format!(
            "'operation cancelled: actual cost limit exceeded': no further validation rules will be run due to call cost \
             exceeds limit for rule: {shown}"
        );
        self.exhausted(schema, &why);
    }

    /// Reports why no more rules are applied.
    fn exhausted(&mut self, schema: &Value, why: &str) {
        self.failed(schema, why);
        self.is_exhausted = true;
    }

    fn parse(&mut self, text: &Value) -> Rc<Parsed> {
        let parsed = self.parsed.entry(std::ptr::from_ref(text));
        Rc::clone(parsed.or_insert_with(|| Rc::new(parse(text.as_str().unwrap_or_default()))))
    }

    fn evaluate<'e, 'a>(
        &self,
        expr: &'e Expr,
        variables: &[(&'e str, Val<'a>)],
    ) -> Result<Val<'a>, EvalError> {
        // The evaluation borrows what is its own.
        let mut evaluation = Evaluation {
            variables: variables.to_vec(),
            fuel: &self.fuel,
            patterns: &self.patterns,
        };
        evaluation.eval(expr)
    }

    /// Returns the message that the rule's expression makes, if it makes one.
    fn message<'a>(&mut self, rule: &'a Value, variables: &[(&'static str, Val<'a>)]) -> Option<String> {
        rule["messageExpression"].as_str()?;
        let parsed = self.parse(&rule["messageExpression"]);
        self.fuel.begin(RULE);
        let Ok(Val::Text(message)) = self.evaluate(&parsed.as_ref().as_ref().ok()?.0, variables) else {
            return None;
        };
        let message = message.trim();
        let is_message = !message.is_empty() && message.len() <= MESSAGE && !message.contains('\n');
        is_message.then(|| message.to_owned())
    }

    /// Reports a violated rule with its own path and reason.
    fn violated(&mut self, schema: &Value, rule: &Value, value: &Value, message: &str) {
        let field = rule["fieldPath"].as_str();
        let field = field.and_then(|field| field_path(&self.path, field, schema));
        // The API server shows simple values only.
        let shown = match value {
            Value::Object(_) | Value::Array(_) => String::new(),
            value => format!(": {}", shortened(&value.to_string())),
        };
        let path = named(field.as_deref().unwrap_or(&self.path));
        self.verdict.violations.push(match rule["reason"].as_str() {
            Some("FieldValueRequired") => format!("{path}: Required value: {message}"),
            Some("FieldValueForbidden") => format!("{path}: Forbidden: {message}"),
            Some("FieldValueDuplicate") => format!("{path}: Duplicate value{shown}"),
            _ => format!("{path}: Invalid value{shown}: {message}"),
        });
    }

    /// Reports a rule that cannot be evaluated.
    fn failed(&mut self, schema: &Value, message: &str) {
        let type_ = schema["type"].as_str().unwrap_or_default();
        let path = named(&self.path);
        self.verdict
            .violations
            .push(format!("{path}: Invalid value: {type_:?}: {message}"));
    }

    fn leave(&mut self, shown: &str, why: &str) {
        if self.verdict.left.len() >= REPORTED {
            return;
        }
        let path = if self.path.is_empty() {
            "the resource"
        } else {
            &self.path
        };
        let text = format!("{path}: the rule {shown:?} is left to the API server: {why}");
        if !self.verdict.left.contains(&text) {
            self.verdict.left.push(text);
        }
    }
}

/// Returns a path as the API server prints it.
fn named(path: &str) -> &str {
    if path.is_empty() { "<nil>" } else { path }
}

/// Appends a rule's `fieldPath`, such as `.a['b.c']`, to the path of a schema; `None` if it leads to no field.
pub(crate) fn field_path(path: &str, field: &str, schema: &Value) -> Option<String> {
    let (mut joined, mut rest, mut schema) = (path.to_owned(), field, schema);
    while !rest.is_empty() {
        let (name, after) = match rest.strip_prefix("['") {
            Some(quoted) => unquoted(quoted)?,
            None => {
                let plain = rest.strip_prefix('.')?;
                let end = plain.find(['.', '[', ']']).unwrap_or(plain.len());
                (plain[..end].to_owned(), &plain[end..])
            }
        };
        let values = &schema["additionalProperties"];
        schema = match schema["properties"].as_object() {
            Some(properties) => {
                if !joined.is_empty() {
                    joined.push('.');
                }
                joined += &name;
                properties.get(&name)?
            }
            None if values.is_object() => {
                joined = format!("{joined}[{name}]");
                values
            }
            None => return None,
        };
        rest = after;
    }
    Some(joined)
}

/// Returns the text up to `']`, and what follows. A backslash stands before a sign.
fn unquoted(text: &str) -> Option<(String, &str)> {
    let (mut name, mut signs) = (String::new(), text.char_indices());
    loop {
        match signs.next()?.1 {
            '\'' => break,
            '\\' => name.push(signs.next()?.1),
            sign => name.push(sign),
        }
    }
    Some((name, signs.as_str().strip_prefix(']')?))
}

#[cfg(test)]
mod tests;
