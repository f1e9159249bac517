//! A proved version that some objects have before the others.

use super::*;

/// A puppet that is Ready with the version 0, and not with the version 1, whose answers are otherwise the same.
fn breaks() -> Value {
    let response = |status: &str| json!({"conditions": [{"type": "Ready", "status": status, "reason": "Told", "message": "told"}]});
    json!({"response": response("True"), "variants": {"1": {"response": response("False")}}})
}

/// Returns the digest of the version that last reconciled a puppet, as its child says.
async fn digest_of(world: &World, child: &str) -> String {
    let child = world.scenario.get(CONFIG_MAP, child).await.unwrap();
    let annotations = child.metadata.annotations.unwrap_or_default();
    annotations["operator-host.dev/provenance"].clone()
}

#[tokio::test]
async fn a_version_goes_from_stage_to_stage_and_then_to_all() {
    let world = World::new("stages-good").await;
    let host = world.start();
    world.put(&variant(0)).await;
    let stages = json!({"proving": {"stages": [{"selector": "canary=true", "wait": "4s"}, {"percent": 100, "wait": "1s"}]}});
    world.controller("puppet", stages.clone()).await;
    world.until("puppet", "Ready", "True", "Running").await;
    let text = |text: &str| json!({"children": [config_map("CHILD", text)]}).to_string();
    for name in ["first", "other"] {
        let of =
            |version: &str| -> Value { serde_json::from_str(&text(version).replace("CHILD", name)).unwrap() };
        let spec = json!({"response": of("old"), "variants": {"1": {"response": of("new")}}});
        world.scenario.puppet(name, spec).await;
        world.scenario.until(CONFIG_MAP, name, "made", |_| true).await;
    }
    let label = json!({"metadata": {"labels": {"canary": "true"}}});
    world.scenario.patch(PUPPET, "first", label).await;
    let has = |text: &'static str| move |map: &DynamicObject| map.data["data"]["text"] == text;
    world.put(&variant(1)).await;
    world
        .scenario
        .until(CONFIG_MAP, "first", "of the new version", has("new"))
        .await;
    // The other one keeps the live version until the stage has ended.
    let object = world
        .scenario
        .until(CONTROLLER, "puppet", "the first stage is shown", |object| {
            let message = object.data["status"]["proposed"]["message"].as_str();
            message.is_some_and(|message| message.starts_with("stage 1 of 2: 1 of 2 objects"))
        })
        .await;
    assert!(is_true(&object, "Progressing") && is_ready(&object));
    assert!(has("old")(
        &world.scenario.get(CONFIG_MAP, "other").await.unwrap()
    ));
    world
        .scenario
        .until(CONFIG_MAP, "other", "of the new version", has("new"))
        .await;
    let new = operator_host_runtime::Digest::of(&variant(1)).to_string();
    world
        .scenario
        .until(CONTROLLER, "puppet", "it is live for all", |object| {
            version(object, "live") == new && object.data["status"]["proposed"].is_null()
        })
        .await;
    assert!(digest_of(&world, "first").await.contains(&new));
    // A pin takes it back from all of them.
    let old = operator_host_runtime::Digest::of(&variant(0)).to_string();
    let mut pinned = stages;
    pinned["version"] = json!({"pin": old});
    world.controller("puppet", pinned).await;
    for name in ["first", "other"] {
        world
            .scenario
            .until(CONFIG_MAP, name, "of the old version", has("old"))
            .await;
    }
    assert_eq!(host.stop().await.code(), Some(0));
}

#[tokio::test]
async fn a_stage_that_becomes_less_ready_returns_to_the_live_version_also_after_a_restart() {
    let world = World::new("stages-bad").await;
    // Where the live version is after a restart.
    let kept = world.scenario.folder.path().join("kept");
    let start = || {
        let config = world
            .scenario
            .file("config.yaml", format!("{CEILINGS}\ncontrollers: []\n"));
        world
            .scenario
            .start_with(&config, &["--state-dir", kept.to_str().unwrap()])
    };
    let host = start();
    world.put(&variant(0)).await;
    let stages = json!({"proving": {"stages": [{"objects": 1, "wait": "4s"}, {"percent": 100}]}});
    world.controller("puppet", stages).await;
    world.until("puppet", "Ready", "True", "Running").await;
    for name in ["a", "b", "c"] {
        world.scenario.puppet(name, breaks()).await;
        world
            .scenario
            .until_condition(PUPPET, name, "Ready", "True", "Told")
            .await;
    }
    world.put(&variant(1)).await;
    let message = world
        .until("puppet", "PluginHeldBack", "True", "StageFailed")
        .await;
    assert!(
        message.contains("0 of 1 objects with the new version are Ready"),
        "{message}"
    );
    for name in ["a", "b", "c"] {
        world
            .scenario
            .until_condition(PUPPET, name, "Ready", "True", "Told")
            .await;
    }
    let old = operator_host_runtime::Digest::of(&variant(0)).to_string();
    let object = world.scenario.get(CONTROLLER, "puppet").await.unwrap();
    assert_eq!(version(&object, "live"), old);
    assert_eq!(host.stop().await.code(), Some(0));
    // The next process does not try it again.
    let host = start();
    host.until_log(&["it was taken back in stage 1 of 2 before"])
        .await;
    world
        .until("puppet", "PluginHeldBack", "True", "StageFailed")
        .await;
    for name in ["a", "b", "c"] {
        world
            .scenario
            .until_condition(PUPPET, name, "Ready", "True", "Told")
            .await;
    }
    assert_eq!(host.stop().await.code(), Some(0));
}
