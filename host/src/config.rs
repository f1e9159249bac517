//! The configuration file: YAML with unknown fields refused, validated into [`Config`].
//!
//! Parsing has two steps, as raw and validated types: serde checks the shape, `raw` the meaning.
//! Both say the line and the column.

pub mod follow;
pub mod leadership;
mod proving;
mod raw;
pub mod trust;
mod values;
pub mod webhook;

use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};
use std::time::Duration;

use serde::Deserialize;
use thiserror::Error;

use self::leadership::LeadershipConfig;
use self::webhook::WebhookConfig;
use crate::plugin::Limits;
use crate::plugin::contract::Kind;
use crate::plugin::trust::Trust;

pub use self::proving::{DEFAULT_PROVING, Mode, ProvingConfig};
pub use self::values::parse_size;

/// What the process is to do, checked as far as that goes without a cluster.
#[derive(Clone, Debug, PartialEq)]
pub struct Config {
    /// The namespaces to watch; empty: all of them.
    pub namespaces: BTreeSet<String>,
    /// What to log, in place of what the command line says.
    pub log: Option<String>,
    /// One for each kind of custom resource, in the order of the file.
    pub controllers: Vec<ControllerConfig>,
    /// How several replicas share the work.
    pub leadership: LeadershipConfig,
    /// Whether and where resources are validated before they are written.
    pub webhook: Option<WebhookConfig>,
    /// The namespace of the host itself; `None`: that of its pod.
    pub host_namespace: Option<String>,
}

/// One kind of custom resource and the plugin that reconciles it.
#[derive(Clone, Debug, PartialEq)]
pub struct ControllerConfig {
    /// A DNS label, unique in the file; names the field manager, the labels and the metrics.
    pub name: String,
    /// The names that it had before, oldest first: what carries them is its own, and is handed over.
    pub formerly: Vec<String>,
    /// The kind of the custom resource.
    pub parent: Kind,
    /// The plugin's file.
    pub plugin: PathBuf,
    /// The kinds that the plugin may make, and what happens to each when it is no longer wanted.
    pub children: BTreeMap<Kind, Removal>,
    /// What happens to Secrets whose values the host generated: retained unless Secrets are set to `delete`.
    pub generated: Removal,
    /// The kinds that the plugin may read beside them.
    pub reads: BTreeSet<Kind>,
    /// The namespaces, beside the parent's own, in which children may be made and objects read.
    pub other_namespaces: BTreeSet<String>,
    /// Whether a child that exists and has no owner is taken over.
    pub adopt: bool,
    /// How many objects are reconciled at the same time, at least 1.
    pub concurrency: usize,
    /// How often every object is reconciled though nothing changed.
    pub resync: Duration,
    /// The delays between tries of a failing object.
    pub backoff: BackoffConfig,
    /// How fast the cluster is written to.
    pub writes: WritesConfig,
    /// How long an object that is being deleted waits for its cleanup; `None`: until it is done.
    pub release_after: Option<Duration>,
    /// What one plugin call may use.
    pub limits: Limits,
    /// Whose plugins are taken.
    pub trust: Trust,
    /// What a new version of the plugin must show.
    pub proving: ProvingConfig,
    /// The ServiceAccount in whose name children are written; `None`: the host's own.
    pub service_account: Option<ServiceAccount>,
    /// What the plugin may do though it reaches beyond its parents.
    pub allow: BTreeSet<Allow>,
}

/// What is refused unless the configuration allows it: each is a way to more rights, or to objects that cannot be deleted.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Deserialize)]
#[serde(rename_all = "camelCase")]
pub enum Allow {
    /// Children with `metadata.finalizers`.
    Finalizers,
    /// Secrets that Kubernetes fills with the token of a ServiceAccount.
    ServiceAccountTokens,
    /// Parents in the host's own namespace.
    HostNamespace,
}

/// Whom the host impersonates for a controller's children.
#[derive(Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct ServiceAccount {
    /// Its namespace.
    pub namespace: String,
    /// Its name.
    pub name: String,
}

impl ServiceAccount {
    /// The user name by which Kubernetes knows it.
    #[must_use]
    pub fn user(&self) -> String {
        format!("system:serviceaccount:{}:{}", self.namespace, self.name)
    }
}

impl std::fmt::Display for ServiceAccount {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{}/{}", self.namespace, self.name)
    }
}

impl ControllerConfig {
    /// The finalizer that it puts on its parents.
    #[must_use]
    pub fn finalizer(&self) -> String {
        finalizer(&self.name)
    }

    /// The finalizers that it put on its parents under its former names.
    pub fn former_finalizers(&self) -> impl Iterator<Item = String> {
        self.formerly.iter().map(|name| finalizer(name))
    }

    /// The field manager of all that this controller applies.
    #[must_use]
    pub fn field_manager(&self) -> String {
        field_manager(&self.name)
    }

    /// The field managers of what it applied under its former names.
    pub fn former_field_managers(&self) -> impl Iterator<Item = String> {
        self.formerly.iter().map(|name| field_manager(name))
    }

    /// Whether a controller's name is this one's, now or formerly.
    #[must_use]
    pub fn is_or_was(&self, name: &str) -> bool {
        self.name == name || self.formerly.iter().any(|former| former == name)
    }

    /// The name under which replicas agree who leads it: the oldest, so that one that has not heard of the new name and
    /// one that has do not both lead.
    #[must_use]
    pub fn lease_name(&self) -> &str {
        self.formerly.first().unwrap_or(&self.name)
    }
}

fn finalizer(controller: &str) -> String {
    format!("operator-host.dev/{controller}")
}

fn field_manager(controller: &str) -> String {
    format!("operator-host/{controller}")
}

/// What happens to a child that is no longer wanted, and to all children when the parent goes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "camelCase")]
pub enum Removal {
    /// It is deleted. The default of every kind but PersistentVolumeClaim.
    Delete,
    /// It stays, unowned, and is taken up again when it is wanted again.
    Retain,
}

impl Removal {
    fn default_for(kind: &Kind) -> Self {
        if kind.api_version == "v1" && kind.kind == "PersistentVolumeClaim" {
            Self::Retain
        } else {
            Self::Delete
        }
    }
}

/// Delays between tries of one object: they double from `initial` to `max`, with jitter.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct BackoffConfig {
    /// The first delay.
    pub initial: Duration,
    /// The longest delay.
    pub max: Duration,
}

/// A controller's share of the API server's time. Events are not counted here: they have a pace of their own.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct WritesConfig {
    /// Writes a second on the average, at least 1.
    pub qps: u32,
    /// Writes at once after a silence, at least 1.
    pub burst: u32,
}

/// Why a configuration is refused. At the start nothing is started, later the one before stays.
#[derive(Debug, Error)]
pub enum ConfigError {
    /// The file cannot be read.
    #[error("cannot read the {what} {}: {error}", file.display())]
    Read {
        /// What the file is.
        what: &'static str,
        /// The file.
        file: PathBuf,
        /// What the operating system said.
        error: std::io::Error,
    },
    /// The keys that plugins are signed with lie where plugins come from.
    #[error(
        "the keys {} are in the folder of plugins {}: whoever may write there could add a key of their own; put them \
         elsewhere, such as in a mounted Secret", keys.display(), folder.display()
    )]
    KeysBesidePlugins {
        /// The file of the keys.
        keys: PathBuf,
        /// The folder.
        folder: PathBuf,
    },
    /// The text is not what is expected.
    #[error("{}:{line}:{column}: {message}", file.display())]
    Invalid {
        /// The file.
        file: PathBuf,
        /// From 1.
        line: u64,
        /// From 1.
        column: u64,
        /// What is wrong and what is expected.
        message: String,
    },
}

impl Config {
    /// Reads and checks the file; relative paths in it are taken from its folder.
    ///
    /// # Errors
    /// When it cannot be read, is not YAML, has an unknown field or a value that makes no sense, or names a
    /// plugin that is not there.
    pub fn load(file: &Path) -> Result<Self, ConfigError> {
        Self::parse(file, &read(file)?)
    }

    /// As [`Config::load`], but the plugins' files need not be there: nothing is to run.
    ///
    /// # Errors
    /// As [`Config::load`], but for those files.
    pub fn load_without_plugins(file: &Path) -> Result<Self, ConfigError> {
        raw::parse(file, &read(file)?)?.validate(file, false)
    }

    /// Checks the text of `file`; see [`Config::load`].
    ///
    /// # Errors
    /// As [`Config::load`].
    pub fn parse(file: &Path, text: &str) -> Result<Self, ConfigError> {
        raw::parse(file, text)?.validate(file, true)
    }
}

fn read(file: &Path) -> Result<String, ConfigError> {
    std::fs::read_to_string(file).map_err(|error| ConfigError::Read {
        what: "configuration",
        file: file.to_owned(),
        error,
    })
}

/// Default of [`ControllerConfig::concurrency`].
pub const DEFAULT_CONCURRENCY: usize = 8;
/// Default of [`ControllerConfig::resync`].
pub const DEFAULT_RESYNC: Duration = Duration::from_secs(10 * 60 * 60);
/// Default of [`ControllerConfig::backoff`].
pub const DEFAULT_BACKOFF: BackoffConfig = BackoffConfig {
    initial: Duration::from_millis(500),
    max: Duration::from_secs(300),
};
/// Default of [`ControllerConfig::writes`]: more than one API server takes for long, so that only what runs wild is held.
pub const DEFAULT_WRITES: WritesConfig = WritesConfig {
    qps: 500,
    burst: 3000,
};
#[cfg(test)]
mod tests;
