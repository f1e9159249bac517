//! What the host needs for the Controllers of the cluster: whatever the ceilings let one of them do.

use std::collections::BTreeSet;

use super::{EVENTS, READ, Rights, Scope, namespaces, secret};
use crate::permissions::resources::{Resource, Resources, UnknownKind};
use operator_host_config::ceilings::{Ceilings, Kinds};
use operator_host_config::{Config, DefinitionsMode, object};
use operator_host_contract::Kind;
use operator_host_core::child_rules::Allow;
use operator_host_core::object::is_built_in;

/// Everything of a group, or of all groups.
const ALL: &str = "*";

/// Adds the permissions for the Controllers. `home` is the host's namespace.
pub(super) fn grant(
    rights: &mut Rights,
    ceilings: &[Ceilings],
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
    for (index, ceilings) in ceilings.iter().enumerate() {
        let entry = Entry {
            name: format!("ceilings[{index}]"),
            ceilings,
            config,
            home,
            resources,
        };
        entry.grant(rights)?;
    }
    Ok(())
}

/// One entry of the ceilings with everything that determines its permissions.
struct Entry<'a> {
    /// Its place in the file.
    name: String,
    ceilings: &'a Ceilings,
    config: &'a Config,
    home: &'a str,
    resources: &'a Resources,
}

impl Entry<'_> {
    fn grant(&self, rights: &mut Rights) -> Result<(), UnknownKind> {
        let (name, ceilings, config) = (&self.name, self.ceilings, self.config);
        let maps = match ceilings.config_maps(self.home).names() {
            Some(names) => namespaces(names),
            None => {
                rights.warnings.push(format!(
                    "`{name}.configMaps` has a pattern, and a Role covers one namespace only: the host may read ConfigMaps in \
                     every namespace"
                ));
                vec![Scope::Cluster]
            }
        };
        rights.grant(&maps, ("", "configmaps"), &READ);
        self.grant_parents(rights)?;
        let others = match ceilings.other_namespaces.names() {
            Some(names) if !config.namespaces.is_empty() => namespaces(&(&config.namespaces | names)),
            _ => vec![Scope::Cluster],
        };
        // Accounts have the permissions that they were given.
        let verbs = match ceilings.service_accounts.is_empty() {
            true => &["list", "watch", "create", "patch", "delete"][..],
            false => &READ,
        };
        for resource in self.found(rights, "children", &ceilings.children)? {
            rights.grant(&others, resource.name(), verbs);
        }
        for resource in self.found(rights, "reads", &ceilings.reads)? {
            rights.grant(&others, resource.name(), &READ);
        }
        if ceilings.children.contains(&secret()) {
            super::grant_key(rights, self.home);
        }
        self.grant_accounts(rights);
        self.warn(rights);
        Ok(())
    }

    fn grant_parents(&self, rights: &mut Rights) -> Result<(), UnknownKind> {
        let (name, ceilings) = (&self.name, self.ceilings);
        let by_host = ceilings.service_accounts.is_empty();
        let parents = super::watched_namespaces(self.config);
        for resource in self.found(rights, "parents", &ceilings.parents)? {
            rights.grant(&parents, resource.name(), &["list", "watch", "patch"]);
            rights.grant(&parents, resource.part("status").name(), &["patch"]);
            if by_host {
                rights.grant(&parents, resource.part("finalizers").name(), &["update"]);
            }
            rights.grant(&parents, EVENTS, &["create", "patch"]);
            // A ceiling for every group is no reason to let the host change everything in every namespace.
            if resource.group == ALL {
                rights.warnings.push(format!(
                    "`{name}.parents` has every group: when a namespace is deleted, the host cannot remove its finalizers there; \
                     name the groups, so that it gets that right for them"
                ));
            } else {
                super::grant_release(rights, &resource);
            }
        }
        // What is decorated is written only where a ceiling has fields: its children refer to it, and its Events are beside it.
        for resource in self.found(rights, "decorates", &ceilings.decorates)? {
            rights.grant(&parents, resource.name(), &READ);
            if by_host {
                rights.grant(&parents, resource.part("finalizers").name(), &["update"]);
            }
            if by_host && !ceilings.fields.is_empty() {
                rights.grant(&parents, resource.name(), &["patch"]);
            }
            rights.grant(&parents, EVENTS, &["create", "patch"]);
        }
        if !ceilings.fields.is_empty() {
            rights.warnings.push(match by_host {
                true => format!("`{name}.fields`: RBAC cannot limit fields, so the host may change all fields of what is decorated"),
                false => format!(
                    "`{name}.fields`: the accounts of `{name}.serviceAccounts` write them, and need `patch` for the kinds of \
                     `{name}.decorates`; RBAC cannot limit fields"
                ),
            });
        }
        if !ceilings.parents.0.is_empty() {
            rights.grant(&[Scope::Cluster], super::DEFINITIONS, &["patch"]);
        }
        if ceilings.definitions.contains(&DefinitionsMode::Install) {
            rights.grant(&[Scope::Cluster], super::DEFINITIONS, &["create"]);
            rights.warnings.push(format!(
                "`{name}.definitions` has `install`: the host may create any CustomResourceDefinition, and change any"
            ));
        }
        Ok(())
    }

    fn grant_accounts(&self, rights: &mut Rights) {
        let (name, accounts) = (&self.name, ("", "serviceaccounts"));
        for account in self.ceilings.service_accounts.iter() {
            let (namespace, of) = account.split_once('/').unwrap_or((ALL, ALL));
            let (scope, which) = match namespace.contains('*') {
                true => (Scope::Cluster, "; name the namespaces to avoid this".to_owned()),
                false => (Scope::Namespace(namespace.to_owned()), format!(" of {namespace}")),
            };
            if scope != Scope::Cluster && !of.contains('*') {
                rights.grant_named(&[scope], accounts, of, &["impersonate"]);
                continue;
            }
            rights.warnings.push(format!(
                "`{name}.serviceAccounts` has the pattern {account:?}, and RBAC has none: the host may act as every \
                 ServiceAccount{which}"
            ));
            rights.grant(&[scope], accounts, &["impersonate"]);
        }
    }

    /// Warns of the same as for an entry of the file.
    fn warn(&self, rights: &mut Rights) {
        let (name, ceilings) = (&self.name, self.ceilings);
        let who = match ceilings.service_accounts.is_empty() {
            true => "the host",
            false => "the account that writes it",
        };
        for entry in &ceilings.children.0 {
            let groups = entry.api_groups.iter();
            for group in groups.filter(|it| it.contains('*') || is_built_in(it)) {
                if entry.kinds.iter().any(|kind| kind.contains('*')) {
                    rights.warnings.push(format!(
                        "`{name}.children` has all kinds of {group:?}: among them may be Pods, which run any image, Secrets, and \
                         RoleBindings, which grant permissions; name the kinds to avoid this"
                    ));
                    continue;
                }
                for kind in &entry.kinds {
                    let kind = Kind::new(format!("{group}/v1").trim_start_matches('/'), kind);
                    super::warn_of(rights, &format!("`{name}`: a plugin may create"), &kind, who);
                }
            }
        }
        if ceilings.other_namespaces.has_every() {
            rights.warnings.push(format!(
                "`{name}.otherNamespaces` has the pattern `*`, which includes kube-system and the host's own namespace"
            ));
        } else if ceilings.other_namespaces.contains(self.home) {
            rights.warnings.push(format!(
                "`{name}.otherNamespaces` includes the host's own namespace, {}, where its ServiceAccount, configuration and \
                 plugins are",
                self.home
            ));
        }
        if ceilings.allow.contains(&Allow::HostNamespace) {
            rights.warnings.push(format!(
                "`{name}.allow` has `hostNamespace`: children in {} can use the host's ServiceAccount",
                self.home
            ));
        }
    }

    /// Returns the resources of the kinds of one ceiling.
    fn found(&self, rights: &mut Rights, ceiling: &str, kinds: &Kinds) -> Result<Vec<Resource>, UnknownKind> {
        let mut found = Vec::new();
        for entry in &kinds.0 {
            let mut groups = BTreeSet::new();
            for group in &entry.api_groups {
                if group.contains('*') {
                    rights.warnings.push(format!(
                        "`{}.{ceiling}` has the group {group:?}, and RBAC has no patterns: the host gets these permissions in \
                         every group; name the groups to avoid this",
                        self.name
                    ));
                }
                groups.insert(if group.contains('*') { ALL } else { group });
            }
            for group in groups {
                for kind in &entry.kinds {
                    let plural = match kind.contains('*') || group == ALL {
                        true => Some(ALL.to_owned()),
                        false => self.resources.in_any_version(group, kind),
                    };
                    found.push(Resource {
                        group: group.to_owned(),
                        plural: plural.ok_or_else(|| UnknownKind(Kind::new(group, kind)))?,
                        namespaced: true,
                        has_status: true,
                    });
                }
            }
        }
        Ok(found)
    }
}
