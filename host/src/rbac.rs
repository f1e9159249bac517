//! The least rights that a configuration needs, as Roles and bindings: `operator-host rbac`.
//!
//! What is granted here is what the host's code asks for, request by request, and nothing more:
//!
//! | who asks | verbs |
//! |---|---|
//! | `controller::watches` | `list` and `watch` of parents, children, reads and CustomResourceDefinitions |
//! | `controller::apply`, `secrets` | `create` and `patch` of children: an apply that creates needs both |
//! | `controller::prune` | `delete` of children that are not retained |
//! | `controller::status` | `patch` of the parents' `status` |
//! | `controller::reconcile` | `patch` of the parents, when the plugin wants a finalizer |
//! | `controller::events` | `create` and `patch` of Events |
//!
//! Nothing is read by name, so `get` is never needed, and discovery is open to everybody who is authenticated.

pub mod manifests;
pub mod resources;

use std::collections::{BTreeMap, BTreeSet};

use crate::config::leadership::{LeadershipConfig, Mode};
use crate::config::{Config, ControllerConfig, Removal};
use crate::plugin::contract::{Description, Kind};

use self::resources::{Resource, Resources, UnknownKind};

/// Where a permission holds.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Scope {
    /// In all namespaces, and for what is in none.
    Cluster,
    /// In one namespace.
    Namespace(String),
}

/// One verb on one resource.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Permission {
    /// Where.
    pub scope: Scope,
    /// The API group; empty for the core.
    pub group: String,
    /// The plural, with `/status` for that subresource.
    pub resource: String,
    /// `list`, `watch`, `create`, `patch`, `delete` and the like.
    pub verb: &'static str,
}

/// All that is needed, and for each permission why: one line for each controller that needs it.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Rights {
    needed: BTreeMap<Permission, BTreeSet<String>>,
    /// What the configuration says in vain, for a person to mend.
    pub remarks: Vec<String>,
}

/// What the host needs for this configuration. `descriptions` are those of the controllers' plugins, in the same
/// order.
///
/// # Errors
/// The first kind of the configuration that `resources` does not know.
pub fn rights(
    config: &Config,
    descriptions: &[Description],
    resources: &Resources,
) -> Result<Rights, UnknownKind> {
    let mut rights = Rights::default();
    let definitions = ("apiextensions.k8s.io", "customresourcedefinitions");
    rights.grant(
        &[Scope::Cluster],
        definitions,
        &READ,
        "the host: a kind that comes or changes",
    );
    rights.grant_elections(&config.leadership);
    for (controller, description) in config.controllers.iter().zip(descriptions) {
        Controller {
            config,
            controller,
            description,
            resources,
        }
        .grant(&mut rights)?;
    }
    rights.drop_what_the_cluster_grants();
    Ok(rights)
}

const READ: [&str; 2] = ["list", "watch"];

impl Rights {
    /// Every permission, and who needs it.
    pub fn iter(&self) -> impl Iterator<Item = (&Permission, &BTreeSet<String>)> {
        self.needed.iter()
    }

    fn grant(
        &mut self,
        scopes: &[Scope],
        (group, resource): (&str, &str),
        verbs: &[&'static str],
        reason: &str,
    ) {
        for scope in scopes {
            for verb in verbs {
                let permission = Permission {
                    scope: scope.clone(),
                    group: group.to_owned(),
                    resource: resource.to_owned(),
                    verb,
                };
                self.needed
                    .entry(permission)
                    .or_default()
                    .insert(reason.to_owned());
            }
        }
    }

    /// What replicas need to know who leads.
    fn grant_elections(&mut self, leadership: &LeadershipConfig) {
        let verbs: &[&'static str] = match leadership.mode {
            Mode::None => return,
            Mode::Single => &["get", "create", "update"],
            Mode::PerController => &["get", "list", "create", "update", "delete"],
        };
        let Some(namespace) = &leadership.namespace else {
            self.remarks.push(format!(
                "`lease.namespace` is not set, so what the Leases need is left out: {} on leases, and create and patch on \
                 events of events.k8s.io, in the namespace that the host runs in",
                verbs.join(", ")
            ));
            return;
        };
        let scope = [Scope::Namespace(namespace.clone())];
        let leases = ("coordination.k8s.io", "leases");
        self.grant(&scope, leases, verbs, "the host: who leads");
        let events = ("events.k8s.io", "events");
        self.grant(
            &scope,
            events,
            &["create", "patch"],
            "the host: Events on its Leases",
        );
    }

    /// A permission in all namespaces is one in each.
    fn drop_what_the_cluster_grants(&mut self) {
        let cluster: BTreeSet<_> = self
            .needed
            .keys()
            .filter(|permission| permission.scope == Scope::Cluster)
            .cloned()
            .collect();
        self.needed.retain(|permission, _| {
            let everywhere = Permission {
                scope: Scope::Cluster,
                ..permission.clone()
            };
            permission.scope == Scope::Cluster || !cluster.contains(&everywhere)
        });
    }
}

/// One controller and all that its rights follow from.
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
        rights.grant(&own, parent.name(), &READ, &format!("{name}: its parents"));
        if parent.has_status {
            let status = format!("{}/status", parent.plural);
            let why = format!("{name}: its parents' status");
            rights.grant(&own, (&parent.group, &status), &["patch"], &why);
        }
        if self.description.finalizer {
            let why = format!("{name}: its parents' finalizer");
            rights.grant(&own, parent.name(), &["patch"], &why);
        }
        let events = match parent.namespaced {
            true => own.clone(),
            // Where Kubernetes keeps the Events of what is in no namespace.
            false => vec![Scope::Namespace("default".to_owned())],
        };
        let why = format!("{name}: Events on its parents");
        rights.grant(&events, ("events.k8s.io", "events"), &["create", "patch"], &why);
        for (kind, removal) in &self.controller.children {
            self.grant_child(rights, parent, kind, *removal)?;
        }
        for kind in &self.controller.reads {
            let resource = &self.resources.of(kind)?;
            let why = format!("{name}: what its plugin may read");
            rights.grant(&self.watched(resource), resource.name(), &READ, &why);
        }
        for kind in &self.description.makes {
            if !self.controller.children.contains_key(kind) {
                rights.remarks.push(format!(
                    "{name}: the plugin makes {kind}, which its `children` do not list: such a child is refused"
                ));
            }
        }
        Ok(())
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
        let why = format!("{name}: children");
        // The host watches all that the configuration lists, to know what exists before it writes.
        rights.grant(&self.watched(child), child.name(), &READ, &why);
        if !self.description.makes.contains(kind) {
            rights.remarks.push(format!(
                "{name}: `children` lists {kind}, which the plugin does not make: take it out, and the host need not \
                 watch it"
            ));
            return Ok(());
        }
        if parent.namespaced && !child.namespaced {
            rights.remarks.push(format!(
                "{name}: `children` lists {kind}, which is cluster-scoped: a parent in a namespace cannot own it"
            ));
            return Ok(());
        }
        let written = match parent.namespaced {
            true => self.own_scopes(parent),
            false if child.namespaced => namespaces(&self.controller.other_namespaces),
            false => vec![Scope::Cluster],
        };
        if let Some(account) = &self.controller.service_account {
            let scope = [Scope::Namespace(account.namespace.clone())];
            let why = format!("{name}: to write its children as {account}");
            rights.grant(&scope, ("", "serviceaccounts"), &["impersonate"], &why);
            rights.remarks.push(format!(
                "{name}: the ServiceAccount {account} needs create, patch and delete on {}, which is not printed here",
                child.plural
            ));
            return Ok(());
        }
        rights.grant(&written, child.name(), &["create", "patch"], &why);
        let generated = *kind == secret() && self.controller.generated == Removal::Delete;
        if removal == Removal::Delete || generated {
            let why = format!("{name}: children that are no longer wanted");
            rights.grant(&written, child.name(), &["delete"], &why);
        }
        Ok(())
    }

    /// Where the controller's parents are.
    fn own_scopes(&self, parent: &Resource) -> Vec<Scope> {
        match parent.namespaced && !self.config.namespaces.is_empty() {
            true => namespaces(&self.config.namespaces),
            false => vec![Scope::Cluster],
        }
    }

    /// Where children and reads are watched.
    fn watched(&self, resource: &Resource) -> Vec<Scope> {
        if !resource.namespaced || self.config.namespaces.is_empty() {
            return vec![Scope::Cluster];
        }
        let mut all = self.config.namespaces.clone();
        all.extend(self.controller.other_namespaces.iter().cloned());
        namespaces(&all)
    }
}

fn namespaces(names: &BTreeSet<String>) -> Vec<Scope> {
    names.iter().cloned().map(Scope::Namespace).collect()
}

fn secret() -> Kind {
    Kind {
        api_version: "v1".into(),
        kind: "Secret".into(),
    }
}

#[cfg(test)]
mod tests;
