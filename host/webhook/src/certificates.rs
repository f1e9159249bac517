//! The certificate of the webhook and the CA certificates for its clients: mounted files that are reloaded when they
//! change. They may be created after the host has started, as cert-manager does. Problems are logged, and the files
//! are checked again until they are valid.

use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, PrivateKeyDer};
use rustls::server::WebPkiClientVerifier;
use rustls::{RootCertStore, ServerConfig};
use serde_json::{Value, json};
use tokio::sync::watch;
use tracing::{info, warn};
use x509_parser::certificate::Validity;
use x509_parser::parse_x509_certificate;

use operator_host_config::webhook::WebhookConfig;
use operator_host_core::files;

/// How often the files are checked. They are small.
const PERIOD: Duration = Duration::from_secs(1);
/// A larger file is not a certificate.
const LIMIT: usize = 1 << 20;

/// What there is to say about a certificate: `Ok` while it is in use, with a remark if it should be renewed.
pub(crate) type CertificateState = Result<Option<String>, String>;

/// The contents of the files.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Contents {
    chain: Vec<u8>,
    key: Vec<u8>,
    client_ca: Option<Vec<u8>>,
}

/// The contents, or why they cannot be read.
type Files = Result<Contents, String>;

/// Returns why the API server rejects a certificate at `now`, in seconds of the Unix epoch.
fn problem(validity: &Validity, now: i64) -> Option<String> {
    let (from, to) = (validity.not_before.timestamp(), validity.not_after.timestamp());
    if now < from {
        return Some(format!("the certificate is not valid before {}", timestamp(from)));
    }
    (now > to).then(|| format!("the certificate expired at {}", timestamp(to)))
}

/// Reports whether a certificate should have been renewed: a tenth of its time or less is left, at most a week.
fn is_ending(validity: &Validity, now: i64) -> bool {
    let (from, to) = (validity.not_before.timestamp(), validity.not_after.timestamp());
    let margin = ((to - from) / 10).min(7 * 24 * 3600);
    problem(validity, now).is_none() && now > to - margin
}

/// Follows the files until the process ends: sets the TLS configuration for the next connection, and reports what is to
/// be said about it.
pub(crate) async fn follow(
    config: WebhookConfig,
    current: watch::Sender<Option<Arc<ServerConfig>>>,
    report: impl Fn(&CertificateState),
) {
    let mut read: Option<Files> = None;
    let mut loaded: Option<Validity> = None;
    let mut refused = None;
    let mut reported = None;
    loop {
        let now = contents(&config);
        if read.as_ref() != Some(&now) {
            refused = match now.as_ref().map_err(Clone::clone).and_then(load) {
                Ok((tls, validity)) => {
                    current.send_replace(Some(tls));
                    loaded = Some(validity);
                    None
                }
                Err(reason) => Some(reason),
            };
            read = Some(now);
        }
        let state = state(refused.as_deref(), loaded.as_ref());
        if reported.as_ref() != Some(&state) {
            match &state {
                Err(problem) => warn!("the webhook: {problem}"),
                Ok(remark) => {
                    info!(certificate = %config.certificate.display(), "the webhook: the certificate is in use");
                    remark.iter().for_each(|remark| warn!("the webhook: {remark}"));
                }
            }
            report(&state);
            reported = Some(state);
        }
        tokio::time::sleep(PERIOD).await;
    }
}

fn contents(config: &WebhookConfig) -> Files {
    Ok(Contents {
        chain: read(&config.certificate)?,
        key: read(&config.key)?,
        client_ca: config.client_ca.as_deref().map(read).transpose()?,
    })
}

fn state(refused: Option<&str>, loaded: Option<&Validity>) -> CertificateState {
    let now = jiff::Timestamp::now().as_second();
    // A certificate that was valid may have expired.
    let expired = loaded.and_then(|validity| problem(validity, now));
    match (refused, expired, loaded) {
        (Some(reason), expired, Some(_)) => {
            let expired = expired.map_or_else(String::new, |expired| format!("; {expired}"));
            Err(format!(
                "{reason}; the previous certificate is still in use{expired}"
            ))
        }
        (Some(reason), _, None) => Err(format!(
            "{reason}; the webhook does not answer until there is a valid one"
        )),
        (None, Some(reason), _) => Err(format!("{reason}: the API server does not accept it")),
        (None, None, loaded) => Ok(loaded
            .filter(|validity| is_ending(validity, now))
            .map(|validity| {
                let at = timestamp(validity.not_after.timestamp());
                format!(
                    "its certificate is in use, but the API server does not accept it after {at}: renew it"
                )
            })),
    }
}

fn load(contents: &Contents) -> Result<(Arc<ServerConfig>, Validity), String> {
    let provider = Arc::new(rustls::crypto::aws_lc_rs::default_provider());
    let chain = CertificateDer::pem_slice_iter(&contents.chain)
        .collect::<Result<Vec<_>, _>>()
        .map_err(|error| format!("the certificate cannot be read: {error}"))?;
    let first = chain
        .first()
        .ok_or("the certificate's file contains no certificate")?;
    let (_, parsed) =
        parse_x509_certificate(first).map_err(|error| format!("the certificate cannot be read: {error}"))?;
    let validity = parsed.validity().clone();
    let key = PrivateKeyDer::from_pem_slice(&contents.key)
        .map_err(|error| format!("the key cannot be read: {error}"))?;
    let tls = ServerConfig::builder_with_provider(Arc::clone(&provider))
        .with_safe_default_protocol_versions()
        .map_err(|error| error.to_string())?;
    let tls = match &contents.client_ca {
        None => tls.with_no_client_auth(),
        Some(authorities) => {
            let roots = Arc::new(roots(authorities)?);
            let verifier = WebPkiClientVerifier::builder_with_provider(roots, Arc::clone(&provider))
                // The API server has no certificate for conversions: the server refuses all other requests.
                .allow_unauthenticated()
                .build()
                .map_err(|error| format!("the authorities of --client-ca cannot be used: {error}"))?;
            tls.with_client_cert_verifier(verifier)
        }
    };
    let mut tls = tls
        .with_single_cert(chain, key)
        .map_err(|error| format!("the certificate and the key cannot be used together: {error}"))?;
    tls.alpn_protocols = vec![b"http/1.1".to_vec()];
    Ok((Arc::new(tls), validity))
}

fn roots(pem: &[u8]) -> Result<RootCertStore, String> {
    let wrong =
        |reason: &dyn std::fmt::Display| format!("the authorities of --client-ca cannot be read: {reason}");
    let mut roots = RootCertStore::empty();
    for certificate in CertificateDer::pem_slice_iter(pem) {
        let certificate = certificate.map_err(|error| wrong(&error))?;
        roots.add(certificate).map_err(|error| wrong(&error))?;
    }
    if roots.is_empty() {
        return Err(wrong(&"the file contains no certificate"));
    }
    Ok(roots)
}

fn read(file: &Path) -> Result<Vec<u8>, String> {
    files::read(file, LIMIT).map_err(|error| format!("cannot read {}: {error}", file.display()))
}

fn timestamp(seconds: i64) -> String {
    jiff::Timestamp::from_second(seconds).map_or_else(|_| seconds.to_string(), |time| time.to_string())
}

/// Returns the `caBundle` of a `clientConfig` from the PEM file of a certificate authority.
///
/// # Errors
/// When the file contains no certificate.
pub fn ca_bundle(pem: Vec<u8>, file: &Path) -> Result<Value, String> {
    if !String::from_utf8_lossy(&pem).contains("-----BEGIN CERTIFICATE-----") {
        return Err(format!("{} contains no certificate in PEM", file.display()));
    }
    // `ByteString` serializes to base64.
    Ok(json!(k8s_openapi::ByteString(pem)))
}

#[cfg(test)]
mod tests {
    use x509_parser::time::ASN1Time;

    use super::*;

    fn validity(from: i64, to: i64) -> Validity {
        let [not_before, not_after] = [from, to].map(|time| ASN1Time::from_timestamp(time).unwrap());
        Validity {
            not_before,
            not_after,
        }
    }

    #[test]
    fn a_certificate_counts_between_its_times() {
        let problem = |now| problem(&validity(100, 200), now);
        assert_eq!(problem(150), None);
        let expected = Some("the certificate is not valid before 1970-01-01T00:01:40Z");
        assert_eq!(problem(99).as_deref(), expected);
        let expected = Some("the certificate expired at 1970-01-01T00:03:20Z");
        assert_eq!(problem(201).as_deref(), expected);
    }

    #[test]
    fn a_certificate_that_was_not_renewed_in_time_is_ending() {
        let day = 24 * 3600;
        let quarter = |now| is_ending(&validity(0, 90 * day), now);
        assert!(!quarter(82 * day) && quarter(84 * day) && !quarter(91 * day));
        let hour = |now| is_ending(&validity(0, 3600), now);
        assert!(!hour(3000) && hour(3300));
    }
}
