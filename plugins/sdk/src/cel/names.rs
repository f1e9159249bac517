//! How the names of fields are written in rules.
//!
//! Source: <https://kubernetes.io/docs/tasks/extend-kubernetes/custom-resources/custom-resource-definitions/#validation-rules>.

use std::sync::OnceLock;

use serde_json::{Value, json};

/// Returns the name of the field that a rule names, such as `foo-bar` for `foo__dash__bar`.
pub(super) fn unescaped(name: &str) -> String {
    const RESERVED: [&str; 19] = [
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
        "void",
    ];
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

/// Returns the schema of `apiVersion`, `kind` and names.
pub(super) fn text_schema() -> &'static Value {
    static SCHEMA: OnceLock<Value> = OnceLock::new();
    SCHEMA.get_or_init(|| json!({ "type": "string" }))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn escaped_names_are_those_of_fields() {
        for (escaped, plain) in [
            ("a", "a"),
            ("foo__dash__bar", "foo-bar"),
            ("a__dot__b__slash__c", "a.b/c"),
            ("__namespace__", "namespace"),
            ("redact____underscores__d", "redact____d"),
            ("a__underscores__b", "a__b"),
            ("__other__", "__other__"),
        ] {
            assert_eq!(unescaped(escaped), plain);
        }
    }
}
