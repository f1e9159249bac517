//! Checks the dashboard and the alert rules against the metrics of a real host and a real Prometheus.

use crate::support::prelude::*;
use std::collections::{BTreeMap, BTreeSet};

use control_plane::{
    Component, Output,
    ports::{self, Port},
};
use operator_host_telemetry::metrics::definitions::{ALL, Instrument};
use tokio::net::TcpStream;

use super::{ECHO, echo, get, get_from, port};
use crate::samples::echo::CONTROLLER;

fn monitoring() -> PathBuf {
    root().join("manifests/monitoring")
}

fn dashboard() -> Value {
    serde_json::from_slice(&std::fs::read(monitoring().join("dashboard.json")).unwrap()).unwrap()
}

/// The page in `host/docs`, as `make docs` places it in the site.
const RUNBOOKS: &str = "https://operator-host.dev/host/docs/runbooks.html";

/// Returns every query of the dashboard, with the title of its panel.
fn queries() -> Vec<(String, String)> {
    let dashboard = dashboard();
    let panels = dashboard["panels"].as_array().unwrap().iter();
    let targets = panels.flat_map(|panel| {
        let title = panel["title"].as_str().unwrap().to_owned();
        let targets = panel["targets"].as_array().into_iter().flatten();
        targets.map(move |target| (title.clone(), target["expr"].as_str().unwrap().to_owned()))
    });
    targets.collect()
}

/// Returns the names of metrics in a text.
fn names(text: &str) -> BTreeSet<String> {
    let words = text.split(|c: char| !c.is_ascii_alphanumeric() && c != '_');
    let is_name = |word: &&str| {
        let mut prefixes = ["operator_", "process_", "http_client_"].iter();
        prefixes.any(|it| word.starts_with(it))
    };
    words.filter(is_name).map(str::to_owned).collect()
}

#[test]
fn the_dashboard_and_the_rules_name_only_metrics_that_exist() {
    let mut exported = BTreeSet::new();
    for metric in ALL {
        let name = metric.prometheus_name();
        if metric.instrument == Instrument::Histogram {
            exported.extend(["bucket", "sum", "count"].map(|part| format!("{name}_{part}")));
        } else {
            exported.insert(name);
        }
    }
    let queries = queries();
    assert!(queries.len() > 20);
    let mut shown = BTreeSet::new();
    let known = |title: &str, query: &str| {
        let names = names(query);
        let unknown: Vec<_> = names.difference(&exported).collect();
        assert!(
            unknown.is_empty() && !names.is_empty(),
            "{title}: {query}: {unknown:?}"
        );
        names
    };
    for (title, query) in &queries {
        shown.extend(known(title, query));
    }
    let rules = std::fs::read_to_string(monitoring().join("alerts.yaml")).unwrap();
    let rules: Value = serde_saphyr::from_str(&rules).unwrap();
    let runbooks = std::fs::read_to_string(root().join("host/docs/runbooks.md")).unwrap();
    let sections = runbooks.split("\n## ").skip(1);
    let mut sections: BTreeMap<_, _> = sections.filter_map(|section| section.split_once('\n')).collect();
    for rule in rules["groups"][0]["rules"].as_array().unwrap() {
        let alert = rule["alert"].as_str().unwrap();
        let section = sections.remove(alert);
        let section = section.unwrap_or_else(|| panic!("{alert} has no runbook"));
        for name in known(alert, rule["expr"].as_str().unwrap()) {
            // The parts of a histogram have suffixes and units of their own.
            let mut shorter = names(section).into_iter();
            let named = shorter.any(|shorter| name.starts_with(&shorter));
            assert!(named, "the runbook of {alert} does not name {name}");
        }
        let runbook = rule["annotations"]["runbook"].as_str();
        assert!(runbook.is_some_and(|text| !text.is_empty()), "{rule}");
        let anchor = alert.to_lowercase();
        assert_eq!(rule["annotations"]["runbook_url"], format!("{RUNBOOKS}#{anchor}"));
    }
    assert!(sections.is_empty(), "no alerts for these runbooks: {sections:?}");
    // Each metric is used.
    for metric in ALL {
        let name = metric.prometheus_name();
        let is_shown = shown.iter().any(|shown| shown.starts_with(&name));
        assert!(is_shown, "{name} is on no panel");
    }
}

fn promtool(arguments: &[&str], input: Option<&Path>) {
    let mut command = Command::new("promtool");
    command.args(arguments).current_dir(monitoring());
    if let Some(input) = input {
        command.stdin(std::fs::File::open(input).unwrap());
    }
    command.ends(0);
}

#[test]
fn the_alert_rules_are_valid_and_pass_their_tests() {
    promtool(&["check", "rules", "alerts.yaml"], None);
    promtool(&["test", "rules", "alerts_test.yaml"], None);
}

/// Starts a Prometheus that scrapes one host, and returns its port.
fn prometheus(folder: &Path, target: u16) -> (Component, Port) {
    let port = ports::reserve().unwrap();
    let config = json!({
        "global": { "scrape_interval": "250ms", "scrape_timeout": "250ms", "evaluation_interval": "1s" },
        "rule_files": [monitoring().join("alerts.yaml")],
        "scrape_configs": [{
            "job_name": "operator-host",
            "static_configs": [{ "targets": [format!("127.0.0.1:{target}")] }],
        }],
    });
    let file = folder.join("prometheus.json");
    std::fs::write(&file, config.to_string()).unwrap();
    let arguments = [
        format!("--config.file={}", file.display()),
        format!("--storage.tsdb.path={}", folder.join("prometheus").display()),
        format!("--web.listen-address=127.0.0.1:{}", port.number),
    ];
    let output = Output::File(folder.join("prometheus.log"));
    let process = Component::spawn("prometheus", Path::new("prometheus"), &arguments, &[], output);
    let process = process.expect("Prometheus, of Debian's package of that name");
    (process, port)
}

async fn query(port: u16, query: &str) -> Value {
    let encoded: String = query.bytes().map(|byte| format!("%{byte:02x}")).collect();
    let (_, body) = get_from(port, &format!("/api/v1/query?query={encoded}")).await;
    serde_json::from_str(&body).unwrap_or_else(|error| panic!("{query}: {error}: {body}"))
}

/// Whether an Echo is ready with so many pods.
fn has(replicas: u64) -> impl Fn(&DynamicObject) -> bool {
    move |echo: &DynamicObject| {
        let status = &echo.data["status"];
        status["isReady"] == true && status["currentReplicas"] == replicas
    }
}

#[tokio::test]
async fn a_real_prometheus_answers_every_query_of_the_dashboard() {
    let scenario = Scenario::new("prometheus").await;
    let host = scenario.start(CONTROLLER);
    scenario.apply(&echo(2)).await;
    scenario.until_echo("e").await;
    let (status, metrics) = get(&host, "/metrics").await;
    assert_eq!(status, 200);
    let file = scenario.file("metrics.txt", &metrics);
    promtool(&["check", "metrics"], Some(&file));

    let (_prometheus, reserved) = prometheus(scenario.folder.path(), port(&host).await);
    let port = reserved.number;
    let scraped = "count_over_time(operator_host_leader[1m]) > 4";
    until_true("Prometheus scrapes the host", async || {
        is_ready_to_answer(port).await && query(port, scraped).await["data"]["result"] != json!([])
    })
    .await;
    // Create, change and delete objects while it scrapes.
    scenario.patch(ECHO, "e", json!({"spec": {"replicas": 3}})).await;
    scenario.until(ECHO, "e", "three", has(3)).await;
    scenario.patch(ECHO, "e", json!({"spec": {"replicas": 1}})).await;
    scenario.until(ECHO, "e", "one", has(1)).await;
    tokio::time::sleep(Duration::from_secs(1)).await;

    let (_, metrics) = get(&host, "/metrics").await;
    for (title, text) in queries() {
        let text = text
            .replace("$controller", ".*")
            .replace("$__rate_interval", "1m");
        let answer = query(port, &text).await;
        assert_eq!(answer["status"], "success", "{title}: {text}: {answer}");
        // Metrics of events that did not occur in this host have no series, such as failures and broken watches.
        let is_exported = |name: &String| metrics.contains(&format!("\n{name}"));
        let exported = names(&text).iter().all(is_exported);
        let failures = text.contains("code!~") || text.contains("class!=");
        if exported && !failures {
            assert_ne!(answer["data"]["result"], json!([]), "{title}: {text} is empty");
        }
    }
    // One Echo, which was not Ready at first.
    for (text, value) in [
        ("sum(operator_host_children_created_total)", "3"),
        (r#"operator_host_parents{condition="Ready",status="True"}"#, "1"),
        (r#"operator_host_parents{condition="Ready",status="False"}"#, "0"),
        ("operator_host_parents_unready_age_seconds", "0"),
    ] {
        let answer = query(port, text).await;
        assert_eq!(answer["data"]["result"][0]["value"][1], value, "{text}: {answer}");
    }
    let firing = query(port, "ALERTS").await;
    assert_eq!(firing["data"]["result"], json!([]));
    let (_, rules) = get_from(port, "/api/v1/rules").await;
    let rules: Value = serde_json::from_str(&rules).unwrap();
    for rule in rules["data"]["groups"][0]["rules"].as_array().unwrap() {
        assert_eq!(rule["health"], "ok", "{rule}");
    }
}

async fn is_ready_to_answer(port: u16) -> bool {
    // It listens before it answers.
    TcpStream::connect(("127.0.0.1", port)).await.is_ok() && get_from(port, "/-/ready").await.0 == 200
}
