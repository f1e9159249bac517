//! Lists and maps whose items have an identity.

use serde_json::Value;

/// Checks the types of lists and maps.
pub(super) fn check(schema: &Value, wrong: &mut impl FnMut(String)) {
    let keys = schema["x-kubernetes-list-map-keys"].as_array();
    match (schema.get("x-kubernetes-list-type").and_then(Value::as_str), keys) {
        (None, None) => {}
        (Some("map"), Some(keys)) if !keys.is_empty() => map(&schema["items"], keys, wrong),
        (Some("map"), _) => wrong("x-kubernetes-list-type: map needs x-kubernetes-list-map-keys".into()),
        (_, Some(_)) => wrong("x-kubernetes-list-map-keys needs x-kubernetes-list-type: map".into()),
        (Some("set"), None) => {
            let items = &schema["items"];
            let is_atomic = match items["type"].as_str() {
                Some("array") => items
                    .get("x-kubernetes-list-type")
                    .is_none_or(|type_| type_ == "atomic"),
                Some("object") => items["x-kubernetes-map-type"] == "atomic",
                _ => true,
            };
            if !is_atomic {
                wrong("the items of a set must be atomic: give them the x-kubernetes-list-type or -map-type atomic".into());
            }
        }
        (Some("atomic"), None) => {}
        (Some(other), None) => {
            wrong(format!(
                "x-kubernetes-list-type is {other:?}; it must be atomic, set or map"
            ));
        }
    }
    if matches!(schema["x-kubernetes-list-type"].as_str(), Some("set" | "map"))
        && schema["items"]["nullable"] == true
    {
        wrong("the items of a set or a map must not be nullable".into());
    }
    if schema.get("x-kubernetes-list-type").is_some() && schema["type"] != "array" {
        wrong("x-kubernetes-list-type needs the type array".into());
    }
    if let Some(map_type) = schema.get("x-kubernetes-map-type")
        && (schema["type"] != "object" || !(map_type == "granular" || map_type == "atomic"))
    {
        wrong("x-kubernetes-map-type must be granular or atomic, on the type object".into());
    }
}

/// Checks the items of a list that is a map, and its keys.
fn map(items: &Value, keys: &[Value], wrong: &mut impl FnMut(String)) {
    if items["type"] != "object" {
        wrong("the items of a list that is a map must be of the type object".into());
    }
    for (index, key) in keys.iter().enumerate() {
        let Some(name) = key.as_str() else {
            wrong(format!("x-kubernetes-list-map-keys has {key}, which is no name"));
            continue;
        };
        if keys[..index].contains(key) {
            wrong(format!("x-kubernetes-list-map-keys names `{name}` twice"));
        }
        let Some(property) = items["properties"].get(name) else {
            wrong(format!(
                "x-kubernetes-list-map-keys names `{name}`, which the items do not have"
            ));
            continue;
        };
        let required = items["required"].as_array().into_iter().flatten();
        if property.get("default").is_none_or(Value::is_null)
            && !required.into_iter().any(|required| required == name)
        {
            wrong(format!(
                "the list's key `{name}` must be required or have a default"
            ));
        }
        if property["nullable"] == true {
            wrong(format!("the list's key `{name}` must not be nullable"));
        }
        if property["type"] == "array" || property["type"] == "object" {
            wrong(format!("the list's key `{name}` must be a simple value"));
        }
    }
}
