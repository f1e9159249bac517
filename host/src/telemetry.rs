//! Starts the log and the export of spans, metrics and log records before everything else, and shuts them down last.

pub mod settings;

pub mod export;
mod http;
mod outlet;

pub mod log;

use std::sync::Arc;
use std::time::Duration;

use anyhow::Context as _;
use opentelemetry::KeyValue;
use opentelemetry::metrics::MeterProvider;
use opentelemetry_appender_tracing::layer::{OpenTelemetryTracingBridge, TracingSpanAttributes};
use opentelemetry_sdk::Resource;
use opentelemetry_sdk::logs::{BatchLogProcessor, SdkLoggerProvider};
use opentelemetry_sdk::metrics::{PeriodicReader, SdkMeterProvider};
use opentelemetry_sdk::trace::{BatchSpanProcessor, Config, Sampler, SdkTracerProvider};
use prometheus::Registry;
use tracing::{info, warn};
use tracing_subscriber::Layer as _;

use self::log::BoxedLayer;
use self::outlet::{Outlet, Queued};
use self::settings::Export;
use operator_host_instruments::Instruments;

use operator_host_telemetry::metrics::Metrics;
use operator_host_telemetry::metrics::losses::{Losses, Signal};
use operator_host_telemetry::trace::{self, Tracer};

/// The timeout for the export of what is left when the process ends.
const FLUSH: Duration = Duration::from_secs(3);

/// The exporters and instruments of the process.
pub struct Telemetry {
    traces: Option<SdkTracerProvider>,
    logs: Option<SdkLoggerProvider>,
    meters: SdkMeterProvider,
    /// The metrics that `/metrics` serves.
    pub(crate) registry: Registry,
    /// The instruments for the rest of the program.
    pub(crate) instruments: Instruments,
    exports: Vec<(Signal, Export)>,
}

impl Telemetry {
    /// Starts the exporters that the environment configures, and prepares `/metrics`. Must run in a tokio runtime. Sends and logs
    /// nothing yet, so the log may start later.
    ///
    /// # Errors
    /// When the configured collector cannot be used, for example because a certificate file does not exist.
    pub fn start() -> anyhow::Result<Self> {
        let variable = |name: &str| std::env::var(name).ok();
        let resource = resource();
        let losses = Arc::new(Losses::default());
        let mut exports = Vec::new();

        let (mut traces, mut logs) = (None, None);
        if let Some(export) = settings::read(Signal::Traces, variable) {
            let outlet = Outlet::new(Signal::Traces, &export, &losses);
            let exporter = export::spans(&export, &resource, Arc::clone(&outlet))?;
            let batch = BatchSpanProcessor::builder(exporter).build();
            exports.push((Signal::Traces, export));
            let builder = SdkTracerProvider::builder()
                .with_resource(resource.clone())
                // The tracer applies the sampler of the environment before it creates a span.
                .with_sampler(Sampler::AlwaysOn);
            traces = Some(builder.with_span_processor(Queued { batch, outlet }).build());
        }
        if let Some(export) = settings::read(Signal::Logs, variable) {
            let outlet = Outlet::new(Signal::Logs, &export, &losses);
            let exporter = export::logs(&export, &resource, Arc::clone(&outlet))?;
            let batch = BatchLogProcessor::builder(exporter).build();
            exports.push((Signal::Logs, export));
            let builder = SdkLoggerProvider::builder().with_resource(resource.clone());
            logs = Some(builder.with_log_processor(Queued { batch, outlet }).build());
        }

        let registry = Registry::new();
        let scraped = opentelemetry_prometheus::exporter()
            .with_registry(registry.clone())
            .scope_info_enabled(false);
        let mut own = SdkMeterProvider::builder()
            .with_resource(resource.clone())
            .with_reader(scraped.build().context("cannot prepare /metrics")?);
        if let Some(export) = settings::read(Signal::Metrics, variable) {
            let outlet = Outlet::new(Signal::Metrics, &export, &losses);
            let exporter = export::metrics(&export, &resource, outlet)?;
            own = own.with_reader(PeriodicReader::builder(exporter).build());
            exports.push((Signal::Metrics, export));
        }
        let meters = own.build();
        let metrics = Metrics::new(&meters.meter("operator-host"), losses);
        let tracer = match traces {
            Some(_) => Tracer::new(Config::default().sampler),
            None => Tracer::default(),
        };
        let instruments = Instruments {
            metrics: Arc::new(metrics),
            tracer,
            health: Arc::default(),
            recorder: None,
            journal: None,
        };
        Ok(Self {
            traces,
            logs,
            meters,
            registry,
            instruments,
            exports,
        })
    }

    /// Returns the layer that exports spans, if a collector for them is configured.
    pub fn spans(&self) -> Option<BoxedLayer> {
        self.traces.as_ref().map(|traces| trace::layer(traces).boxed())
    }

    /// Returns the layer that exports log records, with the fields of the spans around them, if that is configured. The
    /// SDK adds the IDs of the current trace and span.
    pub fn records(&self) -> Option<BoxedLayer> {
        let builder = OpenTelemetryTracingBridge::builder(self.logs.as_ref()?);
        let layer = builder
            .with_tracing_span_attributes(TracingSpanAttributes::all())
            .build();
        Some(layer.boxed())
    }

    /// Logs the exported signals and their collectors.
    pub fn log_exports(&self) {
        for (signal, export) in &self.exports {
            info!(endpoint = export.endpoint, protocol = ?export.protocol, "exporting {}", signal.as_str());
        }
    }

    /// Exports the last spans, metrics and log records, for three seconds at most.
    pub async fn shut_down(self) {
        let (done, wait) = tokio::sync::oneshot::channel();
        // This is a thread and not a task, because the runtime would wait for the task without a limit when it ends.
        let flush = std::thread::Builder::new()
            .name("telemetry-flush".into())
            .spawn(move || {
                // Failed exports are already logged.
                let _ = self.meters.shutdown();
                let _ = self.traces.map(|traces| traces.shutdown_with_timeout(FLUSH));
                let _ = self.logs.map(|logs| logs.shutdown_with_timeout(FLUSH));
                let _ = done.send(());
            });
        if flush.is_ok() && tokio::time::timeout(FLUSH, wait).await.is_err() {
            warn!("the collector did not accept the last telemetry within {FLUSH:?}");
        }
    }
}

/// Returns the resource attributes of the process: those of `OTEL_SERVICE_NAME` and `OTEL_RESOURCE_ATTRIBUTES`,
/// completed with the service's name, version and instance.
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
    // In a pod, `HOSTNAME` is the name of the pod.
    if let Ok(host) = std::env::var("HOSTNAME") {
        let in_pod = std::env::var_os("KUBERNETES_SERVICE_HOST").is_some();
        let keys = ["service.instance.id"]
            .into_iter()
            .chain(in_pod.then_some("k8s.pod.name"));
        for key in keys.filter(|key| known(key).is_none()) {
            builder = builder.with_attribute(KeyValue::new(key, host.clone()));
        }
    }
    builder.build()
}
