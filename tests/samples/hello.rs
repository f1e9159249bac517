//! The Hello operator: a plugin in Go, as a plain WASI command.

use crate::support::prelude::*;

const CONTROLLER: &str = "\
- name: hello
  parent: {apiVersion: fraim.co.jp/v1, kind: Hello}
  plugin: hello.wasm
  children: [{apiVersion: apps/v1, kind: Deployment}]
  backoff: {initial: 100ms, max: 1s}
";

const HELLO: &str = "fraim.co.jp/v1/Hello";
const DEPLOYMENT: &str = "apps/v1/Deployment";

fn hello(replicas: u32) -> String {
    format!(
        "apiVersion: fraim.co.jp/v1\nkind: Hello\nmetadata: {{name: h}}\nspec: {{replicas: {replicas}}}\n"
    )
}

#[tokio::test]
async fn too_many_replicas_give_a_warning_and_leave_the_deployment_alone() {
    let cluster = own_cluster(Options::default()).await;
    let scenario = Scenario::within(&cluster, "hello-invalid").await;
    // A definition without the rule, as after a manual installation.
    let text = std::fs::read_to_string(root().join("manifests/crds/helloes.fraim.co.jp.yaml")).unwrap();
    let mut crd: Value = serde_saphyr::from_str(&text).unwrap();
    let replicas = crd
        .pointer_mut("/spec/versions/0/schema/openAPIV3Schema/properties/spec/properties/replicas")
        .and_then(Value::as_object_mut)
        .unwrap();
    replicas.remove("maximum").unwrap();
    scenario.apply(&serde_json::to_string(&crd).unwrap()).await;
    let _host = scenario.start(CONTROLLER);
    scenario.apply(&hello(1)).await;
    let before = scenario.until_there(DEPLOYMENT, "h").await;

    scenario
        .patch(HELLO, "h", json!({"spec": {"replicas": 21}}))
        .await;
    let expected = "Invalid Hello spec: replicas: greater than 20";
    assert_eq!(scenario.until_event("h", "Warning InvalidSpec").await, expected);
    let stalled = |h: &DynamicObject| condition(h, "Stalled").is_some();
    let h = scenario.until(HELLO, "h", "stalled", stalled).await;
    assert_eq!(condition(&h, "Stalled").unwrap()["message"], expected);
    let after = scenario.get(DEPLOYMENT, "h").await.unwrap();
    assert_eq!(after.data["spec"], before.data["spec"]);
    assert_eq!(after.metadata.generation, before.metadata.generation);

    scenario
        .patch(HELLO, "h", json!({"spec": {"replicas": 20}}))
        .await;
    let twenty = |d: &DynamicObject| d.data["spec"]["replicas"] == 20;
    scenario.until(DEPLOYMENT, "h", "twenty replicas", twenty).await;
}
