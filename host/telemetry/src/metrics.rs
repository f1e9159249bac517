//! The metrics of the host. Created once, passed by handle, and exported from the same place by OTLP and at
//! `/metrics`.
//!
//! Labels are bounded by construction: the label parameters of these functions are a controller or a kind,
//! which the configuration lists, or a `&'static str` from the program. No function takes the name of an
//! object or the text of an error.

pub mod definitions;
pub mod losses;
mod observed;
pub mod parents;
mod process;
#[cfg(test)]
mod tests;

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use opentelemetry::KeyValue;
use opentelemetry::metrics::{Counter, Histogram, Meter};

use self::definitions as define;
use self::definitions::Definition;
use self::losses::Losses;
pub use self::observed::QueueState;
use self::observed::{Observed, ObservedController, observe};
use self::parents::Parents;
use operator_host_contract::{Description, Kind};
use operator_host_core::sync::lock;
use operator_host_runtime::{CallStats, Plugin};

/// Upper bounds in seconds, for durations that include requests to the API server: those of a request, and two for what is
/// stuck.
const REQUEST_TIMES: &[f64] = &[
    0.005, 0.01, 0.025, 0.05, 0.075, 0.1, 0.25, 0.5, 0.75, 1.0, 2.5, 5.0, 7.5, 10.0, 30.0, 60.0,
];
/// Upper bounds in seconds, for one request: those that OpenTelemetry recommends.
const HTTP_TIMES: &[f64] = REQUEST_TIMES.split_at(14).0;
/// Upper bounds in seconds, for durations within this process: the same, and smaller ones, as a call may take 50 µs.
const CALL_TIMES: &[f64] = &[
    0.000_05, 0.000_1, 0.000_25, 0.000_5, 0.001, 0.002_5, 0.005, 0.01, 0.025, 0.05, 0.075, 0.1, 0.25, 0.5,
    0.75, 1.0, 2.5, 5.0, 7.5, 10.0,
];
/// Upper bounds in bytes: powers of two from 64 KiB, the size of a page of WebAssembly memory, to 256 MiB.
const MEMORY: &[f64] = &[
    65536.0,
    262_144.0,
    1_048_576.0,
    2_097_152.0,
    4_194_304.0,
    8_388_608.0,
    16_777_216.0,
    33_554_432.0,
    67_108_864.0,
    134_217_728.0,
    268_435_456.0,
];

/// The instruments of the process.
#[derive(Debug)]
pub struct Metrics {
    reconciles: Counter<u64>,
    reconcile_duration: Histogram<f64>,
    reconcile_errors: Counter<u64>,
    children_created: Counter<u64>,
    children_updated: Counter<u64>,
    children_deleted: Counter<u64>,
    plugin_call_duration: Histogram<f64>,
    plugin_wait_duration: Histogram<f64>,
    plugin_guest_time: Counter<f64>,
    plugin_memory_peak: Histogram<f64>,
    plugin_log_lines_dropped: Counter<u64>,
    plugin_compile_duration: Histogram<f64>,
    plugin_reloads: Counter<u64>,
    records_dropped: Counter<u64>,
    config_reloads: Counter<u64>,
    queue_duration: Histogram<f64>,
    watch_restarts: Counter<u64>,
    api_requests: Counter<u64>,
    admissions: Counter<u64>,
    conversions: Counter<u64>,
    http_request_duration: Histogram<f64>,
    observed: Arc<Observed>,
}

impl Metrics {
    /// Creates the instruments. The exporters count `losses`.
    pub fn new(meter: &Meter, losses: Arc<Losses>) -> Self {
        let counter = |d: Definition| {
            meter
                .u64_counter(d.name)
                .with_unit(d.unit)
                .with_description(d.help)
                .build()
        };
        let histogram = |d: Definition, bounds: &[f64]| {
            let builder = meter
                .f64_histogram(d.name)
                .with_unit(d.unit)
                .with_description(d.help);
            builder.with_boundaries(bounds.to_vec()).build()
        };
        let guest_time = define::PLUGIN_GUEST_TIME;
        let observed = Arc::new(Observed::default());
        // Resources that every host requests, in addition to the kinds of its configuration.
        for (group, plural, kind) in [
            ("events.k8s.io", "events", "Event"),
            ("coordination.k8s.io", "leases", "Lease"),
        ] {
            lock(&observed.kinds).insert((group.to_owned(), plural.to_owned()), kind.into());
        }
        observe(meter, &observed, losses);
        Self {
            reconciles: counter(define::RECONCILES),
            reconcile_duration: histogram(define::RECONCILE_DURATION, REQUEST_TIMES),
            reconcile_errors: counter(define::RECONCILE_ERRORS),
            children_created: counter(define::CHILDREN_CREATED),
            children_updated: counter(define::CHILDREN_UPDATED),
            children_deleted: counter(define::CHILDREN_DELETED),
            plugin_call_duration: histogram(define::PLUGIN_CALL_DURATION, CALL_TIMES),
            plugin_wait_duration: histogram(define::PLUGIN_WAIT_DURATION, CALL_TIMES),
            plugin_guest_time: meter
                .f64_counter(guest_time.name)
                .with_unit(guest_time.unit)
                .with_description(guest_time.help)
                .build(),
            plugin_memory_peak: histogram(define::PLUGIN_MEMORY_PEAK, MEMORY),
            plugin_log_lines_dropped: counter(define::PLUGIN_LOG_LINES_DROPPED),
            plugin_compile_duration: histogram(define::PLUGIN_COMPILE_DURATION, CALL_TIMES),
            plugin_reloads: counter(define::PLUGIN_RELOADS),
            records_dropped: counter(define::RECORDS_DROPPED),
            config_reloads: counter(define::CONFIG_RELOADS),
            queue_duration: histogram(define::QUEUE_DURATION, REQUEST_TIMES),
            watch_restarts: counter(define::WATCH_RESTARTS),
            api_requests: counter(define::API_REQUESTS),
            admissions: counter(define::WEBHOOK_REVIEWS),
            conversions: counter(define::WEBHOOK_CONVERSIONS),
            http_request_duration: histogram(define::HTTP_REQUEST_DURATION, HTTP_TIMES),
            observed,
        }
    }

    /// Creates instruments that are not exported.
    pub fn unread() -> Self {
        let meter = opentelemetry::metrics::noop::NoopMeterProvider::new();
        Self::new(
            &opentelemetry::metrics::MeterProvider::meter(&meter, "unread"),
            Arc::default(),
        )
    }

    /// Returns the instruments of one controller.
    pub fn of(self: &Arc<Self>, controller: &str, parent: &Kind) -> ControllerMetrics {
        ControllerMetrics {
            metrics: Arc::clone(self),
            name: controller.into(),
            controller: KeyValue::new("controller", Arc::<str>::from(controller)),
            kind: KeyValue::new("kind", Arc::<str>::from(parent.kind.as_str())),
        }
    }

    /// Counts a reload of the configuration; `result` is `taken` or `refused`.
    pub fn config_reloaded(&self, result: &'static str) {
        self.config_reloads.add(1, &[KeyValue::new("result", result)]);
    }

    /// Stops exporting the gauges of a controller that is no longer in the configuration.
    pub fn forget(&self, controller: &str) {
        lock(&self.observed.controllers).remove(controller);
    }

    /// Counts a watch of a kind that failed and is restarted.
    pub fn watch_restarted(&self, kind: &Kind) {
        self.watch_restarts
            .add(1, &[KeyValue::new("kind", kind.kind.clone())]);
    }

    /// Registers the kind of a group and a plural; requests for other resources are counted as `other`.
    pub fn know_kind(&self, group: &str, plural: &str, kind: &str) {
        lock(&self.observed.kinds).insert((group.to_owned(), plural.to_owned()), kind.into());
    }

    /// Counts a request when the API server starts its response; `code` is `None` when it never did.
    pub fn api_request(&self, verb: &'static str, group: &str, plural: &str, code: Option<u16>) {
        // The map is small: it contains the kinds of the configuration.
        let known = lock(&self.observed.kinds)
            .get(&(group.to_owned(), plural.to_owned()))
            .cloned();
        let kind = KeyValue::new("kind", known.unwrap_or_else(|| "other".into()));
        let verb = KeyValue::new("verb", verb);
        let code = code.map_or_else(|| "none".to_owned(), |code| code.to_string());
        self.api_requests
            .add(1, &[verb, kind, KeyValue::new("code", code)]);
    }

    /// Records an HTTP request; see [`crate::http_client`].
    pub(crate) fn http_request(&self, took: Duration, labels: &[KeyValue]) {
        self.http_request_duration.record(took.as_secs_f64(), labels);
    }

    /// Sets whether this replica leads or stands by. A host without leader election always leads.
    pub fn set_leader(&self, leads: bool) {
        *lock(&self.observed.leader) = Some(leads);
    }

    /// Sets whether the API server accepts the webhook's certificate.
    pub fn set_webhook(&self, serves: bool) {
        *lock(&self.observed.webhook) = Some(serves);
    }

    /// Counts a resource that the webhook reviewed: `allowed`, `denied`, or `failed` when there was no
    /// decision.
    pub fn admission(&self, controller: &str, result: &'static str) {
        self.admissions.add(1, &result_of(controller, result));
    }

    /// Counts a request of the API server to convert objects: `converted` or `failed`.
    pub fn conversion(&self, controller: &str, result: &'static str) {
        self.conversions.add(1, &result_of(controller, result));
    }

    /// Counts a dropped Event; returns how many were dropped before.
    pub fn event_dropped(&self) -> u64 {
        self.observed.events_dropped.fetch_add(1, Ordering::Relaxed)
    }
}

fn result_of(controller: &str, result: &'static str) -> [KeyValue; 2] {
    let controller = KeyValue::new("controller", controller.to_owned());
    [controller, KeyValue::new("result", result)]
}

/// The instruments of one controller. Cheap to clone.
#[derive(Clone, Debug)]
pub struct ControllerMetrics {
    metrics: Arc<Metrics>,
    name: Arc<str>,
    controller: KeyValue,
    kind: KeyValue,
}

impl ControllerMetrics {
    /// Records a reconcile that has ended. `waited` is the time in the queue before it.
    pub fn reconciled(&self, reason: &'static str, waited: Duration, took: Duration) {
        let labels = [
            self.controller.clone(),
            self.kind.clone(),
            KeyValue::new("trigger", reason),
        ];
        self.metrics.reconciles.add(1, &labels);
        self.metrics
            .reconcile_duration
            .record(took.as_secs_f64(), &labels[..2]);
        self.metrics
            .queue_duration
            .record(waited.as_secs_f64(), &labels[..1]);
    }

    /// Counts a reconcile that failed, before it has ended.
    pub fn failed(&self, class: &'static str) {
        let labels = [
            self.controller.clone(),
            self.kind.clone(),
            KeyValue::new("class", class),
        ];
        self.metrics.reconcile_errors.add(1, &labels);
    }

    /// Counts a child that was created.
    pub fn created(&self, child: &Kind) {
        self.metrics.children_created.add(1, &self.child(child));
    }

    /// Counts a child that was updated.
    pub fn updated(&self, child: &Kind) {
        self.metrics.children_updated.add(1, &self.child(child));
    }

    /// Counts a child that was deleted.
    pub fn deleted(&self, child: &Kind) {
        self.metrics.children_deleted.add(1, &self.child(child));
    }

    /// Records a plugin call that has ended; `class` is `ok` or the class of its failure.
    pub fn called(&self, export: &'static str, class: &'static str, took: Duration, stats: &CallStats) {
        let labels = [
            self.controller.clone(),
            KeyValue::new("export", export),
            KeyValue::new("class", class),
        ];
        let metrics = &*self.metrics;
        metrics.plugin_call_duration.record(took.as_secs_f64(), &labels);
        metrics
            .plugin_wait_duration
            .record(stats.waited.as_secs_f64(), &labels[..1]);
        metrics
            .plugin_guest_time
            .add(stats.guest_time.as_secs_f64(), &labels[..1]);
        metrics
            .plugin_memory_peak
            .record(stats.peak_memory as f64, &labels[..1]);
        if stats.log_lines_dropped > 0 {
            metrics
                .plugin_log_lines_dropped
                .add(stats.log_lines_dropped.into(), &labels[..1]);
        }
    }

    /// Sets the live version of the plugin.
    pub fn plugin_live(&self, plugin: &Plugin) {
        self.live(version_of(plugin), plugin.compile_time());
    }

    fn live(&self, version: [KeyValue; 3], compiled: Duration) {
        let labels = std::slice::from_ref(&self.controller);
        self.metrics
            .plugin_compile_duration
            .record(compiled.as_secs_f64(), labels);
        self.observe(|observed| observed.plugin = Some(version));
    }

    /// Sets the version that is held back, which replaces any other; `None`: no version is.
    pub fn plugin_held_back(&self, plugin: Option<&Plugin>) {
        self.held_back(plugin.map(version_of));
    }

    fn held_back(&self, version: Option<[KeyValue; 3]>) {
        self.observe(|observed| observed.held_back = version);
    }

    /// Returns where the conditions of the controller's parents are counted.
    pub fn parents(&self) -> Arc<Parents> {
        self.observe(|observed| Arc::clone(observed.parents.get_or_insert_default()))
    }

    /// Counts a contested child until the result is dropped.
    #[must_use]
    pub fn contested(&self) -> ContestedChild {
        let count = self.observe(|observed| Arc::clone(observed.contested.get_or_insert_default()));
        count.fetch_add(1, Ordering::Relaxed);
        ContestedChild(count)
    }

    /// Counts a reload of the plugin file; `result` is `loaded` or the reason why it was not.
    pub fn reloaded(&self, result: &'static str) {
        self.metrics
            .plugin_reloads
            .add(1, &[self.controller.clone(), KeyValue::new("result", result)]);
    }

    /// Counts a plugin call that should have been recorded but was not.
    pub fn record_dropped(&self) {
        self.metrics
            .records_dropped
            .add(1, std::slice::from_ref(&self.controller));
    }

    /// Registers the gauges of a queue and its workers, which replace the previous ones of this controller.
    pub fn queue(&self, gauge: impl Fn() -> Option<QueueState> + Send + Sync + 'static) {
        self.observe(|observed| observed.queue = Some(Box::new(gauge)));
    }

    /// Accesses what is read of the controller.
    fn observe<T>(&self, access: impl FnOnce(&mut ObservedController) -> T) -> T {
        let mut controllers = lock(&self.metrics.observed.controllers);
        access(controllers.entry(Arc::clone(&self.name)).or_default())
    }

    fn child(&self, child: &Kind) -> [KeyValue; 2] {
        [self.controller.clone(), KeyValue::new("kind", child.kind.clone())]
    }
}

fn version_of(plugin: &Plugin) -> [KeyValue; 3] {
    let Description { name, version, .. } = plugin.description();
    version_labels(name, version, &plugin.digest().to_string())
}

fn version_labels(plugin: &str, version: &str, digest: &str) -> [KeyValue; 3] {
    [("plugin", plugin), ("version", version), ("digest", digest)]
        .map(|(label, value)| KeyValue::new(label, value.to_owned()))
}

/// Counts one contested child as long as it exists.
#[derive(Debug)]
pub struct ContestedChild(Arc<AtomicU64>);

impl Drop for ContestedChild {
    fn drop(&mut self) {
        self.0.fetch_sub(1, Ordering::Relaxed);
    }
}
