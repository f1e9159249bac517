//! The exporters: OTLP over gRPC or HTTP, with TLS, and what is done when the collector does not take it.

use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::time::Duration;

use opentelemetry::Context;
use opentelemetry_otlp::{
    ExporterBuildError, MetricExporter, SpanExporter, WithExportConfig, WithHttpConfig, WithTonicConfig,
};
use opentelemetry_sdk::Resource;
use opentelemetry_sdk::error::OTelSdkResult;
use opentelemetry_sdk::metrics::Temporality;
use opentelemetry_sdk::metrics::data::ResourceMetrics;
use opentelemetry_sdk::metrics::exporter::PushMetricExporter;
use opentelemetry_sdk::trace::{self, BatchSpanProcessor, Span, SpanData, SpanProcessor};
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, PrivateKeyDer};
use thiserror::Error;
use tonic::transport::{Certificate, ClientTlsConfig, Identity};
use tracing::{info, warn};

use super::http::Http;
use super::losses::{Losses, Reason};
use super::settings::{Export, Protocol, Signal};

/// Why nothing can be exported to the collector that the environment names.
#[derive(Debug, Error)]
pub enum ExportError {
    /// A file with a certificate or a key.
    #[error("cannot read {file}, which the environment names for OTLP: {message}")]
    File {
        /// The path.
        file: String,
        /// What is wrong with it.
        message: String,
    },
    /// Certificates that do not fit.
    #[error("cannot use the certificates that the environment names for OTLP: {0}")]
    Tls(#[from] rustls::Error),
    /// Anything else in the environment.
    #[error("cannot export as the environment says: {0}")]
    Build(#[from] ExporterBuildError),
}

/// The exporter of spans.
///
/// # Errors
/// When the environment names something that cannot be used. Nothing is sent yet.
pub(super) fn spans(export: &Export) -> Result<SpanExporter, ExportError> {
    let builder = SpanExporter::builder();
    Ok(match export.protocol {
        Protocol::Grpc => builder.with_tonic().with_tls_config(grpc_tls(export)?).build()?,
        Protocol::Http => builder
            .with_http()
            .with_protocol(opentelemetry_otlp::Protocol::HttpBinary)
            .with_http_client(Http::new(http_tls(export)?))
            .build()?,
    })
}

/// The exporter of metrics; as [`spans`].
pub(super) fn metrics(export: &Export) -> Result<MetricExporter, ExportError> {
    let builder = MetricExporter::builder();
    Ok(match export.protocol {
        Protocol::Grpc => builder.with_tonic().with_tls_config(grpc_tls(export)?).build()?,
        Protocol::Http => builder
            .with_http()
            .with_protocol(opentelemetry_otlp::Protocol::HttpBinary)
            .with_http_client(Http::new(http_tls(export)?))
            .build()?,
    })
}

fn read(file: &Path) -> Result<Vec<u8>, ExportError> {
    std::fs::read(file).map_err(|error| unusable(file, &error))
}

fn unusable(file: &Path, error: &dyn std::fmt::Display) -> ExportError {
    ExportError::File {
        file: file.display().to_string(),
        message: error.to_string(),
    }
}

/// Used only for an endpoint that begins with `https`.
fn grpc_tls(export: &Export) -> Result<ClientTlsConfig, ExportError> {
    let mut tls = ClientTlsConfig::new().with_native_roots();
    if let Some(file) = &export.certificate {
        tls = tls.ca_certificate(Certificate::from_pem(read(file)?));
    }
    if let Some((certificate, key)) = &export.client {
        tls = tls.identity(Identity::from_pem(read(certificate)?, read(key)?));
    }
    Ok(tls)
}

fn http_tls(export: &Export) -> Result<rustls::ClientConfig, ExportError> {
    let mut roots = rustls::RootCertStore::empty();
    roots.add_parsable_certificates(rustls_native_certs::load_native_certs().certs);
    if let Some(file) = &export.certificate {
        for certificate in certificates(file)? {
            roots.add(certificate)?;
        }
    }
    let tls = rustls::ClientConfig::builder().with_root_certificates(roots);
    Ok(match &export.client {
        Some((certificate, key)) => {
            let key_der =
                PrivateKeyDer::from_pem_slice(&read(key)?).map_err(|error| unusable(key, &error))?;
            tls.with_client_auth_cert(certificates(certificate)?, key_der)?
        }
        None => tls.with_no_client_auth(),
    })
}

fn certificates(file: &Path) -> Result<Vec<CertificateDer<'static>>, ExportError> {
    let pem = read(file)?;
    CertificateDer::pem_slice_iter(&pem)
        .collect::<Result<_, _>>()
        .map_err(|error| unusable(file, &error))
}

/// Says once that a collector does not take what is sent, and once when it does again; counts what is lost.
#[derive(Debug)]
struct Outlet {
    signal: Signal,
    endpoint: String,
    failing: AtomicBool,
    overflowing: AtomicBool,
    losses: Arc<Losses>,
}

impl Outlet {
    fn new(signal: Signal, export: &Export, losses: Arc<Losses>) -> Self {
        Self {
            signal,
            endpoint: export.endpoint.clone(),
            failing: AtomicBool::new(false),
            overflowing: AtomicBool::new(false),
            losses,
        }
    }

    fn sent(&self, result: &OTelSdkResult, items: usize) {
        let (signal, endpoint) = (self.signal.as_str(), &self.endpoint);
        match result {
            Ok(()) => {
                if self.failing.swap(false, Ordering::Relaxed) {
                    info!(signal, endpoint, "the collector takes telemetry again");
                }
            }
            Err(error) => {
                self.losses.add(self.signal, Reason::Refused, items);
                if !self.failing.swap(true, Ordering::Relaxed) {
                    warn!(signal, endpoint, %error, "the collector does not take telemetry: it is dropped until it does");
                }
            }
        }
    }

    fn full(&self) {
        self.losses.add(self.signal, Reason::QueueFull, 1);
        if !self.overflowing.swap(true, Ordering::Relaxed) {
            let (signal, endpoint) = (self.signal.as_str(), &self.endpoint);
            warn!(
                signal,
                endpoint, "telemetry is made faster than the collector takes it: some is dropped"
            );
        }
    }
}

/// A batch processor with a bound that is counted: the one underneath drops without telling anybody.
#[derive(Debug)]
pub(super) struct Spans {
    batch: BatchSpanProcessor,
    outlet: Arc<Outlet>,
    waiting: Arc<AtomicUsize>,
    capacity: usize,
}

impl Spans {
    /// Starts the thread that exports.
    pub(super) fn start(export: &Export, exporter: SpanExporter, losses: Arc<Losses>) -> Self {
        let outlet = Arc::new(Outlet::new(Signal::Traces, export, losses));
        let waiting = Arc::new(AtomicUsize::new(0));
        // The variable that the batch processor itself reads, with its default.
        let capacity = std::env::var("OTEL_BSP_MAX_QUEUE_SIZE")
            .ok()
            .and_then(|size| size.parse().ok())
            .unwrap_or(2048);
        let exporter = Counted {
            exporter,
            outlet: Arc::clone(&outlet),
            waiting: Arc::clone(&waiting),
        };
        Self {
            batch: BatchSpanProcessor::builder(exporter).build(),
            outlet,
            waiting,
            capacity,
        }
    }
}

impl SpanProcessor for Spans {
    fn on_start(&self, span: &mut Span, context: &Context) {
        self.batch.on_start(span, context);
    }

    fn on_end(&self, span: SpanData) {
        if !span.span_context.is_sampled() {
            return;
        }
        // Counted before it is handed over and taken off before it is sent, so never fewer than really wait.
        if self.waiting.fetch_add(1, Ordering::Relaxed) >= self.capacity {
            self.waiting.fetch_sub(1, Ordering::Relaxed);
            self.outlet.full();
        } else {
            self.batch.on_end(span);
        }
    }

    fn force_flush(&self) -> OTelSdkResult {
        self.batch.force_flush()
    }

    fn shutdown_with_timeout(&self, timeout: Duration) -> OTelSdkResult {
        self.batch.shutdown_with_timeout(timeout)
    }

    fn set_resource(&mut self, resource: &Resource) {
        self.batch.set_resource(resource);
    }
}

#[derive(Debug)]
struct Counted<E> {
    exporter: E,
    outlet: Arc<Outlet>,
    waiting: Arc<AtomicUsize>,
}

impl<E: trace::SpanExporter> trace::SpanExporter for Counted<E> {
    async fn export(&self, batch: Vec<SpanData>) -> OTelSdkResult {
        let spans = batch.len();
        self.waiting.fetch_sub(spans, Ordering::Relaxed);
        let result = self.exporter.export(batch).await;
        self.outlet.sent(&result, spans);
        result
    }

    fn shutdown_with_timeout(&self, timeout: Duration) -> OTelSdkResult {
        self.exporter.shutdown_with_timeout(timeout)
    }

    fn force_flush(&self) -> OTelSdkResult {
        self.exporter.force_flush()
    }

    fn set_resource(&mut self, resource: &Resource) {
        self.exporter.set_resource(resource);
    }
}

/// The exporter of metrics, with its failures said and counted. What is counted is exports, not values: those
/// are cumulative, and the next export makes up for one that failed.
#[derive(Debug)]
pub(super) struct Reported {
    exporter: MetricExporter,
    outlet: Outlet,
}

impl Reported {
    pub(super) fn new(export: &Export, exporter: MetricExporter, losses: Arc<Losses>) -> Self {
        Self {
            exporter,
            outlet: Outlet::new(Signal::Metrics, export, losses),
        }
    }
}

impl PushMetricExporter for Reported {
    async fn export(&self, metrics: &ResourceMetrics) -> OTelSdkResult {
        let result = self.exporter.export(metrics).await;
        self.outlet.sent(&result, 1);
        result
    }

    fn force_flush(&self) -> OTelSdkResult {
        self.exporter.force_flush()
    }

    fn shutdown_with_timeout(&self, timeout: Duration) -> OTelSdkResult {
        self.exporter.shutdown_with_timeout(timeout)
    }

    fn temporality(&self) -> Temporality {
        PushMetricExporter::temporality(&self.exporter)
    }
}
