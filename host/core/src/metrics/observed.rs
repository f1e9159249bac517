//! Instruments whose values are read at the time of an export or a scrape.

use std::collections::{BTreeMap, HashMap};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use opentelemetry::KeyValue;
use opentelemetry::metrics::Meter;

use super::definitions as define;
use super::losses::Losses;
use super::parents::Parents;
use super::process;

/// The state that is read at that time, instead of being recorded on each change.
#[derive(Default)]
pub(super) struct Observed {
    pub(super) queues: Mutex<BTreeMap<Arc<str>, QueueGauge>>,
    pub(super) plugins: Mutex<BTreeMap<Arc<str>, [KeyValue; 3]>>,
    pub(super) contested: Mutex<BTreeMap<Arc<str>, Arc<AtomicU64>>>,
    pub(super) parents: Mutex<BTreeMap<Arc<str>, Arc<Parents>>>,
    pub(super) held_back: Mutex<BTreeMap<Arc<str>, [KeyValue; 3]>>,
    pub(super) kinds: Mutex<HashMap<(String, String), Arc<str>>>,
    pub(super) leader: Mutex<Option<bool>>,
    pub(super) webhook: Mutex<Option<bool>>,
    pub(super) events_dropped: AtomicU64,
}

impl std::fmt::Debug for Observed {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Observed").finish_non_exhaustive()
    }
}

/// The state of a controller's queue and workers.
#[derive(Clone, Copy, Debug, Default)]
pub struct QueueState {
    /// The number of parents that wait for a worker.
    pub waiting: usize,
    /// How long the first of them has waited.
    pub oldest: Duration,
    /// The number of workers that have a parent.
    pub busy: usize,
    /// The number of all workers.
    pub workers: usize,
}

/// Returns `None` when the queue has been dropped.
pub(super) type QueueGauge = Box<dyn Fn() -> Option<QueueState> + Send + Sync>;

pub(super) fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Creates the instruments whose values are read at the time of an export or a scrape.
pub(super) fn observe(meter: &Meter, observed: &Arc<Observed>, losses: Arc<Losses>) {
    macro_rules! instrument {
        ($kind:ident, $definition:expr, $read:expr) => {{
            let definition = $definition;
            let builder = meter
                .$kind(definition.name)
                .with_unit(definition.unit)
                .with_description(definition.help);
            builder.with_callback($read).build()
        }};
    }
    let label = |name: &Arc<str>| KeyValue::new("controller", Arc::clone(name));

    let state = Arc::clone(observed);
    instrument!(u64_observable_gauge, define::QUEUE_DEPTH, move |gauge| {
        for (controller, read) in &*lock(&state.queues) {
            gauge.observe(read().unwrap_or_default().waiting as u64, &[label(controller)]);
        }
    });
    let state = Arc::clone(observed);
    instrument!(f64_observable_gauge, define::QUEUE_AGE, move |gauge| {
        for (controller, read) in &*lock(&state.queues) {
            gauge.observe(
                read().unwrap_or_default().oldest.as_secs_f64(),
                &[label(controller)],
            );
        }
    });
    let state = Arc::clone(observed);
    instrument!(u64_observable_gauge, define::WORKERS, move |gauge| {
        for (controller, read) in &*lock(&state.queues) {
            let QueueState { busy, workers, .. } = read().unwrap_or_default();
            for (state, count) in [("busy", busy), ("idle", workers.saturating_sub(busy))] {
                gauge.observe(count as u64, &[label(controller), KeyValue::new("state", state)]);
            }
        }
    });
    let state = Arc::clone(observed);
    instrument!(u64_observable_gauge, define::PLUGIN_INFO, move |gauge| {
        for (controller, labels) in &*lock(&state.plugins) {
            let [plugin, version, digest] = labels.clone();
            gauge.observe(1, &[label(controller), plugin, version, digest]);
        }
    });
    let state = Arc::clone(observed);
    instrument!(u64_observable_gauge, define::PLUGIN_HELD_BACK, move |gauge| {
        for (controller, labels) in &*lock(&state.held_back) {
            let [plugin, version, digest] = labels.clone();
            gauge.observe(1, &[label(controller), plugin, version, digest]);
        }
    });
    let state = Arc::clone(observed);
    instrument!(u64_observable_gauge, define::CHILDREN_CONTESTED, move |gauge| {
        for (controller, count) in &*lock(&state.contested) {
            gauge.observe(count.load(Ordering::Relaxed), &[label(controller)]);
        }
    });
    let state = Arc::clone(observed);
    instrument!(u64_observable_gauge, define::PARENTS, move |gauge| {
        for (controller, parents) in &*lock(&state.parents) {
            for ((condition, status), count) in parents.counts() {
                let labels = [
                    label(controller),
                    KeyValue::new("condition", condition),
                    KeyValue::new("status", status),
                ];
                gauge.observe(count, &labels);
            }
        }
    });
    let state = Arc::clone(observed);
    instrument!(f64_observable_gauge, define::UNREADY_AGE, move |gauge| {
        for (controller, parents) in &*lock(&state.parents) {
            gauge.observe(parents.unready_for().as_secs_f64(), &[label(controller)]);
        }
    });
    let state = Arc::clone(observed);
    instrument!(u64_observable_gauge, define::LEADER, move |gauge| {
        if let Some(leads) = *lock(&state.leader) {
            gauge.observe(u64::from(leads), &[]);
        }
    });
    let state = Arc::clone(observed);
    instrument!(u64_observable_gauge, define::WEBHOOK_SERVING, move |gauge| {
        if let Some(serves) = *lock(&state.webhook) {
            gauge.observe(u64::from(serves), &[]);
        }
    });
    let state = Arc::clone(observed);
    instrument!(u64_observable_counter, define::EVENTS_DROPPED, move |counter| {
        counter.observe(state.events_dropped.load(Ordering::Relaxed), &[]);
    });
    instrument!(
        u64_observable_counter,
        define::TELEMETRY_DROPPED,
        move |counter| {
            for (signal, reason, count) in losses.all() {
                let labels = [
                    KeyValue::new("signal", signal.as_str()),
                    KeyValue::new("reason", reason.as_str()),
                ];
                counter.observe(count, &labels);
            }
        }
    );
    instrument!(u64_observable_gauge, define::PROCESS_MEMORY, |gauge| {
        if let Some(usage) = process::usage() {
            gauge.observe(usage.memory, &[]);
        }
    });
    instrument!(f64_observable_counter, define::PROCESS_CPU, |counter| {
        if let Some(usage) = process::usage() {
            counter.observe(usage.user, &[KeyValue::new("cpu.mode", "user")]);
            counter.observe(usage.system, &[KeyValue::new("cpu.mode", "system")]);
        }
    });
}
