//! Cluster-scoped parents, with children in the configured namespaces.

use crate::support::prelude::*;
use k8s_openapi::api::events::v1::Event;

const CONTROLLER: &str = "\
- name: cluster-puppet
  parent: {apiVersion: test.operator-host.dev/v1, kind: ClusterPuppet}
  plugin: cluster-puppet.wasm
  children: [{apiVersion: v1, kind: ConfigMap}]
  reads: [{apiVersion: v1, kind: ConfigMap}]
  otherNamespaces: [cluster-scoped-2, cluster-scoped-1]
  backoff: {initial: 50ms, max: 500ms}
";

/// The only scenario with cluster-scoped parents in the shared cluster, since hosts see those of each other.
#[tokio::test]
async fn a_cluster_scoped_parent_has_children_in_the_namespaces_that_are_listed_and_in_no_other() {
    let scenario = Scenario::new("cluster-scoped").await;
    let second = Scenario::new("cluster-scoped-2").await;
    let host = scenario.start(CONTROLLER);
    let answer = async |response: Value| {
        scenario
            .cluster_puppet("cp", json!({ "response": response }))
            .await
    };
    let apply = async |children: &[Value]| answer(json!({ "children": children })).await;
    let within = |namespace: &str| config_map_in(namespace, "a", "1");
    let parent = apply(&[within("cluster-scoped-2")]).await;
    let child = second.until_there(CONFIG_MAP, "a").await;
    assert_eq!(
        Some(&child.metadata.owner_references.unwrap()[0].uid),
        parent.metadata.uid.as_ref()
    );
    // A change of a child enqueues its parent, although the child is in a namespace and the parent in none.
    second.delete(CONFIG_MAP, "a").await;
    second
        .until(CONFIG_MAP, "a", "again", |a| a.metadata.uid != child.metadata.uid)
        .await;

    // This kind has no status subresource: errors are reported in an Event and in the log.
    apply(&[within("cluster-scoped-2"), within("kube-system")]).await;
    host.until_log("kube-system … is not allowed … `otherNamespaces`")
        .await;
    // Regression: the Event was repeated at each retry.
    for _ in 0..4 {
        host.until_reconciles("cp", host.reconciles("cp") + 1).await;
    }
    let events = Api::<Event>::all(scenario.client.clone());
    let is_told = |event: &Event| {
        event.reason.as_deref() == Some("ChildRefused")
            && event
                .regarding
                .as_ref()
                .is_some_and(|regarding| regarding.name.as_deref() == Some("cp"))
    };
    // Kubernetes 1.20 refuses Events about cluster-scoped objects in `default`.
    let is_refused =
        |line: &&str| line.contains("cannot write an Event") && line.contains("\"ChildRefused\"");
    let told = async || {
        let events = events.list(&ListParams::default()).await.unwrap();
        let told: Vec<_> = events.into_iter().filter(is_told).collect();
        let refused = host.log().lines().filter(is_refused).count();
        (told, refused)
    };
    let is_known = async || !matches!(told().await, (told, 0) if told.is_empty());
    until_true("it is told", is_known).await;
    for _ in 0..2 {
        host.until_reconciles("cp", host.reconciles("cp") + 1).await;
    }
    let (told, refused) = told().await;
    assert_eq!(told.len() + refused, 1, "{told:?} {}", host.log());
    assert!(told.iter().all(|event| event.series.is_none()), "{told:?}");
    apply(&[within("cluster-scoped-2"), config_map("a", "1")]).await;
    host.until_log("must name a namespace").await;
    let need = json!({"id": "settings", "apiVersion": "v1", "kind": "ConfigMap", "name": "settings"});
    answer(json!({ "children": [within("cluster-scoped-2")], "needs": [need] })).await;
    host.until_log("need \\\"settings\\\" … the plugin must name a namespace")
        .await;

    // A terminating namespace does not affect the others.
    let going = Scenario::new("cluster-scoped-1").await;
    let held = json!({
        "apiVersion": "v1", "kind": "ConfigMap",
        "metadata": {"name": "held", "finalizers": ["test.operator-host.dev/held"]},
    });
    going.apply(&held.to_string()).await;
    scenario.delete("v1/Namespace", "cluster-scoped-1").await;
    second.delete(CONFIG_MAP, "a").await;
    apply(&[within("cluster-scoped-1"), within("cluster-scoped-2")]).await;
    second.until_there(CONFIG_MAP, "a").await;
    host.until_log("cluster-scoped-1/a … because it is being terminated")
        .await;
    going.set_finalizers(CONFIG_MAP, "held", &[]).await;

    apply(&[]).await;
    second.until_gone(CONFIG_MAP, "a").await;
    let parent = scenario.get(CLUSTER_PUPPET, "cp").await.unwrap();
    assert!(condition(&parent, "Ready").is_none(), "{parent:?}");

    scenario.remove(CLUSTER_PUPPET, "cp").await;
}

/// Regression: who could create ConfigMaps in one namespace stopped a parent in all others.
#[tokio::test]
async fn what_is_in_the_way_in_one_namespace_does_not_stop_the_others() {
    let cluster = own_cluster(Options::default()).await;
    let full = Scenario::within(&cluster, "full").await;
    let other = Scenario::within(&cluster, "other").await;
    let config = CONTROLLER.replace("cluster-scoped-2, cluster-scoped-1", "full, other");
    let config = format!("{config}  limits: {{request: 64Ki}}\n");
    let host = full.start(&config);
    let apply = async |text: &str| {
        let children = ["full", "other"].map(|namespace| config_map_in(namespace, "a", text));
        full.cluster_puppet("cp", json!({"response": {"children": children}}))
            .await
    };
    let has = |text: &'static str| move |map: &DynamicObject| map.data["data"]["text"] == text;
    full.apply(&config_map("a", "theirs").to_string()).await;
    let parent = apply("1").await;
    other.until(CONFIG_MAP, "a", "made", has("1")).await;
    let words = "ConfigMap full/a exists and was not created by this host";
    host.until_log(&format!("\"WARN\" … {words}")).await;
    apply("2").await;
    other.until(CONFIG_MAP, "a", "changed", has("2")).await;
    other.delete(CONFIG_MAP, "a").await;
    other.until(CONFIG_MAP, "a", "made again", has("2")).await;
    assert!(has("theirs")(&full.get(CONFIG_MAP, "a").await.unwrap()));
    full.delete(CONFIG_MAP, "a").await;
    let made = full.until(CONFIG_MAP, "a", "made", has("2")).await;

    // What looks like the child of an earlier parent, and stays.
    full.delete(CONFIG_MAP, "a").await;
    assert_eq!(host.stop().await.code(), Some(0));
    let _ = full.api(CONFIG_MAP).delete("a", &DeleteParams::default()).await;
    full.until_gone(CONFIG_MAP, "a").await;
    let mut owner = made.metadata.owner_references.clone().unwrap().remove(0);
    owner.uid = "00000000-0000-4000-8000-000000000000".into();
    let forged = json!({
        "apiVersion": "v1", "kind": "ConfigMap", "data": {"text": "theirs"},
        "metadata": {"name": "a", "ownerReferences": [owner], "finalizers": ["example.com/stays"]},
    });
    full.apply(&forged.to_string()).await;
    apply("3").await;
    let host = full.start(&config);
    other.until(CONFIG_MAP, "a", "changed", has("3")).await;
    full.set_finalizers(CONFIG_MAP, "a", &[]).await;
    let _ = full.api(CONFIG_MAP).delete("a", &DeleteParams::default()).await;
    full.until(CONFIG_MAP, "a", "made", has("3")).await;
    assert_eq!(host.stop().await.code(), Some(0));

    // Too many children stop it, and are named.
    for number in 0..4 {
        let forged = json!({
            "apiVersion": "v1", "kind": "ConfigMap", "data": {"text": "x".repeat(30 << 10)},
            "metadata": {
                "name": format!("forged-{number}"), "labels": made.metadata.labels,
                "ownerReferences": made.metadata.owner_references,
            },
        });
        full.apply(&forged.to_string()).await;
    }
    let host = full.start(&config);
    host.until_log("\"WARN\" … The largest child is ConfigMap full/forged-")
        .await;
    assert_eq!(
        made.metadata.owner_references.unwrap()[0].uid,
        parent.metadata.uid.unwrap()
    );
    assert_eq!(host.stop().await.code(), Some(0));
}

/// The definition of the parents, with the status that they lack in the shared cluster.
fn with_status() -> String {
    let mut definition = definition("ClusterPuppet", "test.operator-host.dev", &any());
    definition["spec"]["scope"] = "Cluster".into();
    definition.to_string()
}

/// A definition that is a child, and an object of its kind that is one, too.
fn widget() -> [Value; 2] {
    let after = "CustomResourceDefinition.apiextensions.k8s.io/widgets.parts.example.com";
    let resource = json!({
        "apiVersion": "parts.example.com/v1", "kind": "Widget", "spec": {"size": 3},
        "metadata": {
            "name": "w", "namespace": "parts", "annotations": {"operator-host.dev/after": after},
        },
    });
    [definition("Widget", "parts.example.com", &any()), resource]
}

/// The host is limited to one namespace, so it watches by name what it can.
#[tokio::test]
async fn children_wait_for_namespaces_and_definitions_and_may_be_where_the_parent_makes_a_namespace_or_a_pattern_matches()
 {
    let cluster = own_cluster(Options::default()).await;
    let scenario = Scenario::within(&cluster, "parts").await;
    let shop = Scenario::within(&cluster, "shop-1").await;
    let other = Scenario::within(&cluster, "other").await;
    scenario.apply(&with_status()).await;
    let config = CONTROLLER
        .replace("cluster-scoped-2, cluster-scoped-1", "parts, team-x, shop-*")
        .replace(
            "children: [",
            "children: [{apiVersion: v1, kind: Namespace}, {apiVersion: parts.example.com/v1, kind: Widget}, \
             {apiVersion: apiextensions.k8s.io/v1, kind: CustomResourceDefinition}, ",
        );
    let host = scenario.start(&config);
    let apply = async |name: &str, children: &[Value]| {
        scenario
            .cluster_puppet(name, json!({"response": {"children": children}}))
            .await
    };
    let until = async |name: &str, says: &str| scenario.until_condition(CLUSTER_PUPPET, name, says).await;
    let ready = "Ready=True Reconciled";
    let within = |namespace: &str| config_map_in(namespace, "a", "1");
    // The host has started and compiled the plugin.
    apply("first", &[]).await;
    until("first", ready).await;
    let created = Instant::now();
    apply("missing", &[within("team-x"), config_map_in("parts", "b", "1")]).await;
    until(
        "missing",
        "Reconciling=True ApplyFailed: namespace team-x does not exist",
    )
    .await;
    let elapsed = created.elapsed();
    assert!(elapsed < Duration::from_secs(15), "{elapsed:?}");
    scenario.until_there(CONFIG_MAP, "b").await;
    scenario.create_namespace("team-x").await;
    until("missing", ready).await;

    apply("widget", &widget()).await;
    until("widget", ready).await;
    let made = scenario.get("parts.example.com/v1/Widget", "w").await;
    assert_eq!(made.expect("the resource").data["spec"]["size"], 3);

    let team = json!({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": "team"}});
    apply("cp", &[team.clone(), within("team"), within("shop-1")]).await;
    let teams = scenario.beside("team");
    let made = teams.until_there(CONFIG_MAP, "a").await;
    shop.until_there(CONFIG_MAP, "a").await;
    // A change of a child in a made namespace enqueues its parent.
    teams.delete(CONFIG_MAP, "a").await;
    teams
        .until(CONFIG_MAP, "a", "another one", |it| {
            it.metadata.uid != made.metadata.uid
        })
        .await;
    // What is forged in a namespace that the parent has not made is not its child, and stays.
    let forged = json!({
        "apiVersion": "v1", "kind": "ConfigMap",
        "metadata": {
            "name": "forged", "labels": made.metadata.labels, "ownerReferences": made.metadata.owner_references,
        },
    });
    other.apply(&forged.to_string()).await;
    apply("cp", &[team, within("team")]).await;
    shop.until_gone(CONFIG_MAP, "a").await;
    assert!(other.get(CONFIG_MAP, "forged").await.is_some(), "{}", host.log());
    apply("cp", &[within("team")]).await;
    host.until_log("the namespace \\\"team\\\" is not allowed … or let the plugin make it")
        .await;
}

#[tokio::test]
async fn a_host_sees_only_the_namespaces_of_its_configuration() {
    let inside = Scenario::new("watched").await;
    let outside = Scenario::new("not-watched").await;
    let host = inside.start(&controller("puppet.wasm", ""));
    let spec = json!({"response": {"children": [config_map("a", "")]}});
    outside.puppet("p", spec.clone()).await;
    inside.puppet("p", spec).await;
    inside.until_ready("p").await;
    assert!(outside.names(CONFIG_MAP).await.iter().all(|name| name != "a"));
    assert!(!host.log().contains("not-watched"), "{}", host.log());
}
