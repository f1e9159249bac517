//! Detects drift: fields of a child that others have changed or removed since they were applied.
//!
//! The API server keeps the answer. When anyone changes or removes a field that a manager applied, that field leaves the
//! manager's entry in `metadata.managedFields`. Values are not compared: the API server may write them in another form,
//! and a webhook may change them within the apply itself, and neither is drift.
//!
//! Source: Kubernetes, "Server-Side Apply", and the format `FieldsV1` of `metav1.ManagedFieldsEntry`.

use std::collections::HashMap;

use k8s_openapi::apimachinery::pkg::apis::meta::v1::ManagedFieldsEntry;
use kube::core::DynamicObject;
use serde_json::{Map, Value};

use operator_host_core::field_path::FieldPath;
use operator_host_core::managed_fields::{Elements, applied_by, below, fields};
use operator_host_core::object::PROVENANCE_ANNOTATION;

/// The fields of metadata that a manager can own and a plugin can set.
const METADATA: [&str; 4] = ["labels", "annotations", "ownerReferences", "finalizers"];

/// Returns the path of the first field of `body` that is no longer as `manager` applied it; `None` when all are.
///
/// `live` is the object with these `managed` fields, and `body` what the manager last applied to it. Without an entry of
/// the manager, the path is that of the entries.
#[must_use]
pub fn drift(
    managed: &[ManagedFieldsEntry],
    manager: &str,
    body: &Value,
    live: &DynamicObject,
) -> Option<FieldPath> {
    let metadata = |field: &str| FieldPath::default().field("metadata").field(field);
    let Some(ours) = applied_by(managed, manager) else {
        return Some(metadata("managedFields"));
    };
    let others = managed.iter().filter_map(fields);
    let others = others.filter(|other| !std::ptr::eq(*other, ours)).collect();
    let walk = Walk { others };
    let content = body.as_object().into_iter().flatten();
    let mut content =
        content.filter(|(name, _)| !matches!(name.as_str(), "apiVersion" | "kind" | "metadata"));
    let lost = content.find_map(|(name, body)| {
        let trail = Trail {
            name: &field_name(name),
            before: None,
        };
        let place = ours.get(trail.name);
        walk.field(place, body, live.data.get(name), &trail)
            .map(|lost| lost.field(name))
    });
    let in_metadata = || {
        let live = serde_json::to_value(&live.metadata).unwrap_or_default();
        METADATA.into_iter().find_map(|name| {
            let body = without_marks(body["metadata"].get(name)?);
            let root = Trail {
                name: "f:metadata",
                before: None,
            };
            let trail = Trail {
                name: &field_name(name),
                before: Some(&root),
            };
            let place = ours.get(root.name).and_then(|metadata| metadata.get(trail.name));
            let lost = walk.field(place, &body, live.get(name), &trail)?;
            Some(lost.field(name).field("metadata"))
        })
    };
    lost.or_else(in_metadata).map(FieldPath::reversed)
}

fn without_marks(body: &Value) -> Value {
    let mut body = body.clone();
    if let Some(body) = body.as_object_mut() {
        body.retain(|key, _| key != PROVENANCE_ANNOTATION);
    }
    body
}

fn field_name(name: &str) -> String {
    format!("f:{name}")
}

/// The names on the way to a place in an entry, innermost first.
struct Trail<'t> {
    name: &'t str,
    before: Option<&'t Trail<'t>>,
}

impl Trail<'_> {
    /// Returns what another entry has in this place.
    fn find<'v>(&self, fields: &'v Value) -> Option<&'v Value> {
        self.before
            .map_or(Some(fields), |before| before.find(fields))?
            .get(self.name)
    }
}

struct Walk<'a> {
    /// What the other entries contain.
    others: Vec<&'a Value>,
}

/// Each function returns the path of what was lost, innermost step first.
impl Walk<'_> {
    /// Returns what was lost of a field, which is `place` in our entry.
    fn field(
        &self,
        place: Option<&Value>,
        body: &Value,
        live: Option<&Value>,
        trail: &Trail<'_>,
    ) -> Option<FieldPath> {
        match place {
            Some(place) => self.value(place, body, live, trail),
            None => match body {
                Value::Object(body) if !body.is_empty() => body.iter().find_map(|(name, body)| {
                    let live = live.and_then(|live| live.get(name));
                    let lost = self.field(None, body, live, trail)?;
                    Some(lost.field(name))
                }),
                body => (!is_as_wanted(body, live)).then(FieldPath::default),
            },
        }
    }

    fn value(
        &self,
        place: &Value,
        body: &Value,
        live: Option<&Value>,
        trail: &Trail<'_>,
    ) -> Option<FieldPath> {
        let is_leaf = below(place).next().is_none();
        match body {
            Value::Object(body) if is_leaf => self.leaf(body, live, trail),
            Value::Object(body) => body.iter().find_map(|(name, body)| {
                let trail = Trail {
                    name: &field_name(name),
                    before: Some(trail),
                };
                let live = live.and_then(|live| live.get(name));
                let lost = self.field(place.get(trail.name), body, live, &trail)?;
                Some(lost.field(name))
            }),
            Value::Array(body) if !is_leaf => self.list(place, body, live, trail),
            // Owned as a whole.
            _ => None,
        }
    }

    /// An entry without children is owned as a whole. A map of which all fields were lost looks the same: then others have
    /// them, or they are gone.
    fn leaf(&self, body: &Map<String, Value>, live: Option<&Value>, trail: &Trail<'_>) -> Option<FieldPath> {
        if body.is_empty() {
            return None;
        }
        let has_part = |other: &&Value| {
            trail
                .find(other)
                .is_some_and(|place| below(place).next().is_some())
        };
        let is_shared = self.others.iter().any(has_part);
        let mut fields = body.iter();
        let lost = fields.find(|(name, body)| {
            let live = live.and_then(|live| live.get(*name));
            is_shared || (live.is_none() && !is_zero(body))
        });
        lost.map(|(name, _)| FieldPath::default().field(name))
    }

    fn list(
        &self,
        place: &Value,
        body: &[Value],
        live: Option<&Value>,
        trail: &Trail<'_>,
    ) -> Option<FieldPath> {
        let elements = Elements::of(place);
        let live = live.and_then(Value::as_array).into_iter().flatten();
        let by_position: HashMap<usize, &Value> = live
            .filter_map(|live| Some((elements.find(live)?, live)))
            .collect();
        elements
            .assign(body)
            .into_iter()
            .zip(body)
            .find_map(|(at, body)| {
                let Some(at) = at else {
                    return Some(FieldPath::default().element(body));
                };
                let (name, place) = elements.at(at);
                let trail = Trail {
                    name,
                    before: Some(trail),
                };
                let live = by_position.get(&at).copied();
                let lost = self.value(place, body, live, &trail)?;
                Some(lost.element(live.unwrap_or(body)))
            })
    }
}

/// Reports whether the API server may leave a field with this value out.
fn is_zero(value: &Value) -> bool {
    match value {
        Value::Null => true,
        Value::Bool(flag) => !flag,
        Value::Number(number) => number.as_f64() == Some(0.0),
        Value::String(text) => text.is_empty(),
        Value::Array(list) => list.is_empty(),
        Value::Object(fields) => fields.is_empty(),
    }
}

/// Reports whether a field that no apply owns is as wanted: null means absent, and old API servers, such as 1.20, forget
/// who owns an empty map or list.
fn is_as_wanted(body: &Value, live: Option<&Value>) -> bool {
    match (body, live) {
        (Value::Null, _) => true,
        (Value::Array(body), None | Some(Value::Null)) => body.is_empty(),
        (Value::Array(body), Some(Value::Array(live))) => body.is_empty() && live.is_empty(),
        (Value::Object(body), Some(Value::Object(_))) => body.is_empty(),
        _ => false,
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    const US: &str = "operator-host/shop";

    /// Returns the lost field of an object with these contents, of which the first entry is ours, or "nothing".
    fn lost_of(live: &Value, entries: &[Value], body: &Value) -> String {
        let mut object = live.clone();
        object["metadata"]["name"] = "a".into();
        let live: DynamicObject = serde_json::from_value(object).unwrap();
        let entries = entries.iter().enumerate().map(|(at, fields)| {
            let (manager, operation) = if at == 0 { (US, "Apply") } else { ("kubectl-edit", "Update") };
            json!({ "manager": manager, "operation": operation, "fieldsType": "FieldsV1", "fieldsV1": fields })
        });
        let managed = serde_json::from_value(Value::Array(entries.collect())).unwrap();
        let managed: Vec<ManagedFieldsEntry> = managed;
        let lost = drift(&managed, US, body, &live);
        lost.map_or_else(|| "nothing".to_owned(), |path| path.to_string())
    }

    fn lost(live: &Value, ours: &Value, body: &Value) -> String {
        lost_of(live, std::slice::from_ref(ours), body)
    }

    #[test]
    fn a_field_that_left_the_entry_is_drift_whatever_its_value() {
        let body = json!({ "spec": { "replicas": 3, "hostNetwork": false, "cpu": "1000m" } });
        let live = json!({ "spec": { "replicas": 5, "cpu": "1" } });
        let ours = json!({ "f:spec": { "f:replicas": {}, "f:hostNetwork": {}, "f:cpu": {} } });
        assert_eq!(
            lost(&live, &ours, &body),
            "nothing",
            "changed within the apply, or written otherwise"
        );
        let ours = json!({ "f:spec": { "f:hostNetwork": {}, "f:cpu": {} } });
        assert_eq!(lost(&live, &ours, &body), "spec.replicas");
        assert_eq!(lost(&live, &json!({}), &body), "spec.cpu");
    }

    #[test]
    fn without_an_entry_the_object_is_not_as_applied() {
        assert_eq!(lost_of(&json!({}), &[], &json!({})), "metadata.managedFields");
    }

    #[test]
    fn an_empty_map_that_was_replaced_is_drift() {
        let body = json!({ "volumes": [{ "name": "v", "emptyDir": {} }], "mode": { "selfSigned": {} } });
        let live = json!({ "volumes": [{ "name": "v", "hostPath": {} }], "mode": { "ca": {} } });
        let name = r#"k:{"name":"v"}"#;
        let ours =
            json!({ "f:volumes": { name: { ".": {}, "f:name": {} } }, "f:mode": { "f:selfSigned": {} } });
        assert_eq!(lost(&live, &ours, &body), "volumes[name=v].emptyDir");
        let ours = json!({ "f:volumes": { name: { ".": {}, "f:name": {}, "f:emptyDir": {} } } });
        assert_eq!(lost(&live, &ours, &body), "mode.selfSigned");
    }

    #[test]
    fn elements_are_found_by_their_keys_exact_ones_first() {
        let body = json!({ "ports": [
            { "port": 53 }, { "port": 53, "protocol": "UDP" }, { "port": 80 },
        ] });
        let tcp = r#"k:{"port":53,"protocol":"TCP"}"#;
        let udp = r#"k:{"port":53,"protocol":"UDP"}"#;
        let web = r#"k:{"port":80,"protocol":"TCP"}"#;
        let whole = json!({ ".": {}, "f:port": {}, "f:protocol": {} });
        let ours = json!({ "f:ports": { tcp: whole, udp: whole, web: whole } });
        let live = json!({});
        assert_eq!(lost(&live, &ours, &body), "nothing");
        // The one that leaves out the protocol must not take the place of the other.
        let ours = json!({ "f:ports": { udp: whole, web: whole } });
        assert_eq!(lost(&live, &ours, &body), "ports[port=53]");
        let ours = json!({ "f:ports": { tcp: whole, web: whole } });
        assert_eq!(lost(&live, &ours, &body), "ports[port=53]");
    }

    #[test]
    fn a_value_that_left_a_set_is_drift() {
        let body = json!({ "metadata": { "finalizers": ["a/b", "c/d"] } });
        let ours = |fields: Value| json!({ "f:metadata": { "f:finalizers": fields } });
        let both = ours(json!({ r#"v:"a/b""#: {}, r#"v:"c/d""#: {} }));
        assert_eq!(lost(&json!({}), &both, &body), "nothing");
        let one = ours(json!({ r#"v:"a/b""#: {} }));
        assert_eq!(lost(&json!({}), &one, &body), r#"metadata.finalizers["c/d"]"#);
    }

    #[test]
    fn a_list_without_keys_is_owned_as_a_whole() {
        let body = json!({ "subjects": [{ "kind": "User", "name": "a" }] });
        let live = json!({ "subjects": [{ "kind": "User", "name": "b" }] });
        assert_eq!(lost(&live, &json!({ "f:subjects": {} }), &body), "nothing");
        assert_eq!(lost(&live, &json!({}), &body), "subjects");
    }

    /// An entry says the same of a map that is owned as a whole and of one of which every field was lost.
    #[test]
    fn a_map_without_fields_is_owned_unless_others_have_part_of_it_or_it_is_gone() {
        let body = json!({ "spec": { "map": { "key": { "a": 1 } } } });
        let ours = json!({ "f:spec": { "f:map": { "f:key": {} } } });
        let live = |a: Value| json!({ "spec": { "map": { "key": a } } });
        assert_eq!(
            lost(&live(json!({ "a": 2 })), &ours, &body),
            "nothing",
            "changed within the apply"
        );
        assert_eq!(lost(&live(json!({})), &ours, &body), "spec.map.key.a");
        let theirs = json!({ "f:spec": { "f:map": { "f:key": { "f:a": {} } } } });
        let lost = lost_of(&live(json!({ "a": 2 })), &[ours, theirs], &body);
        assert_eq!(lost, "spec.map.key.a");
    }

    #[test]
    fn null_and_empty_lists_need_no_owner() {
        let body = json!({ "rules": [], "x": null, "y": {} });
        let ours = json!({ "f:y": {} });
        assert_eq!(lost(&json!({ "rules": null }), &ours, &body), "nothing");
        assert_eq!(lost(&json!({ "rules": [1] }), &ours, &body), "rules");
        assert_eq!(lost(&json!({}), &json!({}), &body), "y");
        assert_eq!(lost(&json!({ "y": {} }), &json!({}), &body), "nothing");
    }

    #[test]
    fn only_the_provenance_may_differ() {
        let annotations = json!({ PROVENANCE_ANNOTATION: "p", "a": "b" });
        let body = json!({ "metadata": { "name": "a", "uid": "u", "annotations": annotations } });
        let ours = json!({ "f:metadata": { "f:annotations": { "f:a": {} } } });
        assert_eq!(lost(&json!({}), &ours, &body), "nothing");
        let ours = json!({ "f:metadata": { "f:annotations": { "f:x": {} } } });
        assert_eq!(lost(&json!({}), &ours, &body), "metadata.annotations.a");
    }

    #[test]
    fn an_owner_reference_is_owned_as_a_whole() {
        let owner =
            json!({ "apiVersion": "a.dev/v1", "kind": "Db", "name": "db", "uid": "1", "controller": true });
        let live = json!({ "metadata": { "ownerReferences": [owner] } });
        let ours = json!({ "f:metadata": { "f:ownerReferences": { r#"k:{"uid":"1"}"#: {} } } });
        assert_eq!(lost(&live, &ours, &live), "nothing");
        let others = json!({ "f:metadata": { "f:ownerReferences": { ".": {}, r#"k:{"uid":"2"}"#: {} } } });
        assert_eq!(lost_of(&live, &[ours, others.clone()], &live), "nothing");
        let path = lost_of(&live, &[json!({}), others], &live);
        assert_eq!(path, "metadata.ownerReferences");
    }
}
