//! A spec that the plugin finds invalid: what the last valid one wanted is kept, and the status tells the truth about
//! it.

use kube::core::DynamicObject;
use serde_json::{Value, json};

use crate::puppet::{CONFIG_MAP, FORMS, PUPPET, config_map, controller, is_true};
use crate::support::{Scenario, condition};

fn valid(children: &[Value]) -> Value {
    json!({"response": {
        "children": children,
        "status": {"names": "$names", "texts": "$texts"},
        "conditions": [{"type": "Backed", "status": "True", "reason": "Nightly", "message": "m"}],
        "needs": [{"id": "n", "apiVersion": "v1", "kind": "ConfigMap", "name": "related"}],
    }})
}

/// A spec that wants something else, too, and is invalid.
fn invalid() -> Value {
    json!({"response": {"children": []}, "failure": {"invalid": {"message": "size: 3 is under 5"}}})
}

fn shows(names: &[&str], text: &str) -> impl Fn(&DynamicObject) -> bool {
    let (names, texts) = (json!(names), json!({"n": [text]}));
    move |puppet| {
        let status = &puppet.data["status"];
        status["names"] == names && status["texts"] == texts && is_true(puppet, "Stalled")
    }
}

/// Regression: a child that was gone stayed away, and the status still counted it.
#[tokio::test]
async fn the_children_of_the_last_valid_spec_are_kept_while_the_spec_is_invalid() {
    for (form, file) in FORMS {
        let scenario = Scenario::new(&format!("last-valid-{form}")).await;
        let host = scenario.start(&controller(file, "reads: [{apiVersion: v1, kind: ConfigMap}]"));
        scenario.apply(&config_map("related", "1").to_string()).await;
        let (a, b) = (config_map("a", "1"), config_map("b", "1"));
        scenario.puppet("p", valid(&[a.clone(), b])).await;
        scenario.until_ready("p").await;
        scenario.puppet("p", invalid()).await;
        assert_eq!(
            scenario.until_stalled("p", "InvalidSpec").await,
            "size: 3 is under 5"
        );

        let before = scenario.get(CONFIG_MAP, "a").await.unwrap().metadata.uid;
        scenario.delete(CONFIG_MAP, "a").await;
        let is_new = |child: &DynamicObject| child.metadata.uid != before;
        scenario.until(CONFIG_MAP, "a", "created again", is_new).await;
        scenario
            .patch(CONFIG_MAP, "b", json!({"data": {"text": "changed"}}))
            .await;
        let is_right = |child: &DynamicObject| child.data["data"]["text"] == "1";
        scenario.until(CONFIG_MAP, "b", "repaired", is_right).await;
        scenario
            .patch(CONFIG_MAP, "related", json!({"data": {"text": "2"}}))
            .await;
        let puppet = scenario
            .until(PUPPET, "p", "up to date", shows(&["a", "b"], "2"))
            .await;
        for (type_, status) in [("Ready", "False"), ("Synced", "False"), ("Backed", "True")] {
            assert_eq!(condition(&puppet, type_).unwrap()["status"], status, "{puppet:?}");
        }
        let generation = puppet.metadata.generation;
        assert_eq!(puppet.data["status"]["observedGeneration"].as_i64(), generation);

        scenario.puppet("p", valid(&[a])).await;
        scenario.until_ready("p").await;
        scenario.until_gone(CONFIG_MAP, "b").await;
        assert_eq!(host.stop().await.code(), Some(0));
    }
}

#[tokio::test]
async fn a_child_of_the_last_valid_spec_that_cannot_be_created_is_named_beside_the_invalid_spec() {
    let scenario = Scenario::new("last-valid-refused").await;
    let _host = scenario.start(&controller(
        "puppet.wasm",
        "reads: [{apiVersion: v1, kind: ConfigMap}]",
    ));
    scenario.apply(&config_map("related", "1").to_string()).await;
    scenario.puppet("p", valid(&[config_map("a", "1")])).await;
    scenario.until_ready("p").await;
    scenario.puppet("p", invalid()).await;
    scenario.until_stalled("p", "InvalidSpec").await;
    // Somebody else takes the child's place.
    scenario
        .patch(CONFIG_MAP, "a", json!({"metadata": {"ownerReferences": null}}))
        .await;
    let names_it = |puppet: &DynamicObject| {
        let stalled = condition(puppet, "Stalled");
        stalled
            .and_then(|stalled| stalled["message"].as_str())
            .is_some_and(|message| {
                message.starts_with(
                    "size: 3 is under 5; the children of the last valid spec cannot be kept: ConfigMap ",
                )
            })
    };
    scenario.until(PUPPET, "p", "told", names_it).await;
    scenario.delete(CONFIG_MAP, "a").await;
    scenario.until(CONFIG_MAP, "a", "created again", |_| true).await;
    scenario
        .until(PUPPET, "p", "up to date", shows(&["a"], "1"))
        .await;
}

/// The last valid spec is in no object of the cluster.
#[tokio::test]
async fn a_host_that_has_just_started_changes_nothing_until_the_spec_is_valid() {
    let scenario = Scenario::new("last-valid-unknown").await;
    let config = controller("puppet.wasm", "reads: [{apiVersion: v1, kind: ConfigMap}]");
    let host = scenario.start(&config);
    scenario.apply(&config_map("related", "1").to_string()).await;
    scenario.puppet("p", valid(&[config_map("a", "1")])).await;
    scenario.until_ready("p").await;
    scenario.puppet("p", invalid()).await;
    scenario.until_stalled("p", "InvalidSpec").await;
    let parent = "last-valid-unknown/p";
    let before = host.reconciles(parent);
    assert_eq!(host.stop().await.code(), Some(0));

    let host = scenario.start(&config);
    host.until_reconciles(parent, before + 1).await;
    let before = host.reconciles(parent);
    scenario.delete(CONFIG_MAP, "a").await;
    host.until_reconciles(parent, before + 1).await;
    assert!(scenario.get(CONFIG_MAP, "a").await.is_none());
    scenario.puppet("p", valid(&[config_map("a", "1")])).await;
    scenario.until_ready("p").await;
    scenario.until(CONFIG_MAP, "a", "created again", |_| true).await;
}

#[tokio::test]
async fn a_failure_shows_its_status_and_conditions_and_changes_no_child() {
    for (form, file) in FORMS {
        let scenario = Scenario::new(&format!("failure-status-{form}")).await;
        let host = scenario.start(&controller(file, "reads: [{apiVersion: v1, kind: ConfigMap}]"));
        scenario.puppet("p", valid(&[config_map("a", "1")])).await;
        scenario.until_ready("p").await;
        for (failure, shown) in [("invalid", 3), ("retry", 4)] {
            let failure = json!({ failure: {
                "message": "it failed", "status": {"count": shown},
                "conditions": [
                    {"type": "Failing", "status": "True", "reason": "R", "message": "m"},
                    {"type": "Ready", "status": "True", "reason": "R", "message": "forged"},
                ],
            } });
            scenario.puppet("p", json!({ "failure": failure })).await;
            let puppet = scenario
                .until(PUPPET, "p", "shows the failure", |puppet| {
                    puppet.data["status"]["count"] == shown
                })
                .await;
            assert_eq!(puppet.data["status"]["names"], Value::Null);
            for (type_, status) in [("Ready", "False"), ("Failing", "True"), ("Backed", "True")] {
                assert_eq!(condition(&puppet, type_).unwrap()["status"], status, "{puppet:?}");
            }
            assert!(scenario.get(CONFIG_MAP, "a").await.is_some());
        }
        // A status that the API server rejects does not hide the failure.
        let wrong = json!({"invalid": {"message": "it failed again", "status": {"count": "many"}}});
        scenario.puppet("p", json!({ "failure": wrong })).await;
        assert_eq!(
            scenario.until_stalled("p", "InvalidSpec").await,
            "it failed again"
        );
        host.until_log(&[
            "the status that the plugin gave with its failure was not written",
            "status.count",
        ])
        .await;

        scenario.puppet("p", valid(&[config_map("a", "1")])).await;
        let puppet = scenario.until_ready("p").await;
        assert_eq!(puppet.data["status"]["count"], Value::Null);
        assert!(condition(&puppet, "Failing").is_none(), "{puppet:?}");
        assert_eq!(host.stop().await.code(), Some(0));
    }
}
