//! How a child in the cluster differs from what was applied to it.

use k8s_openapi::apimachinery::pkg::apis::meta::v1::OwnerReference;
use kube::core::DynamicObject;
use serde_json::Value;

use crate::desired::drift;
use crate::desired::field_path::FieldPath;
use crate::desired::plan::Desired;
use crate::object::{
    DIGEST_ANNOTATION, GENERATED_LABEL, GENERATION_ANNOTATION, PLUGIN_ANNOTATION, fingerprint, label,
};

/// Reports whether a child is as it was applied.
pub(super) fn is_as_applied(desired: &Desired, live: &DynamicObject) -> bool {
    let group = desired.key.kind.group();
    !is_generated(live)
        && drift::contains(group, &live.data, &desired.body)
        && metadata_difference(&desired.body["metadata"], live).is_none()
}

/// Returns the path of the first field in which a child differs from what was applied.
pub(super) fn difference(desired: &Desired, live: &DynamicObject) -> Option<FieldPath> {
    drift::first_difference(desired.key.kind.group(), &live.data, &desired.body)
        .or_else(|| metadata_difference(&desired.body["metadata"], live))
}

fn metadata_difference(desired: &Value, live: &DynamicObject) -> Option<FieldPath> {
    let metadata = &live.metadata;
    let path = |field: &str| FieldPath::default().field("metadata").field(field);
    let strings = |field: &str, live: Option<&std::collections::BTreeMap<String, String>>| {
        let mut desired = desired[field].as_object().into_iter().flatten();
        let differs = desired.find(|(key, value)| {
            // The version and generation of the last change: a difference in these alone is no reason to write.
            !matches!(
                key.as_str(),
                DIGEST_ANNOTATION | PLUGIN_ANNOTATION | GENERATION_ANNOTATION
            ) && live.and_then(|live| live.get(*key)).map(String::as_str) != value.as_str()
        });
        differs.map(|(key, _)| path(field).field(key))
    };
    let owners = desired["ownerReferences"]
        .as_array()
        .into_iter()
        .flatten()
        .all(|owner| {
            let live = metadata.owner_references.iter().flatten();
            live.into_iter().any(|live| is_same_reference(owner, live))
        });
    let finalizers = desired["finalizers"]
        .as_array()
        .into_iter()
        .flatten()
        .all(|finalizer| metadata.finalizers.iter().flatten().any(|live| finalizer == live));
    if !owners {
        return Some(path("ownerReferences"));
    }
    if !finalizers {
        return Some(path("finalizers"));
    }
    strings("labels", metadata.labels.as_ref())
        .or_else(|| strings("annotations", metadata.annotations.as_ref()))
}

/// Reports whether an owner reference is as it was applied. The garbage collector looks for the owner by all of it.
fn is_same_reference(desired: &Value, live: &OwnerReference) -> bool {
    desired["uid"] == live.uid
        && desired["apiVersion"] == live.api_version
        && desired["kind"] == live.kind
        && desired["name"] == live.name
        && desired["controller"].as_bool() == live.controller
        && desired["blockOwnerDeletion"].as_bool() == live.block_owner_deletion
}

/// Reports whether the host generated a part of the values of this Secret: all of them are blank in the caches.
fn is_generated(live: &DynamicObject) -> bool {
    label(live, GENERATED_LABEL).is_some()
}

/// Returns a fingerprint of everything that an apply could change. The values of a generated Secret are blank in the
/// caches, and its version stands for them.
pub(super) fn content(live: &DynamicObject) -> String {
    let mut data = live.data.clone();
    if let Some(data) = data.as_object_mut() {
        data.remove("status");
        if is_generated(live) {
            data.remove("data");
        }
    }
    let metadata = &live.metadata;
    fingerprint(&(
        &metadata.labels,
        &metadata.annotations,
        &metadata.owner_references,
        &metadata.finalizers,
        data,
        is_generated(live).then_some(&metadata.resource_version),
    ))
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    /// Regression: with another version in the reference, the garbage collector did not delete the child.
    #[test]
    fn a_change_of_any_field_of_the_owner_reference_is_a_difference() {
        let desired = json!({ "ownerReferences": [{
            "apiVersion": "a.dev/v1", "kind": "Db", "name": "db", "uid": "1", "controller": true, "blockOwnerDeletion": true,
        }] });
        let live = |metadata: &Value| {
            let mut metadata = metadata.clone();
            metadata["name"] = "p".into();
            let pod = json!({ "apiVersion": "v1", "kind": "Pod", "metadata": metadata });
            serde_json::from_value::<DynamicObject>(pod).unwrap()
        };
        let mut shared = desired.clone();
        let other = json!({ "apiVersion": "v1", "kind": "Node", "name": "n", "uid": "2" });
        shared["ownerReferences"].as_array_mut().unwrap().push(other);
        for same in [&desired, &shared] {
            assert_eq!(metadata_difference(&desired, &live(same)), None);
        }
        for (field, value) in [
            ("apiVersion", json!("a.dev/v9")),
            ("kind", json!("Other")),
            ("name", json!("other")),
            ("uid", json!("9")),
            ("controller", json!(false)),
            ("blockOwnerDeletion", json!(false)),
            ("blockOwnerDeletion", Value::Null),
        ] {
            let mut changed = desired.clone();
            changed["ownerReferences"][0][field] = value;
            let found = metadata_difference(&desired, &live(&changed));
            assert_eq!(
                found.map(|path| path.to_string()).as_deref(),
                Some("metadata.ownerReferences"),
                "{field}"
            );
        }
    }
}
