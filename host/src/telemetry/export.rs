//! The exporters: OTLP over gRPC or HTTP, with TLS.

use std::path::Path;

use opentelemetry_otlp::{
    ExporterBuildError, LogExporter, MetricExporter, SpanExporter, WithExportConfig, WithHttpConfig,
    WithTonicConfig,
};
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, PrivateKeyDer};
use thiserror::Error;
use tonic::transport::{Certificate, ClientTlsConfig, Identity};

use super::http::Http;
use super::settings::{Export, Protocol};

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

macro_rules! exporter {
    ($name:ident, $exporter:ident) => {
        /// Creates an exporter.
        ///
        /// # Errors
        /// When the environment names something that cannot be used. Nothing is sent yet.
        pub(super) fn $name(export: &Export) -> Result<$exporter, ExportError> {
            let builder = $exporter::builder();
            Ok(match export.protocol {
                Protocol::Grpc => builder
                    .with_tonic()
                    .with_tls_config(grpc_tls(export)?)
                    .build()?,
                Protocol::Http => builder
                    .with_http()
                    .with_protocol(opentelemetry_otlp::Protocol::HttpBinary)
                    .with_http_client(Http::new(http_tls(export)?))
                    .build()?,
            })
        }
    };
}

exporter!(spans, SpanExporter);
exporter!(metrics, MetricExporter);
exporter!(logs, LogExporter);

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
