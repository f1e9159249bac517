//! The condition `Ready`, which the host derives from the children, and `Synced`.

use crate::samples::echo::{CONTROLLER, echo};
use crate::support::prelude::*;

const CLAIM: &str = "v1/PersistentVolumeClaim";
const POD: &str = "v1/Pod";
const CHILDREN: &str = "children: [{apiVersion: v1, kind: ConfigMap}, {apiVersion: v1, kind: PersistentVolumeClaim, onRemoval: delete}]";

/// Returns a claim that waits until somebody creates a volume for it.
fn claim(name: &str) -> Value {
    json!({
        "apiVersion": "v1", "kind": "PersistentVolumeClaim", "metadata": {"name": name},
        "spec": {
            "accessModes": ["ReadWriteOnce"], "storageClassName": "", "resources": {"requests": {"storage": "1Gi"}},
        },
    })
}

async fn bind(scenario: &Scenario, claim: &str) {
    let bound = json!({"phase": "Bound"});
    scenario.set_status(CLAIM, claim, bound).await;
}

#[tokio::test]
async fn ready_waits_for_the_children_names_the_first_that_is_not_and_is_written_at_once_in_the_end() {
    let (scenario, _host) = puppets("ready", CHILDREN).await;
    let children = [config_map("a", "1"), claim("data-0"), claim("data-1")];
    scenario.wants("p", &children).await;
    let not_ready =
        |p: &DynamicObject| condition(p, "Ready").is_some_and(|ready| ready["reason"] == "ChildrenNotReady");
    let puppet = scenario.until(PUPPET, "p", "not Ready", not_ready).await;
    let ready = condition(&puppet, "Ready").unwrap();
    assert_eq!(ready["status"], "False");
    let expected = "PersistentVolumeClaim ready/data-0: its phase is Pending, not Bound";
    assert_eq!(ready["message"], expected);
    assert!(is_true(&puppet, "Synced"), "{puppet:?}");
    assert!(condition(&puppet, "Reconciling").is_none(), "{puppet:?}");

    for name in ["data-0", "data-1"] {
        bind(&scenario, name).await;
    }
    let puppet = scenario.until_ready("p").await;
    let expected = "every child is applied and ready";
    assert_eq!(condition(&puppet, "Ready").unwrap()["message"], expected);

    // Regression: the texts on the way counted as a loop. `Ready` came half a minute late, after a warning.
    let names: Vec<String> = (10..40).map(|number| format!("data-{number}")).collect();
    let claims: Vec<Value> = names.iter().map(|name| claim(name)).collect();
    scenario.wants("p", &claims).await;
    let not_ready = format!("Ready=False ChildrenNotReady: {}", names[0]);
    scenario.until_told("p", &not_ready).await;
    for name in &names {
        // As slowly as pods become ready.
        tokio::time::sleep(Duration::from_millis(300)).await;
        bind(&scenario, name).await;
    }
    let start = Instant::now();
    scenario.until_ready("p").await;
    assert!(start.elapsed() < Duration::from_secs(1), "{:?}", start.elapsed());
    let events = scenario.events().await;
    let warnings: Vec<_> = events
        .iter()
        .filter(|event| event.data["type"] == "Warning")
        .collect();
    assert!(warnings.is_empty(), "{warnings:?}");
}

#[tokio::test]
async fn a_pod_that_is_evicted_is_recreated_and_an_event_has_the_words_of_the_kubelet() {
    let scenario = Scenario::new("ready-evicted").await;
    let _host = scenario.start(CONTROLLER);
    scenario.apply(&echo(1)).await;
    let runs = |pod: &DynamicObject| pod.data["status"]["phase"] == "Running";
    let first = scenario.until(POD, "e-pod-0", "running", runs).await;
    let evicted = json!({
        "phase": "Failed", "reason": "Evicted", "message": "The node was low on resource: memory.",
    });
    scenario.set_status(POD, "e-pod-0", evicted).await;
    let words = "Pod ready-evicted/e-pod-0, which has failed: Evicted: The node was low on resource: memory.";
    scenario
        .until_event("e", &format!("Warning PodFailed: {words}"))
        .await;
    let other = |pod: &DynamicObject| pod.metadata.uid != first.metadata.uid && runs(pod);
    scenario.until(POD, "e-pod-0", "another one", other).await;
}

#[tokio::test]
async fn a_child_that_a_finalizer_holds_is_named_until_it_is_recreated_and_a_failure_takes_synced_away() {
    let (scenario, _host) = puppets("ready-held", "").await;
    scenario.ready_wants("p", &[config_map("a", "1")]).await;
    scenario
        .set_finalizers(CONFIG_MAP, "a", &["example.com/hold"])
        .await;
    scenario.delete(CONFIG_MAP, "a").await;
    let message = scenario.until_told("p", "Ready=False ChildrenNotReady").await;
    assert_eq!(
        message,
        "ConfigMap ready-held/a: it is being deleted, and waits for its finalizers: example.com/hold"
    );
    scenario.set_finalizers(CONFIG_MAP, "a", &[]).await;
    scenario.until_ready("p").await;
    let recreated = scenario.get(CONFIG_MAP, "a").await.expect("the child");
    assert!(!is_going(&recreated), "{recreated:?}");

    scenario.puppet("p", json!({"misbehave": "trap"})).await;
    scenario.until_stalled("p", "PluginTrapped").await;
    let message = scenario.until_told("p", "Synced=False PluginTrapped").await;
    assert_eq!(message, "see the condition Stalled");
}
