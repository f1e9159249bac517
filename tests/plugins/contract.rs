//! Parts of the plugin contract, in both binary forms.

use crate::support::prelude::*;

/// Starts a host that watches all namespaces.
fn start(scenario: &Scenario, controllers: &str) -> Host {
    let config = scenario.config(controllers);
    let text = std::fs::read_to_string(&config).unwrap();
    let limited = format!("namespaces: [{}]\n", scenario.namespace);
    scenario.start_with(&scenario.file("config.yaml", text.replace(&limited, "")), &[])
}

async fn delete_namespace(scenario: &Scenario) {
    scenario.delete("v1/Namespace", &scenario.namespace).await;
}

#[tokio::test]
async fn a_cleanup_learns_that_its_namespace_is_being_deleted() {
    let cluster = own_cluster(Options::default()).await;
    for (form, file) in FORMS {
        let scenario = Scenario::within(&cluster, &format!("told-{form}")).await;
        let host = start(&scenario, &controller(file, ""));
        let cleanup = json!({"done": false, "status": {"going": "$namespaceTerminating"}});
        scenario
            .ready_with("p", json!({"response": {}, "cleanup": cleanup}))
            .await;
        scenario.delete(PUPPET, "p").await;
        let going = |going: bool| move |p: &DynamicObject| p.data["status"]["going"] == going;
        scenario
            .until(PUPPET, "p", "a cleanup in a healthy namespace", going(false))
            .await;
        // Only the namespace changes.
        delete_namespace(&scenario).await;
        scenario
            .until(PUPPET, "p", "a cleanup in a namespace that goes", going(true))
            .await;
        scenario
            .patch(PUPPET, "p", json!({"spec": {"cleanup": {"done": true}}}))
            .await;
        scenario.until_gone(PUPPET, "p").await;
        assert_eq!(host.stop().await.code(), Some(0));
    }
}
