//! Malicious plugins, in eight objects at once: the host's memory stays bounded, another controller's objects are
//! reconciled about as fast as before, nothing in the cluster changes, and the resource's status contains the
//! reason.
//!
//! `cases` lists what they do. Each object is valid first, becomes bad, and is corrected.

mod cases;

use crate::support::prelude::*;
use std::collections::BTreeMap;
use std::fmt::Write as _;

use futures::future::join_all;
use plugin_fixtures::{FORMS as BINARY_FORMS, Fixture};

use self::cases::{BRIEF, CLOCKS, End, TABLES, cases};
use crate::support::bystander::{Bystander, CONTROLLER, Comparison};
use crate::support::measure::{forget_peak, peak, percentile, report, resident};

/// The default number of concurrent reconciles.
const OBJECTS: usize = 8;
const LIMITS: &str = "limits: {deadline: 1s, memory: 32Mi, request: 4Mi, response: 7Mi}";
/// Allowed growth of the host in MiB: that many calls, each with its maximum.
const GROWTH: u64 = OBJECTS as u64 * (32 + 7);
/// Bytes of a condition's message after truncation, with room for the host's own text.
const MESSAGE: usize = 5_000;
/// Lines that a plugin may log at once, and per second: `host/runtime/src/log.rs`.
const LINES_AT_ONCE: usize = 2_000;
const LINES_PER_SECOND: usize = 500;
/// Allowed size of the host's own log lines about a case, in KiB: each failure once, and a line for each reconcile.
const OWN_WORDS: usize = 1_024;

/// Changes of the Echo before each case, and beside it.
const CHANGES: usize = 12;

/// A host with a malicious controller and another one.
struct Stage {
    name: String,
    scenario: Scenario,
    host: Host,
    echo: Bystander,
    measured: Measured,
}

/// What the cases of one test did to the host and the Echo.
#[derive(Default)]
struct Measured {
    /// The Echo's times in all cases.
    echo: Comparison,
    figures: String,
}

impl Measured {
    fn report(&self, test: &str) {
        let figures = format!("{}{test}, all: {}", self.figures, self.echo);
        report(test, &figures);
        assert!(self.echo.is_bearable(), "{figures}");
    }
}

impl Stage {
    /// Starts the host. `measured` is what earlier stages of the same test measured.
    async fn new(name: &str, file: impl FnOnce(&Scenario) -> String, measured: Measured) -> Self {
        let scenario = Scenario::new(name).await;
        let more = format!("{LIMITS}\nreads: [{{apiVersion: v1, kind: ConfigMap}}]");
        let controllers = controller(&file(&scenario), &more);
        let host = scenario.start(&format!("{controllers}{CONTROLLER}"));
        let echo = Bystander::new(&scenario).await;
        Self {
            name: name.to_owned(),
            scenario,
            host,
            echo,
            measured,
        }
    }

    /// Gives all objects a harmful spec. `ends` waits for the result.
    async fn harm(&mut self, name: &str, spec: &Value, ends: impl AsyncFnOnce(&Scenario)) {
        let before = snapshot(&self.scenario).await;
        let quiet = self.echo.changes(&self.scenario, CHANGES).await;
        forget_peak(&self.host);
        let rested = resident(&self.host);
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
        let loud = self.echo.changes(&self.scenario, CHANGES).await;
        let grown = peak(&self.host).saturating_sub(rested) >> 20;
        let log = self.host.log().split_off(log);
        let plugins = log.lines().filter(|line| line.contains("\"target\":\"plugin\""));
        let (lines, bytes) = plugins.fold((0, 0), |(lines, bytes), line| (lines + 1, bytes + line.len()));
        let own = (log.len() - bytes) >> 10;
        let nameless = log
            .lines()
            .find(|line| line.contains("\"target\":\"plugin\"") && !line.contains("\"parent\":"));
        assert_eq!(nameless, None, "{name}: which object is it about?");
        let [alone, beside] = [&quiet, &loud].map(|taken| percentile(taken, 0.5));
        let _ = writeln!(
            self.measured.figures,
            "{}, {name}: grew by {grown} MiB; an Echo took {alone:.1?}, beside it {beside:.1?}; {lines} lines, and {own} KiB \
             of the host's",
            self.name
        );
        assert!(self.host.is_alive(), "{}", self.scenario.log_tail());
        assert_eq!(snapshot(&self.scenario).await, before, "{name}");
        assert!(grown <= GROWTH, "{name}: it grew by {grown} MiB, over {GROWTH}");
        // So few samples say little on a busy machine; `Measured::report` is about all cases.
        let limit = (alone * 4).max(Duration::from_millis(500));
        assert!(
            beside <= limit,
            "{name}: Echo took {beside:?}, and {alone:?} in peace"
        );
        self.measured.echo.quiet.extend(quiet);
        self.measured.echo.loud.extend(loud);
        let seconds = usize::try_from(begun.elapsed().as_secs()).unwrap() + 1;
        let may = LINES_AT_ONCE + seconds * LINES_PER_SECOND;
        assert!(
            lines <= may,
            "{name}: {lines} lines of the plugin in {seconds} s, over {may}"
        );
        assert!(own <= OWN_WORDS, "{name}: {own} KiB of the host's own in the log");
    }

    async fn end(self) -> Measured {
        assert!(
            !self.host.log().contains("internal error: "),
            "{}",
            self.scenario.log_tail()
        );
        assert_eq!(self.host.stop().await.code(), Some(0));
        self.measured
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

async fn all_ready(scenario: &Scenario) {
    join_all(objects().map(|name| async move { scenario.until_ready(&name).await })).await;
}

/// Waits until the current generation of an object is stalled for one of these reasons, and returns the message.
async fn until_stalled(scenario: &Scenario, name: &str, reasons: &[&str]) -> String {
    let is = |puppet: &DynamicObject| {
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
    let mut stage = Stage::new(name, |_| file.to_owned(), Measured::default()).await;
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
                        assert_eq!(
                            condition(&puppet, "Ready").unwrap()["status"],
                            "False",
                            "{}",
                            case.name
                        );
                    }
                    if case.spec["misbehave"].is_string() {
                        let says = format!("Warning {reason}: {}", words.split(" … ").next().unwrap());
                        scenario.until_event("p-0", &says).await;
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
    stage.end().await.report(name);
}

#[tokio::test]
async fn components_that_mean_harm_hurt_nobody() {
    suite("hostile-component", FORMS[0].1).await;
}

#[tokio::test]
async fn commands_that_mean_harm_hurt_nobody() {
    suite("hostile-command", FORMS[1].1).await;
}

#[tokio::test]
async fn tables_that_grow_quick_failures_and_waits_for_everything_hurt_nobody() {
    let mut measured = Measured::default();
    for (form, name) in BINARY_FORMS.into_iter().zip(["component", "command"]) {
        for (what, text) in [("tables", TABLES), ("brief", BRIEF), ("clocks", CLOCKS)] {
            let plugin = Fixture::new(text)
                .parent("test.operator-host.dev/v1", "Puppet")
                .build(form);
            let file = |scenario: &Scenario| scenario.file("hostile.wasm", plugin).display().to_string();
            let mut stage = Stage::new(&format!("hostile-{what}-{name}"), file, measured).await;
            stage
                .harm(what, &json!({}), async |scenario| {
                    for object in objects() {
                        let reasons = ["PluginTrapped", "PluginOutOfMemory", "PluginTimedOut"];
                        until_stalled(scenario, &object, &reasons).await;
                    }
                })
                .await;
            measured = stage.end().await;
        }
    }
    measured.report("hostile-binaries");
}
