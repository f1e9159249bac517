//! The metrics of controller-runtime and client-go, for dashboards that know their names: the same measurements, recorded a
//! second time.

use std::sync::Arc;
use std::time::Duration;

use opentelemetry::KeyValue;
use opentelemetry::metrics::{Counter, Histogram, Meter};

use super::REQUEST_TIMES;
use super::observed::{Observed, each};
use super::process;
use crate::sync::lock;

/// The instruments that are recorded. Those whose values are read are created with them.
#[derive(Debug)]
pub(super) struct Compat {
    reconciles: Counter<u64>,
    reconcile_errors: Counter<u64>,
    reconcile_time: Histogram<f64>,
    queue_adds: Counter<u64>,
    queue_duration: Histogram<f64>,
    queue_work: Histogram<f64>,
    queue_retries: Counter<u64>,
    requests: Counter<u64>,
}

impl Compat {
    pub(super) fn new(meter: &Meter, observed: &Arc<Observed>) -> Self {
        let counter = |name, help| meter.u64_counter(name).with_description(help).build();
        let histogram = |name, help| {
            let builder = meter.f64_histogram(name).with_unit("s").with_description(help);
            builder.with_boundaries(REQUEST_TIMES.to_vec()).build()
        };
        observe(meter, observed);
        Self {
            reconciles: counter(
                "controller_runtime_reconcile",
                "Total number of reconciliations per controller",
            ),
            reconcile_errors: counter(
                "controller_runtime_reconcile_errors",
                "Total number of reconciliation errors per controller",
            ),
            reconcile_time: histogram(
                "controller_runtime_reconcile_time",
                "Length of time per reconciliation per controller",
            ),
            queue_adds: counter(
                "workqueue_adds",
                "Total number of adds handled by workqueue, counted when a worker has processed them",
            ),
            queue_duration: histogram(
                "workqueue_queue_duration",
                "How long in seconds an item stays in workqueue before being requested",
            ),
            queue_work: histogram(
                "workqueue_work_duration",
                "How long in seconds processing an item from workqueue takes",
            ),
            queue_retries: counter(
                "workqueue_retries",
                "Total number of retries handled by workqueue",
            ),
            requests: counter(
                "rest_client_requests",
                "Number of HTTP requests, partitioned by status code, method, and host",
            ),
        }
    }

    /// Records a reconcile that has ended. If it failed, its failure is already counted.
    pub(super) fn reconciled(&self, name: &Arc<str>, failed: bool, waited: Duration, took: Duration) {
        let queue = labels_of_queue(name);
        self.result(&queue, "success", u64::from(!failed));
        // So that there is a series for a ratio.
        self.result(&queue, "error", 0);
        self.reconcile_time.record(took.as_secs_f64(), &queue[..1]);
        self.queue_adds.add(1, &queue);
        self.queue_duration.record(waited.as_secs_f64(), &queue);
        self.queue_work.record(took.as_secs_f64(), &queue);
    }

    /// Counts a failure of a reconcile.
    pub(super) fn failed(&self, name: &Arc<str>) {
        let queue = labels_of_queue(name);
        self.result(&queue, "error", 1);
        self.reconcile_errors.add(1, &queue[..1]);
        self.queue_retries.add(1, &queue);
    }

    fn result(&self, [controller, _]: &[KeyValue; 2], result: &'static str, count: u64) {
        let labels = [controller.clone(), KeyValue::new("result", result)];
        self.reconciles.add(count, &labels);
    }

    /// Counts an HTTP request with the labels of OpenTelemetry.
    pub(super) fn requested(&self, labels: &[KeyValue]) {
        let get = |key: &str| labels.iter().find(|label| label.key.as_str() == key);
        let text = |key| get(key).map(|label| label.value.to_string());
        let host = [text("server.address"), text("server.port")];
        let labels = [
            ("code", text("http.response.status_code").unwrap_or_default()),
            ("host", host.into_iter().flatten().collect::<Vec<_>>().join(":")),
            ("method", text("http.request.method").unwrap_or_default()),
        ];
        self.requests
            .add(1, &labels.map(|(name, value)| KeyValue::new(name, value)));
    }
}

/// Creates the instruments whose values are read at the time of a scrape.
fn observe(meter: &Meter, observed: &Arc<Observed>) {
    let gauge = |name, help| meter.u64_observable_gauge(name).with_description(help);
    gauge(
        "controller_runtime_active_workers",
        "Number of currently used workers per controller",
    )
    .with_callback(each(observed, |it, observe| {
        if let Some(queue) = it.queue() {
            observe(queue.busy as u64, &[]);
        }
    }))
    .build();
    gauge(
        "controller_runtime_max_concurrent_reconciles",
        "Maximum number of concurrent reconciles per controller",
    )
    .with_callback(each(observed, |it, observe| {
        if let Some(queue) = it.queue() {
            observe(queue.workers as u64, &[]);
        }
    }))
    .build();
    let state = Arc::clone(observed);
    gauge("workqueue_depth", "Current depth of workqueue")
        .with_callback(move |gauge| {
            for (name, controller) in &*lock(&state.controllers) {
                if let Some(queue) = controller.queue() {
                    gauge.observe(queue.waiting as u64, &labels_of_queue(name));
                }
            }
        })
        .build();
    gauge("process_resident_memory", "Resident memory size in bytes")
        .with_unit("By")
        .with_callback(|gauge| {
            if let Some(usage) = process::usage() {
                gauge.observe(usage.memory, &[]);
            }
        })
        .build();
    meter
        .f64_observable_counter("process_cpu")
        .with_unit("s")
        .with_description("Total user and system CPU time spent in seconds")
        .with_callback(|counter| {
            if let Some(usage) = process::usage() {
                counter.observe(usage.user + usage.system, &[]);
            }
        })
        .build();
}

fn labels_of_queue(name: &Arc<str>) -> [KeyValue; 2] {
    ["controller", "name"].map(|label| KeyValue::new(label, Arc::clone(name)))
}

#[cfg(test)]
mod tests {
    use opentelemetry::metrics::MeterProvider as _;
    use opentelemetry_sdk::metrics::SdkMeterProvider;
    use prometheus::{Registry, TextEncoder};

    use super::*;
    use crate::http_client::{Target, observe};
    use crate::metrics::{Metrics, QueueState};
    use operator_host_contract::Kind;

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
        let registry = Registry::new();
        let exporter = opentelemetry_prometheus::exporter().with_registry(registry.clone());
        let exporter = exporter.scope_info_enabled(false).build().unwrap();
        let provider = SdkMeterProvider::builder().with_reader(exporter).build();
        let meter = provider.meter("test");
        let metrics = Metrics::new(&meter, Arc::default()).with_compat(&meter);
        let metrics = Arc::new(metrics);
        let read = || TextEncoder::new().encode_to_string(&registry.gather()).unwrap();
        // Without controllers, there is nothing to count.
        assert!(!read().contains("controller_runtime"));

        let kind = Kind::new("my-operator.dev/v1", "Echo");
        let controller = metrics.of("echo", &kind);
        controller.failed("api");
        for trigger in ["parent", "child", "child"] {
            controller.reconciled(trigger, Duration::from_millis(200), Duration::from_secs(20));
        }
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
