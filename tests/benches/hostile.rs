//! Measures hostile plugins: the memory that they make the host take, and how soon a pod of another controller follows
//! its Echo meanwhile.
//!
//! A plugin misbehaves in 20 objects all the time, or not at all while they are paused. The two states alternate, so
//! that the machine's fluctuations affect both alike.

#[path = "../plugins/hostile/cases.rs"]
mod cases;

use std::time::Duration;

use control_plane::{ControlPlane, Options};
use futures::future::join_all;
use operator_host_core::object::PAUSED_ANNOTATION;
use plugin_fixtures::{Fixture, Form};
use serde_json::{Value, json};

use super::rows::{By, CALLS_MB, HOST_MEMORY, HOSTILE, HOSTILE_HEADER, Hostile};
use super::support::bystander::{Bystander, CONTROLLER, Comparison};
use super::support::measure::{MB, forget_peak, peak, percentile, resident};
use super::support::puppet::{FORMS, PUPPET, config_map, controller, is_true};
use super::support::{Host, Scenario, own_cluster};
use super::table::{Figure, Spread, Table, machine, millis};

const OBJECTS: usize = 20;
const ROUNDS: usize = 5;
/// Changes of the Echo in one state of one round.
const CHANGES: usize = 48;

/// The objects that the plugin reads: 6 MB.
const READ: usize = 20;

/// Failures are retried at once, and what the host does not retry is due again with the resync.
const LIMITS: &str = "\
backoff: {initial: 1ms, max: 1ms}
limits: {deadline: 1s}
reads: [{apiVersion: v1, kind: ConfigMap}]
resync: 1s
";

/// How long the host may take to return freed memory: it looks every half second whether its work has ended.
const REST: Duration = Duration::from_secs(2);

struct Measured {
    echo: Comparison,
    before: u64,
    peak: u64,
    after: u64,
}

impl Measured {
    fn added(&self) -> f64 {
        (self.peak - self.before) as f64 / MB
    }

    fn row(&self, what: &str) -> String {
        let mb = |bytes: u64| Figure::number(bytes as f64 / MB, 1);
        let peak = self.marked_peak();
        let both = |samples: &[Duration]| {
            let [median, high] = [0.5, 0.95].map(|share| millis(percentile(samples, share)));
            format!("{median:.1}; {high:.1}")
        };
        let [median, high] = [(0.5, 2.0), (0.95, 3.0)]
            .map(|(share, most)| Figure::number(self.echo.ratio(share), 2).marked(Some(most)));
        format!(
            "| {what} | {} | {peak} | {} | {} | {} | {median}; {high} |\n",
            mb(self.before).marked(None),
            mb(self.after).marked(None),
            both(&self.echo.quiet),
            both(&self.echo.loud),
        )
    }

    fn marked_peak(&self) -> String {
        let most = self.before as f64 / MB + CALLS_MB;
        Figure::number(self.peak as f64 / MB, 1).marked(Some(most))
    }
}

/// Measures the cases with these names, or all. Returns the table about hostile plugins.
pub async fn run(table: &mut Table, names: &[&str]) -> String {
    eprintln!("hostile plugins");
    let cluster = own_cluster(Options::bare()).await;
    let mut measured: Vec<Option<Measured>> = HOSTILE.iter().map(|_| None).collect();
    let is_wanted = |row: &Hostile| names.is_empty() || names.contains(&row.case);
    for by in [By::Component, By::Command] {
        let mut stage: Option<Stage> = None;
        for (row, measured) in HOSTILE.iter().zip(&mut measured) {
            if row.by != by || !is_wanted(row) {
                continue;
            }
            if stage.is_none() {
                let file = FORMS[usize::from(by == By::Command)].1;
                let name = file.trim_end_matches(".wasm");
                stage = Some(Stage::new(&cluster, name, |_| file.to_owned()).await);
            }
            let stage = stage.as_mut().expect("it was started");
            *measured = Some(stage.measure(row, &spec(row.case)).await);
        }
        if let Some(stage) = stage {
            assert!(stage.host.stop().await.success());
        }
    }
    for (row, measured) in HOSTILE.iter().zip(&mut measured) {
        let text = match row.case {
            "tables" => cases::TABLES,
            "brief" => cases::BRIEF,
            "clocks" => cases::CLOCKS,
            _ => continue,
        };
        if !is_wanted(row) {
            continue;
        }
        let plugin = Fixture::new(text)
            .parent("test.operator-host.dev/v1", "Puppet")
            .build(Form::Component);
        let file = |scenario: &Scenario| scenario.file("hostile.wasm", plugin).display().to_string();
        let mut stage = Stage::new(&cluster, row.case, file).await;
        *measured = Some(stage.measure(row, &json!({})).await);
        assert!(stage.host.stop().await.success());
    }
    cluster.shutdown().await;
    let all = HOSTILE
        .iter()
        .zip(measured)
        .filter_map(|(row, measured)| Some((row, measured?)));
    let all: Vec<(&Hostile, Measured)> = all.collect();
    if names.is_empty() {
        fill(table, &all);
    }
    let rows: String = all.iter().map(|(row, measured)| measured.row(row.what)).collect();
    format!("{}\n\n{HOSTILE_HEADER}\n{rows}", machine())
}

/// Fills the rows of README's table.
fn fill(table: &mut Table, all: &[(&Hostile, Measured)]) {
    let quiet = all.iter().flat_map(|(_, measured)| measured.echo.quiet.clone());
    let quiet = Spread::of(quiet.collect(), millis);
    table.fill("from a change of an Echo to its pod, no other work", quiet);
    let ratios = |case: &str| {
        let (_, of) = all.iter().find(|(row, _)| row.case == case).expect("the case");
        [0.5, 0.95].map(|share| Figure::number(of.echo.ratio(share), 2))
    };
    let largest =
        |of: &dyn Fn(&Measured) -> f64| all.iter().map(|(_, measured)| of(measured)).fold(0.0, f64::max);
    let [median, high] = ratios("loop");
    table.fill("ratio beside a plugin that spins in 20 objects, medians", median);
    table.fill("the same, 95th percentiles", high);
    let [median, high] = ratios("large-text");
    table.fill(
        "ratio beside a plugin that answers 8 MiB in 20 objects, medians",
        median,
    );
    table.fill("the same answers, 95th percentiles", high);
    for (what, share) in [
        ("largest ratio beside any hostile plugin, medians", 0.5),
        ("the largest, 95th percentiles", 0.95),
    ] {
        let ratio = largest(&|measured| measured.echo.ratio(share));
        table.fill(what, Figure::number(ratio, 2));
    }
    let added = largest(&Measured::added);
    table.fill(
        "most resident memory that a hostile plugin adds",
        Figure::number(added, 1),
    );
}

/// Returns the spec with which the puppet misbehaves.
fn spec(case: &str) -> Value {
    let listed = cases::cases().into_iter().find(|it| it.name == case);
    // Only here, with the default `limits.response`, can an answer be as large.
    listed.map_or_else(|| json!({ "misbehave": case, "response": {} }), |case| case.spec)
}

/// A host with a hostile controller and another one.
struct Stage {
    scenario: Scenario,
    host: Host,
    echo: Bystander,
}

impl Stage {
    async fn new(cluster: &ControlPlane, name: &str, file: impl FnOnce(&Scenario) -> String) -> Self {
        let scenario = Scenario::within(cluster, &format!("bench-{name}")).await;
        for number in 0..READ {
            let large = config_map(&format!("large-{number}"), &"b".repeat(300_000));
            scenario.apply(&large.to_string()).await;
        }
        let controllers = format!("{}{CONTROLLER}", controller(&file(&scenario), LIMITS));
        let config = scenario.config(&controllers);
        let host = scenario.start_with(&config, &["--log", "info", "--memory", HOST_MEMORY]);
        let echo = Bystander::new(&scenario).await;
        Self { scenario, host, echo }
    }

    async fn measure(&mut self, row: &Hostile, spec: &Value) -> Measured {
        eprintln!("  {}", row.what);
        let scenario = &self.scenario;
        join_all(objects().map(|name| paused(scenario, name, spec))).await;
        self.pause(Some("true")).await;
        tokio::time::sleep(REST).await;
        forget_peak(&self.host);
        let before = resident(&self.host);
        let mut echo = Comparison::default();
        for _ in 0..ROUNDS {
            echo.quiet
                .extend(self.echo.changes(&self.scenario, CHANGES).await);
            self.pause(None).await;
            echo.loud.extend(self.echo.changes(&self.scenario, CHANGES).await);
            self.pause(Some("true")).await;
        }
        let peak = peak(&self.host);
        tokio::time::sleep(REST).await;
        let after = resident(&self.host);
        let measured = Measured {
            echo,
            before,
            peak,
            after,
        };
        eprint!("  {}", measured.row(row.what));
        measured
    }

    /// Pauses all objects until the host says so of each, or lets them continue until it no longer says so of the
    /// first.
    async fn pause(&self, value: Option<&str>) {
        let patch = json!({ "metadata": { "annotations": { PAUSED_ANNOTATION: value } } });
        let scenario = &self.scenario;
        join_all(objects().map(|name| {
            let patch = patch.clone();
            async move { scenario.patch(PUPPET, &name, patch).await }
        }))
        .await;
        let wait = async |name: String| {
            let what = format!("paused: {value:?}");
            let is_so = |puppet: &_| is_true(puppet, "Paused") == value.is_some();
            scenario.until(PUPPET, &name, &what, is_so).await;
        };
        let names = objects().take(if value.is_some() { OBJECTS } else { 1 });
        join_all(names.map(wait)).await;
    }
}

fn objects() -> impl Iterator<Item = String> {
    (0..OBJECTS).map(|number| format!("p-{number}"))
}

/// Creates an object, or replaces its spec. It is paused before and afterwards.
async fn paused(scenario: &Scenario, name: String, spec: &Value) {
    let puppet = json!({
        "apiVersion": "test.operator-host.dev/v1", "kind": "Puppet",
        "metadata": { "name": name, "annotations": { PAUSED_ANNOTATION: "true" } }, "spec": spec,
    });
    scenario.apply(&puppet.to_string()).await;
}
