//! The examples of Metacontroller's DecoratorController, moved: their hooks are plugins in JavaScript.

use super::*;
use crate::author_tools::new::Project;

const CLUSTER_ROLE: &str = "rbac.authorization.k8s.io/v1/ClusterRole";
const ROLE_BINDING: &str = "rbac.authorization.k8s.io/v1/RoleBinding";
const SERVICE: &str = "v1/Service";
const POD: &str = "v1/Pod";

#[tokio::test]
async fn the_decorators_of_metacontroller_do_here_what_they_did_there() {
    let plugins = tempfile::tempdir().unwrap();
    for name in [
        "clusteredparent",
        "crd-roles",
        "service-per-pod",
        "pod-name-label",
    ] {
        let project = Project::of_kind(name, "js", "Moved", "v1");
        let source = root().join(format!("tests/fixtures/metacontroller/{name}.js"));
        project.put("plugin.js", std::fs::read(source).unwrap());
        let plugin = plugins.path().join(format!("{name}.wasm"));
        std::fs::copy(project.build(), plugin).unwrap();
    }
    let cluster = own_cluster(Options::default()).await;
    let scenario = Scenario::within(&cluster, "moved").await;
    let all = "[{apiGroups: ['*'], kinds: ['*']}]";
    let config = format!(
        "plugins: {}\nceilings: [{{files: true, decorates: {all}, children: {all}, otherNamespaces: [moved], fields: [metadata.labels]}}]\n\
         controllers: []\n",
        plugins.path().display()
    );
    let host = scenario.start_with(&scenario.file("config.yaml", config), &[]);
    let kind = |api_version: &str, kind: &str| json!({"apiVersion": api_version, "kind": kind});
    let rbac = "rbac.authorization.k8s.io/v1";
    for (name, mut decorates, children) in [
        (
            "clusteredparent",
            kind(rbac, "ClusterRole"),
            json!([kind(rbac, "RoleBinding")]),
        ),
        (
            "crd-roles",
            kind("apiextensions.k8s.io/v1", "CustomResourceDefinition"),
            json!([kind(rbac, "ClusterRole")]),
        ),
        (
            "service-per-pod",
            kind("apps/v1", "StatefulSet"),
            json!([kind("v1", "Service")]),
        ),
        ("pod-name-label", kind("v1", "Pod"), json!([])),
    ] {
        decorates["selector"] = match name {
            "clusteredparent" => json!("default-service-account-binding"),
            _ => json!("service-per-pod=yes"),
        };
        if name == "pod-name-label" {
            decorates["fields"] = json!(["metadata.labels[\"pod-name\"]"]);
        }
        let spec = json!({
            "decorates": [decorates], "plugin": format!("{name}.wasm"), "children": children, "otherNamespaces": ["moved"],
        });
        let controller = json!({
            "apiVersion": "operator-host.dev/v1alpha1", "kind": "Controller", "metadata": {"name": name}, "spec": spec,
        });
        scenario.apply(&controller.to_string()).await;
        scenario
            .until_condition(CONTROLLER, name, "Ready=True Running")
            .await;
    }

    let role = json!({
        "apiVersion": rbac, "kind": "ClusterRole",
        "metadata": {"name": "reader", "labels": {"default-service-account-binding": "moved"}},
        "rules": [{"apiGroups": [""], "resources": ["pods"], "verbs": ["get"]}],
    });
    scenario.apply(&role.to_string()).await;
    let binding = scenario.until_there(ROLE_BINDING, "reader").await;
    assert_eq!(binding.data["subjects"][0]["namespace"], "moved");

    let labels = json!({"metadata": {"labels": {"service-per-pod": "yes"}}});
    let definition = "controllers.operator-host.dev";
    scenario
        .patch(
            "apiextensions.k8s.io/v1/CustomResourceDefinition",
            definition,
            labels,
        )
        .await;
    let view = scenario
        .until_there(CLUSTER_ROLE, &format!("{definition}-view"))
        .await;
    assert_eq!(view.data["rules"][0]["resources"], json!(["controllers"]));
    scenario
        .until_there(CLUSTER_ROLE, &format!("{definition}-edit"))
        .await;

    let app = json!({"app": "nginx", "service-per-pod": "yes"});
    let pod = json!({"metadata": {"labels": app}, "spec": {"containers": [{"name": "c", "image": "c"}]}});
    let set = json!({
        "apiVersion": "apps/v1", "kind": "StatefulSet",
        "metadata": {"name": "nginx", "labels": app, "annotations": {"service-per-pod-ports": "80:8080"}},
        "spec": {"serviceName": "nginx", "replicas": 2, "selector": {"matchLabels": {"app": "nginx"}}, "template": pod},
    });
    scenario.apply(&set.to_string()).await;
    scenario.until_there(SERVICE, "nginx-1").await;
    let has_name = |pod: &DynamicObject| pod.labels().get("pod-name").is_some_and(|it| it == "nginx-0");
    scenario
        .until(POD, "nginx-0", "its name as a label", has_name)
        .await;
    scenario
        .patch("apps/v1/StatefulSet", "nginx", json!({"spec": {"replicas": 1}}))
        .await;
    scenario.until_gone(SERVICE, "nginx-1").await;
    scenario.remove(CONTROLLER, "service-per-pod").await;
    assert!(scenario.get(SERVICE, "nginx-0").await.is_none());
    scenario.remove(CONTROLLER, "pod-name-label").await;
    let pod = scenario.get(POD, "nginx-0").await.unwrap();
    assert!(!pod.labels().contains_key("pod-name"));
    assert_eq!(host.stop().await.code(), Some(0));
}
