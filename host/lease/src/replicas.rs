//! Lets replicas that share controllers discover each other: each replica keeps its own Lease, for which no
//! other replica competes, and lists in it the controllers that it could lead at once.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Instant;

use jiff::Timestamp;
use k8s_openapi::api::coordination::v1::Lease;

use super::assignment::{Member, Members};
use super::lease::{Candidate, Step};
use operator_host_config::leadership::Timing;
use operator_host_core::object::fingerprint;

/// Annotation of a replica's own Lease: the Leases that it could hold.
const ABLE_ANNOTATION: &str = "operator-host.dev/able";

/// The known state of this replica and of the others.
pub(super) struct Replicas {
    identity: String,
    group: String,
    timing: Timing,
    own: Candidate,
    /// When the own Lease was last written, and its contents.
    last_written: Option<(Instant, BTreeSet<String>)>,
    others: BTreeMap<String, Other>,
}

/// Another replica, by the name of its Lease. Its presence is determined as for any other Lease.
struct Other {
    lease: Candidate,
    identity: String,
    able: BTreeSet<String>,
    version: Option<String>,
}

impl Replicas {
    pub(super) fn new(group: &str, identity: &str, timing: Timing) -> Self {
        let name = format!("{group}-replica-{}", &fingerprint(&identity)[..8]);
        Self {
            identity: identity.to_owned(),
            group: group.to_owned(),
            timing,
            own: Candidate::new(&name, group, identity, timing),
            last_written: None,
            others: BTreeMap::new(),
        }
    }

    /// Returns the name of the own Lease.
    pub(super) fn own_name(&self) -> &str {
        self.own.name()
    }

    /// Returns the own Lease to write, if a write is due. No other replica competes for it.
    pub(super) fn record(&mut self, able: &BTreeSet<String>, now: Instant) -> Option<Lease> {
        if let Some((at, listed)) = &self.last_written
            && listed == able
            && now < *at + self.timing.retry_period
        {
            return None;
        }
        if self.own.step(now, Timestamp::now()) == Step::Look {
            return None;
        }
        let mut record = self.own.own_record(Timestamp::now());
        self.own.writing(&record, now);
        let annotations = record.metadata.annotations.get_or_insert_default();
        let able: Vec<&str> = able.iter().map(String::as_str).collect();
        annotations.insert(ABLE_ANNOTATION.to_owned(), able.join(","));
        Some(record)
    }

    /// Records that the own Lease was written.
    pub(super) fn written(&mut self, answer: Lease, able: BTreeSet<String>, sent: Instant) {
        self.own.won(answer, sent, Instant::now());
        self.last_written = Some((sent, able));
    }

    /// Records that the own Lease could not be written because it differs from the expected version.
    pub(super) fn refused(&mut self, lease: Option<Lease>) {
        self.own.observe(lease, Instant::now());
        self.last_written = None;
    }

    /// Records that all Leases of the group were read.
    pub(super) fn observe(&mut self, all: &BTreeMap<String, Lease>, now: Instant) {
        if self.last_written.is_none() {
            self.own.observe(all.get(self.own.name()).cloned(), now);
        }
        self.others.retain(|name, _| all.contains_key(name));
        for (name, lease) in all {
            let annotations = lease.metadata.annotations.as_ref();
            let Some(able) = annotations.and_then(|annotations| annotations.get(ABLE_ANNOTATION)) else {
                continue;
            };
            if name == self.own.name() {
                continue;
            }
            let other = self.others.entry(name.clone()).or_insert_with(|| Other {
                lease: Candidate::new(name, &self.group, &self.identity, self.timing),
                identity: String::new(),
                able: BTreeSet::new(),
                version: None,
            });
            other.lease.observe(Some(lease.clone()), now);
            other.identity = other.lease.holder().unwrap_or_default().to_owned();
            other.able = able
                .split(',')
                .filter(|name| !name.is_empty())
                .map(str::to_owned)
                .collect();
            other.version.clone_from(&lease.metadata.resource_version);
        }
    }

    /// Returns the replicas that exist, including this one with the leases that it could hold and holds.
    pub(super) fn members(&self, all: &BTreeMap<String, Lease>, own: Member, now: Instant) -> Members {
        let there = self.others.values().filter(|other| !other.lease.is_free(now));
        let mut members: Members = there
            .map(|other| {
                let member = Member {
                    able: other.able.clone(),
                    held: BTreeSet::new(),
                };
                (other.identity.clone(), member)
            })
            .collect();
        for (name, lease) in all {
            let holder = lease
                .spec
                .as_ref()
                .and_then(|spec| spec.holder_identity.as_deref());
            if let Some(member) = holder.and_then(|holder| members.get_mut(holder))
                && !self.others.contains_key(name)
            {
                member.held.insert(name.clone());
            }
        }
        members.insert(self.identity.clone(), own);
        members
    }

    /// Returns the Leases, with their versions, of replicas that no longer exist. Any replica may delete
    /// them.
    pub(super) fn gone(&self, now: Instant) -> Vec<(String, Option<String>)> {
        let gone = self.others.iter().filter(|(_, other)| other.lease.is_free(now));
        gone.map(|(name, other)| (name.clone(), other.version.clone()))
            .collect()
    }
}
