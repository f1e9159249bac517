//! The Echo operator, from a resource to its pods and its status.

pub use crate::support::bystander::{CONTROLLER, ECHO, echo};
use crate::support::prelude::*;

const POD: &str = "v1/Pod";

/// Applies the Echo `e` with one pod, and waits until it is ready.
pub async fn until_echo_is_ready(scenario: &Scenario) {
    scenario.apply(&echo(1)).await;
    scenario.until_echo("e").await;
}

#[tokio::test]
async fn pods_follow_the_replicas_and_the_status_shows_what_is_observed() {
    let scenario = Scenario::new("echo-scale").await;
    let host = scenario.start(CONTROLLER);
    scenario.apply(&echo(3)).await;
    let ready = |n: u64| {
        move |e: &DynamicObject| {
            e.data["status"]["currentReplicas"] == n && e.data["status"]["isReady"] == true
        }
    };
    let e = scenario.until(ECHO, "e", "three ready pods", ready(3)).await;
    assert_eq!(scenario.names(POD).await, ["e-pod-0", "e-pod-1", "e-pod-2"]);
    assert_eq!(e.data["status"]["observedGeneration"], 1);
    let pod = scenario.get(POD, "e-pod-1").await.unwrap();
    assert_eq!(pod.data["spec"]["containers"][0]["image"], "echo:1");
    assert_eq!(
        pod.metadata.owner_references.as_ref().unwrap()[0].uid,
        *e.metadata.uid.as_ref().unwrap()
    );

    scenario.patch(ECHO, "e", json!({"spec": {"replicas": 1}})).await;
    scenario.until_gone(POD, "e-pod-2").await;
    scenario.until_gone(POD, "e-pod-1").await;
    scenario.until(ECHO, "e", "one ready pod", ready(1)).await;
    scenario.patch(ECHO, "e", json!({"spec": {"replicas": 2}})).await;
    let e = scenario.until(ECHO, "e", "two ready pods", ready(2)).await;
    assert_eq!(e.data["status"]["observedGeneration"], 3);
    assert!(condition(&e, "Stalled").is_none(), "{e:?}");
    assert_eq!(host.stop().await.code(), Some(0));
}

#[tokio::test]
async fn nothing_is_written_when_nothing_changed() {
    let scenario = Scenario::new("echo-quiet").await;
    let host = scenario.start(&format!("{CONTROLLER}  resync: 100ms\n"));
    scenario.apply(&echo(2)).await;
    scenario.until_echo("e").await;
    // The resync runs ten times per second; each reconcile logs at debug level.
    let more_reconciles = async |more| {
        let seen = host.log().matches("reconcile done").count();
        host.until_logged("reconcile done", seen + more).await;
    };
    // The status is visible before its write is in the audit log.
    more_reconciles(2).await;
    let before = scenario.writes(cluster().await);
    more_reconciles(10).await;
    let after = scenario.writes(cluster().await);
    assert_eq!(after.len(), before.len(), "{:#?}", &after[before.len()..]);
}
