//! An object that becomes too deep after the host has read it: nothing of it is lost.

use control_plane::proxy::{Mode, Seen};
use kube::core::DynamicObject;
use serde_json::json;

use super::{lists, send};
use crate::faults::behind::{behind_a_proxy, hold};
use crate::support::Scenario;
use crate::support::puppet::{PUPPET, assert_contains};

/// Regression: the fields that the host did not read were removed by its next write.
#[tokio::test]
async fn a_status_that_is_too_deep_meanwhile_keeps_its_fields() {
    let scenario = Scenario::new("deep-status").await;
    let (proxy, host) = behind_a_proxy(&scenario, "limits: {deadline: 20s}").await;
    let spec = json!({"response": {"status": {"text": "kept"}}});
    scenario.puppet("p", spec).await;
    scenario.until_ready("p").await;
    // The status is written before the reconcile ends.
    host.until_reconciles("deep-status/p", 1).await;
    let before = host.reconciles("deep-status/p");
    let deep = format!(r#"{{"status": {{"deep": {}}}}}"#, lists(300));
    let reads = |seen: &Seen| {
        let (_, query) = seen.uri.split_once("/puppets?").unwrap_or_default();
        seen.method == "GET" && query.ends_with("fieldSelector=metadata.name%3Dp")
    };
    // It becomes too deep during a call, without the host's knowledge.
    scenario
        .puppet("p", json!({"busy": 400, "misbehave": "trap"}))
        .await;
    host.until_log(&["busy"]).await;
    hold(&proxy, "puppets");
    drop(proxy.take_seen());
    let changed = send(&scenario, "PATCH", "/p/status", deep).await;
    changed.expect("it is changed");
    assert!(!proxy.take_seen().iter().any(reads), "it was too late");
    proxy.until_seen(reads).await;
    host.until_reconciles("deep-status/p", before + 1).await;
    proxy.set_mode(Mode::Pass);
    let text = send(&scenario, "GET", "/p", String::new()).await;
    assert_contains(&text.expect("an answer"), &[r#""text":"kept""#, &lists(300)]);
    let mend = r#"{"status": {"deep": null}}"#.to_owned();
    send(&scenario, "PATCH", "/p/status", mend)
        .await
        .expect("it is mended");
    let is_kept = |p: &DynamicObject| {
        let status = &p.data["status"];
        status["text"] == "kept" && status["observedGeneration"] == 2
    };
    scenario
        .until(PUPPET, "p", "reconciled with the same text", is_kept)
        .await;
}
