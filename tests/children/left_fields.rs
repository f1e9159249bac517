//! Fields of a child that its plugin leaves to another manager, such as the replicas of a Deployment to an autoscaler.

use crate::support::prelude::*;

const DEPLOYMENT: &str = "apps/v1/Deployment";

/// Returns the spec of a puppet with a Deployment. `leaves` lists the fields to leave.
fn wants(image: &str, replicas: Option<u32>, leaves: Option<&str>) -> Value {
    let mut deployment = deployment("web", &json!({"containers": [{"name": "web", "image": image}]}));
    if let Some(replicas) = replicas {
        deployment["spec"]["replicas"] = replicas.into();
    }
    if let Some(leaves) = leaves {
        deployment["metadata"]["annotations"] = json!({"operator-host.dev/leave": leaves});
    }
    json!({"response": {"children": [deployment]}})
}

/// Waits until the Deployment has this image, and returns its replicas.
async fn replicas_with(scenario: &Scenario, image: &str) -> Value {
    let has_image =
        |it: &DynamicObject| it.data["spec"]["template"]["spec"]["containers"][0]["image"] == image;
    let deployment = scenario.until(DEPLOYMENT, "web", image, has_image).await;
    deployment.data["spec"]["replicas"].clone()
}

/// Sets the replicas as another field manager.
async fn scale(scenario: &Scenario, replicas: u32) {
    let params = PatchParams::apply("autoscaler");
    let patch = Patch::Merge(json!({"spec": {"replicas": replicas}}));
    let api = scenario.api(DEPLOYMENT);
    api.patch("web", &params, &patch).await.expect("it is scaled");
}

/// Regression: the Deployment went from 6 replicas to the default, 1, when the plugin no longer set them.
#[tokio::test]
async fn replicas_that_are_left_to_an_autoscaler_are_never_reset() {
    let kinds = "children: [{apiVersion: apps/v1, kind: Deployment}]";
    let (scenario, host) = puppets("left-fields", kinds).await;
    scenario.puppet("p", wants("web:1", Some(6), None)).await;
    assert_eq!(replicas_with(&scenario, "web:1").await, 6);

    let leaves = Some("spec.replicas");
    for image in ["web:2", "web:3"] {
        scenario.puppet("p", wants(image, None, leaves)).await;
        assert_eq!(
            replicas_with(&scenario, image).await,
            6,
            "nobody else has set them"
        );
    }
    scale(&scenario, 8).await;
    scenario.puppet("p", wants("web:4", None, leaves)).await;
    assert_eq!(replicas_with(&scenario, "web:4").await, 8);
    scale(&scenario, 9).await;
    scenario.puppet("p", wants("web:5", Some(2), leaves)).await;
    assert_eq!(
        replicas_with(&scenario, "web:5").await,
        9,
        "only a new object gets them"
    );

    // The plugin takes them back.
    scenario.puppet("p", wants("web:6", Some(2), None)).await;
    assert_eq!(replicas_with(&scenario, "web:6").await, 2);
    assert_eq!(host.stop().await.code(), Some(0));
}
