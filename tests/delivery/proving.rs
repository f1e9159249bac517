//! New plugin versions are proved on the live objects, and promoted or held back.
//!
//! A version is the puppet with another number: each resource's `variants` contains what that version does.

mod orders;
mod replaced;

use crate::support::prelude::*;
use operator_host_core::digest::Digest;

use crate::telemetry::get;

const FILE: &str = "puppet.wasm";
const DEFINITION: &str = "puppets.test.operator-host.dev";

/// A host whose puppet can be swapped.
struct Stage<'a> {
    scenario: &'a Scenario,
    mount: Mount,
    state: PathBuf,
    /// Further lines of the configuration, and of its controller.
    top: String,
    more: String,
}

impl<'a> Stage<'a> {
    /// Starts with variant 0 of the puppet, which ignores `variants`.
    fn new(scenario: &'a Scenario, more: &str) -> Self {
        let folder = scenario.folder.path();
        Self {
            scenario,
            mount: Mount::new(&folder.join("mount"), FILE, &variant(0)),
            state: folder.join("state"),
            top: String::new(),
            more: more.to_owned(),
        }
    }

    /// Writes the configuration, which a running host follows.
    fn configure(&self) -> PathBuf {
        let text = format!(
            "{}\nplugins: {}\nnamespaces: [{}]\ncontrollers:\n{}",
            self.top,
            self.mount.path.display(),
            self.scenario.namespace,
            controller(FILE, &self.more)
        );
        // A host that starts meanwhile must not read half of it.
        let (part, file) = (self.scenario.file("config.part", text), "config.yaml");
        let file = part.with_file_name(file);
        std::fs::rename(part, &file).unwrap();
        file
    }

    fn start(&self) -> Host {
        let config = self.configure();
        let state = self.state.display().to_string();
        self.scenario.start_with(&config, &["--state-dir", &state])
    }

    fn swap(&mut self, number: u8) {
        self.mount.put(FILE, &variant(number));
    }
}

fn digest(number: u8) -> Digest {
    Digest::of(&variant(number))
}

/// Waits for the log line about a version that took over.
async fn until_live(host: &Host, number: u8, because: &str) -> String {
    host.until_log(&format!("plugin loaded … {} … {because}", digest(number)))
        .await
}

/// Creates a ready puppet, and a version that would delete its only child.
async fn offer_one_that_deletes(scenario: &Scenario, stage: &mut Stage<'_>) {
    let spec = json!({"response": response(&[("a", "x")]), "variants": {"1": {"response": {}}}});
    scenario.ready_with("p", spec).await;
    stage.swap(1);
}

async fn until_held_back(host: &Host, number: u8) -> String {
    host.until_log(&format!("plugin held back … {}", digest(number)))
        .await
}

/// Returns the host's report about the one plugin.
async fn report(host: &Host) -> Value {
    let (status, body) = get(host, "/plugins").await;
    assert_eq!(status, 200, "{body}");
    serde_json::from_str::<Value>(&body).unwrap()[0].clone()
}

/// Waits until that report satisfies `condition`.
pub(super) async fn until_report(host: &Host, what: &str, condition: impl Fn(&Value) -> bool) -> Value {
    eventually(what, async || {
        let report = report(host).await;
        if condition(&report) {
            Ok(report)
        } else {
            Err(format!("{report:#}"))
        }
    })
    .await
}

fn response(children: &[(&str, &str)]) -> Value {
    let children: Vec<_> = children
        .iter()
        .map(|(name, text)| config_map(name, text))
        .collect();
    json!({ "children": children })
}

fn is_held_back(puppet: &DynamicObject) -> bool {
    condition(puppet, "PluginHeldBack").is_some()
}

async fn until_released(scenario: &Scenario, name: &str) {
    let what = "no longer holds anything back";
    scenario.until(PUPPET, name, what, |p| !is_held_back(p)).await;
}

#[tokio::test]
async fn a_version_that_answers_the_same_is_promoted() {
    let scenario = Scenario::new("proving-unchanged").await;
    let mut stage = Stage::new(&scenario, "proving: {objects: 2}");
    let host = stage.start();
    for name in ["p", "q", "r"] {
        scenario
            .ready_with(name, json!({"response": response(&[(name, "x")])}))
            .await;
    }
    let before = scenario.version(CONFIG_MAP, "p").await;
    stage.swap(1);
    // A sample, as configured.
    until_live(&host, 1, "proved: 2 of 3 objects: 2 unchanged, 0 changed").await;
    // The first version has no object to be proved on, and needs none.
    assert_contains(&host.log(), "it was the first");
    assert_eq!(scenario.version(CONFIG_MAP, "p").await, before);
    let report = until_report(&host, "two versions kept", |r| {
        r["kept"].as_array().is_some_and(|k| k.len() == 2)
    })
    .await;
    assert_eq!(report["live"]["digest"], digest(1).to_string());
    assert_eq!(report["kept"][1]["digest"], digest(0).to_string());
    assert!(report["candidate"].is_null(), "{report:#}");
}

#[tokio::test]
async fn a_version_that_fails_where_the_live_one_works_is_held_back_and_touches_nothing() {
    let scenario = Scenario::new("proving-fails").await;
    let mut stage = Stage::new(&scenario, "");
    let host = stage.start();
    scenario
        .puppet("good", json!({"response": response(&[("g", "x")])}))
        .await;
    let spec = json!({"response": response(&[("a", "x")]), "variants": {"1": {"misbehave": "panic"}}});
    scenario.puppet("bad", spec).await;
    scenario.until_ready("good").await;
    scenario.until_ready("bad").await;
    let versions = async || {
        (
            scenario.version(CONFIG_MAP, "a").await,
            scenario.version(CONFIG_MAP, "g").await,
        )
    };
    let before = versions().await;
    stage.swap(1);
    let line = until_held_back(&host, 1).await;
    let words = "fails on 1 object … proving-fails/bad … told to panic … kubectl annotate crd";
    assert_contains(&line, words);
    let says = format!("PluginHeldBack=True Fails: told to panic … {DEFINITION}");
    scenario.until_told("bad", &says).await;
    let says = "Warning PluginHeldBack: told to panic";
    scenario.until_event("bad", says).await;
    // The object that it succeeds on holds nothing back, and the other one is as Ready as before.
    let good = scenario.until_ready("good").await;
    assert!(!is_held_back(&good));
    scenario.until_ready("bad").await;
    let report = report(&host).await;
    assert_eq!(report["live"]["digest"], digest(0).to_string());
    assert_eq!(report["candidate"]["state"], "heldBack");
    assert_eq!(report["candidate"]["reason"], "Fails");
    let metrics = get(&host, "/metrics").await.1;
    let words = format!(
        "result=\"held_back\" … operator_host_plugin_held_back{{ … {}",
        digest(1)
    );
    assert_contains(&metrics, &words);
    // The live version continues.
    let spec =
        json!({"response": response(&[("a", "x"), ("b", "x")]), "variants": {"1": {"misbehave": "panic"}}});
    scenario.puppet("bad", spec).await;
    scenario.until_there(CONFIG_MAP, "b").await;
    assert_eq!(before, versions().await, "a child was touched");
    // A version that does not fail replaces it, and nothing is held back any more.
    stage.swap(2);
    until_live(&host, 2, "proved").await;
    until_released(&scenario, "bad").await;
    let metrics = get(&host, "/metrics").await.1;
    assert!(!metrics.contains("operator_host_plugin_held_back{"));
}

/// Regression: both versions' answers counted as failures because of the Secret, and the new one went live.
#[tokio::test]
async fn a_generated_secret_that_is_refused_hides_nothing_of_what_a_version_would_do() {
    let scenario = Scenario::new("proving-refused-secret").await;
    let kinds = "children: [{apiVersion: v1, kind: Secret}, {apiVersion: v1, kind: ConfigMap}]";
    let mut stage = Stage::new(&scenario, kinds);
    let host = stage.start();
    let with_secret = |children: &[(&str, &str)]| {
        let mut response = response(children);
        response["generate"] = json!([{"name": "s", "entries": [{"key": "password", "length": 24}]}]);
        response
    };
    let variants = json!({
        "1": {"response": with_secret(&[("a", "x")])},
        "2": {"response": with_secret(&[("a", "x"), ("b", "y")])},
    });
    let spec = json!({"response": with_secret(&[("a", "x"), ("b", "x")]), "variants": variants});
    scenario.ready_with("p", spec).await;
    scenario.delete("v1/Secret", "s").await;
    scenario.until_stalled("p", "GeneratedSecretLost").await;
    stage.swap(1);
    let line = until_held_back(&host, 1).await;
    assert_contains(&line, "it would delete 1 of 2 children");
    stage.swap(2);
    until_live(&host, 2, "1 object: 0 unchanged, 1 changed").await;
    scenario.until_text("b", "y").await;
}

#[tokio::test]
async fn a_version_that_would_delete_children_is_held_back_until_it_would_not() {
    let scenario = Scenario::new("proving-deletes").await;
    let mut stage = Stage::new(&scenario, "");
    let host = stage.start();
    let both = response(&[("a", "x"), ("b", "x")]);
    let spec = json!({"response": both, "variants": {"1": {"response": response(&[("a", "y")])}}});
    scenario.ready_with("p", spec).await;
    let others =
        json!({"response": response(&[("others", "confidential")]), "variants": {"1": {"response": {}}}});
    scenario.ready_with("q", others).await;
    stage.swap(1);
    let line = until_held_back(&host, 1).await;
    assert_contains(&line, "it would delete 2 of 3 children, more than 20 %");
    assert!(!line.contains("apiVersion"), "a difference at a warning: {line}");
    host.until_log("DEBUG … differences from the live version … confidential")
        .await;
    let says = "PluginHeldBack=True WouldDelete: -- apiVersion: v1 … -    name: b … \
         ConfigMap proving-deletes/b … is held back … kubectl annotate crd";
    let message = scenario.until_told("p", says).await;
    // A reader of one parent's Events must not learn about another.
    let says = "Warning PluginHeldBack: ConfigMap proving-deletes/b";
    let event = scenario.until_event("p", says).await;
    for text in [&message, &event] {
        assert!(
            !text.contains("others") && !text.contains("confidential") && !text.contains("/q"),
            "{text}"
        );
    }
    assert_eq!(scenario.text_of("a").await, "x");
    assert_eq!(scenario.text_of("b").await, "x");
    // It is retried by itself, and the objects have changed.
    let spec =
        json!({"response": both, "variants": {"1": {"response": response(&[("a", "y"), ("b", "x")])}}});
    scenario.puppet("p", spec).await;
    scenario
        .puppet("q", json!({"response": response(&[("others", "confidential")])}))
        .await;
    until_live(&host, 1, "1 changed").await;
    scenario.until_text("a", "y").await;
    until_released(&scenario, "p").await;
}

#[tokio::test]
async fn an_object_that_is_being_deleted_is_asked_about_with_its_cleanup_and_outweighs_no_other() {
    let scenario = Scenario::new("proving-cleanup").await;
    let mut stage = Stage::new(&scenario, "");
    let host = stage.start();
    let many = ["a", "b", "c", "d", "e", "f"].map(|name| (name, "x"));
    let spec = json!({
        "response": response(&many),
        "cleanup": {"done": false, "requeueAfterMs": 600_000},
        "variants": {
            "1": {"cleanup": {"done": false, "children": [{"kind": "Nothing"}]}},
            "2": {"cleanup": {"done": true}, "misbehave": "panic"},
        },
    });
    scenario.ready_with("going", spec).await;
    scenario.delete(PUPPET, "going").await;
    let is_going = |p: &DynamicObject| p.metadata.deletion_timestamp.is_some();
    scenario.until(PUPPET, "going", "being deleted", is_going).await;
    let spec = json!({"response": response(&[("child", "x")]), "variants": {"3": {"response": {}}}});
    scenario.ready_with("p", spec).await;
    stage.swap(3);
    let line = until_held_back(&host, 3).await;
    assert_contains(&line, "it would delete 1 of 1 child");
    assert!(scenario.get(CONFIG_MAP, "child").await.is_some());
    stage.swap(1);
    let line = until_held_back(&host, 1).await;
    assert_contains(&line, "fails on 1 object … `apiVersion`");
    assert!(scenario.get(CONFIG_MAP, "a").await.is_some());
    // Its `reconcile` is not called any more.
    stage.swap(2);
    until_live(&host, 2, "1 changed").await;
    scenario.until_gone(PUPPET, "going").await;
}

/// Versions that are held back for different reasons, one after the other, until one comes that deletes little.
#[tokio::test]
async fn each_reason_to_hold_a_version_back_is_named() {
    let scenario = Scenario::new("proving-reasons").await;
    let kinds =
        "children: [{apiVersion: v1, kind: ConfigMap}, {apiVersion: v1, kind: PersistentVolumeClaim}]";
    let mut stage = Stage::new(&scenario, kinds);
    let host = stage.start();
    let claim = json!({
        "apiVersion": "v1", "kind": "PersistentVolumeClaim", "metadata": {"name": "data"},
        "spec": {"accessModes": ["ReadWriteOnce"], "resources": {"requests": {"storage": "1Gi"}}},
    });
    let maps = ["a", "b", "c", "d", "e", "f"].map(|name| config_map(name, "x"));
    let with_maps = |first: Value, others: &[Value]| {
        let children: Vec<_> = [&first].into_iter().chain(others).chain([&claim]).collect();
        json!({"response": {"children": children}})
    };
    let with = |first: Value| with_maps(first, &maps[1..]);
    let mut number = config_map("a", "x");
    number["data"]["number"] = 1.into();
    let mut status = with(config_map("a", "x"));
    status["response"]["status"] = json!({"count": "three"});
    let mut spec = with(config_map("a", "x"));
    spec["variants"] = json!({
        "1": with(config_map("a", "$random")),
        "2": {"response": {"children": maps}},
        "3": with(number),
        "4": status,
        "5": with_maps(config_map("a", "x"), &maps[1..5]),
        "6": with_maps(config_map("a", "y"), &maps[1..5]),
    });
    scenario.ready_with("p", spec).await;
    let replaceable = |text: &str| {
        let mut child = config_map("replaceable", text);
        child["metadata"]["annotations"] = json!({"operator-host.dev/update": "replace"});
        json!({"children": [child]})
    };
    let variants = json!({"5": {"response": replaceable("y")}});
    let spec = json!({"response": replaceable("x"), "variants": variants});
    scenario.ready_with("q", spec).await;
    for (number, words) in [
        (
            1,
            "NotDeterministic … gives different answers to the same request",
        ),
        (
            2,
            "stop managing 1 child … PersistentVolumeClaim proving-reasons/data",
        ),
        (
            3,
            "it fails on 1 object … refuse it: data.number: 1 must be of type string",
        ),
        (
            4,
            "it fails on 1 object … status.count: \\\"three\\\" must be of type integer",
        ),
        // One of them by a change of a child that may be replaced.
        (5, "it would delete 2 of 7 children"),
    ] {
        stage.swap(number);
        assert_contains(&until_held_back(&host, number).await, words);
    }
    assert_eq!(scenario.text_of("a").await, "x");
    stage.swap(6);
    let words = "2 objects: 1 unchanged, 1 changed, 1 of 7 children deleted";
    let line = until_live(&host, 6, words).await;
    // Counted from the first sign of the new file, without the time to compile it, which has a low priority.
    let line: Value = serde_json::from_str(&line).unwrap();
    let millis = |key: &str| line[key].as_u64().expect("how long it took");
    let took = millis("reload_ms") - millis("compile_ms");
    // Well below a second on an idle machine; this one is shared.
    assert!(took < 5_000, "{took} ms: {line}");
    scenario.until_text("a", "y").await;
    scenario.until_gone(CONFIG_MAP, "f").await;
}
