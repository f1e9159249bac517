//! The MyApp operator: a Deployment behind a Service, scaled as a Deployment is.

use crate::support::prelude::*;

pub const CONTROLLER: &str = "\
- name: myapp
  parent: {apiVersion: example.com/v1, kind: MyApp}
  plugin: myapp.wasm
  children: [{apiVersion: apps/v1, kind: Deployment}, {apiVersion: v1, kind: Service}]
";
pub const MYAPP: &str = "example.com/v1/MyApp";

/// `kubectl scale` patches the subresource, and an autoscaler updates it.
#[tokio::test]
async fn a_resource_with_the_subresource_scale_is_scaled_through_it() {
    let scenario = Scenario::new("scaled").await;
    let _host = scenario.start(CONTROLLER);
    scenario
        .apply(
            "{apiVersion: example.com/v1, kind: MyApp, metadata: {name: app}, spec: {image: 'nginx:1.27'}}",
        )
        .await;
    scenario
        .until(MYAPP, "app", "one replica", |app| {
            app.data["status"]["replicas"] == 1
        })
        .await;
    let patch = Patch::Merge(json!({"spec": {"replicas": 3}}));
    let scale = scenario
        .api(MYAPP)
        .patch_scale("app", &PatchParams::default(), &patch)
        .await
        .expect("the subresource");
    assert_eq!(scale.spec.unwrap().replicas, Some(3));
    scenario
        .until(MYAPP, "app", "three replicas", |app| {
            app.data["spec"]["replicas"] == 3 && app.data["status"]["readyReplicas"] == 3
        })
        .await;
    let scale = scenario
        .api(MYAPP)
        .get_scale("app")
        .await
        .expect("the subresource");
    assert_eq!(scale.status.unwrap().replicas, 3);
}
