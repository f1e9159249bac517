//! The exporters: OTLP over gRPC or HTTP, with TLS.

use std::path::Path;

use anyhow::Context as _;
use opentelemetry_otlp::{
    LogExporter, MetricExporter, SpanExporter, WithExportConfig, WithHttpConfig, WithTonicConfig,
};
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, PrivateKeyDer};
use tonic::transport::{Certificate, ClientTlsConfig, Identity};

use super::http::Http;
use super::settings::{Export, Protocol};

const UNFIT: &str = "cannot use the certificates that the environment names for OTLP";
const UNUSABLE: &str = "cannot export as the environment says";

macro_rules! exporter {
    ($name:ident, $exporter:ident) => {
        /// Creates an exporter.
        ///
        /// # Errors
        /// When the environment names something that cannot be used. Nothing is sent yet.
        pub(super) fn $name(export: &Export) -> anyhow::Result<$exporter> {
            let builder = $exporter::builder();
            match export.protocol {
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
            .context(UNUSABLE)
        }
    };
}

exporter!(spans, SpanExporter);
exporter!(metrics, MetricExporter);
exporter!(logs, LogExporter);

fn read(file: &Path) -> anyhow::Result<Vec<u8>> {
    std::fs::read(file).with_context(|| unusable(file))
}

fn unusable(file: &Path) -> String {
    format!(
        "cannot read {}, which the environment names for OTLP",
        file.display()
    )
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
    CertificateDer::pem_slice_iter(&pem)
        .collect::<Result<_, _>>()
        .with_context(|| unusable(file))
}
