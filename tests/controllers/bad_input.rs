//! What is wrong with a Controller is in its status, and stops nothing else.

use super::*;

#[tokio::test]
async fn what_is_wrong_with_a_controller_is_in_its_status_and_the_others_run() {
    let world = World::new("controllers-bad").await;
    let host = world.start();
    let missing = json!({"parent": {"apiVersion": "test.operator-host.dev/v1", "kind": "ClusterPuppet"},
                         "plugin": {"configMap": {"name": "nowhere-plugin"}}});
    world.controller("missing", missing).await;
    let waits = world
        .scenario
        .until(CONTROLLER, "missing", "its plugin is missing", |object| {
            let error = object.data["status"]["lastError"].as_str();
            error.is_some_and(|error| error.contains("nowhere-plugin does not exist"))
        })
        .await;
    assert!(!is_ready(&waits));
    let secret = json!({"children": [{"apiVersion": "v1", "kind": "Secret"}]});
    world.controller("greedy", secret).await;
    let message = world.until("greedy", "Stalled", "True", "NotAllowed").await;
    assert_contains(&message, "v1/Secret … ceilings.children");
    world.put(&puppet(1)).await;
    world.controller("older", json!({})).await;
    world.until("older", "Ready", "True", "Running").await;
    world.controller("younger", json!({})).await;
    let message = world.until("younger", "Ready", "False", "KindTaken").await;
    assert_contains(&message, "older");
    world.served("a").await;
    // When the older one goes, the younger one takes over.
    world.scenario.delete(CONTROLLER, "older").await;
    world.until("younger", "Ready", "True", "Running").await;
    assert_eq!(host.stop().await.code(), Some(0));
}

#[tokio::test]
async fn a_change_that_is_refused_leaves_the_controller_running_and_its_version_known() {
    let world = World::new("controllers-edited").await;
    let host = world.start();
    world.put(&puppet(1)).await;
    world.controller("puppet", json!({})).await;
    world.until("puppet", "Ready", "True", "Running").await;
    world.served("a").await;
    let live = |object: &DynamicObject| object.data["status"]["live"].clone();
    let before = live(&world.scenario.get(CONTROLLER, "puppet").await.unwrap());
    world.controller("puppet", json!({"resync": "soon"})).await;
    let message = world.until("puppet", "Ready", "False", "InvalidSpec").await;
    let words = "`spec.resync` … \"soon\" … the spec before this change still runs";
    assert_contains(&message, words);
    world.served("b").await;
    // A host that starts now does not know what it said before. What was live stays known.
    assert_eq!(host.stop().await.code(), Some(0));
    let host = world.start();
    let object = world
        .scenario
        .until(CONTROLLER, "puppet", "it does not run", |object| {
            let error = object.data["status"]["lastError"].as_str();
            error.is_some_and(|error| error.contains("soon") && !error.contains("still runs"))
        })
        .await;
    assert_eq!(live(&object), before);
    world.controller("puppet", json!({"resync": "1h"})).await;
    world.until("puppet", "Ready", "True", "Running").await;
    let object = world.scenario.get(CONTROLLER, "puppet").await.unwrap();
    assert_eq!(live(&object), before, "it is the same version");
    assert_eq!(host.stop().await.code(), Some(0));
}

#[tokio::test]
async fn a_host_that_cannot_store_plugins_of_config_maps_says_so() {
    let world = World::new("controllers-folder").await;
    // A file, where nobody can create a folder.
    let cache = world.scenario.file("cache", "");
    let config = world.configure(CEILINGS);
    let host = world
        .scenario
        .start_with(&config, &["--cache-dir", cache.to_str().unwrap()]);
    world.put(&puppet(1)).await;
    world.controller("puppet", json!({})).await;
    until_refused(
        &world,
        "puppet",
        "set --cache-dir to a folder that the host may write",
    )
    .await;
    assert_eq!(host.stop().await.code(), Some(0));
}

/// Waits until the plugin of a Controller is refused with these words.
async fn until_refused(world: &World, name: &str, words: &str) {
    world.until(name, "Stalled", "True", "PluginRefused").await;
    let object = world.scenario.until(CONTROLLER, name, words, |object| {
        let error = object.data["status"]["lastError"].as_str();
        error.is_some_and(|error| error.contains(words))
    });
    assert!(!is_ready(&object.await));
}

#[tokio::test]
async fn a_plugin_that_is_too_large_or_for_another_kind_is_refused() {
    let world = World::new("controllers-refused").await;
    let host = world.start();
    let cluster = json!({"parent": {"apiVersion": "test.operator-host.dev/v1", "kind": "ClusterPuppet"}});
    world.controller("other", cluster).await;
    world.controller("puppet", json!({})).await;
    // 40 MiB, when it is unpacked.
    let packed = operator_host_delivery::pack::Compression::Zstd.pack(&vec![0; 40 << 20]);
    world.put_as("puppet.wasm.zst", &packed.unwrap()).await;
    until_refused(&world, "puppet", "more than 32 MiB").await;
    world.put(&puppet(1)).await;
    world.until("puppet", "Ready", "True", "Running").await;
    until_refused(&world, "other", "it reconciles test.operator-host.dev/v1/Puppet").await;
    assert_eq!(host.stop().await.code(), Some(0));
}

#[tokio::test]
async fn a_plugin_that_no_key_has_signed_is_refused() {
    let world = World::new("controllers-unsigned").await;
    // Away from the configuration, whose writers are not trusted with it.
    let folder = world.scenario.folder.path().join("keys");
    std::fs::create_dir(&folder).unwrap();
    let keys = folder.join("keys.yaml");
    let key = "MCowBQYDK2VwAyEALrXDLi9nRxGgSDM5coG4EylCc4GRo2n3Qz2x4CdaYxc=";
    std::fs::write(
        &keys,
        format!("keys: [{{name: release, key: {key}, controllers: [puppet]}}]"),
    )
    .unwrap();
    let signed = CEILINGS.replace("children:", "signed: true\n  children:");
    let config = world
        .scenario
        .file("config.yaml", format!("{signed}\ncontrollers: []\n"));
    let host = world
        .scenario
        .start_with(&config, &["--signature-keys", keys.to_str().unwrap()]);
    world.put(&puppet(1)).await;
    world.controller("puppet", json!({})).await;
    until_refused(&world, "puppet", "sign").await;
    assert_eq!(host.stop().await.code(), Some(0));
}

#[tokio::test]
async fn ceilings_that_are_lowered_stop_what_is_beyond_them() {
    let world = World::new("controllers-ceilings").await;
    let host = world.start();
    world.put(&puppet(1)).await;
    world.controller("puppet", json!({})).await;
    world.until("puppet", "Ready", "True", "Running").await;
    world.served("a").await;
    world
        .scenario
        .file("config.yaml", "ceilings: {}\ncontrollers: []\n");
    let message = world.until("puppet", "Stalled", "True", "NotAllowed").await;
    assert_contains(&message, "ceilings.parents");
    // Also when there are none any more, so that nobody takes it for Ready.
    world.configure(CEILINGS);
    world.until("puppet", "Ready", "True", "Running").await;
    world.configure("");
    let message = world.until("puppet", "Ready", "False", "NotAllowed").await;
    assert_contains(&message, "no section `ceilings`");
    // What it made stays.
    assert!(world.scenario.get(CONFIG_MAP, "a-child").await.is_some());
    world
        .scenario
        .file("config.yaml", format!("{CEILINGS}\ncontrollers: []\n"));
    world.until("puppet", "Ready", "True", "Running").await;
    world.served("b").await;
    assert_eq!(host.stop().await.code(), Some(0));
}

#[tokio::test]
async fn a_pin_that_no_version_matches_is_reported() {
    let world = World::new("controllers-pin").await;
    let host = world.start();
    world.put(&puppet(1)).await;
    world.controller("puppet", json!({})).await;
    world.until("puppet", "Ready", "True", "Running").await;
    world
        .controller("puppet", json!({"version": {"pin": "00000000"}}))
        .await;
    let message = world
        .until("puppet", "PluginHeldBack", "True", "PinMatchesNothing")
        .await;
    assert_contains(&message, "00000000");
    let object = world.scenario.get(CONTROLLER, "puppet").await.unwrap();
    assert!(is_ready(&object), "the live version goes on");
    assert_eq!(host.stop().await.code(), Some(0));
}

#[tokio::test]
async fn a_thousand_controllers_that_are_refused_stop_no_other() {
    use futures::StreamExt as _;
    let world = World::new("controllers-thousand").await;
    let host = world.start();
    let bad = |number: usize| {
        let kind = json!({"apiVersion": "other.dev/v1", "kind": format!("Kind{number}")});
        let world = &world;
        async move {
            world
                .controller(&format!("bad-{number}"), json!({"parent": kind}))
                .await;
        }
    };
    futures::stream::iter(0..1000)
        .map(bad)
        .buffer_unordered(16)
        .collect::<()>()
        .await;
    world.put(&puppet(1)).await;
    world.controller("good", json!({})).await;
    world.until("good", "Ready", "True", "Running").await;
    world.served("a").await;
    world.until("bad-999", "Stalled", "True", "NotAllowed").await;
    assert_eq!(host.stop().await.code(), Some(0));
}
