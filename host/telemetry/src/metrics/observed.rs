//! Instruments whose values are read at the time of an export or a scrape.

use std::collections::{BTreeMap, HashMap};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use opentelemetry::KeyValue;
use opentelemetry::metrics::{AsyncInstrument, Meter};

use super::definitions as define;
use super::losses::Losses;
use super::parents::Parents;
use super::process;
use operator_host_core::sync::lock;

/// The state that is read at that time, instead of being recorded on each change.
#[derive(Default)]
pub(super) struct Observed {
    pub(super) controllers: Mutex<BTreeMap<Arc<str>, ObservedController>>,
    pub(super) kinds: Mutex<HashMap<(String, String), Arc<str>>>,
    pub(super) leader: Mutex<Option<bool>>,
    pub(super) webhook: Mutex<Option<bool>>,
    pub(super) events_dropped: AtomicU64,
}

/// The state of one controller, as far as it was set.
#[derive(Default)]
pub(super) struct ObservedController {
    pub(super) queue: Option<QueueGauge>,
    /// The live version of its plugin.
    pub(super) plugin: Option<[KeyValue; 3]>,
    pub(super) held_back: Option<[KeyValue; 3]>,
    /// The number of its children that others change back.
    pub(super) contested: Option<Arc<AtomicU64>>,
    pub(super) parents: Option<Arc<Parents>>,
}

impl ObservedController {
    /// Returns the state of the queue, if there has been one.
    pub(super) fn queue(&self) -> Option<QueueState> {
        self.queue.as_ref().map(|read| read().unwrap_or_default())
    }
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

/// Returns a callback that reads values of each controller. What `read` observes gets the label with the controller's name.
pub(super) fn each<T>(
    observed: &Arc<Observed>,
    read: impl Fn(&ObservedController, &dyn Fn(T, &[KeyValue])) + Send + Sync + 'static,
) -> impl Fn(&dyn AsyncInstrument<T>) + Send + Sync + 'static {
    let observed = Arc::clone(observed);
    move |instrument| {
        for (name, controller) in &*lock(&observed.controllers) {
            let label = [KeyValue::new("controller", Arc::clone(name))];
            read(controller, &|value, more| {
                instrument.observe(value, &[&label, more].concat());
            });
        }
    }
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
    macro_rules! of_each {
        ($kind:ident, $definition:expr, $read:expr) => {
            instrument!($kind, $definition, each(observed, $read))
        };
    }

    of_each!(u64_observable_gauge, define::QUEUE_DEPTH, |it, observe| {
        if let Some(queue) = it.queue() {
            observe(queue.waiting as u64, &[]);
        }
    });
    of_each!(f64_observable_gauge, define::QUEUE_AGE, |it, observe| {
        if let Some(queue) = it.queue() {
            observe(queue.oldest.as_secs_f64(), &[]);
        }
    });
    of_each!(u64_observable_gauge, define::WORKERS, |it, observe| {
        if let Some(QueueState { busy, workers, .. }) = it.queue() {
            let idle = workers.saturating_sub(busy);
            observe(busy as u64, &[KeyValue::new("state", "busy")]);
            observe(idle as u64, &[KeyValue::new("state", "idle")]);
        }
    });
    of_each!(u64_observable_gauge, define::PLUGIN_INFO, |it, observe| {
        if let Some(labels) = &it.plugin {
            observe(1, labels);
        }
    });
    of_each!(u64_observable_gauge, define::PLUGIN_HELD_BACK, |it, observe| {
        if let Some(labels) = &it.held_back {
            observe(1, labels);
        }
    });
    of_each!(u64_observable_gauge, define::CHILDREN_CONTESTED, |it, observe| {
        if let Some(count) = &it.contested {
            observe(count.load(Ordering::Relaxed), &[]);
        }
    });
    of_each!(u64_observable_gauge, define::PARENTS, |it, observe| {
        for ((condition, status), count) in it.parents.iter().flat_map(|parents| parents.counts()) {
            let labels = [("condition", condition), ("status", status)];
            observe(count, &labels.map(|(name, value)| KeyValue::new(name, value)));
        }
    });
    of_each!(f64_observable_gauge, define::UNREADY_AGE, |it, observe| {
        if let Some(parents) = &it.parents {
            observe(parents.unready_for().as_secs_f64(), &[]);
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
