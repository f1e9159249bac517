//! The defaults of a structural schema, which the API server sets before it applies rules.

use serde_json::Value;

/// Fills in the schema's defaults from the outside in. Also replaces a null where the schema has a default and does not
/// allow null.
pub(crate) fn fill_defaults(value: &mut Value, schema: &Value) {
    match value {
        Value::Object(map) => {
            for (name, schema) in schema["properties"].as_object().into_iter().flatten() {
                let absent = match map.get(name) {
                    None => true,
                    Some(value) => value.is_null() && schema["nullable"] != true,
                };
                if absent && let Some(default) = schema.get("default") {
                    map.insert(name.clone(), default.clone());
                }
                if let Some(value) = map.get_mut(name) {
                    fill_defaults(value, schema);
                }
            }
            if let Some(schema) = schema.get("additionalProperties").filter(|s| s.is_object()) {
                map.values_mut().for_each(|value| fill_defaults(value, schema));
            }
        }
        Value::Array(items) => {
            if let Some(schema) = schema.get("items") {
                items.iter_mut().for_each(|item| fill_defaults(item, schema));
            }
        }
        _ => {}
    }
}
