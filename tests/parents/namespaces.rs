//! A namespace is deleted with everything in it while the host works.

use crate::support::prelude::*;
use k8s_openapi::api::core::v1::Namespace;

use crate::samples::echo::CONTROLLER;
use crate::samples::many_echoes::{apply_many, complaints, until_exact};

#[tokio::test]
async fn a_deleted_namespace_terminates_without_rewrites() {
    let scenario = Scenario::new("going").await;
    let mut host = scenario.start(CONTROLLER);
    apply_many(&scenario, "g", 10, 3).await;
    until_exact(&scenario).await;
    let before = scenario.all_writes(cluster().await).await.len();
    let namespaces = Api::<Namespace>::all(scenario.client.clone());
    let deleted = Instant::now();
    namespaces
        .delete("going", &DeleteParams::default())
        .await
        .expect("deleted");
    until_gone(&namespaces, "going").await;
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
    create(&namespaces, "going").await;
    let again = Instant::now();
    apply_many(&scenario, "h", 2, 2).await;
    until_exact(&scenario).await;
    assert!(again.elapsed().as_secs() < 30, "{:?}", again.elapsed());
    assert!(host.is_alive());
}

async fn create(namespaces: &Api<Namespace>, name: &str) {
    let namespace = serde_json::json!({ "metadata": { "name": name } });
    let namespace: Namespace = serde_json::from_value(namespace).unwrap();
    let created = namespaces.create(&PostParams::default(), &namespace).await;
    created.expect("a namespace");
}

async fn until_gone(namespaces: &Api<Namespace>, name: &str) {
    let gone = async {
        while namespaces.get_opt(name).await.expect("an answer").is_some() {
            tokio::time::sleep(Duration::from_millis(50)).await;
        }
    };
    tokio::time::timeout(LIMIT, gone)
        .await
        .expect("the namespace goes");
}
