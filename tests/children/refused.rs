//! One child that the API server rejects: the others are applied, nothing is pruned, and the parent's status names
//! the child and the field.

use crate::samples::echo::CONTROLLER;
use crate::samples::many_echoes::{ECHO, POD, apply, until_pods, until_recovered};
use crate::support::prelude::*;

fn foreign_pod(container: &str) -> String {
    json!({
        "apiVersion": "v1", "kind": "Pod", "metadata": { "name": "e-pod-1" },
        "spec": { "containers": [{ "name": container, "image": "foreign:1" }] },
    })
    .to_string()
}

/// Creates three pods; while the host is down, one of them is replaced by somebody else's, and one is surplus.
async fn with_a_foreign_pod(name: &str, container: &str) -> Scenario {
    let scenario = Scenario::new(name).await;
    let host = scenario.start(CONTROLLER);
    apply(&scenario, "e", 3).await;
    until_pods(&scenario, 3).await;
    assert_eq!(host.stop().await.code(), Some(0));
    scenario.delete(POD, "e-pod-0").await;
    scenario.delete(POD, "e-pod-1").await;
    scenario.until_gone(POD, "e-pod-0").await;
    scenario.until_gone(POD, "e-pod-1").await;
    scenario.apply(&foreign_pod(container)).await;
    apply(&scenario, "e", 2).await;
    scenario
}

#[tokio::test]
async fn a_child_that_is_invalid_or_has_a_field_of_another_manager_does_not_keep_the_others_from_being_applied()
 {
    for (name, container, says) in [
        (
            "refused-422",
            "other",
            "spec.containers: Forbidden … may not add or remove containers",
        ),
        (
            "refused-409",
            "echo",
            "conflict with \"user\" … .spec.containers[name=\"echo\"].image",
        ),
    ] {
        let scenario = with_a_foreign_pod(name, container).await;
        let _host = scenario.start(&format!("{CONTROLLER}  adopt: true\n"));
        let says = format!("Reconciling=True ApplyFailed: Pod {name}/e-pod-1 … {says}");
        scenario.until_condition(ECHO, "e", &says).await;
        let pod = scenario.get(POD, "e-pod-1").await.expect("the foreign pod");
        assert_eq!(pod.data["spec"]["containers"][0]["image"], "foreign:1");
        assert_eq!(scenario.names(POD).await, ["e-pod-0", "e-pod-1", "e-pod-2"]);
        let one_too_many = scenario.get(POD, "e-pod-2").await.expect("there");
        assert!(!is_going(&one_too_many), "nothing is pruned");
        match container {
            // The user corrects it: the image is what the plugin wants, so both may have set it.
            "echo" => drop(
                scenario
                    .apply(&foreign_pod(container).replace("foreign:1", "echo:1"))
                    .await,
            ),
            _ => scenario.delete(POD, "e-pod-1").await,
        }
        until_recovered(&scenario).await;
        assert_eq!(scenario.names(POD).await, ["e-pod-0", "e-pod-1"]);
    }
}
