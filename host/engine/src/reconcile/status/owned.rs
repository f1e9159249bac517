//! The part of a status that one field manager set, according to `metadata.managedFields`.

use kube::core::DynamicObject;
use serde_json::{Map, Value};

use operator_host_core::managed_fields::owned_part;

/// Returns the part of an object's status that this manager owns.
pub fn status(object: &DynamicObject, manager: &str) -> Map<String, Value> {
    let status = object.data.get("status").unwrap_or(&Value::Null);
    let mut own = Value::Object(Map::new());
    for entry in object.metadata.managed_fields.iter().flatten() {
        let fields = entry.fields_v1.as_ref().map(|fields| &fields.0["f:status"]);
        if entry.manager.as_deref() == Some(manager)
            && let Some(fields @ Value::Object(_)) = fields
            && let Some(part) = owned_part(status, fields, &[])
        {
            merge(&mut own, part);
        }
    }
    match own {
        Value::Object(own) => own,
        _ => Map::new(),
    }
}

/// Reports whether this manager owns a part of an object's status. Needs its metadata only.
pub fn has_status(object: &DynamicObject, manager: &str) -> bool {
    let mut entries = object.metadata.managed_fields.iter().flatten();
    entries.any(|entry| {
        let fields = entry.fields_v1.as_ref();
        entry.manager.as_deref() == Some(manager)
            && fields.is_some_and(|fields| !fields.0["f:status"].is_null())
    })
}

/// Merges the entries of one manager: its applies and its updates.
fn merge(into: &mut Value, from: Value) {
    match (into, from) {
        (Value::Object(into), Value::Object(from)) => {
            for (key, value) in from {
                merge(into.entry(key).or_insert(Value::Null), value);
            }
        }
        (into, from) => *into = from,
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn parent(fields: &Value) -> DynamicObject {
        serde_json::from_value(json!({
            "apiVersion": "a/v1", "kind": "K",
            "metadata": { "name": "a", "managedFields": [
                { "manager": "us", "operation": "Apply", "fieldsType": "FieldsV1", "fieldsV1": { "f:status": fields } },
                { "manager": "backup", "operation": "Apply", "fieldsType": "FieldsV1",
                  "fieldsV1": { "f:status": { "f:backup": {} } } },
                { "manager": "us", "operation": "Update", "fieldsType": "FieldsV1",
                  "fieldsV1": { "f:metadata": { "f:finalizers": {} } } },
            ] },
            "status": {
                "phase": "Running", "backup": "3", "nested": { "ours": 1, "theirs": 2 }, "set": ["a", "b"],
                "conditions": [
                    { "type": "Ready", "status": "True" }, { "type": "Backed", "status": "True" },
                ],
            },
        }))
        .unwrap()
    }

    #[test]
    fn only_what_the_manager_set_is_picked() {
        let fields = json!({
            "f:phase": {}, "f:gone": {}, "f:nested": { ".": {}, "f:ours": {} }, "f:set": { "v:\"b\"": {} },
            "f:conditions": { "k:{\"type\":\"Ready\"}": { ".": {}, "f:type": {}, "f:status": {} } },
        });
        let own = Value::Object(status(&parent(&fields), "us"));
        let expected = json!({
            "phase": "Running", "nested": { "ours": 1 }, "set": ["b"],
            "conditions": [{ "type": "Ready", "status": "True" }],
        });
        assert_eq!(own, expected);
        assert_eq!(
            Value::Object(status(&parent(&fields), "backup")),
            json!({ "backup": "3" })
        );
        assert_eq!(status(&parent(&fields), "nobody"), Map::new());
    }

    #[test]
    fn a_list_that_is_one_value_is_picked_whole() {
        let own = status(&parent(&json!({ "f:conditions": {} })), "us");
        assert_eq!(own["conditions"].as_array().unwrap().len(), 2);
    }
}
