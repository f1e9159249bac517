//! What this replica knows about the Leases, for people who look.
//!
//! The times are those in the Leases, so they are of the clock of the replica that leads. Nothing is decided by them.

use std::collections::BTreeSet;

use jiff::Timestamp;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::MicroTime;
use serde::Serialize;

use super::assignment::Members;
use super::lease::Candidate;
use operator_host_config::leadership::LeadershipMode;

/// The Leases of this host and its replicas.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct LeadershipReport {
    /// The `leadership` of the configuration.
    pub mode: &'static str,
    /// The namespace of the Leases; empty without election.
    pub namespace: String,
    /// Why the Leases cannot be read or written now.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub problem: Option<String>,
    /// Sorted by name.
    pub leases: Vec<LeaseReport>,
    /// The replicas that share the controllers, sorted by identity. Empty in the other modes, whose Leases do not name
    /// those that stand by.
    pub replicas: Vec<ReplicaReport>,
}

/// One Lease.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct LeaseReport {
    /// Its name.
    pub name: String,
    /// The controllers that it is for.
    pub controllers: BTreeSet<String>,
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
    /// This replica, until its running reconciles have ended.
    Leaving,
    /// Another replica.
    Other,
    /// None.
    Nobody,
}

/// A replica that shares the controllers.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct ReplicaReport {
    /// Its name in the Leases.
    pub identity: String,
    /// How many Leases it holds.
    pub held: usize,
    /// How many it could hold: those of controllers whose caches are full and whose plugin is live.
    pub able: usize,
}

impl LeadershipReport {
    /// Returns the report of a host before its first look at the Leases.
    #[must_use]
    pub const fn empty(mode: LeadershipMode) -> Self {
        Self {
            mode: mode.as_str(),
            namespace: String::new(),
            problem: None,
            leases: Vec::new(),
            replicas: Vec::new(),
        }
    }

    /// Sets the replicas.
    pub(super) fn set_replicas(&mut self, members: &Members) {
        let replicas = members.iter().map(|(identity, member)| ReplicaReport {
            identity: identity.clone(),
            held: member.held.len(),
            able: member.able.len(),
        });
        self.replicas = replicas.collect();
    }
}

impl LeaseReport {
    pub(super) fn of(candidate: &Candidate, controllers: &BTreeSet<String>, state: LeaseState) -> Self {
        let spec = candidate.lease().and_then(|lease| lease.spec.as_ref());
        let time = |time: Option<&MicroTime>| time.map(|MicroTime(time)| *time);
        Self {
            name: candidate.name().to_owned(),
            controllers: controllers.clone(),
            state,
            holder: candidate.holder().map(str::to_owned),
            acquired: time(spec.and_then(|spec| spec.acquire_time.as_ref())),
            renewed: time(spec.and_then(|spec| spec.renew_time.as_ref())),
            valid_seconds: candidate.valid_for().as_secs(),
            transitions: spec.and_then(|spec| spec.lease_transitions).unwrap_or_default(),
        }
    }
}
