//! The configuration file: YAML without unknown fields, validated into [`Config`].
//!
//! Parsing has two steps: serde checks the shape and each value, and `raw` what they mean together. The errors of both contain
//! the line and the column.

pub mod ceilings;
pub mod decorates;
pub mod endpoints;
pub mod external;
pub mod identity;
pub mod keys;
pub mod leadership;
mod limits;
pub mod location;
pub mod memory_limit;
pub mod object;
mod proving;
mod raw;
pub mod reference;
pub mod registry;
#[cfg(feature = "testing")]
pub mod testing;
pub mod trust;
mod values;
pub mod webhook;

use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use schemars::JsonSchema;
use serde::Deserialize;
use thiserror::Error;

use self::ceilings::Ceilings;
use self::leadership::LeadershipConfig;
use self::registry::RegistryConfig;
use self::trust::Keys;
use self::values::{Positive, read_as};
use self::webhook::WebhookConfig;
use crate::location::Location;
use crate::trust::Trust;
use operator_host_contract::{Description, Kind};
use operator_host_core::backoff::BackoffConfig;
use operator_host_core::child_rules::{ChildRules, Scope};
use operator_host_core::object::{CONTROLLER_LABEL, FIELD_MANAGER_PREFIX};
use operator_host_runtime::Limits;

pub use self::decorates::Decorates;
pub use self::proving::{DEFAULT_PROVING, ProvingConfig, ProvingMode, StageConfig, StageObjects};
pub use self::values::parse_size;

/// The configuration of the process, validated as far as possible without a cluster.
#[derive(Clone, Debug, PartialEq)]
pub struct Config {
    /// The namespaces to watch; all namespaces when empty.
    pub namespaces: BTreeSet<String>,
    /// The log filter, which takes precedence over the command line.
    pub log: Option<String>,
    /// The controllers in the order of the file, one for each kind of custom resource.
    pub controllers: Vec<ControllerConfig>,
    /// How several replicas share the work.
    pub leadership: LeadershipConfig,
    /// The validating webhook, when it is served.
    pub webhook: Option<WebhookConfig>,
    /// The host's own namespace; `None`: the namespace of its pod.
    pub host_namespace: Option<String>,
    /// What Controllers in the cluster may do; `None`: the host does not look at them.
    pub ceilings: Option<Vec<Ceilings>>,
    /// Where plugins come from.
    places: Places,
    /// The default of [`ControllerConfig::definitions`].
    definitions: DefinitionsMode,
    /// The keys of accepted signatures, if any are required.
    keys: Option<Keys>,
}

/// Where plugins come from that are named relative to something.
#[derive(Clone, Debug, PartialEq)]
struct Places {
    /// The folder of files.
    folder: PathBuf,
    /// How registries are asked.
    registry: Arc<RegistryConfig>,
}

/// One kind of custom resource and the plugin that reconciles it.
#[derive(Clone, Debug, PartialEq)]
pub struct ControllerConfig {
    /// A DNS label, unique in the file, used in the field manager and the labels. A Controller that decorates several kinds is a
    /// controller of this name for each of them.
    pub name: String,
    /// What tells it apart from all others of the host: its name, or `NAME.KIND.GROUP` for each further kind that a Controller
    /// decorates.
    pub id: String,
    /// The kind of the custom resource, or the kind that is decorated.
    pub parent: Kind,
    /// Which objects of that kind are decorated; `None`: it reconciles the kind, as the only controller.
    pub decorates: Option<Decorates>,
    /// Where the plugin comes from.
    pub plugin: Location,
    /// What it may do with children, and where.
    pub rules: ChildRules,
    /// The other kinds that the plugin may read.
    pub reads: BTreeSet<Kind>,
    /// How many objects are reconciled at the same time, at least 1.
    pub concurrency: usize,
    /// How often every object is reconciled even if nothing changed.
    pub resync: Duration,
    /// The delays between retries of a failing object.
    pub backoff: BackoffConfig,
    /// The rate of writes to the cluster.
    pub writes: WritesConfig,
    /// How long an object that is being deleted waits for its cleanup; `None`: without limit.
    pub release_after: Option<Duration>,
    /// The limits of one plugin call.
    pub limits: Limits,
    /// Which plugins are accepted.
    pub trust: Trust,
    /// What a new version of the plugin must prove before it becomes live.
    pub proving: ProvingConfig,
    /// The ServiceAccount that the host impersonates to write children; `None`: the host's own account.
    pub service_account: Option<ServiceAccount>,
    /// What the host does with the CustomResourceDefinition that the plugin contains.
    pub definitions: DefinitionsMode,
    /// The UID of the Controller in the cluster that it comes from, which also gives its orders; `None`: it is one of the file.
    pub uid: Option<String>,
}

/// What the host does with the CustomResourceDefinition that a plugin contains.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub enum DefinitionsMode {
    /// Apply it to the cluster when nothing is lost by it.
    Install,
    /// Report where the cluster's differs from it.
    #[default]
    Check,
    /// Do not compare it with the cluster's.
    Ignore,
}

/// The ServiceAccount that the host impersonates for a controller's children.
#[derive(Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct ServiceAccount {
    /// Its namespace.
    pub namespace: String,
    /// Its name.
    pub name: String,
}

impl ServiceAccount {
    /// Returns the account's user name in Kubernetes.
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
    /// Reports whether it comes from a Controller in the cluster.
    pub const fn is_object(&self) -> bool {
        self.uid.is_some()
    }

    /// Reports whether an object with these labels is one of its parents. What a controller of the host has made is never decorated:
    /// two controllers that decorate each other's children would make more and more.
    pub fn selects(&self, labels: &BTreeMap<String, String>) -> bool {
        let decorates = self.decorates.as_ref();
        decorates.is_none_or(|it| it.selector.matches(labels) && !labels.contains_key(CONTROLLER_LABEL))
    }

    /// Returns the finalizer that the controller sets on its parents.
    pub fn finalizer(&self) -> String {
        finalizer(&self.name)
    }

    /// Reports whether a finalizer is the controller's.
    pub fn owns_finalizer(&self, finalizer: &str) -> bool {
        finalizer == self.finalizer()
    }

    /// Reports whether a finalizer is that of another controller of this host, or of this one under another name.
    pub fn is_finalizer_of_another(&self, finalizer: &str) -> bool {
        finalizer.starts_with(FINALIZERS) && !self.owns_finalizer(finalizer)
    }

    /// Returns the field manager of everything that the controller applies.
    pub fn field_manager(&self) -> String {
        format!("{FIELD_MANAGER_PREFIX}{}", self.name)
    }

    /// Returns with whom the controller shares what tenants have in equal parts: the namespace of its plugin's ConfigMap, which
    /// decides who delivers the plugin; of another plugin, that of the account that writes its children. Empty for those of the
    /// host itself.
    pub fn tenant(&self) -> &str {
        match (&self.plugin, &self.service_account) {
            (Location::ConfigMap(key), _) => key.namespace.as_deref().unwrap_or_default(),
            (_, Some(account)) => &account.namespace,
            (_, None) => "",
        }
    }

    /// Returns for which parents, and by which rules, the controller makes children.
    pub fn scope(&self) -> Scope<'_> {
        Scope {
            controller: &self.name,
            parent: &self.parent,
            rules: &self.rules,
        }
    }

    /// Warns about entries that allow more than an administrator may expect.
    pub fn warnings(&self) -> Vec<String> {
        let (name, every) = (&self.name, self.rules.other_namespaces.has_every());
        let warning = format!(
            "{name}: `otherNamespaces` has the pattern `*`, which includes kube-system and the host's own namespace"
        );
        every.then_some(warning).into_iter().collect()
    }

    /// Returns what a plugin makes or reads and the controller does not allow, each with its consequence.
    pub fn disallows(&self, description: &Description) -> Vec<String> {
        let makes = description.makes.iter();
        let makes = makes.filter(|kind| !self.rules.children.contains_key(kind)).map(|kind| {
            format!("the plugin creates {kind}, which is not in `children`: such a child is refused, and one that exists stays as it is")
        });
        let reads = description.reads.iter().filter(|kind| !self.reads.contains(kind));
        let reads = reads
            .map(|kind| format!("the plugin reads {kind}, which is not in `reads`: such a need is refused"));
        makes.chain(reads).collect()
    }
}

/// What the finalizers of all controllers begin with.
const FINALIZERS: &str = "operator-host.dev/";

/// Returns the finalizer that the controller of this name sets on its parents.
pub fn finalizer(controller: &str) -> String {
    format!("{FINALIZERS}{controller}")
}

/// The limits of a controller's writes. Events are not counted: they have a limit of their own.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields, default)]
pub struct WritesConfig {
    /// Writes per second on average. Default: 500.
    #[serde(deserialize_with = "read_as::<Positive, _, _>")]
    pub qps: u32,
    /// Writes in a burst after an idle time. Default: 3000.
    #[serde(deserialize_with = "read_as::<Positive, _, _>")]
    pub burst: u32,
}

impl Default for WritesConfig {
    fn default() -> Self {
        DEFAULT_WRITES
    }
}

/// Why a configuration is refused. At the start the host then starts nothing; later the previous configuration stays in
/// use.
#[derive(Debug, Error)]
pub enum ConfigError {
    /// The file cannot be read.
    #[error("cannot read the {what} {}: {error}", file.display())]
    Read {
        /// What the file is.
        what: &'static str,
        /// The file.
        file: PathBuf,
        /// The error of the operating system.
        error: std::io::Error,
    },
    /// The keys that verify plugins are in the folder of plugins.
    #[error(
        "the keys {} are in the plugin folder {}: anyone who can write there could add a key of their own; put them \
         elsewhere, such as in a mounted Secret", keys.display(), folder.display()
    )]
    KeysBesidePlugins {
        /// The file of the keys.
        keys: PathBuf,
        /// The folder.
        folder: PathBuf,
    },
    /// The text is invalid.
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

impl ConfigError {
    fn read(what: &'static str, file: &Path) -> impl FnOnce(std::io::Error) -> Self {
        let file = file.to_owned();
        move |error| Self::Read { what, file, error }
    }
}

impl Config {
    /// Returns where the host looks for the objects of a kind: in its namespaces; or everywhere (`None`), as for a kind that is not
    /// namespaced.
    pub fn places(&self, namespaced: bool) -> Vec<Option<&str>> {
        match namespaced && !self.namespaces.is_empty() {
            true => self.namespaces.iter().map(|it| Some(it.as_str())).collect(),
            false => vec![None],
        }
    }

    /// Reads and validates the file. Relative paths in it start at its folder.
    ///
    /// # Errors
    /// When the file cannot be read, is not YAML, or has an unknown field or an invalid value. A plugin file may be missing:
    /// its controller waits for it.
    pub fn load(file: &Path) -> Result<Self, ConfigError> {
        Self::parse(file, &read(file)?)
    }

    /// Validates the text of `file`; see [`Config::load`].
    ///
    /// # Errors
    /// As [`Config::load`].
    pub fn parse(file: &Path, text: &str) -> Result<Self, ConfigError> {
        values::yaml::<raw::RawConfig>(file, text)?.validate(file)
    }
}

fn read(file: &Path) -> Result<String, ConfigError> {
    std::fs::read_to_string(file).map_err(ConfigError::read("configuration", file))
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
/// Default of [`ControllerConfig::writes`]: more than one API server sustains, so it slows down only a runaway
/// controller.
pub const DEFAULT_WRITES: WritesConfig = WritesConfig {
    qps: 500,
    burst: 3000,
};
#[cfg(test)]
mod tests;
