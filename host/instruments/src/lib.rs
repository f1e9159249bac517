//! What the host reports of itself: metrics and spans, the state of its health, the last reconciles, and recorded calls.

pub mod health;
pub mod journal;
pub mod record;
pub mod server;

use std::sync::Arc;

use operator_host_telemetry::metrics::Metrics;
use operator_host_telemetry::trace::Tracer;

use self::health::Health;
use self::journal::Journal;
use self::record::Recorder;

/// The metrics, spans, health and records that the rest of the program reports to. Cheap to clone.
#[derive(Clone)]
pub struct Instruments {
    /// The metrics.
    pub metrics: Arc<Metrics>,
    /// Creates spans, if a collector is configured.
    pub tracer: Tracer,
    /// The state that the health port reports.
    pub health: Arc<Health>,
    /// Records plugin calls, if recording is enabled.
    pub recorder: Option<Recorder>,
    /// What the controllers did last, if somebody may look.
    pub journal: Option<Arc<Journal>>,
}

impl Instruments {
    /// Creates instruments that export nothing.
    pub fn unread() -> Self {
        Self {
            metrics: Arc::new(Metrics::unread()),
            tracer: Tracer::default(),
            health: Arc::default(),
            recorder: None,
            journal: None,
        }
    }
}
