//! The API server or etcd is unavailable, and a host without a connection misses changes.

use crate::samples::echo::CONTROLLER;
use crate::samples::many_echoes::{POD, apply_many, complaints, creations, until_exact, until_pods};
use crate::support::prelude::*;

/// One control plane for all outages, one after the other: each costs seconds of two cores.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_host_outlives_every_outage_and_everything_is_there_once() {
    let options = Options {
        controller_manager: false,
        ..Options::default().with_audit()
    };
    let mut cluster = own_cluster(options).await;
    let scenario = Scenario::within(&cluster, "outages").await;
    let mut host = scenario.start(CONTROLLER);
    the_api_server_restarts_under_load(&mut cluster, &scenario, &host).await;
    etcd_is_away_under_load(&cluster, &scenario, &host).await;
    deletions_are_missed(&mut cluster, &scenario, &host).await;
    assert!(host.is_alive());
}

async fn the_api_server_restarts_under_load(cluster: &mut ControlPlane, scenario: &Scenario, host: &Host) {
    apply_many(scenario, "a", 60, 3).await;
    until_pods(scenario, 20).await;
    cluster.stop_apiserver().await;
    host.until_log("the API server cannot be reached").await;
    let away = Instant::now();
    cluster.start_apiserver().await.expect("the API server");
    let back = Instant::now();
    until_exact(scenario).await;
    eprintln!(
        "API server away for {:?}; all 60 right {:?} after it was ready",
        back - away,
        back.elapsed()
    );
    // Far below the delay of an unbounded back-off, and far above the time needed.
    assert!(back.elapsed() < Duration::from_secs(15), "{:?}", back.elapsed());
    // The audit log may have lost the last writes before the end.
    let created = creations(&scenario.writes(cluster));
    assert!(created.len() > 100, "{}", created.len());
    assert!(created.values().all(|&times| times == 1), "{created:?}");
    let complaints = complaints(host);
    assert!(complaints.len() <= 5, "{complaints:#?}");
    // It continues to work: this needs the watch of the parents.
    apply_many(scenario, "b", 1, 1).await;
    until_exact(scenario).await;
}

async fn etcd_is_away_under_load(cluster: &ControlPlane, scenario: &Scenario, host: &Host) {
    let before = complaints(host).len();
    apply_many(scenario, "c", 30, 3).await;
    until_pods(scenario, 190).await;
    cluster.pause_etcd();
    // Wait for the outage itself.
    tokio::time::sleep(Duration::from_secs(10)).await;
    cluster.resume_etcd();
    let back = Instant::now();
    until_exact(scenario).await;
    eprintln!(
        "etcd away for 10 s; all right {:?} after it was back",
        back.elapsed()
    );
    let complaints = &complaints(host)[before..];
    assert!(complaints.len() <= 5, "{complaints:#?}");
}

/// The host is disconnected, and the new API server has no history from before its own start: only a list shows the
/// deletions.
async fn deletions_are_missed(cluster: &mut ControlPlane, scenario: &Scenario, host: &Host) {
    let first = scenario.get(POD, "a0-pod-1").await.expect("a pod");
    // Its connections end, and it is suspended and cannot open new ones.
    cluster.stop_apiserver().await;
    host.process().pause();
    cluster.start_apiserver().await.expect("the API server");
    scenario.remove(POD, "a0-pod-1").await;
    cluster.restart_apiserver().await.expect("the API server");
    host.process().resume();
    let back = Instant::now();
    scenario
        .until(POD, "a0-pod-1", "recreated", |pod| {
            pod.metadata.uid != first.metadata.uid
        })
        .await;
    eprintln!(
        "a pod deleted in a watch gap is back {:?} after the host",
        back.elapsed()
    );
    until_exact(scenario).await;
}
