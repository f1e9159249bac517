//! Examples of Metacontroller, moved: their kinds and resources stay, and their hooks are plugins in JavaScript.

use crate::author_tools::new::Project;
use crate::support::{install, prelude::*};
use control_plane::manifests;

use super::turns::{POD, set_ready, until_values};

const CLAIM: &str = "v1/PersistentVolumeClaim";
const CAT_SET: &str = "ctl.enisoc.com/v1/CatSet";
const LIST: &str = "examples.metacontroller.io/v1alpha1/ConfigMapList";

/// What lives as long as a test: the control plane, of its own since the kinds of the examples would show up in other tests, and the
/// plugin.
type Kept = (ControlPlane, Project);

/// Builds the plugin of an example for a kind as an author does, installs the definitions, and starts a controller with it;
/// `more` are the other lines of its configuration.
async fn moved(example: &str, kind: &str, more: &str) -> (Scenario, Host, Kept) {
    let name = kind.rsplit('/').next().unwrap().to_lowercase();
    let folder = root().join("tests/fixtures/metacontroller");
    let definitions = folder.join("definitions.yaml");
    let is_its = |definition: &&DynamicObject| {
        definition.data["spec"]["names"]["kind"] == kind.rsplit('/').next().unwrap()
    };
    let all = manifests::read(&definitions).unwrap();
    let definition = serde_json::to_string(all.iter().find(is_its).unwrap()).unwrap();
    let project = Project::of_kind(&name, "js", "Moved", "v1");
    let hooks = std::fs::read(folder.join(format!("{example}.js"))).unwrap();
    project.put("plugin.js", hooks);
    project.put("crd.json", definition);
    project.build();

    let cluster = own_cluster(Options::default().with_audit()).await;
    let scenario = Scenario::within(&cluster, &name).await;
    let text = std::fs::read_to_string(definitions).unwrap();
    install(&scenario.client, scenario.folder.path(), &text).await;
    let (version, kind) = kind.rsplit_once('/').unwrap();
    let controller = format!(
        "- name: {name}\n  parent: {{apiVersion: {version}, kind: {kind}}}\n  plugin: {name}.wasm\n  backoff: {{initial: 50ms, max: 500ms}}\n{more}"
    );
    let config = scenario.config_in(&project.file("build"), &controller);
    let host = scenario.start_with(&config, &[]);
    (scenario, host, (cluster, project))
}

/// Its claim has no class, so nothing binds it, and the stand-in for nodes leaves the Pods alone.
fn cat_set(replicas: u32, value: &str) -> String {
    let container = json!({ "name": "app", "image": "app:1", "env": [{ "name": "VALUE", "value": value }] });
    let claim = json!({
        "storageClassName": "", "accessModes": ["ReadWriteOnce"], "resources": { "requests": { "storage": "1Gi" } },
    });
    json!({
        "apiVersion": "ctl.enisoc.com/v1", "kind": "CatSet", "metadata": { "name": "c" },
        "spec": {
            "serviceName": "c", "replicas": replicas, "selector": { "matchLabels": { "app": "c" } },
            "template": { "metadata": { "labels": { "app": "c" } }, "spec": { "containers": [container] } },
            "volumeClaimTemplates": [{ "metadata": { "name": "www" }, "spec": claim }],
        },
    })
    .to_string()
}

#[tokio::test]
async fn a_cat_set_starts_in_order_changes_the_last_first_and_retains_its_claims() {
    let more = "  children: [{apiVersion: v1, kind: Pod}, {apiVersion: v1, kind: PersistentVolumeClaim}]\n";
    let (scenario, host, (cluster, _desk)) = moved("catset", CAT_SET, more).await;
    scenario.apply(&cat_set(3, "1")).await;
    until_values(&scenario, &[("c-0", "1")]).await;
    let says = "Reconciling=True WaitingForChild: Pod catset/c-1 waits for Pod catset/c-0";
    scenario.until_condition(CAT_SET, "c", says).await;
    set_ready(&scenario, "c-0", true).await;
    until_values(&scenario, &[("c-0", "1"), ("c-1", "1")]).await;
    set_ready(&scenario, "c-1", true).await;
    until_values(&scenario, &[("c-0", "1"), ("c-1", "1"), ("c-2", "1")]).await;
    set_ready(&scenario, "c-2", true).await;
    let ready = |count: u64| {
        move |it: &DynamicObject| it.data["status"]["readyReplicas"] == count && is_true(it, "Synced")
    };
    scenario.until(CAT_SET, "c", "all ready", ready(3)).await;

    scenario.apply(&cat_set(3, "2")).await;
    for (name, values) in [
        ("c-2", ["1", "1", "2"]),
        ("c-1", ["1", "2", "2"]),
        ("c-0", ["2", "2", "2"]),
    ] {
        let values: Vec<_> = ["c-0", "c-1", "c-2"].into_iter().zip(values).collect();
        until_values(&scenario, &values).await;
        set_ready(&scenario, name, true).await;
    }
    scenario.until(CAT_SET, "c", "all ready", ready(3)).await;

    // Surplus ones go one after the other, the last first, and so do all in the end.
    scenario.apply(&cat_set(1, "2")).await;
    scenario.until(CAT_SET, "c", "one", ready(1)).await;
    scenario.until_gone(POD, "c-1").await;
    scenario.apply(&cat_set(2, "2")).await;
    scenario.until_there(POD, "c-1").await;
    set_ready(&scenario, "c-1", true).await;
    scenario.until(CAT_SET, "c", "two", ready(2)).await;
    scenario.remove(CAT_SET, "c").await;
    assert_eq!(scenario.names(POD).await, Vec::<String>::new());
    assert_eq!(scenario.names(CLAIM).await, ["www-c-0", "www-c-1", "www-c-2"]);
    let writes = scenario.all_writes(&cluster).await;
    let deleted = writes_to(&writes, "pods")
        .into_iter()
        .filter(|did| did.starts_with("delete"));
    let expected = ["c-2", "c-1", "c-0", "c-2", "c-1", "c-1", "c-0"].map(|name| format!("delete {name}"));
    assert_eq!(deleted.collect::<Vec<_>>(), expected);
    assert_eq!(host.stop().await.code(), Some(0));
}

#[tokio::test]
async fn a_list_of_config_maps_follows_those_of_other_namespaces() {
    let more = "  children: [{apiVersion: v1, kind: ConfigMap}]\n  reads: [{apiVersion: v1, kind: ConfigMap}]\n  \
                otherNamespaces: ['configmaplist-*']\n";
    let (scenario, _host, _kept) = moved("configmap-list-v2", LIST, more).await;
    let list = |more: &str| {
        format!(
            "{{apiVersion: examples.metacontroller.io/v1alpha1, kind: ConfigMapList, metadata: {{name: l}}, spec: {{sourceLabels: {{app: my-app}}{more}}}}}"
        )
    };
    scenario.apply(&list("")).await;
    for (namespace, name, app) in [
        ("b", "cm-2", "my-app"),
        ("a", "cm-1", "my-app"),
        ("a", "other", "other"),
    ] {
        let namespace = format!("configmaplist-{namespace}");
        scenario.create_namespace(&namespace).await;
        let source = format!(
            "{{apiVersion: v1, kind: ConfigMap, metadata: {{name: {name}, labels: {{app: {app}}}}}}}"
        );
        scenario.beside(&namespace).apply(&source).await;
    }
    let listed = async |expected: &str| {
        let is_listed = |map: &DynamicObject| map.data["data"]["configmaps"] == expected;
        scenario.until(CONFIG_MAP, "l-list", expected, is_listed).await;
    };
    listed("configmaplist-a/cm-1\nconfigmaplist-b/cm-2").await;
    scenario
        .beside("configmaplist-a")
        .delete(CONFIG_MAP, "cm-1")
        .await;
    listed("configmaplist-b/cm-2").await;
    scenario.apply(&list(", sourceNamespace: configmaplist-a")).await;
    listed("").await;
    let is_none = |list: &DynamicObject| list.data["status"]["count"] == 0;
    scenario.until(LIST, "l", "none", is_none).await;
}

#[tokio::test]
async fn the_update_strategies_change_a_child_when_it_is_deleted_or_delete_it() {
    const MORE: &str = "  children: [{apiVersion: v1, kind: ConfigMap}]\n";
    for (kind, is_recreated) in [("OnDeleteDemo", false), ("RecreateDemo", true)] {
        let kind = format!("ctl.example.com/v1/{kind}");
        let (scenario, _host, _kept) = moved("update-strategy", &kind, MORE).await;
        let says = async |text: &str| {
            let name = kind.rsplit('/').next().unwrap();
            let demo = format!(
                "{{apiVersion: ctl.example.com/v1, kind: {name}, metadata: {{name: d}}, spec: {{configData: {text}}}}}"
            );
            scenario.apply(&demo).await;
            let observed = |demo: &DynamicObject| {
                demo.data["status"]["observedConfigData"] == text && is_true(demo, "Ready")
            };
            scenario.until(&kind, "d", text, observed).await;
            scenario.get(CONFIG_MAP, "d-data").await.unwrap()
        };
        let first = says("v1").await;
        let second = says("v2").await;
        assert_eq!(second.uid() != first.uid(), is_recreated, "{kind}");
        assert_eq!(
            second.data["data"]["value"],
            if is_recreated { "v2" } else { "v1" }
        );
        scenario.delete(CONFIG_MAP, "d-data").await;
        let is_new = |map: &DynamicObject| map.uid() != second.uid() && map.data["data"]["value"] == "v2";
        scenario.until(CONFIG_MAP, "d-data", "the new one", is_new).await;
    }
}
