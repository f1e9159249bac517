//! Plugins that change while the host runs, in a folder that changes like a mounted ConfigMap.
//!
//! Proving is off, so that every version that loads takes over; `super::proving` has the scenarios with it.

use std::collections::BTreeMap;
use std::fs;

use crate::support::mount::Mount;
use crate::support::{Host, LIMIT, Scenario, cluster, plugin};

const ECHO: &str = "my-operator.dev/v1/Echo";
const POD: &str = "v1/Pod";

const FILE: &str = "echo.wasm";

fn mounted(scenario: &Scenario, content: &[u8]) -> Mount {
    Mount::new(&scenario.folder.path().join("mount"), FILE, content)
}

fn start(mount: &Mount, scenario: &Scenario, arguments: &[&str]) -> Host {
    let text = format!(
        "plugins: {}\nnamespaces: [{}]\ncontrollers:\n- name: echo\n  \
         parent: {{apiVersion: my-operator.dev/v1, kind: Echo}}\n  plugin: {FILE}\n  \
         children: [{{apiVersion: v1, kind: Pod}}]\n  backoff: {{initial: 100ms, max: 1s}}\n  \
         proving: {{mode: off}}\n",
        mount.path.display(),
        scenario.namespace
    );
    let config = scenario.file("config.yaml", text);
    scenario.start_with(&config, arguments)
}

/// Returns the unmodified sample.
fn echo() -> Vec<u8> {
    fs::read(plugin("echo")).unwrap()
}

/// Returns another file with the same answers: the sample with an additional custom section.
fn same_answers(number: u8) -> Vec<u8> {
    let mut file = echo();
    file.extend([0, 3, 1, b'v', number]);
    file
}

/// Returns a version with other names of pods, `e-box-0` instead of `e-pod-0`.
fn other_names() -> Vec<u8> {
    let mut file = echo();
    let at = file.windows(5).position(|bytes| bytes == b"-pod-").unwrap();
    file[at..at + 5].copy_from_slice(b"-box-");
    file
}

fn resource(replicas: u32) -> String {
    format!(
        "apiVersion: my-operator.dev/v1\nkind: Echo\nmetadata: {{name: e}}\n\
         spec: {{replicas: {replicas}, image: 'echo:1'}}"
    )
}

async fn until_ready(scenario: &Scenario) {
    scenario
        .until(ECHO, "e", "ready", |e| e.data["status"]["isReady"] == true)
        .await;
}

/// Waits until this many versions were loaded.
async fn until_loaded(host: &Host, count: usize) {
    let loaded = async {
        while host.log().matches("plugin loaded").count() < count {
            tokio::time::sleep(std::time::Duration::from_millis(20)).await;
        }
    };
    tokio::time::timeout(LIMIT, loaded)
        .await
        .unwrap_or_else(|_| panic!("{count} versions loaded; the log:\n{}", host.log()));
}

#[tokio::test]
async fn a_new_version_takes_over_and_every_object_is_reconciled() {
    let scenario = Scenario::new("reload-takes-over").await;
    let mut mount = mounted(&scenario, &echo());
    let host = start(&mount, &scenario, &[]);
    scenario.apply(&resource(2)).await;
    until_ready(&scenario).await;
    assert_eq!(scenario.names(POD).await, ["e-pod-0", "e-pod-1"]);
    mount.put(FILE, &other_names());
    scenario
        .until(POD, "e-box-1", "made by the new version", |_| true)
        .await;
    scenario.until_gone(POD, "e-pod-0").await;
    scenario.until_gone(POD, "e-pod-1").await;
    // Return to the first version's digest.
    mount.put(FILE, &echo());
    scenario
        .until(POD, "e-pod-1", "made by the first version", |_| true)
        .await;
    scenario.until_gone(POD, "e-box-0").await;
    assert_eq!(host.log().matches("plugin loaded").count(), 3);
    assert_eq!(host.stop().await.code(), Some(0));
}

#[tokio::test]
async fn versions_that_answer_the_same_write_nothing() {
    let scenario = Scenario::new("reload-quiet").await;
    let mut mount = mounted(&scenario, &echo());
    let host = start(&mount, &scenario, &[]);
    scenario.apply(&resource(2)).await;
    until_ready(&scenario).await;
    let before = scenario.all_writes(cluster().await).await;
    for number in 1..=5 {
        mount.put(FILE, &same_answers(number));
        until_loaded(&host, usize::from(number) + 1).await;
    }
    // Load another version, which does write: then everything before it has been processed.
    mount.put(FILE, &other_names());
    scenario
        .until(POD, "e-box-0", "made by the last version", |_| true)
        .await;
    let pods = |event: &control_plane::AuditEvent| {
        event
            .object_ref
            .clone()
            .is_some_and(|object| object.name.starts_with("e-pod"))
            && event.verb != "delete"
    };
    let after = scenario.writes(cluster().await);
    let more: Vec<_> = after[before.len()..].iter().filter(|event| pods(event)).collect();
    assert!(more.is_empty(), "{more:#?}");
}

#[tokio::test]
async fn a_bad_version_leaves_the_children_and_the_live_version_alone() {
    let scenario = Scenario::new("reload-bad").await;
    let mut mount = mounted(&scenario, &echo());
    let mut host = start(&mount, &scenario, &[]);
    scenario.apply(&resource(1)).await;
    until_ready(&scenario).await;
    let pod = scenario.get(POD, "e-pod-0").await.unwrap();
    mount.put(FILE, &echo()[..50_000]);
    host.until_log(&["cut off", "stays live"]).await;
    mount.put(FILE, &fs::read(plugin("mysql")).unwrap());
    host.until_log(&["it reconciles", "MySQLCluster", "stays live"])
        .await;
    mount.project(&BTreeMap::new());
    host.until_log(&["not there", "stays live"]).await;
    // The live version still answers.
    scenario.apply(&resource(2)).await;
    scenario
        .until(POD, "e-pod-1", "made by the live version", |_| true)
        .await;
    assert_eq!(
        scenario.get(POD, "e-pod-0").await.unwrap().metadata.uid,
        pod.metadata.uid
    );
    assert!(host.is_alive());
}

#[tokio::test]
async fn a_host_that_starts_with_a_bad_file_works_when_a_good_one_comes() {
    let scenario = Scenario::new("reload-bad-start").await;
    let mut mount = mounted(&scenario, b"\0asm and nothing more");
    let _host = start(&mount, &scenario, &[]);
    scenario.apply(&resource(1)).await;
    scenario
        .until(ECHO, "e", "reported why there is no answer", |e| {
            e.data["status"]["conditions"]
                .to_string()
                .contains("cannot be used")
        })
        .await;
    mount.put(FILE, &echo());
    until_ready(&scenario).await;
}

#[tokio::test]
async fn a_start_with_a_warm_cache_compiles_nothing() {
    let scenario = Scenario::new("reload-cache").await;
    let mount = mounted(&scenario, &echo());
    let cache = scenario.folder.path().join("cache").display().to_string();
    for compiled in ["\"compiled\":true", "\"compiled\":false"] {
        let host = start(
            &mount,
            &scenario,
            &["--cache-dir", &cache, "--log-format", "json"],
        );
        host.until_log(&["plugin loaded", compiled]).await;
        assert_eq!(host.stop().await.code(), Some(0));
    }
}
