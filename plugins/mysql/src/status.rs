//! The observed state.

use operator_plugin::{Condition, Object};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

/// The observed state.
#[derive(Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub(crate) struct MySqlClusterStatus {
    /// How many servers are Ready.
    pub(crate) ready_replicas: u32,
    /// The phase of the cluster.
    pub(crate) phase: Phase,
    /// When anything else in this status last changed.
    #[schemars(extend("format" = "date-time"))]
    pub(crate) last_update: String,
}

/// The phase of a cluster.
#[derive(Clone, Copy, PartialEq, Serialize, Deserialize, JsonSchema)]
pub(crate) enum Phase {
    /// Servers are missing or not Ready.
    Pending,
    /// As many servers as wanted are Ready, with the current spec.
    Running,
}

impl MySqlClusterStatus {
    /// From the pods' own conditions. Pods beyond `replicas` are being removed and do not count.
    pub(crate) fn new(cluster: &str, replicas: u32, observed: &[Object]) -> Self {
        let pods = observed.iter().filter(|object| object.is_ready_pod());
        let wanted =
            |pod: &&Object| (0..replicas).any(|ordinal| pod.name() == format!("{cluster}-{ordinal}"));
        let ready_replicas = u32::try_from(pods.filter(wanted).count()).unwrap_or(replicas);
        let phase = if ready_replicas == replicas {
            Phase::Running
        } else {
            Phase::Pending
        };
        Self {
            ready_replicas,
            phase,
            last_update: String::new(),
        }
    }

    /// What `kubectl wait --for=condition=Ready` waits for.
    pub(crate) fn ready_condition(&self, replicas: u32) -> Condition {
        let message = format!("{}/{replicas} servers are Ready", self.ready_replicas);
        match self.phase {
            Phase::Running => Condition::ready(true, "ServersReady", message),
            Phase::Pending => Condition::ready(false, "ServersNotReady", message),
        }
    }
}
