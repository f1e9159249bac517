//! What a plugin asks to read, and what happens when that changes.

use crate::support::prelude::*;

fn labelled(name: &str, team: &str) -> String {
    json!({"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": name, "labels": {"team": team}}})
        .to_string()
}

fn need(id: &str, more: &Value) -> Value {
    let mut need = json!({"id": id, "apiVersion": "v1", "kind": "ConfigMap"});
    for (key, value) in more.as_object().unwrap() {
        need[key] = value.clone();
    }
    need
}

fn spec(needs: &[Value]) -> Value {
    json!({"response": {"needs": needs, "status": {"read": "$related"}}})
}

/// Waits until the puppet has read these objects, by the need.
async fn until_read(scenario: &Scenario, expected: Value) {
    let has_read = |puppet: &DynamicObject| puppet.data["status"]["read"] == expected;
    scenario.until(PUPPET, "p", &expected.to_string(), has_read).await;
}

#[tokio::test]
async fn what_is_needed_by_name_or_label_is_read_and_a_change_of_it_reconciles_at_once() {
    let scenario = Scenario::new("needs").await;
    let more = "children: []\nreads: [{apiVersion: v1, kind: ConfigMap}]";
    let _host = scenario.start(&controller("puppet.wasm", more));
    scenario.apply(&labelled("blue-1", "blue")).await;
    scenario.apply(&labelled("red-1", "red")).await;
    let needs = [
        need("named", &json!({"name": "settings"})),
        need("blue", &json!({"labelSelector": "team in (blue),!retired"})),
    ];
    scenario.puppet("p", spec(&needs)).await;
    until_read(&scenario, json!({"named": [], "blue": ["blue-1"]})).await;
    scenario.apply(&labelled("settings", "none")).await;
    until_read(&scenario, json!({"named": ["settings"], "blue": ["blue-1"]})).await;
    // One object enters the selection by its label, one leaves it, one is deleted.
    for (name, labels) in [
        ("red-1", json!({"team": "blue"})),
        ("blue-1", json!({"retired": "yes"})),
    ] {
        scenario
            .patch(CONFIG_MAP, name, json!({"metadata": {"labels": labels}}))
            .await;
    }
    scenario.delete(CONFIG_MAP, "settings").await;
    until_read(&scenario, json!({"named": [], "blue": ["red-1"]})).await;
}

#[tokio::test]
async fn a_need_about_every_namespace_is_about_those_that_the_controller_may_read() {
    let scenario = Scenario::new("needs-all").await;
    for name in ["needs-all-a", "needs-all-b", "needs-none"] {
        scenario.create_namespace(name).await;
    }
    let more = "children: []\nreads: [{apiVersion: v1, kind: ConfigMap}]\notherNamespaces: [needs-all-*]";
    let host = scenario.start(&controller("puppet.wasm", more));
    let until_read = async |expected: &[&str]| until_read(&scenario, json!({ "blue": expected })).await;
    let needs = [need(
        "blue",
        &json!({"namespace": "*", "labelSelector": "team=blue"}),
    )];
    scenario.puppet("p", spec(&needs)).await;
    until_read(&[]).await;
    for (namespace, name, expected) in [
        ("needs-all", "z", &["z"][..]),
        ("needs-all-b", "b", &["z", "b"]),
        ("needs-all-a", "a", &["z", "a", "b"]),
    ] {
        scenario.beside(namespace).apply(&labelled(name, "blue")).await;
        until_read(expected).await;
    }
    // What it may not read is no reason to reconcile it.
    let before = host.reconciles("needs-all/p");
    scenario
        .beside("needs-none")
        .apply(&labelled("hidden", "blue"))
        .await;
    scenario.beside("needs-all-b").delete(CONFIG_MAP, "b").await;
    until_read(&["z", "a"]).await;
    assert!(host.reconciles("needs-all/p") <= before + 2, "{}", host.log());
    let named = [need("blue", &json!({"namespace": "*", "name": "a"}))];
    scenario.puppet("p", spec(&named)).await;
    until_read(&["a"]).await;
}

#[tokio::test]
async fn several_names_and_the_labels_of_namespaces_choose_what_is_read() {
    let cluster = own_cluster(Options::default()).await;
    let scenario = Scenario::within(&cluster, "needs-many").await;
    let more = "children: []\nreads: [{apiVersion: v1, kind: ConfigMap}]\notherNamespaces: [needs-many-*]";
    // A host that watches some namespaces only does not know the labels of others.
    let labels_needed = need("n", &json!({"namespaceSelector": "a"}));
    let host = scenario.start(&controller("puppet.wasm", more));
    scenario.puppet("p", spec(&[labels_needed])).await;
    scenario
        .until_condition(
            PUPPET,
            "p",
            "Stalled=True NeedRefused: watches some namespaces only",
        )
        .await;
    assert_eq!(host.stop().await.code(), Some(0));
    let config = std::fs::read_to_string(scenario.config(&controller("puppet.wasm", more))).unwrap();
    let config = scenario.file("config.yaml", config.replace("namespaces: [needs-many]\n", ""));
    let host = scenario.start_with(&config, &[]);
    let until_read = async |expected: &[&str]| until_read(&scenario, json!({ "n": expected })).await;
    scenario.apply(&labelled("b", "blue")).await;
    scenario.apply(&labelled("c", "blue")).await;
    scenario
        .puppet("p", spec(&[need("n", &json!({"names": ["a", "b", "d"]}))]))
        .await;
    until_read(&["b"]).await;
    scenario.apply(&labelled("d", "blue")).await;
    until_read(&["b", "d"]).await;
    scenario.delete(CONFIG_MAP, "b").await;
    until_read(&["d"]).await;
    // Namespaces by their labels: those that are there, that come, change and may not be read.
    let namespace = async |name: &str, labels: Value| {
        let object =
            json!({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": name, "labels": labels}});
        scenario.apply(&object.to_string()).await;
    };
    let monitored = json!({"monitored": "yes"});
    namespace("needs-many-a", monitored.clone()).await;
    namespace("needs-many-b", json!({})).await;
    namespace("needs-hidden", monitored.clone()).await;
    for (namespace, name) in [
        ("needs-many-a", "a"),
        ("needs-many-b", "b"),
        ("needs-hidden", "h"),
    ] {
        scenario.beside(namespace).apply(&labelled(name, "blue")).await;
    }
    let by_labels = need(
        "n",
        &json!({"namespaceSelector": "monitored=yes", "labelSelector": "team=blue"}),
    );
    scenario.puppet("p", spec(&[by_labels])).await;
    until_read(&["a"]).await;
    namespace("needs-many-b", monitored.clone()).await;
    until_read(&["a", "b"]).await;
    scenario
        .beside("needs-many-b")
        .apply(&labelled("b2", "blue"))
        .await;
    until_read(&["a", "b", "b2"]).await;
    scenario
        .patch(
            "v1/Namespace",
            "needs-many-a",
            json!({"metadata": {"labels": {"monitored": null}}}),
        )
        .await;
    until_read(&["b", "b2"]).await;
    namespace("needs-many-c", monitored).await;
    scenario
        .beside("needs-many-c")
        .apply(&labelled("c", "blue"))
        .await;
    until_read(&["b", "b2", "c"]).await;
    for (more, says) in [
        (
            json!({"name": "a", "names": ["b"]}),
            "it has both `name` and `names`",
        ),
        (json!({"names": ["a/b"]}), "\"a/b\" cannot be a name"),
        (
            json!({"namespace": "*", "namespaceSelector": "a"}),
            "it has both `namespace` and `namespaceSelector`",
        ),
        (
            json!({"namespaceSelector": "a b"}),
            "\"a b\" is not a label selector",
        ),
        (
            json!({"names": vec!["a"; 257]}),
            "it has 257 `names`; the limit is 256",
        ),
    ] {
        scenario.puppet("p", spec(&[need("n", &more)])).await;
        scenario
            .until_condition(PUPPET, "p", &format!("Stalled=True NeedRefused: {says}"))
            .await;
    }
    assert_eq!(host.stop().await.code(), Some(0));
}
