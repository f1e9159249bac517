//! A namespace is deleted with everything in it while the host works.

use crate::support::prelude::*;

use crate::samples::echo::CONTROLLER;
use crate::samples::many_echoes::{apply_many, complaints, until_exact};

#[tokio::test]
async fn a_deleted_namespace_terminates_without_rewrites() {
    let scenario = Scenario::new("going").await;
    let mut host = scenario.start(CONTROLLER);
    apply_many(&scenario, "g", 10, 3).await;
    until_exact(&scenario).await;
    let before = scenario.all_writes(cluster().await).await.len();
    let deleted = Instant::now();
    scenario.remove("v1/Namespace", "going").await;
    let writes = scenario.writes(cluster().await);
    let own: Vec<_> = writes[before..]
        .iter()
        .filter(|write| write.field_manager().is_some())
        .collect();
    eprintln!(
        "gone after {:?}; the host wrote {} times",
        deleted.elapsed(),
        own.len()
    );
    // Each of the 30 deleted pods enqueues its parent. This host may not watch namespaces: it learns of the
    // deletion from the first refusals of concurrent reconciles.
    assert!(own.len() < 40, "{}", own.len());
    let complaints = complaints(&host);
    assert!(complaints.is_empty(), "{complaints:#?}");

    // Regression: for a minute, a recreated namespace was considered terminating, too.
    scenario.create_namespace("going").await;
    let again = Instant::now();
    apply_many(&scenario, "h", 2, 2).await;
    until_exact(&scenario).await;
    assert!(again.elapsed().as_secs() < 30, "{:?}", again.elapsed());
    assert!(host.is_alive());
}
