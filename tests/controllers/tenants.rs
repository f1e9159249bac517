//! Teams that may write Controllers: none takes what another one has, and none learns of it.

use super::*;

const CRD: &str = "puppets.test.operator-host.dev";

fn is_held(object: &DynamicObject) -> bool {
    !object.finalizers().is_empty()
}

/// Regression: the older of two had the kind, so whoever had an old Controller took over the kind of any other team.
#[tokio::test]
async fn a_controller_keeps_its_kind_when_an_older_one_wants_it() {
    let world = World::new("controllers-kept").await;
    let host = world.start();
    let elsewhere = json!({"parent": {"apiVersion": "test.operator-host.dev/v1", "kind": "ClusterPuppet"}});
    world.controller("older", elsewhere).await;
    world.says("older", "Ready=False PluginRefused").await;
    world.put(&puppet(1)).await;
    world.controller("younger", json!({})).await;
    world.runs("younger").await;
    world.served("a").await;
    world.controller("older", json!({})).await;
    world.says("older", "Stalled=True KindTaken: younger").await;
    // The API server writes seconds, and this one has the better name.
    world.controller("a", json!({})).await;
    world.says("a", "Stalled=True KindTaken: younger").await;
    world.served("b").await;
    assert_eq!(host.stop().await.code(), Some(0));
    // A host that starts later, or another replica, knows it by the definition alone.
    let host = world.start();
    world.served("c").await;
    world.runs("younger").await;
    let others = ["a", "older"].map(|name| world.says(name, "Stalled=True KindTaken: younger"));
    futures::future::join_all(others).await;
    // A mistake does not lose the kind, also when nobody knows what it said before.
    world.controller("younger", json!({"resync": "soon"})).await;
    world.says("younger", "Stalled=True InvalidSpec").await;
    assert_eq!(host.stop().await.code(), Some(0));
    let host = world.start();
    world
        .until(CONTROLLER, "younger", "it does not run", |object| {
            let error = object.data["status"]["lastError"].as_str();
            error.is_some_and(|error| error.contains("soon") && !error.contains("still runs"))
        })
        .await;
    world.says("a", "Stalled=True KindTaken: younger").await;
    world.remove(CONTROLLER, "younger").await;
    world.runs("older").await;
    assert_eq!(host.stop().await.code(), Some(0));
}

/// Regression: it inherited the finalizers and children of the one before, and could release them without a clean-up.
#[tokio::test]
async fn a_controller_that_is_made_again_takes_over_only_when_the_definition_says_so() {
    let (world, host) = World::running("controllers-again", &puppet(1), json!({})).await;
    world.served("a").await;
    world.until_ready("a").await;
    world.remove(CONTROLLER, "puppet").await;
    world.delete(PUPPET, "a").await;
    let says = "Stalled=True NameUsedBefore: kubectl annotate crd";
    let again = json!({"onRemoval": "releaseFinalizers"});
    for forged in [false, true] {
        world.controller("puppet", again.clone()).await;
        world.says("puppet", says).await;
        if forged {
            let finalizers = json!({"metadata": {"finalizers": ["operator-host.dev/controller"]}});
            world.patch(CONTROLLER, "puppet", finalizers).await;
        }
        world.remove(CONTROLLER, "puppet").await;
        let puppet = world.get(PUPPET, "a").await;
        assert!(puppet.is_some_and(|puppet| is_held(&puppet)), "it was released");
        assert!(world.get(CONFIG_MAP, "a-child").await.is_some());
    }
    world.controller("puppet", again).await;
    let message = world.says("puppet", says).await;
    assert_eq!(host.stop().await.code(), Some(0));
    let host = world.start();
    // What the command in the message does.
    let command = message.split("kubectl annotate crd ").nth(1).expect("a command");
    let [crd, order, "--overwrite"] = command.split(' ').collect::<Vec<_>>()[..] else {
        panic!("{command}");
    };
    assert_eq!(crd, CRD);
    let (key, value) = order.split_once('=').expect("an annotation");
    let order = json!({"metadata": {"annotations": {key: value}}});
    world.patch(DEFINITION, crd, order).await;
    world.runs("puppet").await;
    // It is cleaned up by the one that may.
    world.until_gone(PUPPET, "a").await;
    world.served("b").await;
    assert_eq!(host.stop().await.code(), Some(0));
}

/// Regression: the status has no namespace, and had the words of a plugin about objects in any of them.
#[tokio::test]
async fn a_controller_says_nothing_about_single_objects() {
    let (world, host) = World::running("controllers-words", &puppet(1), json!({})).await;
    let fails = json!({"1": {"failure": {"retry": {"message": "the password is hunter2"}}}});
    let spec = json!({"response": {"children": [config_map("their-child", "x")]}, "variants": fails});
    world.puppet("their-puppet", spec).await;
    world.until_ready("their-puppet").await;
    world.put(&variant(1)).await;
    let says = "PluginHeldBack=True Fails: it fails on 1 object … kubectl patch controllers.operator-host.dev puppet";
    world.says("puppet", says).await;
    world
        .until_told("their-puppet", "PluginHeldBack=True Fails: hunter2")
        .await;
    let nothing = async |when: &str| {
        let controller = world.get(CONTROLLER, "puppet").await.unwrap();
        let events = world.api_in("default", "events.k8s.io/v1/Event");
        let events = events.list(&ListParams::default()).await.unwrap();
        for text in std::iter::once(controller)
            .chain(events)
            .map(|it| json!(it).to_string())
        {
            for word in ["hunter2", "their-puppet", "their-child"] {
                assert!(!text.contains(word), "{when}: {text}");
            }
        }
    };
    nothing("held back").await;
    let second = version(&world.get(CONTROLLER, "puppet").await.unwrap(), "proposed");
    world
        .controller("puppet", json!({"version": {"promote": second}}))
        .await;
    world.until_live(&second).await;
    nothing("promoted").await;
    assert_eq!(host.stop().await.code(), Some(0));
}

/// What controllers.md says about the definition.
#[tokio::test]
async fn a_definition_that_is_deleted_takes_all_controllers_along_and_nothing_else() {
    let (world, host) = World::running("controllers-definition", &puppet(1), json!({})).await;
    world.served("a").await;
    world.until_ready("a").await;
    world.remove(DEFINITION, "controllers.operator-host.dev").await;
    assert!(is_held(&world.get(PUPPET, "a").await.unwrap()));
    assert!(world.get(CONFIG_MAP, "a-child").await.is_some());
    assert_eq!(host.stop().await.code(), Some(0));
}
