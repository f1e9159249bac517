//! Maps kinds to resources without a cluster, as far as the kinds are known.

use std::collections::BTreeMap;

use serde_json::Value;
use thiserror::Error;

use operator_host_contract::Kind;

/// The resource of a kind, as RBAC names it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Resource {
    /// The API group; empty for the core group.
    pub group: String,
    /// The plural, in lower case.
    pub plural: String,
    /// Whether its objects are namespaced.
    pub namespaced: bool,
    /// Whether it has the `status` subresource.
    pub has_status: bool,
}

impl Resource {
    /// Returns group and plural.
    #[must_use]
    pub fn name(&self) -> (&str, &str) {
        (&self.group, &self.plural)
    }
}

/// The known kinds.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Resources(BTreeMap<Kind, Resource>);

impl Resources {
    /// Adds every version of a CustomResourceDefinition.
    pub fn define(&mut self, crd: &Value) {
        let spec = &crd["spec"];
        let text = |value: &Value| value.as_str().unwrap_or_default().to_owned();
        let group = text(&spec["group"]);
        for version in spec["versions"].as_array().into_iter().flatten() {
            let kind = Kind {
                api_version: format!("{group}/{}", text(&version["name"])),
                kind: text(&spec["names"]["kind"]),
            };
            let resource = Resource {
                group: group.clone(),
                plural: text(&spec["names"]["plural"]),
                namespaced: spec["scope"] != "Cluster",
                has_status: version["subresources"]["status"].is_object(),
            };
            self.0.insert(kind, resource);
        }
    }

    /// Adds a kind from another source, such as a cluster.
    pub fn insert(&mut self, kind: Kind, resource: Resource) {
        self.0.insert(kind, resource);
    }

    /// Returns the plural of a kind in any of its versions.
    #[must_use]
    pub fn in_any_version(&self, group: &str, name: &str) -> Option<String> {
        let defined = self
            .0
            .iter()
            .find(|(kind, resource)| resource.group == group && kind.kind == name);
        let defined = defined.map(|(_, resource)| resource.plural.clone());
        defined.or_else(|| {
            let kind = Kind {
                api_version: format!("{group}/v1").trim_start_matches('/').to_owned(),
                kind: name.to_owned(),
            };
            builtin(&kind).map(|resource| resource.plural)
        })
    }

    /// Returns the resource of a kind.
    ///
    /// # Errors
    /// When no definition contains the kind and it is not built into Kubernetes.
    pub fn of(&self, kind: &Kind) -> Result<Resource, UnknownKind> {
        let known = self.0.get(kind).cloned().or_else(|| builtin(kind));
        known.ok_or_else(|| UnknownKind(kind.clone()))
    }
}

/// A kind whose plural is unknown.
#[derive(Clone, Debug, Error, PartialEq, Eq)]
#[error(
    "the plural of {0} is not known: give its CustomResourceDefinition with --crd FILE, or allow all kinds of the group in `ceilings` by \"*\""
)]
pub struct UnknownKind(pub Kind);

/// The built-in kinds of Kubernetes that an operator may make or read: group, kind, plural. Every version has the same
/// plural. Source: the API reference of Kubernetes 1.33.
const NAMESPACED: &[(&str, &str, &str)] = &[
    ("", "ConfigMap", "configmaps"),
    ("", "Endpoints", "endpoints"),
    ("", "Event", "events"),
    ("", "LimitRange", "limitranges"),
    ("", "PersistentVolumeClaim", "persistentvolumeclaims"),
    ("", "Pod", "pods"),
    ("", "PodTemplate", "podtemplates"),
    ("", "ReplicationController", "replicationcontrollers"),
    ("", "ResourceQuota", "resourcequotas"),
    ("", "Secret", "secrets"),
    ("", "Service", "services"),
    ("", "ServiceAccount", "serviceaccounts"),
    ("apps", "ControllerRevision", "controllerrevisions"),
    ("apps", "DaemonSet", "daemonsets"),
    ("apps", "Deployment", "deployments"),
    ("apps", "ReplicaSet", "replicasets"),
    ("apps", "StatefulSet", "statefulsets"),
    (
        "autoscaling",
        "HorizontalPodAutoscaler",
        "horizontalpodautoscalers",
    ),
    ("batch", "CronJob", "cronjobs"),
    ("batch", "Job", "jobs"),
    ("coordination.k8s.io", "Lease", "leases"),
    ("discovery.k8s.io", "EndpointSlice", "endpointslices"),
    ("events.k8s.io", "Event", "events"),
    ("networking.k8s.io", "Ingress", "ingresses"),
    ("networking.k8s.io", "NetworkPolicy", "networkpolicies"),
    ("policy", "PodDisruptionBudget", "poddisruptionbudgets"),
    ("rbac.authorization.k8s.io", "Role", "roles"),
    ("rbac.authorization.k8s.io", "RoleBinding", "rolebindings"),
];
const CLUSTER_SCOPED: &[(&str, &str, &str)] = &[
    ("", "Namespace", "namespaces"),
    ("", "Node", "nodes"),
    ("", "PersistentVolume", "persistentvolumes"),
    (
        "admissionregistration.k8s.io",
        "MutatingWebhookConfiguration",
        "mutatingwebhookconfigurations",
    ),
    (
        "admissionregistration.k8s.io",
        "ValidatingWebhookConfiguration",
        "validatingwebhookconfigurations",
    ),
    (
        "apiextensions.k8s.io",
        "CustomResourceDefinition",
        "customresourcedefinitions",
    ),
    ("networking.k8s.io", "IngressClass", "ingressclasses"),
    ("rbac.authorization.k8s.io", "ClusterRole", "clusterroles"),
    (
        "rbac.authorization.k8s.io",
        "ClusterRoleBinding",
        "clusterrolebindings",
    ),
    ("scheduling.k8s.io", "PriorityClass", "priorityclasses"),
    ("storage.k8s.io", "StorageClass", "storageclasses"),
];

fn builtin(kind: &Kind) -> Option<Resource> {
    let find = |list: &[(&str, &str, &str)], namespaced| {
        let found = list
            .iter()
            .find(|(group, name, _)| *group == kind.group() && *name == kind.kind);
        found.map(|(group, _, plural)| Resource {
            group: (*group).to_owned(),
            plural: (*plural).to_owned(),
            namespaced,
            // Only parents need it, and these are children and reads.
            has_status: false,
        })
    };
    find(NAMESPACED, true).or_else(|| find(CLUSTER_SCOPED, false))
}
