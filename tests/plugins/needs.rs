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

#[tokio::test]
async fn what_is_needed_by_name_or_label_is_read_and_a_change_of_it_reconciles_at_once() {
    let scenario = Scenario::new("needs").await;
    let more = "children: []\nreads: [{apiVersion: v1, kind: ConfigMap}]";
    let _host = scenario.start(&controller("puppet.wasm", more));
    let read = |expected: Value| move |puppet: &DynamicObject| puppet.data["status"]["read"] == expected;
    scenario.apply(&labelled("blue-1", "blue")).await;
    scenario.apply(&labelled("red-1", "red")).await;
    let needs = [
        need("named", &json!({"name": "settings"})),
        need("blue", &json!({"labelSelector": "team in (blue),!retired"})),
    ];
    scenario.puppet("p", spec(&needs)).await;
    scenario
        .until(
            PUPPET,
            "p",
            "what is there",
            read(json!({"named": [], "blue": ["blue-1"]})),
        )
        .await;
    scenario.apply(&labelled("settings", "none")).await;
    scenario
        .until(
            PUPPET,
            "p",
            "the new one",
            read(json!({"named": ["settings"], "blue": ["blue-1"]})),
        )
        .await;
    // One object enters the selection by its label, one leaves it, one is deleted.
    scenario
        .patch(
            CONFIG_MAP,
            "red-1",
            json!({"metadata": {"labels": {"team": "blue"}}}),
        )
        .await;
    scenario
        .patch(
            CONFIG_MAP,
            "blue-1",
            json!({"metadata": {"labels": {"retired": "yes"}}}),
        )
        .await;
    scenario.delete(CONFIG_MAP, "settings").await;
    scenario
        .until(
            PUPPET,
            "p",
            "the other selection",
            read(json!({"named": [], "blue": ["red-1"]})),
        )
        .await;
}

#[tokio::test]
async fn a_need_about_every_namespace_is_about_those_that_the_controller_may_read() {
    let scenario = Scenario::new("needs-all").await;
    for name in ["needs-all-a", "needs-all-b", "needs-none"] {
        scenario.create_namespace(name).await;
    }
    let more = "children: []\nreads: [{apiVersion: v1, kind: ConfigMap}]\notherNamespaces: [needs-all-*]";
    let host = scenario.start(&controller("puppet.wasm", more));
    let read = |expected: &[&str]| {
        let expected = json!({ "blue": expected });
        move |puppet: &DynamicObject| puppet.data["status"]["read"] == expected
    };
    let needs = [need(
        "blue",
        &json!({"namespace": "*", "labelSelector": "team=blue"}),
    )];
    scenario.puppet("p", spec(&needs)).await;
    scenario.until(PUPPET, "p", "nothing", read(&[])).await;
    for (namespace, name, expected) in [
        ("needs-all", "z", &["z"][..]),
        ("needs-all-b", "b", &["z", "b"]),
        ("needs-all-a", "a", &["z", "a", "b"]),
    ] {
        scenario.beside(namespace).apply(&labelled(name, "blue")).await;
        scenario.until(PUPPET, "p", "one more", read(expected)).await;
    }
    // What it may not read is no reason to reconcile it.
    let before = host.reconciles("needs-all/p");
    scenario
        .beside("needs-none")
        .apply(&labelled("hidden", "blue"))
        .await;
    scenario.beside("needs-all-b").delete(CONFIG_MAP, "b").await;
    scenario.until(PUPPET, "p", "one less", read(&["z", "a"])).await;
    assert!(host.reconciles("needs-all/p") <= before + 2, "{}", host.log());
    let named = [need("blue", &json!({"namespace": "*", "name": "a"}))];
    scenario.puppet("p", spec(&named)).await;
    scenario
        .until(PUPPET, "p", "the one of the name", read(&["a"]))
        .await;
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
    let read = |expected: &[&str]| {
        let expected = json!({ "n": expected });
        move |puppet: &DynamicObject| puppet.data["status"]["read"] == expected
    };
    scenario.apply(&labelled("b", "blue")).await;
    scenario.apply(&labelled("c", "blue")).await;
    scenario
        .puppet("p", spec(&[need("n", &json!({"names": ["a", "b", "d"]}))]))
        .await;
    scenario
        .until(PUPPET, "p", "the one that is there", read(&["b"]))
        .await;
    scenario.apply(&labelled("d", "blue")).await;
    scenario.until(PUPPET, "p", "both", read(&["b", "d"])).await;
    scenario.delete(CONFIG_MAP, "b").await;
    scenario.until(PUPPET, "p", "the other", read(&["d"])).await;
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
    scenario
        .until(PUPPET, "p", "those of the namespace", read(&["a"]))
        .await;
    namespace("needs-many-b", monitored.clone()).await;
    scenario
        .until(PUPPET, "p", "those of both", read(&["a", "b"]))
        .await;
    scenario
        .beside("needs-many-b")
        .apply(&labelled("b2", "blue"))
        .await;
    scenario
        .until(PUPPET, "p", "one more", read(&["a", "b", "b2"]))
        .await;
    scenario
        .patch(
            "v1/Namespace",
            "needs-many-a",
            json!({"metadata": {"labels": {"monitored": null}}}),
        )
        .await;
    scenario
        .until(PUPPET, "p", "one namespace less", read(&["b", "b2"]))
        .await;
    namespace("needs-many-c", monitored).await;
    scenario
        .beside("needs-many-c")
        .apply(&labelled("c", "blue"))
        .await;
    scenario
        .until(PUPPET, "p", "a new namespace", read(&["b", "b2", "c"]))
        .await;
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
