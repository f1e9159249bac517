//! The branches of `allOf`, `anyOf`, `oneOf` and `not`, which may only restrict values.

use serde_json::{Value, json};

use super::super::{Problem, field, properties};
use super::JUNCTORS;

/// What only the schema outside may have.
const STRUCTURE: [&str; 13] = [
    "additionalProperties",
    "default",
    "description",
    "nullable",
    "title",
    "type",
    "x-kubernetes-embedded-resource",
    "x-kubernetes-int-or-string",
    "x-kubernetes-list-map-keys",
    "x-kubernetes-list-type",
    "x-kubernetes-map-type",
    "x-kubernetes-preserve-unknown-fields",
    "x-kubernetes-validations",
];

/// Returns the branches of a schema, with their paths.
fn of<'s>(schema: &'s Value, path: &str) -> Vec<(String, &'s Value)> {
    let mut found = Vec::new();
    for junctor in JUNCTORS {
        let branches = schema[junctor].as_array().into_iter().flatten().enumerate();
        found.extend(branches.map(|(index, branch)| (format!("{path}.{junctor}[{index}]"), branch)));
    }
    found.extend(schema.get("not").map(|not| (field(path, "not"), not)));
    found
}

/// Checks all branches of a schema.
pub(super) fn check(schema: &Value, path: &str, problems: &mut Vec<Problem>) {
    let numbers_or_texts =
        |schema: &Value| schema["anyOf"] == json!([{ "type": "integer" }, { "type": "string" }]);
    let (mixed, first_mixed) = (numbers_or_texts(schema), numbers_or_texts(&schema["allOf"][0]));
    for (at, branch) in of(schema, path) {
        // The two ways to write int-or-string.
        if mixed && at.starts_with(&format!("{path}.anyOf[")) {
            continue;
        }
        let may_have_types = first_mixed && at == format!("{path}.allOf[0]");
        within(branch, may_have_types, &at, problems);
    }
}

fn within(branch: &Value, may_have_types: bool, path: &str, problems: &mut Vec<Problem>) {
    let mut wrong = |message: String| problems.push(Problem::new(path, message));
    for keyword in STRUCTURE {
        let is_empty = match &branch[keyword] {
            Value::Null | Value::Bool(false) => true,
            Value::String(text) => text.is_empty(),
            Value::Array(items) => items.is_empty(),
            _ => false,
        };
        if !is_empty {
            wrong(format!(
                "`{keyword}` is not allowed within allOf, anyOf, oneOf or not; put it outside"
            ));
        }
    }
    if branch.get("$ref").is_some() {
        wrong("`$ref` is not allowed: write the schema in place".into());
    }
    if branch["uniqueItems"] == true {
        wrong("`uniqueItems: true` is not allowed".into());
    }
    super::check_pattern(branch, &mut wrong);
    for (name, inner) in properties(branch) {
        let path = field(&field(path, "properties"), name);
        if name == "metadata" {
            problems.push(Problem::new(
                &path,
                "must not be restricted within allOf, anyOf, oneOf or not",
            ));
        }
        within(inner, false, &path, problems);
    }
    if let Some(inner) = branch.get("items") {
        within(inner, false, &field(path, "items"), problems);
    }
    for (at, inner) in of(branch, path) {
        if !(may_have_types && at.starts_with(&format!("{path}.anyOf["))) {
            within(inner, false, &at, problems);
        }
    }
}

/// Reports what the branches of the root name and the schema outside does not have. The API server does not look further
/// inside.
pub(super) fn undeclared(schema: &Value, path: &str, problems: &mut Vec<Problem>) {
    for (at, branch) in of(schema, path) {
        compare(branch, schema, &at, problems);
    }
}

fn compare(branch: &Value, outer: &Value, path: &str, problems: &mut Vec<Problem>) {
    for (name, inner) in properties(branch) {
        let path = field(&field(path, "properties"), name);
        match outer["properties"].get(name) {
            Some(outer) => compare(inner, outer, &path, problems),
            None => problems.push(Problem::new(
                path,
                "the field must also be in the `properties` outside of the junctor",
            )),
        }
    }
    if let Some(inner) = branch.get("items") {
        let path = field(path, "items");
        match outer.get("items") {
            Some(outer) => compare(inner, outer, &path, problems),
            None => problems.push(Problem::new(path, "must also be present outside of the junctor")),
        }
    }
    for (at, inner) in of(branch, path) {
        compare(inner, outer, &at, problems);
    }
}
