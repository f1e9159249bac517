//! From the label to the end of the Controller: what is decorated gets children, and nothing is written into it.

use super::*;

#[tokio::test]
async fn an_object_has_children_as_long_as_it_has_the_label_and_is_not_written() {
    let (world, host) = world("decorators-label").await;
    world.decorator("decorator", json!({})).await;
    world.runs("decorator").await;
    world.decorated("a").await;
    // What has a controller of its own may be decorated.
    let child = config_map("guarded-child", "wanted");
    let mut guarded = deployment("guarded", &json!({"response": {"children": [child]}}));
    guarded["metadata"]["finalizers"] = json!(["operator-host.dev/other"]);
    world.apply(&guarded.to_string()).await;
    world.until_there(CONFIG_MAP, "guarded-child").await;
    // Others have no label.
    let child = config_map("b-child", "unwanted");
    let mut other = deployment("b", &json!({"response": {"children": [child]}}));
    other["metadata"]["labels"] = json!({});
    world.apply(&other.to_string()).await;
    world.label("a", Value::Null).await;
    world.until_gone(CONFIG_MAP, "a-child").await;
    world.label("a", json!("yes")).await;
    world.until_there(CONFIG_MAP, "a-child").await;
    assert!(world.get(CONFIG_MAP, "b-child").await.is_none());
    // What the plugin does not name any more goes, too.
    world
        .deployment(
            "a",
            json!({"response": {"children": [config_map("another", "x")]}}),
        )
        .await;
    world.until_there(CONFIG_MAP, "another").await;
    world.until_gone(CONFIG_MAP, "a-child").await;
    let writes = world.all_writes(&world.cluster).await;
    assert_eq!(writes_to(&writes, "deployments"), Vec::<String>::new());
    let deployment = world.get(DEPLOYMENT, "a").await.unwrap();
    assert_eq!(deployment.metadata.finalizers, None);
    // Its owner waits for nothing but the garbage collector.
    let foreground = DeleteParams::foreground();
    let deleted = world.api(DEPLOYMENT).delete("a", &foreground).await;
    deleted.unwrap();
    world.until_gone(DEPLOYMENT, "a").await;
    assert!(world.get(CONFIG_MAP, "another").await.is_none());
    assert_eq!(host.stop().await.code(), Some(0));
}

#[tokio::test]
async fn what_is_wrong_is_told_of_the_object_and_the_controller_and_only_a_watched_status_calls_the_plugin() {
    let (world, host) = world("decorators-unready").await;
    world.decorator("decorator", json!({})).await;
    world.decorated("good").await;
    let failure = json!({"invalid": {"reason": "BadLabel", "message": "the label is wrong"}});
    world.deployment("bad", json!({"failure": failure})).await;
    world
        .until_event("bad", "Warning BadLabel: the label is wrong")
        .await;
    let counted = |object: &DynamicObject| {
        let objects = &object.data["status"]["objects"];
        objects["total"] == 2
            && objects["notReady"] == 1
            && objects["first"][0]["name"] == "decorators-unready/bad"
            && objects["first"][0]["reason"] == "BadLabel"
    };
    world.until(CONTROLLER, "decorator", "counted", counted).await;
    let bad = world.get(DEPLOYMENT, "bad").await.unwrap();
    let conditions = bad.data["status"]["conditions"].as_array();
    let ours = conditions
        .into_iter()
        .flatten()
        .filter(|it| it["type"] == "Ready");
    assert_eq!(ours.count(), 0);
    let explained = world
        .program(&["explain", "deployment", "bad", "--namespace", &world.namespace])
        .ends(0);
    for part in [
        "Its status is not the host's.",
        "Decorated by\n  Controller decorator: BadLabel\n",
        "Warning BadLabel",
    ] {
        assert!(explained.contains(part), "{part:?} is not in {explained}");
    }
    world.decorated("bad").await;
    let is_ready =
        |object: &DynamicObject| object.data["status"]["objects"] == json!({"total": 2, "notReady": 0});
    world
        .until(CONTROLLER, "decorator", "all are ready", is_ready)
        .await;
    // A change of the status alone calls nobody, unless the Controller watches it.
    world.decorated("a").await;
    world.decorated("first").await;
    let reconciles = || {
        let log = host.log();
        let of_it = |line: &&str| contains(line, "reconcile started … \"decorators-unready/a\"");
        log.lines().filter(of_it).count()
    };
    let edit = async |generation: u64| {
        let status = json!({"observedGeneration": generation});
        world.set_status(DEPLOYMENT, "a", status).await;
    };
    let before = reconciles();
    edit(7).await;
    world.decorated("second").await;
    assert_eq!(reconciles(), before, "the plugin was called");
    world.decorator("decorator", json!({"watchStatus": true})).await;
    until_true("it starts again", async || reconciles() > before).await;
    world.decorated("third").await;
    let before = reconciles();
    edit(8).await;
    until_true("the plugin is called", async || reconciles() > before).await;
    assert_eq!(host.stop().await.code(), Some(0));
}

#[tokio::test]
async fn a_controller_that_is_deleted_leaves_nothing_also_while_its_host_is_away() {
    let (world, host) = world("decorators-removal").await;
    let mut copied = config_map("of-others", "x");
    copied["metadata"]["labels"] = json!({"operator-host.dev/controller": "decorator"});
    world.apply(&copied.to_string()).await;
    world.decorator("decorator", json!({})).await;
    world.decorated("a").await;
    // It goes while its host is there, and while that is away.
    world.remove(CONTROLLER, "decorator").await;
    assert!(world.get(CONFIG_MAP, "a-child").await.is_none());
    world.decorator("decorator", json!({})).await;
    world.until_there(CONFIG_MAP, "a-child").await;
    assert_eq!(host.stop().await.code(), Some(0));
    world.delete(CONTROLLER, "decorator").await;
    // An object that loses its label meanwhile is no reason to leave its child.
    world.label("a", Value::Null).await;
    assert!(world.get(CONFIG_MAP, "a-child").await.is_some());
    let host = world.start_decorating();
    world.until_gone(CONTROLLER, "decorator").await;
    assert!(world.get(CONFIG_MAP, "a-child").await.is_none());
    // A label alone proves nothing.
    assert!(world.get(CONFIG_MAP, "of-others").await.is_some());
    let deployment = world.get(DEPLOYMENT, "a").await.unwrap();
    assert_eq!(deployment.metadata.finalizers, None);
    assert_eq!(host.stop().await.code(), Some(0));
}

#[tokio::test]
async fn a_selector_that_leaves_out_many_deletes_nothing_until_that_is_allowed() {
    let (world, host) = world("decorators-selector").await;
    world.decorator("decorator", json!({})).await;
    for name in ["a", "b", "c"] {
        world.decorated(name).await;
    }
    let other = json!([{"apiVersion": "apps/v1", "kind": "Deployment", "selector": "decorate=never"}]);
    world.decorator("decorator", json!({"decorates": other})).await;
    world.until_error("decorator", "leaves out 3 objects").await;
    assert!(world.get(CONFIG_MAP, "a-child").await.is_some());
    let all = json!({"decorates": other, "proving": {"maxDeletions": "100%"}});
    world.decorator("decorator", all).await;
    for name in ["a", "b", "c"] {
        world.until_gone(CONFIG_MAP, &format!("{name}-child")).await;
    }
    assert_eq!(host.stop().await.code(), Some(0));
}

#[tokio::test]
async fn many_controllers_decorate_a_kind_and_none_what_a_controller_made() {
    let (world, host) = world("decorators-many").await;
    world.decorator("one", json!({})).await;
    world.decorator("two", json!({})).await;
    world.runs("one").await;
    world.runs("two").await;
    // Both want the same child: one makes it, and the other says who has it.
    world.decorated("a").await;
    world
        .until_event("a", "Warning ApplyFailed: conflicts with \"operator-host/")
        .await;
    let own = json!({
        "decorates": null,
        "parent": {"apiVersion": "test.operator-host.dev/v1", "kind": "Puppet"},
        "plugin": {"configMap": {"name": "puppet-plugin"}},
        "children": [{"apiVersion": "apps/v1", "kind": "Deployment"}, {"apiVersion": "v1", "kind": "ConfigMap"}],
    });
    world.decorator("owner", own).await;
    let made = deployment(
        "made",
        &json!({"response": {"children": [config_map("of-made", "x")]}}),
    );
    world.wants("p", &[made, config_map("beside", "x")]).await;
    world.until_there(DEPLOYMENT, "made").await;
    world.until_there(CONFIG_MAP, "beside").await;
    // What a child has made is not decorated either, such as the pods of a Job with the labels of the pod that it is for.
    let beside = world.get(CONFIG_MAP, "beside").await.unwrap();
    let owned_by = |owner: &DynamicObject, name: &str| {
        let child = config_map(&format!("of-{name}"), "x");
        let mut made = deployment(name, &json!({"response": {"children": [child]}}));
        made["metadata"]["ownerReferences"] = json!([{
            "apiVersion": "v1", "kind": "ConfigMap", "name": owner.name_any(), "uid": owner.uid(), "controller": true,
        }]);
        made.to_string()
    };
    world.apply(&owned_by(&beside, "made-by-child")).await;
    let others = world.apply(&config_map("others", "x").to_string()).await;
    world.apply(&owned_by(&others, "made-by-other")).await;
    world.until_there(CONFIG_MAP, "of-made-by-other").await;
    world.decorated("last").await;
    assert!(world.get(CONFIG_MAP, "of-made").await.is_none());
    assert!(world.get(CONFIG_MAP, "of-made-by-child").await.is_none());
    assert_eq!(host.stop().await.code(), Some(0));
}
