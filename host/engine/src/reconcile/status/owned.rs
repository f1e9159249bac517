//! The part of a status that one field manager set, according to `metadata.managedFields`.

use kube::core::DynamicObject;
use serde_json::{Map, Value};

use operator_host_core::managed_fields::owned_part;

/// Returns the part of an object's status that this manager owns.
pub fn status(object: &DynamicObject, manager: &str) -> Map<String, Value> {
    let status = object.data.get("status").unwrap_or(&Value::Null);
    let own = fields(object, manager).and_then(|fields| owned_part(status, fields, &[]));
    match own {
        Some(Value::Object(own)) => own,
        _ => Map::new(),
    }
}

/// Reports whether this manager owns a part of an object's status. Needs its metadata only.
pub fn has_status(object: &DynamicObject, manager: &str) -> bool {
    fields(object, manager).is_some()
}

/// Returns what of the status the entry of a manager's applies contains: the host writes a status in no other way.
fn fields<'a>(object: &'a DynamicObject, manager: &str) -> Option<&'a Value> {
    let mut entries = object.metadata.managed_fields.iter().flatten();
    entries.find_map(|entry| {
        let fields = entry.fields_v1.as_ref()?.0.get("f:status")?;
        (entry.manager.as_deref() == Some(manager) && fields.is_object()).then_some(fields)
    })
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
