//! The administrator restores etcd from a snapshot.

use crate::faults::renewed::without_controllers;
use crate::support::prelude::*;

/// Starts etcd and then the API server.
async fn start(cluster: &mut ControlPlane) {
    // It waits for an API server, which does not run yet.
    let _ = cluster.start_etcd().await;
    cluster.start_apiserver().await.expect("the API server");
}

/// Regression: the host waited for changes after a version that the restored API server had not reached, for ten minutes
/// and more.
#[tokio::test]
async fn a_running_host_goes_on_from_what_a_snapshot_of_etcd_has() {
    let mut cluster = without_controllers().await;
    let scenario = Scenario::within(&cluster, "restored").await;
    let mut host = scenario.start(&controller("puppet.wasm", ""));
    let both = [config_map("a", "1"), config_map("b", "1")];
    scenario.ready_wants("p", &both).await;

    let [data, snapshot] = ["etcd", "snapshot"].map(|folder| cluster.data_dir().join(folder));
    cluster.stop_apiserver().await;
    cluster.kill_etcd();
    let copied = Command::new("cp").arg("-a").args([&data, &snapshot]).status();
    assert!(copied.unwrap().success());
    start(&mut cluster).await;
    scenario.wants("p", &[config_map("a", "2")]).await;
    scenario.until_text("a", "2").await;
    scenario.until_gone(CONFIG_MAP, "b").await;
    // The restored API server must not reach the last version by chance.
    for change in 0..200 {
        let change = json!({"metadata": {"annotations": {"change": change.to_string()}}});
        scenario.patch(PUPPET, "p", change.clone()).await;
        scenario.patch(CONFIG_MAP, "a", change).await;
    }

    cluster.stop_apiserver().await;
    cluster.kill_etcd();
    std::fs::remove_dir_all(&data).unwrap();
    std::fs::rename(&snapshot, &data).unwrap();
    start(&mut cluster).await;
    host.until_log("the API server has gone back to an earlier state … ConfigMap")
        .await;
    // The parent is what it was, and what users do from now on is seen.
    scenario.until_text("a", "1").await;
    let others = [config_map("a", "3"), config_map("c", "3")];
    scenario.wants("p", &others).await;
    scenario.until_text("c", "3").await;
    scenario.until_text("a", "3").await;
    scenario.until_gone(CONFIG_MAP, "b").await;
    scenario.remove(CONFIG_MAP, "c").await;
    scenario.until_text("c", "3").await;
    assert!(host.is_alive());
}
