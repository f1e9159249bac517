use serde_json::{Value, json};

use super::*;
use operator_host_config::ControllerConfig;
use operator_host_config::testing::config;
use operator_host_core::object::{CONTROLLER_LABEL, PROVENANCE_ANNOTATION};

fn child(namespace: Option<&str>, more: &Value) -> DynamicObject {
    let mut child = json!({"apiVersion": "v1", "kind": "Pod", "metadata": more});
    child["metadata"]["name"] = "p".into();
    child["metadata"]["namespace"] = namespace.into();
    serde_json::from_value(child).unwrap()
}

fn named(namespace: Option<&str>, parent: &str) -> DynamicObject {
    let marks = json!({
        "labels": {CONTROLLER_LABEL: "shop"}, "annotations": {PARENT_ANNOTATION: parent},
    });
    child(namespace, &marks)
}

fn owned(namespace: Option<&str>) -> DynamicObject {
    let owner = json!({"ownerReferences": [
        {"apiVersion": "example.com/v1", "kind": "Shop", "name": "a", "uid": "u", "controller": true},
    ]});
    child(namespace, &owner)
}

fn parent(namespaced: bool, child: &DynamicObject) -> Option<String> {
    parent_of(config().scope(), namespaced, child).map(|parent| parent.to_string())
}

/// Regression: a policy that removed or rewrote the label at admission made the host lose its children.
#[test]
fn a_child_without_its_label_is_known_by_the_field_manager() {
    let config = config();
    let parent =
        serde_json::from_value(json!({"metadata": {"name": "a", "namespace": "x", "uid": "u"}})).unwrap();
    for (label, manager, expected) in [
        (Some("shop"), None, true),
        (None, Some("operator-host/shop"), true),
        (Some("rewritten"), Some("operator-host/shop"), true),
        // What another controller makes for the same parent, such as a ReplicaSet of a Deployment.
        (None, None, false),
        (None, Some("kube-controller-manager"), false),
        (Some("shop"), Some("operator-host/other"), false),
    ] {
        let mut child = owned(Some("x"));
        child.metadata.labels = label.map(|label| [(CONTROLLER_LABEL.to_owned(), label.to_owned())].into());
        let entry = manager.map(|manager| json!([{ "manager": manager, "operation": "Apply" }]));
        child.metadata.managed_fields = serde_json::from_value(entry.into()).unwrap();
        assert_eq!(
            owns(config.scope(), &parent, &child),
            expected,
            "{label:?} {manager:?}"
        );
    }
}

#[test]
fn a_change_in_one_namespace_enqueues_no_parent_of_another() {
    assert_eq!(parent(true, &owned(Some("x"))).as_deref(), Some("x/a"));
    assert_eq!(parent(true, &named(Some("x"), "x/a")).as_deref(), Some("x/a"));
    for forged in ["tenant/a", "a", "", "/a", "x/y/a"] {
        let found = parent(true, &named(Some("x"), forged));
        assert!(
            found.as_ref().is_none_or(|found| found.starts_with("x/")),
            "{forged:?} marks {found:?}"
        );
    }
    assert_eq!(parent(true, &named(None, "a")), None);
}

#[test]
fn a_cluster_scoped_parent_is_enqueued_from_the_listed_namespaces_only() {
    for (namespace, expected) in [(Some("spare"), Some("a")), (None, Some("a")), (Some("x"), None)] {
        assert_eq!(parent(false, &owned(namespace)).as_deref(), expected);
        assert_eq!(parent(false, &named(namespace, "a")).as_deref(), expected);
    }
    assert_eq!(parent(false, &named(Some("spare"), "spare/a")), None);
}

#[test]
fn in_other_namespaces_only_what_is_in_one_that_the_parent_made_is_its_child() {
    let mut config = config();
    let parent: DynamicObject =
        serde_json::from_value(json!({"metadata": {"name": "a", "uid": "u"}})).unwrap();
    let made = json!({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": "made"}});
    let made: DynamicObject = serde_json::from_value(made).unwrap();
    let left = |config: &ControllerConfig| {
        let mut children = [Some("spare"), Some("made"), Some("x"), None]
            .map(|it| Arc::new(owned(it)))
            .to_vec();
        children.push(Arc::new(made.clone()));
        children.retain(|child| reaches(config.scope(), None, child.metadata.namespace.as_deref()));
        leave_out_others(config.scope(), &parent, &mut children);
        let namespaces = children
            .iter()
            .filter_map(|child| child.metadata.namespace.clone());
        namespaces.collect::<Vec<_>>()
    };
    assert_eq!(left(&config), ["spare"]);
    let namespaces = operator_host_contract::Kind::new("v1", "Namespace");
    config.rules.children.insert(namespaces, Removal::Delete);
    assert_eq!(left(&config), ["spare", "made"]);
}

#[test]
fn a_child_that_says_so_itself_is_retained_and_an_orphan_only_by_the_parent_that_made_it() {
    let config = config();
    let parent = |uid: &str| {
        serde_json::from_value(
            json!({"metadata": {"name": "a", "namespace": "x", "uid": uid, "generation": 1}}),
        )
        .unwrap()
    };
    let (this, later): (DynamicObject, DynamicObject) = (parent("u"), parent("v"));
    let proof = SecretProof::Key(None);
    for (word, by_this, by_later) in [
        ("retain", true, true),
        ("orphan", true, false),
        ("delete", false, false),
    ] {
        let mut kept = named(Some("x"), "x/a");
        let annotations = kept.metadata.annotations.get_or_insert_default();
        annotations.insert(ON_REMOVAL_ANNOTATION.into(), word.into());
        let made = "generation=1 parent=u digest=sha256:d plugin=p".to_owned();
        annotations.insert(PROVENANCE_ANNOTATION.into(), made);
        assert_eq!(retains(config.scope(), proof, &this, &kept), by_this, "{word}");
        assert_eq!(retains(config.scope(), proof, &later, &kept), by_later, "{word}");
        let expected = if by_this { Removal::Retain } else { Removal::Delete };
        assert_eq!(removal(config.scope(), false, &kept), Some(expected), "{word}");
        // Somebody else has annotated a child that is to go.
        let mut owned = owned(Some("x"));
        owned.metadata.annotations = kept.metadata.annotations;
        assert_eq!(
            removal(config.scope(), false, &owned),
            Some(Removal::Delete),
            "{word}"
        );
    }
}
