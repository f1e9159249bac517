//! The API server's rules for schemas in CustomResourceDefinitions; each problem contains its path.
//!
//! Source: "Extend the Kubernetes API with CustomResourceDefinitions", section "Specifying a structural schema",
//! and the fields of `JSONSchemaProps` in `apiextensions.k8s.io/v1`.

mod branches;
mod lists;
mod rules;

use serde_json::Value;

use super::schema::validate;
use super::{Problem, field, properties};
use crate::cel;
use crate::cel::re2::{Unusable, pattern};

const TYPES: [&str; 6] = ["object", "array", "string", "integer", "number", "boolean"];
const JUNCTORS: [&str; 3] = ["allOf", "anyOf", "oneOf"];

/// Keywords that the API server knows and never allows.
const FORBIDDEN: [&str; 7] = [
    "$ref",
    "$schema",
    "additionalItems",
    "definitions",
    "dependencies",
    "id",
    "patternProperties",
];

/// The keywords that a schema may use.
const KNOWN: [&str; 37] = [
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
    for keyword in ["additionalProperties", "nullable"] {
        if !matches!(schema[keyword], Value::Null | Value::Bool(false)) {
            problems.push(Problem::new(
                path,
                format!("`{keyword}` is not allowed at the root"),
            ));
        }
    }
    walk(schema, path, Place::Root, &mut problems);
    branches::undeclared(schema, path, &mut problems);
    problems
}

/// Where a schema is.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Place {
    Root,
    /// A field, or an item.
    Inner,
    /// The values of a map. Nobody checks their defaults.
    Values,
}

fn walk(schema: &Value, path: &str, place: Place, problems: &mut Vec<Problem>) {
    let root = place == Place::Root;
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
    lists::check(schema, path, problems);
    check_values(schema, path, place, problems);
    rules::check(schema, path, problems);
    branches::check(schema, path, problems);
    let embedded = schema["x-kubernetes-embedded-resource"] == true;
    for (name, schema) in properties(schema) {
        let path = field(&field(path, "properties"), name);
        let of_resource = root || embedded;
        match name.as_str() {
            "metadata" if root => {
                check_metadata(schema, &path, problems);
                continue;
            }
            "metadata" if of_resource && schema["type"] != "object" => {
                problems.push(Problem::new(&path, "`type` must be object"));
            }
            "apiVersion" | "kind" if of_resource && schema["type"] != "string" => {
                problems.push(Problem::new(&path, "`type` must be string"));
            }
            _ => {}
        }
        walk(schema, &path, Place::Inner, problems);
    }
    if let Some(items) = map.get("items") {
        if items.is_array() {
            problems.push(Problem::new(
                field(path, "items"),
                "must be one schema, not a list of them",
            ));
        } else {
            walk(items, &field(path, "items"), Place::Inner, problems);
        }
    }
    if let Some(more) = map.get("additionalProperties").filter(|more| more.is_object()) {
        walk(
            more,
            &field(path, "additionalProperties"),
            Place::Values,
            problems,
        );
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
    if schema["x-kubernetes-preserve-unknown-fields"] == false {
        problems.push(Problem::new(
            path,
            "`x-kubernetes-preserve-unknown-fields` must be true or absent",
        ));
    }
    let embedded = schema["x-kubernetes-embedded-resource"] == true;
    if int_or_string && (open || embedded) {
        let message = "x-kubernetes-int-or-string excludes an embedded resource and preserved unknown fields";
        problems.push(Problem::new(path, message));
    }
    if embedded && schema.get("additionalProperties").is_some() {
        problems.push(Problem::new(
            path,
            "an embedded resource cannot have `additionalProperties`",
        ));
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
    if properties(schema).next().is_some()
        && has("additionalProperties")
        && schema["additionalProperties"] != true
    {
        problems.push(Problem::new(
            path,
            "`properties` and `additionalProperties` exclude each other",
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

/// Checks the pattern and the default.
fn check_values(schema: &Value, path: &str, place: Place, problems: &mut Vec<Problem>) {
    if let Some(text) = schema["pattern"].as_str()
        && let Err(Unusable::Syntax(why)) = pattern(text)
    {
        let message = format!("the pattern {text} is not a regular expression as Go reads it: {why}");
        problems.push(Problem::new(path, message));
    }
    // A default of null is none.
    let Some(default) = schema
        .get("default")
        .filter(|default| !default.is_null() && place != Place::Values)
    else {
        return;
    };
    let mut found = validate(default, schema);
    if found.is_empty() {
        // As for an object that is created, and for one that does not change.
        let mut violations = cel::validate(schema, default, None).violations;
        violations.extend(cel::validate(schema, default, Some(default)).violations);
        violations.dedup();
        found.extend(
            violations
                .into_iter()
                .map(|violation| Problem::new("", violation)),
        );
    }
    for problem in found {
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

/// Checks the schema of the metadata at the root, which the API server has itself.
fn check_metadata(schema: &Value, path: &str, problems: &mut Vec<Problem>) {
    if schema["type"] != "object" {
        problems.push(Problem::new(path, "`type` must be object"));
    }
    for keyword in schema
        .as_object()
        .into_iter()
        .flatten()
        .map(|(keyword, _)| keyword)
    {
        if keyword != "type" && keyword != "properties" {
            problems.push(Problem::new(
                path,
                format!("`{keyword}` is not allowed: the API server has its own schema"),
            ));
        }
    }
    for (name, schema) in properties(schema) {
        let path = field(path, name);
        if name != "name" && name != "generateName" {
            problems.push(Problem::new(
                &path,
                "only `name` and `generateName` may be restricted",
            ));
        }
        walk(schema, &path, Place::Inner, problems);
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn problems(field: &Value) -> Vec<String> {
        let schema = json!({ "type": "object", "properties": { "spec": { "type": "object", "properties": { "a": field } } } });
        super::problems(&schema, "")
            .iter()
            .map(ToString::to_string)
            .collect()
    }

    #[test]
    fn what_the_api_server_takes_is_taken() {
        let text = json!({ "type": "string" });
        for field in [
            json!({ "type": "string", "default": null }),
            json!({ "type": "object", "properties": { "a": text }, "allOf": [{ "properties": { "b": { "minLength": 1 } } }] }),
            json!({ "type": "object", "properties": { "a": text }, "additionalProperties": true }),
            json!({ "type": "object", "additionalProperties": { "type": "integer", "maximum": 1, "default": 5 } }),
            json!({ "x-kubernetes-int-or-string": true, "anyOf": [{ "type": "integer" }, { "type": "string" }] }),
            json!({ "x-kubernetes-int-or-string": true, "allOf": [{ "anyOf": [{ "type": "integer" }, { "type": "string" }] }] }),
            json!({ "type": "object", "x-kubernetes-embedded-resource": false, "properties": { "a": text } }),
            json!({ "type": "array", "items": { "type": "object", "x-kubernetes-map-type": "atomic" }, "x-kubernetes-list-type": "set" }),
            json!({ "type": "string", "default": "ab", "x-kubernetes-validations": [{ "rule": "self.size() == 2" }] }),
            json!({ "type": "object", "properties": { "b-c": text }, "x-kubernetes-validations":
                [{ "rule": "true", "fieldPath": ".b-c", "reason": "FieldValueInvalid" }] }),
            json!({ "type": "object", "additionalProperties": text, "x-kubernetes-validations":
                [{ "rule": "true", "fieldPath": "['x.y']" }] }),
            json!({ "type": "string", "pattern": "^[\\w.-]{1,1000}$" }),
            json!({ "type": "object", "additionalProperties": false }),
            json!({ "type": "string", "x-kubernetes-int-or-string": true }),
        ] {
            assert_eq!(problems(&field), Vec::<String>::new(), "{field}");
        }
    }

    #[test]
    fn what_the_api_server_refuses_is_refused() {
        let text = json!({ "type": "string" });
        let keyed = |items: Value, keys: Value| json!({ "type": "array", "items": items, "x-kubernetes-list-type": "map", "x-kubernetes-list-map-keys": keys });
        let item = |key: Value| json!({ "type": "object", "required": ["k"], "properties": { "k": key } });
        let rule = |rule: Value| json!({ "type": "object", "properties": { "b": text }, "x-kubernetes-validations": [rule] });
        for (field, words) in [
            (
                json!({ "type": "object", "allOf": [{ "x-kubernetes-preserve-unknown-fields": true }] }),
                "put it outside",
            ),
            (
                json!({ "type": "object", "anyOf": [{ "x-kubernetes-validations": [{ "rule": "true" }] }] }),
                "put it outside",
            ),
            (
                json!({ "type": "array", "items": text, "not": { "x-kubernetes-list-type": "set" } }),
                "put it outside",
            ),
            (
                json!({ "type": "string", "oneOf": [{ "description": "x" }] }),
                "put it outside",
            ),
            (
                json!({ "x-kubernetes-int-or-string": true, "anyOf": [{ "type": "integer" }] }),
                "put it outside",
            ),
            (
                json!({ "type": "string", "allOf": [{ "pattern": "(" }] }),
                "missing closing )",
            ),
            (
                keyed(item(json!({ "type": "string", "nullable": true })), json!(["k"])),
                "must not be nullable",
            ),
            (
                keyed(item(json!({ "type": "object" })), json!(["k"])),
                "a simple value",
            ),
            (keyed(item(text.clone()), json!(["k", "k"])), "twice"),
            (keyed(item(text.clone()), json!(["x"])), "do not have"),
            (keyed(text.clone(), json!(["k"])), "of the type object"),
            (
                keyed(
                    json!({ "type": "object", "properties": { "k": text } }),
                    json!(["k"]),
                ),
                "required or have a default",
            ),
            (
                json!({ "type": "array", "items": { "type": "object" }, "x-kubernetes-list-type": "set" }),
                "must be atomic",
            ),
            (
                json!({ "type": "array", "items": { "type": "string", "nullable": true }, "x-kubernetes-list-type": "set" }),
                "must not be nullable",
            ),
            (
                rule(json!({ "rule": "true", "fieldPath": ".c" })),
                "no field of the schema",
            ),
            (
                rule(json!({ "rule": "true", "fieldPath": "b" })),
                "no field of the schema",
            ),
            (
                rule(json!({ "rule": "true", "fieldPath": ".b[0]" })),
                "no field of the schema",
            ),
            (
                rule(json!({ "rule": "true", "reason": "Nope" })),
                "must be one of",
            ),
            (rule(json!({ "rule": "true", "message": " " })), "has only spaces"),
            (
                rule(json!({ "rule": "true", "messageExpression": " " })),
                "has only spaces",
            ),
            (rule(json!({ "rule": " " })), "is missing"),
            (
                json!({ "type": "string", "default": "a", "x-kubernetes-validations": [{ "rule": "self.size() == 2" }] }),
                "the default does not match",
            ),
            (
                json!({ "type": "object", "default": { "x": 1 }, "properties": { "a": text } }),
                "unknown field",
            ),
            (
                json!({ "type": "object", "default": {}, "required": ["a"], "properties": { "a": text } }),
                "is missing",
            ),
            (json!({ "type": "string", "$schema": "x" }), "not allowed"),
            (
                json!({ "x-kubernetes-int-or-string": true, "x-kubernetes-preserve-unknown-fields": true }),
                "excludes",
            ),
            (
                json!({ "type": "object", "x-kubernetes-preserve-unknown-fields": false }),
                "must be true or absent",
            ),
            (
                json!({ "type": "object", "x-kubernetes-embedded-resource": true, "properties": { "kind": { "type": "integer" } } }),
                "must be string",
            ),
        ] {
            let found = problems(&field);
            assert!(
                found.iter().any(|problem| problem.contains(words)),
                "{field}: {found:?}"
            );
        }
        let root = json!({ "type": "object", "nullable": true, "properties": { "metadata": { "type": "object", "description": "x" } },
            "anyOf": [{ "properties": { "b": {} } }] });
        let found = super::problems(&root, "");
        assert_eq!(found.len(), 3, "{found:?}");
    }
}
