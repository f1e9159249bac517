//! Versions, orders and the end of Controllers.

use super::*;

#[tokio::test]
async fn a_change_of_the_config_map_is_live_at_once_and_a_bad_one_is_held_back() {
    let world = World::new("controllers-reload").await;
    let host = world.start();
    world.put(&puppet(1)).await;
    // As `pack --controller` writes it: the host's own namespace has a name, too.
    let plugin = json!({"configMap": {"name": "puppet-plugin", "namespace": world.namespace}});
    world.controller("puppet", json!({"plugin": plugin})).await;
    world.runs("puppet").await;
    world.served("a").await;
    let first = version(&world.get(CONTROLLER, "puppet").await.unwrap(), "live");
    let start = Instant::now();
    world.put(&puppet(2)).await;
    world
        .until(CONTROLLER, "puppet", "the second version is live", |object| {
            version(object, "live") != first
        })
        .await;
    // The status follows within a few seconds; a kubelet takes a minute.
    assert!(start.elapsed() < Duration::from_secs(20), "{:?}", start.elapsed());
    // Of many changes, the last one counts.
    for number in 3..=50 {
        world.put(&puppet(number)).await;
    }
    let second = operator_host_core::digest::Digest::of(&puppet(50)).to_string();
    let is_last = |object: &DynamicObject| {
        version(object, "live") == second && object.data["status"]["proposed"].is_null()
    };
    world
        .until(CONTROLLER, "puppet", "the last version is live", is_last)
        .await;
    // A file that is no plugin changes nothing but the conditions.
    world.put(b"not a plugin").await;
    let object = world
        .until(CONTROLLER, "puppet", "the file is refused", |object| {
            object.data["status"]["proposed"]["state"] == "refused"
        })
        .await;
    assert!(is_ready(&object), "the live version goes on");
    assert_eq!(version(&object, "live"), second);
    assert!(object.data["status"]["lastError"].is_string());
    // So does the loss of the ConfigMap.
    world.delete(CONFIG_MAP, "puppet-plugin").await;
    world.until_error("puppet", "puppet-plugin does not exist").await;
    world.served("b").await;
    assert_eq!(host.stop().await.code(), Some(0));
}

#[tokio::test]
async fn a_version_that_deletes_is_held_back_until_the_object_promotes_it_and_a_pin_takes_it_back_or_is_named()
 {
    let (world, host) = World::running("controllers-orders", &puppet(1), json!({})).await;
    let keep = config_map("kept", "x");
    let variants = json!({"1": {"response": {"children": []}}});
    world
        .puppet(
            "a",
            json!({"response": {"children": [keep]}, "variants": variants}),
        )
        .await;
    world.until_there(CONFIG_MAP, "kept").await;
    let first = version(&world.get(CONTROLLER, "puppet").await.unwrap(), "live");
    world.put(&variant(1)).await;
    let says = "PluginHeldBack=True WouldDelete: kubectl patch controllers.operator-host.dev puppet";
    world.says("puppet", says).await;
    let object = world.get(CONTROLLER, "puppet").await.unwrap();
    assert!(is_ready(&object), "the live version goes on");
    let second = version(&object, "proposed");
    world
        .controller("puppet", json!({"version": {"promote": second}}))
        .await;
    world.until_gone(CONFIG_MAP, "kept").await;
    world
        .until(CONTROLLER, "puppet", "the second version is live", |object| {
            version(object, "live") == second && !is_true(object, "PluginHeldBack")
        })
        .await;
    world
        .controller("puppet", json!({"version": {"pin": first}}))
        .await;
    world.until_there(CONFIG_MAP, "kept").await;
    world
        .until(
            CONTROLLER,
            "puppet",
            "the second version is put aside",
            |object| {
                version(object, "live") == first && object.data["status"]["proposed"]["state"] == "putAside"
            },
        )
        .await;
    let nothing = json!({"version": {"pin": "00000000"}});
    world.controller("puppet", nothing).await;
    let says = "PluginHeldBack=True PinMatchesNothing: 00000000";
    world.says("puppet", says).await;
    // The controller begins again with each change of its settings.
    let goes_on = |object: &DynamicObject| {
        is_ready(object) && is_true(object, "PluginHeldBack") && version(object, "live") == first
    };
    world
        .until(CONTROLLER, "puppet", "the live version goes on", goes_on)
        .await;
    assert_eq!(host.stop().await.code(), Some(0));
}

#[tokio::test]
async fn a_controller_that_is_deleted_leaves_everything_or_releases_its_resources() {
    let world = World::new("controllers-removal").await;
    let host = world.start();
    world.put(&puppet(1)).await;
    for (name, more, is_released) in [
        ("stays", json!({}), false),
        ("releases", json!({"onRemoval": "releaseFinalizers"}), true),
    ] {
        world.controller(name, more).await;
        world.runs(name).await;
        let child = config_map(&format!("{name}-child"), "x");
        // With a cleanup, the puppet needs a finalizer.
        world.wants(name, &[child]).await;
        let finalizer = format!("operator-host.dev/{name}");
        world
            .until(PUPPET, name, "reconciled", |puppet| is_true(puppet, "Ready"))
            .await;
        let held = |object: &DynamicObject| {
            let finalizers = object.metadata.finalizers.iter().flatten();
            finalizers.into_iter().any(|other| *other == finalizer)
        };
        assert!(held(&world.get(PUPPET, name).await.unwrap()));
        world.remove(CONTROLLER, name).await;
        let puppet = world.get(PUPPET, name).await.unwrap();
        assert_eq!(held(&puppet), !is_released);
        assert!(world.get(CONFIG_MAP, &format!("{name}-child")).await.is_some());
    }
    assert_eq!(host.stop().await.code(), Some(0));
}

#[tokio::test]
async fn a_host_runs_on_its_file_while_the_kind_is_not_defined() {
    let world = World::new("controllers-undefined").await;
    let scenario = &world;
    let definition = "controllers.operator-host.dev";
    scenario.remove(DEFINITION, definition).await;
    let own = "controllers: [{name: mine, parent: {apiVersion: my-operator.dev/v1, kind: Echo}, plugin: echo.wasm}]";
    let plugins = crate::support::plugin("echo");
    let text = format!(
        "plugins: {}\n{CEILINGS}{own}\n",
        plugins.parent().unwrap().display()
    );
    let host = scenario.start_with(&scenario.file("config.yaml", text), &[]);
    host.until_log("controller started … mine").await;
    let definition = program(&["schema", "controller"]).prints();
    crate::support::install(&scenario.client, scenario.folder.path(), &definition).await;
    world.put(&puppet(1)).await;
    world.controller("puppet", json!({})).await;
    world.runs("puppet").await;
    assert_eq!(host.stop().await.code(), Some(0));
}

/// Regression: a finalizer on a Controller was taken for a proof that it had run. So whoever could write Controllers could release
/// the resources of a controller of the file.
#[tokio::test]
async fn a_controller_that_may_not_run_releases_nothing_when_it_is_deleted() {
    let world = World::new("controllers-forged").await;
    let plugins = crate::support::plugin("puppet");
    let text = format!(
        "plugins: {}\n{CEILINGS}controllers:\n{}",
        plugins.parent().unwrap().display(),
        controller("puppet.wasm", "")
    );
    let host = world.start_with(&world.file("config.yaml", text), &[]);
    // Its cleanup is never done, so only somebody else could let it go.
    let spec = json!({"response": {}, "cleanup": {"done": false}});
    world.puppet("a", spec).await;
    world.until_ready("a").await;
    world.delete(PUPPET, "a").await;
    world
        .controller("puppet", json!({"onRemoval": "releaseFinalizers"}))
        .await;
    world.says("puppet", "Stalled=True NameTaken").await;
    world
        .set_finalizers(CONTROLLER, "puppet", &["operator-host.dev/controller"])
        .await;
    world.remove(CONTROLLER, "puppet").await;
    let held = world.get(PUPPET, "a").await;
    assert!(held.is_some(), "it was released without its cleanup");
    assert_eq!(host.stop().await.code(), Some(0));
}

#[tokio::test]
async fn uninstall_releases_what_a_controller_made() {
    let (world, host) = World::running("controllers-uninstall", &puppet(1), json!({})).await;
    world.served("a").await;
    world.until_ready("a").await;
    assert_eq!(host.stop().await.code(), Some(0));

    let config = world.folder.path().join("config.yaml");
    let uninstall = |more: &[&str]| {
        let mut command = world.program(&["uninstall", "--config"]);
        command.arg(&config).args(more).ends(0)
    };
    let planned = uninstall(&["--dry-run"]);
    let words = "controllers-uninstall/a would be released … the Controller puppet would be released";
    assert_contains(&planned, words);
    let held = |object: DynamicObject| object.metadata.finalizers.is_some_and(|all| !all.is_empty());
    assert!(held(world.get(CONTROLLER, "puppet").await.unwrap()));
    assert!(held(world.get(PUPPET, "a").await.unwrap()));
    let done = uninstall(&[]);
    assert_contains(&done, "the Controller puppet released");
    assert!(!held(world.get(PUPPET, "a").await.unwrap()));
    assert!(!held(world.get(CONTROLLER, "puppet").await.unwrap()));
}
