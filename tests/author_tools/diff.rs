//! `diff`: reports what a plugin would change in the cluster, without changing it.

use crate::support::prelude::*;

use plugin_fixtures::{Fixture, Form};

use super::{Answer, sample};
use crate::samples::echo::CONTROLLER;
use crate::support::puppet;

const ECHO: &str = "my-operator.dev/v1/Echo";

fn echo(name: &str, replicas: u32) -> String {
    format!(
        "apiVersion: my-operator.dev/v1\nkind: Echo\nmetadata: {{name: {name}}}\nspec: {{replicas: {replicas}, image: i}}\n"
    )
}

fn diff(scenario: &Scenario, config: &Path, more: &[&str]) -> Answer {
    let config = config.to_str().unwrap();
    scenario.program(&["diff", "--config", config]).args(more).call()
}

/// Compares a resource in YAML.
fn diff_of(scenario: &Scenario, config: &Path, yaml: impl AsRef<[u8]>) -> Answer {
    let file = scenario.file("resource.yaml", yaml);
    let more = ["-n", &scenario.namespace, "-f", file.to_str().unwrap()];
    diff(scenario, config, &more)
}

#[tokio::test]
async fn a_cluster_that_is_as_the_plugin_wants_it_shows_nothing_and_another_spec_shows_what_would_change() {
    let scenario = Scenario::new("diff").await;
    let config = scenario.config(CONTROLLER);
    let host = scenario.start_with(&config, &[]);
    scenario.apply(&echo("e", 2)).await;
    scenario.until_echo("e").await;
    assert!(host.stop().await.success());
    let before = versions(&scenario).await;

    assert_eq!(diff(&scenario, &config, &[]).expect(0).out, "");
    let named = ["--controller", "echo", "-n", &scenario.namespace, "e"];
    assert_eq!(diff(&scenario, &config, &named).expect(0).out, "");

    let answer = diff_of(&scenario, &config, echo("e", 3)).expect(1);
    let words = "# Echo diff/e\n … --- /dev/null\n … +++ Pod diff/e-pod-2 (with echo 0.1.0)\n … \
         +  name: e-pod-2\n";
    assert_contains(&answer.out, words);
    assert!(!answer.out.contains("e-pod-1\n"), "{}", answer.out);
    assert!(!answer.out.contains("managedFields") && !answer.out.contains("operator-host.dev/applied"));

    let fewer = echo("e", 1).replace("image: i", "image: j");
    let answer = diff_of(&scenario, &config, fewer).expect(1);
    let words = "--- Pod diff/e-pod-1 (now)\n+++ /dev/null\n … -  - image: i\n+  - image: j\n";
    assert_contains(&answer.out, words);
    // A resource that does not exist yet.
    let answer = diff_of(&scenario, &config, echo("new", 1)).expect(1);
    assert_contains(&answer.out, "+  name: new-pod-0\n");

    // Another plugin can be tried before it is rolled out. The same operator in another language changes nothing.
    let with = |file: &str| diff(&scenario, &config, &["--controller", "echo", "--plugin", file]);
    assert_eq!(with(&sample("echo-c")).expect(0).out, "");
    // It wants two Pods less, and an additional child that is not allowed.
    let other = Fixture::new(plugin_fixtures::cases::ANSWER).parent("my-operator.dev/v1", "Echo");
    let other = scenario.file("other.wasm", other.build(Form::Component));
    let answer = with(other.to_str().unwrap()).expect(2);
    let words = "Echo diff/e … may not create objects of the kind v1/ConfigMap";
    assert_contains(&answer.err, words);
    let answer = with(&sample("hello")).expect(2);
    assert_contains(&answer.err, "reconciles fraim.co.jp/v1/Hello");

    assert_eq!(versions(&scenario).await, before, "nothing was written");
}

/// Returns the names and the versions of all Echos and pods.
async fn versions(scenario: &Scenario) -> Vec<(String, Option<String>)> {
    let mut versions = Vec::new();
    for kind in [ECHO, "v1/Pod"] {
        for object in scenario.api(kind).list(&ListParams::default()).await.unwrap() {
            versions.push((object.name_any(), object.metadata.resource_version));
        }
    }
    assert_eq!(versions.len(), 3, "{versions:?}");
    versions
}

#[tokio::test]
async fn what_a_child_says_of_its_changes_and_its_removal_shows_in_the_difference() {
    let scenario = Scenario::new("diff-update").await;
    let kinds = "children: [{apiVersion: v1, kind: ConfigMap}]";
    let config = scenario.config(&puppet::controller("puppet.wasm", kinds));
    let child = |name: &str, text: &str, annotation: Value| {
        let mut child = config_map(name, text);
        child["immutable"] = true.into();
        child["metadata"]["annotations"] = annotation;
        child
    };
    let replace = json!({"operator-host.dev/update": "replace"});
    let retain = json!({"operator-host.dev/on-removal": "retain"});
    let of = |children: Value| json!({"response": {"children": children}});
    let first = [
        child("a", "one", replace.clone()),
        child("b", "one", retain.clone()),
        child("c", "one", json!({})),
    ];
    scenario.puppet("p", of(json!(first))).await;
    let host = scenario.start_with(&config, &[]);
    scenario.until_ready("p").await;
    assert!(host.stop().await.success());
    assert_eq!(diff(&scenario, &config, &[]).expect(0).out, "");
    // One is replaced, one stays, and one goes.
    scenario
        .puppet("p", of(json!([child("a", "two", replace)])))
        .await;
    let answer = diff(&scenario, &config, &[]).expect(1);
    let words = "--- ConfigMap diff-update/a … +++ /dev/null … +++ ConfigMap diff-update/a … +  text: two … --- ConfigMap diff-update/c";
    assert_contains(&answer.out, words);
    assert!(!answer.out.contains("diff-update/b"), "{}", answer.out);
    // Without the annotation, the refusal is reported.
    scenario
        .puppet("p", of(json!([child("a", "two", json!({}))])))
        .await;
    assert_contains(
        &diff(&scenario, &config, &[]).expect(2).err,
        "ConfigMap diff-update/a … immutable",
    );
}

#[tokio::test]
async fn values_of_secrets_are_masked_and_needs_are_read_from_the_cluster() {
    let scenario = Scenario::new("diff-secret").await;
    let kinds = "children: [{apiVersion: v1, kind: Secret}, {apiVersion: v1, kind: ConfigMap}]\nreads: [{apiVersion: v1, kind: ConfigMap}]";
    let config = scenario.config(&puppet::controller("puppet.wasm", kinds));
    let need = json!({"id": "n", "apiVersion": "v1", "kind": "ConfigMap", "labelSelector": "team=blue"});
    let settings = json!({"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": "blue", "labels": {"team": "blue"}}});
    scenario.apply(&settings.to_string()).await;
    let secret = |value: &str| json!({"apiVersion": "v1", "kind": "Secret", "metadata": {"name": "s"}, "stringData": {"password": value, "user": "the-user"}});
    let spec = |value: &str| {
        json!({"response": {
            "needs": [need], "children": [secret(value)], "status": {"read": "$related"},
            "generate": [{"name": "g", "entries": [{"key": "token", "length": 8}]}],
        }})
    };
    scenario.puppet("p", spec("correct horse")).await;
    let answer = diff(&scenario, &config, &[]).expect(1);
    let words = "+++ Secret diff-secret/s (with puppet … +++ Secret diff-secret/g … +  token:";
    assert_contains(&answer.out, words);
    let host = scenario.start_with(&config, &[]);
    scenario.until_ready("p").await;
    assert!(host.stop().await.success());
    assert_eq!(diff(&scenario, &config, &[]).expect(0).out, "");

    scenario.puppet("p", spec("battery staple")).await;
    let answer = diff(&scenario, &config, &[]).expect(1);
    assert_contains(&answer.out, "*** (after)");
    for value in [
        "correct horse",
        "battery staple",
        "YmF0dGVyeSBzdGFwbGU",
        "Y29ycmVjdCBob3JzZQ",
        "dGhlLXVzZXI",
    ] {
        assert!(!answer.out.contains(value), "{value}: {}", answer.out);
    }
    assert!(scenario.get(PUPPET, "p").await.is_some());
}

#[tokio::test]
async fn what_cannot_be_compared_is_reported_and_the_exit_code_is_2() {
    let scenario = Scenario::new("diff-bad").await;
    let config = scenario.config(CONTROLLER);
    let missing = diff(
        &scenario,
        &config,
        &["--controller", "echo", "-n", &scenario.namespace, "nobody"],
    )
    .expect(2);
    assert_contains(&missing.err, "there is no Echo diff-bad/nobody");
    let unknown = diff(&scenario, &config, &["--controller", "ecco"]).expect(2);
    assert_contains(&unknown.err, "it has echo");
    let wrong = diff_of(&scenario, &config, echo("e", 101)).expect(2);
    assert_contains(&wrong.err, "spec.replicas");
    let pod = "apiVersion: v1\nkind: Pod\nmetadata: {name: p}\n";
    let stray = diff_of(&scenario, &config, pod).expect(2);
    assert_contains(&stray.err, "no controller of the configuration is for v1/Pod");
    diff(&scenario, Path::new("/nowhere.yaml"), &[]).expect(2);
}
