//! Formats permissions as the Kubernetes objects that grant them.

use std::collections::BTreeMap;

use serde_json::{Value, json};

use super::{Rights, Scope};
use operator_host_config::ServiceAccount;

const GROUP: &str = "rbac.authorization.k8s.io";

/// What one account may do in one scope.
#[derive(Clone, Debug, PartialEq)]
pub struct Grant {
    /// The account.
    pub account: ServiceAccount,
    /// Where.
    pub scope: Scope,
    /// The name of the role and of its binding.
    pub name: String,
    /// The rules of the role.
    pub rules: Value,
}

/// Group, name and resource.
type Named<'a> = (&'a str, Option<&'a str>, &'a str);
/// The verbs on each.
type Rules<'a> = BTreeMap<Named<'a>, Vec<&'a str>>;

/// Returns what each account gets in each scope: the host's first, and cluster scope before namespaces.
pub fn grants(rights: &Rights, host: &ServiceAccount) -> Vec<Grant> {
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
    let grants = roles.into_iter().map(|((who, scope), resources)| Grant {
        account: who.as_ref().unwrap_or(host).clone(),
        scope: scope.clone(),
        name: match who {
            None => host.name.clone(),
            // RBAC names may contain colons, which no other name has: this one is unique.
            Some(account) => format!("{}:{}:{}", host.name, account.namespace, account.name),
        },
        rules: rules(&resources),
    });
    grants.collect()
}

impl Grant {
    /// Returns the role and its binding.
    pub fn manifests(&self) -> [Value; 2] {
        let mut metadata =
            json!({ "labels": { "app.kubernetes.io/name": "operator-host" }, "name": self.name });
        let role = match &self.scope {
            Scope::Cluster => "ClusterRole",
            Scope::Namespace(namespace) => {
                metadata["namespace"] = namespace.as_str().into();
                "Role"
            }
        };
        let version = format!("{GROUP}/v1");
        let ServiceAccount { namespace, name } = &self.account;
        [
            json!({ "apiVersion": version, "kind": role, "metadata": metadata, "rules": self.rules }),
            json!({
                "apiVersion": version,
                "kind": format!("{role}Binding"),
                "metadata": metadata,
                "roleRef": { "apiGroup": GROUP, "kind": role, "name": self.name },
                "subjects": [{ "kind": "ServiceAccount", "name": name, "namespace": namespace }],
            }),
        ]
    }
}

/// Returns one rule for the resources of a group that need the same verbs.
fn rules(resources: &Rules) -> Value {
    let mut rules = Vec::<((&str, Option<&str>, &Vec<&str>), Vec<&str>)>::new();
    for ((group, name, resource), verbs) in resources {
        let key = (*group, *name, verbs);
        match rules.iter_mut().find(|(other, _)| *other == key) {
            Some((_, resources)) => resources.push(resource),
            None => rules.push((key, vec![resource])),
        }
    }
    let rules = rules.into_iter().map(|((group, name, verbs), resources)| {
        let mut rule = json!({ "apiGroups": [group], "resources": resources, "verbs": verbs });
        if let Some(name) = name {
            rule["resourceNames"] = json!([name]);
        }
        rule
    });
    rules.collect()
}
