//! How registries are asked: times, credentials, authorities, mirrors, and where a registry may send the host.

use std::collections::{BTreeMap, BTreeSet};
use std::path::PathBuf;
use std::time::Duration;

use super::reference::Reference;

/// Default of [`Settings::interval`].
pub const DEFAULT_INTERVAL: Duration = Duration::from_secs(300);
/// Default of [`Settings::timeout`].
pub const DEFAULT_TIMEOUT: Duration = Duration::from_secs(120);

/// How registries are asked.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Settings {
    /// How often the host looks whether a tag names another manifest.
    pub interval: Duration,
    /// The time to pull one layer. A whole look has twice this time, and this time more for each mirror.
    pub timeout: Duration,
    /// A Docker configuration file with credentials. It is read again when a registry asks for them.
    pub credentials: Option<PathBuf>,
    /// PEM with certificate authorities that are trusted in addition to those of the system.
    pub certificate_authorities: Option<PathBuf>,
    /// The registries and mirrors that are asked without TLS.
    pub plain_http: BTreeSet<String>,
    /// The mirrors of a registry, which are asked before it, in this order.
    pub mirrors: BTreeMap<String, Vec<Mirror>>,
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
            mirrors: BTreeMap::new(),
            redirects: BTreeSet::new(),
            token_servers: BTreeSet::new(),
        }
    }
}

/// A registry that holds copies of another one.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Mirror {
    /// `host` or `host:port`.
    pub registry: String,
    /// What the path of a repository begins with there; may be empty.
    pub prefix: String,
}

impl Settings {
    /// Returns where to ask for an artifact: its mirrors, then its registry.
    #[must_use]
    pub fn places(&self, reference: &Reference) -> Vec<Reference> {
        let mirrors = self.mirrors.get(&reference.registry).into_iter().flatten();
        let mirrors = mirrors.map(|mirror| Reference {
            registry: mirror.registry.clone(),
            repository: match mirror.prefix.as_str() {
                "" => reference.repository.clone(),
                prefix => format!("{prefix}/{}", reference.repository),
            },
            version: reference.version.clone(),
        });
        mirrors.chain([reference.clone()]).collect()
    }
}
