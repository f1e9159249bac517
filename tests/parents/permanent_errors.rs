//! What goes wrong is said: at once if it stays so, within seconds on a new object, and never behind what passes by itself.

use crate::faults::transient_errors::behind_a_proxy;
use crate::support::prelude::*;

/// Long enough for a busy machine, and much shorter than the minute after which an overload is reported.
const SOON: Duration = Duration::from_secs(15);

const CHILDREN: &str = "children: [{apiVersion: v1, kind: ConfigMap}, {apiVersion: v1, kind: Secret}, \
                        {apiVersion: apps/v1, kind: Deployment}, {apiVersion: v1, kind: PodTemplate}]";

/// A child that the API server refuses with 422.
fn invalid(name: &str) -> Value {
    let mut child = config_map(name, "1");
    child["metadata"]["labels"] = json!({ "a": "not a label" });
    child
}

/// A Deployment with this limit, which need not be a quantity.
fn limited(memory: &str) -> Value {
    let limits = json!({ "memory": memory });
    let container = json!({ "name": "web", "image": "web:1", "resources": { "limits": limits } });
    deployment("web", &json!({ "containers": [container] }))
}

/// Waits for the condition that reports the children, and returns its message. Fails if it comes too late.
async fn told(scenario: &Scenario, name: &str) -> String {
    let start = Instant::now();
    let message = scenario.until_told(name, "Reconciling=True ApplyFailed").await;
    assert!(start.elapsed() < SOON, "after {:?}: {message}", start.elapsed());
    message
}

const REFUSED: Mode = Mode::refuse(503);

/// Regression: etcd's refusal counted as overload, so the other children were not applied, and nothing was said for a minute. What the
/// API server cannot convert, it calls an internal error, which counted as trouble of its own, and hid the others.
#[tokio::test]
async fn a_child_that_is_too_large_for_etcd_or_cannot_be_converted_is_said_at_once_and_the_others_are_applied()
 {
    let (scenario, _host) = puppets("too-large", CHILDREN).await;
    let container = json!({ "name": "main", "image": "main:1", "args": ["$large"] });
    let large = json!({
        "apiVersion": "v1", "kind": "PodTemplate", "metadata": { "name": "large" },
        "template": { "spec": { "containers": [container] } },
    });
    let small = ["a", "m", "z"].map(|name| config_map(name, "1"));
    scenario.wants("p", &[&[large], small.as_slice()].concat()).await;
    let words = "PodTemplate too-large/large … request is too large";
    assert_contains(&told(&scenario, "p").await, words);
    for name in ["a", "m", "z"] {
        assert!(scenario.get(CONFIG_MAP, name).await.is_some(), "{name}");
    }
    let secret = json!({
        "apiVersion": "v1", "kind": "Secret", "metadata": { "name": "s" }, "data": { "password": "%%%%" },
    });
    scenario.wants("quantity", &[limited("1GB")]).await;
    scenario.wants("base64", &[secret, config_map("good", "1")]).await;
    assert_contains(&told(&scenario, "quantity").await, "Deployment too-large/web");
    assert_contains(&told(&scenario, "base64").await, "Secret too-large/s");
    scenario.until_there(CONFIG_MAP, "good").await;
}

/// Regression: as long as the API server answered one request with 500, nothing was said about any child, and a child that could not be
/// created for the moment hid that another one was invalid, for a minute.
#[tokio::test]
async fn what_stays_is_said_beside_what_passes_and_an_internal_error_that_is_repeated_is_no_outage() {
    let (scenario, proxy) = behind_a_proxy("beside").await;
    let _host = scenario.start(&controller("puppet.wasm", CHILDREN));
    scenario.ready_wants("q", &[config_map("d", "1")]).await;
    proxy.set_mode_of("/configmaps/c", Mode::refuse(500));
    scenario
        .wants("q", &[config_map("c", "1"), config_map("d", "2")])
        .await;
    assert_contains(&told(&scenario, "q").await, "ConfigMap beside/c");
    scenario.until_text("d", "2").await;

    scenario.ready_wants("p", &[config_map("x", "1")]).await;
    proxy.set_mode_of("/configmaps/a", REFUSED);
    // One of the same kind, and one of another.
    for (other, shown) in [
        (invalid("b"), "ConfigMap beside/b"),
        (limited("1GB"), "Deployment beside/web"),
    ] {
        scenario.wants("p", &[config_map("a", "1"), other]).await;
        let what = format!("a condition about {shown}");
        let start = Instant::now();
        let is_told = |p: &DynamicObject| {
            condition(p, "Reconciling").is_some_and(|c| c["message"].as_str().unwrap().contains(shown))
        };
        let puppet = scenario.until(PUPPET, "p", &what, is_told).await;
        assert!(start.elapsed() < SOON, "after {:?}", start.elapsed());
        let message = condition(&puppet, "Reconciling").unwrap()["message"].clone();
        assert!(!message.as_str().unwrap().contains("beside/a"), "{message}");
    }
}

/// Regression: a new object had no condition for a minute.
#[tokio::test]
async fn a_new_object_has_a_condition_within_seconds_whatever_its_children_wait_for() {
    let (scenario, proxy) = behind_a_proxy("first-sign").await;
    let _host = scenario.start(&controller("puppet.wasm", "backoff: {initial: 20s, max: 20s}"));
    scenario.ready_wants("there", &[config_map("there", "1")]).await;
    // It is refused, or not answered at all.
    for (name, mode) in [("refused", REFUSED), ("silent", Mode::Stall)] {
        proxy.set_mode_of(&format!("/configmaps/{name}"), mode);
        let start = Instant::now();
        scenario.wants(name, &[config_map(name, "1")]).await;
        let is_told = |p: &DynamicObject| condition(p, "Reconciling").is_some();
        let puppet = scenario.until(PUPPET, name, "a condition", is_told).await;
        let took = start.elapsed();
        assert!(took < Duration::from_secs(8), "{name}: after {took:?}");
        assert_eq!(condition(&puppet, "Ready").unwrap()["status"], "False");
        proxy.set_mode(Mode::Pass);
        scenario.until_ready(name).await;
    }
}
