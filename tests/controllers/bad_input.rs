//! What is wrong with a Controller is in its status, and stops nothing else.

use super::*;

impl World {
    /// Waits until a Controller does not run, because of its field `resync`.
    pub(super) async fn until_stopped(&self, name: &str) -> DynamicObject {
        let is_stopped = |object: &DynamicObject| {
            let error = object.data["status"]["lastError"].as_str();
            error.is_some_and(|error| error.contains("soon") && !error.contains("still runs"))
        };
        self.until(CONTROLLER, name, "it does not run", is_stopped).await
    }
}

#[tokio::test]
async fn a_change_that_is_refused_leaves_the_controller_running_and_lowered_ceilings_stop_it() {
    let (world, host) = World::running("controllers-edited", &puppet(1), json!({})).await;
    world.served("a").await;
    let live = |object: &DynamicObject| object.data["status"]["live"].clone();
    let before = live(&world.get(CONTROLLER, "puppet").await.unwrap());
    world.controller("puppet", json!({"resync": "soon"})).await;
    let says = "Ready=False InvalidSpec: `spec.resync` … \"soon\" … the spec before this change still runs";
    world.says("puppet", says).await;
    world.served("b").await;
    // A host that starts now does not know what it said before. What was live stays known.
    assert_eq!(host.stop().await.code(), Some(0));
    let host = world.start();
    let object = world.until_stopped("puppet").await;
    assert_eq!(live(&object), before);
    world.controller("puppet", json!({"resync": "1h"})).await;
    world.runs("puppet").await;
    let object = world.get(CONTROLLER, "puppet").await.unwrap();
    assert_eq!(live(&object), before, "it is the same version");
    // Ceilings that are lowered stop what is beyond them.
    world.file("config.yaml", "ceilings: [{}]\ncontrollers: []\n");
    world
        .says("puppet", "Stalled=True NotAllowed: ceilings[0].parents")
        .await;
    // Also when there are none any more, so that nobody takes it for Ready.
    world.configure(CEILINGS);
    world.runs("puppet").await;
    world.configure("");
    world
        .says("puppet", "Ready=False NotAllowed: no section `ceilings`")
        .await;
    // What it made stays.
    assert!(world.get(CONFIG_MAP, "a-child").await.is_some());
    world.configure(CEILINGS);
    world.runs("puppet").await;
    world.served("c").await;
    assert_eq!(host.stop().await.code(), Some(0));
}

/// Waits until the plugin of a Controller is refused with these words.
async fn until_refused(world: &World, name: &str, words: &str) {
    world.says(name, "Stalled=True PluginRefused").await;
    let object = world.until_error(name, words).await;
    assert!(!is_ready(&object));
}

#[tokio::test]
async fn a_plugin_that_the_host_cannot_store_or_that_no_key_has_signed_is_refused() {
    let world = World::new("controllers-unsigned").await;
    // A file, where nobody can create a folder.
    let cache = world.file("cache", "");
    let config = world.configure(CEILINGS);
    let host = world.start_with(&config, &["--cache-dir", cache.to_str().unwrap()]);
    world.put(&puppet(1)).await;
    world.controller("puppet", json!({})).await;
    let words = "set --cache-dir to a folder that the host may write";
    until_refused(&world, "puppet", words).await;
    assert_eq!(host.stop().await.code(), Some(0));

    // Away from the configuration, whose writers are not trusted with it.
    let folder = world.folder.path().join("keys");
    std::fs::create_dir(&folder).unwrap();
    let keys = folder.join("keys.yaml");
    let key = "MCowBQYDK2VwAyEALrXDLi9nRxGgSDM5coG4EylCc4GRo2n3Qz2x4CdaYxc=";
    std::fs::write(
        &keys,
        format!("keys: [{{name: release, key: {key}, controllers: [puppet]}}]"),
    )
    .unwrap();
    let signed = CEILINGS.replace("children:", "signed: true\n  children:");
    let config = world.file("config.yaml", format!("{signed}\ncontrollers: []\n"));
    let host = world.start_with(&config, &["--signature-keys", keys.to_str().unwrap()]);
    until_refused(&world, "puppet", "sign").await;
    assert_eq!(host.stop().await.code(), Some(0));
}

#[tokio::test]
async fn what_is_wrong_with_a_thousand_controllers_is_in_their_status_and_stops_no_other() {
    use futures::StreamExt as _;
    let world = World::new("controllers-bad").await;
    let host = world.start();
    let parent = |api_version: &str, kind: &str| json!({"apiVersion": api_version, "kind": kind});
    let bad = |number: usize| {
        let more = json!({"parent": parent("other.dev/v1", &format!("Kind{number}"))});
        let world = &world;
        async move { drop(world.controller(&format!("bad-{number}"), more).await) }
    };
    futures::stream::iter(0..1000)
        .map(bad)
        .buffer_unordered(16)
        .collect::<()>()
        .await;
    let missing = json!({"parent": parent("my-operator.dev/v1", "Echo"), "plugin": {"configMap": {"name": "nowhere-plugin"}}});
    world.controller("missing", missing).await;
    let waits = world
        .until_error("missing", "nowhere-plugin does not exist")
        .await;
    assert!(!is_ready(&waits));
    let secret = json!({"children": [{"apiVersion": "v1", "kind": "Secret"}]});
    world.controller("greedy", secret).await;
    let says = "Stalled=True NotAllowed: v1/Secret … ceilings[0].children";
    world.says("greedy", says).await;
    let cluster = json!({"parent": parent("test.operator-host.dev/v1", "ClusterPuppet")});
    world.controller("other", cluster).await;
    world.controller("puppet", json!({})).await;
    // 40 MiB, when it is unpacked.
    let packed = operator_host_delivery::pack::Compression::Zstd.pack(&vec![0; 40 << 20]);
    world
        .put_as("puppet-plugin", "puppet.wasm.zst", &packed.unwrap())
        .await;
    until_refused(&world, "puppet", "more than 32 MiB").await;
    world.put(&puppet(1)).await;
    world.runs("puppet").await;
    until_refused(&world, "other", "it reconciles test.operator-host.dev/v1/Puppet").await;
    world.served("a").await;
    world.says("bad-999", "Stalled=True NotAllowed").await;
    assert_eq!(host.stop().await.code(), Some(0));
}
