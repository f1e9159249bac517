//! A namespace is deleted with everything in it, under a host that is at work.

use k8s_openapi::api::core::v1::Namespace;
use kube::Api;
use kube::api::DeleteParams;

use crate::echo::CONTROLLER;
use crate::echoes::{apply_many, complaints, until_exact};
use crate::support::{LIMIT, Scenario, cluster};

#[tokio::test]
async fn a_namespace_that_is_deleted_goes_without_a_fight() {
    let scenario = Scenario::new("going").await;
    let mut host = scenario.start(CONTROLLER);
    apply_many(&scenario, "g", 10, 3).await;
    until_exact(&scenario).await;
    let before = scenario.all_writes(cluster().await).await.len();
    let namespaces = Api::<Namespace>::all(scenario.client.clone());
    let deleted = std::time::Instant::now();
    namespaces
        .delete("going", &DeleteParams::default())
        .await
        .expect("deleted");
    let gone = async {
        while namespaces.get_opt("going").await.expect("an answer").is_some() {
            tokio::time::sleep(std::time::Duration::from_millis(50)).await;
        }
    };
    tokio::time::timeout(LIMIT, gone)
        .await
        .expect("the namespace goes");
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
    // Each of the 30 pods that goes is a reason to look at its parent, and one try shows that it is in vain.
    assert!(own.len() < 200, "{}", own.len());
    let complaints = complaints(&host);
    assert!(complaints.is_empty(), "{complaints:#?}");
    assert!(host.is_alive());
}
