//! `check`: reports every problem of a plugin.

use crate::support::prelude::*;
use plugin_fixtures::{Fixture, Form, cases};

use super::{Desk, host, sample};

#[test]
fn check_warns_of_each_kind_that_gives_a_plugin_power_over_others() {
    for (name, kinds) in [
        ("echo", vec!["v1/Pod: its pods run any image"]),
        ("webapp", vec!["apps/v1/Deployment: its pods run any image"]),
        (
            "mysql",
            vec![
                "v1/Secret: other programs may trust the Secret",
                "v1/Pod: its pods run any image",
            ],
        ),
    ] {
        let answer = host(&["check", &sample(name)]).expect(0);
        for kind in kinds {
            let warning = format!("warn  privileges    the plugin creates {kind}");
            assert_contains(&answer.out, &warning);
        }
    }
    let desk = Desk::new();
    let harmless = desk.file("harmless.wasm", Fixture::new(cases::ANSWER).build(Form::Command));
    let answer = host(&["check", &harmless]).expect(0);
    assert!(!answer.out.contains("privileges"), "{}", answer.out);
}

/// Regression: the plugin was said not to fit into one ConfigMap, although `pack` makes one of it.
#[test]
fn check_says_how_a_plugin_that_is_larger_than_a_config_map_gets_into_one() {
    let answer = host(&["check", &sample("hello")]).expect(0);
    let line = answer.out.lines().find(|line| line.contains("size  "));
    assert_contains(line.unwrap(), "ok    size … `operator-host pack`");
}

#[test]
fn check_lists_what_is_right_and_what_is_wrong_and_its_exit_code_shows_which() {
    for (name, resource) in [
        ("echo", "echo"),
        ("echo-command", "echo"),
        ("mysql", "mysqlcluster"),
        ("myapp", "myapp"),
    ] {
        let resource = root().join(format!("manifests/samples/{resource}.yaml"));
        let answer = host(&["check", &sample(name), "--sample", resource.to_str().unwrap()]).expect(0);
        for part in "form imports size describe crd cost determinism".split(' ') {
            assert_contains(&answer.out, &format!("  {part:12}  "));
        }
        assert!(!answer.out.contains("fail"), "{}", answer.out);
    }
    let desk = Desk::new();
    let answered = Fixture::new(cases::ANSWER);
    let socket = r#"(import "wasi_snapshot_preview1" "sock_accept" (func (param i32 i32 i32) (result i32)))"#;
    let socket = answered.clone().import(socket);
    // What Go's standard library brings does no harm while it is not called.
    let unused = desk.file("unused.wasm", socket.build(Form::Command));
    assert_contains(&host(&["check", &unused]).expect(0).out, "ok    imports");
    let newer = answered.clone().version("0.9.0");
    for (file, expected) in [
        (b"hello".to_vec(), "fail  form"),
        (plugin_fixtures::library("run"), "fail  form"),
        (socket.build(Form::Component), "fail  imports"),
        (newer.build(Form::Component), "fail  contract"),
    ] {
        let answer = host(&["check", &desk.file("bad.wasm", file)]).expect(1);
        assert_contains(&answer.out, expected);
    }
    for form in [Form::Component, Form::Command] {
        let printed = host(&["check", &desk.file("version.wasm", answered.clone().build(form))]).expect(0);
        assert_contains(&printed.out, ", contract 1.0.0, ");
    }
    let plain = host(&["check", &desk.file("plain.wasm", answered.build(Form::Command))]).expect(0);
    assert_contains(&plain.out, "warn  crd … warn  samples");
    host(&["check", "/nowhere.wasm"]).expect(2);
}

/// Checks a fixture with a sample of this name.
fn check_case(desk: &Desk, case: &str, name: &str, more: &[&str]) -> Answer {
    let file = desk.file("case.wasm", Fixture::new(case).build(Form::Command));
    let text = format!("apiVersion: fixtures.dev/v1\nkind: Fixture\nmetadata: {{name: {name}}}\n");
    desk.check(&file, &text, more)
}

#[test]
fn check_fails_for_an_answer_and_a_name_that_a_host_or_the_api_server_would_refuse() {
    let desk = Desk::new();
    let good = check_case(&desk, cases::ANSWER, "f", &[]).expect(0);
    assert_contains(
        &good.out,
        "ok    determinism … ok    children      f: 1, all of them allowed\n",
    );
    for (case, name, words) in [
        (cases::PANIC, "f", "fail  samples"),
        (
            cases::CLOCK_AND_RANDOM,
            "f",
            "fail  determinism … children[0].seen",
        ),
        (
            &cases::ANSWER.replace("answer\\22", "Answer\\22"),
            "f",
            "fail  children … \"Answer\" cannot be its `metadata.name`",
        ),
        (
            &cases::ANSWER.replace("ConfigMap", "Configmap"),
            "f",
            "fail  children … does not list the kind v1/Configmap under `makes`",
        ),
        (
            cases::ANSWER,
            "My_Fixture",
            "fail  samples … metadata.name: the API server",
        ),
    ] {
        assert_contains(&check_case(&desk, case, name, &[]).expect(1).out, words);
    }
}

#[test]
fn check_fails_when_the_configuration_does_not_allow_what_the_plugin_makes() {
    let desk = Desk::new();
    let config_map = "children: [{apiVersion: v1, kind: ConfigMap}]";
    for (kind, rest, code, words) in [
        ("Fixture", config_map, 0, "ok    config        c: allows"),
        (
            "Fixture",
            "children: [{apiVersion: v1, kind: Pod}]",
            1,
            "fail  config        c: the plugin creates v1/ConfigMap",
        ),
        (
            "Fixture",
            &format!("{config_map}, definitions: install"),
            1,
            "fail  config … contains no CustomResourceDefinition",
        ),
        (
            "Other",
            "children: []",
            1,
            "fail  config … no controller reconciles",
        ),
    ] {
        let parent = format!("{{apiVersion: fixtures.dev/v1, kind: {kind}}}");
        let text = format!("controllers: [{{name: c, plugin: case.wasm, parent: {parent}, {rest}}}]");
        let config = desk.file("config.yaml", text);
        let more = ["--config", &config];
        assert_contains(
            &check_case(&desk, cases::ANSWER, "f", &more).expect(code).out,
            words,
        );
    }
}

#[test]
fn check_calls_the_plugin_with_the_objects_that_it_needs() {
    let desk = Desk::new();
    let cluster = "apiVersion: database.example.com/v2\nkind: MySQLCluster\nmetadata: {name: db}\n\
                   spec: {version: '8.4', storage: {size: 1Gi}, rootPasswordSecret: {name: pw}}\n";
    let secret = "apiVersion: v1\nkind: Secret\nmetadata: {name: pw}\ndata: {password: cHc=}\n";
    let both = format!("{cluster}---\n{secret}");
    let secret = desk.file("secret.yaml", secret);
    let check = |resource: &str, more: &[&str]| desk.check(&sample("mysql"), resource, more).expect(0).out;
    let allowed = "db: 3, all of them allowed";
    assert!(!check(cluster, &[]).contains(allowed));
    for out in [check(cluster, &["--related", &secret]), check(&both, &[])] {
        assert_contains(&out, allowed);
    }
}

#[test]
fn check_calls_the_plugin_with_the_children_and_the_time_that_it_is_given() {
    let desk = Desk::new();
    let spec = |chain: &str| {
        format!(
            "apiVersion: test.operator-host.dev/v1\nkind: Puppet\nmetadata: {{name: p}}\nspec: {{{chain}}}\n"
        )
    };
    let child = |name: &str| format!("{{apiVersion: v1, kind: ConfigMap, metadata: {{name: {name}}}}}");
    let chain = format!("chain: [{}, {}], response: {{}}", child("a"), child("b"));
    let existing = desk.file("children.yaml", child("a"));
    let now = format!("response: {{children: [{}]}}", child("$now"));
    for (resource, more, words) in [
        (&chain, &[] as &[&str], "p: 1, all of them allowed"),
        (&chain, &["--children", &existing], "p: 2, all of them allowed"),
        (&now, &["--now", "2026-03-29T01:30:00Z"], "2026-03-29T01:30:00Z"),
    ] {
        let checked = desk.check(&sample("puppet"), &spec(resource), more);
        assert_contains(&checked.out, words);
    }
}

/// Regression: the first that said so was the API server, in production.
#[test]
fn check_and_render_refuse_a_child_and_a_status_that_the_api_server_would_refuse() {
    let desk = Desk::new();
    let plugin = sample("puppet");
    let definition = desk.file(
        "crd.yaml",
        "apiVersion: apiextensions.k8s.io/v1\nkind: CustomResourceDefinition\nmetadata: {name: puppets.test.operator-host.dev}\n\
         spec:\n  group: test.operator-host.dev\n  scope: Namespaced\n  names: {kind: Puppet, plural: puppets}\n  versions:\n  \
         - name: v1\n    schema:\n      openAPIV3Schema:\n        type: object\n        properties:\n          \
         spec: {type: object, x-kubernetes-preserve-unknown-fields: true}\n          \
         status: {type: object, properties: {readyReplicas: {type: integer}}}\n",
    );
    for (response, words) in [
        ("{status: {readyReplicas: 1}}", None),
        (
            "{status: {ready_replicas: 1}}",
            Some("status.ready_replicas: unknown field; the schema has readyReplicas"),
        ),
        (
            "{status: {readyReplicas: many}}",
            Some("status.readyReplicas: \"many\" must be of type integer"),
        ),
        (
            "{children: [{apiVersion: v1, kind: ConfigMap, metadata: {name: a}, data: {a: '1'}}]}",
            None,
        ),
        (
            "{children: [{apiVersion: v1, kind: ConfigMap, metadata: {name: a}, data: {a: 1}}]}",
            Some("ConfigMap default/a: the API server would refuse it: data.a: 1 must be of type string"),
        ),
        (
            "{children: [{apiVersion: v1, kind: ConfigMap, metadata: {name: a, labels: {a: true}}}]}",
            Some("metadata.labels.a: true must be of type string"),
        ),
        (
            "{children: [{apiVersion: v1, kind: ConfigMap, metadata: {name: a, annotations: {operator-host.dev/update: 'one,replace,min-ready=5', \
             operator-host.dev/on-removal: delete}}}]}",
            None,
        ),
        (
            "{children: [{apiVersion: v1, kind: ConfigMap, metadata: {name: a, annotations: {operator-host.dev/update: replaced}}}]}",
            Some("operator-host.dev/update … \"replaced\" … none of its words: replace"),
        ),
        (
            "{children: [{apiVersion: v1, kind: ConfigMap, metadata: {name: a, annotations: {operator-host.dev/update: last-first}}}]}",
            Some("operator-host.dev/update … add `one`, or leave `last-first` out"),
        ),
        (
            "{children: [{apiVersion: v1, kind: ConfigMap, metadata: {name: a, annotations: {operator-host.dev/on-removal: retian}}}]}",
            Some("operator-host.dev/on-removal … none of its words: delete, retain"),
        ),
    ] {
        let resource = format!(
            "apiVersion: test.operator-host.dev/v1\nkind: Puppet\nmetadata: {{name: p}}\nspec: {{response: {response}}}\n"
        );
        let code = i32::from(words.is_some());
        let more = ["--related", &definition];
        let rendered = desk.render(&plugin, &resource, &more).expect(code);
        let checked = desk.check(&plugin, &resource, &more).expect(code);
        if let Some(words) = words {
            assert_contains(&rendered.err, words);
            assert_contains(&checked.out, words);
        }
    }
}

#[test]
fn check_names_the_memory_of_a_container_that_cannot_compile_the_plugin() {
    let words = "a container with the default memory of 512 MiB cannot compile it";
    for (name, is_warned) in [("echo-python", true), ("echo", false)] {
        let answer = host(&["check", &sample(name)]).expect(0);
        assert_eq!(answer.out.contains(words), is_warned, "{}", answer.out);
    }
    for file in [
        "manifests/deploy/base/deployment.yaml",
        "manifests/helm/values.yaml",
    ] {
        let text = std::fs::read_to_string(root().join(file)).unwrap();
        assert!(text.contains("limits: {memory: 512Mi}"), "{file}");
    }
}
