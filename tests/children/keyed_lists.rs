//! Lists whose elements have keys: their order, their elements at the root of an object, and fields within them that others
//! change for good.

use crate::support::install;
use crate::support::prelude::*;

const GATE: &str = "lists.operator-host.dev/v1/Gate";
const DEPLOYMENT: &str = "apps/v1/Deployment";
const POD: &str = "v1/Pod";
const KINDS: &str = "children:\n\
     - {apiVersion: lists.operator-host.dev/v1, kind: Gate}\n\
     - {apiVersion: apps/v1, kind: Deployment}\n\
     - {apiVersion: v1, kind: Pod}";

/// Starts a host for puppets with Gates, which have lists by key at the root and in their spec.
async fn start(name: &str) -> (Scenario, Host) {
    let scenario = Scenario::new(name).await;
    let text = json!({ "type": "string" });
    let element = json!({
        "type": "object", "required": ["name", "host"],
        "properties": { "name": text, "host": text, "bundle": text },
    });
    let list = json!({
        "type": "array", "items": element, "x-kubernetes-list-type": "map", "x-kubernetes-list-map-keys": ["name"],
    });
    let schema = json!({
        "type": "object", "properties": { "rules": list, "spec": { "type": "object", "properties": { "steps": list } } },
    });
    let definition = definition("Gate", "lists.operator-host.dev", &schema);
    let folder = tempfile::tempdir().unwrap();
    install(&scenario.client, folder.path(), &definition.to_string()).await;
    let host = scenario.start(&controller("puppet.wasm", KINDS));
    (scenario, host)
}

fn element(name: &str) -> Value {
    json!({ "name": name, "host": format!("{name}.example.com") })
}

fn gate(content: &Value) -> Value {
    let mut gate =
        json!({ "apiVersion": "lists.operator-host.dev/v1", "kind": "Gate", "metadata": { "name": "g" } });
    gate.as_object_mut()
        .unwrap()
        .extend(content.as_object().unwrap().clone());
    gate
}

fn names(list: &Value) -> Vec<&str> {
    let list = list.as_array().into_iter().flatten();
    list.filter_map(|element| element["name"].as_str()).collect()
}

/// Regression: the walk looked two levels below the root, so the rest of the element stayed, and was refused for ever.
#[tokio::test]
async fn an_element_at_the_root_goes_although_another_manager_has_applied_to_it() {
    let (scenario, _host) = start("root-lists").await;
    let rules =
        |names: &[&str]| json!({ "rules": names.iter().map(|name| element(name)).collect::<Vec<_>>() });
    scenario.ready_wants("p", &[gate(&rules(&["a", "b", "c"]))]).await;
    let bundles = ["a", "b", "c"].map(|name| json!({ "name": name, "bundle": "injected" }));
    scenario
        .apply(&gate(&json!({ "rules": bundles })).to_string())
        .await;
    scenario.ready_wants("p", &[gate(&rules(&["a"]))]).await;
    let gate = scenario.get(GATE, "g").await.unwrap();
    let mut kept = element("a");
    kept["bundle"] = "injected".into();
    assert_eq!(
        gate.data["rules"],
        json!([kept]),
        "what others have elsewhere stays"
    );
}

/// Reverses lists of an object at once, as `kubectl edit` does.
async fn reverse(scenario: &Scenario, kind: &str, name: &str, pointers: &[&str]) {
    let object = scenario.get(kind, name).await.unwrap();
    let reversed = pointers.iter().map(|pointer| {
        let mut list = object
            .data
            .pointer(pointer)
            .and_then(Value::as_array)
            .unwrap()
            .clone();
        list.reverse();
        json!({ "op": "replace", "path": pointer, "value": list })
    });
    let patch = serde_json::from_value(reversed.collect()).unwrap();
    let params = PatchParams::apply("kubectl-edit");
    let patch = Patch::<()>::Json(patch);
    scenario.api(kind).patch(name, &params, &patch).await.unwrap();
}

/// Regression: nothing in `managedFields` shows it, so nothing was repaired.
#[tokio::test]
async fn own_elements_are_put_back_into_their_order() {
    let (scenario, host) = start("list-order").await;
    let env = json!([{ "name": "A", "value": "1" }, { "name": "B", "value": "$(A)" }]);
    let init = ["first", "second"].map(|name| json!({ "name": name, "image": "init:1" }));
    let containers = json!([{ "name": "web", "image": "web:1", "env": env }]);
    let web = deployment(
        "web",
        &json!({ "initContainers": init, "containers": containers }),
    );
    let steps = json!({ "spec": { "steps": [element("a"), element("b")] } });
    scenario.wants("p", &[web, gate(&steps)]).await;
    scenario.until_synced("p").await;
    let others = json!({ "spec": { "steps": [element("a"), element("x"), element("b")] } });
    scenario.apply(&gate(&others).to_string()).await;
    let pod = "/spec/template/spec";
    for (kind, name, pointer, expected) in [
        (
            DEPLOYMENT,
            "web",
            format!("{pod}/initContainers"),
            ["first", "second"],
        ),
        (DEPLOYMENT, "web", format!("{pod}/containers/0/env"), ["A", "B"]),
        (GATE, "g", "/spec/steps".to_owned(), ["a", "b"]),
    ] {
        reverse(&scenario, kind, name, &[&pointer]).await;
        let is_in_order = |object: &DynamicObject| {
            let list = names(object.data.pointer(&pointer).unwrap_or(&Value::Null));
            let own: Vec<_> = list
                .iter()
                .copied()
                .filter(|name| expected.contains(name))
                .collect();
            own == expected && (kind != GATE || list.contains(&"x"))
        };
        scenario
            .until(kind, name, "in its order again", is_in_order)
            .await;
    }
    let both = [format!("{pod}/initContainers"), format!("{pod}/containers/0/env")];
    reverse(&scenario, DEPLOYMENT, "web", &both.each_ref().map(String::as_str)).await;
    let are_in_order = |web: &DynamicObject| {
        let lists = both
            .each_ref()
            .map(|pointer| names(web.data.pointer(pointer).unwrap()));
        lists == [["first", "second"], ["A", "B"]]
    };
    scenario
        .until(DEPLOYMENT, "web", "in both orders again", are_in_order)
        .await;
    let puppet = scenario.until_synced("p").await;
    assert!(condition(&puppet, "Contested").is_none(), "{puppet:?}");
    // An element in the middle takes its place, also where an API server appends what is new.
    let steps = ["a", "m", "b"].map(element);
    let steps = json!({ "spec": { "steps": steps } });
    scenario.wants("p", &[gate(&steps)]).await;
    let is_between = |gate: &DynamicObject| {
        let list = names(&gate.data["spec"]["steps"]);
        let own: Vec<_> = list.into_iter().filter(|name| *name != "x").collect();
        own == ["a", "m", "b"]
    };
    scenario.until(GATE, "g", "between", is_between).await;
    assert_eq!(host.stop().await.code(), Some(0));
}

/// A Pod that is never ready, since it waits for a claim that is not there.
fn pod(annotations: &Value) -> Value {
    let volume = json!({ "name": "data", "persistentVolumeClaim": { "claimName": "missing" } });
    json!({
        "apiVersion": "v1", "kind": "Pod",
        "metadata": { "name": "app", "labels": { "tier": "web" }, "annotations": annotations },
        "spec": { "activeDeadlineSeconds": 1000, "containers": [{ "name": "app", "image": "app:1" }], "volumes": [volume] },
    })
}

/// Another manager changes fields of the Pod for good, as a resize in place and the expansion of a claim do: this one can only be
/// made shorter.
async fn edit_pod(scenario: &Scenario, deadline: u32, image: &str) {
    let patch = json!({ "spec": { "activeDeadlineSeconds": deadline, "containers": [{ "name": "app", "image": image }] } });
    let params = PatchParams::apply("resizer");
    let patch = Patch::Strategic(patch);
    scenario.api(POD).patch("app", &params, &patch).await.unwrap();
}

/// Regression: `ApplyFailed` for ever, with the advice to undo the change, and the Pod itself was not judged.
#[tokio::test]
async fn what_cannot_be_changed_back_is_said_once_and_the_rest_is_applied() {
    let (scenario, host) = start("unchangeable").await;
    scenario.wants("p", &[pod(&json!({}))]).await;
    scenario.until_synced("p").await;
    edit_pod(&scenario, 500, "app:user").await;
    let said = "Pod unchangeable/app: spec.activeDeadlineSeconds … resizer … cannot be changed back … operator-host.dev/leave";
    scenario
        .until_told("p", &format!("Synced=False FieldsRefused: {said}"))
        .await;
    scenario
        .until_event("p", &format!("Warning FieldsRefused: {said}"))
        .await;
    let is_restored = |pod: &DynamicObject| pod.data["spec"]["containers"][0]["image"] == "app:1";
    scenario.until(POD, "app", "its image again", is_restored).await;
    let puppet = scenario.get(PUPPET, "p").await.unwrap();
    let ready = condition(&puppet, "Ready").unwrap();
    assert_eq!(ready["reason"], "ChildrenNotReady", "{ready}");

    let before = scenario.writes_to("pods").await;
    let reconciles = host.reconciles("unchangeable/p");
    scenario.annotate(POD, "app", "seen", "yes").await;
    host.until_reconciles("unchangeable/p", reconciles + 1).await;
    let after = scenario.writes_to("pods").await;
    assert_eq!(after, before, "it is not sent again and again");
    let label = json!({ "metadata": { "labels": { "tier": "user" } } });
    scenario.patch(POD, "app", label).await;
    scenario
        .until(POD, "app", "its label again", |pod| pod.labels()["tier"] == "web")
        .await;

    // The advice helps.
    let leaves = "spec.activeDeadlineSeconds, spec.containers[name=app].image";
    scenario
        .wants("p", &[pod(&json!({ "operator-host.dev/leave": leaves }))])
        .await;
    scenario.until_told("p", "Synced=True Applied").await;
    edit_pod(&scenario, 400, "app:left").await;
    let reconciles = host.reconciles("unchangeable/p");
    host.until_reconciles("unchangeable/p", reconciles + 1).await;
    let label = json!({ "metadata": { "labels": { "tier": "user" } } });
    scenario.patch(POD, "app", label).await;
    let pod = scenario
        .until(POD, "app", "its label again", |pod| pod.labels()["tier"] == "web")
        .await;
    assert_eq!(pod.data["spec"]["containers"][0]["image"], "app:left");
}
