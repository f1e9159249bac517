//! The shape of the configuration file, and its validation.

use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use serde::Deserialize;
use serde_saphyr::Spanned;

use super::leadership::{self, RawLease};
use super::proving::RawProving;
use super::registry::{RawRegistry, location};
use super::trust;
use super::values::{bytes, count, dns_label, duration, invalid, is_version, service_account, yaml};
use super::webhook::RawWebhook;
use super::{
    Allow, Config, ConfigError, ControllerConfig, DEFAULT_BACKOFF, DEFAULT_CONCURRENCY, DEFAULT_RESYNC,
    DEFAULT_WRITES, DefinitionsMode, Removal, WritesConfig,
};
use tracing_subscriber::EnvFilter;

use operator_host_contract::{Kind, is_dns_label};
use operator_host_core::backoff::BackoffConfig;
use operator_host_core::object::{is_built_in, secret};
use operator_host_delivery::acceptance::Trust;
use operator_host_delivery::oci::settings::Settings;
use operator_host_runtime::Limits;

/// Parses the text and checks its shape.
pub(super) fn parse(file: &Path, text: &str) -> Result<RawConfig, ConfigError> {
    yaml(file, text)
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub(super) struct RawConfig {
    #[serde(default)]
    plugins: Option<PathBuf>,
    #[serde(default)]
    namespaces: Vec<Spanned<String>>,
    log: Option<Spanned<String>>,
    controllers: Vec<RawController>,
    #[serde(default)]
    leadership: leadership::LeadershipMode,
    #[serde(default)]
    lease: RawLease,
    webhook: Option<RawWebhook>,
    host_namespace: Option<Spanned<String>>,
    #[serde(default)]
    registry: RawRegistry,
    #[serde(default)]
    definitions: DefinitionsMode,
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
struct RawController {
    name: Spanned<String>,
    parent: RawKind,
    plugin: Spanned<String>,
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
    writes: RawWrites,
    #[serde(default)]
    finalizer: RawFinalizer,
    #[serde(default)]
    limits: RawLimits,
    sha256: Option<Spanned<String>>,
    service_account: Option<Spanned<String>>,
    #[serde(default)]
    proving: RawProving,
    #[serde(default)]
    allow: BTreeSet<Allow>,
    definitions: Option<DefinitionsMode>,
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
struct RawWrites {
    qps: Option<Spanned<u32>>,
    burst: Option<Spanned<u32>>,
}

impl RawWrites {
    fn validate(&self, file: &Path) -> Result<WritesConfig, ConfigError> {
        Ok(WritesConfig {
            qps: count(file, self.qps.as_ref(), "`writes.qps`", DEFAULT_WRITES.qps)?,
            burst: count(file, self.burst.as_ref(), "`writes.burst`", DEFAULT_WRITES.burst)?,
        })
    }
}

#[derive(Default, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields, default)]
struct RawFinalizer {
    release_after: Option<Spanned<String>>,
}

#[derive(Default, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields, default)]
struct RawLimits {
    memory: Option<Spanned<String>>,
    deadline: Option<Spanned<String>>,
    request: Option<Spanned<String>>,
    response: Option<Spanned<String>>,
    compile: Option<Spanned<String>>,
    values: Option<Spanned<usize>>,
    children: Option<Spanned<usize>>,
}

impl RawLimits {
    fn validate(&self, file: &Path) -> Result<Limits, ConfigError> {
        let default = Limits::DEFAULT;
        Ok(Limits {
            memory: bytes(file, self.memory.as_ref(), default.memory)?,
            deadline: duration(file, self.deadline.as_ref(), default.deadline)?,
            request: bytes(file, self.request.as_ref(), default.request)?,
            response: bytes(file, self.response.as_ref(), default.response)?,
            values: count(file, self.values.as_ref(), "`limits.values`", default.values)?,
            children: count(
                file,
                self.children.as_ref(),
                "`limits.children`",
                default.children,
            )?,
            compile: duration(file, self.compile.as_ref(), default.compile)?,
            ..default
        })
    }
}

impl RawConfig {
    /// Validates the meaning.
    pub(super) fn validate(self, file: &Path) -> Result<Config, ConfigError> {
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
            EnvFilter::try_new(&filter.value).map_err(|error| {
                let message = format!("{:?} is not a log filter: {error}", filter.value);
                invalid(file, filter.referenced, message)
            })?;
        }
        if let Some(namespace) = &self.host_namespace {
            dns_label(file, namespace, "a namespace")?;
        }
        let registry = Arc::new(self.registry.validate(file, here)?);
        let mut controllers: Vec<ControllerConfig> = Vec::new();
        for raw in self.controllers {
            let name_at = raw.name.referenced;
            let parent_at = raw.parent.kind.referenced;
            let raw = RawController {
                definitions: raw.definitions.or(Some(self.definitions)),
                ..raw
            };
            let controller = raw.validate(file, &folder, &registry)?;
            if controllers.iter().any(|other| other.name == controller.name) {
                let message = format!(
                    "there is already a controller named {:?}: give each its own name",
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
                    "the controller {:?} already reconciles {}: a kind can have one controller only",
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
            host_namespace: self.host_namespace.map(|namespace| namespace.value),
        })
    }
}

impl RawController {
    fn validate(
        self,
        file: &Path,
        folder: &Path,
        registry: &Arc<Settings>,
    ) -> Result<ControllerConfig, ConfigError> {
        dns_label(file, &self.name, "a controller's name")?;
        let parent_at = self.parent.kind.referenced;
        let parent = self.parent.validate(file)?;
        if is_built_in(parent.group()) {
            let message = format!(
                "{parent} is a kind of Kubernetes itself, whose objects others write: `parent` must be a custom resource"
            );
            return Err(invalid(file, parent_at, message));
        }
        let plugin = location(file, &self.plugin, folder, registry)?;
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
            if secret::is_secret_kind(&kind) {
                generated = removal.unwrap_or(Removal::Retain);
            }
            let removal = removal.unwrap_or_else(|| Removal::default_for(&kind));
            let contradicts = |(other, set): &(&Kind, &Removal)| {
                *other != &kind && other.is_version_of(&kind) && **set != removal
            };
            if let Some((other, _)) = children.iter().find(contradicts) {
                let message = format!(
                    "{kind} and {other} are versions of the same kind, so their `onRemoval` must be the same"
                );
                return Err(invalid(file, at, message));
            }
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
        for namespace in &self.other_namespaces {
            // What a pattern stands for may be one character.
            let name = namespace.value.replace('*', "a");
            let name = Spanned::new(name, namespace.referenced, namespace.defined);
            dns_label(file, &name, "a namespace")?;
        }
        let other_namespaces = self
            .other_namespaces
            .into_iter()
            .map(|namespace| namespace.value)
            .collect();
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
            let message =
                format!("`backoff.initial` ({initial:?}) must not be longer than `backoff.max` ({max:?})");
            return Err(invalid(file, given.referenced, message));
        }
        let release_after = match &self.finalizer.release_after {
            Some(given) => Some(duration(file, Some(given), Duration::ZERO)?),
            None => None,
        };
        let sha256 = trust::pin(file, self.sha256.as_ref())?;
        Ok(ControllerConfig {
            name: self.name.value,
            parent,
            plugin,
            children,
            reads,
            generated,
            other_namespaces,
            adopt: self.adopt,
            concurrency,
            resync: duration(file, self.resync.as_ref(), DEFAULT_RESYNC)?,
            backoff: BackoffConfig { initial, max },
            release_after,
            writes: self.writes.validate(file)?,
            limits: self.limits.validate(file)?,
            trust: Trust { sha256, keys: None },
            service_account: self
                .service_account
                .map(|text| service_account(file, &text))
                .transpose()?,
            proving: self.proving.validate(file)?,
            allow: self.allow,
            definitions: self.definitions.unwrap_or_default(),
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
