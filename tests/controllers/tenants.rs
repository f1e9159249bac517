//! Teams that may write Controllers: none takes what another one has, and none learns of it.

use super::*;

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
