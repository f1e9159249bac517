//! A proved version that some objects have before the others.

use super::*;
use crate::support::measure;

/// A puppet that is Ready with the version 0, and not with the version 1, whose answers are otherwise the same.
fn breaks() -> Value {
    let response = |status: &str| json!({"conditions": [{"type": "Ready", "status": status, "reason": "Told", "message": "told"}]});
    json!({"response": response("True"), "variants": {"1": {"response": response("False")}}})
}

/// Creates puppets whose ConfigMaps say which version made them, and waits until the live version has.
async fn told(world: &World, names: &[&str]) {
    for name in names {
        tell(world, name, "").await;
        made_by(world, "old", name).await;
    }
}

/// The same with a mark, without waiting.
async fn tell(world: &World, name: &str, mark: &str) {
    let of = |text: &str| json!({"children": [config_map(name, &format!("{text}{mark}"))]});
    let spec = json!({"response": of("old"), "variants": {"1": {"response": of("new")}}});
    world.puppet(name, spec).await;
}

fn has(text: &'static str) -> impl Fn(&DynamicObject) -> bool {
    move |map| map.data["data"]["text"] == text
}

/// Waits until a version, the old or the new one, has made the ConfigMap of a puppet.
async fn made_by(world: &World, which: &'static str, name: &str) {
    world.until(CONFIG_MAP, name, which, has(which)).await;
}

/// Waits until a version has this stage, and returns the puppets that have it already, of these.
async fn reached(world: &World, stage: &str, names: &[&str]) -> Vec<String> {
    world
        .until(CONTROLLER, "puppet", stage, |object| {
            let message = object.data["status"]["proposed"]["message"].as_str();
            message.is_some_and(|message| message.starts_with(stage))
        })
        .await;
    with_the_new(world, names).await
}

/// Returns the puppets that have the new version, of these.
async fn with_the_new(world: &World, names: &[&str]) -> Vec<String> {
    let mut new = Vec::new();
    for name in names {
        let map = world.get(CONFIG_MAP, name).await;
        if map.is_some_and(|map| has("new")(&map)) {
            new.push((*name).to_owned());
        }
    }
    new
}

/// Returns the digest of the version that last reconciled a puppet, as its child says.
async fn digest_of(world: &World, child: &str) -> String {
    let child = world.get(CONFIG_MAP, child).await.unwrap();
    let annotations = child.metadata.annotations.unwrap_or_default();
    annotations["operator-host.dev/provenance"].clone()
}

/// Marks a puppet as one that the first stage selects.
async fn choose(world: &World, name: &str) {
    let label = json!({"metadata": {"labels": {"canary": "true"}}});
    world.patch(PUPPET, name, label).await;
}

impl World {
    /// Starts a host that knows which version was live before it.
    fn start_kept(&self) -> Host {
        let kept = self.folder.path().join("kept");
        self.start_with(
            &self.configure(CEILINGS),
            &["--state-dir", kept.to_str().unwrap()],
        )
    }
}

#[tokio::test]
async fn a_version_goes_from_stage_to_stage_and_then_to_all() {
    let stages = json!({"proving": {"stages": [{"selector": "canary=true", "wait": "4s"}, {"percent": 100, "wait": "1s"}]}});
    let (world, host) = World::running("stages-good", &variant(0), stages.clone()).await;
    told(&world, &["first", "other"]).await;
    choose(&world, "first").await;
    world.put(&variant(1)).await;
    made_by(&world, "new", "first").await;
    // The other one keeps the live version until the stage has ended.
    let object = world
        .until(CONTROLLER, "puppet", "the first stage is shown", |object| {
            let message = object.data["status"]["proposed"]["message"].as_str();
            message.is_some_and(|message| message.starts_with("stage 1 of 2: 1 of 2 objects"))
        })
        .await;
    assert!(is_true(&object, "Progressing") && is_ready(&object));
    assert!(has("old")(&world.get(CONFIG_MAP, "other").await.unwrap()));
    made_by(&world, "new", "other").await;
    let new = operator_host_core::digest::Digest::of(&variant(1)).to_string();
    world
        .until(CONTROLLER, "puppet", "it is live for all", |object| {
            version(object, "live") == new && object.data["status"]["proposed"].is_null()
        })
        .await;
    assert!(digest_of(&world, "first").await.contains(&new));
    // A pin takes it back from all of them.
    let old = operator_host_core::digest::Digest::of(&variant(0)).to_string();
    let mut pinned = stages;
    pinned["version"] = json!({"pin": old});
    world.controller("puppet", pinned).await;
    for name in ["first", "other"] {
        made_by(&world, "old", name).await;
    }
    assert_eq!(host.stop().await.code(), Some(0));
}

/// Regression: a version that was loaded before the first lists of a controller were complete had no stages.
#[tokio::test]
async fn a_version_that_comes_while_the_host_is_down_has_its_stages_also_without_proof() {
    let World { scenario, cluster } = World::new("stages-start").await;
    let proxy = Proxy::start(scenario.kubeconfig()).await.expect("a proxy");
    let scenario = scenario.with_kubeconfig(proxy.kubeconfig());
    let world = World { scenario, cluster };
    let host = world.start_kept();
    world.put(&variant(0)).await;
    let stages =
        json!({"proving": {"mode": "off", "stages": [{"objects": 1, "wait": "60s"}, {"percent": 100}]}});
    world.controller("puppet", stages).await;
    world.runs("puppet").await;
    let names = ["a", "b", "c"];
    told(&world, &names).await;
    assert_eq!(host.stop().await.code(), Some(0));
    world.put(&variant(1)).await;
    let new = operator_host_core::digest::Digest::of(&variant(1));
    // Its objects are listed after the version is loaded.
    let start_late = async |start: &dyn Fn() -> Host| {
        proxy.set_mode_of("/puppets?", Mode::Stall);
        let host = start();
        host.until_log(&new.short()).await;
        proxy.set_mode(Mode::Pass);
        host
    };
    let empty = world.folder.path().join("empty");
    let arguments = ["--cache-dir", empty.to_str().unwrap()];
    let start_empty = || world.start_with(&world.configure(CEILINGS), &arguments);
    let without_kept = start_late(&start_empty).await;
    without_kept
        .until_log("the version that is recorded as live is not at hand")
        .await;
    assert!(with_the_new(&world, &names).await.is_empty());
    assert_eq!(without_kept.stop().await.code(), Some(0));

    let _host = start_late(&|| world.start_kept()).await;
    let reached = reached(&world, "stage 1 of 2: 1 of 3 objects", &names).await;
    assert!(reached.len() <= 1, "{reached:?}");
}

#[tokio::test]
async fn a_stage_that_becomes_less_ready_returns_to_the_live_version_also_after_a_restart() {
    let world = World::new("stages-bad").await;
    let host = world.start_kept();
    world.put(&variant(0)).await;
    let stages = json!({"proving": {"stages": [{"objects": 1, "wait": "4s"}, {"percent": 100}]}});
    world.controller("puppet", stages).await;
    world.runs("puppet").await;
    let all_told = async || {
        for name in ["a", "b", "c"] {
            world.until_told(name, "Ready=True Told").await;
        }
    };
    for name in ["a", "b", "c"] {
        world.puppet(name, breaks()).await;
    }
    all_told().await;
    world.put(&variant(1)).await;
    let says = "PluginHeldBack=True StageFailed: 0 of 1 objects with the new version are Ready";
    world.says("puppet", says).await;
    all_told().await;
    let old = operator_host_core::digest::Digest::of(&variant(0)).to_string();
    let object = world.get(CONTROLLER, "puppet").await.unwrap();
    assert_eq!(version(&object, "live"), old);
    assert_eq!(host.stop().await.code(), Some(0));
    // The next process does not try it again.
    let host = world.start_kept();
    host.until_log("it was taken back in stage 1 of 2 before").await;
    world.says("puppet", "PluginHeldBack=True StageFailed").await;
    all_told().await;
    assert_eq!(host.stop().await.code(), Some(0));
}

/// Regression: a replica that began to lead, or a process that started, gave the objects of the stage the version before, and then
/// the new one again.
#[tokio::test]
async fn a_stage_goes_on_where_it_was_after_a_failover_and_after_a_restart() {
    let world = World::new("stages-failover").await;
    // Where the live version is after a restart.
    let kept = world.folder.path().join("kept");
    let lease = "leadership: single\nlease: {namespace: stages-failover, duration: 3s, renewDeadline: 2s, retryPeriod: 500ms}";
    let config = world.file("config.yaml", format!("{lease}\n{CEILINGS}\ncontrollers: []\n"));
    let start = |name: &str| {
        let folder = world.folder.path().join(name);
        std::fs::create_dir_all(&folder).unwrap();
        let arguments = ["--state-dir", kept.to_str().unwrap()];
        Host::start(
            &config,
            world.kubeconfig(),
            &arguments,
            &[("HOSTNAME", name)],
            &folder,
        )
    };
    let host = start("a");
    world.put(&variant(0)).await;
    let stages = json!({"proving": {"stages": [{"objects": 1, "wait": "1h"}, {"percent": 100}]}});
    world.controller("puppet", stages).await;
    world.runs("puppet").await;
    let names = ["a", "b", "c", "d"];
    told(&world, &names).await;
    world.put(&variant(1)).await;
    let chosen = reached(&world, "stage 1 of 2: 1 of 4 objects", &names).await;
    assert_eq!(chosen.len(), 1);
    // With the time since when.
    let stage = |object: &DynamicObject| -> Option<String> {
        let message = object.data["status"]["proposed"]["message"].as_str()?;
        Some(message.split(',').next()?.to_owned())
    };
    let before = stage(&world.get(CONTROLLER, "puppet").await.unwrap()).unwrap();
    let mut changes = measure::follow(&world, CONFIG_MAP).await;
    // All puppets are reconciled by the next leader, and each keeps its version.
    let go_on = async |mark: &str| {
        for name in names {
            tell(&world, name, mark).await;
            let text = if chosen.contains(&name.to_owned()) {
                "new"
            } else {
                "old"
            };
            let text = format!("{text}{mark}");
            let says = |map: &DynamicObject| map.data["data"]["text"] == text;
            world.until(CONFIG_MAP, name, &text, says).await;
        }
    };
    let second = start("b");
    second.until_log("proof done").await;
    host.kill();
    go_on("-b").await;
    assert_eq!(second.stop().await.code(), Some(0));
    let third = start("c");
    go_on("-c").await;
    let mut returned = Vec::new();
    while let Ok((_, map)) = changes.try_recv() {
        let name = map.metadata.name.unwrap_or_default();
        let text = map.data["data"]["text"].as_str().unwrap_or_default().to_owned();
        if chosen.contains(&name) != text.starts_with("new") {
            returned.push((name, text));
        }
    }
    assert!(returned.is_empty(), "{returned:?}");
    world
        .until(CONTROLLER, "puppet", &before, |object| {
            stage(object).as_ref() == Some(&before)
        })
        .await;
    assert_eq!(third.stop().await.code(), Some(0));
}

/// Regression: the stage waited for the queue of the controller from before the change, which nobody worked off.
#[tokio::test]
async fn a_stage_goes_on_when_the_definition_of_its_kind_changes() {
    let stages = [
        json!({"selector": "canary=true", "wait": "1h"}),
        json!({"percent": 100, "wait": "1s"}),
    ];
    let (world, host) = World::running(
        "stages-definition",
        &variant(0),
        json!({"proving": {"stages": stages}}),
    )
    .await;
    let names = ["first", "other"];
    told(&world, &names).await;
    choose(&world, "first").await;
    world.put(&variant(1)).await;
    assert_eq!(
        reached(&world, "stage 1 of 2: 1 of 2 objects", &names).await,
        ["first"]
    );
    let mut changes = measure::follow(&world, CONFIG_MAP).await;
    // Without its status, and with it again, the kind is another one for the controller, which starts again.
    let name = "puppets.test.operator-host.dev";
    let crd = world.get(DEFINITION, name).await.unwrap();
    let mut versions = crd.data["spec"]["versions"].clone();
    let with = versions[0]["subresources"].clone();
    for (times, subresources) in [(1, Value::Null), (2, with)] {
        versions[0]["subresources"] = subresources;
        world
            .patch(DEFINITION, name, json!({"spec": {"versions": versions}}))
            .await;
        host.until_logged("\"controller started\"", times + 1).await;
    }
    // An object that the controller hears of after that still belongs to the stage.
    tell(&world, "first", "-after").await;
    made_by(&world, "new-after", "first").await;
    while let Ok((_, map)) = changes.try_recv() {
        let text = map.data["data"]["text"].as_str().unwrap_or_default().to_owned();
        let is_first = map.metadata.name.as_deref() == Some("first");
        assert_eq!(is_first, text.starts_with("new"), "{text}");
    }
    // The stage can end.
    let shorter = [
        json!({"selector": "canary=true", "wait": "1s"}),
        stages[1].clone(),
    ];
    world
        .controller("puppet", json!({"proving": {"stages": shorter}}))
        .await;
    made_by(&world, "new", "other").await;
    assert_eq!(host.stop().await.code(), Some(0));
}

/// Regression: a stage of one object ended well when that object was deleted, perhaps because the version had broken it.
#[tokio::test]
async fn a_stage_whose_objects_are_deleted_begins_again_with_others() {
    let stages =
        json!({"proving": {"stages": [{"objects": 1, "wait": "6s"}, {"percent": 100, "wait": "1h"}]}});
    let (world, host) = World::running("stages-deleted", &variant(0), stages).await;
    let names = ["a", "b", "c"];
    told(&world, &names).await;
    world.put(&variant(1)).await;
    let chosen = reached(&world, "stage 1 of 2: 1 of 3 objects", &names).await;
    world.remove(PUPPET, &chosen[0]).await;
    let next = reached(&world, "stage 1 of 2: 1 of 2 objects", &names).await;
    assert_eq!(next.len(), 1, "{next:?} after {chosen:?}");
    assert_ne!(next, chosen);
    reached(&world, "stage 2 of 2: 2 of 2 objects", &names).await;
    assert_eq!(host.stop().await.code(), Some(0));
}

/// Regression: the thread that looks at files panicked, and the host saw no file any more.
#[tokio::test]
async fn a_version_whose_config_map_is_lost_in_a_stage_is_taken_back() {
    let stages = json!({"proving": {"stages": [{"selector": "canary=true", "wait": "10m"}]}});
    let (world, host) = World::running("stages-lost", &variant(0), stages).await;
    told(&world, &["first"]).await;
    choose(&world, "first").await;
    world.put(&variant(1)).await;
    made_by(&world, "new", "first").await;
    world.delete(CONFIG_MAP, "puppet-plugin").await;
    made_by(&world, "old", "first").await;
    // The host goes on to look at files.
    world.put(&variant(1)).await;
    made_by(&world, "new", "first").await;
    assert_eq!(host.stop().await.code(), Some(0));
}
