//! Versions, orders and the end of Controllers.

use super::*;

#[tokio::test]
async fn a_change_of_the_config_map_is_live_at_once_and_a_bad_one_is_held_back() {
    let world = World::new("controllers-reload").await;
    let host = world.start();
    world.put(&puppet(1)).await;
    // As `pack --controller` writes it: the host's own namespace has a name, too.
    let plugin = json!({"configMap": {"name": "puppet-plugin", "namespace": world.scenario.namespace}});
    world.controller("puppet", json!({"plugin": plugin})).await;
    world.until("puppet", "Ready", "True", "Running").await;
    world.served("a").await;
    let first = version(&world.scenario.get(CONTROLLER, "puppet").await.unwrap(), "live");
    let start = Instant::now();
    world.put(&puppet(2)).await;
    let object = world
        .scenario
        .until(CONTROLLER, "puppet", "the second version is live", |object| {
            version(object, "live") != first
        })
        .await;
    // The status follows within a few seconds; a kubelet takes a minute.
    assert!(start.elapsed() < Duration::from_secs(20), "{:?}", start.elapsed());
    let second = version(&object, "live");
    // A file that is no plugin changes nothing but the conditions.
    world.put(b"not a plugin").await;
    let object = world
        .scenario
        .until(CONTROLLER, "puppet", "the file is refused", |object| {
            object.data["status"]["proposed"]["state"] == "refused"
        })
        .await;
    assert!(is_ready(&object), "the live version goes on");
    assert_eq!(version(&object, "live"), second);
    assert!(object.data["status"]["lastError"].is_string());
    // So does the loss of the ConfigMap.
    world.scenario.delete(CONFIG_MAP, "puppet-plugin").await;
    world
        .scenario
        .until(CONTROLLER, "puppet", "the file is missing", |object| {
            let error = object.data["status"]["lastError"].as_str();
            error.is_some_and(|error| error.contains("puppet-plugin does not exist"))
        })
        .await;
    world.served("b").await;
    assert_eq!(host.stop().await.code(), Some(0));
}

#[tokio::test]
async fn a_version_that_deletes_is_held_back_until_the_object_promotes_it_and_a_pin_takes_it_back() {
    let world = World::new("controllers-orders").await;
    let host = world.start();
    world.put(&puppet(1)).await;
    world.controller("puppet", json!({})).await;
    world.until("puppet", "Ready", "True", "Running").await;
    let keep = config_map("kept", "x");
    let variants = json!({"1": {"response": {"children": []}}});
    world
        .scenario
        .puppet(
            "a",
            json!({"response": {"children": [keep]}, "variants": variants}),
        )
        .await;
    world.scenario.until_there(CONFIG_MAP, "kept").await;
    let first = version(&world.scenario.get(CONTROLLER, "puppet").await.unwrap(), "live");
    world.put(&variant(1)).await;
    let message = world
        .until("puppet", "PluginHeldBack", "True", "WouldDelete")
        .await;
    assert_contains(&message, "kubectl patch controllers.operator-host.dev puppet");
    let object = world.scenario.get(CONTROLLER, "puppet").await.unwrap();
    assert!(is_ready(&object), "the live version goes on");
    let second = version(&object, "proposed");
    world
        .controller("puppet", json!({"version": {"promote": second}}))
        .await;
    world.scenario.until_gone(CONFIG_MAP, "kept").await;
    world
        .scenario
        .until(CONTROLLER, "puppet", "the second version is live", |object| {
            version(object, "live") == second && !is_true(object, "PluginHeldBack")
        })
        .await;
    world
        .controller("puppet", json!({"version": {"pin": first}}))
        .await;
    world.scenario.until_there(CONFIG_MAP, "kept").await;
    let object = world
        .scenario
        .until(CONTROLLER, "puppet", "the first version is live", |object| {
            version(object, "live") == first
        })
        .await;
    assert_eq!(object.data["status"]["proposed"]["state"], "putAside");
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
        world.until(name, "Ready", "True", "Running").await;
        let child = config_map(&format!("{name}-child"), "x");
        // With a cleanup, the puppet needs a finalizer.
        world.scenario.wants(name, &[child]).await;
        let finalizer = format!("operator-host.dev/{name}");
        world
            .scenario
            .until(PUPPET, name, "reconciled", |puppet| is_true(puppet, "Ready"))
            .await;
        let held = |object: &DynamicObject| {
            let finalizers = object.metadata.finalizers.iter().flatten();
            finalizers.into_iter().any(|other| *other == finalizer)
        };
        assert!(held(&world.scenario.get(PUPPET, name).await.unwrap()));
        world.scenario.delete(CONTROLLER, name).await;
        world.scenario.until_gone(CONTROLLER, name).await;
        let puppet = world.scenario.get(PUPPET, name).await.unwrap();
        assert_eq!(held(&puppet), !is_released);
        assert!(
            world
                .scenario
                .get(CONFIG_MAP, &format!("{name}-child"))
                .await
                .is_some()
        );
    }
    assert_eq!(host.stop().await.code(), Some(0));
}

#[tokio::test]
async fn the_last_of_fifty_changes_of_the_config_map_is_live() {
    let world = World::new("controllers-burst").await;
    let host = world.start();
    world.put(&puppet(0)).await;
    world.controller("puppet", json!({})).await;
    world.until("puppet", "Ready", "True", "Running").await;
    for number in 1..=50 {
        world.put(&puppet(number)).await;
    }
    let last = operator_host_runtime::Digest::of(&puppet(50)).to_string();
    world
        .scenario
        .until(CONTROLLER, "puppet", "the last version is live", |object| {
            version(object, "live") == last && object.data["status"]["proposed"].is_null()
        })
        .await;
    world.served("a").await;
    assert_eq!(host.stop().await.code(), Some(0));
}

#[tokio::test]
async fn a_host_runs_on_its_file_while_the_kind_is_not_defined() {
    let world = World::new("controllers-undefined").await;
    let scenario = &world.scenario;
    let definition = "controllers.operator-host.dev";
    let crds = kube::Api::<DynamicObject>::all_with(
        scenario.client.clone(),
        &resource("apiextensions.k8s.io/v1/CustomResourceDefinition"),
    );
    crds.delete(definition, &Default::default()).await.unwrap();
    let gone = kube::runtime::wait::await_condition(crds, definition, |object: Option<&DynamicObject>| {
        object.is_none()
    });
    gone.await.unwrap();
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
    world.until("puppet", "Ready", "True", "Running").await;
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
    let host = world
        .scenario
        .start_with(&world.scenario.file("config.yaml", text), &[]);
    // Its cleanup is never done, so only somebody else could let it go.
    let spec = json!({"response": {}, "cleanup": {"done": false}});
    world.scenario.puppet("a", spec).await;
    world.scenario.until_ready("a").await;
    world.scenario.delete(PUPPET, "a").await;
    world
        .controller("puppet", json!({"onRemoval": "releaseFinalizers"}))
        .await;
    world.until("puppet", "Stalled", "True", "NameTaken").await;
    let forged = json!({"metadata": {"finalizers": ["operator-host.dev/controller"]}});
    let controllers = world.scenario.api(CONTROLLER);
    let patch = kube::api::Patch::Merge(forged);
    controllers
        .patch("puppet", &Default::default(), &patch)
        .await
        .unwrap();
    world.scenario.delete(CONTROLLER, "puppet").await;
    world.scenario.until_gone(CONTROLLER, "puppet").await;
    let held = world.scenario.get(PUPPET, "a").await;
    assert!(held.is_some(), "it was released without its cleanup");
    assert_eq!(host.stop().await.code(), Some(0));
}

#[tokio::test]
async fn uninstall_releases_what_a_controller_made() {
    let world = World::new("controllers-uninstall").await;
    let host = world.start();
    world.put(&puppet(1)).await;
    world.controller("puppet", json!({})).await;
    world.until("puppet", "Ready", "True", "Running").await;
    world.served("a").await;
    world.scenario.until_ready("a").await;
    assert_eq!(host.stop().await.code(), Some(0));

    let config = world.scenario.folder.path().join("config.yaml");
    let uninstall = |more: &[&str]| {
        let mut command = world.scenario.program(&["uninstall", "--config"]);
        command.arg(&config).args(more).ends(0)
    };
    let planned = uninstall(&["--dry-run"]);
    let words = "controllers-uninstall/a would be released … the Controller puppet would be released";
    assert_contains(&planned, words);
    let held = |object: DynamicObject| object.metadata.finalizers.is_some_and(|all| !all.is_empty());
    assert!(held(world.scenario.get(CONTROLLER, "puppet").await.unwrap()));
    assert!(held(world.scenario.get(PUPPET, "a").await.unwrap()));
    let done = uninstall(&[]);
    assert_contains(&done, "the Controller puppet released");
    assert!(!held(world.scenario.get(PUPPET, "a").await.unwrap()));
    assert!(!held(world.scenario.get(CONTROLLER, "puppet").await.unwrap()));
}
