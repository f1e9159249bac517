//! The WebApp operator, the large sample: settings that it reads, a migration before each image, a farewell at the end.

use crate::support::prelude::*;

const CONTROLLER: &str = "\
- name: webapp
  parent: {apiVersion: apps.example.com/v1, kind: WebApp}
  plugin: webapp.wasm
  children:
    - {apiVersion: v1, kind: ServiceAccount}
    - {apiVersion: v1, kind: Secret}
    - {apiVersion: apps/v1, kind: Deployment}
    - {apiVersion: v1, kind: Service}
    - {apiVersion: networking.k8s.io/v1, kind: Ingress}
    - {apiVersion: autoscaling/v2, kind: HorizontalPodAutoscaler}
    - {apiVersion: policy/v1, kind: PodDisruptionBudget}
    - {apiVersion: batch/v1, kind: CronJob}
    - {apiVersion: batch/v1, kind: Job}
  reads: [{apiVersion: v1, kind: ConfigMap}]
";
const WEB_APP: &str = "apps.example.com/v1/WebApp";
const DEPLOYMENT: &str = "apps/v1/Deployment";
const JOB: &str = "batch/v1/Job";

fn settings(currency: &str) -> String {
    format!(
        "{{apiVersion: v1, kind: ConfigMap, metadata: {{name: shop-settings}}, data: {{CURRENCY: {currency}}}}}"
    )
}

#[tokio::test]
async fn an_application_is_set_up_changed_and_deleted_in_order() {
    let scenario = Scenario::new("webapp").await;
    let host = scenario.start(CONTROLLER);
    scenario
        .apply(
            "{apiVersion: apps.example.com/v1, kind: WebApp, metadata: {name: shop}, spec: {image: 'shop:1',
              settings: shop-settings, host: {name: shop.example.com}, migrate: {command: [shop, migrate]},
              farewell: {command: [shop, export]}}}",
        )
        .await;
    let waiting = scenario
        .until(WEB_APP, "shop", "a condition", |app| {
            app.data["status"]["conditions"][0].is_object()
        })
        .await;
    let conditions = waiting.data["status"]["conditions"].to_string();
    assert_contains(&conditions, "there is no ConfigMap shop-settings");
    assert!(scenario.names(DEPLOYMENT).await.is_empty());

    scenario.apply(&settings("EUR")).await;
    scenario
        .until_condition(WEB_APP, "shop", "Ready=True Reconciled")
        .await;
    let first = scenario.names(JOB).await;
    assert_eq!(first.len(), 1, "{first:?}");
    let image = |deployment: &DynamicObject| {
        deployment.data["spec"]["template"]["spec"]["containers"][0]["image"].clone()
    };
    let checksum = |deployment: &DynamicObject| {
        deployment.data["spec"]["template"]["metadata"]["annotations"]["operator-host.dev/checksum"].clone()
    };
    let before = scenario.get(DEPLOYMENT, "shop").await.unwrap();
    assert!(checksum(&before).is_string(), "{before:?}");
    let completed = scenario.get(JOB, &first[0]).await.unwrap();
    assert!(
        before.metadata.creation_timestamp >= completed.metadata.creation_timestamp
            && completed.data["status"]["succeeded"] == 1,
        "{completed:?}"
    );

    scenario.apply(&settings("CHF")).await;
    scenario
        .until(DEPLOYMENT, "shop", "pods with the new settings", |deployment| {
            checksum(deployment) != checksum(&before)
        })
        .await;

    scenario
        .patch(WEB_APP, "shop", json!({ "spec": { "image": "shop:2" } }))
        .await;
    scenario
        .until(DEPLOYMENT, "shop", "the new image", |deployment| {
            image(deployment) == "shop:2"
        })
        .await;
    let second = scenario.names(JOB).await;
    assert!(second.iter().any(|job| !first.contains(job)), "{second:?}");

    scenario.remove(WEB_APP, "shop").await;
    scenario.until_event("shop", "Normal FarewellDone").await;
    assert_eq!(host.stop().await.code(), Some(0));
}

/// Kubernetes 1.20 serves neither the autoscaler nor the CronJob of the sample.
#[tokio::test]
async fn the_sample_is_ready_or_names_the_kind_that_the_cluster_does_not_serve() {
    let scenario = Scenario::new("webapp-sample").await;
    let _host = scenario.start(CONTROLLER);
    let sample = std::fs::read_to_string(crate::support::root().join("plugins/webapp/sample.yaml")).unwrap();
    for document in sample.split("---\n") {
        let document = document.replace("namespace: default", "namespace: webapp-sample");
        scenario.apply(&document).await;
    }
    let served = scenario.client.list_api_group_resources("autoscaling/v2").await;
    let words = match served {
        Ok(_) => "waits for Job",
        Err(_) => "autoscaling/v2",
    };
    scenario
        .until(WEB_APP, "shop", words, |app| {
            app.data["status"]["conditions"].to_string().contains(words)
        })
        .await;
    if words == "autoscaling/v2" {
        return;
    }
    for (kind, name) in [
        (DEPLOYMENT, "shop"),
        ("autoscaling/v2/HorizontalPodAutoscaler", "shop"),
        ("batch/v1/CronJob", "shop-schedule"),
        ("policy/v1/PodDisruptionBudget", "shop"),
        ("networking.k8s.io/v1/Ingress", "shop"),
    ] {
        scenario.until_there(kind, name).await;
    }
}
