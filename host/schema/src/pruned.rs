//! What a schema lacks: fields of another schema, and fields of objects. An API server drops them silently.

use serde_json::Value;

use super::{field, properties};

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
    for (name, inner) in properties(wanted) {
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

/// Returns the path of the first field of a resource that an API server with this schema drops.
#[must_use]
pub fn first(resource: &Value, schema: &Value) -> Option<String> {
    drops(resource, Some(schema), true, "")
}

/// `schema` is `None` where the API server accepts values of any kind and drops the fields of objects.
fn drops(value: &Value, schema: Option<&Value>, is_resource: bool, path: &str) -> Option<String> {
    let is = |name: &str| schema.is_some_and(|schema| schema[name] == true);
    let has_items = || schema.is_some_and(|schema| schema["items"].is_object());
    match value {
        Value::Object(fields) => fields.iter().find_map(|(name, value)| {
            let always = is_resource || is("x-kubernetes-embedded-resource");
            if always && matches!(name.as_str(), "apiVersion" | "kind" | "metadata") {
                return None;
            }
            let at = field(path, name);
            let known = schema.and_then(|schema| schema["properties"].get(name));
            match (known, schema.map(|schema| &schema["additionalProperties"])) {
                (Some(known), _) => drops(value, Some(known), false, &at),
                (None, Some(others @ Value::Object(_))) => drops(value, Some(others), false, &at),
                _ if is("x-kubernetes-preserve-unknown-fields") => None,
                (None, Some(Value::Bool(true))) => drops(value, None, false, &at),
                (None, _) => Some(at),
            }
        }),
        Value::Array(items) if !is("x-kubernetes-preserve-unknown-fields") || has_items() => {
            let of_items = schema.and_then(|schema| schema.get("items"));
            let mut items = items.iter().enumerate();
            items.find_map(|(index, item)| drops(item, of_items, false, &format!("{path}[{index}]")))
        }
        _ => None,
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

    #[test]
    fn a_field_of_an_object_that_is_dropped_is_named_and_what_is_kept_is_not() {
        let text = json!({ "type": "string" });
        let open = json!({ "type": "object", "x-kubernetes-preserve-unknown-fields": true, "properties": {
            "known": { "type": "object", "properties": { "a": text } },
        } });
        let schema = json!({ "type": "object", "properties": { "spec": { "type": "object", "properties": {
            "a": text,
            "port": { "x-kubernetes-int-or-string": true },
            "labels": { "type": "object", "additionalProperties": text },
            "any": { "type": "object", "additionalProperties": true },
            "maps": { "type": "object", "additionalProperties": { "type": "object", "properties": { "a": text } } },
            "list": { "type": "array", "items": { "type": "object", "properties": { "a": text } } },
            "open": open,
            "pod": { "type": "object", "x-kubernetes-embedded-resource": true, "properties": { "spec": open } },
        } } } });
        let first = |spec: Value| {
            let resource =
                json!({ "apiVersion": "a/v1", "kind": "K", "metadata": { "name": "n" }, "spec": spec });
            super::first(&resource, &schema)
        };
        for kept in [
            json!({ "a": "x", "port": 1, "labels": { "any": "x" }, "any": { "x": 1 } }),
            json!({ "port": "http", "list": [{ "a": "x" }], "maps": { "x": { "a": "y" } } }),
            json!({ "open": { "deep": { "er": [{ "b": 1 }] }, "known": { "a": "x" } } }),
            json!({ "pod": { "apiVersion": "v1", "kind": "Pod", "metadata": { "name": "x" }, "spec": { "b": 1 } } }),
        ] {
            assert_eq!(first(kept.clone()), None, "{kept}");
        }
        for (dropped, path) in [
            (json!({ "b": null }), "spec.b"),
            (json!({ "list": [{ "a": "x" }, { "b": 1 }] }), "spec.list[1].b"),
            (json!({ "maps": { "x": { "b": 1 } } }), "spec.maps.x.b"),
            (json!({ "any": { "x": { "b": 1 } } }), "spec.any.x.b"),
            (json!({ "open": { "known": { "b": 1 } } }), "spec.open.known.b"),
            (json!({ "pod": { "status": {} } }), "spec.pod.status"),
        ] {
            assert_eq!(first(dropped.clone()).as_deref(), Some(path), "{dropped}");
        }
        let status = json!({ "status": { "x": 1 } });
        assert_eq!(super::first(&status, &schema).as_deref(), Some("status"));
    }
}
