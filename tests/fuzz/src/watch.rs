//! Lists: what the API server sends is read as serde_json reads it, without what the cache does not keep,
//! and is the same after the cache has kept it.

use kube::core::{DynamicObject, ListMeta};
use operator_host_cluster::cache::fuzzing;
use serde_json::{Value, json};

pub(crate) fn run(bytes: &[u8]) {
    // Whatever it is, it is refused or read.
    for is_whole in [true, false] {
        let _ = fuzzing::page(bytes, is_whole);
    }
    let Ok(sent) = serde_json::from_slice::<Value>(bytes) else {
        return;
    };
    // Of a field that is there twice, the last counts. Reading a fraction again may give another one.
    let text = sent.to_string();
    let sent: Value = serde_json::from_str(&text).expect("JSON");
    let object = &sent["object"];
    let items = sent["items"].as_array();
    let expected: Vec<_> = items.into_iter().flatten().map(read).collect();
    for is_whole in [true, false] {
        let Ok(objects) = fuzzing::page(text.as_bytes(), is_whole) else {
            let is_list = serde_json::from_value::<ListMeta>(sent["metadata"].clone()).is_ok();
            let are_objects = items.is_some() && expected.iter().all(Option::is_some);
            assert!(!(is_list && are_objects), "not read: {text}");
            continue;
        };
        assert_eq!(objects.len(), expected.len());
        for (object, expected) in objects.iter().zip(&expected) {
            same(Some(object), expected.as_ref());
        }
    }
    let objects: Vec<DynamicObject> = expected.into_iter().flatten().chain(read(object)).collect();
    let kept = fuzzing::kept(&objects);
    assert_eq!(kept.len(), objects.len());
    for (kept, object) in kept.iter().zip(&objects) {
        assert_eq!(kept.data, object.data);
        assert_eq!(json!(kept.metadata), json!(object.metadata));
    }
}

/// Reads an object with the library's types; `None` if it is none. Of an object whose type is not a text they make
/// another one.
fn read(object: &Value) -> Option<DynamicObject> {
    let mut object = object.clone();
    if let Some(metadata) = object.get_mut("metadata") {
        metadata.as_object_mut()?.remove("managedFields");
    }
    let is_text = |field: &Value| field.is_null() || field.is_string();
    if !(is_text(&object["apiVersion"]) && is_text(&object["kind"])) {
        return None;
    }
    object.as_object()?;
    let mut object: DynamicObject = serde_json::from_value(object).ok()?;
    // Only a type with both parts is one.
    let data = object.data.as_object_mut()?;
    for field in ["apiVersion", "kind"] {
        data.remove(field);
    }
    Some(object)
}

fn same(object: Option<&DynamicObject>, expected: Option<&DynamicObject>) {
    let (Some(object), Some(expected)) = (object, expected) else {
        assert!(expected.is_none(), "not read: {expected:?}");
        return;
    };
    assert_eq!(object.types, expected.types);
    assert_eq!(object.metadata, expected.metadata);
    // Of one that is not kept whole, or cannot be read, there are only the metadata.
    if !object.data.is_null() {
        assert_eq!(object.data, expected.data);
    }
}
