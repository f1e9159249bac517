//! How the names of fields are written in rules.
//!
//! Source: <https://kubernetes.io/docs/tasks/extend-kubernetes/custom-resources/custom-resource-definitions/#validation-rules>.

use std::borrow::Cow;
use std::sync::LazyLock;

use regex::{Captures, Regex};
use serde_json::Value;

use super::value::Fields;

/// Words that are no names in rules.
const RESERVED: [&str; 21] = [
    "true",
    "false",
    "null",
    "in",
    "as",
    "break",
    "const",
    "continue",
    "else",
    "for",
    "function",
    "if",
    "import",
    "let",
    "loop",
    "package",
    "namespace",
    "return",
    "var",
    "void",
    "while",
];

/// A field that a rule names.
#[derive(Clone, Copy, Debug)]
pub(super) enum Found<'s> {
    /// `apiVersion`, `kind`, or a name in the metadata.
    Text,
    Metadata,
    /// With its name and its schema.
    Declared(&'s str, &'s Value),
}

/// Returns the field that a rule names, if an object has it.
pub(super) fn field<'s>(name: &str, schema: &'s Value, fields: Fields) -> Option<Found<'s>> {
    match (fields, name) {
        (Fields::Resource, "apiVersion" | "kind") | (Fields::Metadata, "name" | "generateName") => {
            Some(Found::Text)
        }
        (Fields::Resource, "metadata") => Some(Found::Metadata),
        (Fields::Metadata, _) => None,
        _ => {
            let properties = schema["properties"].as_object()?;
            let (plain, schema) = properties.get_key_value(&*unescaped(name))?;
            (escaped(plain)? == name).then_some(Found::Declared(plain, schema))
        }
    }
}

/// Returns the name of a field that rules write so, if there is one.
fn unescaped(name: &str) -> Cow<'_, str> {
    static ESCAPE: LazyLock<Option<Regex>> =
        LazyLock::new(|| Regex::new("__(underscores|dot|dash|slash)__").ok());
    let inner = name.strip_prefix("__").and_then(|name| name.strip_suffix("__"));
    if let Some(word) = inner.filter(|word| RESERVED.contains(word)) {
        return word.into();
    }
    let sign = |found: &Captures<'_>| match &found[1] {
        "underscores" => "__",
        "dot" => ".",
        "dash" => "-",
        _ => "/",
    };
    match &*ESCAPE {
        Some(escape) if name.contains("__") => escape.replace_all(name, sign),
        _ => name.into(),
    }
}

/// Returns how rules write the name of a field; `None` if they cannot.
fn escaped(name: &str) -> Option<String> {
    if RESERVED.contains(&name) {
        return Some(format!("__{name}__"));
    }
    let is_plain = |c: char| c.is_ascii_alphanumeric() || "_-./".contains(c);
    if name.is_empty() || name.starts_with(|c: char| c.is_ascii_digit()) || !name.chars().all(is_plain) {
        return None;
    }
    let escaped = name.replace("__", "__underscores__");
    Some(
        escaped
            .replace('.', "__dot__")
            .replace('-', "__dash__")
            .replace('/', "__slash__"),
    )
}
