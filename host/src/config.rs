//! The configuration file: YAML with unknown fields refused, validated into [`Config`].
//!
//! Parsing has two steps, as raw and validated types: serde checks the shape, [`Config::parse`] the meaning.
//! Both say the line and the column.

pub mod follow;
pub mod leadership;
mod trust;
pub mod webhook;

use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};
use std::time::Duration;

use serde::Deserialize;
use serde_saphyr::{Location, Spanned};
use thiserror::Error;

use self::leadership::{LeadershipConfig, RawLease};
use self::webhook::{RawWebhook, WebhookConfig};
use crate::plugin::contract::Kind;
use crate::plugin::source;
use crate::plugin::trust::{PublicKey, Trust};
use crate::telemetry::log;
use trust::RawSignatures;

mod proving;

use proving::RawProving;
pub use proving::{DEFAULT_PROVING, Mode, ProvingConfig};

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
}

/// One kind of custom resource and the plugin that reconciles it.
#[derive(Clone, Debug, PartialEq)]
pub struct ControllerConfig {
    /// A DNS label, unique in the file; names the field manager, the labels and the metrics.
    pub name: String,
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
    /// What one plugin call may use.
    pub limits: LimitsConfig,
    /// Whose plugins are taken.
    pub trust: Trust,
    /// What a new version of the plugin must show.
    pub proving: ProvingConfig,
    /// The ServiceAccount in whose name children are written; `None`: the host's own.
    pub service_account: Option<ServiceAccount>,
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
        format!("operator-host.dev/{}", self.name)
    }

    /// The field manager of all that this controller applies.
    #[must_use]
    pub fn field_manager(&self) -> String {
        format!("operator-host/{}", self.name)
    }
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

/// What one plugin call may use.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LimitsConfig {
    /// Linear memory, in bytes.
    pub memory: usize,
    /// Wall-clock time.
    pub deadline: Duration,
    /// The size of the response, in bytes.
    pub response: usize,
}

/// Why a configuration is refused. At the start nothing is started, later the one before stays.
#[derive(Debug, Error)]
pub enum ConfigError {
    /// The file cannot be read.
    #[error("cannot read the configuration {}: {source}", file.display())]
    Read {
        /// The file.
        file: PathBuf,
        /// What the operating system said.
        source: std::io::Error,
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
        parse_raw(file, &read(file)?)?.validate(file, false)
    }

    /// Checks the text of `file`; see [`Config::load`].
    ///
    /// # Errors
    /// As [`Config::load`].
    pub fn parse(file: &Path, text: &str) -> Result<Self, ConfigError> {
        parse_raw(file, text)?.validate(file, true)
    }
}

fn read(file: &Path) -> Result<String, ConfigError> {
    std::fs::read_to_string(file).map_err(|source| ConfigError::Read {
        file: file.to_owned(),
        source,
    })
}

fn parse_raw(file: &Path, text: &str) -> Result<RawConfig, ConfigError> {
    serde_saphyr::from_str(text).map_err(|error| {
        let message = error.without_snippet().to_string();
        invalid(
            file,
            error.location().unwrap_or(Location::UNKNOWN),
            in_plain_words(&message),
        )
    })
}

/// serde-saphyr ends its messages with the location, which [`ConfigError`] puts first, and names Rust's types.
fn in_plain_words(message: &str) -> String {
    let end = message.find(" at line ").unwrap_or(message.len());
    message[..end].replace("invalid u64", "expected a whole number")
}

fn invalid(file: &Path, at: Location, message: impl Into<String>) -> ConfigError {
    ConfigError::Invalid {
        file: file.to_owned(),
        line: at.line().max(1),
        column: at.column().max(1),
        message: message.into(),
    }
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
struct RawConfig {
    #[serde(default)]
    plugins: Option<PathBuf>,
    #[serde(default)]
    namespaces: Vec<Spanned<String>>,
    log: Option<Spanned<String>>,
    signatures: Option<RawSignatures>,
    controllers: Vec<RawController>,
    #[serde(default)]
    leadership: leadership::Mode,
    #[serde(default)]
    lease: RawLease,
    webhook: Option<RawWebhook>,
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
struct RawController {
    name: Spanned<String>,
    parent: RawKind,
    plugin: Spanned<PathBuf>,
    #[serde(default)]
    children: Vec<RawChild>,
    #[serde(default)]
    reads: Vec<RawKind>,
    #[serde(default)]
    other_namespaces: Vec<Spanned<String>>,
    #[serde(default)]
    adopt: bool,
    concurrency: Option<Spanned<usize>>,
    resync: Option<Spanned<String>>,
    #[serde(default)]
    backoff: RawBackoff,
    #[serde(default)]
    limits: RawLimits,
    sha256: Option<Spanned<String>>,
    signatures: Option<RawSignatures>,
    service_account: Option<Spanned<String>>,
    #[serde(default)]
    proving: RawProving,
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
struct RawKind {
    api_version: Spanned<String>,
    kind: Spanned<String>,
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
struct RawChild {
    api_version: Spanned<String>,
    kind: Spanned<String>,
    on_removal: Option<Removal>,
}

#[derive(Default, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields, default)]
struct RawBackoff {
    initial: Option<Spanned<String>>,
    max: Option<Spanned<String>>,
}

#[derive(Default, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields, default)]
struct RawLimits {
    memory: Option<Spanned<String>>,
    deadline: Option<Spanned<String>>,
    response: Option<Spanned<String>>,
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
/// Default of [`ControllerConfig::limits`].
pub const DEFAULT_LIMITS: LimitsConfig = LimitsConfig {
    memory: 64 << 20,
    deadline: Duration::from_secs(5),
    response: 8 << 20,
};

impl RawConfig {
    fn validate(self, file: &Path, needs_plugins: bool) -> Result<Config, ConfigError> {
        let here = file.parent().unwrap_or(Path::new(""));
        let folder = self
            .plugins
            .map_or_else(|| here.to_owned(), |folder| here.join(folder));
        let mut namespaces = BTreeSet::new();
        for namespace in &self.namespaces {
            dns_label(file, namespace, "a namespace")?;
            namespaces.insert(namespace.value.clone());
        }
        if let Some(filter) = &self.log {
            log::filter(&filter.value).map_err(|error| {
                let message = format!("{:?} is no filter of the log: {error}", filter.value);
                invalid(file, filter.referenced, message)
            })?;
        }
        let mut controllers: Vec<ControllerConfig> = Vec::new();
        let signatures = self
            .signatures
            .as_ref()
            .map(|signatures| signatures.validate(file));
        let keys = signatures.transpose()?.unwrap_or_default();
        for raw in self.controllers {
            let name_at = raw.name.referenced;
            let parent_at = raw.parent.kind.referenced;
            let controller = raw.validate(file, &folder, &keys, needs_plugins)?;
            if controllers.iter().any(|other| other.name == controller.name) {
                let message = format!(
                    "there is a controller named {:?} already: give each its own name",
                    controller.name
                );
                return Err(invalid(file, name_at, message));
            }
            let same = |other: &&ControllerConfig| {
                other.parent.group() == controller.parent.group()
                    && other.parent.kind == controller.parent.kind
            };
            if let Some(other) = controllers.iter().find(same) {
                let message = format!(
                    "the controller {:?} reconciles {} already: one kind can have one controller only",
                    other.name, controller.parent.kind
                );
                return Err(invalid(file, parent_at, message));
            }
            controllers.push(controller);
        }
        Ok(Config {
            namespaces,
            log: self.log.map(|filter| filter.value),
            controllers,
            leadership: self.lease.validate(file, self.leadership)?,
            webhook: self.webhook.map(|raw| raw.validate(file)).transpose()?,
        })
    }
}

impl RawController {
    fn validate(
        self,
        file: &Path,
        folder: &Path,
        keys: &[PublicKey],
        needs_plugins: bool,
    ) -> Result<ControllerConfig, ConfigError> {
        dns_label(file, &self.name, "a controller's name")?;
        let parent = self.parent.validate(file)?;
        let path = folder.join(&self.plugin.value);
        if needs_plugins && !source::is_there(&path) {
            let message = format!(
                "there is no plugin file {}: put it there, or name one that exists",
                path.display()
            );
            return Err(invalid(file, self.plugin.referenced, message));
        }
        let mut children = BTreeMap::new();
        let mut generated = Removal::Retain;
        for child in self.children {
            let at = child.kind.referenced;
            let removal = child.on_removal;
            let kind = RawKind {
                api_version: child.api_version,
                kind: child.kind,
            }
            .validate(file)?;
            if kind.api_version == "v1" && kind.kind == "Secret" {
                generated = removal.unwrap_or(Removal::Retain);
            }
            let removal = removal.unwrap_or_else(|| Removal::default_for(&kind));
            if let Some(_twice) = children.insert(kind.clone(), removal) {
                return Err(invalid(
                    file,
                    at,
                    format!("{kind} is listed twice under `children`"),
                ));
            }
        }
        let reads = self
            .reads
            .into_iter()
            .map(|kind| kind.validate(file))
            .collect::<Result<BTreeSet<_>, _>>()?;
        let mut other_namespaces = BTreeSet::new();
        for namespace in self.other_namespaces {
            dns_label(file, &namespace, "a namespace")?;
            other_namespaces.insert(namespace.value);
        }
        let concurrency = match self.concurrency {
            Some(n) if !(1..=1000).contains(&n.value) => {
                return Err(invalid(
                    file,
                    n.referenced,
                    "`concurrency` must be from 1 to 1000",
                ));
            }
            Some(n) => n.value,
            None => DEFAULT_CONCURRENCY,
        };
        let max = duration(file, self.backoff.max.as_ref(), DEFAULT_BACKOFF.max)?;
        let initial = duration(
            file,
            self.backoff.initial.as_ref(),
            DEFAULT_BACKOFF.initial.min(max),
        )?;
        if let Some(given) = self.backoff.initial.as_ref().filter(|_| initial > max) {
            let message = format!("`backoff.initial` ({initial:?}) must not be over `backoff.max` ({max:?})");
            return Err(invalid(file, given.referenced, message));
        }
        let keys = match &self.signatures {
            Some(signatures) => signatures.validate(file)?,
            None => keys.to_vec(),
        };
        let sha256 = trust::pin(file, self.sha256.as_ref())?;
        Ok(ControllerConfig {
            name: self.name.value,
            parent,
            plugin: path,
            children,
            reads,
            generated,
            other_namespaces,
            adopt: self.adopt,
            concurrency,
            resync: duration(file, self.resync.as_ref(), DEFAULT_RESYNC)?,
            backoff: BackoffConfig { initial, max },
            limits: LimitsConfig {
                memory: bytes(file, self.limits.memory.as_ref(), DEFAULT_LIMITS.memory)?,
                deadline: duration(file, self.limits.deadline.as_ref(), DEFAULT_LIMITS.deadline)?,
                response: bytes(file, self.limits.response.as_ref(), DEFAULT_LIMITS.response)?,
            },
            trust: Trust { sha256, keys },
            service_account: self
                .service_account
                .map(|text| service_account(file, &text))
                .transpose()?,
            proving: self.proving.validate(file)?,
        })
    }
}

impl RawKind {
    fn validate(self, file: &Path) -> Result<Kind, ConfigError> {
        let version = &self.api_version.value;
        let (group, version_name) = version.split_once('/').unwrap_or(("", version.as_str()));
        let well_formed = is_version(version_name)
            && (group.is_empty() != version.contains('/'))
            && group
                .split('.')
                .all(|label| group.is_empty() || is_dns_label(label));
        if !well_formed {
            let message = format!(
                "{version:?} is not an API version: expected `version` or `group/version`, such as `apps/v1`"
            );
            return Err(invalid(file, self.api_version.referenced, message));
        }
        let kind = self.kind.value;
        if !kind.starts_with(|c: char| c.is_ascii_uppercase())
            || !kind.chars().all(|c| c.is_ascii_alphanumeric())
        {
            let message = format!("{kind:?} is not a kind: expected CamelCase, such as `Deployment`");
            return Err(invalid(file, self.kind.referenced, message));
        }
        Ok(Kind {
            api_version: self.api_version.value,
            kind,
        })
    }
}

/// `v1`, `v1beta2` and the like.
fn is_version(text: &str) -> bool {
    let mut rest = text.strip_prefix('v').unwrap_or_default();
    rest = rest.trim_start_matches(|c: char| c.is_ascii_digit());
    let digits_first = text.len() > 1 && text[1..].starts_with(|c: char| c.is_ascii_digit());
    digits_first && rest.chars().all(|c| c.is_ascii_lowercase() || c.is_ascii_digit())
}

fn is_dns_label(text: &str) -> bool {
    !text.is_empty()
        && text.len() <= 63
        && text
            .chars()
            .all(|c| c.is_ascii_lowercase() || c.is_ascii_digit() || c == '-')
        && !text.starts_with('-')
        && !text.ends_with('-')
}

fn dns_label(file: &Path, text: &Spanned<String>, what: &str) -> Result<(), ConfigError> {
    if is_dns_label(&text.value) {
        return Ok(());
    }
    let message = format!(
        "{:?} cannot be {what}: expected at most 63 lower-case letters, digits and '-', not '-' at an end",
        text.value
    );
    Err(invalid(file, text.referenced, message))
}

fn service_account(file: &Path, text: &Spanned<String>) -> Result<ServiceAccount, ConfigError> {
    match text.value.split_once('/') {
        Some((namespace, name)) if is_dns_label(namespace) && name.split('.').all(is_dns_label) => {
            Ok(ServiceAccount {
                namespace: namespace.to_owned(),
                name: name.to_owned(),
            })
        }
        _ => {
            let message = format!(
                "{:?} is not a ServiceAccount: expected `namespace/name`",
                text.value
            );
            Err(invalid(file, text.referenced, message))
        }
    }
}

fn duration(file: &Path, text: Option<&Spanned<String>>, default: Duration) -> Result<Duration, ConfigError> {
    let Some(text) = text else { return Ok(default) };
    let parsed = text
        .value
        .parse::<jiff::SignedDuration>()
        .ok()
        .and_then(|d| Duration::try_from(d).ok());
    parsed.filter(|d| !d.is_zero()).ok_or_else(|| {
        let message = format!(
            "{:?} is not a duration: expected one such as `500ms`, `30s`, `5m` or `1h`",
            text.value
        );
        invalid(file, text.referenced, message)
    })
}

fn bytes(file: &Path, text: Option<&Spanned<String>>, default: usize) -> Result<usize, ConfigError> {
    let Some(text) = text else { return Ok(default) };
    parse_size(&text.value).ok_or_else(|| {
        let message = format!(
            "{:?} is not a size: expected bytes, such as `65536`, `512Ki` or `64Mi`",
            text.value
        );
        invalid(file, text.referenced, message)
    })
}

/// Bytes, more than 0, with or without one of the units Ki, Mi and Gi; `None` for any other text.
#[must_use]
pub fn parse_size(text: &str) -> Option<usize> {
    let (number, unit) = text.split_at(text.trim_end_matches(char::is_alphabetic).len());
    let unit = match unit {
        "" => 1,
        "Ki" => 1 << 10,
        "Mi" => 1 << 20,
        "Gi" => 1 << 30,
        _ => return None,
    };
    let size = number.parse::<usize>().ok()?.checked_mul(unit)?;
    (size > 0).then_some(size)
}

#[cfg(test)]
mod tests;
