//! How the names of fields are written in rules.
//!
//! Source: <https://kubernetes.io/docs/tasks/extend-kubernetes/custom-resources/custom-resource-definitions/#validation-rules>.

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
#[derive(Clone, Debug)]
pub(super) enum Found<'s> {
    /// `apiVersion`, `kind`, or a name in the metadata.
    Text,
    Metadata,
    /// With its name and its schema.
    Declared(String, &'s Value),
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
            let plain = unescaped(name);
            let declared = schema["properties"].get(&plain)?;
            (escaped(&plain)? == name).then_some(Found::Declared(plain, declared))
        }
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

/// Returns the name of the field that a rule names, such as `foo-bar` for `foo__dash__bar`.
fn unescaped(name: &str) -> String {
    if !name.contains("__") {
        return name.to_owned();
    }
    let inner = name.strip_prefix("__").and_then(|name| name.strip_suffix("__"));
    if let Some(word) = inner.filter(|word| RESERVED.contains(word)) {
        return word.to_owned();
    }
    let mut plain = String::with_capacity(name.len());
    let mut rest = name;
    while let Some(at) = rest.find("__") {
        plain.push_str(&rest[..at]);
        rest = &rest[at..];
        let escapes = [
            ("__underscores__", "__"),
            ("__dot__", "."),
            ("__dash__", "-"),
            ("__slash__", "/"),
        ];
        let (escape, sign) = escapes
            .iter()
            .find(|(escape, _)| rest.starts_with(escape))
            .unwrap_or(&("__", "__"));
        plain.push_str(sign);
        rest = &rest[escape.len()..];
    }
    plain + rest
}
