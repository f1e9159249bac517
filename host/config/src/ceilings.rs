//! The section `ceilings`: what Controllers in the cluster may do, one entry for each team. The first entry that is for the name of
//! a Controller and for the place that its plugin comes from decides. Without a field nothing of its kind is allowed; limits have
//! the defaults of the file's controllers.
//!
//! Whoever may write Controllers decides which program runs with the host's permissions, so the ceilings are in the file,
//! which only the host's administrators write. A Controller can name any ConfigMap, but only who may write in its namespace
//! decides what is in it: the place binds a team to its entry.

use std::collections::BTreeSet;
use std::path::{Component, Path};
use std::time::Duration;

use serde::{Deserialize, Deserializer};

use super::limits::{Concurrency, RawLimits};
use super::values::{Positive, read_as, size};
use super::{ControllerConfig, DEFAULT_CONCURRENCY, DEFAULT_WRITES, DefinitionsMode, WritesConfig};
use crate::location::Location;
use operator_host_contract::Kind;
use operator_host_core::child_rules::Allow;
use operator_host_core::field_path::WrittenPath;
use operator_host_core::namespaces::{NamespacePatterns, has_match};
use operator_host_runtime::Limits;

/// The shortest interval of reconciles without a change, and the shortest delay before a retry.
const SHORTEST_RESYNC: Duration = Duration::from_secs(10);
const SHORTEST_RETRY: Duration = Duration::from_millis(100);

/// The most Controllers of an entry by default, in all and of each namespace. One that runs takes some 350 KB.
const CONTROLLERS: usize = 500;
const CONTROLLERS_PER_NAMESPACE: usize = 100;

/// What some Controllers in the cluster may do.
#[derive(Clone, Debug, PartialEq, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields, default)]
pub struct Ceilings {
    /// The names of the Controllers that this is for; all when there are none.
    pub names: NamespacePatterns,
    /// The kinds that they may reconcile.
    pub parents: Kinds,
    /// The kinds that they may decorate.
    pub decorates: Kinds,
    /// The paths below which their plugins may set fields of these, such as `metadata.labels`.
    #[serde(deserialize_with = "paths")]
    pub fields: Vec<WrittenPath>,
    /// The kinds that their plugins may make.
    pub children: Kinds,
    /// The kinds that their plugins may read.
    pub reads: Kinds,
    /// The namespaces, besides the parent's, of children and of objects that are read.
    pub other_namespaces: NamespacePatterns,
    /// The namespaces of ConfigMaps with plugins. The host's own when this names no place for plugins.
    pub config_maps: NamespacePatterns,
    /// The repositories of plugins, as `registry/repository` with `*` for any text.
    pub registries: NamespacePatterns,
    /// Whether a plugin may be a file in the folder of plugins.
    pub files: bool,
    /// The accounts that write children, as `namespace/name`. When there are any, a Controller must name one of them.
    pub service_accounts: NamespacePatterns,
    /// Whether every plugin must be signed, so that a host without keys refuses all Controllers.
    pub signed: bool,
    /// Whether children without an owner may be adopted.
    pub adopt: bool,
    /// What plugins may do beyond their usual permissions.
    pub allow: BTreeSet<Allow>,
    /// What may be done with definitions.
    pub definitions: BTreeSet<DefinitionsMode>,
    /// The largest limits of one call.
    #[serde(deserialize_with = "read_as::<RawLimits, _, _>")]
    pub limits: Limits,
    /// The most Controllers that run or wait for their kind.
    #[serde(deserialize_with = "read_as::<Positive, _, _>")]
    pub controllers: usize,
    /// The most of them for each namespace of their plugins.
    #[serde(deserialize_with = "read_as::<Positive, _, _>")]
    pub controllers_per_namespace: usize,
    /// The most objects that are reconciled at the same time.
    #[serde(deserialize_with = "read_as::<Concurrency, _, _>")]
    pub concurrency: usize,
    /// The most writes.
    pub writes: WritesConfig,
}

/// Kinds by groups and names.
#[derive(Clone, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(transparent)]
pub struct Kinds(pub Vec<KindsOfGroups>);

/// All combinations of some groups and kinds.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct KindsOfGroups {
    /// The groups: `""` is the core group, `*` stands for any text.
    pub api_groups: BTreeSet<String>,
    /// The kinds, or `*`.
    pub kinds: BTreeSet<String>,
}

impl Kinds {
    /// Reports whether a kind is among them.
    pub fn contains(&self, kind: &Kind) -> bool {
        let mut all = self.0.iter();
        all.any(|it| has_match(&it.api_groups, kind.group()) && has_match(&it.kinds, &kind.kind))
    }
}

impl Default for Ceilings {
    fn default() -> Self {
        Self {
            names: NamespacePatterns::default(),
            parents: Kinds::default(),
            decorates: Kinds::default(),
            fields: Vec::new(),
            children: Kinds::default(),
            reads: Kinds::default(),
            other_namespaces: NamespacePatterns::default(),
            config_maps: NamespacePatterns::default(),
            registries: NamespacePatterns::default(),
            files: false,
            service_accounts: NamespacePatterns::default(),
            signed: false,
            adopt: false,
            allow: BTreeSet::new(),
            definitions: BTreeSet::from([DefinitionsMode::Check, DefinitionsMode::Ignore]),
            limits: Limits::DEFAULT,
            controllers: CONTROLLERS,
            controllers_per_namespace: CONTROLLERS_PER_NAMESPACE,
            concurrency: DEFAULT_CONCURRENCY,
            writes: DEFAULT_WRITES,
        }
    }
}

/// Returns the entry that is for a controller of the cluster, and its place in the file.
pub fn entry_for<'a>(all: &'a [Ceilings], controller: &ControllerConfig) -> Option<(usize, &'a Ceilings)> {
    all.iter().enumerate().find(|(_, entry)| {
        (entry.names.is_empty() || entry.names.contains(&controller.name))
            && entry.has_source(&controller.plugin)
    })
}

/// Names the place of a plugin, and the field that allows it.
pub(super) fn source(plugin: &Location) -> String {
    match plugin {
        Location::ConfigMap(key) => match &key.namespace {
            Some(namespace) => {
                format!("a plugin in a ConfigMap of the namespace {namespace:?} (`configMaps`)")
            }
            None => "a plugin in a ConfigMap of the host's own namespace (`configMaps`)".to_owned(),
        },
        Location::Registry { .. } => format!("the plugin's repository {} (`registries`)", repository(plugin)),
        Location::File(_) => "a file as the plugin (`files`)".to_owned(),
    }
}

fn repository(plugin: &Location) -> String {
    match plugin {
        Location::Registry { reference, .. } => format!("{}/{}", reference.registry, reference.repository),
        Location::ConfigMap(_) | Location::File(_) => String::new(),
    }
}

fn paths<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Vec<WrittenPath>, D::Error> {
    let texts = Vec::<String>::deserialize(deserializer)?;
    let paths = texts.iter().map(|text| text.parse());
    paths.collect::<Result<_, _>>().map_err(serde::de::Error::custom)
}

impl Ceilings {
    /// Returns the namespaces of ConfigMaps with plugins. `home` is the host's own.
    pub fn config_maps(&self, home: &str) -> NamespacePatterns {
        match self.config_maps.is_empty() && self.registries.is_empty() && !self.files {
            true => NamespacePatterns::from_iter([home.to_owned()]),
            false => self.config_maps.clone(),
        }
    }

    fn has_source(&self, plugin: &Location) -> bool {
        match plugin {
            // See `Config::is_at`.
            Location::ConfigMap(key) => self.config_maps.contains(key.namespace.as_deref().unwrap_or("")),
            Location::Registry { .. } => self.registries.contains(&repository(plugin)),
            Location::File(_) => self.files,
        }
    }

    /// Checks a controller that this is for. `entry` is its place in the file, `folder` that of the plugins, and `is_signed` whether
    /// the host demands signatures.
    pub(super) fn check(
        &self,
        entry: &str,
        controller: &ControllerConfig,
        folder: &Path,
        is_signed: bool,
    ) -> Result<(), String> {
        let beyond = |what: &str, ceiling: &str| {
            format!("{what} is not allowed by `{entry}.{ceiling}` of the host's configuration")
        };
        let (kinds, field) = match &controller.decorates {
            Some(_) => (&self.decorates, "decorates"),
            None => (&self.parents, "parents"),
        };
        if !kinds.contains(&controller.parent) {
            return Err(beyond(&format!("the kind {}", controller.parent), field));
        }
        let mut fields = controller.decorates.iter().flat_map(|it| &it.fields);
        let is_allowed = |field: &WrittenPath| self.fields.iter().any(|ceiling| field.is_within(ceiling));
        if let Some(field) = fields.find(|field| !is_allowed(field)) {
            return Err(beyond(&format!("the field {field}"), "fields"));
        }
        let mut children = controller.rules.children.keys();
        if let Some(kind) = children.find(|kind| !self.children.contains(kind)) {
            return Err(beyond(&format!("the child kind {kind}"), "children"));
        }
        if let Some(kind) = controller.reads.iter().find(|kind| !self.reads.contains(kind)) {
            return Err(beyond(&format!("reading {kind}"), "reads"));
        }
        // A pattern that a ceiling matches as text stands only for names that the ceiling matches.
        let mut patterns = controller.rules.other_namespaces.iter();
        if let Some(pattern) = patterns.find(|pattern| !self.other_namespaces.contains(pattern)) {
            return Err(beyond(&format!("the namespace {pattern:?}"), "otherNamespaces"));
        }
        if let Location::File(file) = &controller.plugin {
            let name = file.strip_prefix(folder).into_iter().flat_map(Path::components);
            if !matches!(name.collect::<Vec<_>>()[..], [Component::Normal(_)]) {
                return Err(
                    "the plugin's file must be in the folder of plugins: give its name only".to_owned(),
                );
            }
        }
        if self.signed && !is_signed {
            return Err(format!(
                "`{entry}.signed` demands signed plugins, but the host has no keys: start it with --signature-keys"
            ));
        }
        match &controller.service_account {
            Some(account) if !self.service_accounts.contains(&account.to_string()) => {
                let what = format!("the ServiceAccount {account}");
                return Err(beyond(&what, "serviceAccounts"));
            }
            None if !self.service_accounts.is_empty() => {
                return Err(format!(
                    "`{entry}.serviceAccounts` demands a `serviceAccount`, which writes the children"
                ));
            }
            Some(_) | None => {}
        }
        if controller.rules.adopt && !self.adopt {
            return Err(beyond("`adopt`", "adopt"));
        }
        if let Some(allow) = controller.rules.allow.difference(&self.allow).next() {
            return Err(beyond(&format!("`allow` with {allow:?}"), "allow"));
        }
        if controller.decorates.is_none() && !self.definitions.contains(&controller.definitions) {
            let what = format!("`definitions: {:?}`", controller.definitions).to_lowercase();
            return Err(beyond(&what, "definitions"));
        }
        self.check_limits(entry, controller)
    }

    /// Checks that there may be one more Controller beside `all` others that this is for, of which `own` are of its tenant. `entry` is
    /// its place in the file.
    ///
    /// # Errors
    /// Which ceiling does not allow it.
    pub fn check_number(&self, entry: usize, tenant: &str, all: usize, own: usize) -> Result<(), String> {
        let (most, field, whose) = if own >= self.controllers_per_namespace {
            let whose = match tenant {
                "" => "whose plugins are in no tenant's namespace".to_owned(),
                tenant => format!("whose plugins are in the namespace {tenant}"),
            };
            (self.controllers_per_namespace, "controllersPerNamespace", whose)
        } else if all >= self.controllers {
            let whose = "that this entry is for".to_owned();
            (self.controllers, "controllers", whose)
        } else {
            return Ok(());
        };
        Err(format!(
            "there are already {most} Controllers {whose}, which is the most that `ceilings[{entry}].{field}` of the host's \
             configuration allows: delete one of them, or ask the host's administrators to raise it"
        ))
    }

    fn check_limits(&self, entry: &str, controller: &ControllerConfig) -> Result<(), String> {
        let (given, largest) = (&controller.limits, &self.limits);
        fn at_most<T: Copy + PartialOrd>(
            field: &'static str,
            [given, largest]: [T; 2],
            shown: impl Fn(T) -> String,
        ) -> (&'static str, bool, [String; 2]) {
            (field, given > largest, [given, largest].map(shown))
        }
        let bytes = |field, given: usize, largest| at_most(field, [given, largest], size);
        let number = |field, given: usize, largest| at_most(field, [given, largest], |it| it.to_string());
        let time = |field, given: Duration, largest| at_most(field, [given, largest], |it| format!("{it:?}"));
        let (writes, most) = (&controller.writes, &self.writes);
        let all = [
            bytes("limits.memory", given.memory, largest.memory),
            bytes("limits.request", given.request, largest.request),
            bytes("limits.response", given.response, largest.response),
            number("limits.values", given.values, largest.values),
            number("limits.children", given.children, largest.children),
            number("concurrency", controller.concurrency, self.concurrency),
            number("writes.qps", writes.qps as usize, most.qps as usize),
            number("writes.burst", writes.burst as usize, most.burst as usize),
            time("limits.deadline", given.deadline, largest.deadline),
            time("limits.compile", given.compile, largest.compile),
        ];
        if let Some((field, _, [given, largest])) = all.into_iter().find(|(_, is_beyond, _)| *is_beyond) {
            return Err(format!(
                "`{field}` is {given}; `{entry}.{field}` of the host's configuration allows at most {largest}"
            ));
        }
        let waits = [
            ("resync", controller.resync, SHORTEST_RESYNC),
            ("backoff.initial", controller.backoff.initial, SHORTEST_RETRY),
        ];
        match waits.into_iter().find(|(_, given, shortest)| given < shortest) {
            Some((field, given, shortest)) => Err(format!(
                "`{field}` is {given:?}; a Controller may set at least {shortest:?}"
            )),
            None => Ok(()),
        }
    }
}
