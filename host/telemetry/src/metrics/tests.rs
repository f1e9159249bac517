//! Tests of the instruments, as Prometheus reads them.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use opentelemetry::metrics::MeterProvider;
use opentelemetry_sdk::metrics::SdkMeterProvider;
use prometheus::Registry;
use prometheus::proto::MetricFamily;

use super::define::Instrument::Histogram;
use super::*;
use operator_host_runtime::Class;

struct Read {
    metrics: Arc<Metrics>,
    registry: Registry,
    _provider: SdkMeterProvider,
}

impl Read {
    fn new() -> Self {
        let registry = Registry::new();
        let exporter = opentelemetry_prometheus::exporter()
            .with_registry(registry.clone())
            .scope_info_enabled(false)
            .build()
            .unwrap();
        let provider = SdkMeterProvider::builder().with_reader(exporter).build();
        let metrics = Arc::new(Metrics::new(&provider.meter("test"), Arc::default()));
        Self {
            metrics,
            registry,
            _provider: provider,
        }
    }

    fn families(&self) -> BTreeMap<String, MetricFamily> {
        let families = self.registry.gather().into_iter();
        let named = families.map(|family| (family.name().to_owned(), family));
        named.collect()
    }
}

fn kind(kind: &str) -> Kind {
    Kind::new("example.com/v1", kind)
}

/// Uses every instrument once.
fn use_all(metrics: &Arc<Metrics>) {
    let controller = metrics.of("things", &kind("Thing"));
    let time = Duration::from_millis(3);
    controller.reconciled("parent", time, time);
    controller.failed("api");
    controller.created(&kind("Pod"));
    controller.updated(&kind("Pod"));
    controller.deleted(&kind("Pod"));
    drop(controller.contested());
    let parents = controller.parents();
    drop(parents.count(vec![("Ready", "False")], None));
    let stats = CallStats {
        log_lines_dropped: 1,
        ..CallStats::default()
    };
    controller.called("reconcile", "ok", time, &stats);
    controller.reloaded("loaded");
    controller.record_dropped();
    controller.live(version_labels("thing", "0.1.0", "sha256:0"), time);
    controller.held_back(Some(version_labels("thing", "0.2.0", "sha256:1")));
    controller.queue(|| Some(QueueState::default()));
    metrics.set_leader(true);
    metrics.set_webhook(true);
    metrics.admission("things", "denied");
    metrics.conversion("things", "converted");
    metrics.config_reloaded("taken");
    metrics.watch_restarted(&kind("Pod"));
    metrics.api_request("patch", "", "pods", Some(200));
    let labels = [
        KeyValue::new("http.request.method", "GET"),
        KeyValue::new("server.address", "10.0.0.1"),
        KeyValue::new("server.port", 443),
        KeyValue::new("http.response.status_code", 500),
        KeyValue::new("error.type", "500"),
    ];
    metrics.http_request(time, &labels);
}

#[test]
fn every_metric_is_exported_as_it_is_defined() {
    let read = Read::new();
    use_all(&read.metrics);
    let families = read.families();
    for definition in define::ALL {
        let name = definition.prometheus_name();
        let family = families
            .get(&name)
            .unwrap_or_else(|| panic!("{name} is not exported"));
        let instrument = format!("{:?}", family.get_field_type()).to_lowercase();
        assert_eq!(instrument, definition.instrument.as_str(), "{name}");
        let labels = family.get_metric()[0]
            .get_label()
            .iter()
            .map(|label| label.name());
        let defined: BTreeSet<_> = definition.labels.iter().copied().collect();
        assert_eq!(labels.collect::<BTreeSet<_>>(), defined, "{name}");
        assert_eq!(family.help(), definition.help, "{name}");
    }
    let defined: BTreeSet<_> = define::ALL.iter().map(Definition::prometheus_name).collect();
    let is_more = |name: &&String| !defined.contains(*name) && *name != "target_info";
    assert_eq!(
        families.keys().find(is_more),
        None,
        "it is exported and not defined"
    );
}

/// The host's own metrics, and those that the conventions name.
const NAMESPACES: [&str; 3] = ["operator_host.", "process.", "http.client."];

/// By the conventions of OpenTelemetry and Prometheus: base units, and names that say neither unit nor kind themselves.
#[test]
fn names_units_and_descriptions_follow_the_conventions() {
    for definition in define::ALL {
        let (name, unit, help) = (definition.name, definition.unit, definition.help);
        let is_known = NAMESPACES.iter().any(|namespace| name.starts_with(namespace));
        assert!(is_known, "{name}");
        let is_annotation = unit.starts_with('{') && unit.ends_with('}');
        assert!(matches!(unit, "s" | "By") || is_annotation, "{name}: {unit}");
        let is_duration = unit == "s" && definition.instrument == Histogram;
        assert_eq!(name.ends_with(".duration"), is_duration, "{name}");
        for word in ["total", "count", "seconds", "bytes"] {
            assert!(name.split(['.', '_']).all(|part| part != word), "{name}");
        }
        assert!(help.len() > 10 && !help.ends_with('.'), "{name}: {help}");
    }
}

/// A thousand objects with a different error each create as many series as one object with each class of
/// error.
#[test]
fn labels_do_not_grow_with_objects_or_errors() {
    let classes = [
        Class::Invalid,
        Class::Retry,
        Class::Trap,
        Class::Timeout,
        Class::Memory,
        Class::Output,
        Class::Protocol,
        Class::Busy,
        Class::Host,
    ];
    let series = |objects: usize| {
        let read = Read::new();
        let controller = read.metrics.of("things", &kind("Thing"));
        read.metrics.know_kind("", "pods", "Pod");
        for object in 0..objects {
            let class = classes[object % classes.len()].as_str();
            controller.reconciled("parent", Duration::ZERO, Duration::from_millis(object as u64));
            controller.failed(class);
            controller.created(&kind("Pod"));
            let stats = CallStats {
                peak_memory: object << 16,
                ..CallStats::default()
            };
            controller.called("reconcile", class, Duration::from_micros(object as u64), &stats);
            // A path contains the name of an object, which must not become a label.
            let plural = format!("thing-{object}");
            read.metrics.api_request("get", "example.com", &plural, Some(404));
            read.metrics.api_request("patch", "", "pods", Some(200));
        }
        let families = read.families();
        let counts = families.values().map(|family| family.get_metric().len());
        counts.sum::<usize>()
    };
    assert_eq!(series(1000), series(classes.len()));
}

#[test]
fn a_plugin_version_that_is_replaced_is_not_shown_any_more() {
    let read = Read::new();
    let controller = read.metrics.of("things", &kind("Thing"));
    for digest in ["sha256:1", "sha256:2"] {
        controller.live(version_labels("thing", "0.1.0", digest), Duration::ZERO);
        let families = read.families();
        let metrics = families["operator_host_plugin_info"].get_metric().iter();
        let labels = metrics.flat_map(|metric| metric.get_label());
        let digests = labels.filter(|label| label.name() == "digest");
        let shown: Vec<_> = digests.map(|label| label.value().to_owned()).collect();
        assert_eq!(shown, [digest]);
    }
}

#[test]
fn the_table_of_the_documentation_is_true() {
    let documentation = include_str!("../../../docs/telemetry.md");
    for definition in define::ALL {
        let row = definition.row();
        let is_there = documentation.contains(&row);
        assert!(is_there, "host/docs/telemetry.md lacks this row:\n{row}");
    }
    let rows = documentation.lines().filter_map(|line| line.strip_prefix("| `"));
    let is_metric = |line: &&str| NAMESPACES.iter().any(|namespace| line.starts_with(namespace));
    let count = rows.filter(is_metric).count();
    assert_eq!(
        count,
        define::ALL.len(),
        "a row in host/docs/telemetry.md is of no metric"
    );
}
