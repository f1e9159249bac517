//! A namespace is deleted, and takes along the Roles of a host that is limited to it.

use crate::access::rights::is_cluster_role;
use crate::support::prelude::*;
use crate::telemetry::until_ready_says;

const BINDING: &str = "rbac.authorization.k8s.io/v1/RoleBinding";

/// Returns the printed rights without those for the cluster's Puppets, which the Role in the namespace gets instead.
fn without_the_cluster(roles: &[Value]) -> Vec<Value> {
    let is_about_puppets = |rule: &Value| rule["apiGroups"] == json!(["test.operator-host.dev"]);
    let mut roles = roles.to_vec();
    let mut moved = Vec::new();
    for role in roles.iter_mut().filter(|role| is_cluster_role(role)) {
        let rules = role["rules"].as_array_mut().unwrap();
        moved.extend(rules.extract_if(.., |rule| is_about_puppets(rule)));
    }
    assert!(!moved.is_empty(), "the rights for the cluster are printed");
    let role = roles
        .iter_mut()
        .find(|role| role["kind"] == "Role" && role["metadata"]["namespace"] == "going");
    role.unwrap()["rules"].as_array_mut().unwrap().append(&mut moved);
    roles
}

/// Regression: the parents and the namespace stayed for ever, and the host advised to grant what the API server refuses in such a
/// namespace.
#[tokio::test]
async fn parents_of_a_namespace_that_is_deleted_are_released_with_the_printed_rights_alone() {
    let scenario = Scenario::new("going-host").await;
    scenario.create_namespace("going").await;
    let config = std::fs::read_to_string(scenario.config(&controller("puppet.wasm", ""))).unwrap();
    let config = config.replace("namespaces: [going-host]", "namespaces: [going]");
    let config = scenario.file("config.yaml", config);
    let account = "going-host/going-host";
    let mut rbac = program(&["rbac", "-o", "json", "--service-account", account]);
    let definitions = root().join("tests/fixtures/puppet/crds.yaml");
    rbac.arg("--config").arg(&config).arg("--crd").arg(definitions);
    let answer = rbac.env("KUBECONFIG", "/dev/null").call().expect(0);
    assert_contains(&answer.err, "loses its RoleBinding before its objects");
    let list: Value = serde_json::from_str(&answer.out).unwrap();
    let roles = list["items"].as_array().unwrap();
    let going = scenario.beside("going");
    let of_going = |role: &Value| role["metadata"]["namespace"] == "going";
    let (in_going, others): (Vec<_>, Vec<_>) = without_the_cluster(roles).into_iter().partition(of_going);
    for role in in_going {
        going.apply(&role.to_string()).await;
    }
    let scenario = scenario.with_account(cluster().await, &others).await;
    let host = scenario.start_with(&config, &[]);
    let words = "[+]plugin/puppet ok: … may not patch puppets in every namespace … operator-host rbac";
    until_ready_says(&host, words).await;
    for (name, done) in [("done", true), ("waits", false)] {
        let children = json!([config_map(name, "1")]);
        let spec = json!({"response": {"children": children}, "cleanup": {"done": done}});
        going.ready_with(name, spec).await;
    }

    // The Role goes first.
    host.process().pause();
    scenario.delete("v1/Namespace", "going").await;
    going.until_gone(BINDING, "going-host").await;
    host.process().resume();
    let words = "took along the RoleBinding … apply the ClusterRole … remove the finalizer yourself";
    let line = host.until_log(words).await;
    assert!(!line.contains("give the host's role"), "{line}");

    for role in roles.iter().filter(|role| is_cluster_role(role)) {
        scenario.apply(&role.to_string()).await;
    }
    going.until_gone(PUPPET, "done").await;
    // A host that starts may not even list the children. What they wait for goes with the namespace.
    host.kill();
    let host = scenario.start_with(&config, &[]);
    scenario.until_gone("v1/Namespace", "going").await;
    host.until_log("released without the rest of its cleanup").await;
}
