//! A parent is deleted and recreated at once; parents change while they are reconciled.

use crate::samples::echo::CONTROLLER;
use crate::samples::many_echoes::{ECHO, POD, apply, apply_many, complaints, until_exact, until_pods};
use crate::support::prelude::*;

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
