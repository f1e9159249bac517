//! The host is killed during its work and restarted.

use crate::support::prelude::*;
use std::hash::{BuildHasher, RandomState};

use crate::samples::echo::CONTROLLER;
use crate::samples::many_echoes::{ECHO, apply_many, creations, until_exact, until_pods};

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
