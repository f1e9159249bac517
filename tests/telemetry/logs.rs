//! The log of a running host: its level, and the output of plugins.

use crate::support::prelude::*;
use plugin_fixtures::cases;

use super::faults::build;
use super::{ECHO, echo, get, value};
use crate::samples::echo::CONTROLLER;

fn logged(host: &Host) -> Vec<Value> {
    let log = host.log();
    let lines = log
        .lines()
        .filter_map(|line| serde_json::from_str::<Value>(line).ok());
    lines.filter(|line| line["target"] == "plugin").collect()
}

#[tokio::test]
async fn the_level_changes_while_the_host_runs_and_the_logs_of_plugins_are_bounded() {
    let scenario = Scenario::new("log-level").await;
    let plugin = scenario.file("flood.wasm", build(cases::LOG_FLOOD));
    let controller = CONTROLLER
        .replace("echo.wasm", plugin.to_str().unwrap())
        .replace("Pod", "ConfigMap");
    let environment = [
        // The level of the line that contains the port.
        ("OPERATOR_HOST_LOG", "warn,operator_host_instruments::health=info"),
        ("OPERATOR_HOST_LOG_FORMAT", "json"),
    ];
    let host = scenario.start_in(&scenario.config(&controller), &[], &environment);
    scenario.apply(&echo(1)).await;
    scenario.until_there("v1/ConfigMap", "answer").await;
    assert!(logged(&host).is_empty());

    scenario.config_with("log: debug", &controller);
    host.until_log("configuration applied").await;
    scenario.patch(ECHO, "e", json!({"spec": {"replicas": 2}})).await;
    host.until_log("\"target\":\"plugin\"").await;
    let has_seen =
        |generation: u64| move |e: &DynamicObject| e.data["status"]["observedGeneration"] == generation;
    scenario.until(ECHO, "e", "seen", has_seen(2)).await;
    let lines = logged(&host);
    assert!(lines.len() >= 100, "{}", lines.len());
    // The last line: a reconcile that began before the change has no span.
    let line = lines.last().unwrap();
    assert_eq!(line["span"]["parent"], format!("{}/e", scenario.namespace));
    assert_eq!(line["span"]["controller"], "echo");
    assert_eq!(line["plugin"], "fixture");
    assert!(line["trace_id"].is_null(), "nothing is exported");

    // From one value of the file to another.
    scenario.config_with("log: info,plugin=debug", &controller);
    let words = "changing the log filter with the configuration … \"filter\":\"info,plugin=debug\"";
    host.until_log(words).await;
    scenario.config(&controller);
    let words = "changing the log filter with the configuration … \
         \"filter\":\"warn,operator_host_instruments::health=info\"";
    host.until_log(words).await;
    let before = logged(&host).len();
    scenario.patch(ECHO, "e", json!({"spec": {"replicas": 3}})).await;
    scenario.until(ECHO, "e", "seen", has_seen(3)).await;
    assert_eq!(logged(&host).len(), before);

    let (_, metrics) = get(&host, "/metrics").await;
    let is_it = |line: &&str| line.starts_with("operator_host_plugin_log_lines_dropped_total{");
    let dropped = value(metrics.lines().find(is_it).unwrap());
    assert!(dropped >= 3.0 * 9900.0, "{dropped}");
}

#[tokio::test]
async fn lines_for_people_are_no_json() {
    let scenario = Scenario::new("log-human").await;
    let environment = [("OPERATOR_HOST_LOG_FORMAT", "human")];
    let host = scenario.start_in(&scenario.config(CONTROLLER), &[], &environment);
    let line = host.until_log("controller started").await;
    assert!(line.contains("INFO") && !line.starts_with('{'), "{line}");
    assert!(!line.contains('\u{1b}'), "a file gets no colours: {line}");
}
