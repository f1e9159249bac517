//! The fields of one schema that another lacks. An API server with the other schema drops them silently.

use serde_json::Value;

use super::{field, schema};

/// Returns the outermost fields of `wanted` that an API server with the schema `installed` drops.
#[must_use]
pub fn fields(installed: &Value, wanted: &Value) -> Vec<String> {
    let mut found = Vec::new();
    compare(installed, wanted, "", &mut found);
    found
}

fn compare(installed: &Value, wanted: &Value, path: &str, found: &mut Vec<String>) {
    if installed["x-kubernetes-preserve-unknown-fields"] == true {
        return;
    }
    let values = |schema: &Value| schema.get("additionalProperties").cloned();
    for (name, inner) in schema::properties(wanted) {
        let at = field(path, name);
        match installed["properties"].get(name) {
            Some(installed) => compare(installed, inner, &at, found),
            // The server validates these itself.
            None if path.is_empty() && matches!(&**name, "apiVersion" | "kind" | "metadata") => {}
            // A map with any keys.
            None if values(installed).is_some_and(|values| values != false) => {}
            None => found.push(at),
        }
    }
    for (part, suffix) in [("items", "[]"), ("additionalProperties", "[*]")] {
        if let (Some(installed), Some(inner)) = (installed.get(part), wanted.get(part)) {
            compare(installed, inner, &format!("{path}{suffix}"), found);
        }
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn a_field_that_only_the_wanted_schema_has_is_named_by_its_path() {
        let schema = |ports: Value, open: bool| {
            json!({ "type": "object", "properties": {
                "metadata": { "type": "object" },
                "spec": { "type": "object", "x-kubernetes-preserve-unknown-fields": open, "properties": {
                    "ports": { "type": "array", "items": { "type": "object", "properties": ports } },
                    "labels": { "type": "object", "additionalProperties": { "type": "string" } },
                } },
            } })
        };
        let old = schema(json!({ "port": {} }), false);
        let new = schema(
            json!({ "port": {}, "mode": { "properties": { "deep": {} } } }),
            false,
        );
        assert_eq!(fields(&old, &new), ["spec.ports[].mode"]);
        assert_eq!(fields(&new, &old), Vec::<String>::new());
        assert_eq!(fields(&old, &old), Vec::<String>::new());
        assert_eq!(
            fields(&schema(json!({ "port": {} }), true), &new),
            Vec::<String>::new()
        );
        assert_eq!(fields(&json!({ "type": "object" }), &new), ["spec"]);
    }
}
