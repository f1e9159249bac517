//! The section `ceilings`: what Controllers in the cluster may do. Without an entry nothing of its kind is allowed; limits have
//! the defaults of the file's controllers.
//!
//! Whoever may write Controllers decides which program runs with the host's permissions, so the ceilings are in the file,
//! which only the host's administrators write.

use std::collections::BTreeSet;
use std::path::{Component, Path, PathBuf};
use std::time::Duration;

use serde::{Deserialize, Deserializer};

use super::limits::{Concurrency, RawLimits, RawWrites};
use super::values::size;
use super::{Allow, ControllerConfig, DEFAULT_CONCURRENCY, DEFAULT_WRITES, DefinitionsMode, WritesConfig};
use crate::namespaces::NamespacePatterns;
use operator_host_contract::Kind;
use operator_host_delivery::Location;
use operator_host_runtime::Limits;

/// The shortest interval of reconciles without a change, and the shortest delay before a retry.
const SHORTEST_RESYNC: Duration = Duration::from_secs(10);
const SHORTEST_RETRY: Duration = Duration::from_millis(100);

/// What Controllers in the cluster may do.
#[derive(Clone, Debug, PartialEq, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields, default)]
pub struct Ceilings {
    /// The kinds that they may reconcile.
    pub parents: Kinds,
    /// The kinds that their plugins may make.
    pub children: Kinds,
    /// The kinds that their plugins may read.
    pub reads: Kinds,
    /// The namespaces, besides the parent's, of children and of objects that are read.
    pub other_namespaces: NamespacePatterns,
    /// The namespaces, besides the host's own, of ConfigMaps with plugins.
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
    #[serde(deserialize_with = "as_in_controllers::<RawLimits, _, _>")]
    pub limits: Limits,
    /// The most objects that are reconciled at the same time.
    #[serde(deserialize_with = "as_in_controllers::<Concurrency, _, _>")]
    pub concurrency: usize,
    /// The most writes.
    #[serde(deserialize_with = "as_in_controllers::<RawWrites, _, _>")]
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
    #[must_use]
    pub fn contains(&self, kind: &Kind) -> bool {
        let any = |texts: &BTreeSet<String>, text: &str| {
            texts
                .iter()
                .cloned()
                .collect::<NamespacePatterns>()
                .contains(text)
        };
        self.0
            .iter()
            .any(|entry| any(&entry.api_groups, kind.group()) && any(&entry.kinds, &kind.kind))
    }
}

impl Default for Ceilings {
    fn default() -> Self {
        Self {
            parents: Kinds::default(),
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
            concurrency: DEFAULT_CONCURRENCY,
            writes: DEFAULT_WRITES,
        }
    }
}

/// Reads a value in the form `R` of a controller's field.
fn as_in_controllers<'de, R: Deserialize<'de>, T: From<R>, D: Deserializer<'de>>(
    deserializer: D,
) -> Result<T, D::Error> {
    R::deserialize(deserializer).map(T::from)
}

impl Ceilings {
    /// Checks a controller of the cluster. `folder` is that of the plugins, `is_signed` says whether the host demands signatures.
    ///
    /// # Errors
    /// The first thing that is not allowed, with the ceiling that does not allow it.
    pub(super) fn check(
        &self,
        controller: &ControllerConfig,
        folder: &Path,
        is_signed: bool,
    ) -> Result<(), String> {
        if !self.parents.contains(&controller.parent) {
            return Err(beyond(&format!("the kind {}", controller.parent), "parents"));
        }
        if let Some(kind) = controller
            .children
            .keys()
            .find(|kind| !self.children.contains(kind))
        {
            return Err(beyond(&format!("the child kind {kind}"), "children"));
        }
        if let Some(kind) = controller.reads.iter().find(|kind| !self.reads.contains(kind)) {
            return Err(beyond(&format!("reading {kind}"), "reads"));
        }
        // A pattern that a ceiling matches as text stands only for names that the ceiling matches.
        let mut patterns = controller.other_namespaces.iter();
        if let Some(pattern) = patterns.find(|pattern| !self.other_namespaces.contains(pattern)) {
            return Err(beyond(&format!("the namespace {pattern:?}"), "otherNamespaces"));
        }
        self.check_source(&controller.plugin, folder)?;
        if self.signed && !is_signed {
            return Err(
                "`ceilings.signed` demands signed plugins, but the host has no keys: start it with --signature-keys"
                    .to_owned(),
            );
        }
        match &controller.service_account {
            Some(account) if !self.service_accounts.contains(&account.to_string()) => {
                return Err(beyond(
                    &format!("the ServiceAccount {account}"),
                    "serviceAccounts",
                ));
            }
            None if !self.service_accounts.is_empty() => {
                return Err(
                    "`ceilings.serviceAccounts` demands a `serviceAccount`, which writes the children"
                        .to_owned(),
                );
            }
            Some(_) | None => {}
        }
        if controller.adopt && !self.adopt {
            return Err(beyond("`adopt`", "adopt"));
        }
        if let Some(allow) = controller.allow.difference(&self.allow).next() {
            return Err(beyond(&format!("`allow` with {allow:?}"), "allow"));
        }
        if !self.definitions.contains(&controller.definitions) {
            return Err(beyond(
                &format!("`definitions: {:?}`", controller.definitions).to_lowercase(),
                "definitions",
            ));
        }
        self.check_limits(controller)
    }

    fn check_source(&self, plugin: &Location, folder: &Path) -> Result<(), String> {
        match plugin {
            Location::ConfigMap(key) => match &key.namespace {
                Some(namespace) if !self.config_maps.contains(namespace) => Err(beyond(
                    &format!("the plugin's {key}, which is not in the host's own namespace,"),
                    "configMaps",
                )),
                Some(_) | None => Ok(()),
            },
            Location::Registry { reference, .. } => {
                let repository = format!("{}/{}", reference.registry, reference.repository);
                match self.registries.contains(&repository) {
                    true => Ok(()),
                    false => Err(beyond(
                        &format!("the plugin's repository {repository}"),
                        "registries",
                    )),
                }
            }
            Location::File(file) => {
                let name: PathBuf = file
                    .strip_prefix(folder)
                    .into_iter()
                    .flat_map(Path::components)
                    .collect();
                let is_name = matches!(name.components().collect::<Vec<_>>()[..], [Component::Normal(_)]);
                match (self.files, is_name) {
                    (false, _) => Err(beyond("a file as the plugin", "files")),
                    (true, false) => Err(
                        "the plugin's file must be in the folder of plugins: give its name only".to_owned(),
                    ),
                    (true, true) => Ok(()),
                }
            }
        }
    }

    fn check_limits(&self, controller: &ControllerConfig) -> Result<(), String> {
        let (given, largest) = (&controller.limits, &self.limits);
        let bytes =
            |field, given: usize, largest: usize| (field, given > largest, size(given), size(largest));
        let number = |field, given: usize, largest: usize| {
            (field, given > largest, given.to_string(), largest.to_string())
        };
        let time = |field, given: Duration, largest: Duration| {
            (
                field,
                given > largest,
                format!("{given:?}"),
                format!("{largest:?}"),
            )
        };
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
        if let Some((field, _, given, largest)) = all.into_iter().find(|(_, is_beyond, ..)| *is_beyond) {
            return Err(format!(
                "`{field}` is {given}; `ceilings.{field}` of the host's configuration allows at most {largest}"
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

fn beyond(what: &str, ceiling: &str) -> String {
    format!("{what} is not allowed by `ceilings.{ceiling}` of the host's configuration")
}
