//! The API server's rules for schemas in CustomResourceDefinitions; each problem contains its path.
//!
//! Source: "Extend the Kubernetes API with CustomResourceDefinitions", section "Specifying a structural schema",
//! and the fields of `JSONSchemaProps` in `apiextensions.k8s.io/v1`.

use regex::Regex;
use serde_json::Value;

use super::schema::{fill_defaults, properties, validate};
use super::{Problem, field};

const TYPES: [&str; 6] = ["object", "array", "string", "integer", "number", "boolean"];
const JUNCTORS: [&str; 3] = ["allOf", "anyOf", "oneOf"];

/// Keywords that the API server knows and never allows.
const FORBIDDEN: [&str; 4] = ["$ref", "definitions", "dependencies", "patternProperties"];

/// The keywords that a schema may use.
const KNOWN: [&str; 38] = [
    "$schema",
    "additionalProperties",
    "allOf",
    "anyOf",
    "default",
    "description",
    "enum",
    "example",
    "exclusiveMaximum",
    "exclusiveMinimum",
    "externalDocs",
    "format",
    "items",
    "maxItems",
    "maxLength",
    "maxProperties",
    "maximum",
    "minItems",
    "minLength",
    "minProperties",
    "minimum",
    "multipleOf",
    "not",
    "nullable",
    "oneOf",
    "pattern",
    "properties",
    "required",
    "title",
    "type",
    "uniqueItems",
    "x-kubernetes-embedded-resource",
    "x-kubernetes-int-or-string",
    "x-kubernetes-list-map-keys",
    "x-kubernetes-list-type",
    "x-kubernetes-map-type",
    "x-kubernetes-preserve-unknown-fields",
    "x-kubernetes-validations",
];

/// Returns every problem for which the API server would refuse the schema.
#[must_use]
pub fn problems(schema: &Value, path: &str) -> Vec<Problem> {
    let mut problems = Vec::new();
    if schema["type"] != "object" {
        problems.push(Problem::new(
            path,
            "the type at the root must be `object`".to_owned(),
        ));
    }
    walk(schema, path, true, &mut problems);
    problems
}

fn walk(schema: &Value, path: &str, root: bool, problems: &mut Vec<Problem>) {
    let Some(map) = schema.as_object() else {
        let message = "a schema must be an object: `true` and `false` are not structural; give the type";
        problems.push(Problem::new(path, message));
        return;
    };
    for keyword in map.keys() {
        if keyword == "$ref" {
            problems.push(Problem::new(
                path,
                format!(
                    "`$ref` to {} is not allowed: write the schema in place; a recursive type has no such schema",
                    map[keyword]
                ),
            ));
        } else if FORBIDDEN.contains(&keyword.as_str()) {
            problems.push(Problem::new(
                path,
                format!("`{keyword}` is not allowed: write the schema in place"),
            ));
        } else if !KNOWN.contains(&keyword.as_str()) {
            problems.push(Problem::new(
                path,
                format!("`{keyword}` is not a keyword of structural schemas"),
            ));
        }
    }
    check_type(schema, path, root, problems);
    check_shape(schema, path, problems);
    check_lists(schema, path, problems);
    check_values(schema, path, problems);
    check_rules(schema, path, problems);
    for junctor in JUNCTORS {
        for (index, branch) in schema[junctor].as_array().into_iter().flatten().enumerate() {
            within_junctor(branch, schema, &format!("{path}.{junctor}[{index}]"), problems);
        }
    }
    if let Some(not) = schema.get("not") {
        within_junctor(not, schema, &field(path, "not"), problems);
    }
    for (name, schema) in properties(schema) {
        let path = field(&field(path, "properties"), name);
        if root && name == "metadata" {
            check_metadata(schema, &path, problems);
            continue;
        }
        walk(schema, &path, false, problems);
    }
    if let Some(items) = map.get("items") {
        if items.is_array() {
            problems.push(Problem::new(
                field(path, "items"),
                "must be one schema, not a list of them",
            ));
        } else {
            walk(items, &field(path, "items"), false, problems);
        }
    }
    if let Some(more) = map.get("additionalProperties").filter(|more| more.is_object()) {
        walk(more, &field(path, "additionalProperties"), false, problems);
    }
}

fn check_type(schema: &Value, path: &str, root: bool, problems: &mut Vec<Problem>) {
    let int_or_string = schema["x-kubernetes-int-or-string"] == true;
    let open = schema["x-kubernetes-preserve-unknown-fields"] == true;
    match schema.get("type") {
        None if int_or_string || open || root => {}
        None => problems.push(Problem::new(
            path,
            "`type` is missing: every value needs one (or x-kubernetes-preserve-unknown-fields: true)",
        )),
        Some(_) if int_or_string => {
            problems.push(Problem::new(
                path,
                "`type` must be absent with x-kubernetes-int-or-string",
            ));
        }
        Some(Value::String(type_)) if TYPES.contains(&type_.as_str()) => {}
        Some(Value::Array(_)) => problems.push(Problem::new(
            path,
            "`type` must be one type: for a value that may be null, add `nullable: true`",
        )),
        Some(type_) => problems.push(Problem::new(
            path,
            format!("`type` is {type_}; it must be one of {}", TYPES.join(", ")),
        )),
    }
    for flag in [
        "x-kubernetes-int-or-string",
        "x-kubernetes-preserve-unknown-fields",
        "x-kubernetes-embedded-resource",
    ] {
        if schema.get(flag).is_some_and(|flag| *flag != true) {
            problems.push(Problem::new(path, format!("`{flag}` must be true or absent")));
        }
    }
    if schema["x-kubernetes-embedded-resource"] == true
        && (schema["type"] != "object" || (!open && properties(schema).next().is_none()))
    {
        problems.push(Problem::new(
            path,
            "x-kubernetes-embedded-resource needs the type object, and properties or preserved unknown fields",
        ));
    }
}

fn check_shape(schema: &Value, path: &str, problems: &mut Vec<Problem>) {
    let has = |name: &str| schema.get(name).is_some();
    if has("properties") && has("additionalProperties") {
        problems.push(Problem::new(
            path,
            "`properties` and `additionalProperties` exclude each other",
        ));
    }
    if schema["additionalProperties"] == false {
        problems.push(Problem::new(
            path,
            "`additionalProperties: false` is not allowed: unknown fields are dropped anyway",
        ));
    }
    if schema["uniqueItems"] == true {
        problems.push(Problem::new(
            path,
            "`uniqueItems: true` is not allowed: use x-kubernetes-list-type: set",
        ));
    }
    if schema["type"] == "array" && !has("items") {
        problems.push(Problem::new(
            path,
            "`items` is missing: an array needs the schema of its items",
        ));
    }
    for name in ["exclusiveMinimum", "exclusiveMaximum"] {
        if schema.get(name).is_some_and(|value| !value.is_boolean()) {
            problems.push(Problem::new(
                path,
                format!("`{name}` must be true or false beside the limit"),
            ));
        }
    }
}

fn check_lists(schema: &Value, path: &str, problems: &mut Vec<Problem>) {
    let mut wrong = |message: String| problems.push(Problem::new(path, message));
    let keys = schema["x-kubernetes-list-map-keys"].as_array();
    match (schema.get("x-kubernetes-list-type").and_then(Value::as_str), keys) {
        (None, None) => {}
        (Some("map"), Some(keys)) if !keys.is_empty() => {
            let items = &schema["items"];
            for key in keys.iter().filter_map(Value::as_str) {
                let Some(property) = items["properties"].get(key) else {
                    wrong(format!(
                        "x-kubernetes-list-map-keys names `{key}`, which the items do not have"
                    ));
                    continue;
                };
                let required = items["required"].as_array().into_iter().flatten();
                if property.get("default").is_none() && !required.into_iter().any(|r| r == key) {
                    wrong(format!(
                        "the list's key `{key}` must be required or have a default"
                    ));
                }
            }
        }
        (Some("map"), _) => wrong("x-kubernetes-list-type: map needs x-kubernetes-list-map-keys".into()),
        (_, Some(_)) => wrong("x-kubernetes-list-map-keys needs x-kubernetes-list-type: map".into()),
        (Some("set" | "atomic"), None) => {}
        (Some(other), None) => {
            wrong(format!(
                "x-kubernetes-list-type is {other:?}; it must be atomic, set or map"
            ));
        }
    }
    if schema.get("x-kubernetes-list-type").is_some() && schema["type"] != "array" {
        wrong("x-kubernetes-list-type needs the type array".into());
    }
    if let Some(map_type) = schema.get("x-kubernetes-map-type")
        && (schema["type"] != "object" || !(map_type == "granular" || map_type == "atomic"))
    {
        wrong("x-kubernetes-map-type must be granular or atomic, on the type object".into());
    }
}

fn check_values(schema: &Value, path: &str, problems: &mut Vec<Problem>) {
    if let Some(pattern) = schema["pattern"].as_str()
        && Regex::new(pattern).is_err()
    {
        problems.push(Problem::new(
            path,
            format!("the pattern {pattern} is not a regular expression"),
        ));
    }
    if let Some(default) = schema.get("default") {
        let mut filled = default.clone();
        fill_defaults(&mut filled, schema);
        for problem in validate(&filled, schema) {
            let at = if problem.path.is_empty() {
                String::new()
            } else {
                format!(" at {}", problem.path)
            };
            problems.push(Problem::new(
                path,
                format!(
                    "the default does not match its own schema{at}: {}",
                    problem.message
                ),
            ));
        }
    }
}

/// Checks the form of the rules in CEL.
fn check_rules(schema: &Value, path: &str, problems: &mut Vec<Problem>) {
    let Some(rules) = schema.get("x-kubernetes-validations") else {
        return;
    };
    let Some(rules) = rules.as_array() else {
        let message = "`x-kubernetes-validations` must be a list of rules";
        return problems.push(Problem::new(path, message));
    };
    for (index, rule) in rules.iter().enumerate() {
        let at = format!("{path}.x-kubernetes-validations[{index}]");
        let text = |name: &str| rule[name].as_str().unwrap_or_default().trim();
        if text("rule").is_empty() {
            problems.push(Problem::new(&at, "`rule` is missing or not a string"));
        }
        if text("message").contains('\n') {
            problems.push(Problem::new(&at, "`message` must be one line"));
        } else if text("rule").contains('\n') && text("message").is_empty() {
            problems.push(Problem::new(&at, "a rule of several lines needs a `message`"));
        }
    }
}

fn check_metadata(schema: &Value, path: &str, problems: &mut Vec<Problem>) {
    if schema.get("type").is_some_and(|type_| type_ != "object") {
        problems.push(Problem::new(path, "`type` must be object"));
    }
    for (name, _) in properties(schema) {
        if name != "name" && name != "generateName" {
            problems.push(Problem::new(
                field(path, name),
                "only `name` and `generateName` may be restricted",
            ));
        }
    }
}

/// Checks a branch of `allOf`, `anyOf`, `oneOf` or `not`. `outer` is the schema beside it: it must contain every field
/// that the branch mentions.
fn within_junctor(branch: &Value, outer: &Value, path: &str, problems: &mut Vec<Problem>) {
    let int_or_string = outer["x-kubernetes-int-or-string"] == true;
    for keyword in [
        "description",
        "type",
        "default",
        "additionalProperties",
        "nullable",
        "title",
    ] {
        if branch.get(keyword).is_some() && !(int_or_string && keyword == "type") {
            problems.push(Problem::new(
                path,
                format!("`{keyword}` is not allowed within allOf, anyOf, oneOf or not; put it outside"),
            ));
        }
    }
    if branch.get("$ref").is_some() {
        problems.push(Problem::new(
            path,
            "`$ref` is not allowed: write the schema in place",
        ));
    }
    for (name, inner) in properties(branch) {
        match outer["properties"].get(name) {
            Some(outer) => within_junctor(inner, outer, &field(&field(path, "properties"), name), problems),
            None => problems.push(Problem::new(
                field(&field(path, "properties"), name),
                "the field must also be in the `properties` outside of the junctor",
            )),
        }
    }
    if let Some(inner) = branch.get("items") {
        match outer.get("items") {
            Some(outer) => within_junctor(inner, outer, &field(path, "items"), problems),
            None => problems.push(Problem::new(
                field(path, "items"),
                "must also be present outside of the junctor",
            )),
        }
    }
    for junctor in JUNCTORS {
        for (index, inner) in branch[junctor].as_array().into_iter().flatten().enumerate() {
            within_junctor(inner, outer, &format!("{path}.{junctor}[{index}]"), problems);
        }
    }
}
