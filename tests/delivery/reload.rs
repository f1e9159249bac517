//! Plugins that change while the host runs, in a folder that changes like a mounted ConfigMap.
//!
//! Proving is off, so that every version that loads takes over; `super::proving` has the scenarios with it.

use crate::support::prelude::*;
use std::collections::BTreeMap;
use std::fs;

use crate::samples::echo::{CONTROLLER, echo};

const POD: &str = "v1/Pod";

const FILE: &str = "echo.wasm";

fn mounted(scenario: &Scenario, content: &[u8]) -> Mount {
    Mount::new(&scenario.folder.path().join("mount"), FILE, content)
}

fn start(mount: &Mount, scenario: &Scenario) -> Host {
    let config = scenario.config_in(&mount.path, &format!("{CONTROLLER}  proving: {{mode: off}}\n"));
    scenario.start_with(&config, &[])
}

/// Returns the unmodified sample.
fn sample() -> Vec<u8> {
    fs::read(plugin("echo")).unwrap()
}

/// Returns a version with other names of pods, `e-box-0` instead of `e-pod-0`.
fn other_names() -> Vec<u8> {
    let mut file = sample();
    let at = file.windows(5).position(|bytes| bytes == b"-pod-").unwrap();
    file[at..at + 5].copy_from_slice(b"-box-");
    file
}

#[tokio::test]
async fn a_new_version_takes_over_and_every_object_is_reconciled() {
    let scenario = Scenario::new("reload-takes-over").await;
    let mut mount = mounted(&scenario, &sample());
    let host = start(&mount, &scenario);
    scenario.apply(&echo(2)).await;
    scenario.until_echo("e").await;
    assert_eq!(scenario.names(POD).await, ["e-pod-0", "e-pod-1"]);
    mount.put(FILE, &other_names());
    scenario.until_there(POD, "e-box-1").await;
    scenario.until_gone(POD, "e-pod-0").await;
    scenario.until_gone(POD, "e-pod-1").await;
    // Return to the first version's digest.
    mount.put(FILE, &sample());
    scenario.until_there(POD, "e-pod-1").await;
    scenario.until_gone(POD, "e-box-0").await;
    assert_eq!(host.log().matches("plugin loaded").count(), 3);
    assert_eq!(host.stop().await.code(), Some(0));
}

#[tokio::test]
async fn a_bad_version_leaves_the_children_and_the_live_version_alone() {
    let scenario = Scenario::new("reload-bad").await;
    let mut mount = mounted(&scenario, &sample());
    let mut host = start(&mount, &scenario);
    scenario.apply(&echo(1)).await;
    scenario.until_echo("e").await;
    let pod = scenario.get(POD, "e-pod-0").await.unwrap();
    mount.put(FILE, &sample()[..50_000]);
    host.until_log("cut off … stays live").await;
    mount.put(FILE, &fs::read(plugin("mysql")).unwrap());
    host.until_log("it reconciles … MySQLCluster … stays live").await;
    mount.project(&BTreeMap::new());
    host.until_log("not there … stays live").await;
    // The live version still answers.
    scenario.apply(&echo(2)).await;
    scenario.until_there(POD, "e-pod-1").await;
    assert_eq!(
        scenario.get(POD, "e-pod-0").await.unwrap().metadata.uid,
        pod.metadata.uid
    );
    assert!(host.is_alive());
}
