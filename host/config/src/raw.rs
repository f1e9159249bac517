//! The shape of the configuration file, and its validation.

use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use schemars::JsonSchema;
use serde::Deserialize;
use serde_saphyr::{Location, Spanned};

use super::ceilings::RawCeilings;
use super::leadership::{self, RawLease};
use super::proving::RawProving;
use super::registry::{RawPlugin, RawRegistry, location};
use super::trust;
use super::values::{bytes, count, dns_label, duration, invalid, is_version, service_account, yaml};
use super::webhook::RawWebhook;
use super::{
    Allow, Config, ConfigError, ControllerConfig, DEFAULT_BACKOFF, DEFAULT_CONCURRENCY, DEFAULT_RESYNC,
    DEFAULT_WRITES, DefinitionsMode, Places, Removal, WritesConfig,
};
use tracing_subscriber::EnvFilter;

use operator_host_contract::{Kind, is_dns_label};
use operator_host_core::backoff::BackoffConfig;
use operator_host_core::object::{is_built_in, secret};
use operator_host_delivery::acceptance::Trust;
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
    controllers: Option<Vec<RawController>>,
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
    ceilings: Option<RawCeilings>,
}

/// A controller: one kind of custom resource, the plugin that reconciles it, and what the plugin may do.
#[derive(Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub(super) struct RawController {
    /// A DNS label, unique in the host. It is in the field manager, the labels and the metrics, and cannot be changed.
    #[schemars(with = "String")]
    name: Spanned<String>,
    /// The kind of custom resource.
    parent: RawKind,
    /// Where the plugin comes from: a file in the folder of plugins, an artifact (`oci://registry/repository:tag`), or a
    /// ConfigMap that the host reads through the API server (`configMap: {name, namespace, key}`, as `operator-host pack`
    /// writes it; without a namespace the host's own, without a key the name without `-plugin`, and `.wasm`).
    #[schemars(with = "RawPlugin")]
    plugin: Spanned<RawPlugin>,
    /// The kinds that the plugin may make.
    #[serde(default)]
    children: Vec<RawChild>,
    /// The other kinds that the plugin may read.
    #[serde(default)]
    reads: Vec<RawKind>,
    /// The namespaces other than the parent's in which children may be made and objects read; `*` stands for any text.
    #[serde(default)]
    #[schemars(with = "Vec<String>")]
    other_namespaces: Vec<Spanned<String>>,
    /// Whether to adopt an existing child that has no owner.
    #[serde(default)]
    adopt: bool,
    /// How many objects are reconciled at the same time, from 1 to 1000. Default: 8.
    #[schemars(with = "Option<u16>", range(min = 1, max = 1000))]
    concurrency: Option<Spanned<usize>>,
    /// How often every object is reconciled even if nothing changed, such as `1h`. Default: `10h`.
    #[schemars(with = "Option<String>")]
    resync: Option<Spanned<String>>,
    /// The delays between retries of a failing object.
    #[serde(default)]
    backoff: RawBackoff,
    /// The rate of writes to the cluster.
    #[serde(default)]
    writes: RawWrites,
    /// How objects are deleted.
    #[serde(default)]
    finalizer: RawFinalizer,
    /// The limits of one plugin call.
    #[serde(default)]
    limits: RawLimits,
    /// The digest of the only version of the plugin that is accepted.
    #[schemars(with = "Option<String>")]
    sha256: Option<Spanned<String>>,
    /// The ServiceAccount with which children are written, as `namespace/name`. Default: the host's own.
    #[schemars(with = "Option<String>")]
    service_account: Option<Spanned<String>>,
    /// What a new version of the plugin must prove before it becomes live.
    #[serde(default)]
    proving: RawProving,
    /// What the plugin may do beyond its usual permissions.
    #[serde(default)]
    allow: BTreeSet<Allow>,
    /// What the host does with the CustomResourceDefinition that the plugin contains. Default: `check`.
    definitions: Option<DefinitionsMode>,
}

/// A kind in one version.
#[derive(Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
struct RawKind {
    /// The group and version, such as `apps/v1`.
    #[schemars(with = "String")]
    api_version: Spanned<String>,
    /// The kind, such as `Deployment`.
    #[schemars(with = "String")]
    kind: Spanned<String>,
}

#[derive(Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
struct RawChild {
    /// The group and version, such as `apps/v1`.
    #[schemars(with = "String")]
    api_version: Spanned<String>,
    /// The kind, such as `Deployment`.
    #[schemars(with = "String")]
    kind: Spanned<String>,
    /// What happens to a child that is no longer wanted. Default: it is deleted, but PersistentVolumeClaims and generated
    /// Secrets stay.
    on_removal: Option<Removal>,
}

#[derive(Default, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields, default)]
struct RawBackoff {
    /// The first delay. Default: `500ms`.
    #[schemars(with = "Option<String>")]
    initial: Option<Spanned<String>>,
    /// The longest delay. Default: `5m`.
    #[schemars(with = "Option<String>")]
    max: Option<Spanned<String>>,
}

#[derive(Default, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields, default)]
pub(super) struct RawWrites {
    /// Writes per second on average. Default: 500.
    #[schemars(with = "Option<u32>")]
    qps: Option<Spanned<u32>>,
    /// Writes in a burst after an idle time. Default: 3000.
    #[schemars(with = "Option<u32>")]
    burst: Option<Spanned<u32>>,
}

impl RawWrites {
    pub(super) fn validate(&self, file: &Path) -> Result<WritesConfig, ConfigError> {
        Ok(WritesConfig {
            qps: count(file, self.qps.as_ref(), "`writes.qps`", DEFAULT_WRITES.qps)?,
            burst: count(file, self.burst.as_ref(), "`writes.burst`", DEFAULT_WRITES.burst)?,
        })
    }
}

#[derive(Default, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields, default)]
struct RawFinalizer {
    /// How long an object that is being deleted waits for its cleanup. Default: without limit.
    #[schemars(with = "Option<String>")]
    release_after: Option<Spanned<String>>,
}

#[derive(Default, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields, default)]
pub(super) struct RawLimits {
    /// The plugin's memory, such as `64Mi`.
    #[schemars(with = "Option<String>")]
    memory: Option<Spanned<String>>,
    /// The time of one call, such as `5s`.
    #[schemars(with = "Option<String>")]
    deadline: Option<Spanned<String>>,
    /// The bytes of a request, such as `4Mi`.
    #[schemars(with = "Option<String>")]
    request: Option<Spanned<String>>,
    /// The bytes of a response, such as `4Mi`.
    #[schemars(with = "Option<String>")]
    response: Option<Spanned<String>>,
    /// The time in which a plugin must be compiled, such as `1m`.
    #[schemars(with = "Option<String>")]
    compile: Option<Spanned<String>>,
    /// The number of JSON values of a response.
    #[schemars(with = "Option<u32>")]
    values: Option<Spanned<usize>>,
    /// The number of children of one object.
    #[schemars(with = "Option<u32>")]
    children: Option<Spanned<usize>>,
}

impl RawLimits {
    pub(super) fn validate(&self, file: &Path, default: Limits) -> Result<Limits, ConfigError> {
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
        let places = Places {
            folder,
            registry: Arc::new(self.registry.validate(file, here)?),
        };
        let mut controllers: Vec<ControllerConfig> = Vec::new();
        let Some(listed) = self
            .controllers
            .or_else(|| self.ceilings.is_some().then(Vec::new))
        else {
            let message = "`controllers` is missing: list controllers, or set `ceilings` to run the Controllers of the cluster";
            return Err(invalid(file, Location::UNKNOWN, message));
        };
        for raw in listed {
            let name_at = raw.name.referenced;
            let parent_at = raw.parent.kind.referenced;
            let controller = raw.defining(self.definitions).validate(file, &places)?;
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
            ceilings: self.ceilings.map(|raw| raw.validate(file)).transpose()?,
            places,
            definitions: self.definitions,
            keys: None,
        })
    }
}

impl RawController {
    /// Sets the default of `definitions`.
    pub(super) fn defining(self, default: DefinitionsMode) -> Self {
        let definitions = self.definitions.or(Some(default));
        Self { definitions, ..self }
    }

    pub(super) fn validate(self, file: &Path, places: &Places) -> Result<ControllerConfig, ConfigError> {
        dns_label(file, &self.name, "a controller's name")?;
        let parent_at = self.parent.kind.referenced;
        let parent = self.parent.validate(file)?;
        if is_built_in(parent.group()) {
            let message = format!(
                "{parent} is a kind of Kubernetes itself, whose objects others write: `parent` must be a custom resource"
            );
            return Err(invalid(file, parent_at, message));
        }
        let plugin = location(file, self.plugin, places)?;
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
            if let Some(other) = children.keys().find(|other: &&Kind| other.is_version_of(&kind)) {
                let message = match *other == kind {
                    true => format!("{kind} is listed twice under `children`"),
                    false => format!(
                        "{kind} and {other} are versions of the same kind: list under `children` only the one that the plugin makes"
                    ),
                };
                return Err(invalid(file, at, message));
            }
            children.insert(kind, removal);
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
            limits: self.limits.validate(file, Limits::DEFAULT)?,
            trust: Trust { sha256, keys: None },
            service_account: self
                .service_account
                .map(|text| service_account(file, &text))
                .transpose()?,
            proving: self.proving.validate(file)?,
            allow: self.allow,
            definitions: self.definitions.unwrap_or_default(),
            is_object: false,
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
