//! The kinds that most operators create or read, in the versions that current clusters serve.

/// A kind as written in a manifest.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Kind {
    /// `v1` or `group/version`.
    pub api_version: &'static str,
    /// The kind, such as `Pod`.
    pub kind: &'static str,
}

impl Kind {
    /// Creates a kind from its API version and name.
    #[must_use]
    pub const fn new(api_version: &'static str, kind: &'static str) -> Self {
        Self { api_version, kind }
    }
}

/// `rbac.authorization.k8s.io/v1` ClusterRole.
pub const CLUSTER_ROLE: Kind = Kind::new("rbac.authorization.k8s.io/v1", "ClusterRole");
/// `rbac.authorization.k8s.io/v1` ClusterRoleBinding.
pub const CLUSTER_ROLE_BINDING: Kind = Kind::new("rbac.authorization.k8s.io/v1", "ClusterRoleBinding");
/// `v1` ConfigMap.
pub const CONFIG_MAP: Kind = Kind::new("v1", "ConfigMap");
/// `batch/v1` CronJob; since Kubernetes 1.21.
pub const CRON_JOB: Kind = Kind::new("batch/v1", "CronJob");
/// `apps/v1` DaemonSet.
pub const DAEMON_SET: Kind = Kind::new("apps/v1", "DaemonSet");
/// `apps/v1` Deployment.
pub const DEPLOYMENT: Kind = Kind::new("apps/v1", "Deployment");
/// `discovery.k8s.io/v1` EndpointSlice; since Kubernetes 1.21.
pub const ENDPOINT_SLICE: Kind = Kind::new("discovery.k8s.io/v1", "EndpointSlice");
/// `autoscaling/v2` HorizontalPodAutoscaler; since Kubernetes 1.23.
pub const HORIZONTAL_POD_AUTOSCALER: Kind = Kind::new("autoscaling/v2", "HorizontalPodAutoscaler");
/// `networking.k8s.io/v1` Ingress.
pub const INGRESS: Kind = Kind::new("networking.k8s.io/v1", "Ingress");
/// `batch/v1` Job.
pub const JOB: Kind = Kind::new("batch/v1", "Job");
/// `v1` LimitRange.
pub const LIMIT_RANGE: Kind = Kind::new("v1", "LimitRange");
/// `v1` Namespace.
pub const NAMESPACE: Kind = Kind::new("v1", "Namespace");
/// `networking.k8s.io/v1` NetworkPolicy.
pub const NETWORK_POLICY: Kind = Kind::new("networking.k8s.io/v1", "NetworkPolicy");
/// `v1` Node.
pub const NODE: Kind = Kind::new("v1", "Node");
/// `v1` PersistentVolume.
pub const PERSISTENT_VOLUME: Kind = Kind::new("v1", "PersistentVolume");
/// `v1` PersistentVolumeClaim.
pub const PERSISTENT_VOLUME_CLAIM: Kind = Kind::new("v1", "PersistentVolumeClaim");
/// `v1` Pod.
pub const POD: Kind = Kind::new("v1", "Pod");
/// `policy/v1` PodDisruptionBudget; since Kubernetes 1.21.
pub const POD_DISRUPTION_BUDGET: Kind = Kind::new("policy/v1", "PodDisruptionBudget");
/// `apps/v1` ReplicaSet.
pub const REPLICA_SET: Kind = Kind::new("apps/v1", "ReplicaSet");
/// `v1` ResourceQuota.
pub const RESOURCE_QUOTA: Kind = Kind::new("v1", "ResourceQuota");
/// `rbac.authorization.k8s.io/v1` Role.
pub const ROLE: Kind = Kind::new("rbac.authorization.k8s.io/v1", "Role");
/// `rbac.authorization.k8s.io/v1` RoleBinding.
pub const ROLE_BINDING: Kind = Kind::new("rbac.authorization.k8s.io/v1", "RoleBinding");
/// `v1` Secret.
pub const SECRET: Kind = Kind::new("v1", "Secret");
/// `v1` Service.
pub const SERVICE: Kind = Kind::new("v1", "Service");
/// `v1` ServiceAccount.
pub const SERVICE_ACCOUNT: Kind = Kind::new("v1", "ServiceAccount");
/// `apps/v1` StatefulSet.
pub const STATEFUL_SET: Kind = Kind::new("apps/v1", "StatefulSet");
/// `storage.k8s.io/v1` StorageClass.
pub const STORAGE_CLASS: Kind = Kind::new("storage.k8s.io/v1", "StorageClass");
