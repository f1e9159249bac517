//! The kinds that most operators create.

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

/// `v1` ConfigMap.
pub const CONFIG_MAP: Kind = Kind::new("v1", "ConfigMap");
/// `apps/v1` Deployment.
pub const DEPLOYMENT: Kind = Kind::new("apps/v1", "Deployment");
/// `v1` PersistentVolumeClaim.
pub const PERSISTENT_VOLUME_CLAIM: Kind = Kind::new("v1", "PersistentVolumeClaim");
/// `v1` Pod.
pub const POD: Kind = Kind::new("v1", "Pod");
/// `v1` Secret.
pub const SECRET: Kind = Kind::new("v1", "Secret");
/// `v1` Service.
pub const SERVICE: Kind = Kind::new("v1", "Service");
/// `v1` ServiceAccount.
pub const SERVICE_ACCOUNT: Kind = Kind::new("v1", "ServiceAccount");
/// `apps/v1` StatefulSet.
pub const STATEFUL_SET: Kind = Kind::new("apps/v1", "StatefulSet");
