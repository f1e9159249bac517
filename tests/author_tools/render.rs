//! `render`: from files to children and status.

use crate::support::prelude::*;
use plugin_fixtures::cases;

use super::{Desk, sample};

const ECHO: &str = "apiVersion: my-operator.dev/v1\nkind: Echo\nmetadata: {name: e}\n";

#[test]
fn children_are_a_stream_that_kubectl_takes_and_the_status_stands_in_comments() {
    let desk = Desk::new();
    let spec =
        format!("{ECHO}spec: {{replicas: 2, image: 'echo:1'}}\n---\n{ECHO}spec: {{replicas: 0, image: i}}\n");
    for name in ["echo", "echo-command"] {
        let answer = desk.render(&sample(name), &spec, &[]).expect(0);
        let documents: Vec<Value> = serde_saphyr::from_multiple(&answer.out).unwrap();
        let documents: Vec<&Value> = documents.iter().filter(|d| !d.is_null()).collect();
        assert_eq!(documents.len(), 2, "{}", answer.out);
        assert_eq!(
            *documents[1],
            json!({
                "apiVersion": "v1", "kind": "Pod",
                "metadata": {"name": "e-pod-1", "namespace": "default", "labels": {"app": "e"}},
                "spec": {"containers": [{"name": "echo", "image": "echo:1"}]},
            })
        );
        assert_contains(&answer.out, "#   currentReplicas: 0");
    }
    let list = desk.render(&sample("echo"), &spec, &["-o", "json"]).expect(0);
    let list: Value = serde_json::from_str(&list.out).unwrap();
    assert_eq!(list["items"].as_array().unwrap().len(), 2);
    assert_eq!(list["parents"][1]["status"]["isReady"], true);
    let names = desk.render(&sample("echo"), &spec, &["-o", "name"]).expect(0);
    assert_eq!(names.out, "pod/e-pod-0\npod/e-pod-1\n");
}

#[test]
fn observed_children_and_the_clock_reach_the_plugin() {
    let desk = Desk::new();
    let pods = desk.file(
        "pods.yaml",
        "apiVersion: v1\nkind: List\nitems:\n\
         - {apiVersion: v1, kind: Pod, metadata: {name: e-pod-0}, status: {conditions: [{type: Ready, status: 'True'}]}}\n\
         - {apiVersion: v1, kind: Pod, metadata: {name: x, namespace: elsewhere}}\n\
         - {apiVersion: v1, kind: Pod, metadata: {name: other, ownerReferences: [{apiVersion: v1, kind: Other, name: o, uid: u, controller: true}]}}\n\
         - {apiVersion: v1, kind: Service, metadata: {name: z}}\n",
    );
    let more = ["--children", &pods, "--now", "2026-01-02T03:04:05Z", "-o", "json"];
    let echo = format!("{ECHO}spec: {{replicas: 1, image: i}}\n");
    let answer = desk.render(&sample("echo"), &echo, &more).expect(0);
    let list: Value = serde_json::from_str(&answer.out).unwrap();
    let status = &list["parents"][0]["status"];
    assert_eq!(status["currentReplicas"], 1, "{status}");
    assert_eq!(status["isReady"], true, "{status}");
    let expected = "2026-01-02T03:04:05Z";
    assert_eq!(status["conditions"][0]["lastTransitionTime"], expected);
}

const MYSQL: &str = "apiVersion: database.example.com/v2\nkind: MySQLCluster\nmetadata: {name: db}\n\
                     spec: {version: '8.4', storage: {size: 1Gi}, rootPasswordSecret: {name: pw}}\n";

#[test]
fn needs_are_answered_from_the_related_objects_and_defaults_are_filled_in() {
    let desk = Desk::new();
    let missing = desk.render(&sample("mysql"), MYSQL, &[]).expect(1);
    assert_contains(&missing.err, "MySQLCluster db: retry requested … pw");
    let secrets = desk.file(
        "secrets.yaml",
        "apiVersion: v1\nkind: Secret\nmetadata: {name: pw}\ndata: {password: cHc=}\n",
    );
    let more = ["--related", &secrets, "-o", "name"];
    let found = desk.render(&sample("mysql"), MYSQL, &more).expect(0);
    assert_contains(&found.out, "pod/db-0\n");
    assert!(
        !found.out.contains("pod/db-1\n"),
        "the default is one replica: {}",
        found.out
    );
    assert!(
        !found.out.contains("secret/"),
        "the password is the user's: {}",
        found.out
    );
}

#[test]
fn a_failure_of_the_plugin_is_reported_with_exit_code_1() {
    let desk = Desk::new();
    let larger = desk.file(
        "claims.yaml",
        "apiVersion: v1\nkind: PersistentVolumeClaim\nmetadata: {name: data-db-0}\n\
         spec: {resources: {requests: {storage: 2Gi}}}\n",
    );
    let spec = MYSQL.replace(", rootPasswordSecret: {name: pw}", "");
    let more = ["--children", &larger];
    let invalid = desk.render(&sample("mysql"), &spec, &more).expect(1);
    assert_contains(&invalid.err, "InvalidSpec … spec.storage.size");
    assert_eq!(invalid.out, "");

    for (case, expected) in [
        (cases::PANIC, "panicked at src/lib.rs:7:9:\nno image"),
        (cases::TRAP, "divide by zero"),
        (cases::NOT_JSON, "does not follow the contract"),
        (cases::EXIT, "exited with code 3"),
    ] {
        let answer = desk.fixture(case).expect(1);
        assert_contains(&answer.err, expected);
    }
}

/// Regression: a resource that waits for its cleanup was rendered as one that is Ready.
#[test]
fn a_cleanup_that_is_not_done_is_rendered_as_a_host_would_report_it() {
    let desk = Desk::new();
    let puppet = "apiVersion: test.operator-host.dev/v1\nkind: Puppet\n\
        metadata: {name: p, deletionTimestamp: '2026-01-01T00:00:00Z', finalizers: [operator-host.dev/puppet]}\n\
        spec: {cleanup: {done: false}}\n\
        status: {conditions: [{type: Backed, status: 'True', reason: B, message: m, lastTransitionTime: '2026-01-01T00:00:00Z'}]}\n";
    let answer = desk.render(&sample("puppet"), puppet, &["-o", "json"]).expect(0);
    let list: Value = serde_json::from_str(&answer.out).unwrap();
    assert_eq!(list["parents"][0]["cleanedUp"], false);
    let conditions = list["parents"][0]["status"]["conditions"].as_array().unwrap();
    let all: Vec<_> = conditions.iter().map(|c| [&c["type"], &c["status"]]).collect();
    let expected = json!([["Ready", "False"], ["Backed", "True"], ["Reconciling", "True"]]);
    assert_eq!(json!(all), expected);
}

#[test]
fn children_that_the_plugin_may_not_make_are_refused() {
    let desk = Desk::new();
    let answer = desk.fixture(cases::ANSWER).expect(0);
    assert_contains(&answer.out, "kind: ConfigMap");
    let other = cases::ANSWER.replace("ConfigMap", "ConfigMop");
    let answer = desk.fixture(&other).expect(1);
    assert_contains(&answer.err, "ConfigMop … `makes`");
}

/// Specs of an Echo, and what is wrong with each.
const WRONG: &str = r#"{replicas: 101, image: i} -> spec.replicas: 101 is greater than 100 (maximum)
{replicas: -1, image: i} -> spec.replicas: -1 is less than 0 (minimum)
{replicas: two, image: i} -> spec.replicas: "two" must be of type integer
{replicas: 1} -> spec.image: is missing (required)
{replicas: 1, image: ''} -> spec.image: "" is shorter than 1 (minLength)
{replicas: 1, image: i, imgae: j} -> spec.imgae: unknown field; the schema has image, replicas"#;

#[test]
fn a_resource_that_does_not_fit_is_refused_with_path_and_rule() {
    let desk = Desk::new();
    let spec = |spec: &str| format!("{ECHO}spec: {spec}\n");
    let lines = WRONG.lines().map(|line| line.split_once(" -> ").unwrap());
    let wrong = lines.map(|(wrong, expected)| (spec(wrong), expected));
    let others = [
        (ECHO.to_owned(), "spec: is missing (required)"),
        (
            spec("{replicas: 1, image: i}").replace("/v1", "/v2"),
            "the kind is my-operator.dev/v2/Echo; the plugin reconciles my-operator.dev/v1/Echo",
        ),
        (
            format!("{}---\nkind: Echo\n", spec("{replicas: 1, image: i}")),
            "document 2: not a Kubernetes object: `apiVersion` is missing or not a string",
        ),
        ("{".to_owned(), "resource.yaml"),
        (String::new(), "no resource of the kind my-operator.dev/v1/Echo"),
        (
            "apiVersion: v1\nkind: Pod\nmetadata: {name: p}\n".to_owned(),
            "no resource of the kind my-operator.dev/v1/Echo",
        ),
    ];
    for (resource, expected) in wrong.chain(others) {
        let answer = desk.render(&sample("echo"), &resource, &[]).expect(2);
        assert_contains(&answer.err, expected);
        assert_eq!(answer.out, "");
    }
    let both = format!(
        "{}---\n{}",
        spec("{replicas: 101, image: i}"),
        spec("{replicas: 1}")
    );
    let answer = desk.render(&sample("echo"), &both, &[]).expect(2);
    assert_contains(&answer.err, "document 1 … document 2");
}

#[test]
fn a_resource_that_violates_a_rule_of_the_definition_is_not_rendered() {
    let desk = Desk::new();
    let app = |min: u32| {
        format!(
            "apiVersion: apps.example.com/v1\nkind: WebApp\nmetadata: {{name: w}}\n\
             spec: {{image: 'i:1', port: 80, autoscale: {{min: {min}, max: 3}}}}\n"
        )
    };
    let answer = desk.render(&sample("webapp"), &app(3), &[]).expect(0);
    assert!(!answer.err.contains("rule"), "{}", answer.err);
    let answer = desk.render(&sample("webapp"), &app(4), &[]).expect(2);
    let words = "(WebApp w): <nil>: Invalid value: autoscale.min must not be greater than autoscale.max";
    assert_contains(&answer.err, words);
}

/// Regression: a plugin whose cluster-scoped parent has children in namespaces could not pass its own checks.
#[test]
fn children_of_a_cluster_scoped_parent_are_judged_by_the_namespaces_of_the_configuration() {
    let desk = Desk::new();
    let config = |namespaces: &str| {
        let text = format!(
            "controllers:\n- name: c\n  plugin: p.wasm\n  parent: {{apiVersion: test.operator-host.dev/v1, kind: \
             ClusterPuppet}}\n  children: [{{apiVersion: v1, kind: ConfigMap}}, {{apiVersion: v1, kind: Secret}}, \
             {{apiVersion: v1, kind: PersistentVolumeClaim}}, {{apiVersion: operator-host.dev/v1alpha1, kind: External}}]\n  reads: [{{apiVersion: v1, kind: ConfigMap}}]\n  otherNamespaces: [{namespaces}]\n"
        );
        desk.file("config.yaml", text)
    };
    let resource = "apiVersion: test.operator-host.dev/v1\nkind: ClusterPuppet\nmetadata: {name: cp}\nspec: {response: \
                    {children: [{apiVersion: v1, kind: ConfigMap, metadata: {name: a, namespace: shop-1}}]}}\n";
    // The plugin contains no definition.
    let definition = desk.file(
        "crd.yaml",
        "apiVersion: apiextensions.k8s.io/v1\nkind: CustomResourceDefinition\nmetadata: {name: clusterpuppets.test.operator-host.dev}\n\
         spec:\n  group: test.operator-host.dev\n  scope: Cluster\n  names: {kind: ClusterPuppet, plural: clusterpuppets}\n  versions: []\n",
    );
    let plugin = sample("cluster-puppet");
    let free = ["--related", &definition];
    let rendered = desk.render(&plugin, resource, &free).expect(0);
    assert_contains(&rendered.out, "namespace: shop-1");
    desk.check(&plugin, resource, &free).expect(0);
    for (namespaces, code) in [
        ("shop-1", 0),
        ("shop-*", 0),
        ("'*'", 0),
        ("shop, shop-2", 1),
        ("", 1),
    ] {
        let more = ["--related", &definition, "--config", &config(namespaces)];
        let rendered = desk.render(&plugin, resource, &more).expect(code);
        let checked = desk.check(&plugin, resource, &more).expect(code);
        if code == 1 {
            let words = "the namespace \"shop-1\" is not allowed; list it under `otherNamespaces`";
            assert_contains(&rendered.err, words);
            assert_contains(&checked.out, words);
        }
        assert_eq!(
            checked.out.contains("includes kube-system"),
            namespaces == "'*'",
            "{}",
            checked.out
        );
    }
    let more = ["--config", &config("")];
    let echo = desk.render(&sample("echo"), ECHO, &more).expect(2);
    assert_contains(&echo.err, "no controller in … Echo");
}
