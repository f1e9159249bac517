//! The exporters: OTLP over gRPC or HTTP, with TLS. They are made again when the files of certificates and keys change.

use std::fmt;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use anyhow::Context as _;
use opentelemetry_otlp::{
    LogExporter, MetricExporter, SpanExporter, WithExportConfig, WithHttpConfig, WithTonicConfig,
};
use opentelemetry_sdk::Resource;
use opentelemetry_sdk::error::OTelSdkResult;
use opentelemetry_sdk::logs::{LogBatch, LogExporter as _};
use opentelemetry_sdk::metrics::Temporality;
use opentelemetry_sdk::metrics::data::ResourceMetrics;
use opentelemetry_sdk::metrics::exporter::PushMetricExporter;
use opentelemetry_sdk::trace::{SpanData, SpanExporter as _};
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, PrivateKeyDer};
use tokio::runtime::Handle;
use tonic::transport::{Certificate, ClientTlsConfig, Identity};

use super::http::Http;
use super::outlet::Outlet;
use super::settings::{Export, Protocol};
use operator_host_cluster::renewed::{Renewed, Source};

const UNFIT: &str = "cannot use the certificates that the environment names for OTLP";
const UNUSABLE: &str = "cannot export as the environment says";

/// An exporter that follows its files, and tells its outlet what became of each export.
pub(super) struct Exporter<E> {
    made: Renewed<Files<E>>,
    outlet: Arc<Outlet>,
}

impl<E> fmt::Debug for Exporter<E> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Exporter")
    }
}

/// How to make an exporter.
struct Files<E> {
    export: Export,
    resource: Resource,
    make: fn(&Export, &Resource) -> anyhow::Result<E>,
    /// The exporters' threads are not tokio's.
    runtime: Handle,
}

impl<E> Source for Files<E> {
    type Contents = Vec<Vec<u8>>;
    type Value = E;
    type Error = anyhow::Error;

    fn what(&self) -> String {
        format!("what the environment names for OTLP to {}", self.export.endpoint)
    }

    fn read(&self) -> anyhow::Result<Vec<Vec<u8>>> {
        let client = self.export.client.iter();
        let client = client.flat_map(|(certificate, key)| [certificate, key]);
        let files = self.export.certificate.iter().chain(client);
        files.map(|file| read(file)).collect()
    }

    fn make(&self, _: &Vec<Vec<u8>>) -> anyhow::Result<E> {
        let _runtime = self.runtime.enter();
        (self.make)(&self.export, &self.resource)
    }
}

macro_rules! exporter {
    ($name:ident, $exporter:ident, $set_resource:expr) => {
        /// Creates an exporter, and sends nothing yet. Needs a runtime around it.
        pub(super) fn $name(
            export: &Export,
            resource: &Resource,
            outlet: Arc<Outlet>,
        ) -> anyhow::Result<Exporter<$exporter>> {
            fn make(export: &Export, resource: &Resource) -> anyhow::Result<$exporter> {
                let builder = $exporter::builder();
                let mut made = match export.protocol {
                    Protocol::Grpc => builder
                        .with_tonic()
                        .with_tls_config(grpc_tls(export)?)
                        .build(),
                    Protocol::Http => builder
                        .with_http()
                        .with_protocol(opentelemetry_otlp::Protocol::HttpBinary)
                        .with_http_client(Http::new(http_tls(export)?))
                        .build(),
                }
                .context(UNUSABLE)?;
                $set_resource(&mut made, resource);
                Ok(made)
            }
            let files = Files {
                export: export.clone(),
                resource: resource.clone(),
                make,
                runtime: Handle::current(),
            };
            let made = Renewed::new(files)?;
            Ok(Exporter { made, outlet })
        }
    };
}

exporter!(spans, SpanExporter, SpanExporter::set_resource);
exporter!(logs, LogExporter, LogExporter::set_resource);
exporter!(metrics, MetricExporter, |_: &mut _, _: &Resource| {});

impl opentelemetry_sdk::trace::SpanExporter for Exporter<SpanExporter> {
    async fn export(&self, batch: Vec<SpanData>) -> OTelSdkResult {
        let made = self.made.current();
        self.outlet.send(batch.len(), made.export(batch)).await
    }

    fn force_flush(&self) -> OTelSdkResult {
        self.made.current().force_flush()
    }

    fn shutdown_with_timeout(&self, timeout: Duration) -> OTelSdkResult {
        self.made.current().shutdown_with_timeout(timeout)
    }
}

impl opentelemetry_sdk::logs::LogExporter for Exporter<LogExporter> {
    async fn export(&self, batch: LogBatch<'_>) -> OTelSdkResult {
        let made = self.made.current();
        self.outlet.send(batch.iter().count(), made.export(batch)).await
    }

    fn shutdown_with_timeout(&self, timeout: Duration) -> OTelSdkResult {
        self.made.current().shutdown_with_timeout(timeout)
    }
}

impl PushMetricExporter for Exporter<MetricExporter> {
    async fn export(&self, metrics: &ResourceMetrics) -> OTelSdkResult {
        let result = self.made.current().export(metrics).await;
        self.outlet.sent(&result, 1);
        result
    }

    fn force_flush(&self) -> OTelSdkResult {
        self.made.current().force_flush()
    }

    fn shutdown_with_timeout(&self, timeout: Duration) -> OTelSdkResult {
        self.made.current().shutdown_with_timeout(timeout)
    }

    fn temporality(&self) -> Temporality {
        PushMetricExporter::temporality(&*self.made.current())
    }
}

fn read(file: &Path) -> anyhow::Result<Vec<u8>> {
    std::fs::read(file).with_context(|| unusable(file))
}

fn unusable(file: &Path) -> String {
    let file = file.display();
    format!("cannot read {file}, which the environment names for OTLP")
}

/// Used only for an endpoint that begins with `https`.
fn grpc_tls(export: &Export) -> anyhow::Result<ClientTlsConfig> {
    let mut tls = ClientTlsConfig::new().with_native_roots();
    if let Some(file) = &export.certificate {
        tls = tls.ca_certificate(Certificate::from_pem(read(file)?));
    }
    if let Some((certificate, key)) = &export.client {
        tls = tls.identity(Identity::from_pem(read(certificate)?, read(key)?));
    }
    Ok(tls)
}

fn http_tls(export: &Export) -> anyhow::Result<rustls::ClientConfig> {
    let mut roots = rustls::RootCertStore::empty();
    roots.add_parsable_certificates(rustls_native_certs::load_native_certs().certs);
    if let Some(file) = &export.certificate {
        for certificate in certificates(file)? {
            roots.add(certificate).context(UNFIT)?;
        }
    }
    let tls = rustls::ClientConfig::builder().with_root_certificates(roots);
    Ok(match &export.client {
        Some((certificate, key)) => {
            let key_der = PrivateKeyDer::from_pem_slice(&read(key)?).with_context(|| unusable(key))?;
            tls.with_client_auth_cert(certificates(certificate)?, key_der)
                .context(UNFIT)?
        }
        None => tls.with_no_client_auth(),
    })
}

fn certificates(file: &Path) -> anyhow::Result<Vec<CertificateDer<'static>>> {
    let pem = read(file)?;
    let certificates: Result<_, _> = CertificateDer::pem_slice_iter(&pem).collect();
    certificates.with_context(|| unusable(file))
}
