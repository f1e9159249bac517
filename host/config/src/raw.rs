//! The shape of the configuration file, and its validation.

use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use schemars::JsonSchema;
use serde::Deserialize;
use serde_saphyr::{Location, Spanned};
use tracing_subscriber::EnvFilter;

use super::ceilings::Ceilings;
use super::decorates::{self, Decorates, MAX_KINDS, RawDecorated};
use super::leadership::{LeadershipConfig, LeadershipMode};
use super::limits::{Concurrency, RawLimits};
use super::registry::RawPlugin;
use super::values::{Label, Text, Value, invalid};
use super::webhook::WebhookConfig;
use super::{
    Config, ConfigError, ControllerConfig, DEFAULT_BACKOFF, DEFAULT_CONCURRENCY, DEFAULT_RESYNC,
    DefinitionsMode, Places, ProvingConfig, RegistryConfig, ServiceAccount, WritesConfig,
};
use super::{external, object};
use crate::trust::Trust;
use operator_host_contract::Kind;
use operator_host_core::backoff::BackoffConfig;
use operator_host_core::child_rules::{Allow, ChildRules, Removal};
use operator_host_core::crd::known::BuiltIn;
use operator_host_core::digest::Digest;
use operator_host_core::object::{is_built_in, secret};

#[derive(Default, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields, default)]
pub(super) struct RawConfig {
    plugins: Option<PathBuf>,
    namespaces: Vec<Text<Label>>,
    log: Option<Text<LogFilter>>,
    controllers: Option<Vec<Spanned<RawController>>>,
    leadership: LeadershipMode,
    lease: LeadershipConfig,
    webhook: Option<WebhookConfig>,
    host_namespace: Option<Text<Label>>,
    registry: RegistryConfig,
    definitions: DefinitionsMode,
    ceilings: Option<Vec<Ceilings>>,
}

struct LogFilter(String);

impl Value for LogFilter {
    fn parse(text: &str) -> Result<Self, String> {
        match EnvFilter::try_new(text) {
            Ok(_) => Ok(Self(text.to_owned())),
            Err(error) => Err(format!("{text:?} is not a log filter: {error}")),
        }
    }
}

/// A controller: one kind of custom resource, the plugin that reconciles it, and what the plugin may do.
#[derive(Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub(super) struct RawController {
    /// A DNS label, unique in the host. It is in the field manager, the labels and the metrics, and cannot be changed.
    name: Text<Label>,
    /// The kind of custom resource. A Controller has either this or `decorates`.
    #[schemars(with = "Option<Kind>")]
    parent: Option<ValidKind>,
    /// The kinds that exist without this controller and whose objects get children. Only in a Controller of the cluster.
    #[serde(default)]
    #[schemars(length(max = MAX_KINDS))]
    decorates: Vec<RawDecorated>,
    /// Whether a change of the status alone of an object that is decorated calls the plugin.
    #[serde(default)]
    watch_status: bool,
    /// Where the plugin comes from: a file in the folder of plugins, an artifact (`oci://registry/repository:tag`), or a
    /// ConfigMap that the host reads through the API server (`configMap: {name, namespace, key}`, as `operator-host pack`
    /// writes it; without a namespace the host's own, without a key the name without `-plugin`, and `.wasm`).
    plugin: RawPlugin,
    /// The kinds that the plugin may make.
    #[serde(default)]
    #[schemars(with = "Vec<RawChild>")]
    children: Vec<Child>,
    /// The other kinds that the plugin may read.
    #[serde(default)]
    #[schemars(with = "Vec<Kind>")]
    reads: Vec<ValidKind>,
    /// The namespaces other than the parent's in which children may be made and objects read; `*` stands for any text.
    #[serde(default)]
    other_namespaces: Vec<Text<Pattern>>,
    /// Whether to adopt an existing child that has no owner.
    #[serde(default)]
    adopt: bool,
    /// How many objects are reconciled at the same time, from 1 to 1000. Default: 8.
    #[schemars(with = "Option<u16>", range(min = 1, max = 1000))]
    concurrency: Option<Concurrency>,
    /// How often every object is reconciled even if nothing changed, such as `1h`. Default: `10h`.
    resync: Option<Text<Duration>>,
    /// The delays between retries of a failing object.
    #[serde(default)]
    backoff: RawBackoff,
    /// The rate of writes to the cluster.
    #[serde(default)]
    writes: WritesConfig,
    /// How objects are deleted.
    #[serde(default)]
    finalizer: RawFinalizer,
    /// The limits of one plugin call.
    #[serde(default)]
    limits: RawLimits,
    /// The digest of the only version of the plugin that is accepted.
    #[schemars(with = "Option<String>")]
    sha256: Option<Digest>,
    /// The ServiceAccount with which children are written, as `namespace/name`. Default: the host's own.
    service_account: Option<Text<ServiceAccount>>,
    /// What a new version of the plugin must prove before it becomes live.
    #[serde(default)]
    proving: ProvingConfig,
    /// What the plugin may do beyond its usual permissions.
    #[serde(default)]
    allow: BTreeSet<Allow>,
    /// What the host does with the CustomResourceDefinition that the plugin contains. Default: `check`.
    definitions: Option<DefinitionsMode>,
}

/// A namespace, or a pattern of namespaces.
struct Pattern(String);

impl Value for Pattern {
    fn parse(text: &str) -> Result<Self, String> {
        // What a pattern stands for may be one character.
        Label::parse(&text.replace('*', "a"))?;
        Ok(Self(text.to_owned()))
    }
}

/// A kind that Kubernetes can have.
#[derive(Deserialize)]
#[serde(try_from = "Kind")]
struct ValidKind(Kind);

impl TryFrom<Kind> for ValidKind {
    type Error = String;

    fn try_from(kind: Kind) -> Result<Self, String> {
        let is_camel_case = kind.kind.starts_with(|first: char| first.is_ascii_uppercase());
        let number = kind.version().strip_prefix('v');
        let is_version =
            number.is_some_and(|number| number.starts_with(|first: char| first.is_ascii_digit()));
        if kind.is_valid() && is_camel_case && is_version {
            return Ok(Self(kind));
        }
        Err(format!(
            "{:?} of {:?} is not a kind: expected CamelCase and an API version, such as `Deployment` of `apps/v1`",
            kind.kind, kind.api_version
        ))
    }
}

/// Returns why a kind can be neither a parent nor a child. Of a custom kind, discovery tells: it has neither lists nor parts of
/// objects.
fn is_no_object(kind: &Kind) -> Option<String> {
    let (group, name) = (kind.group(), &kind.kind);
    if group == object::GROUP {
        return Some(format!(
            "{kind} is a kind of the host itself, and decides what the host runs: no controller may reconcile or make it"
        ));
    }
    if group == "autoscaling" && name == "Scale" {
        return Some(format!(
            "{kind} is a part of other objects, such as Deployments: make the whole object"
        ));
    }
    let of = name.strip_suffix("List")?;
    let is_list = group.is_empty() && of.is_empty() || BuiltIn::find(group, of).is_some();
    is_list.then(|| format!("{kind} is a list and no object: name the kind of its items"))
}

#[derive(Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
struct RawChild {
    /// The group and version, such as `apps/v1`.
    api_version: String,
    /// The kind, such as `Deployment`.
    kind: String,
    /// What happens to a child that is no longer wanted. Default: it is deleted, but PersistentVolumeClaims and generated
    /// Secrets stay.
    on_removal: Option<Removal>,
}

#[derive(Deserialize)]
#[serde(try_from = "RawChild")]
struct Child(Kind, Option<Removal>);

impl TryFrom<RawChild> for Child {
    type Error = String;

    fn try_from(raw: RawChild) -> Result<Self, String> {
        let ValidKind(kind) = Kind::new(raw.api_version, raw.kind).try_into()?;
        Ok(Self(kind, raw.on_removal))
    }
}

#[derive(Default, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields, default)]
struct RawBackoff {
    /// The first delay. Default: `500ms`.
    initial: Option<Text<Duration>>,
    /// The longest delay. Default: `5m`.
    max: Option<Text<Duration>>,
}

#[derive(Default, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields, default)]
struct RawFinalizer {
    /// How long an object that is being deleted waits for its cleanup. Default: without limit.
    release_after: Option<Text<Duration>>,
}

impl RawConfig {
    pub(super) fn validate(self, file: &Path) -> Result<Config, ConfigError> {
        let here = file.parent().unwrap_or(Path::new(""));
        let folder = self.plugins;
        let places = Places {
            folder: folder.map_or_else(|| here.to_owned(), |folder| here.join(folder)),
            registry: Arc::new(self.registry.relative_to(here)),
        };
        let mut controllers: Vec<ControllerConfig> = Vec::new();
        let without = || self.ceilings.is_some().then(Vec::new);
        let Some(listed) = self.controllers.or_else(without) else {
            let message = "`controllers` is missing: list controllers, or set `ceilings` to run the Controllers of the cluster";
            return Err(invalid(file, Location::UNKNOWN, message));
        };
        for raw in listed {
            let wrong = |message| invalid(file, raw.referenced, message);
            let read = raw.value.validate(&places, self.definitions);
            let mut read = read.map_err(|(_, message)| wrong(message))?;
            let controller = read.swap_remove(0);
            if controller.decorates.is_some() {
                return Err(wrong(
                    "`decorates` is for Controllers of the cluster, which record the live version: apply a Controller, and allow \
                     it in `ceilings`".to_owned(),
                ));
            }
            if controllers.iter().any(|other| other.name == controller.name) {
                return Err(wrong(format!(
                    "there is already a controller named {:?}: give each its own name",
                    controller.name
                )));
            }
            let mut others = controllers.iter();
            if let Some(other) = others.find(|other| other.parent.is_version_of(&controller.parent)) {
                return Err(wrong(format!(
                    "the controller {:?} already reconciles {}: a kind can have one controller only",
                    other.name, controller.parent.kind
                )));
            }
            controllers.push(controller);
        }
        Ok(Config {
            namespaces: self.namespaces.into_iter().map(|it| it.0.0).collect(),
            log: self.log.map(|filter| filter.0.0),
            controllers,
            leadership: LeadershipConfig {
                mode: self.leadership,
                ..self.lease
            },
            webhook: self.webhook.map(|webhook| webhook.relative_to(here)),
            host_namespace: self.host_namespace.map(|it| it.0.0),
            ceilings: self.ceilings,
            places,
            definitions: self.definitions,
            keys: None,
        })
    }
}

/// A kind, and what a Controller that decorates says of it.
type Parent = (Kind, Option<Decorates>);

/// A field, and what is wrong with it.
type Wrong = (String, String);

fn wrong<T>(field: impl Into<String>, why: impl Into<String>) -> Result<T, Wrong> {
    Err((field.into(), why.into()))
}

impl RawController {
    /// Validates what its single values do not show; `definitions` is the default of its field. Returns one controller, or one for
    /// each kind that it decorates.
    pub(super) fn validate(
        mut self,
        places: &Places,
        definitions: DefinitionsMode,
    ) -> Result<Vec<ControllerConfig>, Wrong> {
        let parents = self.parents()?;
        let decorates = parents.iter().any(|(_, decorates)| decorates.is_some());
        if !decorates && self.watch_status {
            let why = "only a controller that decorates may watch the status of its parents";
            return wrong("watchStatus", why);
        }
        if decorates && self.definitions.is_some_and(|it| it != DefinitionsMode::Ignore) {
            let why = "the definitions of what is decorated are not the plugin's: leave this out";
            return wrong("definitions", why);
        }
        if decorates && !self.proving.stages.is_empty() {
            let why = "a version that decorates cannot be staged: the condition Ready of its objects, if they have one, says nothing \
                       about it";
            return wrong("proving.stages", why);
        }
        let mut children = BTreeMap::new();
        let mut known = BTreeMap::<(String, String), Kind>::new();
        let mut generated = Removal::Retain;
        for (index, Child(kind, removal)) in self.children.into_iter().enumerate() {
            let field = format!("children[{index}]");
            // What is outside of the cluster is a child like any other.
            if let Some(why) = is_no_object(&kind).filter(|_| kind != external::kind()) {
                return wrong(field, why);
            }
            if secret::is_secret_kind(&kind) {
                generated = removal.unwrap_or(Removal::Retain);
            }
            let any_version = (kind.group().to_owned(), kind.kind.clone());
            if let Some(other) = known.insert(any_version, kind.clone()) {
                let why = match other == kind {
                    true => format!("{kind} is listed twice under `children`"),
                    false => format!(
                        "{kind} and {other} are versions of the same kind: list under `children` only the one that the plugin makes"
                    ),
                };
                return wrong(field, why);
            }
            if decorates && parents.iter().any(|(parent, _)| kind.is_version_of(parent)) {
                let why = format!(
                    "{kind} is the kind that it decorates, so its children could get children: decorate another"
                );
                return wrong(field, why);
            }
            let removal = removal.unwrap_or_else(|| Removal::default_for(&kind));
            children.insert(kind, removal);
        }
        let max = self.backoff.max.map_or(DEFAULT_BACKOFF.max, |it| it.0);
        let initial = self.backoff.initial;
        let initial = initial.map_or(DEFAULT_BACKOFF.initial.min(max), |it| it.0);
        if initial > max {
            let why =
                format!("`backoff.initial` ({initial:?}) must not be longer than `backoff.max` ({max:?})");
            return wrong("backoff.initial", why);
        }
        let name = self.name.0.0;
        let mut parents = parents.into_iter().enumerate();
        let Some((_, (parent, decorates))) = parents.next() else {
            return Ok(Vec::new());
        };
        let first = ControllerConfig {
            id: name.clone(),
            name,
            parent,
            plugin: self.plugin.location(places),
            rules: ChildRules {
                children,
                generated,
                other_namespaces: self.other_namespaces.into_iter().map(|it| it.0.0).collect(),
                adopt: self.adopt,
                allow: self.allow,
            },
            reads: self.reads.into_iter().map(|kind| kind.0).collect(),
            concurrency: self.concurrency.map_or(DEFAULT_CONCURRENCY, |it| it.0),
            resync: self.resync.map_or(DEFAULT_RESYNC, |it| it.0),
            backoff: BackoffConfig { initial, max },
            release_after: self.finalizer.release_after.map(|it| it.0),
            writes: self.writes,
            limits: self.limits.into(),
            trust: Trust {
                sha256: self.sha256,
                keys: None,
            },
            service_account: self.service_account.map(|it| it.0),
            proving: self.proving,
            definitions: match &decorates {
                Some(_) => DefinitionsMode::Ignore,
                None => self.definitions.unwrap_or(definitions),
            },
            decorates,
            uid: None,
        };
        let mut all = vec![first.clone()];
        for (index, (parent, decorates)) in parents {
            let id = decorates::id(&first.name, &parent);
            all.push(ControllerConfig {
                id: id.map_err(|why| (format!("decorates[{index}].kind"), why))?,
                parent,
                decorates,
                ..first.clone()
            });
        }
        Ok(all)
    }

    /// Takes the kind of its own, or the kinds that it decorates: at least one.
    fn parents(&mut self) -> Result<Vec<Parent>, Wrong> {
        let decorated = std::mem::take(&mut self.decorates);
        match (self.parent.take(), decorated.is_empty()) {
            (None, false) => {}
            (Some(ValidKind(parent)), true) => {
                if let Some(why) = is_no_object(&parent) {
                    return wrong("parent", why);
                }
                if is_built_in(parent.group()) {
                    let why = format!(
                        "{parent} is a kind of Kubernetes itself, whose objects others write: `parent` must be a custom resource"
                    );
                    return wrong("parent", why);
                }
                return Ok(vec![(parent, None)]);
            }
            (Some(_), false) => {
                let why = "a controller either reconciles a kind of its own (`parent`) or decorates others: leave one out";
                return wrong("decorates", why);
            }
            (None, true) => return wrong("parent", "name the kind of custom resource"),
        }
        if decorated.len() > MAX_KINDS {
            let why = format!("a Controller decorates at most {MAX_KINDS} kinds: apply another one");
            return wrong("decorates", why);
        }
        let mut kinds = BTreeSet::new();
        for (index, it) in decorated.iter().enumerate() {
            let field = format!("decorates[{index}]");
            let kind = ValidKind::try_from(it.kind());
            let ValidKind(kind) = kind.map_err(|why| (format!("{field}.kind"), why))?;
            if let Some(why) = is_no_object(&kind) {
                return wrong(field, why);
            }
            if !kinds.insert(decorates::named(&kind)) {
                return wrong(field, format!("{kind} is listed twice"));
            }
        }
        let parents = decorated.into_iter().enumerate().map(|(index, it)| {
            let kind = it.kind();
            let decorates = it.validate(self.watch_status);
            let decorates = decorates.map_err(|(part, why)| (format!("decorates[{index}].{part}"), why))?;
            Ok((kind, Some(decorates)))
        });
        parents.collect()
    }
}
