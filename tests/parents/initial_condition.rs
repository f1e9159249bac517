//! A new object has a condition within five seconds, whatever the host waits for.

use crate::support::prelude::*;
use plugin_fixtures::hard;

use crate::faults::transient_errors::behind_a_proxy;

/// What the documentation promises.
const PROMISED: Duration = Duration::from_secs(5);

const UNAVAILABLE: Mode = Mode::refuse(503);

/// Creates a puppet and returns the message of its first condition, which comes in time.
async fn first_message(scenario: &Scenario, host: &Host, name: &str) -> String {
    host.until_log("configuration applied").await;
    let spec = json!({"response": {"children": [config_map(name, "1")]}});
    let created = Instant::now();
    scenario.puppet(name, spec).await;
    let message = scenario.until_told(name, "Reconciling=True Waiting").await;
    assert!(created.elapsed() < PROMISED, "{:?}: {message}", created.elapsed());
    let puppet = scenario.get(PUPPET, name).await.unwrap();
    assert_eq!(condition(&puppet, "Ready").unwrap()["status"], "False");
    message
}

#[tokio::test]
async fn while_the_first_list_of_a_kind_fails_or_hangs() {
    for (name, mode, words) in [
        ("first-list-fails", UNAVAILABLE, "cannot list v1/ConfigMap"),
        ("first-list-hangs", Mode::Stall, "v1/ConfigMap"),
    ] {
        let (scenario, proxy) = behind_a_proxy(name).await;
        proxy.set_mode_of("/configmaps", mode);
        let host = scenario.start(&controller("puppet.wasm", ""));
        let message = first_message(&scenario, &host, "p").await;
        assert_contains(&message, &format!("waiting for … {words}"));
        proxy.set_mode(Mode::Pass);
        scenario.until_ready("p").await;
    }
}

#[tokio::test]
async fn while_the_api_server_of_a_child_kind_is_away() {
    let (scenario, proxy) = behind_a_proxy("first-api-service").await;
    proxy.set_mode_of("/apis/apps/v1", UNAVAILABLE);
    let children = "children: [{apiVersion: v1, kind: ConfigMap}, {apiVersion: apps/v1, kind: Deployment}]";
    let host = scenario.start(&controller("puppet.wasm", children));
    let message = first_message(&scenario, &host, "p").await;
    assert_contains(&message, "waiting for … apps/v1/Deployment");
    assert!(scenario.get("v1/ConfigMap", "p").await.is_none());
    proxy.set_mode(Mode::Pass);
    scenario.until_ready("p").await;
}

#[tokio::test]
async fn while_the_plugin_compiles() {
    let scenario = Scenario::new("first-compile").await;
    let plugins = scenario.folder.path().display();
    scenario.file("slow.wasm", hard::slow());
    let file = format!("{plugins}/slow.wasm");
    let host = scenario.start(&controller(&file, "limits: {compile: 60s}"));
    let message = first_message(&scenario, &host, "p").await;
    assert_contains(&message, "waiting for the plugin");
}

#[tokio::test]
async fn while_every_worker_is_busy() {
    let scenario = Scenario::new("first-workers").await;
    let more = "concurrency: 1\nlimits: {deadline: 20s}";
    let host = scenario.start(&controller("puppet.wasm", more));
    host.until_log("controller started").await;
    scenario.puppet("busy", json!({"misbehave": "loop"})).await;
    host.until_log("reconcile started … first-workers/busy").await;
    let message = first_message(&scenario, &host, "p").await;
    assert_contains(&message, "waiting for a worker");
    scenario.until_ready("p").await;
}
