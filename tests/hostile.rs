//! Malicious plugins, in eight objects at once: the host's memory stays bounded, another controller's objects are
//! reconciled about as fast as before, nothing in the cluster changes, and the resource's status contains the
//! reason.
//!
//! `bad_calls` and `bad_answers` test one bad call at a time; this test is about quantity.

use std::collections::BTreeMap;
use std::time::{Duration, Instant};

use futures::future::join_all;
use kube::ResourceExt;
use kube::api::ListParams;
use plugin_fixtures::{FORMS as BINARY_FORMS, Fixture};
use serde_json::{Value, json};

use crate::echo;
use crate::puppet::{CONFIG_MAP, FORMS, PUPPET, assert_contains, config_map, controller};
use crate::support::{Host, Scenario, condition};

/// The default number of concurrent reconciles.
const OBJECTS: usize = 8;
const LIMITS: &str = "limits: {deadline: 1s, memory: 32Mi, request: 4Mi, response: 7Mi}";
/// Allowed growth of the host in MiB: that many calls, each with its maximum.
const GROWTH: usize = OBJECTS * (32 + 7);
/// Bytes of a condition's message after truncation, with room for the host's own text.
const MESSAGE: usize = 5_000;
/// Lines that a plugin may log at once, and per second: `host/runtime/src/log.rs`.
const LINES_AT_ONCE: usize = 2_000;
const LINES_PER_SECOND: usize = 500;
/// Allowed size of the host's own log lines about a case, in KiB: each failure once, and a line for each reconcile.
const OWN_WORDS: usize = 1_024;

struct Case {
    name: &'static str,
    /// Replaces a valid spec.
    spec: Value,
    ends: End,
}

enum End {
    /// `Stalled` for this reason, with these words.
    Stalled(&'static str, &'static [&'static str]),
    /// The plugin gives valid answers nevertheless.
    Ready,
}

fn misbehave(name: &'static str, reason: &'static str, words: &'static [&'static str]) -> Case {
    Case {
        name,
        spec: json!({ "misbehave": name, "response": {} }),
        ends: End::Stalled(reason, words),
    }
}

/// Returns a case with an answer in which one list repeats its item.
fn many(name: &'static str, list: &str, item: &Value, count: u32, ends: End) -> Case {
    let mut spec = json!({"response": {"status": {"note": "other"}}, "many": {}});
    spec["response"][list] = json!([item]);
    spec["many"][list] = count.into();
    Case { name, spec, ends }
}

fn cases() -> Vec<Case> {
    let long = "x".repeat(100_000);
    let child =
        |kind: &str, name: &str| json!({"apiVersion": "v1", "kind": kind, "metadata": {"name": name}});
    let need = json!({"id": "n$n", "apiVersion": "v1", "kind": "ConfigMap"});
    let event = json!({"type": "Normal", "reason": "R".repeat(100_000), "message": "event $n"});
    let mut cases = vec![
        misbehave("loop", "PluginTimedOut", &["within 1s", "limits.deadline"]),
        misbehave("drip", "PluginTimedOut", &["within 1s", "limits.deadline"]),
        misbehave(
            "memory",
            "PluginOutOfMemory",
            &["the limit is 32 MiB", "limits.memory"],
        ),
        misbehave("recursion", "PluginTrapped", &["the plugin stopped"]),
        misbehave(
            "flood",
            "PluginAnswerTooLarge",
            &["more than 7 MiB", "limits.response"],
        ),
        misbehave(
            "many-values",
            "PluginAnswerTooLarge",
            &["JSON values", "limits.values"],
        ),
        misbehave("deep-json", "PluginAnswerInvalid", &["recursion limit"]),
        misbehave("not-utf8", "PluginAnswerInvalid", &["not UTF-8"]),
        many(
            "many-children",
            "children",
            &config_map("many-$n", "much"),
            2_000,
            End::Stalled(
                "PluginAnswerTooLarge",
                &["2000 children", "answer with 1000", "limits.children"],
            ),
        ),
        many(
            "other-kinds",
            "children",
            &child("Node", "other-$n"),
            900,
            End::Stalled(
                "ChildRefused",
                &[
                    "Node other-0: ",
                    "may not create objects of the kind v1/Node",
                    "and 890 more",
                ],
            ),
        ),
        many(
            "long-kinds",
            "children",
            &child(&format!("Gadget{long}"), "long-$n"),
            10,
            End::Stalled(
                "ChildRefused",
                &[
                    "may not create objects of the kind v1/Gadgetxxx",
                    "list it under its `children`",
                ],
            ),
        ),
        many(
            "long-names",
            "children",
            &child("ConfigMap", &format!("$n{long}")),
            10,
            End::Stalled(
                "ChildRefused",
                &["children[9]: \"9xxx", "cannot be its `metadata.name`"],
            ),
        ),
        // All existing objects, 32 times.
        many(
            "all-needs",
            "needs",
            &need,
            32,
            End::Stalled(
                "PluginRequestTooLarge",
                &[
                    "larger than 4 MiB",
                    "objects that it asked to read",
                    "limits.request",
                ],
            ),
        ),
        many(
            "many-needs",
            "needs",
            &need,
            900,
            End::Stalled("NeedRefused", &["900 needs", "the limit is 32"]),
        ),
        many("events", "events", &event, 30, End::Ready),
    ];
    for name in ["log-flood", "long-line"] {
        let spec = json!({"misbehave": name, "response": {}});
        let ends = End::Ready;
        cases.push(Case { name, spec, ends });
    }
    cases
}

/// A host with a malicious controller and another one.
struct Stage {
    scenario: Scenario,
    host: Host,
    /// Echo's latency without disturbance.
    quiet: Duration,
}

impl Stage {
    async fn new(name: &str, file: impl FnOnce(&Scenario) -> String) -> Self {
        let scenario = Scenario::new(name).await;
        let more = format!("{LIMITS}\nreads: [{{apiVersion: v1, kind: ConfigMap}}]");
        let controllers = controller(&file(&scenario), &more);
        let host = scenario.start(&format!("{controllers}{}", echo::CONTROLLER));
        scenario.apply(&echo::echo(1)).await;
        scenario.until("v1/Pod", "e-pod-0", "there", |_| true).await;
        let quiet = latency(&scenario, "quiet").await;
        Self {
            scenario,
            host,
            quiet,
        }
    }

    /// Gives all objects a harmful spec. `ends` waits for the result.
    async fn harm(&mut self, name: &str, spec: &Value, ends: impl AsyncFnOnce(&Scenario)) {
        let before = snapshot(&self.scenario).await;
        let rested = forget_peak(&self.host);
        let (log, begun) = (self.host.log().len(), Instant::now());
        join_all(objects().map(|object| {
            let mut spec = spec.clone();
            if spec["response"].get("children").is_none() {
                spec["response"]["children"] = json!([config_map(&object, "good")]);
            }
            let scenario = &self.scenario;
            async move { scenario.puppet(&object, spec).await }
        }))
        .await;
        ends(&self.scenario).await;
        let loud = latency(&self.scenario, name).await;
        let grown = memory(&self.host, "VmHWM:").saturating_sub(rested) >> 10;
        let log = self.host.log().split_off(log);
        let plugins = log.lines().filter(|line| line.contains("\"target\":\"plugin\""));
        let (lines, bytes) = plugins.fold((0, 0), |(lines, bytes), line| (lines + 1, bytes + line.len()));
        let own = (log.len() - bytes) >> 10;
        let nameless = log
            .lines()
            .find(|line| line.contains("\"target\":\"plugin\"") && !line.contains("\"parent\":"));
        assert_eq!(nameless, None, "{name}: which object is it about?");
        eprintln!(
            "{name:13} grew by {grown:4} MiB, Echo took {:5.1} ms, {lines:5} lines, {own:4} KiB of the host's",
            loud.as_secs_f64() * 1e3
        );
        assert!(self.host.is_alive(), "{}", self.scenario.log_tail());
        assert_eq!(snapshot(&self.scenario).await, before, "{name}");
        assert!(grown <= GROWTH, "{name}: it grew by {grown} MiB, over {GROWTH}");
        // Tolerant, for a busy machine. `make bench` measures the release program.
        let limit = (self.quiet * 4).max(Duration::from_secs(1));
        assert!(
            loud <= limit,
            "{name}: Echo took {loud:?}, and {:?} in peace",
            self.quiet
        );
        let seconds = usize::try_from(begun.elapsed().as_secs()).unwrap() + 1;
        let may = LINES_AT_ONCE + seconds * LINES_PER_SECOND;
        assert!(
            lines <= may,
            "{name}: {lines} lines of the plugin in {seconds} s, over {may}"
        );
        assert!(own <= OWN_WORDS, "{name}: {own} KiB of the host's own in the log");
    }

    async fn end(self) {
        assert!(
            !self.host.log().contains("internal error: "),
            "{}",
            self.scenario.log_tail()
        );
        assert_eq!(self.host.stop().await.code(), Some(0));
    }
}

fn objects() -> impl Iterator<Item = String> {
    (0..OBJECTS).map(|number| format!("p-{number}"))
}

/// Returns every object that a plugin might change, with its version.
async fn snapshot(scenario: &Scenario) -> BTreeMap<String, Option<String>> {
    let mut all = BTreeMap::new();
    for kind in [CONFIG_MAP, "v1/Secret", "v1/Pod"] {
        let list = scenario.api(kind).list_metadata(&ListParams::default()).await;
        for object in list.expect("a list") {
            // Echo's own pod changes during the measurement.
            if object.name_any() != "e-pod-0" {
                all.insert(format!("{kind} {}", object.name_any()), object.resource_version());
            }
        }
    }
    all
}

/// Returns a value in KiB from a process's status. Source: proc_pid_status(5).
fn memory(host: &Host, line: &str) -> usize {
    let status = std::fs::read_to_string(format!("/proc/{}/status", host.process().id())).unwrap();
    let rest = status.lines().find_map(|text| text.strip_prefix(line)).unwrap();
    rest.split_whitespace().next().unwrap().parse().unwrap()
}

/// Resets the peak `VmHWM` and returns the current resident memory. Source: proc_pid_clear_refs(5).
fn forget_peak(host: &Host) -> usize {
    std::fs::write(format!("/proc/{}/clear_refs", host.process().id()), "5").unwrap();
    memory(host, "VmRSS:")
}

/// Returns the median time from a change of an Echo to its pod.
async fn latency(scenario: &Scenario, mark: &str) -> Duration {
    let mut times = Vec::new();
    for number in 0..7 {
        let image = format!("echo:{mark}-{number}");
        let begun = Instant::now();
        scenario
            .patch(echo::ECHO, "e", json!({"spec": {"image": image}}))
            .await;
        scenario
            .until("v1/Pod", "e-pod-0", "with the new image", |pod| {
                pod.data["spec"]["containers"][0]["image"] == *image
            })
            .await;
        times.push(begun.elapsed());
    }
    times.sort();
    times[times.len() / 2]
}

async fn all_ready(scenario: &Scenario) {
    join_all(objects().map(|name| async move { scenario.until_ready(&name).await })).await;
}

/// Waits until the current generation of an object is stalled for one of these reasons, and returns the message.
async fn until_stalled(scenario: &Scenario, name: &str, reasons: &[&str]) -> String {
    let is = |puppet: &kube::core::DynamicObject| {
        condition(puppet, "Stalled").is_some_and(|stalled| {
            stalled["observedGeneration"].as_i64() == puppet.metadata.generation
                && reasons.iter().any(|reason| stalled["reason"] == *reason)
        })
    };
    let puppet = scenario
        .until(PUPPET, name, &format!("stalled for {reasons:?}"), is)
        .await;
    condition(&puppet, "Stalled").unwrap()["message"]
        .as_str()
        .unwrap()
        .to_owned()
}

async fn suite(name: &str, file: &str) {
    let mut stage = Stage::new(name, |_| file.to_owned()).await;
    // The objects to read: 6 MB.
    for number in 0..20 {
        let large = config_map(&format!("large-{number}"), &"b".repeat(300_000));
        stage.scenario.apply(&large.to_string()).await;
    }
    let good = |object: &str| json!({"response": {"children": [config_map(object, "good")], "status": {"note": "good"}}});
    for object in objects() {
        stage.scenario.puppet(&object, good(&object)).await;
    }
    all_ready(&stage.scenario).await;
    for case in cases() {
        stage
            .harm(case.name, &case.spec, async |scenario| match case.ends {
                End::Ready => all_ready(scenario).await,
                End::Stalled(reason, words) => {
                    for object in objects() {
                        let message = until_stalled(scenario, &object, &[reason]).await;
                        assert!(message.len() <= MESSAGE, "{} bytes: {message}", message.len());
                        assert_contains(&message, words);
                        let puppet = scenario.get(PUPPET, &object).await.unwrap();
                        assert_eq!(puppet.data["status"]["note"], "good", "{}", case.name);
                    }
                }
            })
            .await;
        // The resources recover from a bad spec.
        for object in objects() {
            stage.scenario.puppet(&object, good(&object)).await;
        }
        all_ready(&stage.scenario).await;
    }
    stage.end().await;
}

#[tokio::test]
async fn components_that_mean_harm_hurt_nobody() {
    suite("hostile-component", FORMS[0].1).await;
}

#[tokio::test]
async fn commands_that_mean_harm_hurt_nobody() {
    suite("hostile-command", FORMS[1].1).await;
}

/// Only possible in WebAssembly itself, so written in its text format.
const TABLES: &str = "
  (table $table 1 funcref)
  (func $case
    (loop $more
      (br_if $more (i32.ne (table.grow $table (ref.null func) (i32.const 10000)) (i32.const -1))))
    unreachable)";

/// One poll of 200,000 clocks, each of which would be an object in the host.
const CLOCKS: &str = "
  (func $case
    (drop (memory.grow (i32.const 200)))
    (call $poll)
    unreachable)
  (func $poll
    (drop (call $poll_oneoff (i32.const 65536) (i32.const 65536) (i32.const 200000) (i32.const 256))))";

#[tokio::test]
async fn tables_that_grow_and_waits_for_everything_hurt_nobody() {
    for (form, name) in BINARY_FORMS.into_iter().zip(["component", "command"]) {
        for (what, text) in [("tables", TABLES), ("clocks", CLOCKS)] {
            let plugin = Fixture::new(text)
                .parent("test.operator-host.dev/v1", "Puppet")
                .build(form);
            let mut stage = Stage::new(&format!("hostile-{what}-{name}"), |scenario| {
                scenario.file("hostile.wasm", plugin).display().to_string()
            })
            .await;
            stage
                .harm(what, &json!({}), async |scenario| {
                    for object in objects() {
                        let reasons = ["PluginTrapped", "PluginOutOfMemory", "PluginTimedOut"];
                        until_stalled(scenario, &object, &reasons).await;
                    }
                })
                .await;
            stage.end().await;
        }
    }
}
