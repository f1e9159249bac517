//! The minimal permissions that a configuration needs, as Roles and bindings: `operator-host rbac`.
//!
//! It grants exactly what the requests need that the host's code sends:
//!
//! | component | verbs |
//! |---|---|
//! | `cluster::cache` | `list` and `watch` of parents, children, reads and CustomResourceDefinitions |
//! | `reconcile`, `status` | `list` of one parent, where the cache may be stale |
//! | `cluster::namespaces` | `list` and `watch` of Namespaces, where all of them are watched |
//! | `cluster::cache` | `get` of the Namespaces that the configuration names: one that does not exist can have no Role |
//! | `reconcile::apply`, `secrets` | `create` and `patch` of children: an apply that creates needs both |
//! | `reconcile::prune` | `delete` of children that are not retained |
//! | `reconcile::status` | `patch` of the parents' `status` |
//! | `reconcile` | `patch` of the parents, when the plugin has a finalizer or the controller has Secrets |
//! | `reconcile::going` | the same and `list` and `watch` in all namespaces, when the plugin has a finalizer: `grant_release` |
//! | `cluster::event_recorder` | `create` and `patch` of Events |
//! | `reconcile::proof_key` | `get` and `create` of the Secret with the key that proves what was generated |
//! | `leader` | `get`, `create` and `update` of its Lease; with a Lease per controller also `list` and `delete` |
//! | `definitions::record` | `patch` of the definitions of the parents' kinds, to annotate them |
//! | `definitions` | `create` and `patch` of the definitions that it installs, and `list` of all their objects |
//! | `operator::objects` | `list`, `watch` and `patch` of Controllers, `patch` of their status, and what `ceilings` lets them do |
//! | `operator::config_maps` | `list` and `watch` of ConfigMaps with plugins |
//! | `desired::plan` | `update` of the parents' `finalizers`, which one admission plugin asks for to set an owner reference |
//! | `client` | `impersonate` of the ServiceAccounts that controllers name, which then need the verbs on children |
//!
//! Every authenticated user may use discovery, and ask what it may do (`operator::agreement`).

mod ceilings;
mod egress;
pub mod manifests;
pub mod resources;

use std::collections::BTreeSet;

use operator_host_config::leadership::{LeadershipConfig, LeadershipMode};
use operator_host_config::{Config, ControllerConfig, DefinitionsMode, ServiceAccount};
use operator_host_contract::{Description, Kind};
use operator_host_core::child_rules::Removal;
use operator_host_core::object::secret::is_secret_kind;
use operator_host_desired::provenance::KEY_SECRET;

pub use self::egress::egress_rights;
use self::resources::{Resource, Resources, UnknownKind};

/// Where a permission applies.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Scope {
    /// All namespaces, and cluster-scoped objects.
    Cluster,
    /// In one namespace.
    Namespace(String),
}

/// One verb on one resource.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Permission {
    /// The account that needs it: a ServiceAccount that the host impersonates to write children, or `None` for the
    /// host.
    pub who: Option<ServiceAccount>,
    /// Where it applies.
    pub scope: Scope,
    /// The API group; empty for the core group.
    pub group: String,
    /// The plural, with `/status` for that subresource.
    pub resource: String,
    /// The name of the only object that it covers; `None` covers all objects.
    pub name: Option<String>,
    /// The verb, such as `list`.
    pub verb: &'static str,
}

/// All permissions.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Rights {
    needed: BTreeSet<Permission>,
    /// Configuration entries without effect, for the user to correct.
    pub remarks: Vec<String>,
    /// The power that the plugins get by the kinds that they make, for the user to know.
    pub warnings: Vec<String>,
}

/// Describes the power of a plugin that makes objects of a kind; `None` for a kind that gives no power over others.
pub fn power(kind: &Kind) -> Option<&'static str> {
    Some(match (kind.group(), kind.kind.as_str()) {
        ("", "Pod" | "ReplicationController" | "PodTemplate")
        | ("apps", "Deployment" | "ReplicaSet" | "StatefulSet" | "DaemonSet")
        | ("batch", "Job" | "CronJob") => {
            "its pods run any image, with any ServiceAccount and any Secret of their namespace, and where Pod \
             Security admission allows it as root on the node"
        }
        ("", "Secret") => {
            "other programs may trust the Secret, for example as their certificate or password; one that would contain a \
             ServiceAccount's token is refused unless `allow` lists `serviceAccountTokens`"
        }
        ("", "ServiceAccount") => "it has the permissions of any binding that already exists for its name",
        ("rbac.authorization.k8s.io", _) => {
            "it grants permissions to others: those of the account that writes the children, and with the verbs escalate or \
             bind any permission at all"
        }
        ("admissionregistration.k8s.io" | "apiextensions.k8s.io" | "apiregistration.k8s.io", _) => {
            "it changes how the API server handles the requests of every user"
        }
        _ => return None,
    })
}

/// Returns the verb, and its resources, with which an account may grant permissions that it does not have by objects of this
/// kind. Source: Kubernetes, "Using RBAC Authorization", privilege escalation prevention.
fn escalation(kind: &Kind) -> Option<(&'static str, &'static str)> {
    Some(match (kind.group(), kind.kind.as_str()) {
        ("rbac.authorization.k8s.io", "Role") => ("escalate", "roles"),
        ("rbac.authorization.k8s.io", "ClusterRole") => ("escalate", "clusterroles"),
        ("rbac.authorization.k8s.io", "RoleBinding") => ("bind", "roles, clusterroles"),
        ("rbac.authorization.k8s.io", "ClusterRoleBinding") => ("bind", "clusterroles"),
        _ => return None,
    })
}

/// Returns the permissions that the host, with the ServiceAccount `account`, needs for this configuration.
/// `descriptions` are those of the controllers' plugins, in the same order.
///
/// # Errors
/// When `resources` does not know a kind of the configuration; names the first one.
pub fn rights(
    config: &Config,
    account: &ServiceAccount,
    descriptions: &[Description],
    resources: &Resources,
) -> Result<Rights, UnknownKind> {
    let mut rights = Rights::default();
    rights.grant(&[Scope::Cluster], DEFINITIONS, &READ);
    let namespaces = ("", "namespaces");
    if config.namespaces.is_empty() {
        rights.grant(&[Scope::Cluster], namespaces, &READ);
    } else {
        let others = config.controllers.iter();
        let others = others.filter_map(|controller| controller.rules.other_names());
        for name in config.namespaces.iter().chain(others.flatten()) {
            rights.grant_named(&[Scope::Cluster], namespaces, name, &["get"]);
        }
    }
    grant_lease(&mut rights, &config.leadership, account);
    for (controller, description) in config.controllers.iter().zip(descriptions) {
        Controller {
            config,
            controller,
            description,
            resources,
        }
        .grant(&mut rights)?;
    }
    let home = config.host_namespace.as_ref().unwrap_or(&account.namespace);
    if makes_secrets(config, descriptions) {
        grant_key(&mut rights, home);
    }
    if let Some(entries) = &config.ceilings {
        ceilings::grant(&mut rights, entries, config, home, resources)?;
    }
    rights.drop_what_the_cluster_grants();
    Ok(rights)
}

/// A plugin's description does not show whether it asks for generated Secrets; it can if it makes Secrets.
fn makes_secrets(config: &Config, descriptions: &[Description]) -> bool {
    let secret = secret();
    let mut all = config.controllers.iter().zip(descriptions);
    all.any(|(controller, description)| {
        controller.rules.children.contains_key(&secret) && description.makes.contains(&secret)
    })
}

/// Grants what proves generated Secrets. `home` is the host's namespace.
fn grant_key(rights: &mut Rights, home: &str) {
    let (scopes, secrets) = ([Scope::Namespace(home.to_owned())], ("", "secrets"));
    rights.grant_named(&scopes, secrets, KEY_SECRET, &["get"]);
    rights.grant(&scopes, secrets, &["create"]);
}

/// Warns of the power that objects of a kind give, which `what` may create and `who` writes.
fn warn_of(rights: &mut Rights, what: &str, kind: &Kind, who: &str) {
    if let Some(power) = power(kind) {
        rights.warnings.push(format!("{what} {kind}: {power}"));
    }
    if let Some((verb, resources)) = escalation(kind) {
        rights.warnings.push(format!(
            "{what} {kind}: the API server refuses a {} with permissions that {who} does not have. Grant {who} the same \
             permissions, or, with `resourceNames` where the names are known, the rule {{apiGroups: \
             [rbac.authorization.k8s.io], resources: [{resources}], verbs: [{verb}]}}: whoever controls the plugin \
             can then give anybody {}",
            kind.kind,
            match verb {
                "bind" => "the permissions of those roles",
                _ => "any permission",
            }
        ));
    }
}

fn grant_lease(rights: &mut Rights, leadership: &LeadershipConfig, account: &ServiceAccount) {
    if leadership.mode == LeadershipMode::None {
        return;
    }
    let namespace = leadership.namespace.as_ref().unwrap_or(&account.namespace);
    let scopes = [Scope::Namespace(namespace.clone())];
    let leases = ("coordination.k8s.io", "leases");
    rights.grant(&scopes, EVENTS, &["create", "patch"]);
    rights.grant(&scopes, leases, &["create"]);
    rights.grant_named(&scopes, leases, &leadership.name, &["get", "update"]);
}

const DEFINITIONS: (&str, &str) = ("apiextensions.k8s.io", "customresourcedefinitions");
const EVENTS: (&str, &str) = ("events.k8s.io", "events");
const READ: [&str; 2] = ["list", "watch"];

impl Rights {
    /// Iterates over the permissions.
    pub fn iter(&self) -> impl Iterator<Item = &Permission> {
        self.needed.iter()
    }

    fn grant(&mut self, scopes: &[Scope], resource: (&str, &str), verbs: &[&'static str]) {
        self.grant_to(None, scopes, resource, None, verbs);
    }

    fn grant_named(&mut self, scopes: &[Scope], resource: (&str, &str), name: &str, verbs: &[&'static str]) {
        self.grant_to(None, scopes, resource, Some(name), verbs);
    }

    fn grant_to(
        &mut self,
        who: Option<&ServiceAccount>,
        scopes: &[Scope],
        (group, resource): (&str, &str),
        name: Option<&str>,
        verbs: &[&'static str],
    ) {
        for scope in scopes {
            self.needed.extend(verbs.iter().map(|verb| Permission {
                who: who.cloned(),
                scope: scope.clone(),
                group: group.to_owned(),
                resource: resource.to_owned(),
                name: name.map(str::to_owned),
                verb,
            }));
        }
    }

    /// Removes permissions in single namespaces that a permission in all namespaces includes.
    fn drop_what_the_cluster_grants(&mut self) {
        let all = self.needed.clone();
        self.needed.retain(|permission| {
            let everywhere = Permission {
                scope: Scope::Cluster,
                ..permission.clone()
            };
            permission.scope == Scope::Cluster || !all.contains(&everywhere)
        });
    }
}

/// One controller with everything that determines its permissions.
struct Controller<'a> {
    config: &'a Config,
    controller: &'a ControllerConfig,
    description: &'a Description,
    resources: &'a Resources,
}

impl Controller<'_> {
    fn grant(&self, rights: &mut Rights) -> Result<(), UnknownKind> {
        let name = &self.controller.name;
        let parent = &self.resources.of(&self.controller.parent)?;
        let own = self.own_scopes(parent);
        rights.grant(&own, parent.name(), &READ);
        if parent.has_status {
            rights.grant(&own, parent.part("status").name(), &["patch"]);
        }
        if self.description.finalizer {
            rights.grant(&own, parent.name(), &["patch"]);
            self.grant_release(rights, parent);
        }
        if self.controller.rules.children.keys().any(is_secret_kind) {
            rights.grant(&own, parent.name(), &["patch"]);
        }
        let events = match parent.namespaced {
            true => own.clone(),
            // Kubernetes stores the Events of cluster-scoped objects here.
            false => vec![Scope::Namespace("default".to_owned())],
        };
        rights.grant(&events, EVENTS, &["create", "patch"]);
        if let Some(account) = &self.controller.service_account {
            let scopes = [Scope::Namespace(account.namespace.clone())];
            rights.grant_named(&scopes, ("", "serviceaccounts"), &account.name, &["impersonate"]);
        }
        for (kind, removal) in &self.controller.rules.children {
            self.grant_child(rights, parent, kind, *removal)?;
        }
        for kind in &self.controller.reads {
            let resource = &self.resources.of(kind)?;
            rights.grant(&self.watched(resource), resource.name(), &READ);
        }
        // A kind of Kubernetes itself has no definition.
        if parent.group.contains('.') {
            let definition = format!("{}.{}", parent.plural, parent.group);
            rights.grant_named(&[Scope::Cluster], DEFINITIONS, &definition, &["patch"]);
        }
        self.grant_definition(rights, parent);
        rights.warnings.extend(self.controller.warnings());
        for disagreement in self.controller.disallows(self.description) {
            rights.remarks.push(format!("{name}: {disagreement}"));
        }
        Ok(())
    }

    /// Lets the host remove its finalizer in a namespace that is being deleted. Kubernetes deletes what is in it in no
    /// order, so that a RoleBinding goes before the parents, and nobody can bind a Role there any more. What ends a parent
    /// must therefore be bound for the cluster; it is the parents' kind alone, and no child.
    fn grant_release(&self, rights: &mut Rights, parent: &Resource) {
        if self.own_scopes(parent) == [Scope::Cluster] {
            return;
        }
        grant_release(rights, parent);
        rights.warnings.push(format!(
            "{}: the host may change the {} of every namespace: a namespace that is deleted loses its RoleBinding before its \
             objects, and without this right the host could not remove its finalizer from them, so they and the namespace \
             would stay",
            self.controller.name, parent.plural
        ));
    }

    fn grant_definition(&self, rights: &mut Rights, parent: &Resource) {
        let crd = self.description.definition();
        let definition = crd.as_ref().and_then(|crd| crd["metadata"]["name"].as_str());
        let Some(definition) = definition.filter(|_| self.controller.definitions == DefinitionsMode::Install)
        else {
            return;
        };
        let (name, scopes) = (&self.controller.name, [Scope::Cluster]);
        rights.grant_named(&scopes, DEFINITIONS, definition, &["patch"]);
        rights.grant(&scopes, DEFINITIONS, &["create"]);
        rights.grant(&scopes, parent.name(), &["list"]);
        rights.warnings.push(format!(
            "{name}: the host may create any CustomResourceDefinition, because RBAC cannot limit `create` to a name; to avoid \
             this, create {definition} yourself and remove the rule"
        ));
    }

    fn grant_child(
        &self,
        rights: &mut Rights,
        parent: &Resource,
        kind: &Kind,
        removal: Removal,
    ) -> Result<(), UnknownKind> {
        let name = &self.controller.name;
        let child = &self.resources.of(kind)?;
        // The host watches every kind that the configuration lists, to know what exists before it writes.
        let watched = match parent.namespaced {
            // It has no children in other namespaces, however many there are.
            true if self.controller.rules.other_names().is_none() => {
                self.in_namespaces(child, &BTreeSet::new())
            }
            _ => self.watched(child),
        };
        rights.grant(&watched, child.name(), &READ);
        if !self.description.makes.contains(kind) {
            rights.remarks.push(format!(
                "{name}: `children` lists {kind}, which the plugin does not create: remove it, so that the host does \
                 not watch it"
            ));
            return Ok(());
        }
        if parent.namespaced && !child.namespaced {
            rights.remarks.push(format!(
                "{name}: `children` lists {kind}, which is cluster-scoped: a parent in a namespace cannot own it"
            ));
            return Ok(());
        }
        let who = self.controller.service_account.as_ref();
        let words = who.map_or_else(|| "the host".to_owned(), |it| format!("the account {it}"));
        warn_of(rights, &format!("{name}: the plugin creates"), kind, &words);
        let written = match parent.namespaced {
            true => self.own_scopes(parent),
            false => match self.controller.rules.other_names().filter(|_| child.namespaced) {
                Some(names) => namespaces(names),
                None => vec![Scope::Cluster],
            },
        };
        if written == [Scope::Cluster] && !parent.namespaced && child.namespaced {
            let why = match self.controller.rules.makes_namespaces() {
                true => {
                    "the plugin makes namespaces, and a Role cannot be applied before its namespace exists"
                }
                false => "`otherNamespaces` has a pattern, and a Role covers one namespace only",
            };
            rights.warnings.push(format!(
                "{name}: the host may write {kind} in every namespace: {why}"
            ));
        }
        rights.grant_to(who, &written, child.name(), None, &["create", "patch"]);
        let generated = *kind == secret() && self.controller.rules.generated == Removal::Delete;
        if removal == Removal::Delete || generated {
            rights.grant_to(who, &written, child.name(), None, &["delete"]);
            // Such a child has an owner reference with `blockOwnerDeletion`.
            let (own, finalizers) = (self.own_scopes(parent), parent.part("finalizers"));
            rights.grant_to(who, &own, finalizers.name(), None, &["update"]);
        }
        Ok(())
    }

    /// Returns where the controller's parents are.
    fn own_scopes(&self, parent: &Resource) -> Vec<Scope> {
        match parent.namespaced {
            true => watched_namespaces(self.config),
            false => vec![Scope::Cluster],
        }
    }

    /// Returns where children and reads are watched.
    fn watched(&self, resource: &Resource) -> Vec<Scope> {
        match self.controller.rules.other_names() {
            Some(others) => self.in_namespaces(resource, others),
            None => vec![Scope::Cluster],
        }
    }

    /// Returns the scopes of the watched namespaces and others.
    fn in_namespaces(&self, resource: &Resource, others: &BTreeSet<String>) -> Vec<Scope> {
        match resource.namespaced && !self.config.namespaces.is_empty() {
            true => namespaces(&(&self.config.namespaces | others)),
            false => vec![Scope::Cluster],
        }
    }
}

/// Grants what the host needs in all namespaces to end the life of a parent.
fn grant_release(rights: &mut Rights, parent: &Resource) {
    let cluster = [Scope::Cluster];
    rights.grant(&cluster, parent.name(), &["list", "watch", "patch"]);
    if parent.has_status {
        rights.grant(&cluster, parent.part("status").name(), &["patch"]);
    }
}

/// Returns where the parents in namespaces are.
fn watched_namespaces(config: &Config) -> Vec<Scope> {
    match config.namespaces.is_empty() {
        true => vec![Scope::Cluster],
        false => namespaces(&config.namespaces),
    }
}

fn namespaces(names: &BTreeSet<String>) -> Vec<Scope> {
    names.iter().cloned().map(Scope::Namespace).collect()
}

fn secret() -> Kind {
    Kind::new("v1", "Secret")
}

#[cfg(test)]
mod tests;
