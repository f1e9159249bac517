//! The defaults and the nulls of a structural schema, which the API server settles before it applies rules.

use serde_json::Value;

/// Fills in the schema's defaults from the outside in, and removes what is null although the schema does not allow it. In a
/// list such a null stays.
pub fn fill_defaults(value: &mut Value, schema: &Value) {
    match value {
        Value::Object(map) => {
            for (name, schema) in schema["properties"].as_object().into_iter().flatten() {
                if let Some(default) = default(schema)
                    && map.get(name).is_none_or(|value| is_refused_null(value, schema))
                {
                    map.insert(name.clone(), default.clone());
                }
            }
            let others = schema
                .get("additionalProperties")
                .filter(|others| others.is_object());
            map.retain(|name, value| {
                let Some(schema) = schema["properties"].get(name).or(others) else {
                    return true;
                };
                if is_refused_null(value, schema) {
                    *value = default(schema).cloned().unwrap_or_default();
                }
                fill_defaults(value, schema);
                !is_refused_null(value, schema)
            });
        }
        Value::Array(items) => {
            let Some(schema) = schema.get("items") else {
                return;
            };
            for item in items {
                if is_refused_null(item, schema) {
                    *item = default(schema).cloned().unwrap_or_default();
                }
                fill_defaults(item, schema);
            }
        }
        _ => {}
    }
}

/// A default of null is none.
fn default(schema: &Value) -> Option<&Value> {
    schema.get("default").filter(|default| !default.is_null())
}

fn is_refused_null(value: &Value, schema: &Value) -> bool {
    value.is_null() && schema["nullable"] != true
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn nulls_are_removed_or_become_defaults() {
        let schema = json!({ "type": "object", "properties": {
            "a": { "type": "string" },
            "d": { "type": "string", "default": "x" },
            "n": { "type": "string", "default": null, "nullable": true },
            "o": { "type": "object", "default": {}, "properties": { "d": { "type": "integer", "default": 1 } } },
            "m": { "type": "object", "additionalProperties": { "type": "object", "default": { "x": 1 } } },
            "l": { "type": "array", "items": { "type": "integer" } },
            "k": { "type": "array", "items": { "type": "integer", "default": 2 } },
            "open": { "type": "object", "x-kubernetes-preserve-unknown-fields": true },
        } });
        for (given, wanted) in [
            (json!({}), json!({ "d": "x", "o": { "d": 1 } })),
            (
                json!({ "a": null, "d": null, "n": null, "o": null, "x": null }),
                json!({ "d": "x", "n": null, "o": { "d": 1 }, "x": null }),
            ),
            (
                json!({ "m": { "x": null }, "l": [null], "k": [null], "open": { "x": null } }),
                json!({ "d": "x", "o": { "d": 1 }, "m": { "x": { "x": 1 } }, "l": [null], "k": [2], "open": { "x": null } }),
            ),
        ] {
            let mut filled = given.clone();
            fill_defaults(&mut filled, &schema);
            assert_eq!(filled, wanted, "{given}");
        }
    }
}
