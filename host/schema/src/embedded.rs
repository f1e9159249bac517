//! Resources within a resource (`x-kubernetes-embedded-resource`): their kind and metadata.

use serde_json::{Map, Value};

use super::{Problem, field};
use crate::metadata;

/// Returns what is wrong with the kind and the metadata of an embedded resource.
pub(super) fn problems(resource: &Map<String, Value>, path: &str) -> Vec<Problem> {
    let mut problems = Vec::new();
    for name in ["apiVersion", "kind"] {
        let at = field(path, name);
        match resource.get(name) {
            None => problems.push(Problem::new(at, "is missing: an embedded resource needs it")),
            Some(Value::String(text)) if is_valid(name, text) => {}
            Some(other) => problems.push(Problem::new(
                at,
                format!("{other} is not the {name} of a resource"),
            )),
        }
    }
    if let Some(given) = resource.get("metadata") {
        problems
            .extend(metadata::problem(given).map(|problem| Problem::new(field(path, "metadata"), problem)));
    }
    problems
}

fn is_valid(name: &str, text: &str) -> bool {
    match name {
        "apiVersion" => !text.is_empty() && text.matches('/').count() < 2,
        _ => {
            let edge = |c: Option<char>| c.is_some_and(|c| c.is_ascii_alphanumeric());
            text.len() <= 63
                && text.starts_with(|c: char| c.is_ascii_alphabetic())
                && edge(text.chars().last())
                && text.chars().all(|c| c.is_ascii_alphanumeric() || c == '-')
        }
    }
}
