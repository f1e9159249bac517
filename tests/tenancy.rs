//! Tenants of one host: what somebody does in one namespace is nothing to the parents of another.

use std::path::PathBuf;

use kube::api::{Patch, PatchParams};
use serde_json::{Value, json};

use crate::echo::CONTROLLER;
use crate::echoes::{ECHO, POD, apply, until_exact};
use crate::support::Scenario;

/// A configuration of `tenant` that watches `other`, too.
fn config_of_both(tenant: &Scenario, other: &Scenario, controllers: &str) -> PathBuf {
    let text = std::fs::read_to_string(tenant.config(controllers)).unwrap();
    let one = format!("namespaces: [{}]", tenant.namespace);
    let both = format!("namespaces: [{}, {}]", tenant.namespace, other.namespace);
    assert!(text.contains(&one));
    tenant.file("config.yaml", text.replace(&one, &both))
}

/// A pod as somebody forges it who has read the marks off one of the host's own.
fn forged(name: &str, parent: &str, owners: &Value) -> String {
    json!({
        "apiVersion": "v1", "kind": "Pod",
        "metadata": {
            "name": name,
            "labels": {"operator-host.dev/controller": "echo"},
            "annotations": {"operator-host.dev/parent": parent},
            "ownerReferences": owners,
        },
        "spec": {"containers": [{"name": "c", "image": "evil:1"}]},
    })
    .to_string()
}

async fn evict(scenario: &Scenario, pod: &str) {
    let status = Patch::Merge(json!({"status": {"phase": "Failed"}}));
    let params = PatchParams::default();
    let api = scenario.api(POD);
    api.patch_status(pod, &params, &status).await.expect("a status");
}

/// Regression: such a pod counted as a retained child of `forged-tenant/web`, so that Echo saw that its own pod had
/// ended, and left that out for the host to delete.
#[tokio::test]
async fn what_is_forged_in_another_namespace_is_no_child() {
    let tenant = Scenario::new("forged-tenant").await;
    // Sorts first, so that a look-up by name alone finds what is there.
    let attacker = Scenario::new("forged-attacker").await;
    let _host = tenant.start_with(&config_of_both(&tenant, &attacker, CONTROLLER), &[]);
    apply(&tenant, "web", 2).await;
    until_exact(&tenant).await;
    let before = tenant.get(POD, "web-pod-0").await.unwrap();

    let owner = json!([{
        "apiVersion": "my-operator.dev/v1", "kind": "Echo", "name": "web", "controller": true,
        "uid": tenant.get(ECHO, "web").await.unwrap().metadata.uid,
    }]);
    for (name, parent, owners) in [
        ("web-pod-0", "forged-tenant/web", json!([])),
        ("more", "forged-tenant/web", owner),
    ] {
        attacker.apply(&forged(name, parent, &owners)).await;
    }
    evict(&attacker, "web-pod-0").await;
    // Each change is a pass that sees what the caches hold by then.
    for replicas in [3, 2, 3] {
        apply(&tenant, "web", replicas).await;
        until_exact(&tenant).await;
    }
    let after = tenant.get(POD, "web-pod-0").await.unwrap();
    assert_eq!(
        after.metadata.uid, before.metadata.uid,
        "the tenant's pod was made again"
    );
}

/// The same within one namespace: what is deleted with its parent is proved by its owner reference, and a pod that only
/// carries the marks is what somebody else made.
#[tokio::test]
async fn marks_alone_make_no_child_of_a_kind_that_is_not_retained() {
    let scenario = Scenario::new("forged-marks").await;
    let _host = scenario.start(CONTROLLER);
    apply(&scenario, "web", 1).await;
    until_exact(&scenario).await;
    scenario
        .apply(&forged("more", "forged-marks/web", &json!([])))
        .await;
    scenario
        .patch(POD, "web-pod-0", json!({"metadata": {"labels": {"x": "y"}}}))
        .await;
    apply(&scenario, "web", 2).await;
    scenario
        .until(ECHO, "web", "two pods and not three", |echo| {
            echo.data["status"]["currentReplicas"] == 2 && echo.data["status"]["isReady"] == true
        })
        .await;
}
