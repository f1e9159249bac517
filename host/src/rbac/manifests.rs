//! Rights as the objects that grant them.

use std::collections::BTreeMap;

use k8s_openapi::api::rbac::v1::{
    ClusterRole, ClusterRoleBinding, PolicyRule, Role, RoleBinding, RoleRef, Subject,
};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;
use serde::Serialize;

use super::{Rights, Scope};

const GROUP: &str = "rbac.authorization.k8s.io";

/// Who is given the rights.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Account {
    /// Its namespace.
    pub namespace: String,
    /// Its name, which the roles and bindings get too.
    pub name: String,
}

/// One object of the answer.
#[derive(Clone, Debug, PartialEq, Serialize)]
#[serde(untagged)]
#[allow(missing_docs)] // The types say it.
pub enum Manifest {
    ClusterRole(ClusterRole),
    ClusterRoleBinding(ClusterRoleBinding),
    Role(Role),
    RoleBinding(RoleBinding),
}

/// A role and its binding for each scope, the cluster first.
#[must_use]
pub fn manifests(rights: &Rights, account: &Account) -> Vec<Manifest> {
    let mut scopes: BTreeMap<&Scope, BTreeMap<(&str, &str), Vec<&str>>> = BTreeMap::new();
    for (permission, _) in rights.iter() {
        let resource = (permission.group.as_str(), permission.resource.as_str());
        let resources = scopes.entry(&permission.scope).or_default();
        resources.entry(resource).or_default().push(permission.verb);
    }
    let mut manifests = Vec::new();
    for (scope, resources) in scopes {
        let rules = rules(&resources);
        let (metadata, subject) = (metadata(scope, account), subject(account));
        match scope {
            Scope::Cluster => {
                manifests.push(Manifest::ClusterRole(ClusterRole {
                    metadata: metadata.clone(),
                    rules: Some(rules),
                    ..ClusterRole::default()
                }));
                manifests.push(Manifest::ClusterRoleBinding(ClusterRoleBinding {
                    metadata,
                    role_ref: role_ref("ClusterRole", account),
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
                    role_ref: role_ref("Role", account),
                    subjects: Some(vec![subject]),
                }));
            }
        }
    }
    manifests
}

/// One rule for the resources of a group that need the same verbs.
fn rules(resources: &BTreeMap<(&str, &str), Vec<&str>>) -> Vec<PolicyRule> {
    let mut rules: Vec<PolicyRule> = Vec::new();
    let mut places: BTreeMap<(&str, &[&str]), usize> = BTreeMap::new();
    for ((group, resource), verbs) in resources {
        let place = *places.entry((group, verbs)).or_insert(rules.len());
        if place == rules.len() {
            rules.push(PolicyRule {
                api_groups: Some(vec![(*group).to_owned()]),
                resources: Some(Vec::new()),
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

fn metadata(scope: &Scope, account: &Account) -> ObjectMeta {
    let labels = [("app.kubernetes.io/name", "operator-host")];
    ObjectMeta {
        name: Some(account.name.clone()),
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

fn role_ref(kind: &str, account: &Account) -> RoleRef {
    RoleRef {
        api_group: Some(GROUP.to_owned()),
        kind: kind.to_owned(),
        name: account.name.clone(),
    }
}

fn subject(account: &Account) -> Subject {
    Subject {
        kind: "ServiceAccount".to_owned(),
        name: account.name.clone(),
        namespace: Some(account.namespace.clone()),
        ..Subject::default()
    }
}
