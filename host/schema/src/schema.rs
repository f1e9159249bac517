//! Validates a resource by the schema of its CustomResourceDefinition, as the API server does: fills in the defaults,
//! then validates.
//!
//! `crate::cel` evaluates the rules in CEL (`x-kubernetes-validations`); [`has_rules`] reports whether there are any. An
//! unknown field is a problem here, as it is for `kubectl apply`, which requests strict validation. Sources: the
//! structural schemas of `apiextensions.k8s.io/v1`, and the schema objects of OpenAPI 3.0.

use serde_json::{Map, Value};

use super::{Problem, embedded, field, formats, numbers, properties};
pub use crate::cel::fill_defaults;
use crate::cel::re2::{self, Unusable};

/// Returns every mismatch between a whole resource and the schema. The API server validates `apiVersion`, `kind` and
/// `metadata` separately; of the metadata, a schema can restrict the name.
#[must_use]
pub fn validate_resource(resource: &Value, schema: &Value) -> Vec<Problem> {
    let mut rest = resource.clone();
    if let Some(map) = rest.as_object_mut() {
        for name in ["apiVersion", "kind", "metadata"] {
            map.remove(name);
        }
    }
    let mut problems = validate(&rest, schema);
    let rules = schema.pointer("/properties/metadata/properties/name");
    if let (Some(rules), Some(name)) = (rules, resource.pointer("/metadata/name")) {
        check(name, rules, "metadata.name", true, &mut problems);
    }
    problems
}

/// Returns every mismatch between a value and the schema.
#[must_use]
pub fn validate(value: &Value, schema: &Value) -> Vec<Problem> {
    let mut problems = Vec::new();
    check(value, schema, "", true, &mut problems);
    problems
}

/// The key of rules in CEL.
const RULES: &str = "x-kubernetes-validations";

/// Whether the schema contains rules in CEL.
#[must_use]
pub fn has_rules(schema: &Value) -> bool {
    match schema {
        Value::Object(map) => map.contains_key(RULES) || map.values().any(has_rules),
        Value::Array(items) => items.iter().any(has_rules),
        _ => false,
    }
}

/// Checks one value. `whole` is true for the structural schema of this value, and false for a branch such as one in
/// `allOf`.
fn check(value: &Value, schema: &Value, path: &str, whole: bool, problems: &mut Vec<Problem>) {
    let mut wrong = |message: String| problems.push(Problem::new(path, message));
    if value.is_null() {
        if whole && schema["nullable"] != true && (schema["type"].is_string() || is_int_or_string(schema)) {
            wrong("must not be null".into());
        } else if schema["enum"].is_array() {
            wrong("is null, which no enum allows".into());
        }
        return;
    }
    if is_int_or_string(schema) {
        if !(value.is_string() || numbers::is_integer(value)) {
            wrong(format!("{} must be an integer or a string", shown(value)));
            return;
        }
    } else if let Some(type_) = schema["type"].as_str()
        && !is_type(value, type_)
    {
        wrong(format!("{} must be of type {type_}", shown(value)));
        return;
    }
    if let Some(allowed) = schema["enum"].as_array()
        && !allowed
            .iter()
            .any(|allowed| numbers::is_enum_value(value, allowed))
    {
        let allowed: Vec<String> = allowed.iter().map(shown).collect();
        wrong(format!(
            "{} is not one of {} (enum)",
            shown(value),
            allowed.join(", ")
        ));
    }
    match value {
        Value::Number(_) => numbers::check(value, schema, &mut wrong),
        Value::String(text) => check_text(text, schema, &mut wrong),
        Value::Array(items) => check_array(items, schema, path, whole, problems),
        Value::Object(map) => check_object(map, schema, path, whole, problems),
        _ => {}
    }
    check_junctors(value, schema, path, problems);
}

fn is_type(value: &Value, type_: &str) -> bool {
    match type_ {
        "object" => value.is_object(),
        "array" => value.is_array(),
        "string" => value.is_string(),
        "boolean" => value.is_boolean(),
        "number" => value.is_number(),
        "integer" => numbers::is_integer(value),
        _ => true,
    }
}

fn is_int_or_string(schema: &Value) -> bool {
    schema["x-kubernetes-int-or-string"] == true
}

fn check_text(text: &str, schema: &Value, wrong: &mut impl FnMut(String)) {
    let length = text.chars().count() as u64;
    if let Some(min) = schema["minLength"].as_u64().filter(|min| length < *min) {
        wrong(format!("{text:?} is shorter than {min} (minLength)"));
    }
    if let Some(max) = schema["maxLength"].as_u64().filter(|max| length > *max) {
        wrong(format!(
            "the text is longer than {max} (maxLength): it has {length} characters"
        ));
    }
    if let Some(pattern) = schema["pattern"].as_str() {
        match re2::pattern(pattern) {
            Ok(regex) if !regex.is_match(text) => {
                wrong(format!("{text:?} does not match {pattern} (pattern)"));
            }
            Ok(_) | Err(Unusable::Large) => {}
            // Name the pattern: the path does not contain it.
            Err(Unusable::Syntax(why)) => {
                wrong(format!(
                    "the pattern {pattern} is not a regular expression: {why}"
                ));
            }
        }
    }
    if let Some(format) = schema["format"].as_str()
        && matches!(schema["type"].as_str(), None | Some("string"))
        && !formats::is_valid(format, text)
    {
        wrong(format!("{text:?} is not a valid {format} (format)"));
    }
}

fn check_array(items: &[Value], schema: &Value, path: &str, whole: bool, problems: &mut Vec<Problem>) {
    check_count(
        items.len(),
        ["items", "minItems", "maxItems"],
        schema,
        path,
        problems,
    );
    let list_type = schema["x-kubernetes-list-type"].as_str();
    let keys: Vec<&str> = schema["x-kubernetes-list-map-keys"]
        .as_array()
        .into_iter()
        .flatten()
        .filter_map(Value::as_str)
        .collect();
    let identity = |item: &Value| match list_type {
        Some("set") => Some(item.clone()),
        Some("map") => Some(keys.iter().map(|key| item[*key].clone()).collect()),
        _ => None,
    };
    for (index, item) in items.iter().enumerate() {
        let path = format!("{path}[{index}]");
        if let Some(this) = identity(item)
            && items[..index]
                .iter()
                .any(|other| identity(other).as_ref() == Some(&this))
        {
            problems.push(Problem::new(
                &path,
                format!("{} occurs twice (x-kubernetes-list-type)", shown(&this)),
            ));
        }
        if let Some(schema) = schema.get("items") {
            check(item, schema, &path, whole, problems);
        }
    }
}

/// Checks a count by its limits. `names` are what is counted, and the keywords of both limits.
fn check_count(count: usize, names: [&str; 3], schema: &Value, path: &str, problems: &mut Vec<Problem>) {
    let ([what, min, max], count) = (names, count as u64);
    if let Some(least) = schema[min].as_u64().filter(|least| count < *least) {
        problems.push(Problem::new(
            path,
            format!("{count} {what} are fewer than {least} ({min})"),
        ));
    }
    if let Some(most) = schema[max].as_u64().filter(|most| count > *most) {
        problems.push(Problem::new(
            path,
            format!("{count} {what} are more than {most} ({max})"),
        ));
    }
}

fn check_object(
    map: &Map<String, Value>,
    schema: &Value,
    path: &str,
    whole: bool,
    problems: &mut Vec<Problem>,
) {
    for name in schema["required"]
        .as_array()
        .into_iter()
        .flatten()
        .filter_map(Value::as_str)
    {
        if !map.contains_key(name) {
            problems.push(Problem::new(field(path, name), "is missing (required)"));
        }
    }
    let embedded = schema["x-kubernetes-embedded-resource"] == true;
    let open = schema["x-kubernetes-preserve-unknown-fields"] == true
        || schema
            .get("additionalProperties")
            .is_some_and(|more| *more != false);
    let is_kept = |name: &str| {
        !whole
            || open
            || schema["properties"].get(name).is_some()
            || embedded && matches!(name, "apiVersion" | "kind" | "metadata")
    };
    // The API server drops the others before it counts.
    let count = map.keys().filter(|name| is_kept(name)).count();
    check_count(
        count,
        ["fields", "minProperties", "maxProperties"],
        schema,
        path,
        problems,
    );
    if embedded {
        problems.extend(embedded::problems(map, path));
    }
    for (name, value) in map {
        let at = field(path, name);
        if let Some(schema) = schema["properties"].get(name) {
            check(value, schema, &at, whole, problems);
        } else if let Some(more) = schema.get("additionalProperties").filter(|more| more.is_object()) {
            check(value, more, &at, whole, problems);
        } else if !is_kept(name) {
            let known: Vec<&str> = properties(schema).map(|(name, _)| name.as_str()).collect();
            let message = format!("unknown field; the schema has {}", known.join(", "));
            problems.push(Problem::new(at, message));
        }
    }
}

fn check_junctors(value: &Value, schema: &Value, path: &str, problems: &mut Vec<Problem>) {
    let branches = |name: &str| schema[name].as_array();
    let fits = |branch: &Value| {
        let mut found = Vec::new();
        check(value, branch, path, false, &mut found);
        found.is_empty()
    };
    for branch in branches("allOf").into_iter().flatten() {
        check(value, branch, path, false, problems);
    }
    if let Some(any) = branches("anyOf")
        && !any.iter().any(fits)
    {
        problems.push(Problem::new(path, "matches none of the alternatives (anyOf)"));
    }
    if let Some(one) = branches("oneOf") {
        let count = one.iter().filter(|branch| fits(branch)).count();
        if count != 1 {
            problems.push(Problem::new(
                path,
                format!("matches {count} of the alternatives, not exactly one (oneOf)"),
            ));
        }
    }
    if let Some(not) = schema.get("not")
        && fits(not)
    {
        problems.push(Problem::new(path, "matches the excluded schema (not)"));
    }
}

/// Returns JSON text, truncated for use in a message.
fn shown(value: &Value) -> String {
    let mut text = value.to_string();
    if text.len() > 60 {
        text.truncate(text.floor_char_boundary(57));
        text.push('…');
    }
    text
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    /// What kube-apiserver 1.36 said of these.
    #[test]
    fn fields_that_are_dropped_are_not_counted() {
        let schema = |bound: &str, count: u32| json!({ "type": "object", "properties": { "a": { "type": "integer" } }, bound: count });
        let counts = |value: Value, schema: &Value| {
            let problems = validate(&value, schema);
            problems.iter().any(|it| it.to_string().contains("Properties)"))
        };
        assert!(counts(json!({ "b": 1 }), &schema("minProperties", 1)));
        assert!(!counts(json!({ "a": 1, "b": 1 }), &schema("minProperties", 1)));
        assert!(!counts(json!({ "a": 1, "b": 1 }), &schema("maxProperties", 1)));
        let map =
            json!({ "type": "object", "additionalProperties": { "type": "integer" }, "maxProperties": 1 });
        assert!(counts(json!({ "a": 1, "b": 1 }), &map));
    }

    #[test]
    fn a_rule_of_the_definition_for_the_name_applies() {
        let schema = json!({ "type": "object", "properties": {
            "metadata": { "type": "object", "properties": { "name": { "type": "string", "maxLength": 3 } } },
        } });
        let problems = |name: &str| {
            let problems = validate_resource(&json!({ "metadata": { "name": name } }), &schema);
            problems.iter().map(ToString::to_string).collect::<Vec<_>>()
        };
        assert_eq!(problems("abc"), Vec::<String>::new());
        assert_eq!(
            problems("abcd"),
            ["metadata.name: the text is longer than 3 (maxLength): it has 4 characters"]
        );
    }
}
