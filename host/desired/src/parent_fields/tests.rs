use super::*;

fn parent(metadata: &Value) -> DynamicObject {
    let mut all = json!({ "name": "web", "namespace": "shop", "uid": "u" });
    all.as_object_mut()
        .unwrap()
        .extend(metadata.as_object().unwrap().clone());
    let spec = json!({ "replicas": 2, "containers": [{ "name": "app", "image": "a" }, { "name": "log", "image": "l" }] });
    serde_json::from_value(
        json!({ "apiVersion": "apps/v1", "kind": "Deployment", "metadata": all, "spec": spec }),
    )
    .unwrap()
}

fn paths() -> Vec<WrittenPath> {
    let texts = [
        r#"metadata.labels["a.dev/b"]"#,
        "spec.containers[name=app].image",
        "spec.strategy",
    ];
    texts.iter().map(|text| text.parse().unwrap()).collect()
}

fn body_of(fields: &Value) -> Result<Value, String> {
    body(&parent(&json!({})), fields.as_object().unwrap(), &paths())
}

fn managed(fields: &Value) -> Vec<ManagedFieldsEntry> {
    let entry = json!({ "manager": "operator-host/c", "operation": "Apply", "fieldsType": "FieldsV1", "fieldsV1": fields });
    vec![serde_json::from_value(entry).unwrap()]
}

#[test]
fn what_a_plugin_repeats_of_its_parent_is_no_field_of_its_own() {
    let fields = json!({
        "apiVersion": "apps/v1", "kind": "Deployment",
        "metadata": { "name": "web", "namespace": "shop", "uid": "u", "labels": { "a.dev/b": "1" } },
        "spec": { "containers": [{ "name": "app", "image": "b" }], "strategy": { "type": "Recreate" } },
    });
    assert_eq!(body_of(&fields).unwrap(), fields);
    let none = body_of(&json!({})).unwrap();
    assert!(is_empty(&none), "{none}");
    assert_eq!(
        none["metadata"],
        json!({ "name": "web", "namespace": "shop", "uid": "u" })
    );
}

#[test]
fn a_field_beside_the_paths_is_refused_with_its_own_path() {
    for (fields, says) in [
        (
            json!({ "spec": { "replicas": 1 } }),
            "spec.replicas, which is below none",
        ),
        (
            json!({ "metadata": { "labels": { "a.dev/c": "1" } } }),
            r#"metadata.labels["a.dev/c"]"#,
        ),
        (
            json!({ "metadata": { "uid": "v" } }),
            "`parent.metadata.uid` is not that of the parent",
        ),
        (
            json!({ "spec": { "containers": [{ "name": "log", "image": "b" }] } }),
            "the list spec.containers",
        ),
        (
            json!({ "spec": { "containers": [{ "name": "app", "command": "b" }] } }),
            "command",
        ),
        (
            json!({ "spec": { "strategy": { "list": [1] } } }),
            "the list spec.strategy.list",
        ),
        (json!({ "spec": [1] }), "the list spec"),
        (
            json!({ "kind": "StatefulSet" }),
            "`parent.kind` is not that of the parent",
        ),
        (
            json!({ "metadata": { "ownerReferences": [] } }),
            "metadata.ownerReferences",
        ),
        (
            json!({ "metadata": { "finalizers": ["a.dev/b"] } }),
            "metadata.finalizers",
        ),
        (json!({ "status": { "replicas": 1 } }), "status.replicas"),
    ] {
        let why = body_of(&fields).unwrap_err();
        assert!(why.contains(says), "{fields}: {why}");
    }
    let fields = json!({ "spec": { "replicas": 1 } });
    let why = body(&parent(&json!({})), fields.as_object().unwrap(), &[]).unwrap_err();
    assert!(why.contains("writes no fields of its parents"), "{why}");
}

#[test]
fn it_is_applied_when_the_manager_owns_these_fields_and_no_others() {
    let live = parent(&json!({ "labels": { "a.dev/b": "1" } }));
    let is = |fields: &Value, entry: &Value| {
        let body = body_of(fields).unwrap();
        is_applied(&body, &live, &managed(entry), "operator-host/c")
    };
    let label = json!({ "metadata": { "labels": { "a.dev/b": "1" } } });
    let of_label = json!({ "f:metadata": { "f:labels": { "f:a.dev/b": {} } } });
    assert!(is(&label, &of_label));
    assert!(
        !is_applied(&body_of(&label).unwrap(), &live, &[], "operator-host/c"),
        "it was lost"
    );
    assert!(!is(&json!({}), &of_label), "it is to be taken back");
    let image = json!({ "spec": { "containers": [{ "name": "app", "image": "a" }] } });
    let element = json!({ ".": {}, "f:name": {}, "f:image": {} });
    let of_image = |more: &[(&str, Value)]| {
        let mut containers = json!({ r#"k:{"name":"app"}"#: element });
        for (name, value) in more {
            containers[name] = value.clone();
        }
        json!({ "f:spec": { "f:containers": containers } })
    };
    assert!(is(&image, &of_image(&[])));
    assert!(!is(
        &image,
        &of_image(&[(r#"k:{"name":"log"}"#, element.clone())])
    ));
    let none = body_of(&json!({})).unwrap();
    assert!(is_applied(&none, &live, &[], "operator-host/c"));
    // Whether the values are the same is another question.
    assert!(has_values(&live, &body_of(&image).unwrap()));
    assert!(!has_values(
        &live,
        &body_of(&json!({ "metadata": { "labels": { "a.dev/b": "2" } } })).unwrap()
    ));
}
