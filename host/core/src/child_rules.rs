//! What a controller may do with children: the configuration sets it, and ownership, plan and pruning keep to it.

use std::collections::{BTreeMap, BTreeSet};

use schemars::JsonSchema;
use serde::Deserialize;

use super::namespaces::NamespacePatterns;
use super::object::is_namespace;
use operator_host_contract::Kind;

/// What a controller may do with children, and where.
#[derive(Clone, Debug, PartialEq)]
pub struct ChildRules {
    /// The kinds that the plugin may make, each with what happens to a child that is no longer wanted.
    pub children: BTreeMap<Kind, Removal>,
    /// What happens to Secrets whose values the host generated: retained unless Secrets are set to `delete`.
    pub generated: Removal,
    /// The namespaces other than the parent's in which children may be made and objects read.
    pub other_namespaces: NamespacePatterns,
    /// Whether to adopt an existing child that has no owner.
    pub adopt: bool,
    /// What the plugin may do beyond its default permissions.
    pub allow: BTreeSet<Allow>,
}

/// Whose children are meant, and by which rules they are made.
#[derive(Clone, Copy, Debug)]
pub struct Scope<'a> {
    /// The controller's name.
    pub controller: &'a str,
    /// The kind of its parents.
    pub parent: &'a Kind,
    /// What it may do.
    pub rules: &'a ChildRules,
}

impl Scope<'_> {
    /// Returns the namespace in which a parent has its children: its own, or the one that it is.
    pub fn home<'b>(self, name: &'b str, namespace: Option<&'b str>) -> Option<&'b str> {
        match is_namespace(self.parent) {
            true => Some(name),
            false => namespace,
        }
    }
}

impl ChildRules {
    /// Reports whether the plugin may make namespaces. A cluster-scoped parent may have children in those that it has made.
    pub fn makes_namespaces(&self) -> bool {
        self.children.keys().any(is_namespace)
    }

    /// Returns the namespaces besides the parents' own in which children may be and objects may be read; `None` when only the
    /// cluster knows them.
    pub fn other_names(&self) -> Option<&BTreeSet<String>> {
        self.other_namespaces.names().filter(|_| !self.makes_namespaces())
    }
}

/// Permissions that must be granted in the configuration: each can lead to more permissions, or to objects that cannot
/// be deleted.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub enum Allow {
    /// Children with `metadata.finalizers`.
    Finalizers,
    /// Secrets that Kubernetes fills with the token of a ServiceAccount.
    ServiceAccountTokens,
    /// Parents in the host's own namespace.
    HostNamespace,
}

/// What happens to a child that is no longer wanted, and to all children when the parent is deleted.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub enum Removal {
    /// The child is deleted. The default, except for PersistentVolumeClaims and generated Secrets.
    Delete,
    /// The child stays without an owner, and is owned again once it is wanted again.
    Retain,
}

impl Removal {
    /// Returns what happens to children of a kind unless the configuration says otherwise.
    pub fn default_for(kind: &Kind) -> Self {
        match (&*kind.api_version, &*kind.kind) {
            ("v1", "PersistentVolumeClaim") => Self::Retain,
            _ => Self::Delete,
        }
    }
}
