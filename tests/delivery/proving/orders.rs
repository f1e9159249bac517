//! Promote and pin annotations, and the versions that are kept over a restart.

use crate::support::prelude::*;
use std::fs;

use super::{DEFINITION, Stage, digest, response, until_held_back, until_live, until_released, until_report};
use crate::telemetry::{port, until_ready_says};

#[tokio::test]
async fn after_a_restart_the_last_good_version_runs_and_the_other_is_held_back_again() {
    let scenario = Scenario::new("proving-restart").await;
    let mut stage = Stage::new(&scenario, "");
    let host = stage.start();
    let spec =
        |text: &str| json!({"response": response(&[("a", text)]), "variants": {"1": {"response": {}}}});
    scenario.ready_with("p", spec("x")).await;
    let uid = scenario.get(CONFIG_MAP, "a").await.unwrap().metadata.uid;
    stage.swap(1);
    until_held_back(&host, 1).await;
    assert_eq!(host.stop().await.code(), Some(0));

    // A separate log distinguishes the second run from the first.
    fs::remove_file(scenario.folder.path().join("host.log")).unwrap();
    let host = stage.start();
    until_live(&host, 0, "last good one before the restart").await;
    until_held_back(&host, 1).await;
    scenario.puppet("p", spec("y")).await;
    scenario.until_text("a", "y").await;
    assert_eq!(scenario.get(CONFIG_MAP, "a").await.unwrap().metadata.uid, uid);
    assert_eq!(host.stop().await.code(), Some(0));

    // A damaged version is not used, which the log reports. The version in the file is still held back.
    let kept = stage
        .state
        .join("puppet")
        .join(format!("{}.wasm", digest(0).to_string().replace(':', "-")));
    fs::write(&kept, "damaged").unwrap();
    fs::remove_file(scenario.folder.path().join("host.log")).unwrap();
    let host = stage.start();
    host.until_log("a kept version of the plugin cannot be restored … damaged")
        .await;
    until_held_back(&host, 1).await;
    assert_eq!(scenario.get(CONFIG_MAP, "a").await.unwrap().metadata.uid, uid);
}

#[tokio::test]
async fn the_configuration_promotes_a_version_by_force_or_allows_more_of_what_was_held_back() {
    let scenario = Scenario::new("proving-force").await;
    let mut stage = Stage::new(&scenario, "");
    let host = stage.start();
    let variants = json!({"1": {"response": response(&[("b", "x")])}, "2": {"response": {}}});
    let spec = json!({"response": response(&[("a", "x")]), "variants": variants});
    scenario.ready_with("p", spec).await;
    stage.swap(1);
    until_held_back(&host, 1).await;
    assert_eq!(host.stop().await.code(), Some(0));
    assert!(scenario.get(CONFIG_MAP, "a").await.is_some());
    stage.more = format!("proving: {{promote: {}}}", digest(1));
    let host = stage.start();
    until_live(&host, 1, "promoted by force").await;
    scenario.until_gone(CONFIG_MAP, "a").await;

    scenario.until_there(CONFIG_MAP, "b").await;
    stage.swap(2);
    until_held_back(&host, 2).await;
    stage.more = "proving: {maxDeletions: 100%}".into();
    stage.configure();
    until_live(&host, 2, "1 of 1 child deleted").await;
    scenario.until_gone(CONFIG_MAP, "b").await;
}

/// The field manager of these annotations.
const MANAGER: &str = "the-night-shift";

/// Sets annotations of the kind's definition; null removes one.
async fn annotate(scenario: &Scenario, annotations: Value) {
    let api = scenario.api("apiextensions.k8s.io/v1/CustomResourceDefinition");
    let patch = Patch::Merge(json!({"metadata": {"annotations": annotations}}));
    let parameters = PatchParams::apply(MANAGER);
    api.patch(DEFINITION, &parameters, &patch).await.unwrap();
}

#[tokio::test]
async fn annotations_promote_by_force_roll_back_and_release() {
    // In a shared cluster, all scenarios use the same definition.
    let cluster = own_cluster(Options::default()).await;
    let scenario = Scenario::within(&cluster, "proving-orders").await;
    let mut stage = Stage::new(&scenario, "");
    let host = stage.start();
    let spec = json!({"response": response(&[("a", "x")]), "variants": {"1": {"response": response(&[("b", "x")])}}});
    scenario.ready_with("p", spec).await;
    stage.swap(1);
    until_held_back(&host, 1).await;
    annotate(&scenario, json!({"operator-host.dev/promote": digest(1).short()})).await;
    until_live(&host, 1, "promoted by force").await;
    scenario.until_gone(CONFIG_MAP, "a").await;
    scenario.until_there(CONFIG_MAP, "b").await;
    until_released(&scenario, "p").await;

    annotate(&scenario, json!({"operator-host.dev/pin": digest(0).to_string()})).await;
    until_live(&host, 0, "rolled back to").await;
    scenario.until_gone(CONFIG_MAP, "b").await;
    scenario.until_there(CONFIG_MAP, "a").await;
    let report = until_report(&host, "put aside", |r| r["candidate"]["state"] == "putAside").await;
    assert_eq!(
        report["pinned"],
        digest(0).to_string().trim_start_matches("sha256:")
    );
    assert_eq!(report["live"]["digest"], digest(0).to_string());

    // Who ordered it is asked after the version is live.
    let before = eventually("three entries of the history", async || {
        let history = history(&host).await;
        let is_long = history.as_array().is_some_and(|all| all.len() >= 3);
        is_long.then(|| history.clone()).ok_or(format!("{history:#}"))
    })
    .await;
    let [zero, one] = [0, 1].map(|number| digest(number).to_string());
    let expected = [
        json!(["rolledBack", MANAGER, zero]),
        json!(["forced", MANAGER, one]),
        json!(["first", null, zero]),
    ];
    let entries = before.as_array().unwrap().iter();
    let all: Vec<_> = entries
        .map(|it| json!([it["why"], it["by"], it["digest"]]))
        .collect();
    assert_eq!(all, expected);
    let words = "promoted by force … it would delete";
    assert_contains(before[1]["because"].as_str().unwrap(), words);
    assert_eq!(before[1]["before"], zero);

    annotate(&scenario, json!({"operator-host.dev/promote": "latest"})).await;
    host.until_log("operator-host.dev/promote is ignored … latest")
        .await;
    // Neither in the file nor kept: only reported.
    annotate(&scenario, json!({"operator-host.dev/pin": "0123456789abcdef"})).await;
    host.until_log("0123456789abcdef is pinned … stays").await;
    until_ready_says(&host, "0123456789abcdef is pinned … remove the pin").await;
    let says = "PluginHeldBack=True PinMatchesNothing: 0123456789abcdef is pinned";
    scenario.until_told("p", says).await;
    scenario.until_event("p", "Warning PluginHeldBack").await;
    // Without annotations the file's version is proved again.
    annotate(
        &scenario,
        json!({"operator-host.dev/pin": null, "operator-host.dev/promote": null}),
    )
    .await;
    until_report(&host, "held back", |r| r["candidate"]["state"] == "heldBack").await;
    assert!(scenario.get(CONFIG_MAP, "a").await.is_some());

    assert_eq!(host.stop().await.code(), Some(0));
    let host = stage.start();
    until_live(&host, 0, "it was the last good one before the restart").await;
    let file = fs::read(stage.state.join("puppet/history.json")).unwrap();
    let after: Value = serde_json::from_slice(&file).unwrap();
    let times = |history: &Value| -> Vec<Value> {
        let entries = history.as_array().unwrap().iter();
        entries.map(|entry| entry["at"].clone()).collect()
    };
    assert_eq!(times(&after), times(&before), "a restart is no news");
    let diff = |history: &Value| history[1]["diff"].as_str().unwrap_or_default().to_owned();
    assert_contains(&diff(&after), "- … +");
    assert_contains(&diff(&before), "hidden: only the host's own user");
}

/// Returns what `plugins history` prints as JSON.
async fn history(host: &Host) -> Value {
    let address = format!("127.0.0.1:{}", port(host).await);
    let mut command = program(&["plugins", "history", "puppet", "-o", "json", "--address"]);
    command.arg(address);
    let printed = tokio::task::spawn_blocking(move || command.prints());
    serde_json::from_str(&printed.await.expect("it runs")).unwrap()
}
