//! The certificate of the page, which may be renewed while the host runs.

use std::path::PathBuf;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use rustls::ServerConfig;
use tracing::warn;

use operator_host_webhook::certificates::tls;

/// How long a certificate is used before its files are read again. Clients that nobody knows yet cause no more reads.
const PERIOD: Duration = Duration::from_secs(1);

/// The certificate chain and its key, from files.
pub(super) struct Certificate {
    /// The chain and the key.
    files: (PathBuf, PathBuf),
    current: Mutex<Current>,
}

struct Current {
    /// The last good one.
    config: Arc<ServerConfig>,
    /// When the files were last read.
    read: Instant,
    /// Why they could not be used then.
    problem: Option<String>,
}

impl Certificate {
    /// Reads the files. Blocks.
    ///
    /// # Errors
    /// When they cannot be used.
    pub(super) fn read(files: (PathBuf, PathBuf)) -> Result<Self, String> {
        let current = Current {
            config: tls(&files.0, &files.1)?,
            read: Instant::now(),
            problem: None,
        };
        Ok(Self {
            files,
            current: Mutex::new(current),
        })
    }

    /// Returns the certificate for a connection. If the files cannot be used now, this is the last good one.
    pub(super) async fn config(&self) -> Arc<ServerConfig> {
        {
            let mut current = self.current();
            if current.read.elapsed() < PERIOD {
                return Arc::clone(&current.config);
            }
            // Other connections use the last good one meanwhile.
            current.read = Instant::now();
        }
        let (chain, key) = self.files.clone();
        let read = tokio::task::spawn_blocking(move || tls(&chain, &key)).await;
        let read = read.unwrap_or_else(|error| Err(error.to_string()));
        let mut current = self.current();
        match read {
            Ok(config) => {
                current.config = config;
                current.problem = None;
            }
            Err(problem) => {
                if current.problem.as_ref() != Some(&problem) {
                    warn!(
                        "the certificate of the page cannot be read again, and the last good one is used: {problem}"
                    );
                }
                current.problem = Some(problem);
            }
        }
        Arc::clone(&current.config)
    }

    fn current(&self) -> MutexGuard<'_, Current> {
        self.current.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[cfg(test)]
mod tests {
    use std::path::Path;
    use std::process::Command;

    use super::*;

    fn renew(chain: &Path, key: &Path) {
        let made = Command::new("openssl")
            .args([
                "req",
                "-x509",
                "-newkey",
                "ec",
                "-pkeyopt",
                "ec_paramgen_curve:P-256",
            ])
            .args([
                "-nodes",
                "-subj",
                "/CN=page",
                "-addext",
                "subjectAltName=DNS:page",
                "-out",
            ])
            .arg(chain)
            .arg("-keyout")
            .arg(key)
            .output()
            .unwrap();
        assert!(made.status.success(), "{}", String::from_utf8_lossy(&made.stderr));
    }

    #[tokio::test]
    async fn the_files_are_read_again_at_most_once_a_second_and_damaged_ones_are_not_used() {
        let folder = tempfile::tempdir().unwrap();
        let (chain, key) = (folder.path().join("tls.crt"), folder.path().join("tls.key"));
        renew(&chain, &key);
        let certificate = Certificate::read((chain.clone(), key.clone())).unwrap();
        let a_second_later = || certificate.current().read = Instant::now().checked_sub(PERIOD).unwrap();
        let first = certificate.config().await;
        std::fs::write(&chain, "no certificate").unwrap();
        assert!(Arc::ptr_eq(&first, &certificate.config().await));
        assert_eq!(certificate.current().problem, None, "nothing was read");
        a_second_later();
        assert!(Arc::ptr_eq(&first, &certificate.config().await));
        assert!(certificate.current().problem.is_some());
        renew(&chain, &key);
        a_second_later();
        let second = certificate.config().await;
        assert!(!Arc::ptr_eq(&first, &second));
        assert!(Arc::ptr_eq(&second, &certificate.config().await));
        assert_eq!(certificate.current().problem, None);
    }
}
