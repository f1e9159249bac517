//! A spec that the plugin finds invalid: nothing changes until it is valid.

use crate::support::prelude::*;

/// The variant of the puppet that validates.
const VALIDATES: u8 = 7;

fn valid(children: &[Value]) -> Value {
    json!({"response": {
        "children": children,
        "status": {"names": "$names", "texts": "$texts"},
        "conditions": [{"type": "Backed", "status": "True", "reason": "Nightly", "message": "m"}],
        "needs": [{"id": "n", "apiVersion": "v1", "kind": "ConfigMap", "name": "related"}],
    }})
}

/// A spec that wants something else, too, and is invalid, as `validate` says.
fn invalid() -> Value {
    json!({
        "response": {"children": []},
        "invalid": [
            {"path": "spec.size", "message": "3 is less than 5"},
            {"path": "spec.text", "message": "is missing"},
        ],
    })
}

/// Without a webhook, or past it, an invalid spec is stored. It changes nothing, also after a restart, when nobody knows
/// any more what was valid.
#[tokio::test]
async fn an_invalid_spec_changes_nothing_until_it_is_valid() {
    for (form, file) in FORMS {
        let scenario = Scenario::new(&format!("invalid-spec-{form}")).await;
        let plugin = scenario.file("plugin.wasm", variant_of(file, VALIDATES));
        let config = controller(
            plugin.to_str().unwrap(),
            "reads: [{apiVersion: v1, kind: ConfigMap}]",
        );
        let host = scenario.start(&config);
        scenario.apply(&config_map("related", "1").to_string()).await;
        let (a, b) = (config_map("a", "1"), config_map("b", "1"));
        let ready = scenario.ready_with("p", valid(&[a.clone(), b])).await;
        scenario.puppet("p", invalid()).await;
        let message = "[spec.size: 3 is less than 5, spec.text: is missing]";
        assert_eq!(scenario.until_stalled("p", "InvalidSpec").await, message);
        assert_eq!(scenario.until_event("p", "Warning InvalidSpec").await, message);
        let puppet = scenario.get(PUPPET, "p").await.unwrap();
        assert_eq!(puppet.data["status"]["names"], ready.data["status"]["names"]);
        for (type_, status) in [("Ready", "False"), ("Synced", "False"), ("Backed", "True")] {
            assert_eq!(condition(&puppet, type_).unwrap()["status"], status, "{puppet:?}");
        }
        let generation = puppet.metadata.generation;
        assert_eq!(puppet.data["status"]["observedGeneration"].as_i64(), generation);

        let parent = format!("{}/p", scenario.namespace);
        let before = host.reconciles(&parent);
        scenario.delete(CONFIG_MAP, "a").await;
        host.until_reconciles(&parent, before + 1).await;
        assert!(scenario.get(CONFIG_MAP, "a").await.is_none());
        assert_eq!(host.stop().await.code(), Some(0));
        let host = scenario.start(&config);
        host.until_reconciles(&parent, 1).await;
        assert!(scenario.get(CONFIG_MAP, "a").await.is_none());
        assert!(scenario.get(CONFIG_MAP, "b").await.is_some());

        scenario.ready_with("p", valid(&[a])).await;
        scenario.until_there(CONFIG_MAP, "a").await;
        scenario.until_gone(CONFIG_MAP, "b").await;
        assert_eq!(host.stop().await.code(), Some(0));
    }
}

/// What `reconcile` itself refuses stops the resource in the same way.
#[tokio::test]
async fn what_reconcile_calls_invalid_changes_no_child_and_is_looked_at_again_when_a_read_object_changes() {
    let (scenario, host) = puppets("invalid-reconcile", "reads: [{apiVersion: v1, kind: ConfigMap}]").await;
    scenario.apply(&config_map("related", "1").to_string()).await;
    scenario.ready_with("p", valid(&[config_map("a", "1")])).await;
    let refused = json!({"response": {}, "failure": {"invalid": {"message": "the class cannot change"}}});
    scenario.puppet("p", refused).await;
    let told = scenario.until_stalled("p", "InvalidSpec").await;
    assert_eq!(told, "the class cannot change");
    let parent = "invalid-reconcile/p";
    let before = host.reconciles(parent);
    scenario.edit_text("related", "2").await;
    host.until_reconciles(parent, before + 1).await;
    assert!(scenario.get(CONFIG_MAP, "a").await.is_some());
}

#[tokio::test]
async fn a_failure_shows_its_status_and_conditions_and_changes_no_child() {
    for (form, file) in FORMS {
        let scenario = Scenario::new(&format!("failure-status-{form}")).await;
        let host = scenario.start(&controller(file, "reads: [{apiVersion: v1, kind: ConfigMap}]"));
        scenario.ready_with("p", valid(&[config_map("a", "1")])).await;
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
        let expected = "it failed again";
        assert_eq!(scenario.until_stalled("p", "InvalidSpec").await, expected);
        host.until_log("the status that the plugin gave with its failure was not written … status.count")
            .await;

        let puppet = scenario.ready_with("p", valid(&[config_map("a", "1")])).await;
        assert_eq!(puppet.data["status"]["count"], Value::Null);
        assert!(condition(&puppet, "Failing").is_none(), "{puppet:?}");
        assert_eq!(host.stop().await.code(), Some(0));
    }
}
