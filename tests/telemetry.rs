//! What the host exports to a collector, and what its health port returns.

mod calls;
pub mod collector;
mod faults;
mod logs;
mod prometheus;
mod secrets;

use crate::support::prelude::*;
use opentelemetry_proto::tonic::logs::v1::LogRecord;
use opentelemetry_proto::tonic::trace::v1::Span;
use opentelemetry_proto::tonic::trace::v1::span::SpanKind;
use opentelemetry_proto::tonic::trace::v1::status::StatusCode;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;
use tokio::time::timeout;

use self::collector::{Collector, hex, samples, shown, sum, text};
use crate::samples::echo::{CONTROLLER, ECHO, echo};
use crate::support::measure::anonymous;

/// What is said about telemetry.
const PAGE: &str = include_str!("../host/docs/telemetry.md");

/// Starts a host that exports to `endpoint` at short intervals.
fn exporting(scenario: &Scenario, endpoint: &str, more: &[(&str, &str)]) -> Host {
    exporting_with(scenario, &scenario.config(CONTROLLER), endpoint, more)
}

/// Starts such a host with a configuration file.
fn exporting_with(scenario: &Scenario, config: &Path, endpoint: &str, more: &[(&str, &str)]) -> Host {
    let mut environment = vec![
        ("OTEL_EXPORTER_OTLP_ENDPOINT", endpoint),
        ("OTEL_BSP_SCHEDULE_DELAY", "100"),
        ("OTEL_BLRP_SCHEDULE_DELAY", "100"),
        ("OTEL_METRIC_EXPORT_INTERVAL", "200"),
        ("OPERATOR_HOST_LOG_FORMAT", "json"),
    ];
    environment.extend_from_slice(more);
    scenario.start_in(config, &[], &environment)
}

/// Returns the health port of the host that was started last.
pub async fn port(host: &Host) -> u16 {
    host.until_port("serving health and metrics").await
}

/// Sends a GET to the host's health port, and returns the status code and the body.
pub async fn get(host: &Host, path: &str) -> (u16, String) {
    get_from(port(host).await, path).await
}

/// Waits until `/readyz?verbose` no longer contains these words.
pub async fn until_ready_is_without(host: &Host, words: &str) {
    eventually(&format!("/readyz without {words:?}"), async || {
        let (_, body) = get(host, "/readyz?verbose").await;
        (!body.contains(words)).then_some(()).ok_or(body)
    })
    .await;
}

/// Waits until `/readyz?verbose` says this, and returns its status and text.
pub async fn until_ready_says(host: &Host, words: &str) -> (u16, String) {
    eventually(&format!("/readyz with {words:?}"), async || {
        let (status, body) = get(host, "/readyz?verbose").await;
        match contains(&body, words) {
            true => Ok((status, body)),
            false => Err(body),
        }
    })
    .await
}

/// Sends a GET to a port of this machine.
async fn get_from(port: u16, path: &str) -> (u16, String) {
    let (status, _, body) = send(port, path, "host: localhost").await;
    (status, body)
}

/// Sends a GET with these header lines, and returns the status code, the head and the body.
pub async fn send(port: u16, path: &str, headers: &str) -> (u16, String, String) {
    let mut stream = TcpStream::connect(("127.0.0.1", port)).await.unwrap();
    // HTTP/1.0, so that the body is not chunked and ends with the connection.
    let request = format!("GET {path} HTTP/1.0\r\n{headers}\r\n\r\n");
    stream.write_all(request.as_bytes()).await.unwrap();
    let mut answer = String::new();
    stream.read_to_string(&mut answer).await.unwrap();
    let (head, body) = answer.split_once("\r\n\r\n").unwrap();
    let status = head.split(' ').nth(1).unwrap().parse().unwrap();
    (status, head.to_owned(), body.to_owned())
}

/// Returns the value of a line in the metrics.
fn value(line: &str) -> f64 {
    line.rsplit_once(' ').unwrap().1.parse().unwrap()
}

fn attribute(span: &Span, key: &str) -> String {
    text(&span.attributes, key).unwrap_or_else(|| panic!("{} has no {key}: {:?}", span.name, span.attributes))
}

fn children<'a>(spans: &'a [Span], parent: &Span, name: &str) -> Vec<&'a Span> {
    let below = |span: &&Span| span.parent_span_id == parent.span_id && span.trace_id == parent.trace_id;
    let below = spans.iter().filter(below);
    below.filter(|span| span.name == name).collect()
}

async fn one_reconcile_is_one_trace(name: &str, collector: Collector, more: &[(&str, &str)]) {
    let scenario = Scenario::new(name).await;
    let host = exporting(&scenario, &collector.endpoint(), more);
    // Objects that exist when a controller starts are reconciled as in a resync.
    host.until_log("controller started").await;
    let created = scenario.apply(&echo(2)).await;
    scenario.until_echo("e").await;

    // The reconcile that created the pods.
    let (root, spans) = collector
        .until_spans("a reconcile with two applies and a status", |spans| {
            let root = spans.iter().find(|span| {
                span.name == "reconcile"
                    && children(spans, span, "apply").len() == 2
                    && !children(spans, span, "status").is_empty()
            })?;
            Some((root.clone(), spans.to_vec()))
        })
        .await;
    assert!(root.parent_span_id.is_empty());
    assert_eq!(attribute(&root, "operator.controller"), "echo");
    assert_eq!(attribute(&root, "k8s.object.kind"), "Echo");
    assert_eq!(attribute(&root, "k8s.object.name"), "e");
    assert_eq!(attribute(&root, "k8s.object.uid"), created.metadata.uid.unwrap());
    assert_eq!(attribute(&root, "k8s.object.generation"), "1");
    assert_eq!(attribute(&root, "k8s.namespace.name"), name);
    assert_eq!(attribute(&root, "operator.trigger"), "parent");
    assert_eq!(root.status.clone().unwrap_or_default().code(), StatusCode::Unset);

    let mut pods = children(&spans, &root, "apply");
    pods.sort_by_key(|span| attribute(span, "k8s.object.name"));
    assert!(
        pods.iter()
            .all(|span| attribute(span, "k8s.object.kind") == "Pod")
    );
    let names: Vec<_> = pods
        .iter()
        .map(|span| attribute(span, "k8s.object.name"))
        .collect();
    assert_eq!(names, ["e-pod-0", "e-pod-1"]);

    for span in &spans {
        for key in span.attributes.iter().map(|attribute| &attribute.key) {
            let listed = PAGE.contains(&format!("`{key}`"));
            assert!(listed, "{key} of {} is not in telemetry.md", span.name);
        }
        let kind = match &*span.name {
            "GET" | "POST" | "PATCH" | "DELETE" => SpanKind::Client,
            _ => SpanKind::Internal,
        };
        assert_eq!(span.kind(), kind, "{}", span.name);
    }
    // Each apply is one request, by OpenTelemetry's conventions for HTTP clients.
    let kubeconfig = std::fs::read_to_string(scenario.kubeconfig()).unwrap();
    let mut lines = kubeconfig.lines();
    let server = lines.find_map(|line| line.trim().strip_prefix("server: "));
    let server: hyper::Uri = server.unwrap().trim_matches('"').parse().unwrap();
    for apply in pods {
        let requests = children(&spans, apply, "PATCH");
        assert_eq!(requests.len(), 1, "{requests:?}");
        let (pod, authority) = (attribute(apply, "k8s.object.name"), server.authority().unwrap());
        let url = format!("https://{authority}/api/v1/namespaces/{name}/pods/{pod}");
        for (key, value) in [
            ("http.request.method", "PATCH"),
            ("http.response.status_code", "201"),
            ("server.address", authority.host()),
            ("server.port", authority.port().unwrap().as_str()),
            ("url.full", &url),
        ] {
            assert_eq!(attribute(requests[0], key), value);
        }
    }

    // Once for the desired state, and once for its result.
    let calls = children(&spans, &root, "plugin");
    assert_eq!(calls.len(), 2, "{calls:?}");
    for call in calls {
        assert_eq!(attribute(call, "plugin.name"), "echo");
        assert!(attribute(call, "plugin.digest").starts_with("sha256:"));
        assert_eq!(attribute(call, "plugin.export"), "reconcile");
        assert_eq!(attribute(call, "plugin.outcome"), "ok");
        assert_eq!(attribute(call, "plugin.children"), "2");
        for size in "plugin.request.size plugin.response.size plugin.memory.peak".split(' ') {
            assert!(attribute(call, size).parse::<u64>().unwrap() > 0, "{size}");
        }
    }

    // A pod's change causes another reconcile, with a link to this one.
    collector
        .until_spans("a later reconcile that links to the first", |spans| {
            spans
                .iter()
                .find(|span| span.links.iter().any(|link| link.span_id == root.span_id))
                .map(|span| assert_eq!(attribute(span, "operator.trigger"), "child"))
        })
        .await;

    // The log of the reconcile and its Event contain the same trace ID.
    let trace = hex(&root.trace_id);
    let line: Value = serde_json::from_str(&host.until_log(&format!("{trace} … created Pod")).await).unwrap();
    assert_eq!(line["trace_id"], trace);
    assert_eq!(line["span_id"], hex(&root.span_id));
    assert_eq!(line["span"]["parent"], format!("{name}/e"));
    let events = scenario.api("events.k8s.io/v1/Event");
    let events = events.list(&ListParams::default()).await.unwrap();
    let ids = events
        .iter()
        .filter_map(|event| event.annotations().get("operator-host.dev/trace-id"));
    assert!(ids.into_iter().any(|id| *id == trace), "{:?}", events.items);

    let said = |record: &LogRecord| record.body.as_ref().and_then(shown).unwrap_or_default();
    let record = collector
        .until_record(&root, |record| said(record).contains("created Pod"))
        .await;
    assert_eq!(record.severity_text, "INFO");
    assert_eq!(text(&record.attributes, "controller").as_deref(), Some("echo"));
    assert_eq!(text(&record.attributes, "parent"), Some(format!("{name}/e")));

    let resource = collector.resource();
    assert_eq!(text(&resource, "service.name").as_deref(), Some("operator-host"));
    assert_eq!(text(&resource, "team").as_deref(), Some("blue"));
    let teams = collector.teams();
    assert!(
        teams.iter().all(|team| team.as_deref() == Some("blue")),
        "{teams:?}"
    );

    // The counters match the API server's audit log.
    let labels = [("controller", "echo"), ("kind", "Pod")];
    let created = collector.until_counted("operator_host.children.created", &labels, 2.0);
    assert_eq!(created.await, 2.0);
    let reconciles = collector.until_counted("operator_host.reconciles", &labels[..1], 2.0);
    reconciles.await;
    assert_eq!(host.stop().await.code(), Some(0));
    let metrics = collector.metrics();
    let labels = [("verb", "patch"), ("kind", "Pod"), ("code", "201")];
    let counted = sum(&metrics, "operator_host.api.requests", &labels);
    let writes = writes_to(&scenario.writes(cluster().await), "pods");
    let applied = writes.iter().filter(|write| write.starts_with("patch "));
    assert_eq!(counted, applied.count() as f64);
    let labels = [
        ("http.request.method", "PATCH"),
        ("http.response.status_code", "201"),
    ];
    assert!(samples(&metrics, "http.client.request.duration", &labels) >= counted as u64);
}

const RESOURCE: (&str, &str) = ("OTEL_RESOURCE_ATTRIBUTES", "team=blue");
const HEADERS: (&str, &str) = ("OTEL_EXPORTER_OTLP_HEADERS", "x-team=blue");

const LOGS: (&str, &str) = ("OTEL_LOGS_EXPORTER", "otlp");

#[tokio::test]
async fn one_reconcile_is_one_trace_over_grpc() {
    let more = [RESOURCE, HEADERS, LOGS, ("OTEL_EXPORTER_OTLP_PROTOCOL", "grpc")];
    one_reconcile_is_one_trace("trace-grpc", Collector::grpc().await, &more).await;
}

#[tokio::test]
async fn one_reconcile_is_one_trace_over_http() {
    one_reconcile_is_one_trace("trace-http", Collector::http().await, &[RESOURCE, HEADERS, LOGS]).await;
}

#[tokio::test]
async fn a_collector_that_refuses_costs_no_reconcile_and_is_reported_once() {
    let scenario = Scenario::new("trace-refused").await;
    let collector = Collector::grpc().await;
    collector.refuse(true);
    let more = [
        ("OTEL_EXPORTER_OTLP_PROTOCOL", "grpc"),
        ("OTEL_BSP_MAX_QUEUE_SIZE", "8"),
    ];
    let host = exporting(&scenario, &collector.endpoint(), &more);
    scenario.apply(&echo(2)).await;
    scenario.until_echo("e").await;
    host.until_log("the collector does not accept telemetry … traces")
        .await;
    tokio::time::sleep(Duration::from_secs(1)).await;
    let is_it = |line: &&str| contains(line, "does not accept telemetry … traces");
    assert_eq!(host.log().lines().filter(is_it).count(), 1);
    let (_, metrics) = get(&host, "/metrics").await;
    let is_it = |line: &&str| contains(line, "operator_host_telemetry_dropped_total{ … traces");
    let dropped = metrics.lines().filter(is_it).map(value).sum::<f64>();
    assert!(dropped > 0.0, "{metrics}");
    collector.refuse(false);
    host.until_log("the collector accepts telemetry again").await;
    assert_eq!(host.stop().await.code(), Some(0));
}

#[tokio::test]
async fn a_collector_that_is_away_or_silent_does_not_hold_up_the_end() {
    let scenario = Scenario::new("trace-away").await;
    // It accepts connections and never answers.
    let silent = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
    let endpoint = format!("http://{}", silent.local_addr().unwrap());
    let host = exporting(&scenario, &endpoint, &[]);
    scenario.apply(&echo(1)).await;
    scenario.until_echo("e").await;
    let start = Instant::now();
    assert_eq!(host.stop().await.code(), Some(0));
    let took = start.elapsed();
    assert!(took < Duration::from_secs(8), "it took {took:?}");
}

#[tokio::test]
async fn the_health_port_shows_what_is_ready_and_why_not() {
    let scenario = Scenario::new("health").await;
    let waiting =
        "- {name: later, parent: {apiVersion: nothing.example.com/v1, kind: Nothing}, plugin: echo.wasm}\n";
    let host = scenario.start(&format!("{CONTROLLER}{waiting}"));
    host.until_log("controller started").await;
    host.until_log("waiting for the CustomResourceDefinition").await;
    assert_eq!(get(&host, "/livez").await, (200, "ok".into()));
    let (status, body) = get(&host, "/livez?verbose").await;
    assert_eq!(status, 200);
    let words = "[+]ping ok\n … [+]loop/echo ok\n … [+]workers/echo ok\n … livez check passed\n";
    assert_contains(&body, words);
    // The plugin of the second controller is built for another kind.
    host.until_log("cannot be used … it reconciles").await;
    // The others are not affected: the host is ready, and reports the controller that is not.
    assert_eq!(get(&host, "/readyz").await, (200, "ok".into()));
    let (status, body) = get(&host, "/readyz?verbose").await;
    assert_eq!(status, 200, "{body}");
    assert_contains(&body, "[+]controller/echo ok\n");
    let words = "[+]controller/later ok: waits for the CustomResourceDefinition";
    assert_contains(&body, words);
    let words = "[-]plugin/later failed, the others are served:  … it reconciles my-operator.dev/v1/Echo";
    assert!(
        body.lines().any(|line| contains(line, words)),
        "two controllers on one file: {body}"
    );
    for part in ["?exclude=plugin/later", "/controller/echo"] {
        let answer = get(&host, &format!("/readyz{part}")).await;
        assert_eq!(answer, (200, "ok".into()));
    }
    assert_eq!(get(&host, "/nowhere").await.0, 404);
}

/// Regression: any client of the health port could make the host hold 400 KB for each of any number of connections.
#[tokio::test]
async fn hundreds_of_slow_requests_to_the_health_port_cost_little_and_keep_no_probe_away() {
    let scenario = Scenario::new("health-flood").await;
    let host = scenario.start(CONTROLLER);
    host.until_log("controller started").await;
    let port = port(&host).await;
    let before = anonymous(&host);
    let mut connections = Vec::new();
    for _ in 0..400 {
        let mut stream = TcpStream::connect(("127.0.0.1", port)).await.unwrap();
        // The host may close it at any time.
        let _ = stream.write_all(b"GET /livez HTTP/1.1\r\nx: ").await;
        let _ = timeout(Duration::from_millis(5), stream.write_all(&[b'x'; 300_000])).await;
        connections.push(stream);
    }
    assert_eq!(get_from(port, "/livez").await, (200, "ok".into()));
    let grown = anonymous(&host).saturating_sub(before) >> 20;
    assert!(grown <= 16, "it grew by {grown} MiB");
    // Answers that nobody reads.
    for stream in &mut connections {
        *stream = TcpStream::connect(("127.0.0.1", port)).await.unwrap();
        let _ = stream
            .write_all("GET /metrics HTTP/1.1\r\nhost: a\r\n\r\n".repeat(50).as_bytes())
            .await;
    }
    assert_eq!(get_from(port, "/livez").await, (200, "ok".into()));
    let grown = anonymous(&host).saturating_sub(before) >> 20;
    assert!(grown <= 16, "it grew by {grown} MiB");
}
