//! Thousands of objects that are there when a Controller begins to decorate them.

use std::collections::BTreeSet;

use futures::{StreamExt as _, stream};

use super::*;

const OBJECTS: usize = 2000;

#[tokio::test]
async fn thousands_of_objects_get_their_children_once_at_a_start_and_lose_them_with_the_controller() {
    let (world, host) = world_of("decorators-thousands", Options::bare()).await;
    let deployments = world.api(DEPLOYMENT);
    let create = |number: usize| {
        let child = config_map(&format!("child-{number}"), "wanted");
        let object = deployment(&format!("d{number}"), &json!({"response": {"children": [child]}}));
        let object: DynamicObject = serde_json::from_value(object).unwrap();
        let deployments = &deployments;
        async move { deployments.create(&PostParams::default(), &object).await.unwrap() }
    };
    let created = stream::iter(0..OBJECTS).map(create).buffer_unordered(20);
    assert_eq!(created.count().await, OBJECTS);
    world.decorator("decorator", json!({})).await;
    let all =
        |object: &DynamicObject| object.data["status"]["objects"] == json!({"total": OBJECTS, "notReady": 0});
    world
        .until(CONTROLLER, "decorator", "all have their children", all)
        .await;
    let children = async || {
        let writes = world.all_writes(&world.cluster).await;
        assert_eq!(writes_to(&writes, "deployments"), Vec::<String>::new());
        writes_to(&writes, "configmaps")
    };
    let made = children().await;
    let names: BTreeSet<_> = made.iter().collect();
    assert_eq!(
        (names.len(), made.len()),
        (OBJECTS, OBJECTS),
        "each is written once"
    );
    assert_eq!(host.stop().await.code(), Some(0));
    // The next host finds them as they are.
    let host = world.start_decorating();
    world.runs("decorator").await;
    world.decorated("last").await;
    assert_eq!(children().await.len(), OBJECTS + 1);
    world.remove(CONTROLLER, "decorator").await;
    let left = world.api(CONFIG_MAP).list(&ListParams::default()).await.unwrap();
    let left: Vec<_> = left.into_iter().map(|it| it.name_any()).collect();
    assert!(!left.iter().any(|name| name.contains("child")), "{left:?}");
    assert_eq!(host.stop().await.code(), Some(0));
}
