//! The API server's rules for schemas in CustomResourceDefinitions; each problem contains its path.
//!
//! Source: "Extend the Kubernetes API with CustomResourceDefinitions", section "Specifying a structural schema",
//! and the fields of `JSONSchemaProps` in `apiextensions.k8s.io/v1`.

mod branches;
mod lists;
mod rules;

use serde_json::{Map, Value};

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
    let mut wrong = |message: String| problems.push(Problem::new(path, message));
    if schema["type"] != "object" {
        wrong("the type at the root must be `object`".into());
    }
    for keyword in ["additionalProperties", "nullable"] {
        if !matches!(schema[keyword], Value::Null | Value::Bool(false)) {
            wrong(format!("`{keyword}` is not allowed at the root"));
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
    /// The values of a map.
    Values,
}

fn walk(schema: &Value, path: &str, place: Place, problems: &mut Vec<Problem>) {
    let root = place == Place::Root;
    let mut wrong = |message: String| problems.push(Problem::new(path, message));
    let Some(map) = schema.as_object() else {
        return wrong(
            "a schema must be an object: `true` and `false` are not structural; give the type".into(),
        );
    };
    for keyword in map.keys() {
        if keyword == "$ref" {
            wrong(format!(
                "`$ref` to {} is not allowed: write the schema in place; a recursive type has no such schema",
                map[keyword]
            ));
        } else if FORBIDDEN.contains(&keyword.as_str()) {
            wrong(format!("`{keyword}` is not allowed: write the schema in place"));
        } else if !KNOWN.contains(&keyword.as_str()) {
            wrong(format!("`{keyword}` is not a keyword of structural schemas"));
        }
    }
    check_type(schema, root, &mut wrong);
    check_shape(schema, &mut wrong);
    lists::check(schema, &mut wrong);
    check_pattern(schema, &mut wrong);
    // Nobody checks the defaults of the values of a map, and a default of null is none.
    if place != Place::Values && !schema["default"].is_null() {
        check_default(&schema["default"], schema, &mut wrong);
    }
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
        let path = field(path, "items");
        if items.is_array() {
            problems.push(Problem::new(path, "must be one schema, not a list of them"));
        } else {
            walk(items, &path, Place::Inner, problems);
        }
    }
    if let Some(more) = map.get("additionalProperties").filter(|more| more.is_object()) {
        let path = field(path, "additionalProperties");
        walk(more, &path, Place::Values, problems);
    }
}

fn check_type(schema: &Value, root: bool, wrong: &mut impl FnMut(String)) {
    let int_or_string = schema["x-kubernetes-int-or-string"] == true;
    let open = schema["x-kubernetes-preserve-unknown-fields"] == true;
    match schema.get("type") {
        None if int_or_string || open || root => {}
        None => wrong(
            "`type` is missing: every value needs one (or x-kubernetes-preserve-unknown-fields: true)".into(),
        ),
        Some(Value::String(type_)) if TYPES.contains(&type_.as_str()) => {}
        Some(Value::Array(_)) => {
            wrong("`type` must be one type: for a value that may be null, add `nullable: true`".into());
        }
        Some(type_) => wrong(format!(
            "`type` is {type_}; it must be one of {}",
            TYPES.join(", ")
        )),
    }
    if schema["x-kubernetes-preserve-unknown-fields"] == false {
        wrong("`x-kubernetes-preserve-unknown-fields` must be true or absent".into());
    }
    let embedded = schema["x-kubernetes-embedded-resource"] == true;
    if int_or_string && (open || embedded) {
        wrong("x-kubernetes-int-or-string excludes an embedded resource and preserved unknown fields".into());
    }
    if embedded && schema.get("additionalProperties").is_some() {
        wrong("an embedded resource cannot have `additionalProperties`".into());
    }
    if embedded && (schema["type"] != "object" || (!open && properties(schema).next().is_none())) {
        wrong(
            "x-kubernetes-embedded-resource needs the type object, and properties or preserved unknown fields".into(),
        );
    }
}

fn check_shape(schema: &Value, wrong: &mut impl FnMut(String)) {
    let has = |name: &str| schema.get(name).is_some();
    if properties(schema).next().is_some()
        && has("additionalProperties")
        && schema["additionalProperties"] != true
    {
        wrong("`properties` and `additionalProperties` exclude each other".into());
    }
    if schema["uniqueItems"] == true {
        wrong("`uniqueItems: true` is not allowed: use x-kubernetes-list-type: set".into());
    }
    if schema["type"] == "array" && !has("items") {
        wrong("`items` is missing: an array needs the schema of its items".into());
    }
    for name in ["exclusiveMinimum", "exclusiveMaximum"] {
        if schema.get(name).is_some_and(|value| !value.is_boolean()) {
            wrong(format!("`{name}` must be true or false beside the limit"));
        }
    }
}

fn check_pattern(schema: &Value, wrong: &mut impl FnMut(String)) {
    if let Some(text) = schema["pattern"].as_str()
        && let Err(Unusable::Syntax(why)) = pattern(text)
    {
        wrong(format!(
            "the pattern {text} is not a regular expression as Go reads it: {why}"
        ));
    }
}

fn check_default(default: &Value, schema: &Value, wrong: &mut impl FnMut(String)) {
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
        let at = match problem.path.as_str() {
            "" => String::new(),
            path => format!(" at {path}"),
        };
        wrong(format!(
            "the default does not match its own schema{at}: {}",
            problem.message
        ));
    }
}

/// Checks the schema of the metadata at the root, which the API server has itself.
fn check_metadata(schema: &Value, path: &str, problems: &mut Vec<Problem>) {
    let mut wrong = |message: String| problems.push(Problem::new(path, message));
    if schema["type"] != "object" {
        wrong("`type` must be object".into());
    }
    for keyword in schema.as_object().into_iter().flat_map(Map::keys) {
        if keyword != "type" && keyword != "properties" {
            wrong(format!(
                "`{keyword}` is not allowed: the API server has its own schema"
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
        for (words, fields) in [
            (
                "put it outside",
                vec![
                    json!({ "type": "object", "allOf": [{ "x-kubernetes-preserve-unknown-fields": true }] }),
                    json!({ "type": "object", "anyOf": [{ "x-kubernetes-validations": [{ "rule": "true" }] }] }),
                    json!({ "type": "array", "items": text, "not": { "x-kubernetes-list-type": "set" } }),
                    json!({ "type": "string", "oneOf": [{ "description": "x" }] }),
                    json!({ "x-kubernetes-int-or-string": true, "anyOf": [{ "type": "integer" }] }),
                ],
            ),
            (
                "missing closing )",
                vec![json!({ "type": "string", "allOf": [{ "pattern": "(" }] })],
            ),
            (
                "must not be nullable",
                vec![
                    keyed(item(json!({ "type": "string", "nullable": true })), json!(["k"])),
                    json!({ "type": "array", "items": { "type": "string", "nullable": true }, "x-kubernetes-list-type": "set" }),
                ],
            ),
            (
                "a simple value",
                vec![keyed(item(json!({ "type": "object" })), json!(["k"]))],
            ),
            ("twice", vec![keyed(item(text.clone()), json!(["k", "k"]))]),
            ("do not have", vec![keyed(item(text.clone()), json!(["x"]))]),
            ("of the type object", vec![keyed(text.clone(), json!(["k"]))]),
            (
                "required or have a default",
                vec![keyed(
                    json!({ "type": "object", "properties": { "k": text } }),
                    json!(["k"]),
                )],
            ),
            (
                "must be atomic",
                vec![
                    json!({ "type": "array", "items": { "type": "object" }, "x-kubernetes-list-type": "set" }),
                ],
            ),
            (
                "no field of the schema",
                vec![
                    rule(json!({ "rule": "true", "fieldPath": ".c" })),
                    rule(json!({ "rule": "true", "fieldPath": "b" })),
                    rule(json!({ "rule": "true", "fieldPath": ".b[0]" })),
                ],
            ),
            (
                "must be one of",
                vec![rule(json!({ "rule": "true", "reason": "Nope" }))],
            ),
            (
                "has only spaces",
                vec![
                    rule(json!({ "rule": "true", "message": " " })),
                    rule(json!({ "rule": "true", "messageExpression": " " })),
                ],
            ),
            (
                "is missing",
                vec![
                    rule(json!({ "rule": " " })),
                    json!({ "type": "object", "default": {}, "required": ["a"], "properties": { "a": text } }),
                ],
            ),
            (
                "the default does not match",
                vec![
                    json!({ "type": "string", "default": "a", "x-kubernetes-validations": [{ "rule": "self.size() == 2" }] }),
                ],
            ),
            (
                "unknown field",
                vec![json!({ "type": "object", "default": { "x": 1 }, "properties": { "a": text } })],
            ),
            ("not allowed", vec![json!({ "type": "string", "$schema": "x" })]),
            (
                "excludes",
                vec![
                    json!({ "x-kubernetes-int-or-string": true, "x-kubernetes-preserve-unknown-fields": true }),
                ],
            ),
            (
                "must be true or absent",
                vec![json!({ "type": "object", "x-kubernetes-preserve-unknown-fields": false })],
            ),
            (
                "must be string",
                vec![
                    json!({ "type": "object", "x-kubernetes-embedded-resource": true, "properties": { "kind": { "type": "integer" } } }),
                ],
            ),
        ] {
            for field in fields {
                let found = problems(&field);
                let is_named = found.iter().any(|problem| problem.contains(words));
                assert!(is_named, "{field}: {found:?}");
            }
        }
        let root = json!({ "type": "object", "nullable": true, "properties": { "metadata": { "type": "object", "description": "x" } },
            "anyOf": [{ "properties": { "b": {} } }] });
        let found = super::problems(&root, "");
        assert_eq!(found.len(), 3, "{found:?}");
    }
}
