use super::*;
use crate::ownership::owns;
use operator_host_config::ControllerConfig;
use operator_host_config::testing::config;
use operator_host_contract::ObjectRef;
use operator_host_core::object::{AFTER_ANNOTATION, NotServed, made_at};

fn object(value: Value) -> DynamicObject {
    serde_json::from_value(value).unwrap()
}

/// Returns an object as a cache has it: one with the spec `UNREAD` could not be read.
fn cached(value: &Value) -> DynamicObject {
    let mut object = object(value.clone());
    if object.data["spec"] == UNREAD {
        object.data = Value::Null;
    }
    object
}

const UNREAD: &str = "nested too deep";

fn parent(namespace: Option<&str>) -> DynamicObject {
    object(json!({
        "apiVersion": "example.com/v1", "kind": "Shop",
        "metadata": { "name": "a", "namespace": namespace, "uid": "uid-a" },
    }))
}

fn pod(name: &str) -> Value {
    json!({ "apiVersion": "v1", "kind": "Pod", "metadata": { "name": name }, "spec": { "x": 1 } })
}

fn claim() -> Value {
    json!({ "apiVersion": "v1", "kind": "PersistentVolumeClaim", "metadata": { "name": "c" } })
}

/// Whether a kind of these tests is namespaced, if it is served.
pub(super) fn namespaced(kind: &Kind) -> Result<bool, NotServed> {
    match kind.kind.as_str() {
        "Node" | "Namespace" => Ok(false),
        "Missing" => Err(NotServed::new(kind.clone())),
        _ => Ok(true),
    }
}

/// Returns the policy of a controller for a parent.
fn policy<'a>(
    config: &'a ControllerConfig,
    parent: &'a DynamicObject,
    existing: &'a dyn Fn(&ChildRef) -> Option<Arc<DynamicObject>>,
) -> Policy<'a> {
    Policy {
        scope: config.scope(),
        parent,
        digest: "sha256:d",
        trace: None,
        plugin: "shop 1.0",
        namespaced: &namespaced,
        existing,
        shown: &[],
        proof: SecretProof::Key(None),
    }
}

fn plan_with(
    config: &ControllerConfig,
    parent: &DynamicObject,
    existing: Option<&Value>,
    children: &[Value],
    generate: &[GeneratedSecret],
) -> Result<Plan, Vec<String>> {
    let existing = |key: &ChildRef| {
        let existing = cached(existing?);
        (existing.name_any() == key.name.name).then(|| Arc::new(existing))
    };
    let plan = plan(&policy(config, parent, &existing), &answer(children, generate));
    plan.map_err(|refusals| refusals.iter().map(ToString::to_string).collect())
}

fn answer(children: &[Value], generate: &[GeneratedSecret]) -> Response {
    Response {
        children: children.to_vec(),
        generate: generate.to_vec(),
        ..Response::default()
    }
}

fn planned(children: &[Value]) -> Plan {
    plan_with(&config(), &parent(Some("default")), None, children, &[]).unwrap()
}

/// Checks the first refusal.
#[track_caller]
fn first_refusal(plan: Result<Plan, Vec<String>>, expected: &str) {
    let refusals = plan.unwrap_err();
    assert!(refusals[0].contains(expected), "{refusals:?}");
}

fn generated(name: &str) -> GeneratedSecret {
    GeneratedSecret {
        name: name.into(),
        entries: Vec::new(),
    }
}

/// Checks the refusal of a Secret that is to be generated.
#[track_caller]
fn secret_refused(name: &str, expected: &str) {
    let plan = plan_with(&config(), &parent(Some("default")), None, &[], &[generated(name)]);
    first_refusal(plan, expected);
}

#[track_caller]
fn refused(children: &[Value], expected: &str) {
    let refusals = plan_with(&config(), &parent(Some("default")), None, children, &[]).unwrap_err();
    assert!(
        refusals.iter().any(|refusal| refusal.contains(expected)),
        "{refusals:?}"
    );
}

#[test]
fn a_child_gets_owner_namespace_label_and_annotations() {
    let plan = planned(&[pod("p")]);
    let metadata = &plan.desired[0].body["metadata"];
    assert_eq!(metadata["namespace"], "default");
    assert_eq!(metadata["ownerReferences"][0]["uid"], "uid-a");
    assert_eq!(metadata["ownerReferences"][0]["controller"], true);
    assert_eq!(metadata["labels"][CONTROLLER_LABEL], "shop");
    assert_eq!(metadata["annotations"][PARENT_ANNOTATION], "default/a");
    let expected = "digest=sha256:d plugin=shop 1.0";
    assert_eq!(metadata["annotations"][PROVENANCE_ANNOTATION], expected);
    assert_eq!(
        metadata["annotations"][APPLIED_ANNOTATION],
        plan.desired[0].fingerprint
    );
}

#[test]
fn what_the_server_sets_is_never_applied() {
    let mut child = pod("p");
    child["metadata"]["uid"] = "x".into();
    child["metadata"]["resourceVersion"] = "1".into();
    child["metadata"]["managedFields"] = json!([]);
    child["metadata"]["creationTimestamp"] = Value::Null;
    child["status"] = json!({ "phase": "Running" });
    assert_eq!(planned(&[child]), planned(&[pod("p")]));
}

#[test]
fn another_plugin_version_with_the_same_answer_has_the_same_fingerprint() {
    let (config, parent) = (config(), parent(Some("default")));
    let with = |digest| {
        let policy = Policy {
            digest,
            ..policy(&config, &parent, &|_| None)
        };
        let plan = plan(&policy, &answer(&[pod("p")], &[])).unwrap();
        plan.desired[0].fingerprint.clone()
    };
    assert_eq!(with("sha256:one"), with("sha256:two"));
    let mut other = pod("p");
    other["spec"]["x"] = 2.into();
    assert_ne!(planned(&[other]).desired[0].fingerprint, with("sha256:one"));
}

#[test]
fn retained_kinds_get_no_owner_since_the_garbage_collector_would_delete_them() {
    let metadata = &planned(&[claim()]).desired[0].body["metadata"];
    assert!(metadata["ownerReferences"].is_null());
}

#[test]
fn claims_are_applied_before_the_pods_that_mount_them() {
    let claim = claim();
    let plan = planned(&[pod("b"), pod("a"), claim]);
    let names = [0, 1, 2].map(|at| plan.desired[at].key.to_string());
    let expected = [
        "PersistentVolumeClaim default/c",
        "Pod default/a",
        "Pod default/b",
    ];
    assert_eq!(names, expected);
}

#[test]
fn all_refusals_are_reported_at_once() {
    let twice = [pod("p"), pod("p"), json!({ "apiVersion": "v1", "kind": "Pod" })];
    let refusals = plan_with(&config(), &parent(Some("default")), None, &twice, &[]).unwrap_err();
    assert_eq!(refusals.len(), 2, "{refusals:?}");
    let words = "Pod default/p: the plugin asked for it twice";
    assert!(refusals[0].contains(words), "{refusals:?}");
}

/// Returns an object with the label and annotation of a child of `default/a`, or of `a`, without an owner.
fn marked(kind: &str, namespace: Option<&str>, parent: &str) -> DynamicObject {
    object(json!({
        "apiVersion": "v1", "kind": kind,
        "metadata": {
            "name": "x", "namespace": namespace,
            "labels": { CONTROLLER_LABEL: "shop" }, "annotations": { PARENT_ANNOTATION: parent },
        },
    }))
}

#[test]
fn a_retained_child_is_one_of_a_retained_kind_where_its_parent_may_have_children() {
    let (config, own, none) = (config(), parent(Some("default")), parent(None));
    let claim = |namespace| marked("PersistentVolumeClaim", namespace, "default/a");
    let retained = |parent: &DynamicObject, child: &DynamicObject| {
        retains(config.scope(), SecretProof::Key(None), parent, child)
    };
    assert!(retained(&own, &claim(Some("default"))));
    assert!(!retained(&own, &claim(Some("attacker"))));
    assert!(!retained(&own, &claim(None)));
    let pod = marked("Pod", Some("default"), "default/a");
    assert!(!retained(&own, &pod), "pods are deleted, and so have an owner");
    let map = marked("ConfigMap", Some("default"), "default/a");
    assert!(!retained(&own, &map), "the controller does not make any");
    let claim = |namespace: Option<&str>| marked("PersistentVolumeClaim", namespace, "a");
    assert!(retained(&none, &claim(Some("spare"))));
    assert!(!retained(&none, &claim(Some("default"))));
    let existing = json!(claim(Some("spare")));
    let child = json!({"apiVersion": "v1", "kind": "PersistentVolumeClaim", "metadata": {"name": "x", "namespace": "spare"}});
    assert!(plan_with(&config, &none, Some(&existing), &[child], &[]).is_ok());
}

#[test]
fn a_parent_owns_what_has_its_uid_and_the_label_both_where_it_may_have_children() {
    let config = config();
    let owns = |parent: &DynamicObject, namespace: Option<&str>, uid: &str, label: &str| {
        let mut child = marked("Pod", namespace, "default/a");
        child.labels_mut().insert(CONTROLLER_LABEL.into(), label.into());
        let owner = json!([{ "apiVersion": "example.com/v1", "kind": "Shop", "name": "a", "uid": uid, "controller": true }]);
        child.metadata.owner_references = serde_json::from_value(owner).unwrap();
        owns(config.scope(), parent, &child)
    };
    let (own, none) = (parent(Some("default")), parent(None));
    for (parent, namespace, uid, label, expected) in [
        (&own, Some("default"), "uid-a", "shop", true),
        (&own, Some("default"), "uid-b", "shop", false),
        (&own, Some("default"), "uid-a", "other", false),
        (&own, Some("attacker"), "uid-a", "shop", false),
        (&own, None, "uid-a", "shop", false),
        (&none, Some("spare"), "uid-a", "shop", true),
        (&none, None, "uid-a", "shop", true),
        (&none, Some("default"), "uid-a", "shop", false),
    ] {
        let found = owns(parent, namespace, uid, label);
        assert_eq!(found, expected, "{namespace:?} {uid} {label}");
    }
}

#[test]
fn generated_secrets_are_checked_and_carry_no_owner_unless_secrets_are_set_to_delete() {
    let secret = |length: u32, alphabet: Option<&str>| GeneratedSecret {
        name: "root".into(),
        entries: vec![operator_host_contract::GeneratedValue {
            key: "password".into(),
            length,
            alphabet: alphabet.map(str::to_owned),
        }],
    };
    let with = |config: &ControllerConfig, secret: GeneratedSecret| {
        plan_with(config, &parent(Some("default")), None, &[], &[secret])
    };
    let plan = with(&config(), secret(20, None)).unwrap();
    assert!(plan.secrets[0].body["metadata"].get("ownerReferences").is_none());
    assert_eq!(plan.keys().collect::<Vec<_>>(), [&plan.secrets[0].key]);
    let mut deleting = config();
    deleting.rules.generated = Removal::Delete;
    let plan = with(&deleting, secret(20, None)).unwrap();
    assert_eq!(
        plan.secrets[0].body["metadata"]["ownerReferences"][0]["uid"],
        "uid-a"
    );
    assert!(with(&config(), secret(7, None)).unwrap_err()[0].contains("from 8 to 1024"));
    assert!(with(&config(), secret(20, Some("aaa"))).unwrap_err()[0].contains("different characters"));
}

#[test]
fn a_child_names_its_parent_and_the_generation_of_it() {
    let mut shop = parent(Some("default"));
    shop.metadata.generation = Some(7);
    let plan = plan_with(&config(), &shop, None, &[pod("p")], &[]).unwrap();
    let child = object(plan.desired[0].body.clone());
    assert_eq!(made_at(&shop, &child), Some(7));
    shop.metadata.uid = Some("another".into());
    assert_eq!(made_at(&shop, &child), None);
    // A change of the spec that does not affect a child is no reason to write it.
    shop.metadata.uid = Some("uid-a".into());
    shop.metadata.generation = Some(8);
    let later = plan_with(&config(), &shop, None, &[pod("p")], &[]).unwrap();
    assert_eq!(later.desired[0].fingerprint, plan.desired[0].fingerprint);
}

#[test]
fn tokens_of_service_accounts_and_finalizers_are_refused_unless_they_are_allowed() {
    let secret = |more: Value| {
        let mut secret = json!({"apiVersion": "v1", "kind": "Secret", "metadata": {"name": "t"}});
        for (key, value) in more.as_object().unwrap() {
            secret[key] = value.clone();
        }
        secret
    };
    let annotated = json!({"name": "t", "annotations": {TOKEN_ANNOTATION: "admin"}});
    let mut held = pod("p");
    held["metadata"]["finalizers"] = json!(["example.com/held"]);
    let cases = [
        (
            secret(json!({"type": TOKEN_TYPE})),
            Allow::ServiceAccountTokens,
            "token of a ServiceAccount",
        ),
        (
            secret(json!({"metadata": annotated})),
            Allow::ServiceAccountTokens,
            "`serviceAccountTokens` under `allow`",
        ),
        (held, Allow::Finalizers, "`finalizers` under `allow`"),
    ];
    for (child, allow, words) in cases {
        refused(std::slice::from_ref(&child), words);
        let mut config = config();
        config.rules.allow = [allow].into();
        assert!(plan_with(&config, &parent(Some("default")), None, &[child], &[]).is_ok());
    }
    let mut empty = pod("p");
    empty["metadata"]["finalizers"] = json!([]);
    planned(&[empty, secret(json!({"type": "Opaque"}))]);
}

#[test]
fn a_child_that_could_not_be_read_again_is_refused_and_so_is_one_that_was_not_read() {
    let nested = |levels: usize| (0..levels).fold(json!(1), |value, _| json!([value]));
    let mut deep = pod("p");
    deep["spec"] = nested(120);
    planned(&[deep.clone()]);
    deep["spec"] = nested(121);
    refused(&[deep], "Pod default/p: it is nested deeper than 120 levels");
    let mut existing = json!({
        "apiVersion": "v1", "kind": "Pod", "spec": UNREAD, "metadata": {
            "name": "p", "namespace": "n", "labels": { CONTROLLER_LABEL: "shop" },
            "ownerReferences": [{
                "apiVersion": "example.com/v1", "kind": "Shop", "name": "a", "uid": "uid-a", "controller": true,
            }],
        },
    });
    let plan = |existing: &Value| plan_with(&config(), &parent(Some("n")), Some(existing), &[pod("p")], &[]);
    first_refusal(plan(&existing), "Pod n/p is nested deeper than 120 levels");
    // It is not compared, but created again when it is gone.
    existing["metadata"]["deletionTimestamp"] = "2026-01-01T00:00:00Z".into();
    assert!(plan(&existing).is_ok());
    // Whose it is matters more.
    existing["metadata"]["ownerReferences"] = json!([]);
    existing["metadata"]["labels"] = json!({});
    first_refusal(plan(&existing), "was not created by this host");
}

#[test]
fn a_name_that_would_lead_to_another_object_is_refused_by_its_place() {
    for name in "../../kube-system/secrets/x a?dryRun=All a%2fb .. a#b".split(' ') {
        refused(&[pod("p"), pod(name)], "children[1]: ");
        let mut elsewhere = pod("p");
        elsewhere["metadata"]["namespace"] = name.into();
        refused(&[elsewhere], "cannot be its `metadata.namespace`");
    }
    secret_refused("a/b", "generate: \"a/b\" cannot be its name");
}

#[test]
fn a_name_that_the_api_server_refuses_is_refused_before_any_request() {
    refused(
        &[pod("p"), pod("Web_0")],
        "children[1]: \"Web_0\" cannot be its `metadata.name`: the API server accepts only at most 253",
    );
    secret_refused(
        "Root",
        "generate: \"Root\" cannot be its name: the API server accepts only",
    );
}

fn pod_after(name: &str, after: &str) -> Value {
    let mut pod = pod(name);
    pod["metadata"]["annotations"] = json!({ AFTER_ANNOTATION: after });
    pod
}

#[test]
fn what_comes_before_a_child_is_found_among_children_secrets_and_kept_children() {
    let generate = [generated("root")];
    let children = [pod("first"), pod_after("last", "Pod/first, Secret/default/root")];
    let parent = parent(Some("default"));
    let refusals = plan_with(&config(), &parent, None, &children, &generate).unwrap_err();
    assert!(
        refusals.iter().all(|refusal| !refusal.contains("after")),
        "{refusals:?}"
    );

    let plan = planned(&[pod("first"), pod_after("last", "Pod/first")]);
    assert_eq!(plan.desired[1].after, [plan.desired[0].key.clone()]);
}

/// Regression: a kubelet ended the pod during the call, and the answer that came after it was refused.
#[test]
fn a_child_that_the_plugin_was_shown_may_be_named_although_it_has_just_gone() {
    let (config, parent) = (config(), parent(Some("default")));
    let mut old = pod("old");
    old["metadata"]["namespace"] = "default".into();
    let shown = [Arc::new(object(old))];
    let after_old = |shown: &[Arc<DynamicObject>], keep: &[ObjectRef]| {
        let policy = Policy {
            shown,
            ..policy(&config, &parent, &|_| None)
        };
        let answer = Response {
            keep: keep.to_vec(),
            ..answer(&[pod_after("last", "Pod/old")], &[])
        };
        plan(&policy, &answer).map(|plan| plan.desired[0].after.len())
    };
    let kept = ObjectRef {
        api_version: "v1".into(),
        kind: "Pod".into(),
        namespace: None,
        name: "old".into(),
    };
    assert_eq!(after_old(&shown, &[]), Ok(0), "it is not waited for");
    assert_eq!(after_old(&shown, std::slice::from_ref(&kept)), Ok(1));
    for keep in [&[][..], &[kept]] {
        let refused = after_old(&[], keep).unwrap_err();
        assert!(
            refused[0]
                .to_string()
                .contains("names Pod/old, which is not among"),
            "{refused:?}"
        );
    }
}

#[test]
fn children_cannot_wait_for_each_other() {
    refused(
        &[pod_after("web", "Pod/web")],
        "Pod default/web waits for Pod default/web",
    );
    let circle = [
        pod_after("a", "Pod/b"),
        pod_after("b", "Pod/c"),
        pod_after("c", "Pod/b, Pod/d"),
        pod("d"),
    ];
    refused(
        &circle,
        "makes a circle: Pod default/b waits for Pod default/c waits for Pod default/b",
    );
}

#[test]
fn a_child_says_itself_how_it_is_changed_and_removed() {
    let says = |mut child: Value, annotations: Value| {
        child["metadata"]["annotations"] = annotations;
        child
    };
    let plan = planned(&[
        pod("z"),
        says(
            pod("a"),
            json!({ UPDATE_ANNOTATION: "replace", ON_REMOVAL_ANNOTATION: "delete" }),
        ),
        says(pod("b"), json!({ ON_REMOVAL_ANNOTATION: "retain" })),
    ]);
    let owners = |at: usize| !plan.desired[at].body["metadata"]["ownerReferences"].is_null();
    assert!(plan.desired[0].update.replace && owners(0));
    assert!(!owners(1), "a retained child has no owner");
    assert_eq!((plan.desired[0].place, plan.desired[2].place), (1, 0));
    for (child, annotations, expected) in [
        (
            pod("p"),
            json!({ UPDATE_ANNOTATION: "replac" }),
            "none of its words",
        ),
        (
            claim(),
            json!({ UPDATE_ANNOTATION: "replace" }),
            "are never replaced",
        ),
        (
            pod("p"),
            json!({ UPDATE_ANNOTATION: "replace", ON_REMOVAL_ANNOTATION: "orphan" }),
            "are never replaced",
        ),
        (
            claim(),
            json!({ ON_REMOVAL_ANNOTATION: "delete" }),
            "the configuration retains the kind",
        ),
    ] {
        refused(&[says(child, annotations)], expected);
    }
    let mut config = config();
    config
        .rules
        .children
        .insert(Kind::new("v1", "PersistentVolumeClaim"), Removal::Delete);
    let replaced = [says(claim(), json!({ UPDATE_ANNOTATION: "replace" }))];
    let plan = plan_with(&config, &parent(Some("default")), None, &replaced, &[]);
    first_refusal(plan, "are never replaced");
}
