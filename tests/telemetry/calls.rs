//! Calls of a plugin for the API server: their spans, metrics and records.

use super::collector::{Collector, text};
use super::{get, value};
use crate::support::prelude::*;
use crate::webhook::callers::call_at;
use crate::webhook::certified;

/// The variant of the puppet that converts and sets defaults.
const CONVERTS: u8 = 9;

fn records(folder: &Path, export: &str) -> Vec<PathBuf> {
    let files = std::fs::read_dir(folder.join("puppet")).unwrap().flatten();
    let named = |file: &PathBuf| file.display().to_string().contains(&format!("-{export}-"));
    files.map(|file| file.path()).filter(named).collect()
}

fn replay(plugin: &Path, records: &[PathBuf]) -> Command {
    let mut command = program(&["replay", "--plugin"]);
    command.arg(plugin).args(records);
    command
}

#[tokio::test]
async fn conversions_and_defaults_are_traced_counted_and_recorded() {
    let scenario = Scenario::new("calls").await;
    let collector = Collector::http().await;
    let plugin = scenario.file("plugin.wasm", variant(CONVERTS));
    let top = "webhook: {address: '127.0.0.1:0', certificate: tls.crt, key: tls.key}";
    let config = scenario.config_with(top, &controller(&plugin.display().to_string(), ""));
    let authority = certified(&scenario);
    let folder = scenario.folder.path().join("records");
    let host = scenario.start_in(
        &config,
        &["--record", folder.to_str().unwrap()],
        &[
            ("OTEL_EXPORTER_OTLP_ENDPOINT", &collector.endpoint()),
            ("OTEL_BSP_SCHEDULE_DELAY", "100"),
        ],
    );
    host.until_log("the certificate is in use").await;
    let puppet = |name: &str, size: usize| {
        json!({
            "apiVersion": "test.operator-host.dev/v1", "kind": "Puppet", "spec": { "text": "x".repeat(size) },
            "metadata": { "name": name, "namespace": "n", "uid": "u" },
        })
    };
    let objects: Vec<_> = (0..100)
        .map(|index| puppet(&format!("p-{index}"), 1000))
        .collect();
    let review = json!({ "apiVersion": "apiextensions.k8s.io/v1", "kind": "ConversionReview", "request": {
        "uid": "1", "desiredAPIVersion": "test.operator-host.dev/v2", "objects": objects,
    } });
    let answer = call_at("/convert", &host, &authority, review.to_string().as_bytes())
        .await
        .unwrap();
    assert_contains(&answer.text, "\"Success\"");
    let review = json!({ "apiVersion": "admission.k8s.io/v1", "kind": "AdmissionReview", "request": {
        "uid": "1", "kind": { "group": "test.operator-host.dev", "version": "v1", "kind": "Puppet" }, "name": "p",
        "operation": "CREATE", "object": puppet("../p", 1),
    } });
    let answer = call_at("/default", &host, &authority, review.to_string().as_bytes())
        .await
        .unwrap();
    assert_contains(&answer.text, "\"patch\"");

    for (export, objects) in [("convert", "100"), ("default", "1")] {
        let span = collector
            .until_spans(export, |spans| {
                let exports =
                    |attributes: &_| text(attributes, "plugin.export").is_some_and(|it| it == export);
                spans.iter().find(|span| exports(&span.attributes)).cloned()
            })
            .await;
        let attribute = |key: &str| text(&span.attributes, key).unwrap_or_default();
        assert_eq!(span.name, "plugin");
        assert_eq!(attribute("plugin.objects"), objects);
        assert_eq!(attribute("plugin.name"), "puppet");
        assert_eq!(attribute("plugin.outcome"), "ok");
        assert_eq!(attribute("operator.controller"), "puppet");
    }
    let metrics = get(&host, "/metrics").await.1;
    for (export, count) in [("convert", 1.0), ("default", 2.0)] {
        let words = format!("operator_host_plugin_call_duration_seconds_count{{ … export=\"{export}\"");
        let line = metrics.lines().find(|line| contains(line, &words));
        let line = line.unwrap_or_else(|| panic!("{export} is not in {metrics}"));
        assert_eq!(value(line), count, "{line}");
    }
    // It writes the records that wait.
    assert_eq!(host.stop().await.code(), Some(0));
    let records_of_logs = collector.records();
    assert!(records_of_logs.is_empty(), "logs are exported on request only");
    let (conversions, defaults) = (records(&folder, "convert"), records(&folder, "default"));
    assert_eq!((conversions.len(), defaults.len()), (1, 2));
    let record = std::fs::read_to_string(&conversions[0]).unwrap();
    let recorded = record.matches("\"uid\"").count() / 2;
    assert!((10..100).contains(&recorded), "{recorded} objects are recorded");
    let all = [conversions, defaults].concat();
    let printed = replay(&plugin, &all).ends(0);
    assert_contains(&printed, "3 calls replayed: 3 the same");
    // A version without conversions is not asked.
    let other = scenario.file("other.wasm", variant(0));
    let printed = replay(&other, &all).ends(1);
    assert_contains(&printed, "converts nothing … sets no defaults … 3 different");
}
