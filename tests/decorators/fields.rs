//! The fields that a plugin gives what it decorates: set, changed and taken back, and never those of others.

use super::*;

/// A Controller that may set a label and an annotation of the pods.
fn fields() -> Value {
    json!({"decorates": [{
        "apiVersion": "apps/v1", "kind": "Deployment", "selector": "decorate=yes",
        "fields": [
            r#"metadata.labels["example.com/seen"]"#,
            r#"spec.template.metadata.annotations["example.com/sum"]"#,
            "spec.template.spec.containers[name=c].image",
            "spec.replicas",
        ],
    }]})
}

impl World {
    /// Creates a Deployment whose plugin wants these fields.
    async fn wanting(&self, name: &str, fields: Value) {
        self.deployment(name, json!({"response": {"parent": fields}}))
            .await;
    }

    async fn until_label(&self, name: &str, value: Option<&str>) {
        let has =
            |object: &DynamicObject| object.labels().get("example.com/seen").map(String::as_str) == value;
        self.until(DEPLOYMENT, name, "the label", has).await;
    }

    /// Waits until nothing of the controller is in the managed fields.
    async fn until_taken_back(&self, name: &str) {
        let is_free = |object: &DynamicObject| {
            let managed = object.metadata.managed_fields.iter().flatten();
            managed
                .filter_map(|it| it.manager.as_deref())
                .all(|it| it != "operator-host/decorator")
        };
        self.until(DEPLOYMENT, name, "its fields are taken back", is_free)
            .await;
    }
}

fn seen(value: &str) -> Value {
    json!({"metadata": {"labels": {"example.com/seen": value}}})
}

#[tokio::test]
async fn a_plugin_sets_fields_of_what_it_decorates_and_they_are_taken_back() {
    let (world, host) = world("decorators-fields").await;
    world.decorator("decorator", fields()).await;
    world.runs("decorator").await;
    let all = json!({
        "metadata": {"labels": {"example.com/seen": "1"}},
        "spec": {"template": {
            "metadata": {"annotations": {"example.com/sum": "abc"}},
            "spec": {"containers": [{"name": "c", "image": "d"}]},
        }},
    });
    // What somebody else has set is not taken, and what they have in common stays theirs.
    world.wanting("taken", all.clone()).await;
    world
        .until_event(
            "taken",
            "Warning Contested: \"operator-host/decorator\" cannot … image",
        )
        .await;
    let taken = world.get(DEPLOYMENT, "taken").await.unwrap();
    assert_eq!(
        taken.data["spec"]["template"]["spec"]["containers"][0]["image"],
        "c"
    );
    assert!(
        !taken.labels().contains_key("example.com/seen"),
        "as a whole or not at all"
    );
    let mut own = all.clone();
    own["spec"]["template"]["spec"]["containers"][0]["image"] = json!("c");
    world.wanting("a", own).await;
    world.until_label("a", Some("1")).await;
    let a = world.get(DEPLOYMENT, "a").await.unwrap();
    assert_eq!(
        a.data["spec"]["template"]["metadata"]["annotations"]["example.com/sum"],
        "abc"
    );
    // Another value, fewer fields, and none.
    world.wanting("a", seen("2")).await;
    world.until_label("a", Some("2")).await;
    let a = world.get(DEPLOYMENT, "a").await.unwrap();
    assert_eq!(a.data["spec"]["template"]["metadata"].get("annotations"), None);
    assert_eq!(a.data["spec"]["template"]["spec"]["containers"][0]["image"], "c");
    // Somebody removes it: it is set again.
    world
        .patch(
            DEPLOYMENT,
            "a",
            json!({"metadata": {"labels": {"example.com/seen": null}}}),
        )
        .await;
    world.until_label("a", Some("2")).await;
    world.wanting("a", json!({})).await;
    world.until_label("a", None).await;
    world.until_taken_back("a").await;
    // The selector does not match any more.
    world.wanting("a", seen("3")).await;
    world.until_label("a", Some("3")).await;
    world.label("a", Value::Null).await;
    world.until_label("a", None).await;
    // Nothing is written when nothing changes.
    world.remove(DEPLOYMENT, "taken").await;
    world.wanting("b", seen("1")).await;
    world.until_label("b", Some("1")).await;
    let writes = async || writes_to(&world.all_writes(&world.cluster).await, "deployments").len();
    let before = writes().await;
    world.decorated("c").await;
    assert_eq!(writes().await, before);
    assert_eq!(host.stop().await.code(), Some(0));
    // Neither does the next host write, nor does it forget what the last one has set.
    let host = world.start_decorating();
    world.runs("decorator").await;
    world.decorated("d").await;
    assert_eq!(writes().await, before);
    world.wanting("b", json!({})).await;
    world.until_label("b", None).await;
    // The Controller goes, also while its host is away.
    world.wanting("b", seen("2")).await;
    world.until_label("b", Some("2")).await;
    assert_eq!(host.stop().await.code(), Some(0));
    world.delete(CONTROLLER, "decorator").await;
    world.label("b", Value::Null).await;
    let host = world.start_decorating();
    world.until_gone(CONTROLLER, "decorator").await;
    let b = world.get(DEPLOYMENT, "b").await.unwrap();
    assert!(!b.labels().contains_key("example.com/seen"));
    assert_eq!(host.stop().await.code(), Some(0));
}

#[tokio::test]
async fn fields_that_no_path_names_change_nothing_and_are_named_and_so_is_what_a_controller_may_not_say() {
    let (world, host) = world("decorators-refused").await;
    world.decorator("decorator", fields()).await;
    world.runs("decorator").await;
    let child = config_map("kept", "x");
    for (name, parent, says) in [
        (
            "beside",
            json!({"metadata": {"labels": {"other": "1"}}}),
            "metadata.labels.other … below none of the paths",
        ),
        (
            "container",
            json!({"spec": {"template": {"spec": {"containers": [{"name": "other", "image": "c"}]}}}}),
            "the list … whose other elements may be others'",
        ),
    ] {
        let orders = json!({"response": {"parent": parent, "children": [child]}});
        world.deployment(name, orders).await;
        world
            .until_event(name, &format!("Warning ParentFieldsRefused: {says}"))
            .await;
    }
    assert!(
        world.get(CONFIG_MAP, "kept").await.is_none(),
        "an answer counts as a whole"
    );
    // The API server refuses what is no value of the field.
    world
        .wanting("typed", json!({"spec": {"replicas": "many"}}))
        .await;
    world.until_event("typed", "Warning ApplyFailed: replicas").await;
    // One whose answer changes each time must not turn for ever.
    world
        .wanting(
            "restless",
            json!({"metadata": {"labels": {"example.com/seen": "$parentVersion"}}}),
        )
        .await;
    world.until_event("restless", "Warning PluginUnsettled").await;
    let field = |path: &str| json!({"decorates": [{"apiVersion": "apps/v1", "kind": "Deployment", "selector": "a", "fields": [path]}]});
    let of_kind = |api_version: &str, kind: &str| json!({"decorates": [{"apiVersion": api_version, "kind": kind, "selector": "a=b"}]});
    let guard = json!({"plugin": {"configMap": {"name": "guard-plugin", "key": "guard.wasm"}}});
    for (name, path, says) in [
        ("root", "spec", "is all of the object but its metadata"),
        ("broken", "spec.a[", "is not the path of a field"),
        ("metadata", "metadata.name", "is not a label or an annotation"),
        (
            "owners",
            "metadata.ownerReferences",
            "is not a label or an annotation",
        ),
        ("labels", "metadata.labels", "is not a label or an annotation"),
        (
            "mark",
            r#"metadata.labels["operator-host.dev/controller"]"#,
            "is a mark of the host",
        ),
        ("of-status", "status.replicas", "is not the plugin's to set"),
    ] {
        world.decorator(name, field(path)).await;
        world
            .says(name, &format!("Stalled=True InvalidSpec: {says}"))
            .await;
    }
    for (name, more, says) in [
        (
            "beyond",
            field("spec.paused"),
            "Stalled=True NotAllowed: the field spec.paused is not allowed by `ceilings[0].fields`",
        ),
        (
            "not-allowed",
            of_kind("v1", "Namespace"),
            "Stalled=True NotAllowed: v1/Namespace … ceilings[0].decorates",
        ),
        (
            "secrets",
            of_kind("v1", "Secret"),
            "Stalled=True InvalidSpec: `spec.decorates[0].kind` … v1/Secret cannot be decorated",
        ),
        ("guard", guard, "Ready=False PluginRefused: cleanup … finalizer"),
        // A kind may come later. Until then the Controller waits.
        (
            "later",
            of_kind("apps/v2", "Deployment"),
            "Ready=False KindNotServed",
        ),
    ] {
        world.decorator(name, more).await;
        world.says(name, says).await;
    }

    // Two Controllers want the same field: both are named.
    world.wanting("a", seen("1")).await;
    world.until_label("a", Some("1")).await;
    world.decorator("second", fields()).await;
    world.runs("second").await;
    // Both agree.
    world.wanting("a", seen("2")).await;
    world
        .until_event("a", "Warning Contested: conflict with \"operator-host/")
        .await;
    assert_eq!(host.stop().await.code(), Some(0));
}

#[tokio::test]
async fn one_controller_decorates_several_kinds() {
    const STATEFUL_SET: &str = "apps/v1/StatefulSet";
    let (world, host) = world("decorators-kinds").await;
    let decorates = |kinds: &[&str]| {
        let of = |kind: &&str| json!({"apiVersion": "apps/v1", "kind": kind, "selector": "decorate=yes", "fields": ["metadata.labels[\"seen\"]"]});
        json!({"decorates": kinds.iter().map(of).collect::<Vec<_>>()})
    };
    let kinds = decorates(&["Deployment", "StatefulSet"]);
    world.decorator("both", kinds.clone()).await;
    world.runs("both").await;
    let answer = |child: &str| {
        let parent = json!({"metadata": {"labels": {"seen": child}}});
        json!({"response": {"children": [config_map(child, "wanted")], "parent": parent}})
    };
    let set = |orders: &Value| {
        let mut set = deployment("a", orders);
        set["kind"] = json!("StatefulSet");
        set["spec"]["serviceName"] = json!("a");
        set.to_string()
    };
    let seen = |child: &'static str| {
        move |object: &DynamicObject| object.labels().get("seen").is_some_and(|it| it == child)
    };
    world.deployment("a", answer("of-deployment")).await;
    world.apply(&set(&answer("of-set"))).await;
    for (kind, child) in [(DEPLOYMENT, "of-deployment"), (STATEFUL_SET, "of-set")] {
        world.until_there(CONFIG_MAP, child).await;
        world.until(kind, "a", "its label", seen(child)).await;
    }
    let counts =
        |total: u64| move |object: &DynamicObject| object.data["status"]["objects"]["total"] == total;
    world.until(CONTROLLER, "both", "both counted", counts(2)).await;
    // What is wrong with one of two objects of the same name is told of the right one.
    world
        .apply(&set(&json!({"response": {"children": [{"kind": "Broken"}]}})))
        .await;
    let first = |object: &DynamicObject| {
        let first = &object.data["status"]["objects"]["first"];
        first[0]["kind"] == "StatefulSet" && first.as_array().is_some_and(|all| all.len() == 1)
    };
    world.until(CONTROLLER, "both", "the set is named", first).await;
    let told = world.program(&["explain", "statefulset", "a"]).ends(0);
    assert!(
        !told.contains("Controller both (sets fields of it): no problem"),
        "{told}"
    );
    let told = world.program(&["explain", "deployment", "a"]).ends(0);
    assert_contains(&told, "Controller both (sets fields of it): no problem");
    world.apply(&set(&answer("of-set"))).await;

    // A kind that the cluster does not serve stops no other.
    let mut later = kinds.clone();
    let unknown = json!({"apiVersion": "apps/v9", "kind": "DaemonSet", "selector": "decorate=yes"});
    later["decorates"].as_array_mut().unwrap().push(unknown);
    world.decorator("both", later).await;
    world
        .says("both", "Ready=False KindNotServed: waits for … apps/v9/DaemonSet")
        .await;
    world.deployment("b", answer("of-another")).await;
    world.until_there(CONFIG_MAP, "of-another").await;
    // Nor does one that the plugin does not serve.
    world
        .decorator("both", decorates(&["Deployment", "StatefulSet", "DaemonSet"]))
        .await;
    world
        .says("both", "Ready=False PluginRefused: apps/v1/DaemonSet")
        .await;
    world.deployment("b", answer("of-another-one")).await;
    world.until_there(CONFIG_MAP, "of-another-one").await;
    world.decorator("both", kinds.clone()).await;
    world.runs("both").await;
    // Nor is one left out while its objects have children.
    world.decorator("both", decorates(&["StatefulSet"])).await;
    world
        .says(
            "both",
            "Stalled=True KindChanged: has decorated Deployment.apps objects … still runs",
        )
        .await;
    world.deployment("c", answer("of-a-third")).await;
    world.until_there(CONFIG_MAP, "of-a-third").await;
    // In another order they are the same kinds.
    world
        .decorator("both", decorates(&["StatefulSet", "Deployment"]))
        .await;
    world.runs("both").await;
    world.deployment("d", answer("of-a-fourth")).await;
    world.until_there(CONFIG_MAP, "of-a-fourth").await;
    world.remove(CONTROLLER, "both").await;
    for (kind, child) in [(DEPLOYMENT, "of-deployment"), (STATEFUL_SET, "of-set")] {
        assert!(world.get(CONFIG_MAP, child).await.is_none(), "{child}");
        let object = world.get(kind, "a").await.unwrap();
        assert!(!seen(child)(&object), "{kind}");
    }
    assert_eq!(host.stop().await.code(), Some(0));
}
