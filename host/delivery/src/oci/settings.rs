//! How registries are asked: times, credentials and authorities.

use std::collections::BTreeSet;
use std::path::PathBuf;
use std::time::Duration;

/// Default of [`Settings::interval`].
pub const DEFAULT_INTERVAL: Duration = Duration::from_secs(300);
/// Default of [`Settings::timeout`].
pub const DEFAULT_TIMEOUT: Duration = Duration::from_secs(120);

/// How registries are asked.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Settings {
    /// How often the host looks whether a tag names another manifest.
    pub interval: Duration,
    /// The time to pull one layer. A whole look has twice this time.
    pub timeout: Duration,
    /// A Docker configuration file with credentials. It is read again when a registry asks for them.
    pub credentials: Option<PathBuf>,
    /// PEM with certificate authorities that are trusted in addition to those of the system.
    pub certificate_authorities: Option<PathBuf>,
    /// The registries that are asked without TLS.
    pub plain_http: BTreeSet<String>,
}

impl Default for Settings {
    fn default() -> Self {
        Self {
            interval: DEFAULT_INTERVAL,
            timeout: DEFAULT_TIMEOUT,
            credentials: None,
            certificate_authorities: None,
            plain_http: BTreeSet::new(),
        }
    }
}
