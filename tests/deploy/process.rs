//! The process: how it handles an invalid configuration, and how it ends.

use crate::support::prelude::*;

#[tokio::test]
async fn a_wrong_configuration_is_reported_with_its_position_and_nothing_is_started() {
    let scenario = Scenario::new("bad-config").await;
    scenario.wants("p", &[config_map("a", "")]).await;
    let config = scenario.config(&controller("puppet.wasm", "colour: red"));
    let error = scenario.program(&["run", "--config"]).arg(&config).call().err;
    let words = format!("{}:9:5: … unknown field `colour`", config.display());
    assert_contains(&error, &words);
    assert!(scenario.get(CONFIG_MAP, "a").await.is_none());
    let puppet = scenario.get(PUPPET, "p").await.unwrap();
    assert!(puppet.metadata.finalizers.is_none() && puppet.data["status"].is_null());
}

#[tokio::test]
async fn sigterm_waits_for_the_call_under_way_and_what_comes_of_it() {
    let scenario = Scenario::new("drain").await;
    let mut host = scenario.start(&controller("puppet.wasm", "limits: {deadline: 60s}"));
    scenario
        .puppet(
            "p",
            json!({"busy": 400, "response": {"children": [config_map("a", "")], "status": {"note": "done"}}}),
        )
        .await;
    host.until_log("busy").await;
    assert!(
        scenario.get(CONFIG_MAP, "a").await.is_none(),
        "the call is over already"
    );
    host.terminate();
    host.until_log("waiting for the reconciles in progress").await;
    assert!(host.is_alive(), "it does not wait");
    // No new work is started.
    scenario.wants("late", &[config_map("late", "")]).await;
    assert_eq!(host.ended().await.code(), Some(0));
    assert!(scenario.get(CONFIG_MAP, "a").await.is_some());
    let puppet = scenario.get(PUPPET, "p").await.unwrap();
    assert_eq!(puppet.data["status"]["note"], "done");
    assert!(scenario.get(CONFIG_MAP, "late").await.is_none());
}
