//! Checks the dashboard and the alert rules against the metrics of a real host and a real Prometheus.

use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};
use std::process::Command;

use operator_host_core::metrics::definitions::{ALL, Instrument};
use serde_json::Value;

use crate::support::root;

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
    words
        .filter(|word| {
            ["operator_", "process_", "http_client_"]
                .iter()
                .any(|it| word.starts_with(it))
        })
        .map(str::to_owned)
        .collect()
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
    for (title, query) in &queries {
        let names = names(query);
        let unknown: Vec<_> = names.difference(&exported).collect();
        assert!(
            unknown.is_empty() && !names.is_empty(),
            "{title}: {query}: {unknown:?}"
        );
        shown.extend(names);
    }
    let rules: Value =
        serde_saphyr::from_str(&std::fs::read_to_string(monitoring().join("alerts.yaml")).unwrap()).unwrap();
    let runbooks = std::fs::read_to_string(root().join("host/docs/runbooks.md")).unwrap();
    let mut sections: BTreeMap<&str, &str> = runbooks
        .split("\n## ")
        .skip(1)
        .filter_map(|section| section.split_once('\n'))
        .collect();
    for rule in rules["groups"][0]["rules"].as_array().unwrap() {
        let section = sections.remove(rule["alert"].as_str().unwrap());
        let section = section.unwrap_or_else(|| panic!("{} has no runbook", rule["alert"]));
        for name in names(rule["expr"].as_str().unwrap()) {
            // The parts of a histogram have suffixes and units of their own.
            let named = names(section)
                .into_iter()
                .any(|shorter| name.starts_with(&shorter));
            assert!(named, "the runbook of {} does not name {name}", rule["alert"]);
        }
        let names = names(rule["expr"].as_str().unwrap());
        let unknown: Vec<_> = names.difference(&exported).collect();
        assert!(
            unknown.is_empty() && !names.is_empty(),
            "{}: {unknown:?}",
            rule["alert"]
        );
        assert!(
            rule["annotations"]["runbook"]
                .as_str()
                .is_some_and(|text| !text.is_empty()),
            "{rule}"
        );
        let anchor = rule["alert"].as_str().unwrap().to_lowercase();
        assert_eq!(rule["annotations"]["runbook_url"], format!("{RUNBOOKS}#{anchor}"));
    }
    assert!(
        sections.is_empty(),
        "no alerts for these runbooks: {:?}",
        sections.keys()
    );
    // Each metric is used.
    for metric in ALL {
        let name = metric.prometheus_name();
        assert!(
            shown.iter().any(|shown| shown.starts_with(&name)),
            "{name} is on no panel"
        );
    }
}

fn promtool(arguments: &[&str], input: Option<&Path>) {
    let mut command = Command::new("promtool");
    command.args(arguments).current_dir(monitoring());
    if let Some(input) = input {
        command.stdin(std::fs::File::open(input).unwrap());
    }
    let output = command
        .output()
        .expect("promtool, of Debian's package prometheus: run tests/prerequisites.sh");
    let printed = format!(
        "{}{}",
        String::from_utf8_lossy(&output.stdout),
        String::from_utf8_lossy(&output.stderr)
    );
    assert!(output.status.success(), "promtool {arguments:?}:\n{printed}");
}

#[test]
fn the_alert_rules_are_valid_and_pass_their_tests() {
    promtool(&["check", "rules", "alerts.yaml"], None);
    promtool(&["test", "rules", "alerts_test.yaml"], None);
}
