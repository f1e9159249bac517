//! The end of a resource: the finalizer, and the plugin's last words before it is released.

use serde_json::json;

use crate::puppet::{CONFIG_MAP, FORMS, PUPPET, config_map, controller};
use crate::support::Scenario;

#[tokio::test]
async fn a_deleted_resource_waits_until_the_plugin_says_that_it_is_done() {
    for (form, file) in FORMS {
        let scenario = Scenario::new(&format!("cleanup-{form}")).await;
        let _host = scenario.start(&controller(file, ""));
        let spec = |done: bool| {
            json!({
                "response": {"children": [config_map("a", "1"), config_map("b", "1")]},
                "cleanup": {
                    "done": done,
                    "children": [config_map("farewell", "1")],
                    "status": {"phase": "Leaving", "left": "$count"},
                    "conditions": [{"type": "Ready", "status": "False", "reason": "Leaving", "message": "m"}],
                    "events": [{"type": "Normal", "reason": "Leaving", "message": "says goodbye"}],
                },
            })
        };
        let finalizers = ["operator-host.dev/puppet".to_owned()];
        scenario.puppet("p", spec(false)).await;
        let puppet = scenario.until_ready("p").await;
        assert_eq!(puppet.metadata.finalizers.as_deref(), Some(finalizers.as_slice()));

        scenario.delete(PUPPET, "p").await;
        let leaving = |p: &kube::core::DynamicObject| p.data["status"]["phase"] == "Leaving";
        let puppet = scenario.until(PUPPET, "p", "leaving", leaving).await;
        assert!(puppet.metadata.deletion_timestamp.is_some());
        assert_eq!(puppet.metadata.finalizers.as_deref(), Some(finalizers.as_slice()));
        assert_eq!(
            scenario.until_event("p", "Normal", "Leaving").await,
            "says goodbye"
        );
        // What it does not name stays meanwhile.
        let names = scenario.names(CONFIG_MAP).await;
        for name in ["a", "b", "farewell"] {
            assert!(names.iter().any(|n| n == name), "{name} is not among {names:?}");
        }
        scenario.puppet("p", spec(true)).await;
        scenario.until_gone(PUPPET, "p").await;
        // The garbage collector takes the rest.
        scenario.until_gone(CONFIG_MAP, "a").await;
        scenario.until_gone(CONFIG_MAP, "farewell").await;
    }
}

#[tokio::test]
async fn a_plugin_that_fails_in_cleanup_keeps_the_resource_until_it_is_put_right() {
    let scenario = Scenario::new("cleanup-fails").await;
    let host = scenario.start(&controller("puppet.wasm", ""));
    let child = json!({"apiVersion": "v1", "kind": "Secret", "metadata": {"name": "s"}});
    scenario
        .puppet(
            "p",
            json!({"response": {}, "cleanup": {"done": true, "children": [child]}}),
        )
        .await;
    scenario.until_ready("p").await;
    // A finalizer of somebody else is not ours to take.
    let both = json!({"metadata": {"finalizers": ["operator-host.dev/puppet", "example.com/other"]}});
    scenario.patch(PUPPET, "p", both).await;
    scenario.delete(PUPPET, "p").await;
    scenario.until_stalled("p", "ChildRefused").await;
    scenario.puppet("p", json!({"response": {}})).await;
    let others =
        |p: &kube::core::DynamicObject| p.metadata.finalizers == Some(vec!["example.com/other".to_owned()]);
    scenario
        .until(PUPPET, "p", "only the other finalizer", others)
        .await;
    scenario
        .patch(PUPPET, "p", json!({"metadata": {"finalizers": null}}))
        .await;
    scenario.until_gone(PUPPET, "p").await;
    assert_eq!(host.stop().await.code(), Some(0));
}
