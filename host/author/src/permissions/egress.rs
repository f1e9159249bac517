//! What `operator-host egress` needs: Externals and their status, Secrets, and its Lease.

use super::{READ, Rights, Scope, grant_lease, namespaces};
use operator_host_config::ServiceAccount;
use operator_host_config::endpoints::EndpointsConfig;
use operator_host_config::external::PLURAL;
use operator_host_config::object::GROUP;

/// Returns the permissions for a file of endpoints.
pub fn egress_rights(config: &EndpointsConfig, account: &ServiceAccount) -> Rights {
    let mut rights = Rights::default();
    // In all namespaces: one that is deleted loses its RoleBinding before its Externals, which would keep their finalizer.
    let cluster = [Scope::Cluster];
    rights.grant(&cluster, (GROUP, PLURAL), &READ);
    rights.grant(&cluster, (GROUP, PLURAL), &["patch"]);
    rights.grant(&cluster, (GROUP, &format!("{PLURAL}/status")), &["patch"]);
    let secrets = ("", "secrets");
    for endpoint in &config.endpoints {
        if let Some(credentials) = &endpoint.credentials {
            let scopes = [Scope::Namespace(credentials.namespace.clone())];
            rights.grant_named(&scopes, secrets, &credentials.name, &["get"]);
        }
        let watched = config
            .namespaces
            .iter()
            .filter(|it| endpoint.namespaces.contains(it));
        let names = match config.namespaces.is_empty() {
            true => endpoint.namespaces.names().cloned(),
            false => Some(watched.cloned().collect()),
        };
        match names {
            Some(names) => rights.grant(&namespaces(&names), secrets, &["get", "create", "patch"]),
            None => rights.warnings.push(format!(
                "`namespaces` of endpoint {:?} has a pattern, and a Role covers one namespace only: in each namespace where an External \
                 sends or saves values of Secrets, allow {account} to get, create and patch Secrets",
                endpoint.name
            )),
        }
    }
    grant_lease(&mut rights, &config.leadership, account);
    rights
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;
    use std::path::Path;

    use super::*;

    #[test]
    fn it_needs_externals_everywhere_and_secrets_only_where_endpoints_are_used() {
        let text = "leadership: single\nendpoints:\n\
                    - {name: dns, url: 'https://a', namespaces: [shop], credentials: {secret: infra/pdns, bearer: true}}\n\
                    - {name: mq, url: 'https://b', namespaces: ['team-*']}\n";
        let config = EndpointsConfig::parse(Path::new("endpoints.yaml"), text).unwrap();
        let account = ServiceAccount {
            namespace: "home".into(),
            name: "egress".into(),
        };
        let rights = egress_rights(&config, &account);
        let found = rights.iter().map(|it| {
            let place = match &it.scope {
                Scope::Cluster => "*",
                Scope::Namespace(namespace) => namespace,
            };
            format!(
                "{place} {} {} {}",
                it.resource,
                it.name.as_deref().unwrap_or("*"),
                it.verb
            )
        });
        let found: BTreeSet<_> = found.collect();
        for expected in [
            "* externals * list",
            "* externals * watch",
            "* externals * patch",
            "* externals/status * patch",
            "infra secrets pdns get",
            "shop secrets * get",
            "shop secrets * create",
            "shop secrets * patch",
            "home leases operator-host-egress update",
        ] {
            assert!(found.contains(expected), "{expected}: {found:?}");
        }
        assert!(!found.iter().any(|it| it.starts_with("* secrets")), "{found:?}");
        assert!(rights.warnings[0].contains("\"mq\""), "{:?}", rights.warnings);
    }
}
