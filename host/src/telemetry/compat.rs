//! The metrics of controller-runtime and client-go, for dashboards that know their names: nothing is measured twice, but
//! what the host measures is served a second time at `/metrics`, under other names.

use std::collections::BTreeMap;
use std::sync::{Mutex, PoisonError};

use prometheus::Registry;
use prometheus::core::{Collector, Desc};
use prometheus::proto::{Bucket, Counter, Gauge, Histogram, LabelPair, Metric, MetricFamily, MetricType};

/// Whose names `/metrics` also has.
#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
pub enum Compat {
    /// Those of controller-runtime, of the work queues and of the clients of client-go, and of processes
    ControllerRuntime,
}

/// One metric under another name.
struct Alias {
    name: &'static str,
    kind: MetricType,
    help: &'static str,
    /// The name that the host uses.
    from: &'static str,
    /// Only the series with this value of this label.
    only: Option<(&'static str, &'static str)>,
    /// Each label, and what it consists of: labels of the host, joined by colons. Series that differ in no other are summed.
    labels: &'static [(&'static str, &'static [&'static str])],
}

type Labels = &'static [(&'static str, &'static [&'static str])];
const CONTROLLER: Labels = &[("controller", &["controller"])];
const QUEUE: Labels = &[("controller", &["controller"]), ("name", &["controller"])];
const REQUEST: Labels = &[
    ("code", &["http_response_status_code"]),
    ("host", &["server_address", "server_port"]),
    ("method", &["http_request_method"]),
];

const RECONCILES: &str = "operator_host_reconcile_duration_seconds";
const ERRORS: &str = "operator_host_reconcile_errors_total";
const WAITS: &str = "operator_host_queue_duration_seconds";
const RESULTS: &str = "controller_runtime_reconcile_total";

macro_rules! aliases {
    ($($kind:ident $name:literal $labels:ident = $from:expr $(, $label:literal = $value:literal)?; $help:literal;)*) => {
        &[$(Alias {
            name: $name,
            kind: MetricType::$kind,
            help: $help,
            from: $from,
            only: [$(Some(($label, $value)),)? None][0],
            labels: $labels,
        }),*]
    };
}

const ALIASES: &[Alias] = aliases! {
    COUNTER "controller_runtime_reconcile_errors_total" CONTROLLER = ERRORS;
        "Total number of reconciliation errors per controller";
    HISTOGRAM "controller_runtime_reconcile_time_seconds" CONTROLLER = RECONCILES;
        "Length of time per reconciliation per controller";
    GAUGE "controller_runtime_active_workers" CONTROLLER = "operator_host_workers", "state" = "busy";
        "Number of currently used workers per controller";
    GAUGE "controller_runtime_max_concurrent_reconciles" CONTROLLER = "operator_host_workers";
        "Maximum number of concurrent reconciles per controller";
    GAUGE "workqueue_depth" QUEUE = "operator_host_queue_depth";
        "Current depth of workqueue";
    COUNTER "workqueue_adds_total" QUEUE = WAITS;
        "Total number of adds handled by workqueue, counted when a worker has processed them";
    HISTOGRAM "workqueue_queue_duration_seconds" QUEUE = WAITS;
        "How long in seconds an item stays in workqueue before being requested";
    HISTOGRAM "workqueue_work_duration_seconds" QUEUE = RECONCILES;
        "How long in seconds processing an item from workqueue takes";
    COUNTER "workqueue_retries_total" QUEUE = ERRORS;
        "Total number of retries handled by workqueue";
    COUNTER "rest_client_requests_total" REQUEST = "http_client_request_duration_seconds";
        "Number of HTTP requests, partitioned by status code, method, and host";
    COUNTER "process_cpu_seconds_total" NONE = "process_cpu_time_seconds_total";
        "Total user and system CPU time spent in seconds";
    GAUGE "process_resident_memory_bytes" NONE = "process_memory_usage_bytes";
        "Resident memory size in bytes";
};
const NONE: Labels = &[];

/// Returns a registry with the metrics of another one and their aliases.
///
/// # Errors
/// Never for a new registry; as [`Registry::register`].
pub(super) fn with_aliases(own: Registry) -> prometheus::Result<Registry> {
    let registry = Registry::new();
    let succeeded = Mutex::default();
    registry.register(Box::new(Aliases { own, succeeded }))?;
    Ok(registry)
}

struct Aliases {
    own: Registry,
    /// How many reconciles of each controller succeeded, as served last: an error is counted before its reconcile, and a
    /// counter must not fall between the two.
    succeeded: Mutex<BTreeMap<Values, f64>>,
}

impl Collector for Aliases {
    fn desc(&self) -> Vec<&Desc> {
        Vec::new()
    }

    fn collect(&self) -> Vec<MetricFamily> {
        let mut families = self.own.gather();
        let mut aliases: Vec<_> = ALIASES
            .iter()
            .filter_map(|alias| alias.family(&families))
            .chain(self.results(&families))
            .collect();
        families.append(&mut aliases);
        families
    }
}

impl Aliases {
    /// Returns the reconciles by result, which are two metrics of the host.
    fn results(&self, families: &[MetricFamily]) -> Option<MetricFamily> {
        let count = |from| {
            let of = |family: &&MetricFamily| family.name() == from;
            sums(families.iter().find(of), None, CONTROLLER)
        };
        let (all, errors) = (count(RECONCILES), count(ERRORS));
        let mut succeeded = self.succeeded.lock().unwrap_or_else(PoisonError::into_inner);
        let mut metrics = Vec::new();
        for (controller, all) in all {
            let failed = errors.get(&controller).map_or(0.0, |sum| sum.value);
            let best = succeeded.entry(controller.clone()).or_default();
            *best = best.max(all.count as f64 - failed);
            for (result, value) in [("success", *best), ("error", failed)] {
                let mut metric = labelled(CONTROLLER, &controller);
                metric.set_label([metric.get_label(), &[pair("result", result)]].concat());
                let mut counter = Counter::default();
                counter.set_value(value);
                metric.set_counter(counter);
                metrics.push(metric);
            }
        }
        let help = "Total number of reconciliations per controller";
        family(RESULTS, MetricType::COUNTER, help, metrics)
    }
}

impl Alias {
    fn family(&self, families: &[MetricFamily]) -> Option<MetricFamily> {
        let from = families.iter().find(|family| family.name() == self.from)?;
        let is_histogram = from.get_field_type() == MetricType::HISTOGRAM;
        let metrics = sums(Some(from), self.only, self.labels)
            .into_iter()
            .map(|(values, sum)| {
                let mut metric = labelled(self.labels, &values);
                match self.kind {
                    MetricType::HISTOGRAM => metric.set_histogram(sum.histogram()),
                    MetricType::GAUGE => {
                        let mut gauge = Gauge::default();
                        gauge.set_value(sum.value);
                        metric.set_gauge(gauge);
                    }
                    _ => {
                        let mut counter = Counter::default();
                        // Of a histogram, its number of values.
                        counter.set_value(if is_histogram { sum.count as f64 } else { sum.value });
                        metric.set_counter(counter);
                    }
                }
                metric
            });
        family(self.name, self.kind, self.help, metrics.collect())
    }
}

fn family(name: &str, kind: MetricType, help: &str, metrics: Vec<Metric>) -> Option<MetricFamily> {
    let mut family = MetricFamily::default();
    family.set_name(name.to_owned());
    family.set_field_type(kind);
    family.set_help(help.to_owned());
    family.set_metric(metrics);
    // A family without series cannot be encoded.
    (!family.get_metric().is_empty()).then_some(family)
}

fn pair(name: &str, value: &str) -> LabelPair {
    let mut pair = LabelPair::default();
    pair.set_name(name.to_owned());
    pair.set_value(value.to_owned());
    pair
}

fn labelled(labels: Labels, values: &Values) -> Metric {
    let mut metric = Metric::default();
    let pairs = labels
        .iter()
        .zip(values)
        .map(|((name, _), value)| pair(name, value));
    metric.set_label(pairs.collect());
    metric
}

/// The values of the labels of an alias.
type Values = Vec<String>;

/// The sum of some series.
#[derive(Default)]
struct Sum {
    /// Of counters and gauges, and the sum of the values of histograms.
    value: f64,
    count: u64,
    buckets: Vec<(f64, u64)>,
}

impl Sum {
    fn add(&mut self, metric: &Metric, kind: MetricType) {
        match kind {
            MetricType::COUNTER => self.value += metric.get_counter().get_value(),
            MetricType::GAUGE => self.value += metric.get_gauge().get_value(),
            _ => {
                let histogram = metric.get_histogram();
                self.value += histogram.get_sample_sum();
                self.count += histogram.get_sample_count();
                let buckets = histogram.get_bucket();
                self.buckets.resize(buckets.len(), (0.0, 0));
                for (sum, bucket) in self.buckets.iter_mut().zip(buckets) {
                    *sum = (bucket.upper_bound(), sum.1 + bucket.cumulative_count());
                }
            }
        }
    }

    fn histogram(&self) -> Histogram {
        let bucket = |(bound, count): &(f64, u64)| {
            let mut bucket = Bucket::default();
            bucket.set_upper_bound(*bound);
            bucket.set_cumulative_count(*count);
            bucket
        };
        let mut histogram = Histogram::default();
        histogram.set_sample_sum(self.value);
        histogram.set_sample_count(self.count);
        histogram.set_bucket(self.buckets.iter().map(bucket).collect());
        histogram
    }
}

fn sums(family: Option<&MetricFamily>, only: Option<(&str, &str)>, labels: Labels) -> BTreeMap<Values, Sum> {
    let mut sums: BTreeMap<Values, Sum> = BTreeMap::new();
    let Some(family) = family else { return sums };
    for metric in family.get_metric() {
        let get = |name: &str| {
            let label = metric.get_label().iter().find(|label| label.name() == name);
            label.map(LabelPair::value)
        };
        if only.is_some_and(|(name, value)| get(name) != Some(value)) {
            continue;
        }
        let joined = |(_, parts): &(_, &'static [&str])| {
            let parts: Vec<&str> = parts.iter().filter_map(|part| get(part)).collect();
            parts.join(":")
        };
        let values = labels.iter().map(joined).collect();
        sums.entry(values)
            .or_default()
            .add(metric, family.get_field_type());
    }
    sums
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;
    use std::time::Duration;

    use opentelemetry::metrics::MeterProvider as _;
    use opentelemetry_sdk::metrics::SdkMeterProvider;
    use prometheus::TextEncoder;

    use super::*;
    use operator_host_contract::Kind;
    use operator_host_core::http_client::{Target, observe};
    use operator_host_core::metrics::{Metrics, QueueState};

    /// Every metric in the dashboards that kubebuilder's Grafana plugin writes, except for one: the host does not measure
    /// `workqueue_unfinished_work_seconds`.
    const QUERIED: [&str; 10] = [
        "controller_runtime_active_workers{controller=\"echo\"} 1",
        "controller_runtime_reconcile_total{controller=\"echo\",result=\"success\"} 2",
        "controller_runtime_reconcile_errors_total{controller=\"echo\"} 1",
        "workqueue_depth{controller=\"echo\",name=\"echo\"} 7",
        "workqueue_queue_duration_seconds_bucket{controller=\"echo\",name=\"echo\",le=\"0.25\"} 3",
        "workqueue_adds_total{controller=\"echo\",name=\"echo\"} 3",
        "workqueue_work_duration_seconds_bucket{controller=\"echo\",name=\"echo\",le=\"+Inf\"} 3",
        "workqueue_retries_total{controller=\"echo\",name=\"echo\"} 1",
        "process_cpu_seconds_total ",
        "process_resident_memory_bytes ",
    ];

    #[tokio::test]
    async fn the_dashboards_of_kubebuilder_find_what_they_query() {
        let own = Registry::new();
        let exporter = opentelemetry_prometheus::exporter().with_registry(own.clone());
        let exporter = exporter.scope_info_enabled(false).build().unwrap();
        let provider = SdkMeterProvider::builder().with_reader(exporter).build();
        let metrics = Arc::new(Metrics::new(&provider.meter("test"), Arc::default()));
        let registry = with_aliases(own).unwrap();
        let read = || TextEncoder::new().encode_to_string(&registry.gather()).unwrap();
        // Without series, there is nothing to translate.
        assert!(!read().contains("controller_runtime"));

        let kind = Kind::new("my-operator.dev/v1", "Echo");
        let controller = metrics.of("echo", &kind);
        for trigger in ["parent", "child", "child"] {
            controller.reconciled(trigger, Duration::from_millis(200), Duration::from_secs(20));
        }
        controller.failed("api");
        let state = QueueState {
            waiting: 7,
            oldest: Duration::ZERO,
            busy: 1,
            workers: 4,
        };
        controller.queue(move || Some(state));
        let url = "https://10.0.0.1:6443/version".parse().unwrap();
        let target = Target {
            method: &hyper::Method::GET,
            url: &url,
            is_known: true,
        };
        let answer = async { Ok::<_, ()>(hyper::Response::new(())) };
        observe(&metrics, target, answer, |()| "never").await.unwrap();
        let text = read();
        let others = [
            "controller_runtime_max_concurrent_reconciles{controller=\"echo\"} 4",
            "rest_client_requests_total{code=\"200\",host=\"10.0.0.1:6443\",method=\"GET\"} 1",
        ];
        for line in QUERIED.iter().chain(&others) {
            let found = text.lines().any(|it| it.starts_with(line));
            assert!(found, "{line} is not in {text}");
        }
        // Its own names are still there.
        let words = "operator_host_queue_depth{controller=\"echo\"} 7";
        assert!(text.contains(words), "{text}");

        // An error whose reconcile has not ended takes nothing away.
        controller.failed("api");
        let text = read();
        let words = "{controller=\"echo\",result=\"error\"} 2";
        assert!(text.contains(words), "{text}");
        let words = "{controller=\"echo\",result=\"success\"} 2";
        assert!(text.contains(words), "{text}");
    }
}
