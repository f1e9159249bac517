//! What a Controller that decorates may not say.

use super::*;

#[tokio::test]
async fn what_is_wrong_is_in_the_status_of_the_controller() {
    let (world, host) = world("decorators-bad").await;
    let decorates = |api_version: &str, kind: &str, selector: &str| json!({"decorates": [{"apiVersion": api_version, "kind": kind, "selector": selector}]});
    for (name, more, says) in [
        (
            "not-allowed",
            decorates("v1", "Namespace", "a=b"),
            "NotAllowed: v1/Namespace … ceilings[0].decorates",
        ),
        (
            "secrets",
            decorates("v1", "Secret", "a=b"),
            "InvalidSpec: `spec.decorates[0].kind` … v1/Secret cannot be decorated",
        ),
    ] {
        world.decorator(name, more).await;
        world.says(name, &format!("Stalled=True {says}")).await;
    }
    let guard = json!({"plugin": {"configMap": {"name": "guard-plugin", "key": "guard.wasm"}}});
    world.decorator("guard", guard).await;
    world
        .says("guard", "Ready=False PluginRefused: cleanup … finalizer")
        .await;
    // A kind may come later. Until then the Controller waits.
    world
        .decorator("later", decorates("apps/v2", "Deployment", "a=b"))
        .await;
    world.says("later", "Ready=False KindNotServed").await;
    world.decorator("decorator", json!({})).await;
    world.decorated("a").await;
    world
        .decorator("decorator", decorates("apps/v1", "StatefulSet", "a=b"))
        .await;
    let says = "Stalled=True KindChanged: has decorated Deployment.apps objects";
    world.says("decorator", says).await;
    world.decorated("b").await;
    assert_eq!(host.stop().await.code(), Some(0));
}
