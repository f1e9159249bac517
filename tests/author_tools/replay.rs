//! `run --record` and `replay`: repeats recorded calls. Also the cases that every implementation of a kind answers
//! alike, which are records, too.

use crate::support::prelude::*;
use plugin_fixtures::{Fixture, Form, cases};

use super::{Answer, Desk, host, host_with_cache, sample};
use crate::samples::echo::CONTROLLER as ECHO_CONTROLLER;

fn replay(plugin: &str, records: &str) -> Answer {
    host(&["replay", "--plugin", plugin, records])
}

/// Replays the cases of a plugin, which all are the same, and returns their number.
pub fn same(plugin: &str, cases: &Path) -> usize {
    let count = std::fs::read_dir(cases).unwrap().count();
    let arguments = ["replay", "--plugin", plugin, cases.to_str().unwrap()];
    let answer = host_with_cache(&arguments).expect(0);
    let summary = format!("{count} calls replayed: {count} the same, 0 different\n");
    assert!(answer.out.ends_with(&summary), "{plugin}: {}", answer.out);
    count
}

/// They also hand out the same definition, which is looked at here because a plugin in Python takes long to compile.
#[test]
fn every_echo_answers_the_same_cases_alike() {
    let folder = root().join("plugins/echo/cases");
    let crd = |name: &str| host_with_cache(&["crd", &sample(name)]).expect(0).out;
    let definition = crd("echo");
    for name in "echo echo-command echo-c echo-js echo-python echo-zig echo-assemblyscript".split(' ') {
        assert!(same(&sample(name), &folder) > 10);
        assert_eq!(definition, crd(name), "{name}");
    }
}

#[test]
fn samples_answer_their_cases() {
    for (name, least) in [("webapp", 6), ("rabbitmq", 2)] {
        let cases = root().join(format!("plugins/{name}/cases"));
        assert!(same(&sample(name), &cases) >= least, "{name}");
    }
}

/// Returns a record of one call of a fixture, with its own or another answer.
fn record(answer: &Value) -> String {
    json!({
        "input": {"contract": "1.0.0", "call": "reconcile", "request": {
            "parent": {"apiVersion": "fixtures.dev/v1", "kind": "Fixture", "metadata": {"name": "f", "uid": "u"}},
            "children": [], "related": [], "now": "2026-01-01T00:00:00Z",
        }},
        "output": answer,
    })
    .to_string()
}

fn answered() -> Value {
    json!({"response": {"children": [{"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": "answer"}}]}})
}

#[test]
fn the_exit_code_shows_whether_an_answer_differs_and_the_difference_is_printed() {
    let desk = Desk::new();
    let file = |name: &str, case: &str| desk.file(name, Fixture::new(case).build(Form::Component));
    let plugin = file("answer.wasm", cases::ANSWER);
    let good = desk.file("good.json", record(&answered()));
    replay(&plugin, &good).expect(0);

    let mut other = answered();
    other["response"]["children"][0]["metadata"]["name"] = "question".into();
    let other = desk.file("other.json", record(&other));
    let answer = replay(&plugin, &other).expect(1);
    let words = "--- recorded\n … +++ replayed (fixture 1.0.0, sha256: … -      name: question\n … \
         +      name: answer\n";
    assert_contains(&answer.out, words);

    // A failed call is a record, too, and so is one that fails now.
    let panics = file("panic.wasm", cases::PANIC);
    let answer = replay(&panics, &good).expect(1);
    assert_contains(&answer.out, "panicked at src/lib.rs:7:9");

    let both = host(&["replay", "--plugin", &plugin, desk.0.path().to_str().unwrap()]).expect(1);
    assert_contains(&both.out, "2 calls replayed: 1 the same, 1 different");

    for (name, text, expected) in [
        ("text.json", "hello".to_owned(), "not a record of a plugin call"),
        (
            "kind.json",
            record(&answered()).replace("\"Fixture\"", "\"Fixtures\""),
            "the plugin reconciles fixtures.dev/v1/Fixture",
        ),
        (
            "empty.json",
            r#"{"input": {"contract": "1.0.0", "call": "reconcile"}, "output": {"response": {}}}"#.to_owned(),
            "contains no request",
        ),
    ] {
        let bad = desk.file(name, text);
        let answer = replay(&plugin, &bad).expect(2);
        assert_contains(&answer.err, &format!("{expected} … {name}"));
        std::fs::remove_file(bad).unwrap();
    }
    replay("/nowhere.wasm", &good).expect(2);
    replay(&plugin, "/nowhere").expect(2);
}

#[test]
fn an_accepted_answer_replaces_the_recorded_one_and_nothing_else_in_the_file() {
    let desk = Desk::new();
    let plugin = desk.file("p.wasm", Fixture::new(cases::ANSWER).build(Form::Component));
    let accept = |plugin: &str, record: &str| host(&["replay", "--accept", "--plugin", plugin, record]);
    // In an order and with spaces that only a person writes.
    let case = |output: &str| {
        format!(
            "{{\n  \"input\": {{\"contract\": \"1.0.0\",  \"call\": \"reconcile\", \"request\": {{\n    \
             \"parent\": {{\"kind\": \"Fixture\", \"apiVersion\": \"fixtures.dev/v1\", \
             \"metadata\": {{\"name\": \"f\", \"uid\": \"u\"}}}},\n    \
             \"children\": [], \"related\": [], \"now\": \"2026-01-01T00:00:00Z\"}}}},\n  \"output\": {output}\n}}\n"
        )
    };
    let record = desk.file("case.json", case("{\"response\": {}}"));
    let answer = accept(&plugin, &record).expect(0);
    let words = "accepted    … +++ replayed … 1 calls replayed: 0 the same, 1 accepted, 0 different";
    assert_contains(&answer.out, words);
    let expected = serde_json::to_string_pretty(&answered())
        .unwrap()
        .replace('\n', "\n  ");
    let written = std::fs::read_to_string(&record).unwrap();
    assert_eq!(written, case(&expected));
    replay(&plugin, &record).expect(0);
    let again = accept(&plugin, &record).expect(0);
    assert_contains(&again.out, "1 the same, 0 accepted, 0 different");

    // A record of a host names the version that answered.
    let mut by_host: Value = serde_json::from_str(&record_of_a_host()).unwrap();
    let recorded = desk.file("host.json", by_host.to_string());
    accept(&plugin, &recorded).expect(0);
    by_host = serde_json::from_str(&std::fs::read_to_string(&recorded).unwrap()).unwrap();
    assert_eq!(by_host["output"], answered());
    assert_eq!(by_host["plugin"]["name"], "fixture");

    // A failed call is no answer.
    let panics = desk.file("panic.wasm", Fixture::new(cases::PANIC).build(Form::Component));
    let failed = accept(&panics, &record).expect(1);
    assert_contains(&failed.out, "0 accepted, 1 different");
    assert_eq!(std::fs::read_to_string(&record).unwrap(), written);
}

fn record_of_a_host() -> String {
    let mut record: Value = serde_json::from_str(&record(&json!({"response": {}}))).unwrap();
    record["plugin"] = json!({"name": "earlier", "version": "0.1.0", "digest": "sha256:0"});
    record.to_string()
}

/// The values of Secrets are masked in what is compared. In a case with values in clear, an accepted answer must contain
/// them, too: a masked one would differ from then on.
#[test]
fn an_accepted_answer_is_the_same_in_the_next_replay_with_values_of_secrets_in_clear() {
    let desk = Desk::new();
    let secret = json!({
        "apiVersion": "v1", "kind": "Secret", "metadata": {"name": "s"}, "stringData": {"password": "correct horse"},
    });
    let spec = json!({"response": {"children": [secret, {
        "apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": "c"}, "data": {"url": "root:correct horse@db"},
    }]}});
    let record = json!({
        "input": {"contract": "1.0.0", "call": "reconcile", "request": {
            "parent": {
                "apiVersion": "test.operator-host.dev/v1", "kind": "Puppet", "metadata": {"name": "p", "uid": "u"}, "spec": spec,
            },
            "children": [secret], "related": [], "now": "2026-01-01T00:00:00Z",
        }},
        "output": {"response": {}},
    });
    let file = desk.file("case.json", record.to_string());
    let puppet = sample("puppet");
    host(&["replay", "--accept", "--plugin", &puppet, &file]).expect(0);
    replay(&puppet, &file).expect(0);
}

fn records(folder: &Path) -> Vec<PathBuf> {
    let Ok(entries) = std::fs::read_dir(folder) else {
        return Vec::new();
    };
    let mut files: Vec<_> = entries
        .map(|entry| entry.unwrap().path())
        .filter(|file| file.extension().is_some_and(|extension| extension == "json"))
        .collect();
    files.sort();
    files
}

#[tokio::test]
async fn what_a_host_recorded_is_replayed_alike_and_holds_no_value_of_a_secret() {
    let scenario = Scenario::new("record").await;
    let folder = scenario.folder.path().join("records");
    let kinds = "children: [{apiVersion: v1, kind: Secret}, {apiVersion: v1, kind: ConfigMap}]";
    let config = scenario.config(&controller("puppet.wasm", kinds));
    let running = scenario.start_with(&config, &["--record", folder.to_str().unwrap()]);
    let secret = json!({
        "apiVersion": "v1", "kind": "Secret", "metadata": {"name": "s"},
        "stringData": {"password": "correct horse", "pin": "1234"},
    });
    let copy = json!({
        "apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": "c"},
        "data": {"url": "mysql://root:correct horse@db"},
    });
    let response = json!({"children": [secret, copy], "status": {"seen": "$children"}});
    scenario.puppet("p", json!({ "response": response })).await;
    scenario
        .until(PUPPET, "p", "both children seen", |p| {
            p.data["status"]["seen"][1].is_object()
        })
        .await;
    scenario.remove(PUPPET, "p").await;
    assert!(running.stop().await.success());

    let files = records(&folder.join("puppet"));
    let texts: Vec<String> = files
        .iter()
        .map(|file| std::fs::read_to_string(file).unwrap())
        .collect();
    let text = texts.concat();
    for value in ["correct horse", "Y29ycmVjdCBob3JzZQ", "1234\"", "MTIzNA=="] {
        assert!(!text.contains(value), "{value} was recorded:\n{text}");
    }
    assert_contains(&text, "mysql://root:masked-");
    let all: Vec<Value> = texts
        .iter()
        .map(|text| serde_json::from_str(text).unwrap())
        .collect();
    for call in ["reconcile", "cleanup"] {
        assert!(all.iter().any(|it| it["input"]["call"] == call), "{text}");
    }
    let first = &all[0];
    let digest = first["plugin"]["digest"].as_str().unwrap();
    assert!(digest.starts_with("sha256:") && digest.len() == 71, "{first}");
    {
        use std::os::unix::fs::PermissionsExt;
        let mode = |path: &Path| std::fs::metadata(path).unwrap().permissions().mode() & 0o777;
        assert_eq!((mode(&folder), mode(&files[0])), (0o700, 0o600));
    }
    for form in ["puppet", "puppet-command"] {
        let answer = replay(&sample(form), folder.to_str().unwrap()).expect(0);
        assert_contains(&answer.out, "0 different");
    }
}

#[tokio::test]
async fn the_records_are_bounded_and_one_that_cannot_be_written_holds_nobody_up() {
    let scenario = Scenario::new("record-bounds").await;
    let folder = scenario.folder.path().join("records");
    let config = scenario.config(ECHO_CONTROLLER);
    let arguments = ["--record", folder.to_str().unwrap(), "--record-calls", "3"];
    let running = scenario.start_with(&config, &arguments);
    let echo = |name: &str| {
        format!(
            "apiVersion: my-operator.dev/v1\nkind: Echo\nmetadata: {{name: {name}}}\nspec: {{replicas: 1, image: i}}\n"
        )
    };
    for name in ["a", "b", "c"] {
        scenario.apply(&echo(name)).await;
        scenario.until_echo(name).await;
    }
    assert!(running.stop().await.success());
    let kept = records(&folder.join("echo"));
    assert_eq!(kept.len(), 3, "{kept:?}");
    assert!(
        kept[2].to_str().unwrap().ends_with("-record-bounds-c.json"),
        "the last ones: {kept:?}"
    );

    // A file at the path of the controller's folder.
    std::fs::remove_dir_all(&folder).unwrap();
    std::fs::create_dir(&folder).unwrap();
    std::fs::write(folder.join("echo"), "").unwrap();
    let running = scenario.start_with(&config, &arguments);
    scenario.apply(&echo("d")).await;
    scenario.until_echo("d").await;
    running.until_log("WARN … a plugin call was not recorded").await;
}
