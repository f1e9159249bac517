//! What a plugin asks to read, and what happens when that changes.

use serde_json::{Value, json};

use crate::support::Scenario;
use crate::support::puppet::{CONFIG_MAP, PUPPET, assert_contains, controller};

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
    let read =
        |expected: Value| move |puppet: &kube::core::DynamicObject| puppet.data["status"]["read"] == expected;
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
async fn a_need_that_the_configuration_does_not_allow_is_refused_by_name_and_rule() {
    let scenario = Scenario::new("needs-refused").await;
    let more = "children: []\nreads: [{apiVersion: v1, kind: ConfigMap}]";
    let _host = scenario.start(&controller("puppet.wasm", more));
    let cases = [
        (
            "kind",
            need("n", &json!({"kind": "Secret", "name": "s"})),
            ["may not read the kind v1/Secret", "`reads`"],
        ),
        (
            "namespace",
            need("n", &json!({"namespace": "kube-system"})),
            ["\"kube-system\" may not be read", "`otherNamespaces`"],
        ),
        (
            "selector",
            need("n", &json!({"labelSelector": "a of (b)"})),
            ["is not a label selector", "of"],
        ),
    ];
    for (name, need, words) in cases {
        scenario.puppet(name, spec(&[need])).await;
        assert_contains(&scenario.until_stalled(name, "NeedRefused").await, &words);
        assert_contains(
            &scenario.until_event(name, "Warning", "NeedRefused").await,
            &words,
        );
        scenario.puppet(name, spec(&[])).await;
        scenario.until_ready(name).await;
    }
    let many: Vec<Value> = (0..33)
        .map(|i| need(&format!("n{i}"), &json!({"name": "a"})))
        .collect();
    scenario.puppet("many", spec(&many)).await;
    assert_contains(
        &scenario.until_stalled("many", "NeedRefused").await,
        &["33 needs", "the limit is 32", "label selector"],
    );
    let twice = [need("n", &json!({"name": "a"})), need("n", &json!({"name": "b"}))];
    scenario.puppet("twice", spec(&twice)).await;
    assert_contains(
        &scenario.until_stalled("twice", "NeedRefused").await,
        &["two needs have the id \"n\""],
    );
}
