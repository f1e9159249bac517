//! What this replica knows about the Lease, for people who look.
//!
//! The times are those in the Lease, so they are of the clock of the replica that leads. Nothing is decided by them.

use jiff::Timestamp;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::MicroTime;
use serde::Serialize;

use super::lease::Candidate;

/// The Lease of this host and its replicas.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct LeaseReport {
    /// Its namespace.
    pub namespace: String,
    /// Its name.
    pub name: String,
    /// Why it cannot be read or written now.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub problem: Option<String>,
    /// Who leads.
    pub state: LeaseState,
    /// The identity in the Lease, also when its time is up.
    pub holder: Option<String>,
    /// Since when that replica has the Lease.
    pub acquired: Option<Timestamp>,
    /// When the Lease was last renewed.
    pub renewed: Option<Timestamp>,
    /// For how many seconds after a renewal no other replica takes it.
    pub valid_seconds: u64,
    /// How often the holder has changed.
    pub transitions: i32,
}

/// Who leads.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub enum LeaseState {
    /// This replica.
    Here,
    /// Another replica.
    Other,
    /// None.
    Nobody,
}

impl LeaseReport {
    pub(super) fn of(
        candidate: &Candidate,
        namespace: &str,
        problem: Option<String>,
        state: LeaseState,
    ) -> Self {
        let spec = candidate.lease().and_then(|lease| lease.spec.as_ref());
        let time = |time: Option<&MicroTime>| time.map(|MicroTime(time)| *time);
        Self {
            namespace: namespace.to_owned(),
            name: candidate.name.clone(),
            problem,
            state,
            holder: candidate.holder().map(str::to_owned),
            acquired: time(spec.and_then(|spec| spec.acquire_time.as_ref())),
            renewed: time(spec.and_then(|spec| spec.renew_time.as_ref())),
            valid_seconds: candidate.valid_for().as_secs(),
            transitions: spec.and_then(|spec| spec.lease_transitions).unwrap_or_default(),
        }
    }
}
