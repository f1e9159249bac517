//! Objects that become too deep after the host has read them: nothing of them is lost.

use control_plane::proxy::{Mode, Proxy, Seen};
use kube::core::DynamicObject;
use serde_json::json;

use super::{lists, send};
use crate::behind::{behind_a_proxy, hold};
use crate::puppet::{PUPPET, assert_contains};
use crate::support::{Host, Scenario};

/// Gives the puppet `p` another spec, during whose call a puppet's text changes without the host's knowledge. Returns once
/// the reconcile has ended, and has made `request` in its midst.
async fn change_during_a_call(
    (scenario, proxy, host): (&Scenario, &Proxy, &Host),
    spec: serde_json::Value,
    changed: &str,
    change: String,
    request: fn(&Seen) -> bool,
) {
    let parent = format!("{}/p", scenario.namespace);
    // The status is written before the reconcile ends.
    host.until_reconciles(&parent, 1).await;
    let before = host.reconciles(&parent);
    scenario.puppet("p", spec).await;
    host.until_log(&["busy"]).await;
    hold(proxy, "puppets");
    drop(proxy.take_seen());
    send(scenario, "PATCH", changed, change)
        .await
        .expect("it is changed");
    assert!(!proxy.take_seen().iter().any(request), "it was too late");
    proxy.until_seen(request).await;
    host.until_reconciles(&parent, before + 1).await;
    proxy.set_mode(Mode::Pass);
}

/// Regression: the fields that the host did not read were removed by its next write.
#[tokio::test]
async fn a_status_that_is_too_deep_meanwhile_keeps_its_fields() {
    let scenario = Scenario::new("deep-status").await;
    let (proxy, host) = behind_a_proxy(&scenario, "limits: {deadline: 20s}").await;
    let spec = json!({"response": {"status": {"text": "kept"}}});
    scenario.puppet("p", spec).await;
    scenario.until_ready("p").await;
    let fails = json!({"busy": 400, "misbehave": "trap"});
    let deep = format!(r#"{{"status": {{"deep": {}}}}}"#, lists(300));
    let reads = |seen: &Seen| {
        let (_, query) = seen.uri.split_once("/puppets?").unwrap_or_default();
        seen.method == "GET" && query.ends_with("fieldSelector=metadata.name%3Dp")
    };
    change_during_a_call((&scenario, &proxy, &host), fails, "/p/status", deep, reads).await;
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

/// Regression: a field that the host leaves to others was removed when it did not see that only itself had set it.
#[tokio::test]
async fn a_child_that_is_too_deep_meanwhile_keeps_the_fields_that_are_left() {
    let scenario = Scenario::new("deep-left").await;
    let children =
        "children: [{apiVersion: test.operator-host.dev/v1, kind: Puppet}]\nlimits: {deadline: 20s}";
    let (proxy, host) = behind_a_proxy(&scenario, children).await;
    let kid = |spec: serde_json::Value| {
        let annotations = json!({"operator-host.dev/leave": "spec.text"});
        json!({"apiVersion": "test.operator-host.dev/v1", "kind": "Puppet",
            "metadata": {"name": "kid", "annotations": annotations}, "spec": spec})
    };
    let first = kid(json!({"response": {}, "text": "kept"}));
    scenario
        .puppet("p", json!({"response": {"children": [first]}}))
        .await;
    scenario.until_ready("p").await;
    scenario.until_ready("kid").await;
    let second = kid(json!({"response": {}, "note": "new"}));
    let spec = json!({"busy": 400, "response": {"children": [second]}});
    let deep = format!(r#"{{"spec": {{"deep": {}}}}}"#, lists(300));
    // It is refused: the kid has another version by now.
    let applies = |seen: &Seen| seen.method == "PATCH" && seen.uri.contains("/puppets/kid?");
    change_during_a_call((&scenario, &proxy, &host), spec, "/kid", deep, applies).await;
    scenario.until_stalled("p", "TooDeep").await;
    let text = send(&scenario, "GET", "/kid", String::new()).await;
    let text = text.expect("an answer");
    assert_contains(&text, &[r#""text":"kept""#, &lists(300)]);
    assert!(!text.contains(r#""note":"new""#), "{text}");
    let mend = r#"{"spec": {"deep": null}}"#.to_owned();
    send(&scenario, "PATCH", "/kid", mend)
        .await
        .expect("it is mended");
    let is_kept =
        |kid: &DynamicObject| kid.data["spec"]["text"] == "kept" && kid.data["spec"]["note"] == "new";
    scenario
        .until(PUPPET, "kid", "changed beside its text", is_kept)
        .await;
}
