//! A controller gets another name: it still owns everything that it created under the old one, including every
//! field.

use kube::core::DynamicObject;
use serde_json::json;

use crate::behind::refusing;
use crate::leaders::shared;
use crate::puppet::{CONFIG_MAP, PUPPET, config_map, controller};
use crate::support::{Scenario, cluster};

const SECRET: &str = "v1/Secret";
const KINDS: &str =
    "children: [{apiVersion: v1, kind: ConfigMap}, {apiVersion: v1, kind: Secret, onRemoval: retain}]";

fn named(name: &str, more: &str) -> String {
    controller("puppet.wasm", &format!("{KINDS}\n{more}"))
        .replace("name: puppet\n", &format!("name: {name}\n"))
}

/// Returns the field managers of an object.
pub(crate) fn managers(object: &DynamicObject) -> Vec<String> {
    let entries = object.metadata.managed_fields.iter().flatten();
    entries.filter_map(|entry| entry.manager.clone()).collect()
}

/// Waits until an object has the label of the new name, `marionette`.
async fn until_renamed(scenario: &Scenario, kind: &str, name: &str) -> DynamicObject {
    let is_new = |object: &DynamicObject| {
        object.metadata.labels.as_ref().unwrap()["operator-host.dev/controller"] == "marionette"
    };
    scenario
        .until(kind, name, "labelled with the new name", is_new)
        .await
}

#[tokio::test]
async fn a_renamed_controller_takes_over_without_conflicts_or_leftovers() {
    let scenario = Scenario::new("renamed").await;
    let secret =
        json!({"apiVersion": "v1", "kind": "Secret", "metadata": {"name": "s"}, "stringData": {"a": "b"}});
    let keep = json!([{"apiVersion": "v1", "kind": "ConfigMap", "name": "kept"}]);
    let entry = |key: &str| json!({"key": key, "length": 20});
    let generate = |entries: &[serde_json::Value]| json!([{"name": "g", "entries": entries}]);
    let spec = |data: serde_json::Value, children: &[serde_json::Value], status: serde_json::Value| {
        let mut a = config_map("a", "1");
        a["data"] = data;
        let children: Vec<_> = [a].into_iter().chain(children.iter().cloned()).collect();
        let generate = generate(&[entry("password")]);
        json!({"response": {"children": children, "keep": keep, "generate": generate, "status": status}})
    };
    let first = spec(
        json!({"x": "1", "y": "1"}),
        &[secret.clone(), config_map("kept", "1")],
        json!({"x": "1", "y": "1"}),
    );
    let host = scenario.start(&named("puppet", ""));
    scenario.puppet("p", first).await;
    scenario.until_ready("p").await;
    let second = spec(
        json!({"x": "1", "y": "1"}),
        std::slice::from_ref(&secret),
        json!({"x": "1", "y": "1"}),
    );
    scenario.puppet("p", second).await;
    let before = scenario.until_ready("p").await;
    assert_eq!(host.stop().await.code(), Some(0));
    let objects = [
        (CONFIG_MAP, "a"),
        (CONFIG_MAP, "kept"),
        (SECRET, "s"),
        (SECRET, "g"),
    ];
    let drawn = scenario.get(SECRET, "g").await.unwrap().data["data"]["password"].clone();
    let mut uids = Vec::new();
    for (kind, name) in objects {
        uids.push(scenario.get(kind, name).await.unwrap().metadata.uid);
    }

    let host = scenario.start(&named("marionette", "formerly: [puppet]"));
    for ((kind, name), uid) in objects.into_iter().zip(uids) {
        let object = until_renamed(&scenario, kind, name).await;
        assert_eq!(object.metadata.uid, uid);
        let managers = managers(&object);
        assert!(
            !managers.contains(&"operator-host/puppet".to_owned()),
            "{name}: {managers:?}"
        );
    }
    let new_finalizer = |p: &DynamicObject| {
        p.metadata.finalizers.as_deref() == Some(&["operator-host.dev/marionette".to_owned()])
    };
    let after = scenario
        .until(PUPPET, "p", "the new finalizer alone", new_finalizer)
        .await;
    assert_eq!(after.metadata.uid, before.metadata.uid);
    assert!(!managers(&after).contains(&"operator-host/puppet".to_owned()));
    // A field that the plugin no longer sets is removed, which would fail if the old name still owned it.
    let mut third = spec(json!({"x": "1"}), &[secret], json!({"x": "1"}));
    third["response"]["generate"] = generate(&[entry("password"), entry("token")]);
    scenario.puppet("p", third).await;
    let after = scenario.until_ready("p").await;
    assert_eq!(after.data["status"].get("y"), None);
    // Generated Secrets are still proved: a value is added, and none is replaced.
    let generated = scenario.get(SECRET, "g").await.unwrap().data["data"].clone();
    assert!(drawn.is_string() && generated["password"] == drawn && generated["token"].is_string());
    assert_eq!(
        scenario.get(CONFIG_MAP, "a").await.unwrap().data["data"],
        json!({"x": "1"})
    );
    assert_eq!(host.stop().await.code(), Some(0));

    // Nothing is left of the old name.
    let _host = scenario.start(&named("marionette", ""));
    let writes = scenario.all_writes(cluster().await).await;
    assert!(writes.iter().all(|write| write.verb != "delete"), "{writes:?}");
    scenario.puppet("p", json!({"response": {}})).await;
    scenario.until_gone(CONFIG_MAP, "a").await;
    scenario.until_gone(CONFIG_MAP, "kept").await;
    scenario.delete(PUPPET, "p").await;
    scenario.until_gone(PUPPET, "p").await;
    assert!(scenario.get(SECRET, "s").await.is_some());
}

#[tokio::test]
async fn replicas_under_the_old_and_the_new_name_share_one_lease() {
    let scenario = Scenario::new("renamed-lease").await;
    let times = ["3s", "2s", "500ms"];
    let old = shared(&scenario, "per-controller", times, &named("puppet", ""));
    let text = std::fs::read_to_string(&old).unwrap();
    let old = scenario.file("old.yaml", text);
    let first = scenario.start_named("first", &old);
    let spec = |text: &str| json!({"response": {"children": [config_map("a", text)]}});
    scenario.puppet("p", spec("1")).await;
    scenario.until_ready("p").await;
    let new = shared(
        &scenario,
        "per-controller",
        times,
        &named("marionette", "formerly: [puppet]"),
    );
    let second = scenario.start_named("second", &new);
    second.until_log(&["controller started"]).await;
    scenario.puppet("p", spec("2")).await;
    scenario.until_ready("p").await;
    assert_eq!(second.reconciles("renamed-lease/p"), 0, "the first leads");
    first.terminate();
    second.until_reconciles("renamed-lease/p", 1).await;
    until_renamed(&scenario, CONFIG_MAP, "a").await;
}

/// Regression: the API server refused the finalizer of the new name, so that the parent was never cleaned up.
#[tokio::test]
async fn a_parent_that_was_deleted_under_a_former_name_is_cleaned_up_and_released() {
    let scenario = Scenario::new("renamed-late").await;
    let host = scenario.start(&named("puppet", ""));
    let child = config_map("a", "1");
    let spec = json!({"response": {"children": [child]}, "cleanup": {"done": false, "children": [child]}});
    scenario.puppet("p", spec).await;
    scenario.until_ready("p").await;
    scenario.delete(PUPPET, "p").await;
    scenario
        .until_condition(PUPPET, "p", "Reconciling", "True", "CleaningUp")
        .await;
    assert_eq!(host.stop().await.code(), Some(0));

    let host = scenario.start(&named("marionette", "formerly: [puppet]"));
    until_renamed(&scenario, CONFIG_MAP, "a").await;
    let message = scenario
        .until_condition(PUPPET, "p", "Reconciling", "True", "CleaningUp")
        .await;
    assert!(
        message.contains("keeps the finalizer operator-host.dev/puppet until"),
        "{message}"
    );
    let p = scenario.get(PUPPET, "p").await.unwrap();
    assert!(!managers(&p).contains(&"operator-host/puppet".to_owned()));
    scenario
        .patch(PUPPET, "p", json!({"spec": {"cleanup": {"done": true}}}))
        .await;
    scenario.until_gone(PUPPET, "p").await;
    assert_eq!(host.stop().await.code(), Some(0));
}

/// Regression: a host under the old name that ran a little longer gave the parent its finalizer back, and nobody removed
/// it again.
#[tokio::test]
async fn a_former_finalizer_that_comes_back_is_removed_again() {
    let scenario = Scenario::new("renamed-again").await;
    let host = scenario.start(&named("marionette", "formerly: [puppet]"));
    let spec = json!({"response": {"children": [config_map("a", "1")]}});
    scenario.puppet("p", spec).await;
    scenario.until_ready("p").await;
    for given in [
        json!(["operator-host.dev/marionette", "operator-host.dev/puppet"]),
        json!(["operator-host.dev/puppet"]),
    ] {
        scenario
            .patch(PUPPET, "p", json!({"metadata": {"finalizers": given}}))
            .await;
        let is_new = |p: &DynamicObject| {
            p.metadata.finalizers == Some(vec!["operator-host.dev/marionette".to_owned()])
        };
        scenario
            .until(PUPPET, "p", "with the new finalizer only", is_new)
            .await;
    }
    scenario.delete(PUPPET, "p").await;
    scenario.until_gone(PUPPET, "p").await;
    assert_eq!(host.stop().await.code(), Some(0));
}

/// Regression: a child that nobody may change kept its parent for ever.
#[tokio::test]
async fn a_child_that_cannot_be_handed_over_does_not_keep_its_parent_beyond_the_time_limit() {
    let scenario = Scenario::new("renamed-limit").await;
    let host = scenario.start(&named("puppet", ""));
    let spec = json!({"response": {"children": [config_map("a", "1")]}, "cleanup": {"done": true}});
    scenario.puppet("p", spec).await;
    scenario.until_ready("p").await;
    assert_eq!(host.stop().await.code(), Some(0));
    let config = named("marionette", "formerly: [puppet]\nfinalizer: {releaseAfter: 1s}");
    let (_proxy, _host) = refusing(&scenario, "/configmaps/a?", &config).await;
    scenario.delete(PUPPET, "p").await;
    scenario.until_gone(PUPPET, "p").await;
    let note = scenario.until_event("p", "Warning", "CleanupAbandoned").await;
    assert!(note.contains("ConfigMap renamed-limit/a"), "{note}");
}
