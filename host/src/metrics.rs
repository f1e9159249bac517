//! What the host measures. Made once, passed by handle, read by OTLP and by `/metrics` from the same place.
//!
//! Labels are bounded by construction: what these functions take for one is a controller or a kind, which the
//! configuration lists, or a `&'static str`, which the program does. No function takes an object's name or an
//! error's text.

pub mod definitions;
mod observed;
mod process;
#[cfg(test)]
mod tests;

use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use opentelemetry::KeyValue;
use opentelemetry::metrics::{Counter, Histogram, Meter};

use self::definitions as define;
use self::definitions::Definition;
use self::observed::{Observed, lock, observe};
use crate::plugin::contract::{Description, Kind};
use crate::plugin::{CallStats, Plugin};
use crate::telemetry::losses::Losses;

/// Upper bounds in milliseconds, for what waits for the API server.
const PASS_TIMES: &[f64] = &[
    0.5, 1.0, 2.5, 5.0, 10.0, 25.0, 50.0, 100.0, 250.0, 500.0, 1e3, 2.5e3, 5e3, 1e4, 3e4, 6e4,
];
/// For what runs in this process.
const CALL_TIMES: &[f64] = &[
    0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 25.0, 50.0, 100.0, 250.0, 500.0, 1e3, 2.5e3, 5e3, 1e4,
];
/// In bytes: powers of two from 64 KiB, the size of a page of WebAssembly memory, to 256 MiB.
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
    reconcile_count: Counter<u64>,
    reconcile_duration: Histogram<f64>,
    reconcile_errors: Counter<u64>,
    resource_created: Counter<u64>,
    resource_updated: Counter<u64>,
    resource_deleted: Counter<u64>,
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
    api_request_duration: Histogram<f64>,
    observed: Arc<Observed>,
}

fn milliseconds(time: Duration) -> f64 {
    time.as_secs_f64() * 1e3
}

impl Metrics {
    /// Makes the instruments. `losses` are counted by the exporters.
    #[must_use]
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
        // What every host asks for, besides the kinds of its configuration.
        for (group, plural, kind) in [
            ("events.k8s.io", "events", "Event"),
            ("coordination.k8s.io", "leases", "Lease"),
        ] {
            lock(&observed.kinds).insert((group.to_owned(), plural.to_owned()), kind.into());
        }
        observe(meter, &observed, losses);
        Self {
            reconcile_count: counter(define::RECONCILE_COUNT),
            reconcile_duration: histogram(define::RECONCILE_DURATION, PASS_TIMES),
            reconcile_errors: counter(define::RECONCILE_ERRORS),
            resource_created: counter(define::RESOURCE_CREATED),
            resource_updated: counter(define::RESOURCE_UPDATED),
            resource_deleted: counter(define::RESOURCE_DELETED),
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
            queue_duration: histogram(define::QUEUE_DURATION, PASS_TIMES),
            watch_restarts: counter(define::WATCH_RESTARTS),
            api_requests: counter(define::API_REQUESTS),
            admissions: counter(define::WEBHOOK_REVIEWS),
            api_request_duration: histogram(define::API_REQUEST_DURATION, PASS_TIMES),
            observed,
        }
    }

    /// Instruments that nobody reads.
    #[must_use]
    pub fn unread() -> Self {
        let meter = opentelemetry::metrics::noop::NoopMeterProvider::new();
        Self::new(
            &opentelemetry::metrics::MeterProvider::meter(&meter, "unread"),
            Arc::default(),
        )
    }

    /// The same for one controller.
    #[must_use]
    pub fn of(self: &Arc<Self>, controller: &str, parent: &Kind) -> ControllerMetrics {
        ControllerMetrics {
            metrics: Arc::clone(self),
            name: controller.into(),
            controller: KeyValue::new("controller", Arc::<str>::from(controller)),
            kind: KeyValue::new("kind", Arc::<str>::from(parent.kind.as_str())),
        }
    }

    /// A configuration was taken (`taken`) or `refused`.
    pub fn config_reloaded(&self, result: &'static str) {
        self.config_reloads.add(1, &[KeyValue::new("result", result)]);
    }

    /// A controller is not in the configuration any more: what is read from it is gone.
    pub fn forget(&self, controller: &str) {
        lock(&self.observed.queues).remove(controller);
        lock(&self.observed.plugins).remove(controller);
        lock(&self.observed.held_back).remove(controller);
    }

    /// A watch of a kind broke and is started again.
    pub fn watch_restarted(&self, kind: &Kind) {
        self.watch_restarts
            .add(1, &[KeyValue::new("kind", kind.kind.clone())]);
    }

    /// Learns which kind is behind a group and a plural: requests to others are counted as `other`.
    pub fn know_kind(&self, group: &str, plural: &str, kind: &str) {
        lock(&self.observed.kinds).insert((group.to_owned(), plural.to_owned()), kind.into());
    }

    /// The API server has begun to answer, or `code` is `None` and it never did.
    pub fn api_request(
        &self,
        verb: &'static str,
        group: &str,
        plural: &str,
        code: Option<u16>,
        took: Duration,
    ) {
        // The map is small: the kinds of the configuration.
        let known = lock(&self.observed.kinds)
            .get(&(group.to_owned(), plural.to_owned()))
            .cloned();
        let kind = KeyValue::new("kind", known.unwrap_or_else(|| "other".into()));
        let verb = KeyValue::new("verb", verb);
        self.api_request_duration
            .record(milliseconds(took), &[verb.clone(), kind.clone()]);
        let code = code.map_or_else(|| "none".to_owned(), |code| code.to_string());
        self.api_requests
            .add(1, &[verb, kind, KeyValue::new("code", code)]);
    }

    /// Whether this replica leads a controller or stands by; `None` when it has the controller no more. A host without
    /// leader election always leads.
    pub fn set_leader(&self, controller: &str, leads: Option<bool>) {
        let mut leaders = lock(&self.observed.leaders);
        match leads {
            Some(leads) => leaders.insert(controller.into(), leads),
            None => leaders.remove(controller),
        };
    }

    /// Whether the webhook's certificate is one that the API server takes.
    pub fn set_webhook(&self, serves: bool) {
        *lock(&self.observed.webhook) = Some(serves);
    }

    /// A resource was reviewed before it was written: `allowed`, `denied`, or `failed` when there was no verdict.
    pub fn admission(&self, controller: &str, result: &'static str) {
        let labels = [
            KeyValue::new("controller", controller.to_owned()),
            KeyValue::new("result", result),
        ];
        self.admissions.add(1, &labels);
    }

    /// One more Event was dropped; how many were before it.
    pub fn event_dropped(&self) -> u64 {
        self.observed.events_dropped.fetch_add(1, Ordering::Relaxed)
    }
}

/// The instruments as one controller uses them. Cheap to clone.
#[derive(Clone, Debug)]
pub struct ControllerMetrics {
    metrics: Arc<Metrics>,
    name: Arc<str>,
    controller: KeyValue,
    kind: KeyValue,
}

impl ControllerMetrics {
    /// A pass has ended. `waited` is the time in the queue before it.
    pub fn reconciled(&self, trigger: &'static str, waited: Duration, took: Duration) {
        let labels = [
            self.controller.clone(),
            self.kind.clone(),
            KeyValue::new("trigger", trigger),
        ];
        self.metrics.reconcile_count.add(1, &labels);
        self.metrics
            .reconcile_duration
            .record(milliseconds(took), &labels[..2]);
        self.metrics
            .queue_duration
            .record(milliseconds(waited), &labels[..1]);
    }

    /// A pass did not come to its end.
    pub fn failed(&self, class: &'static str) {
        let labels = [
            self.controller.clone(),
            self.kind.clone(),
            KeyValue::new("class", class),
        ];
        self.metrics.reconcile_errors.add(1, &labels);
    }

    /// A child was created.
    pub fn created(&self, child: &Kind) {
        self.metrics.resource_created.add(1, &self.child(child));
    }

    /// A child was changed.
    pub fn updated(&self, child: &Kind) {
        self.metrics.resource_updated.add(1, &self.child(child));
    }

    /// A child was deleted.
    pub fn deleted(&self, child: &Kind) {
        self.metrics.resource_deleted.add(1, &self.child(child));
    }

    /// A plugin call has ended; `class` is `ok` or the class of its failure.
    pub fn called(&self, export: &'static str, class: &'static str, took: Duration, stats: &CallStats) {
        let labels = [
            self.controller.clone(),
            KeyValue::new("export", export),
            KeyValue::new("class", class),
        ];
        let metrics = &*self.metrics;
        metrics.plugin_call_duration.record(milliseconds(took), &labels);
        metrics
            .plugin_wait_duration
            .record(milliseconds(stats.waited), &labels[..1]);
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

    /// A version of the plugin answers from now on.
    pub fn plugin_live(&self, plugin: &Plugin) {
        let Description { name, version, .. } = plugin.description();
        self.live(
            name.clone(),
            version.clone(),
            plugin.digest().to_string(),
            plugin.compile_time(),
        );
    }

    fn live(&self, plugin: String, version: String, digest: String, compiled: Duration) {
        let labels = std::slice::from_ref(&self.controller);
        self.metrics
            .plugin_compile_duration
            .record(milliseconds(compiled), labels);
        let labels = [
            KeyValue::new("plugin", plugin),
            KeyValue::new("version", version),
            KeyValue::new("digest", digest),
        ];
        lock(&self.metrics.observed.plugins).insert(Arc::clone(&self.name), labels);
    }

    /// This version is held back from now on, in place of any other; `None`: none is.
    pub fn plugin_held_back(&self, plugin: Option<&Plugin>) {
        let version = plugin.map(|plugin| {
            let Description { name, version, .. } = plugin.description();
            (name.clone(), version.clone(), plugin.digest().to_string())
        });
        self.held_back(version);
    }

    fn held_back(&self, version: Option<(String, String, String)>) {
        let mut held = lock(&self.metrics.observed.held_back);
        match version {
            None => held.remove(&self.name),
            Some((plugin, version, digest)) => {
                let labels = [
                    KeyValue::new("plugin", plugin),
                    KeyValue::new("version", version),
                    KeyValue::new("digest", digest),
                ];
                held.insert(Arc::clone(&self.name), labels)
            }
        };
    }

    /// A plugin file was taken (`loaded`), or the word says why not.
    pub fn reloaded(&self, result: &'static str) {
        self.metrics
            .plugin_reloads
            .add(1, &[self.controller.clone(), KeyValue::new("result", result)]);
    }

    /// A plugin call was not recorded though it should have been.
    pub fn record_dropped(&self) {
        self.metrics
            .records_dropped
            .add(1, std::slice::from_ref(&self.controller));
    }

    /// Reads a queue from now on, in place of the one that this controller had before.
    pub fn queue(&self, gauge: impl Fn() -> Option<(usize, Duration)> + Send + Sync + 'static) {
        lock(&self.metrics.observed.queues).insert(Arc::clone(&self.name), Box::new(gauge));
    }

    fn child(&self, child: &Kind) -> [KeyValue; 2] {
        [self.controller.clone(), KeyValue::new("kind", child.kind.clone())]
    }
}
