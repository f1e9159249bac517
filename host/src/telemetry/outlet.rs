//! What stands between the program and the exporters: limits the queue, counts the dropped telemetry, and logs once when a
//! collector fails and once when it recovers.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::time::Duration;

use opentelemetry::{Context, InstrumentationScope};
use opentelemetry_sdk::error::OTelSdkResult;
use opentelemetry_sdk::logs::{BatchLogProcessor, LogProcessor, SdkLogRecord};
use opentelemetry_sdk::trace::{BatchSpanProcessor, Span, SpanData, SpanProcessor};
use tracing::{info, warn};

use super::settings::Export;
use operator_host_telemetry::metrics::losses::{LossReason, Losses, Signal};

/// Logs once when a collector rejects telemetry and once when it accepts it again. Counts the lost telemetry, and what waits in a
/// batch processor, because the processor does not count what it drops.
#[derive(Debug)]
pub(super) struct Outlet {
    signal: Signal,
    endpoint: String,
    failing: AtomicBool,
    overflowing: AtomicBool,
    losses: Arc<Losses>,
    waiting: AtomicUsize,
    capacity: usize,
}

impl Outlet {
    pub(super) fn new(signal: Signal, export: &Export, losses: &Arc<Losses>) -> Arc<Self> {
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
            losses: Arc::clone(losses),
            waiting: AtomicUsize::new(0),
            capacity: capacity.unwrap_or(2048),
        })
    }

    /// Logs and counts the result of an export. Of metrics the exports count and not the values, which are cumulative: the next
    /// export contains those of a failed one.
    pub(super) fn sent(&self, result: &OTelSdkResult, items: usize) {
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

    /// Exports what has waited in a batch processor.
    pub(super) async fn send(
        &self,
        items: usize,
        export: impl Future<Output = OTelSdkResult>,
    ) -> OTelSdkResult {
        self.waiting.fetch_sub(items, Ordering::Relaxed);
        let result = export.await;
        self.sent(&result, items);
        result
    }
}

/// A batch processor of spans or log records, with a bounded and counted queue.
#[derive(Debug)]
pub(super) struct Queued<B> {
    pub(super) batch: B,
    pub(super) outlet: Arc<Outlet>,
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

    fn force_flush(&self) -> OTelSdkResult {
        self.batch.force_flush()
    }

    fn shutdown_with_timeout(&self, timeout: Duration) -> OTelSdkResult {
        self.batch.shutdown_with_timeout(timeout)
    }
}

impl LogProcessor for Queued<BatchLogProcessor> {
    fn emit(&self, record: &mut SdkLogRecord, scope: &InstrumentationScope) {
        if self.outlet.admits() {
            self.batch.emit(record, scope);
        }
    }

    fn force_flush(&self) -> OTelSdkResult {
        self.batch.force_flush()
    }

    fn shutdown_with_timeout(&self, timeout: Duration) -> OTelSdkResult {
        self.batch.shutdown_with_timeout(timeout)
    }
}

#[cfg(test)]
mod tests {
    use std::time::Instant;

    use opentelemetry_sdk::trace::{SdkTracerProvider, SpanExporter};
    use tracing::info_span;
    use tracing_subscriber::layer::SubscriberExt;
    use tracing_subscriber::util::SubscriberInitExt;

    use super::super::settings::Protocol;
    use super::*;
    use operator_host_telemetry::trace::{TARGET, layer};

    /// A collector that receives the first batch and never responds.
    #[derive(Debug)]
    struct Stuck;

    impl SpanExporter for Stuck {
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
        let spans = Queued {
            batch: BatchSpanProcessor::builder(Stuck).build(),
            outlet: Outlet::new(Signal::Traces, &export, &losses),
        };
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
