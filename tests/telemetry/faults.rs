//! What the host exports about failures, and that only the right collector receives it.

use crate::support::prelude::*;
use opentelemetry_proto::tonic::trace::v1::Span;
use opentelemetry_proto::tonic::trace::v1::status::StatusCode;
use plugin_fixtures::{Fixture, Form, cases};

use super::collector::{Certificates, Collector, sum, text};
use super::{attribute, children, echo, exporting};
use crate::samples::echo::CONTROLLER;

/// Returns a plugin for Echo that does this.
pub fn build(case: &'static str) -> Vec<u8> {
    let fixture = Fixture::new(case).parent("my-operator.dev/v1", "Echo");
    fixture.build(Form::Component)
}

#[tokio::test]
async fn a_plugin_that_traps_leaves_its_backtrace_in_a_log_record_of_its_span() {
    let scenario = Scenario::new("trace-trap").await;
    let collector = Collector::http().await;
    let plugin = scenario.file("trap.wasm", build(cases::TRAP));
    let controller = CONTROLLER.replace("echo.wasm", plugin.to_str().unwrap());
    let environment = [
        ("OTEL_EXPORTER_OTLP_ENDPOINT", &*collector.endpoint()),
        ("OTEL_BSP_SCHEDULE_DELAY", "100"),
        ("OTEL_METRIC_EXPORT_INTERVAL", "200"),
        ("OTEL_LOGS_EXPORTER", "otlp"),
        ("OTEL_BLRP_SCHEDULE_DELAY", "100"),
        ("OPERATOR_HOST_LOG", "off"),
    ];
    let _host = scenario.start_in(&scenario.config(&controller), &[], &environment);
    scenario.apply(&echo(1)).await;

    let (root, call) = collector
        .until_spans("a failed call", |spans| {
            let call = spans.iter().find(|span| span.name == "plugin")?;
            let root = spans.iter().find(|span| span.span_id == call.parent_span_id)?;
            assert_eq!(children(spans, root, "plugin").len(), 1);
            Some((root.clone(), call.clone()))
        })
        .await;
    assert_eq!(attribute(&call, "plugin.outcome"), "trap");
    assert_eq!(attribute(&call, "error.type"), "trap");
    assert_eq!(call.status.as_ref().unwrap().code(), StatusCode::Error);
    assert!(call.events.is_empty() && root.events.is_empty());
    let exception = collector
        .until_record(&call, |record| record.event_name == "exception")
        .await;
    let says = |key: &str| text(&exception.attributes, key).unwrap_or_default();
    assert_eq!(says("exception.type"), "trap");
    assert!(!says("exception.message").is_empty());
    let backtrace = says("exception.stacktrace");
    assert!(backtrace.lines().count() >= 2, "{backtrace:?}");
    assert_eq!(root.status.as_ref().unwrap().code(), StatusCode::Error);
    assert_eq!(attribute(&root, "error.type"), "trap");

    let labels = [("controller", "echo"), ("kind", "Echo"), ("class", "trap")];
    let errors = "operator_host.reconcile.errors";
    collector.until_counted(errors, &labels, 1.0).await;
    assert_eq!(sum(&collector.metrics(), errors, &[("class", "api")]), 0.0);
}

async fn over_tls(name: &str, collector: impl AsyncFnOnce(&Certificates) -> Collector, protocol: &str) {
    let scenario = Scenario::new(name).await;
    let certificates = Certificates::make(scenario.folder.path());
    let collector = collector(&certificates).await;
    let endpoint = collector.endpoint().replace("http:", "https:");
    let files = [&certificates.authority, &certificates.leaf, &certificates.key];
    let [authority, leaf, key] = files.map(|file| file.to_str().unwrap());
    let trusted = [
        ("OTEL_EXPORTER_OTLP_PROTOCOL", protocol),
        ("OTEL_EXPORTER_OTLP_CERTIFICATE", authority),
        ("OTEL_EXPORTER_OTLP_CLIENT_CERTIFICATE", leaf),
        ("OTEL_EXPORTER_OTLP_CLIENT_KEY", key),
    ];

    // Without the CA the collector cannot be verified.
    let host = exporting(&scenario, &endpoint, &trusted[..1]);
    scenario.apply(&echo(1)).await;
    scenario.until_echo("e").await;
    host.until_log("the collector does not accept telemetry … traces")
        .await;
    host.stop().await;
    assert!(collector.spans().is_empty());

    let host = exporting(&scenario, &endpoint, &trusted);
    collector
        .until_spans("any span", |spans| spans.first().cloned())
        .await;
    assert_eq!(host.stop().await.code(), Some(0));

    // Files that are renewed while the host runs are read again.
    let seen = collector.spans().len();
    let right = files.map(|file| (file, std::fs::read(file).unwrap()));
    Certificates::make(scenario.folder.path());
    // With a log of its own.
    let again = scenario.beside(&scenario.namespace);
    let host = exporting(&again, &endpoint, &trusted);
    host.until_log("the collector does not accept telemetry … traces")
        .await;
    for (file, content) in right {
        std::fs::write(file, content).unwrap();
    }
    host.until_log("the collector accepts telemetry again … metrics")
        .await;
    scenario.apply(&echo(2)).await;
    collector
        .until_spans("spans of this host", |spans| (spans.len() > seen).then_some(()))
        .await;
}

#[tokio::test]
async fn traces_go_over_tls_with_a_client_certificate_over_grpc() {
    let collector = async |it: &Certificates| Collector::grpc_with(Some(it)).await;
    over_tls("trace-tls-grpc", collector, "grpc").await;
}

#[tokio::test]
async fn traces_go_over_tls_with_a_client_certificate_over_http() {
    let collector = async |it: &Certificates| Collector::http_with(Some(it)).await;
    over_tls("trace-tls-http", collector, "http/protobuf").await;
}

#[tokio::test]
async fn a_certificate_that_is_not_there_is_named_at_the_start() {
    let scenario = Scenario::new("trace-no-certificate").await;
    let missing = ("OTEL_EXPORTER_OTLP_CERTIFICATE", "/nowhere/ca.crt");
    let host = exporting(&scenario, "https://127.0.0.1:1", &[missing]);
    host.until_log("/nowhere/ca.crt").await;
    assert_eq!(host.ended().await.code(), Some(2));
}

#[tokio::test]
async fn a_reconcile_after_a_reload_links_to_it() {
    let scenario = Scenario::new("trace-reload").await;
    let collector = Collector::http().await;
    let plugin = scenario.file("plugin.wasm", build(cases::ANSWER));
    let controller = CONTROLLER
        .replace("echo.wasm", plugin.to_str().unwrap())
        .replace("Pod", "ConfigMap");
    let environment = [
        ("OTEL_EXPORTER_OTLP_ENDPOINT", &*collector.endpoint()),
        ("OTEL_BSP_SCHEDULE_DELAY", "100"),
    ];
    let _host = scenario.start_in(&scenario.config(&controller), &[], &environment);
    scenario.apply(&echo(1)).await;
    scenario.until_there("v1/ConfigMap", "answer").await;

    scenario.file("plugin.wasm", build(cases::LOG_FLOOD));
    let digest = collector
        .until_spans("a reconcile that links to the second reload", |spans| {
            let reload = spans.iter().filter(|span| span.name == "reload").nth(1)?;
            let linked = |span: &&Span| span.links.iter().any(|link| link.span_id == reload.span_id);
            let reconcile = spans.iter().find(linked)?;
            assert_eq!(attribute(reconcile, "operator.trigger"), "reload");
            assert_eq!(attribute(reload, "operator.controller"), "echo");
            let calls = children(spans, reconcile, "plugin");
            let digest = attribute(reload, "plugin.digest");
            assert_eq!(attribute(calls.first()?, "plugin.digest"), digest);
            Some(digest)
        })
        .await;
    assert!(digest.starts_with("sha256:"));

    scenario.file("plugin.wasm", "this is no plugin");
    collector
        .until_spans("a refused reload", |spans| {
            let error = |span: &Span| text(&span.attributes, "error.type");
            let mut reloads = spans.iter().filter(|span| span.name == "reload");
            let error = reloads.find_map(error)?;
            assert_eq!(error, "refused");
            Some(())
        })
        .await;
}
