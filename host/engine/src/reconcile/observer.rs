//! Reports the work of one controller: metrics, spans and health.

use std::sync::Arc;
use std::time::Duration;

use tracing::Span;

use crate::calls::Calls;
use operator_host_config::ControllerConfig;
use operator_host_core::object::NamespacedName;
use operator_host_instruments::Instruments;
use operator_host_instruments::health::{Health, Pulse, Readiness};
use operator_host_instruments::journal::ControllerJournal;
use operator_host_telemetry::metrics::ControllerMetrics;
use operator_host_telemetry::metrics::parents::Parents;
use operator_host_telemetry::trace;
use operator_host_telemetry::trace::Tracer;

/// The longest time between two beats of the loop that enqueues parents on resyncs and reloads. The loop has its own
/// timer.
const ENQUEUE_PULSE: Duration = Duration::from_secs(60);
/// The longest time without a beat of any worker. One reconcile may wait for many requests of up to half a minute each.
const WORKING: Duration = Duration::from_secs(900);

/// Reports the work of one controller.
pub struct Observer {
    /// The metrics.
    pub metrics: ControllerMetrics,
    /// Counts the parents by their conditions.
    pub parents: Arc<Parents>,
    /// Starts the span of each reconcile.
    pub tracer: Tracer,
    /// The pulse of the loop that enqueues parents on resyncs and reloads.
    pub enqueuing: Pulse,
    /// The pulse that all workers share.
    pub working: Pulse,
    health: Arc<Health>,
    /// Records calls of the plugin.
    pub(super) calls: Calls,
    /// What the controller did last, if somebody may look.
    pub journal: Option<Arc<ControllerJournal>>,
    name: String,
}

impl Observer {
    /// Creates the observer of a controller that is about to start.
    pub fn new(config: &ControllerConfig, instruments: &Instruments) -> Self {
        let (health, journal) = (&instruments.health, &instruments.journal);
        let name = config.id.clone();
        health.set(&name, Readiness::Starting(None));
        let metrics = instruments.metrics.of(&name, &config.parent);
        Self {
            parents: metrics.parents(),
            metrics,
            tracer: instruments.tracer.clone(),
            enqueuing: health.pulse(format!("loop/{name}"), ENQUEUE_PULSE),
            working: health.pulse(format!("workers/{name}"), WORKING),
            health: Arc::clone(health),
            calls: Calls::new(config, instruments),
            journal: journal.as_ref().map(|journal| journal.of(&name)),
            name,
        }
    }

    /// Records why the running reconcile of a parent, with its span, fails.
    pub fn fails(
        &self,
        parent: &NamespacedName,
        class: &'static str,
        error: &impl std::fmt::Display,
        span: &Span,
    ) {
        self.metrics.failed(class);
        if !span.is_disabled() {
            trace::fail(span, class, &error.to_string(), "");
        }
        if let Some(journal) = &self.journal {
            journal.fails(parent, class, &error.to_string());
        }
    }

    /// Reports a reconcile that has ended. `waited` is the time in the queue before it.
    pub fn reconciled(
        &self,
        parent: &NamespacedName,
        reason: &'static str,
        waited: Duration,
        took: Duration,
        span: &Span,
    ) {
        self.metrics.reconciled(reason, waited, took);
        if let Some(journal) = &self.journal {
            journal.done(parent, reason, waited, took, trace::identity(span).as_ref());
        }
    }

    /// Reports that the first lists are in progress, and why the last one failed if it did.
    pub fn starting(&self, error: Option<String>) {
        self.health.set(&self.name, Readiness::Starting(error));
    }

    /// Reports that the controller has started: its first lists are complete, and its plugin was loaded or failed to
    /// load.
    pub fn started(&self) {
        self.health.set(&self.name, Readiness::Ready);
    }
}
