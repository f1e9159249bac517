use serde_json::json;

use super::*;

const US: &str = "operator-host/shop";

/// Returns the lost field of an object with these contents, of which the first entry is ours, or "nothing".
fn lost_of(live: &Value, entries: &[Value], body: &Value) -> String {
    let mut object = live.clone();
    object["metadata"]["name"] = "a".into();
    let live: DynamicObject = serde_json::from_value(object).unwrap();
    let entries = entries.iter().enumerate().map(|(at, fields)| {
        let (manager, operation) = if at == 0 {
            (US, "Apply")
        } else {
            ("kubectl-edit", "Update")
        };
        json!({ "manager": manager, "operation": operation, "fieldsType": "FieldsV1", "fieldsV1": fields })
    });
    let managed = serde_json::from_value(Value::Array(entries.collect())).unwrap();
    let managed: Vec<ManagedFieldsEntry> = managed;
    first(&drift(&managed, US, body, &live), Cause::Lost)
}

/// Returns the first path with this cause, or "nothing".
fn first(found: &[Difference], cause: Cause) -> String {
    let mut found = found.iter().filter(|difference| difference.cause == cause);
    found
        .next()
        .map_or_else(|| "nothing".to_owned(), |it| it.path.to_string())
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
    let ours = json!({ "f:volumes": { name: { ".": {}, "f:name": {} } }, "f:mode": { "f:selfSigned": {} } });
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
fn own_elements_in_another_order_are_drift_whatever_others_have_between_them() {
    let element = |name: &str| json!({ "name": name });
    let steps = ["a", "b"].map(element);
    let body = json!({ "spec": { "steps": steps, "set": [1, 2] } });
    let place = json!({ ".": {}, "f:name": {} });
    let ours = json!({ "f:spec": {
            "f:steps": { r#"k:{"name":"a"}"#: place, r#"k:{"name":"b"}"#: place }, "f:set": { "v:1": {}, "v:2": {} },
        } });
    let live = |names: &[&str]| {
        let steps: Vec<_> = names.iter().map(|name| element(name)).collect();
        json!({ "spec": { "steps": steps, "set": [2, 1] } })
    };
    for names in [&["a", "b"][..], &["x", "a", "y", "b"]] {
        assert_eq!(
            lost(&live(names), &ours, &body),
            "nothing",
            "a set has no order: {names:?}"
        );
    }
    for names in [&["b", "a"][..], &["b", "x", "a"]] {
        assert_eq!(lost(&live(names), &ours, &body), "spec.steps", "{names:?}");
    }
}

#[test]
fn what_is_owned_and_not_there_was_dropped_from_the_apply() {
    let manager = "us";
    let found = |live: Value, body: &Value| {
        let ours = json!({ "f:spec": {
                "f:ttl": {}, "f:paused": {}, "f:update": { "f:max": {}, "f:mode": {} },
                "f:list": { r#"k:{"name":"a"}"#: { ".": {}, "f:name": {}, "f:limit": {} } },
            } });
        let entry =
            json!({ "manager": manager, "operation": "Apply", "fieldsType": "FieldsV1", "fieldsV1": ours });
        let managed: Vec<ManagedFieldsEntry> = serde_json::from_value(json!([entry])).unwrap();
        let live = serde_json::from_value(json!({ "metadata": { "name": "a" }, "spec": live })).unwrap();
        let found = drift(&managed, manager, body, &live);
        assert_eq!(first(&found, Cause::Lost), "nothing");
        let dropped = found.iter().filter(|it| it.cause == Cause::Dropped);
        dropped.map(|it| it.path.to_string()).collect::<Vec<_>>()
    };
    let spec = json!({ "ttl": 1, "paused": false, "update": { "max": 1, "mode": "x" }, "list": [{ "name": "a", "limit": 1 }] });
    let body = json!({ "spec": spec });
    assert_eq!(found(spec.clone(), &body), Vec::<String>::new());
    let without = json!({ "update": { "mode": "x" }, "list": [{ "name": "a" }] });
    let expected = ["spec.list[name=a].limit", "spec.ttl", "spec.update.max"];
    assert_eq!(found(without, &body), expected, "a zero may be left out");
    let gone = json!({ "ttl": 1, "list": [] });
    assert_eq!(found(gone, &body), ["spec.list[name=a]", "spec.update"]);
}

#[test]
fn a_mark_that_is_missing_or_rewritten_is_found_whoever_owns_it() {
    let marks =
        json!({ "labels": { CONTROLLER_LABEL: "shop" }, "annotations": { PROVENANCE_ANNOTATION: "new" } });
    let body = json!({ "metadata": marks });
    let marked = |metadata: Value| {
        let mut live = json!({ "metadata": metadata });
        live["metadata"]["name"] = "a".into();
        let found = drift(&[], US, &body, &serde_json::from_value(live).unwrap());
        first(&found, Cause::Mark)
    };
    let kept =
        json!({ "labels": { CONTROLLER_LABEL: "shop" }, "annotations": { PROVENANCE_ANNOTATION: "old" } });
    assert_eq!(
        marked(kept),
        "nothing",
        "a difference in the provenance is no reason to write"
    );
    let rewritten =
        json!({ "labels": { CONTROLLER_LABEL: "x" }, "annotations": { PROVENANCE_ANNOTATION: "old" } });
    assert_eq!(
        marked(rewritten),
        r#"metadata.labels["operator-host.dev/controller"]"#
    );
    let unmade = json!({ "labels": { CONTROLLER_LABEL: "shop" } });
    assert_eq!(
        marked(unmade),
        r#"metadata.annotations["operator-host.dev/provenance"]"#
    );
}

#[test]
fn what_others_own_is_left_out_of_a_body_and_what_is_owned_is_not() {
    let ours = json!({ "f:spec": { "f:containers": {
            r#"k:{"name":"a"}"#: { "f:name": {}, "f:image": {} }, r#"k:{"name":"b"}"#: { "f:name": {} },
        } } });
    let entry = json!({ "manager": US, "operation": "Apply", "fieldsType": "FieldsV1", "fieldsV1": ours });
    let managed: Vec<ManagedFieldsEntry> = serde_json::from_value(json!([entry])).unwrap();
    let container = json!({ "name": "a", "image": "x", "resources": { "cpu": 1, "memory": 2 } });
    let mut body = json!({ "spec": { "containers": [{ "name": "b" }, container] } });
    let containers = FieldPath::default().field("spec").field("containers");
    let within = containers
        .clone()
        .element(&json!({ "name": "a", "image": "x", "new": 1 }));
    let owned = [containers, within.clone().field("image")];
    let before = body.clone();
    assert!(!leave_out(&mut body, &owned, &managed, US));
    assert_eq!(body, before);
    let lost = within.field("resources").field("cpu");
    assert!(leave_out(&mut body, [&lost], &managed, US));
    assert_eq!(
        body,
        json!({ "spec": { "containers": [{ "name": "b" }, { "name": "a", "image": "x" }] } })
    );
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
