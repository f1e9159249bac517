//! What the host needs for the Controllers of the cluster: whatever the ceilings let one of them do.

use std::collections::BTreeSet;

use super::{EVENTS, READ, Rights, Scope, namespaces};
use crate::permissions::resources::{Resource, Resources, UnknownKind};
use operator_host_config::ceilings::{Ceilings, Kinds};
use operator_host_config::namespaces::NamespacePatterns;
use operator_host_config::{Config, object};
use operator_host_contract::Kind;

/// Everything of a group, or of all groups.
const ALL: &str = "*";

/// Adds the permissions for the Controllers. `home` is the host's namespace.
pub(super) fn grant(
    rights: &mut Rights,
    ceilings: &Ceilings,
    config: &Config,
    home: &str,
    resources: &Resources,
) -> Result<(), UnknownKind> {
    let cluster = [Scope::Cluster];
    let own = (object::GROUP, object::PLURAL);
    rights.grant(&cluster, own, &["list", "watch", "patch"]);
    let status = format!("{}/status", object::PLURAL);
    rights.grant(&cluster, (object::GROUP, &status), &["patch"]);
    let events = [Scope::Namespace("default".to_owned())];
    rights.grant(&events, EVENTS, &["create", "patch"]);
    let homes = NamespacePatterns::from_iter(ceilings.config_maps.iter().cloned().chain([home.to_owned()]));
    let maps = scopes(rights, &homes, "configMaps");
    rights.grant(&maps, ("", "configmaps"), &READ);
    let parents = match config.namespaces.is_empty() {
        true => vec![Scope::Cluster],
        false => namespaces(&config.namespaces),
    };
    let others = match ceilings.other_namespaces.names() {
        Some(names) if !config.namespaces.is_empty() => namespaces(&(&config.namespaces | names)),
        _ => vec![Scope::Cluster],
    };
    for resource in found(rights, &ceilings.parents, "parents", resources)? {
        rights.grant(&parents, resource.name(), &["list", "watch", "patch"]);
        let of = |part: &str| format!("{}/{part}", resource.plural);
        rights.grant(&parents, (&resource.group, &of("status")), &["patch"]);
        rights.grant(&parents, (&resource.group, &of("finalizers")), &["update"]);
        rights.grant(&parents, EVENTS, &["create", "patch"]);
        // A ceiling for every group is no reason to let the host change everything in every namespace.
        if resource.group == ALL {
            rights.warnings.push(
                "`ceilings.parents` has every group: when a namespace is deleted, the host cannot remove its finalizers there; \
                 name the groups, so that it gets that right for them"
                    .to_owned(),
            );
        } else {
            super::grant_release(rights, &resource);
        }
    }
    if !ceilings.parents.0.is_empty() {
        rights.grant(&cluster, super::DEFINITIONS, &["patch"]);
    }
    for resource in found(rights, &ceilings.children, "children", resources)? {
        let verbs = ["list", "watch", "create", "patch", "delete"];
        rights.grant(&others, resource.name(), &verbs);
    }
    for resource in found(rights, &ceilings.reads, "reads", resources)? {
        rights.grant(&others, resource.name(), &READ);
    }
    for account in ceilings.service_accounts.iter() {
        let accounts = ("", "serviceaccounts");
        match account.split_once('/') {
            Some((namespace, name)) if !account.contains('*') => {
                let scope = [Scope::Namespace(namespace.to_owned())];
                rights.grant_named(&scope, accounts, name, &["impersonate"]);
            }
            _ => {
                rights.warnings.push(format!(
                    "`ceilings.serviceAccounts` has the pattern {account:?}, and RBAC has none: the host may act as every \
                     ServiceAccount; name the accounts to avoid this"
                ));
                rights.grant(&cluster, accounts, &["impersonate"]);
            }
        }
    }
    Ok(())
}

/// Returns where these namespaces are.
fn scopes(rights: &mut Rights, patterns: &NamespacePatterns, ceiling: &str) -> Vec<Scope> {
    match patterns.names() {
        Some(names) => namespaces(names),
        None => {
            rights.warnings.push(format!(
                "`ceilings.{ceiling}` has a pattern, and a Role covers one namespace only: the host may read ConfigMaps in every \
                 namespace"
            ));
            vec![Scope::Cluster]
        }
    }
}

/// Returns the resources of these kinds.
fn found(
    rights: &mut Rights,
    kinds: &Kinds,
    ceiling: &str,
    resources: &Resources,
) -> Result<Vec<Resource>, UnknownKind> {
    let mut found = Vec::new();
    for entry in &kinds.0 {
        let mut groups = BTreeSet::new();
        for group in &entry.api_groups {
            if group.contains('*') {
                rights.warnings.push(format!(
                    "`ceilings.{ceiling}` has the group {group:?}, and RBAC has no patterns: the host gets these permissions in every \
                     group; name the groups to avoid this"
                ));
            }
            groups.insert(if group.contains('*') { ALL } else { group });
        }
        for group in groups {
            for kind in &entry.kinds {
                let plural = match kind.contains('*') || group == ALL {
                    true => ALL.to_owned(),
                    false => resources.in_any_version(group, kind).ok_or_else(|| {
                        UnknownKind(Kind {
                            api_version: group.to_owned(),
                            kind: kind.clone(),
                        })
                    })?,
                };
                found.push(Resource {
                    group: group.to_owned(),
                    plural,
                    namespaced: true,
                    has_status: true,
                });
            }
        }
    }
    Ok(found)
}
