//! Decorated kinds that are not always there.

use super::*;

const THING: &str = "things.test.dev/v1/Thing";

impl World {
    /// Creates the definition of Things, and one that gets a ConfigMap.
    async fn thing(&self) {
        let definition = definition("Thing", "things.test.dev", &any());
        self.apply(&definition.to_string()).await;
        let spec = json!({"response": {"children": [config_map("thing-child", "wanted")]}});
        let thing = json!({
            "apiVersion": "things.test.dev/v1", "kind": "Thing",
            "metadata": {"name": "thing", "labels": {"decorate": "yes"}},
            "spec": spec,
        });
        let things = self.api(THING);
        until_true("Things are served", async || {
            let (params, thing) = (PatchParams::apply("user"), Patch::Apply(&thing));
            things.patch("thing", &params, &thing).await.is_ok()
        })
        .await;
        // Of one with the same name before, the garbage collector takes the child first.
        let thing = things.get("thing").await.unwrap();
        let is_its_own = |child: &DynamicObject| {
            child
                .owner_references()
                .iter()
                .any(|it| Some(&it.uid) == thing.metadata.uid.as_ref())
        };
        self.until(CONFIG_MAP, "thing-child", "of this Thing", is_its_own)
            .await;
    }

    async fn undefine_things(&self) {
        let definition = "apiextensions.k8s.io/v1/CustomResourceDefinition";
        self.remove(definition, "things.things.test.dev").await;
    }
}

#[tokio::test]
async fn a_kind_that_comes_later_goes_and_comes_back_is_decorated_while_it_is_there() {
    let (world, host) = world("decorators-kinds").await;
    let kinds = json!({"decorates": [
        {"apiVersion": "apps/v1", "kind": "Deployment", "selector": "decorate=yes"},
        {"apiVersion": "things.test.dev/v1", "kind": "Thing", "selector": "decorate=yes"},
    ]});
    world.decorator("decorator", kinds.clone()).await;
    // The other kind does not wait.
    world.decorated("a").await;
    let waits = "Ready=False KindNotServed: waits for … things.test.dev/v1/Thing";
    world.says("decorator", waits).await;
    world.thing().await;
    world.runs("decorator").await;
    world.undefine_things().await;
    world.says("decorator", waits).await;
    world.decorated("b").await;
    world.thing().await;
    world.runs("decorator").await;
    world.undefine_things().await;
    world.remove(CONTROLLER, "decorator").await;
    for child in ["a-child", "b-child", "thing-child"] {
        assert!(world.get(CONFIG_MAP, child).await.is_none(), "{child} is left");
    }
    // It is no hindrance to the next Controller.
    world.decorator("next", kinds).await;
    world.until_there(CONFIG_MAP, "a-child").await;
    assert_eq!(host.stop().await.code(), Some(0));
}
