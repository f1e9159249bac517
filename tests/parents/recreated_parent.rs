//! A parent is deleted and recreated at once; parents change while they are reconciled.

use control_plane::Options;
use serde_json::json;

use crate::samples::echo::CONTROLLER;
use crate::samples::many_echoes::{ECHO, POD, apply, apply_many, complaints, until_exact, until_pods, wait};
use crate::support::{Scenario, own_cluster};

#[tokio::test]
async fn a_parent_recreated_under_its_name_gets_children_of_its_own() {
    let scenario = Scenario::new("successors").await;
    let host = scenario.start(CONTROLLER);
    apply(&scenario, "e", 3).await;
    until_exact(&scenario).await;
    let first = scenario.get(POD, "e-pod-0").await.expect("a pod");
    for replicas in [2, 3] {
        scenario.delete(ECHO, "e").await;
        apply(&scenario, "e", replicas).await;
    }
    // The pods of the first two are collected, the third's are created; none has a Warning.
    scenario
        .until(POD, "e-pod-0", "another pod", |pod| {
            pod.metadata.uid != first.metadata.uid
        })
        .await;
    until_exact(&scenario).await;
    let complaints = complaints(&host);
    let others: Vec<_> = complaints
        .iter()
        .filter(|line| !line.contains("belongs to an earlier"))
        .collect();
    assert!(others.is_empty(), "{others:#?}");
}

/// Regression: a change of the spec just before a status write was treated as that write.
#[tokio::test]
async fn a_change_while_the_status_is_written_is_never_lost() {
    let scenario = Scenario::new("racing").await;
    let _host = scenario.start(CONTROLLER);
    apply_many(&scenario, "r", 10, 1).await;
    until_pods(&scenario, 5).await;
    // Each pod that becomes Ready causes a status write, while the spec changes continuously.
    for replicas in [3, 1, 4, 2, 5, 3] {
        for i in 0..10 {
            let patch = json!({ "spec": { "replicas": replicas } });
            scenario.patch(ECHO, &format!("r{i}"), patch).await;
        }
    }
    until_exact(&scenario).await;
}

/// Regression: on Kubernetes 1.36 the garbage collector can take a deleted owner for an existing one after an
/// outage of the API server.
#[tokio::test]
async fn what_the_garbage_collector_leaves_is_deleted_by_the_host() {
    // Without a garbage collector.
    let cluster = own_cluster(Options {
        controller_manager: false,
        ..Options::default()
    })
    .await;
    let scenario = Scenario::within(&cluster, "left").await;
    let host = scenario.start(CONTROLLER);
    for name in ["gone", "again", "while-away"] {
        apply(&scenario, name, 3).await;
    }
    until_pods(&scenario, 9).await;
    let copy = scenario.get(POD, "gone-pod-0").await.expect("a pod");
    scenario.delete(ECHO, "gone").await;
    scenario.delete(ECHO, "again").await;
    apply(&scenario, "again", 1).await;
    host.kill();
    scenario.delete(ECHO, "while-away").await;
    // An object that only refers to such an owner, without the controller's label, is left alone.
    let mut foreign = copy.clone();
    foreign.metadata.name = Some("foreign".into());
    foreign.metadata.labels = None;
    foreign.metadata.uid = None;
    foreign.metadata.resource_version = None;
    foreign.metadata.managed_fields = None;
    scenario.apply(&serde_json::to_string(&foreign).unwrap()).await;
    let host = scenario.start(CONTROLLER);
    wait(&scenario, "what is left is deleted", async || {
        let pods = scenario.names(POD).await;
        (pods != ["again-pod-0", "foreign"]).then(|| format!("{pods:?}"))
    })
    .await;
    let pod = scenario.get(POD, "again-pod-0").await.expect("a pod");
    let owner = &pod.metadata.owner_references.as_ref().unwrap()[0];
    assert_eq!(
        Some(&owner.uid),
        scenario.get(ECHO, "again").await.unwrap().metadata.uid.as_ref()
    );
    host.until_log(&[
        "deleted Pod",
        "while-away-pod-2",
        "it belonged to an earlier parent",
    ])
    .await;
}
