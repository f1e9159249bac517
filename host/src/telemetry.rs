//! Export of spans and metrics, and the log: started once, before anything else, and shut down last.

pub mod settings;

pub mod export;
mod http;
pub mod losses;
mod outlet;

pub mod log;

use std::sync::Arc;
use std::time::Duration;

use opentelemetry::KeyValue;
use opentelemetry::metrics::MeterProvider;
use opentelemetry_sdk::Resource;
use opentelemetry_sdk::metrics::{PeriodicReader, SdkMeterProvider};
use opentelemetry_sdk::trace::{Config, Sampler, SdkTracerProvider};
use thiserror::Error;
use tracing::{info, warn};
use tracing_subscriber::Layer as _;

use self::export::ExportError;
use self::log::BoxedLayer;
use self::losses::Losses;
use self::outlet::{Reported, Spans};
use self::settings::{Export, Signal};
use crate::health::Health;
use crate::metrics::Metrics;
use crate::record::Recorder;
use crate::trace::{self, Tracer};

/// How long the last spans and metrics may take to reach the collector when the process ends.
const FLUSH: Duration = Duration::from_secs(3);

/// Why telemetry does not start.
#[derive(Debug, Error)]
pub enum TelemetryError {
    /// The environment names a collector that cannot be used.
    #[error(transparent)]
    Export(#[from] ExportError),
    /// The instruments cannot be read for `/metrics`.
    #[error("cannot prepare /metrics: {0}")]
    Prometheus(#[from] opentelemetry_sdk::error::OTelSdkError),
}

/// What the rest of the program holds of all this. Cheap to clone.
#[derive(Clone)]
pub struct Instruments {
    /// What is measured.
    pub metrics: Arc<Metrics>,
    /// Starts spans: makes none when no collector is named.
    pub tracer: Tracer,
    /// What the health port says.
    pub health: Arc<Health>,
    /// Where plugin calls are recorded, if they are.
    pub recorder: Option<Recorder>,
}

impl Instruments {
    /// Nobody reads them.
    #[must_use]
    pub fn unread() -> Self {
        Self {
            metrics: Arc::new(Metrics::unread()),
            tracer: Tracer::default(),
            health: Arc::default(),
            recorder: None,
        }
    }
}

/// What is exported, and to where.
pub struct Telemetry {
    traces: Option<SdkTracerProvider>,
    meters: SdkMeterProvider,
    registry: prometheus::Registry,
    instruments: Instruments,
    exports: Vec<(Signal, Export)>,
}

impl Telemetry {
    /// As the process's environment says. Needs a tokio runtime around it; nothing is sent yet. The log may start after
    /// it: nothing is said yet either.
    ///
    /// # Errors
    /// When the environment names a collector that cannot be used, such as a certificate that is not there.
    pub fn start() -> Result<Self, TelemetryError> {
        let variable = |name: &str| std::env::var(name).ok();
        let resource = resource();
        let losses = Arc::new(Losses::default());
        let mut exports = Vec::new();

        let traces = match settings::read(Signal::Traces, variable) {
            None => None,
            Some(export) => {
                let spans = Spans::start(&export, export::spans(&export)?, Arc::clone(&losses));
                exports.push((Signal::Traces, export));
                let builder = SdkTracerProvider::builder()
                    .with_resource(resource.clone())
                    // The sampler that the environment names is asked before a span is made.
                    .with_sampler(Sampler::AlwaysOn);
                Some(builder.with_span_processor(spans).build())
            }
        };

        let registry = prometheus::Registry::new();
        let scrape = opentelemetry_prometheus::exporter()
            .with_registry(registry.clone())
            .scope_info_enabled(false)
            .build()?;
        let mut meters = SdkMeterProvider::builder()
            .with_resource(resource)
            .with_reader(scrape);
        if let Some(export) = settings::read(Signal::Metrics, variable) {
            let exporter = Reported::new(&export, export::metrics(&export)?, Arc::clone(&losses));
            meters = meters.with_reader(PeriodicReader::builder(exporter).build());
            exports.push((Signal::Metrics, export));
        }
        let meters = meters.build();
        let metrics = Arc::new(Metrics::new(&meters.meter("operator-host"), losses));
        let tracer = match traces {
            Some(_) => Tracer::new(Config::default().sampler),
            None => Tracer::default(),
        };
        let instruments = Instruments {
            metrics,
            tracer,
            health: Arc::default(),
            recorder: None,
        };
        Ok(Self {
            traces,
            meters,
            registry,
            instruments,
            exports,
        })
    }

    /// What makes spans of this host's go where the environment says.
    #[must_use]
    pub fn spans(&self) -> Option<BoxedLayer> {
        self.traces.as_ref().map(|traces| trace::layer(traces).boxed())
    }

    /// Says what is exported, and to where.
    pub fn say(&self) {
        for (signal, export) in &self.exports {
            info!(endpoint = export.endpoint, protocol = ?export.protocol, "exporting {}", signal.as_str());
        }
    }

    /// What the rest of the program holds.
    #[must_use]
    pub fn instruments(&self) -> Instruments {
        self.instruments.clone()
    }

    /// What `/metrics` shows.
    #[must_use]
    pub fn registry(&self) -> prometheus::Registry {
        self.registry.clone()
    }

    /// Sends what is left, for three seconds at most.
    pub async fn shut_down(self) {
        let (done, wait) = tokio::sync::oneshot::channel();
        // Not a task: the runtime would wait for it when it ends, however long the collector takes.
        let flush = std::thread::Builder::new()
            .name("telemetry-flush".into())
            .spawn(move || {
                // What went wrong was said when it went wrong.
                let _ = self.meters.shutdown();
                let _ = self.traces.map(|traces| traces.shutdown_with_timeout(FLUSH));
                let _ = done.send(());
            });
        if flush.is_ok() && tokio::time::timeout(FLUSH, wait).await.is_err() {
            warn!("the collector did not take the last telemetry within {FLUSH:?}");
        }
    }
}

/// Who sends: `OTEL_SERVICE_NAME` and `OTEL_RESOURCE_ATTRIBUTES`, and what is known where they are silent.
fn resource() -> Resource {
    let given = Resource::builder().build();
    let mut builder = Resource::builder();
    let known = |key: &'static str| given.get(&key.into()).map(|value| value.to_string());
    if known("service.name").is_none_or(|name| name.starts_with("unknown_service")) {
        builder = builder.with_service_name("operator-host");
    }
    if known("service.version").is_none() {
        builder = builder.with_attribute(KeyValue::new("service.version", env!("CARGO_PKG_VERSION")));
    }
    // In a pod this is the pod's name.
    if let (None, Ok(instance)) = (known("service.instance.id"), std::env::var("HOSTNAME")) {
        builder = builder.with_attribute(KeyValue::new("service.instance.id", instance));
    }
    builder.build()
}
