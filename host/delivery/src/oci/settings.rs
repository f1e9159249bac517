//! How registries are asked: times, credentials, authorities, and where a registry may send the host.

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
    /// The hosts to which a registry may redirect even though they are in a private network.
    pub redirects: BTreeSet<String>,
    /// The hosts to which a registry may send the host with its credentials for a token.
    pub token_servers: BTreeSet<String>,
}

impl Default for Settings {
    fn default() -> Self {
        Self {
            interval: DEFAULT_INTERVAL,
            timeout: DEFAULT_TIMEOUT,
            credentials: None,
            certificate_authorities: None,
            plain_http: BTreeSet::new(),
            redirects: BTreeSet::new(),
            token_servers: BTreeSet::new(),
        }
    }
}
