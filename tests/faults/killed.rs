//! The host is killed during its work and restarted.

use std::hash::{BuildHasher, RandomState};
use std::time::Duration;

use kube::core::DynamicObject;
use serde_json::json;

use crate::samples::echo::CONTROLLER;
use crate::samples::many_echoes::{ECHO, POD, apply_many, creations, until_exact, until_pods};
use crate::support::{LIMIT, Scenario, cluster, condition};

#[tokio::test]
async fn a_host_killed_at_any_point_leaves_exactly_the_desired_children_after_its_restart() {
    let scenario = Scenario::new("killed").await;
    apply_many(&scenario, "k", 60, 3).await;
    // Kills the host at a random time in each of three parts of the work.
    let draw = |below: u64| usize::try_from(RandomState::new().hash_one(0) % below).unwrap();
    let points = [1 + draw(40), 60 + draw(40), 120 + draw(40)];
    eprintln!("killed after {points:?} of 180 pods");
    for point in points {
        let host = scenario.start(CONTROLLER);
        until_pods(&scenario, point).await;
        host.kill();
    }
    // While the host is down: scaled down, scaled up, deleted.
    for i in 0..10 {
        let replicas = json!({ "spec": { "replicas": if i % 2 == 0 { 1 } else { 4 } } });
        scenario.patch(ECHO, &format!("k{i}"), replicas).await;
    }
    scenario.delete(ECHO, "k59").await;
    let _host = scenario.start(CONTROLLER);
    until_exact(&scenario).await;
    let created = creations(&scenario.all_writes(cluster().await).await);
    assert!(created.values().all(|&times| times == 1), "{created:?}");
}

#[tokio::test]
async fn a_host_killed_while_it_prunes_leaves_nothing_over() {
    let scenario = Scenario::new("killed-pruning").await;
    let host = scenario.start(CONTROLLER);
    apply_many(&scenario, "p", 20, 5).await;
    until_exact(&scenario).await;
    apply_many(&scenario, "p", 20, 1).await;
    let few = async { while scenario.names(POD).await.len() > 80 {} };
    tokio::time::timeout(LIMIT, few).await.expect("some are pruned");
    host.kill();
    let _host = scenario.start(CONTROLLER);
    until_exact(&scenario).await;
    assert_eq!(scenario.names(POD).await.len(), 20);
}

/// Every kind of sample, so that the children include objects that the API server normalizes.
#[tokio::test]
async fn a_second_start_writes_nothing_when_nothing_changed() {
    let scenario = Scenario::new("second-start").await;
    let controllers = format!("{CONTROLLER}  resync: 100ms\n{OTHERS}");
    let host = scenario.start(&controllers);
    apply_many(&scenario, "s", 5, 2).await;
    scenario.apply(MYSQL).await;
    scenario.apply(MYAPP).await;
    until_ready(&scenario).await;
    assert_eq!(host.stop().await.code(), Some(0));
    let before = scenario.writes(cluster().await);
    let host = scenario.start(&controllers);
    let log = host.log().len();
    let reconciles = |name: &str| {
        let of_name = |line: &&str| line.contains("reconcile done") && line.contains(name);
        host.log()[log..].lines().filter(of_name).count()
    };
    // The first reconcile, and part of the resync.
    let enough = async {
        while ["second-start/db", "second-start/app", "second-start/s4"]
            .iter()
            .any(|name| reconciles(name) < 4)
        {
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
    };
    tokio::time::timeout(LIMIT, enough).await.expect("reconciles");
    let after = scenario.writes(cluster().await);
    assert_eq!(after.len(), before.len(), "{:#?}", &after[before.len()..]);
}

const OTHERS: &str = "\
- name: mysql
  parent: {apiVersion: database.example.com/v2, kind: MySQLCluster}
  plugin: mysql.wasm
  children:
  - {apiVersion: v1, kind: Service}
  - {apiVersion: v1, kind: PersistentVolumeClaim}
  - {apiVersion: v1, kind: Pod}
  - {apiVersion: v1, kind: Secret}
  reads: [{apiVersion: v1, kind: Secret}]
  resync: 100ms
- name: myapp
  parent: {apiVersion: example.com/v1, kind: MyApp}
  plugin: myapp.wasm
  children: [{apiVersion: apps/v1, kind: Deployment}, {apiVersion: v1, kind: Service}]
  resync: 100ms
";

const MYSQL: &str = "\
apiVersion: database.example.com/v2
kind: MySQLCluster
metadata: {name: db}
spec: {version: '8.4', replicas: 2, storage: {size: 1Gi}, resources: {cpu: 500m, memory: 1Gi}}
";

const MYAPP: &str = "\
apiVersion: example.com/v1
kind: MyApp
metadata: {name: app}
spec: {image: 'nginx:1.27', port: 80, env: [{name: A, value: b}]}
";

async fn until_ready(scenario: &Scenario) {
    let ready = |object: &DynamicObject| condition(object, "Ready").is_some_and(|c| c["status"] == "True");
    scenario
        .until("database.example.com/v2/MySQLCluster", "db", "ready", ready)
        .await;
    scenario
        .until("example.com/v1/MyApp", "app", "ready", ready)
        .await;
    for i in 0..5 {
        scenario
            .until(ECHO, &format!("s{i}"), "ready", |e| {
                e.data["status"]["isReady"] == true
            })
            .await;
    }
}
