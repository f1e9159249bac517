use super::*;
use operator_host_contract::Kind;
use operator_host_core::object::{ChildRef, NamespacedName};

#[test]
fn the_fields_that_are_refused_are_read_from_the_message() {
    for (message, expected) in [
        (
            r#"Service "a" is invalid: spec.ports[1].name: Duplicate value: "http""#,
            vec!["spec/ports/1/name"],
        ),
        (
            r#"Deployment.apps "a" is invalid: [spec.strategy.rollingUpdate: Forbidden: may not be specified when strategy `type` is 'Recreate', spec.x: Required value]"#,
            vec!["spec/strategy/rollingUpdate", "spec/x"],
        ),
        ("admission webhook \"w\" denied the request: no", vec![]),
    ] {
        let found: Vec<_> = refused_fields(message)
            .iter()
            .map(|steps| steps.join("/"))
            .collect();
        assert_eq!(found, expected, "{message}");
    }
}

/// Returns the parts of an object with this content that hold the field, for a manager that owns `ours` and wants `body`.
fn parts_of(body: &Value, ours: &Value, mut live: Value, path: &str) -> Vec<(String, Option<Value>)> {
    let key = ChildRef::new(Kind::new("v1", "Pod"), NamespacedName::parse("n/a"));
    let desired = Desired::new(key, body.clone());
    live["metadata"] = json!({ "name": "a", "managedFields": [{
            "manager": "us", "operation": "Apply", "fieldsType": "FieldsV1", "fieldsV1": ours,
        }] });
    let object: DynamicObject = serde_json::from_value(live).unwrap();
    let live = LiveChild {
        managed: object.metadata.managed_fields.clone().unwrap().into(),
        object: Arc::new(object),
    };
    let path: Vec<_> = path.split('/').map(str::to_owned).collect();
    let parts = parts(&path, &desired, &live, "us").into_iter();
    parts
        .map(|part| (part.pointer, part.wanted.map(Cow::into_owned)))
        .collect()
}

#[test]
fn the_smallest_part_with_the_refused_field_comes_first() {
    let body = json!({ "spec": { "volumes": [{ "name": "b", "configMap": { "name": "x" } }] } });
    let ours =
        json!({ "f:spec": { "f:volumes": { r#"k:{"name":"b"}"#: { "f:name": {}, "f:configMap": {} } } } });
    let live =
        json!({ "spec": { "volumes": [{ "name": "a", "emptyDir": {} }, { "name": "b", "emptyDir": {} }] } });
    let volumes = &body["spec"]["volumes"];
    let expected = [("/spec/volumes/1", &volumes[0]), ("/spec/volumes", volumes)];
    let expected = expected.map(|(pointer, wanted)| (pointer.to_owned(), Some(wanted.clone())));
    assert_eq!(parts_of(&body, &ours, live, "spec/volumes/1/emptyDir"), expected);
}

#[test]
fn what_was_applied_and_is_no_longer_wanted_is_removed_also_at_the_root() {
    let body = json!({ "webhooks": [{ "name": "a", "url": "x" }] });
    let place = json!({ ".": {}, "f:name": {}, "f:url": {} });
    let ours = json!({ "f:webhooks": { r#"k:{"name":"a"}"#: place, r#"k:{"name":"b"}"#: place } });
    let live = json!({ "webhooks": [{ "name": "a", "url": "x", "ca": 1 }, { "name": "b", "ca": 1 }, { "name": "c" }] });
    let whole = ("/webhooks".to_owned(), Some(body["webhooks"].clone()));
    let removed = ("/webhooks/1".to_owned(), None);
    assert_eq!(
        parts_of(&body, &ours, live.clone(), "webhooks/1/url"),
        [removed.clone(), whole.clone()]
    );
    let without_position = parts_of(&body, &ours, live.clone(), "webhooks/url");
    assert_eq!(without_position, [removed.clone(), whole.clone()]);
    // That of somebody else stays, if that is possible.
    assert_eq!(parts_of(&body, &ours, live.clone(), "webhooks/2/url"), [whole]);
    let removed = [("/webhooks".to_owned(), None)];
    assert_eq!(parts_of(&json!({}), &ours, live, "webhooks/0/url"), removed);
}

#[test]
fn the_own_elements_are_put_in_order_and_those_of_others_stay_where_they_are() {
    let element = |name: &str, of: &str| json!({ "name": name, "of": of });
    let body = json!({ "spec": { "env": [element("a", "us"), element("b", "us")] } });
    let place = json!({ ".": {}, "f:name": {}, "f:of": {} });
    let ours = json!({ "f:spec": { "f:env": { r#"k:{"name":"a"}"#: place, r#"k:{"name":"b"}"#: place } } });
    let live = |names: [&str; 3]| json!({ "spec": { "env": names.map(|name| element(name, "live")) } });
    let expected = [(
        "/spec/env".to_owned(),
        Some(live(["a", "x", "b"])["spec"]["env"].clone()),
    )];
    assert_eq!(
        parts_of(&body, &ours, live(["b", "x", "a"]), "spec/env"),
        expected
    );
}
