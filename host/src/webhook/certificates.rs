//! The certificate of the webhook: two mounted files, read again when they change. They may come after the host, as
//! those of cert-manager do, and what is wrong with them is said and looked at again until it is right.

use std::path::Path;
use std::sync::{Arc, PoisonError, RwLock};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use rustls::crypto::CryptoProvider;
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, PrivateKeyDer};
use rustls::server::{ClientHello, ResolvesServerCert};
use rustls::sign::CertifiedKey;
use tracing::{info, warn};
use x509_parser::parse_x509_certificate;

use crate::config::webhook::WebhookConfig;
use crate::telemetry::Instruments;

/// How often the files are looked at. They are small.
const PERIOD: Duration = Duration::from_secs(1);
/// A file that is larger is no certificate.
const LIMIT: u64 = 1 << 20;

/// The certificate that is shown to the API server; none until there is one.
#[derive(Debug)]
pub(super) struct Certificates {
    current: RwLock<Option<Arc<CertifiedKey>>>,
    provider: Arc<CryptoProvider>,
}

impl ResolvesServerCert for Certificates {
    fn resolve(&self, _: ClientHello<'_>) -> Option<Arc<CertifiedKey>> {
        self.current
            .read()
            .unwrap_or_else(PoisonError::into_inner)
            .clone()
    }
}

/// The contents of both files, or why they cannot be read.
type Files = Result<(Vec<u8>, Vec<u8>), String>;

/// When a certificate is valid, in seconds of the Unix epoch.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Validity {
    from: i64,
    to: i64,
}

impl Validity {
    fn of(certificate: &CertificateDer<'_>) -> Result<Self, String> {
        let (_, parsed) = parse_x509_certificate(certificate).map_err(|error| error.to_string())?;
        let validity = parsed.validity();
        Ok(Self {
            from: validity.not_before.timestamp(),
            to: validity.not_after.timestamp(),
        })
    }

    /// Why the API server does not take it at `now`.
    fn problem(self, now: i64) -> Option<String> {
        let at = |seconds| {
            jiff::Timestamp::from_second(seconds)
                .map_or_else(|_| seconds.to_string(), |time| time.to_string())
        };
        if now < self.from {
            return Some(format!("the certificate is not valid before {}", at(self.from)));
        }
        (now > self.to).then(|| format!("the certificate has expired at {}", at(self.to)))
    }
}

impl Certificates {
    pub(super) fn new(provider: Arc<CryptoProvider>) -> Self {
        Self {
            current: RwLock::default(),
            provider,
        }
    }

    /// Follows the files until the process ends.
    pub(super) async fn follow(self: Arc<Self>, config: WebhookConfig, instruments: Instruments) {
        let mut read: Option<Files> = None;
        let mut loaded: Option<Validity> = None;
        let mut refused = None;
        let mut said: Option<Option<String>> = None;
        loop {
            let now = read_both(&config);
            if read.as_ref() != Some(&now) {
                refused = match now.clone().and_then(|(chain, key)| self.load(&chain, &key)) {
                    Ok((key, validity)) => {
                        *self.current.write().unwrap_or_else(PoisonError::into_inner) = Some(key);
                        loaded = Some(validity);
                        None
                    }
                    Err(reason) => Some(reason),
                };
                read = Some(now);
            }
            // A certificate that was good ends by itself.
            let expired = loaded.and_then(|validity| validity.problem(clock()));
            let problem = match (&refused, expired, loaded) {
                (Some(reason), expired, Some(_)) => {
                    let expired = expired.map(|expired| format!("; {expired}")).unwrap_or_default();
                    Some(format!("{reason}; the one before is still in use{expired}"))
                }
                (Some(reason), _, None) => Some(format!(
                    "{reason}; the webhook does not answer until there is one"
                )),
                (None, expired, _) => {
                    expired.map(|reason| format!("{reason}: the API server does not take it"))
                }
            };
            instruments.metrics.set_webhook(problem.is_none());
            if said.as_ref() != Some(&problem) {
                match &problem {
                    Some(problem) => warn!("webhook: {problem}"),
                    None => {
                        info!(certificate = %config.certificate.display(), "webhook: the certificate is in use");
                    }
                }
                let words = problem
                    .clone()
                    .unwrap_or_else(|| "its certificate is in use".to_owned());
                instruments.health.webhook(words);
                said = Some(problem);
            }
            tokio::time::sleep(PERIOD).await;
        }
    }

    fn load(&self, chain: &[u8], key: &[u8]) -> Result<(Arc<CertifiedKey>, Validity), String> {
        let chain = CertificateDer::pem_slice_iter(chain)
            .collect::<Result<Vec<_>, _>>()
            .map_err(|error| format!("the certificate cannot be read: {error}"))?;
        let first = chain.first().ok_or("the certificate's file holds none")?;
        let validity =
            Validity::of(first).map_err(|error| format!("the certificate cannot be read: {error}"))?;
        let key =
            PrivateKeyDer::from_pem_slice(key).map_err(|error| format!("the key cannot be read: {error}"))?;
        let certified = CertifiedKey::from_der(chain, key, &self.provider)
            .map_err(|error| format!("the certificate and the key cannot be used together: {error}"))?;
        Ok((Arc::new(certified), validity))
    }
}

fn read_both(config: &WebhookConfig) -> Files {
    Ok((read(&config.certificate)?, read(&config.key)?))
}

fn read(file: &Path) -> Result<Vec<u8>, String> {
    let failed = |error: &dyn std::fmt::Display| format!("cannot read {}: {error}", file.display());
    let size = std::fs::metadata(file).map_err(|error| failed(&error))?.len();
    if size > LIMIT {
        return Err(failed(&format_args!(
            "it has {size} bytes, at most {LIMIT} are read"
        )));
    }
    std::fs::read(file).map_err(|error| failed(&error))
}

fn clock() -> i64 {
    let since = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    i64::try_from(since.as_secs()).unwrap_or(i64::MAX)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_certificate_counts_between_its_times() {
        let validity = Validity { from: 100, to: 200 };
        assert_eq!(validity.problem(150), None);
        assert_eq!(
            validity.problem(99).as_deref(),
            Some("the certificate is not valid before 1970-01-01T00:01:40Z")
        );
        assert_eq!(
            validity.problem(201).as_deref(),
            Some("the certificate has expired at 1970-01-01T00:03:20Z")
        );
    }
}
