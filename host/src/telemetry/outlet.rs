//! Wraps the exporters: limits the queue, counts the dropped telemetry, and logs once when a collector fails and once
//! when it recovers.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::time::Duration;

use opentelemetry::{Context, InstrumentationScope};
use opentelemetry_otlp::MetricExporter;
use opentelemetry_sdk::Resource;
use opentelemetry_sdk::error::OTelSdkResult;
use opentelemetry_sdk::logs::{BatchLogProcessor, LogBatch, LogExporter, LogProcessor, SdkLogRecord};
use opentelemetry_sdk::metrics::Temporality;
use opentelemetry_sdk::metrics::data::ResourceMetrics;
use opentelemetry_sdk::metrics::exporter::PushMetricExporter;
use opentelemetry_sdk::trace::{self, BatchSpanProcessor, Span, SpanData, SpanProcessor};
use tracing::{info, warn};

use super::export::Exporter;
use super::settings::Export;
use operator_host_telemetry::metrics::losses::{LossReason, Losses, Signal};

/// Logs once when a collector rejects telemetry and once when it accepts it again. Counts the lost telemetry, and what waits in a
/// batch processor, because the processor does not count what it drops.
#[derive(Debug)]
struct Outlet {
    signal: Signal,
    endpoint: String,
    failing: AtomicBool,
    overflowing: AtomicBool,
    losses: Arc<Losses>,
    waiting: AtomicUsize,
    capacity: usize,
}

impl Outlet {
    fn new(signal: Signal, export: &Export, losses: Arc<Losses>) -> Arc<Self> {
        // The batch processor reads the same variable and has the same default. Metrics do not wait.
        let capacity = match signal {
            Signal::Traces => std::env::var("OTEL_BSP_MAX_QUEUE_SIZE"),
            Signal::Logs | Signal::Metrics => std::env::var("OTEL_BLRP_MAX_QUEUE_SIZE"),
        };
        let capacity = capacity.ok().and_then(|size| size.parse().ok());
        Arc::new(Self {
            signal,
            endpoint: export.endpoint.clone(),
            failing: AtomicBool::new(false),
            overflowing: AtomicBool::new(false),
            losses,
            waiting: AtomicUsize::new(0),
            capacity: capacity.unwrap_or(2048),
        })
    }

    fn sent(&self, result: &OTelSdkResult, items: usize) {
        let (signal, endpoint) = (self.signal.as_str(), &self.endpoint);
        match result {
            Ok(()) => {
                if self.failing.swap(false, Ordering::Relaxed) {
                    info!(signal, endpoint, "the collector accepts telemetry again");
                }
            }
            Err(error) => {
                self.losses.add(self.signal, LossReason::Refused, items);
                if !self.failing.swap(true, Ordering::Relaxed) {
                    warn!(signal, endpoint, %error, "the collector does not accept telemetry: dropping it until it does");
                }
            }
        }
    }

    /// Whether there is a place for one more.
    fn admits(&self) -> bool {
        // The count rises before the item is queued and falls before it is sent, so it is never below the real number.
        if self.waiting.fetch_add(1, Ordering::Relaxed) < self.capacity {
            return true;
        }
        self.waiting.fetch_sub(1, Ordering::Relaxed);
        self.losses.add(self.signal, LossReason::QueueFull, 1);
        if !self.overflowing.swap(true, Ordering::Relaxed) {
            let (signal, endpoint) = (self.signal.as_str(), &self.endpoint);
            warn!(
                signal,
                endpoint, "telemetry is produced faster than the collector accepts it: dropping some"
            );
        }
        false
    }

    async fn send(&self, items: usize, export: impl Future<Output = OTelSdkResult>) -> OTelSdkResult {
        self.waiting.fetch_sub(items, Ordering::Relaxed);
        let result = export.await;
        self.sent(&result, items);
        result
    }
}

/// The methods that do what those of the wrapped field do.
macro_rules! delegated {
    ($field:tt) => {
        fn force_flush(&self) -> OTelSdkResult {
            self.$field.force_flush()
        }

        fn shutdown_with_timeout(&self, timeout: Duration) -> OTelSdkResult {
            self.$field.shutdown_with_timeout(timeout)
        }

        fn set_resource(&mut self, resource: &Resource) {
            self.$field.set_resource(resource);
        }
    };
}

/// A batch processor of spans or log records, with a bounded and counted queue.
#[derive(Debug)]
pub(super) struct Queued<B> {
    batch: B,
    outlet: Arc<Outlet>,
}

impl Queued<BatchSpanProcessor> {
    /// Starts the export thread.
    pub(super) fn spans(
        export: &Export,
        exporter: impl trace::SpanExporter + 'static,
        losses: Arc<Losses>,
    ) -> Self {
        let outlet = Outlet::new(Signal::Traces, export, losses);
        let exporter = Counted(exporter, Arc::clone(&outlet));
        Self {
            batch: BatchSpanProcessor::builder(exporter).build(),
            outlet,
        }
    }
}

impl Queued<BatchLogProcessor> {
    /// Starts the export thread.
    pub(super) fn logs(export: &Export, exporter: impl LogExporter + 'static, losses: Arc<Losses>) -> Self {
        let outlet = Outlet::new(Signal::Logs, export, losses);
        let exporter = Counted(exporter, Arc::clone(&outlet));
        Self {
            batch: BatchLogProcessor::builder(exporter).build(),
            outlet,
        }
    }
}

impl SpanProcessor for Queued<BatchSpanProcessor> {
    fn on_start(&self, span: &mut Span, context: &Context) {
        self.batch.on_start(span, context);
    }

    fn on_end(&self, span: SpanData) {
        if span.span_context.is_sampled() && self.outlet.admits() {
            self.batch.on_end(span);
        }
    }

    delegated!(batch);
}

impl LogProcessor for Queued<BatchLogProcessor> {
    fn emit(&self, record: &mut SdkLogRecord, scope: &InstrumentationScope) {
        if self.outlet.admits() {
            self.batch.emit(record, scope);
        }
    }

    delegated!(batch);
}

#[derive(Debug)]
struct Counted<E>(E, Arc<Outlet>);

impl<E: trace::SpanExporter> trace::SpanExporter for Counted<E> {
    async fn export(&self, batch: Vec<SpanData>) -> OTelSdkResult {
        self.1.send(batch.len(), self.0.export(batch)).await
    }

    delegated!(0);
}

impl<E: LogExporter> LogExporter for Counted<E> {
    async fn export(&self, batch: LogBatch<'_>) -> OTelSdkResult {
        self.1.send(batch.iter().count(), self.0.export(batch)).await
    }

    fn shutdown_with_timeout(&self, timeout: Duration) -> OTelSdkResult {
        self.0.shutdown_with_timeout(timeout)
    }

    fn set_resource(&mut self, resource: &Resource) {
        self.0.set_resource(resource);
    }
}

/// Logs and counts the failures of a metrics exporter. Counts exports and not values, since values are cumulative:
/// the next export contains those of a failed one.
pub(super) fn metrics(
    export: &Export,
    exporter: Exporter<MetricExporter>,
    losses: Arc<Losses>,
) -> impl PushMetricExporter {
    Counted(exporter, Outlet::new(Signal::Metrics, export, losses))
}

impl PushMetricExporter for Counted<Exporter<MetricExporter>> {
    async fn export(&self, metrics: &ResourceMetrics) -> OTelSdkResult {
        let result = self.0.export(metrics).await;
        self.1.sent(&result, 1);
        result
    }

    fn force_flush(&self) -> OTelSdkResult {
        self.0.force_flush()
    }

    fn shutdown_with_timeout(&self, timeout: Duration) -> OTelSdkResult {
        self.0.shutdown_with_timeout(timeout)
    }

    fn temporality(&self) -> Temporality {
        PushMetricExporter::temporality(&self.0)
    }
}

#[cfg(test)]
mod tests {
    use std::time::Instant;

    use opentelemetry_sdk::trace::SdkTracerProvider;
    use tracing::info_span;
    use tracing_subscriber::layer::SubscriberExt;
    use tracing_subscriber::util::SubscriberInitExt;

    use super::super::settings::Protocol;
    use super::*;
    use operator_host_telemetry::trace::{TARGET, layer};

    /// A collector that receives the first batch and never responds.
    #[derive(Debug)]
    struct Stuck;

    impl trace::SpanExporter for Stuck {
        async fn export(&self, _: Vec<SpanData>) -> OTelSdkResult {
            std::future::pending().await
        }
    }

    #[test]
    fn spans_over_the_bound_are_dropped_and_counted_and_nobody_waits() {
        const SPANS: u64 = 10_000;
        /// The default queue size and the size of a batch.
        const KEPT: u64 = 2048 + 512;
        let export = Export {
            endpoint: "http://stuck".into(),
            protocol: Protocol::Http,
            certificate: None,
            client: None,
        };
        let losses = Arc::new(Losses::default());
        let spans = Queued::spans(&export, Stuck, Arc::clone(&losses));
        let provider = SdkTracerProvider::builder().with_span_processor(spans).build();
        let _exports = tracing_subscriber::registry()
            .with(layer(&provider))
            .set_default();
        let start = Instant::now();
        for _ in 0..SPANS {
            drop(info_span!(target: TARGET, parent: None, "reconcile"));
        }
        assert!(start.elapsed() < Duration::from_secs(2), "{:?}", start.elapsed());
        let dropped = losses
            .all()
            .find(|(signal, reason, _)| (*signal, *reason) == (Signal::Traces, LossReason::QueueFull))
            .map_or(0, |(_, _, count)| count);
        assert!((SPANS - KEPT..=SPANS - 2048).contains(&dropped), "{dropped}");
        // Dropping the provider would wait for the collector.
        std::mem::forget(provider);
    }
}
