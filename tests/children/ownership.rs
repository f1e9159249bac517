//! Ownership of objects: which are pruned, kept, retained or adopted.

use crate::support::prelude::*;

const CLAIM: &str = "v1/PersistentVolumeClaim";
const CLAIMS: &str = "{apiVersion: v1, kind: PersistentVolumeClaim}";

fn children(children: &[Value]) -> Value {
    json!({"response": {"children": children, "status": {"names": "$names"}}})
}

fn claim(name: &str) -> Value {
    json!({
        "apiVersion": "v1", "kind": "PersistentVolumeClaim", "metadata": {"name": name},
        "spec": {"accessModes": ["ReadWriteOnce"], "resources": {"requests": {"storage": "1Gi"}}},
    })
}

fn sees(names: &[&str]) -> impl Fn(&DynamicObject) -> bool + use<> {
    let names = json!(names);
    move |puppet| puppet.data["status"]["names"] == names
}

#[tokio::test]
async fn only_what_a_parent_owns_is_pruned_and_a_copy_of_its_labels_is_not() {
    let (scenario, _host) = puppets("prune-proof", "").await;
    scenario
        .ready_with("p", children(&[config_map("a", ""), config_map("b", "")]))
        .await;
    // A user takes a child as a template for their own object, with or without another owner.
    let child = scenario.get(CONFIG_MAP, "a").await.unwrap();
    let keeps = json!({"response": {"keep": [{"apiVersion": "v1", "kind": "ConfigMap", "name": "others"}]}});
    let other = scenario.puppet("other", keeps).await;
    let owner = json!([{
        "apiVersion": "test.operator-host.dev/v1", "kind": "Puppet", "name": "other",
        "uid": other.metadata.uid, "controller": true,
    }]);
    for (name, owners) in [("copy", json!([])), ("others", owner)] {
        let metadata = json!({
            "name": name, "labels": child.metadata.labels, "annotations": child.metadata.annotations,
            "ownerReferences": owners,
        });
        let copy = json!({"apiVersion": "v1", "kind": "ConfigMap", "metadata": metadata});
        scenario.apply(&copy.to_string()).await;
    }
    scenario.puppet("p", children(&[config_map("c", "")])).await;
    scenario.until_gone(CONFIG_MAP, "a").await;
    scenario.until_gone(CONFIG_MAP, "b").await;
    scenario.until_ready("p").await;
    let names = scenario.names(CONFIG_MAP).await;
    for name in ["copy", "others", "c"] {
        assert!(names.iter().any(|n| n == name), "{name} is not among {names:?}");
    }
}

#[tokio::test]
async fn a_child_that_is_kept_is_neither_applied_nor_deleted() {
    let (scenario, _host) = puppets("keep", "").await;
    scenario
        .ready_with("p", children(&[config_map("a", "plugin"), config_map("b", "")]))
        .await;
    let mut spec = children(&[config_map("b", "")]);
    spec["response"]["keep"] = json!([{"apiVersion": "v1", "kind": "ConfigMap", "name": "a"}]);
    scenario.ready_with("p", spec).await;
    let changed = scenario.edit_text("a", "user").await;
    // The drift of the other child is corrected, so the host has seen the first one by then.
    scenario.edit_text("b", "user").await;
    scenario.until_text("b", "").await;
    assert_eq!(
        Some(scenario.version(CONFIG_MAP, "a").await),
        changed.metadata.resource_version
    );
    scenario.puppet("p", children(&[config_map("b", "")])).await;
    scenario.until_gone(CONFIG_MAP, "a").await;
}

#[tokio::test]
async fn claims_outlive_scale_down_and_parent_and_are_taken_up_again() {
    let kinds = format!("children: [{{apiVersion: v1, kind: ConfigMap}}, {CLAIMS}]");
    let (scenario, _host) = puppets("retain", &kinds).await;
    scenario
        .ready_with("p", children(&[claim("c-0"), claim("c-1"), config_map("a", "")]))
        .await;
    let first = scenario.uid(CLAIM, "c-1").await;
    scenario.puppet("p", children(&[claim("c-0")])).await;
    scenario.until_gone(CONFIG_MAP, "a").await;
    scenario.until_ready("p").await;
    assert_eq!(scenario.uid(CLAIM, "c-1").await, first);

    // The garbage collector deletes the parent's other children, but not these.
    scenario
        .puppet("p", children(&[claim("c-0"), config_map("b", "")]))
        .await;
    scenario.until_there(CONFIG_MAP, "b").await;
    scenario.remove(PUPPET, "p").await;
    scenario.until_gone(CONFIG_MAP, "b").await;
    assert_eq!(scenario.names(CLAIM).await, ["c-0", "c-1"]);

    // Another parent does not get them; one of the same name does.
    scenario.puppet("q", children(&[claim("c-1")])).await;
    scenario
        .until_stalled("q", "ChildRefused: c-1 … belongs to retain/p")
        .await;
    scenario
        .puppet("p", children(&[claim("c-0"), claim("c-1")]))
        .await;
    scenario
        .until(PUPPET, "p", "both claims seen", sees(&["c-0", "c-1"]))
        .await;
    assert_eq!(scenario.uid(CLAIM, "c-1").await, first);
}

fn on_removal(word: &str, mut child: Value) -> Value {
    child["metadata"]["annotations"] = json!({ "operator-host.dev/on-removal": word });
    child
}

#[tokio::test]
async fn a_child_stays_or_goes_as_it_says_itself() {
    let (scenario, _host) = puppets("on-removal", "").await;
    let maps = [
        on_removal("retain", config_map("retained", "")),
        on_removal("orphan", config_map("orphan", "")),
        on_removal("delete", config_map("deleted", "")),
        config_map("plain", ""),
    ];
    scenario.ready_wants("p", &maps).await;
    let uids = async || {
        let retained = scenario.uid(CONFIG_MAP, "retained").await;
        [retained, scenario.uid(CONFIG_MAP, "orphan").await]
    };
    let before = uids().await;
    // It is no longer wanted, and wanted again: by the same parent, both are taken up.
    scenario.wants("p", &[]).await;
    scenario.until_gone(CONFIG_MAP, "deleted").await;
    scenario.until_gone(CONFIG_MAP, "plain").await;
    assert_eq!(uids().await, before);
    scenario.ready_wants("p", &maps).await;
    assert_eq!(uids().await, before);

    // A wrong word changes nothing.
    let mut wrong = maps.clone();
    wrong[0] = on_removal("retian", config_map("retained", "new"));
    scenario.wants("p", &wrong[..1]).await;
    let says = "ChildRefused: ConfigMap on-removal/retained … \"retian\" … delete, retain, orphan";
    scenario.until_stalled("p", says).await;
    assert_eq!(scenario.text_of("retained").await, "");
    assert!(scenario.get(CONFIG_MAP, "plain").await.is_some());

    // The parent goes, and one of its name takes up what is retained, and not the orphan.
    scenario.ready_wants("p", &maps).await;
    scenario.remove(PUPPET, "p").await;
    scenario.until_gone(CONFIG_MAP, "deleted").await;
    scenario.until_gone(CONFIG_MAP, "plain").await;
    assert_eq!(uids().await, before);
    scenario.ready_wants("p", &maps[..1]).await;
    scenario.wants("p", &maps[..2]).await;
    scenario.until_stalled("p", "ChildRefused: orphan").await;
    assert_eq!(uids().await, before);

    // Without the word it goes with the parent again.
    scenario.ready_wants("p", &[config_map("retained", "")]).await;
    scenario.wants("p", &[]).await;
    scenario.until_gone(CONFIG_MAP, "retained").await;
}

#[tokio::test]
async fn a_single_claim_is_retained_and_used_again_and_none_is_deleted_that_the_configuration_retains() {
    let (scenario, host) = puppets("on-removal-claims", &format!("children: [{CLAIMS}]")).await;
    scenario.ready_with("p", children(&[claim("a")])).await;
    scenario.wants("p", &[on_removal("delete", claim("a"))]).await;
    scenario
        .until_stalled(
            "p",
            "ChildRefused: PersistentVolumeClaim on-removal-claims/a … set `onRemoval: delete`",
        )
        .await;
    assert!(host.stop().await.success());

    let kinds = format!("children: [{}]", CLAIMS.replace('}', ", onRemoval: delete}"));
    let _host = scenario.start(&controller("puppet.wasm", &kinds));
    let claims = [on_removal("retain", claim("a")), claim("b")];
    scenario.ready_wants("p", &claims).await;
    let uid = scenario.uid(CLAIM, "a").await;
    scenario.remove(PUPPET, "p").await;
    scenario.until_gone(CLAIM, "b").await;
    scenario.ready_wants("p", &claims).await;
    assert_eq!(scenario.uid(CLAIM, "a").await, uid);
    scenario.wants("p", &[]).await;
    scenario.until_gone(CLAIM, "b").await;
    scenario.until_ready("p").await;
    assert_eq!(scenario.uid(CLAIM, "a").await, uid);
}

#[tokio::test]
async fn an_object_without_an_owner_is_adopted_only_where_that_is_switched_on() {
    let scenario = Scenario::new("adopt").await;
    let metadata = json!({"name": "a", "labels": {"team": "blue"}});
    let users = json!({"apiVersion": "v1", "kind": "ConfigMap", "metadata": metadata, "data": {"more": "x"}});
    scenario.apply(&users.to_string()).await;
    let host = scenario.start(&controller("puppet.wasm", ""));
    scenario.puppet("p", children(&[config_map("a", "plugin")])).await;
    scenario.until_stalled("p", "ChildRefused").await;
    assert_eq!(host.stop().await.code(), Some(0));
    let _host = scenario.start(&controller("puppet.wasm", "adopt: true"));
    let puppet = scenario.until_ready("p").await;
    let child = scenario.get(CONFIG_MAP, "a").await.unwrap();
    // Labels and fields that the plugin does not set stay; a field that both set would be a conflict (see `refused`).
    assert_eq!(child.labels()["team"], "blue");
    assert_eq!(child.data["data"], json!({"text": "plugin", "more": "x"}));
    assert_eq!(
        Some(&child.metadata.owner_references.unwrap()[0].uid),
        puppet.metadata.uid.as_ref()
    );
}

/// Regression: nothing but the back-off delay, which can be half an hour, brought the parent back.
#[tokio::test]
async fn a_child_is_made_as_soon_as_the_object_that_was_in_its_way_or_could_not_be_adopted_is_deleted() {
    for (name, adopt, says) in [
        ("in-the-way", false, "Stalled=True ChildRefused"),
        ("adopt-again", true, "Reconciling=True ApplyFailed"),
    ] {
        let scenario = Scenario::new(name).await;
        scenario.apply(&config_map("a", "users").to_string()).await;
        let more = format!("adopt: {adopt}\nbackoff: {{initial: 30m, max: 30m}}");
        let _host = scenario.start(&controller("puppet.wasm", &more));
        scenario.puppet("p", children(&[config_map("a", "plugin")])).await;
        scenario.until_told("p", says).await;
        scenario.delete(CONFIG_MAP, "a").await;
        scenario.until_ready("p").await;
        let child = scenario.get(CONFIG_MAP, "a").await.unwrap();
        assert_eq!(child.data["data"], json!({"text": "plugin"}));
    }
}

#[tokio::test]
async fn a_new_plugin_version_that_answers_the_same_writes_nothing() {
    let scenario = Scenario::new("same-answers").await;
    let mut bytes = std::fs::read(plugin("puppet")).unwrap();
    let file = scenario.file("puppet.wasm", &bytes);
    let controllers = controller(&file.display().to_string(), "");
    let host = scenario.start(&controllers);
    scenario.ready_with("p", children(&[config_map("a", "1")])).await;
    host.until_reconciles("same-answers/p", 1).await;
    let reconciles = host.reconciles("same-answers/p");
    assert_eq!(host.stop().await.code(), Some(0));
    let (child, parent) = (
        scenario.version(CONFIG_MAP, "a").await,
        scenario.version(PUPPET, "p").await,
    );
    let digest = |child: &DynamicObject| {
        child.metadata.annotations.clone().unwrap()["operator-host.dev/provenance"].clone()
    };
    let first = digest(&scenario.get(CONFIG_MAP, "a").await.unwrap());

    // A custom section: the same code in another file.
    bytes.extend([0, 2, 1, b'x']);
    scenario.file("puppet.wasm", &bytes);
    let host = scenario.start(&controllers);
    host.until_reconciles("same-answers/p", reconciles + 1).await;
    assert_eq!(scenario.version(CONFIG_MAP, "a").await, child);
    assert_eq!(scenario.version(PUPPET, "p").await, parent);
    // The next change adds the digest of the version that made it.
    scenario.puppet("p", children(&[config_map("a", "2")])).await;
    let changed = scenario.until_text("a", "2").await;
    assert_ne!(digest(&changed), first);
}

/// Regression: the API server omits zero values, and each child was written again after every start.
#[tokio::test]
async fn a_restart_writes_nothing_though_the_plugin_gives_zero_values() {
    let kinds = "children: [{apiVersion: apps/v1, kind: Deployment}]";
    let (scenario, host) = puppets("zeros", kinds).await;
    let pod = json!({
        "hostNetwork": false, "hostPID": false, "schedulerName": "",
        "containers": [{
            "name": "c", "image": "i", "stdin": false, "workingDir": "",
            "securityContext": {"allowPrivilegeEscalation": false}, "resources": {"requests": {"cpu": "1000m"}},
        }],
    });
    let mut zeros = deployment("d", &pod);
    for (field, zero) in [
        ("replicas", json!(0)),
        ("minReadySeconds", json!(0)),
        ("paused", json!(false)),
    ] {
        zeros["spec"][field] = zero;
    }
    scenario.ready_with("p", children(&[zeros])).await;
    assert_eq!(host.stop().await.code(), Some(0));
    let before = scenario.all_writes(cluster().await).await.len();
    // With a log of its own: the first host may have reconciled once more before it stopped.
    let host = scenario.start_named("again", &scenario.config(&controller("puppet.wasm", kinds)));
    host.until_reconciles("zeros/p", 1).await;
    let writes = scenario.all_writes(cluster().await).await;
    assert_eq!(writes.len(), before, "{:?}", &writes[before..]);
    // Fields that are not zero values are restored.
    let open = json!({"spec": {"template": {"spec": {"containers": [{"name": "c", "image": "i"}]}}}});
    scenario.patch("apps/v1/Deployment", "d", open).await;
    scenario
        .until("apps/v1/Deployment", "d", "closed again", |d| {
            d.data["spec"]["template"]["spec"]["containers"][0]["securityContext"]["allowPrivilegeEscalation"]
                == false
        })
        .await;
}
