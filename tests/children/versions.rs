//! A child kind that is served in two versions, both listed under `children`: each object counts once, in whichever
//! version it is seen.

use kube::core::DynamicObject;
use serde_json::{Value, json};

use crate::support::puppet::{PUPPET, controller};
use crate::support::{Scenario, cluster, install};

/// Returns a kind with two served versions, with the test's own name.
fn definition(kind: &str) -> String {
    let plural = format!("{}s", kind.to_lowercase());
    let version = |name: &str, storage: bool| {
        json!({
            "name": name, "served": true, "storage": storage,
            "schema": {"openAPIV3Schema": {"type": "object", "x-kubernetes-preserve-unknown-fields": true}},
        })
    };
    json!({
        "apiVersion": "apiextensions.k8s.io/v1", "kind": "CustomResourceDefinition",
        "metadata": {"name": format!("{plural}.versions.operator-host.dev")},
        "spec": {
            "group": "versions.operator-host.dev", "scope": "Namespaced",
            "names": {"plural": plural, "singular": kind.to_lowercase(), "kind": kind},
            "versions": [version("v1", true), version("v2", false)],
        },
    })
    .to_string()
}

fn both(kind: &str) -> String {
    let of = |version| format!("{{apiVersion: versions.operator-host.dev/{version}, kind: {kind}}}");
    format!("children: [{}, {}]", of("v1"), of("v2"))
}

fn child(kind: &str, version: &str, name: &str) -> Value {
    json!({
        "apiVersion": format!("versions.operator-host.dev/{version}"), "kind": kind,
        "metadata": {"name": name}, "spec": {"size": 1},
    })
}

fn spec(children: &[Value]) -> Value {
    json!({"response": {"children": children, "status": {"names": "$names", "seen": "$apiVersions"}}})
}

fn sees(names: &[&str], version: &str) -> impl Fn(&DynamicObject) -> bool + use<> {
    let seen = vec![format!("versions.operator-host.dev/{version}"); names.len()];
    let (names, seen) = (json!(names), json!(seen));
    move |puppet| puppet.data["status"]["names"] == names && puppet.data["status"]["seen"] == seen
}

/// Regression: the copy seen in the other version counted as unwanted, so new children were deleted at once.
#[tokio::test]
async fn children_in_two_versions_are_made_once_migrated_in_place_and_deleted_once() {
    let scenario = Scenario::new("two-versions").await;
    install(&scenario.client, scenario.folder.path(), &definition("Gadget")).await;
    let host = scenario.start(&controller("puppet.wasm", &both("Gadget")));
    let v1 = "versions.operator-host.dev/v1/Gadget";
    let make = |version| [child("Gadget", version, "a"), child("Gadget", version, "b")];
    let writes = async || -> Vec<String> {
        let writes = scenario.all_writes(cluster().await).await;
        let of_children = writes.iter().filter_map(|write| {
            let object = write.object_ref.clone().unwrap_or_default();
            (object.resource == "gadgets").then(|| format!("{} {}", write.verb, object.name))
        });
        of_children.collect()
    };
    let sorted = |mut writes: Vec<String>| {
        writes.sort();
        writes
    };
    let uid = async |name: &str| scenario.get(v1, name).await.unwrap().metadata.uid.unwrap();

    // An object that is created while the controller starts may be delivered twice: by the list, and by the watch.
    scenario.puppet("first", spec(&[])).await;
    scenario.until_ready("first").await;
    scenario.puppet("p", spec(&make("v1"))).await;
    scenario
        .until(PUPPET, "p", "two children in v1", sees(&["a", "b"], "v1"))
        .await;
    let made = [uid("a").await, uid("b").await];
    // Children are applied concurrently, in no particular order.
    assert_eq!(sorted(writes().await), ["patch a", "patch b"]);

    scenario.puppet("p", spec(&make("v2"))).await;
    scenario
        .until(PUPPET, "p", "two children in v2", sees(&["a", "b"], "v2"))
        .await;
    // Each change is seen in both versions, and recognized as an own write in both.
    host.until_reconciles("two-versions/p", 2).await;
    scenario.puppet("q", spec(&[])).await;
    scenario.until_ready("q").await;
    assert_eq!(
        [uid("a").await, uid("b").await],
        made,
        "nothing was made a second time"
    );
    assert_eq!(
        sorted(writes().await),
        ["patch a", "patch a", "patch b", "patch b"]
    );
    assert_eq!(host.reconciles("two-versions/p"), 2, "{}", scenario.log_tail());

    // A child is kept, even if it is named in another version.
    let keep = json!({"apiVersion": "versions.operator-host.dev/v1", "kind": "Gadget", "name": "b"});
    scenario
        .puppet(
            "p",
            json!({"response": {"children": make("v2")[..1], "keep": [keep], "status": {"step": "kept"}}}),
        )
        .await;
    scenario
        .until(PUPPET, "p", "kept", |p| p.data["status"]["step"] == "kept")
        .await;
    scenario.puppet("p", spec(&make("v2")[..1])).await;
    scenario.until(PUPPET, "p", "one child", sees(&["a"], "v2")).await;
    scenario.until_ready("p").await;
    assert_eq!(writes().await[4..], ["delete b"]);
    assert_eq!(uid("a").await, made[0]);
}

#[tokio::test]
async fn one_object_in_two_versions_in_one_answer_is_refused() {
    let scenario = Scenario::new("twice-versions").await;
    install(&scenario.client, scenario.folder.path(), &definition("Widget")).await;
    let _host = scenario.start(&controller("puppet.wasm", &both("Widget")));
    let twice = [child("Widget", "v1", "a"), child("Widget", "v2", "a")];
    scenario.puppet("p", spec(&twice)).await;
    let message = scenario.until_stalled("p", "ChildRefused").await;
    assert!(message.contains("the plugin asked for it twice"), "{message}");
}
