//! A kind that the cluster does not serve, and what to do about it.

use thiserror::Error;

use operator_host_contract::Kind;

/// The API server does not serve a kind.
#[derive(Clone, Debug, Error, PartialEq, Eq)]
#[error("the cluster does not serve the kind {kind}; {}", self.advice())]
pub struct NotServed {
    /// The kind.
    pub kind: Kind,
    /// The API versions in which the API server serves a kind of this name in the same group, as far as it was asked.
    pub versions: Vec<String>,
}

impl NotServed {
    /// Creates the error for a kind that is not known to be served in another version.
    pub const fn new(kind: Kind) -> Self {
        Self {
            kind,
            versions: Vec::new(),
        }
    }

    fn advice(&self) -> String {
        let Kind { kind, .. } = &self.kind;
        if !self.versions.is_empty() {
            let versions = self.versions.join(" and ");
            return format!(
                "it serves {kind} as {versions}: use that version in the plugin and the configuration"
            );
        }
        if is_built_in(self.kind.group()) {
            return "no CustomResourceDefinition can add it, because its group is part of Kubernetes: use a version of \
                    Kubernetes that has it, or enable it with `--runtime-config` of the API server"
                .to_owned();
        }
        "install its CustomResourceDefinition".to_owned()
    }
}

/// The API groups of Kubernetes itself that end in `.k8s.io`. Definitions of other projects do, too. Source: the API
/// reference of Kubernetes 1.36.
const GROUPS: &[&str] = &[
    "admissionregistration",
    "apiextensions",
    "apiregistration",
    "authentication",
    "authorization",
    "certificates",
    "coordination",
    "discovery",
    "events",
    "flowcontrol.apiserver",
    "internal.apiserver",
    "networking",
    "node",
    "rbac.authorization",
    "resource",
    "scheduling",
    "storage",
    "storagemigration",
];

/// Reports whether a group is part of Kubernetes. The group of a definition contains a dot, and may end in `.k8s.io`, too.
pub fn is_built_in(group: &str) -> bool {
    let name = group.strip_suffix(".k8s.io");
    !group.contains('.') || name.is_some_and(|name| GROUPS.contains(&name))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_advice_depends_on_what_the_cluster_serves_and_whose_kind_it_is() {
        let advice = |api_version: &str, versions: &[&str]| {
            let kind = Kind::new(api_version, "Thing");
            let versions = versions.iter().map(|&version| version.to_owned()).collect();
            NotServed { kind, versions }.to_string()
        };
        assert_eq!(
            advice("batch/v1", &["batch/v1beta1"]),
            "the cluster does not serve the kind batch/v1/Thing; it serves Thing as batch/v1beta1: use that version in \
             the plugin and the configuration"
        );
        for group in ["v1", "autoscaling/v2", "networking.k8s.io/v2"] {
            let advice = advice(group, &[]);
            assert!(advice.contains("its group is part of Kubernetes"), "{advice}");
        }
        for group in "example.com/v1 gateway.networking.k8s.io/v1 snapshot.storage.k8s.io/v1".split(' ') {
            let advice = advice(group, &[]);
            assert!(
                advice.ends_with("install its CustomResourceDefinition"),
                "{advice}"
            );
        }
    }
}
