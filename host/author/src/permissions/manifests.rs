//! Formats permissions as the Kubernetes objects that grant them.

use std::collections::BTreeMap;

use k8s_openapi::api::rbac::v1::{
    ClusterRole, ClusterRoleBinding, PolicyRule, Role, RoleBinding, RoleRef, Subject,
};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;
use serde::Serialize;

use super::{Rights, Scope};
use operator_host_config::ServiceAccount;

const GROUP: &str = "rbac.authorization.k8s.io";

/// One object that grants permissions.
#[derive(Clone, Debug, PartialEq, Serialize)]
#[serde(untagged)]
#[allow(missing_docs)] // The variants are named after their types.
pub enum Manifest {
    ClusterRole(ClusterRole),
    ClusterRoleBinding(ClusterRoleBinding),
    Role(Role),
    RoleBinding(RoleBinding),
}

/// Group, name and resource.
type Named<'a> = (&'a str, Option<&'a str>, &'a str);
/// The verbs on each.
type Rules<'a> = BTreeMap<Named<'a>, Vec<&'a str>>;

/// Returns a role and its binding for each account and scope: the host's first, and cluster scope before namespaces.
#[must_use]
pub fn manifests(rights: &Rights, host: &ServiceAccount) -> Vec<Manifest> {
    let mut roles: BTreeMap<(&Option<ServiceAccount>, &Scope), Rules> = BTreeMap::new();
    for permission in rights.iter() {
        let named = (
            permission.group.as_str(),
            permission.name.as_deref(),
            permission.resource.as_str(),
        );
        let role = roles.entry((&permission.who, &permission.scope)).or_default();
        role.entry(named).or_default().push(permission.verb);
    }
    let mut manifests = Vec::new();
    for ((who, scope), resources) in roles {
        let rules = rules(&resources);
        let name = match who {
            None => host.name.clone(),
            // RBAC names may contain colons, which no other name has: this one is unique.
            Some(account) => format!("{}:{}:{}", host.name, account.namespace, account.name),
        };
        let (metadata, subject) = (metadata(scope, &name), subject(who.as_ref().unwrap_or(host)));
        match scope {
            Scope::Cluster => {
                manifests.push(Manifest::ClusterRole(ClusterRole {
                    metadata: metadata.clone(),
                    rules: Some(rules),
                    ..ClusterRole::default()
                }));
                manifests.push(Manifest::ClusterRoleBinding(ClusterRoleBinding {
                    metadata,
                    role_ref: role_ref("ClusterRole", &name),
                    subjects: Some(vec![subject]),
                }));
            }
            Scope::Namespace(_) => {
                manifests.push(Manifest::Role(Role {
                    metadata: metadata.clone(),
                    rules: Some(rules),
                }));
                manifests.push(Manifest::RoleBinding(RoleBinding {
                    metadata,
                    role_ref: role_ref("Role", &name),
                    subjects: Some(vec![subject]),
                }));
            }
        }
    }
    manifests
}

/// Returns one rule for the resources of a group that need the same verbs.
fn rules(resources: &Rules) -> Vec<PolicyRule> {
    let mut rules: Vec<PolicyRule> = Vec::new();
    let mut places = BTreeMap::new();
    for ((group, name, resource), verbs) in resources {
        let place = *places.entry((group, name, verbs)).or_insert(rules.len());
        if place == rules.len() {
            rules.push(PolicyRule {
                api_groups: Some(vec![(*group).to_owned()]),
                resources: Some(Vec::new()),
                resource_names: name.map(|name| vec![name.to_owned()]),
                verbs: verbs.iter().map(ToString::to_string).collect(),
                ..PolicyRule::default()
            });
        }
        if let Some(resources) = &mut rules[place].resources {
            resources.push((*resource).to_owned());
        }
    }
    rules
}

fn metadata(scope: &Scope, name: &str) -> ObjectMeta {
    let labels = [("app.kubernetes.io/name", "operator-host")];
    ObjectMeta {
        name: Some(name.to_owned()),
        namespace: match scope {
            Scope::Cluster => None,
            Scope::Namespace(namespace) => Some(namespace.clone()),
        },
        labels: Some(
            labels
                .map(|(key, value)| (key.to_owned(), value.to_owned()))
                .into(),
        ),
        ..ObjectMeta::default()
    }
}

fn role_ref(kind: &str, name: &str) -> RoleRef {
    RoleRef {
        api_group: Some(GROUP.to_owned()),
        kind: kind.to_owned(),
        name: name.to_owned(),
    }
}

fn subject(account: &ServiceAccount) -> Subject {
    Subject {
        kind: "ServiceAccount".to_owned(),
        name: account.name.clone(),
        namespace: Some(account.namespace.clone()),
        ..Subject::default()
    }
}
