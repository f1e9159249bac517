//! One Lease as seen by one replica: a state machine without I/O.
//!
//! As in client-go, the times in the record are informational. Whether a holder has disappeared is measured
//! by our own monotonic clock, from when we last saw the record change. So a clock that jumps, or a time
//! edited by hand, cannot create two leaders. This is stricter than client-go when the record is edited or
//! deleted by hand: the previous holder may not know yet, so no other replica begins before that holder must
//! have stopped. And every new version counts as a change, where client-go compares only the spec: the holder
//! may have renewed in between, and somebody may have put the earlier spec back.
//!
//! For the same reason a create never begins or extends a term. It has no precondition: it succeeds when the
//! Lease existed and was deleted since we looked, or when the request arrives late. Only an update, which
//! contains the version it is based on, shows that no other replica led in between.

use std::time::{Duration, Instant};

use jiff::{Timestamp, Unit};
use k8s_openapi::api::coordination::v1::{Lease, LeaseSpec};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::{MicroTime, ObjectMeta};

use operator_host_config::leadership::{MAX_DURATION, Timing};

/// Annotation of a Lease that its holder released: the previous holder. Only with this annotation does an empty
/// holder mean that another replica may begin at once.
pub const RELEASED_ANNOTATION: &str = "operator-host.dev/released-by";

/// The next action of a replica on a lease.
#[derive(Clone, Debug, PartialEq)]
pub enum Step {
    /// Write this record. With a resource version it is an update, which takes the lease or renews it;
    /// without one it is a create, which does neither.
    Write(Box<Lease>),
    /// Another replica holds the lease, until this time unless it renews.
    Wait(Instant),
    /// The lease was not read yet.
    Look,
}

/// The state of one lease for one replica; see the module.
#[derive(Debug)]
pub struct Candidate {
    pub(crate) name: String,
    identity: String,
    timing: Timing,
    /// The lease as last read, `None` when it does not exist, and when this state was first seen.
    seen: Option<(Option<Lease>, Instant)>,
    /// The last update that we sent, possibly without receiving an answer, and when.
    written: Option<(LeaseSpec, Instant)>,
    /// When we sent the update that made us the holder, or the last one that renewed it.
    renewed: Option<Instant>,
}

impl Candidate {
    /// Creates the state of the lease `name`, of which nothing is known yet.
    pub fn new(name: &str, identity: &str, timing: Timing) -> Self {
        Self {
            name: name.to_owned(),
            identity: identity.to_owned(),
            timing,
            seen: None,
            written: None,
            renewed: None,
        }
    }

    /// Records that the lease was read at `now`; `None` when it does not exist.
    pub fn observe(&mut self, lease: Option<Lease>, now: Instant) {
        let since = match &self.seen {
            Some((known, since)) if version(known.as_ref()) == version(lease.as_ref()) => *since,
            _ => now,
        };
        if self.renewed.is_some() && lease.is_some() && !self.names_me(lease.as_ref()) {
            self.renewed = None;
        }
        self.seen = Some((lease, since));
    }

    /// Returns the holder, if there is one.
    pub fn holder(&self) -> Option<&str> {
        let holder = spec(self.lease())?.holder_identity.as_deref();
        holder.filter(|holder| !holder.is_empty())
    }

    /// Returns the lease as last read.
    pub fn lease(&self) -> Option<&Lease> {
        self.seen.as_ref()?.0.as_ref()
    }

    /// Returns how long the lease as last read is valid after a renewal.
    pub fn valid_for(&self) -> Duration {
        self.validity(spec(self.lease()))
    }

    /// Returns until when we may write, and when another replica may begin; both count from when the last
    /// renewal was sent.
    pub fn term(&self) -> Option<(Instant, Instant)> {
        let sent = self.renewed?;
        Some((sent + self.timing.renew_deadline, sent + self.timing.duration))
    }

    /// Whether we may write at `now`.
    pub fn holds(&self, now: Instant) -> bool {
        self.term().is_some_and(|(until, _)| now < until)
    }

    /// Whether another replica could take the lease at `now`, or this one could take it again.
    pub fn is_free(&self, now: Instant) -> bool {
        matches!(self.step(now, Timestamp::UNIX_EPOCH), Step::Write(_)) && !self.holds(now)
    }

    /// Returns the next action at `now`; `clock` is the time to write into the record.
    pub fn step(&self, now: Instant, clock: Timestamp) -> Step {
        let Some((lease, since)) = &self.seen else {
            return Step::Look;
        };
        let Some(lease) = lease else {
            // A holder that is alive renews in this time, and continues to lead with the Lease that it
            // creates.
            let patience = *since + self.timing.retry_period;
            return match self.holds(now) || patience <= now {
                true => Step::Write(Box::new(self.first(now, clock))),
                false => Step::Wait(patience),
            };
        };
        let spec = lease.spec.as_ref();
        // It names us while our term runs, or it is what we wrote, and another replica that saw that would still
        // wait: none can have led in between.
        let ours = self.names_me(Some(lease)) && (self.holds(now) || self.has_written(spec, now));
        let expiry = *since + self.validity(spec);
        match ours || is_released(lease) || expiry <= now {
            true => Step::Write(Box::new(self.record(Some(lease), clock))),
            false => Step::Wait(expiry),
        }
    }

    /// Records that a write of [`Step::Write`] is being sent at `now`.
    pub fn writing(&mut self, record: &Lease, now: Instant) {
        let is_update = record.metadata.resource_version.is_some();
        let spec = record.spec.clone().filter(|_| is_update);
        self.written = spec.map(|spec| (spec, now));
    }

    /// Records that a write sent at `sent` succeeded, with its answer. Returns whether it began or extended
    /// our term.
    pub fn won(&mut self, answer: Lease, sent: Instant, now: Instant) -> bool {
        self.observe(Some(answer), now);
        let is_update = self.written.is_some();
        if is_update {
            self.renewed = Some(sent);
        }
        is_update
    }

    /// Returns the record that releases the lease, if it is ours. We no longer hold it from now on.
    pub fn release(&mut self, now: Instant, clock: Timestamp) -> Option<Lease> {
        let held = self.holds(now);
        self.renewed = None;
        let (Some(lease), _) = self.seen.as_ref()? else {
            return None;
        };
        if !held || !self.names_me(Some(lease)) {
            return None;
        }
        let mut lease = lease.clone();
        let spec = lease.spec.get_or_insert_default();
        spec.holder_identity = Some(String::new());
        // The value that client-go writes; the API server requires more than zero.
        spec.lease_duration_seconds = Some(1);
        spec.renew_time = Some(after(spec.renew_time.as_ref(), clock));
        lease.metadata.managed_fields = None;
        let annotations = lease.metadata.annotations.get_or_insert_default();
        annotations.insert(RELEASED_ANNOTATION.to_owned(), self.identity.clone());
        self.written = None;
        Some(lease)
    }

    /// Returns the record for a lease that does not exist. It names us only while our term runs, so that
    /// others wait for us.
    fn first(&self, now: Instant, clock: Timestamp) -> Lease {
        let mut record = self.record(None, clock);
        if !self.holds(now)
            && let Some(spec) = &mut record.spec
        {
            spec.holder_identity = None;
            spec.acquire_time = None;
            spec.lease_transitions = None;
        }
        record
    }

    /// Whether we sent this as an update, so recently that no other replica can have led since.
    fn has_written(&self, spec: Option<&LeaseSpec>, now: Instant) -> bool {
        let written = self.written.as_ref();
        written.is_some_and(|(written, sent)| Some(written) == spec && now < *sent + self.timing.duration)
    }

    fn names_me(&self, lease: Option<&Lease>) -> bool {
        spec(lease).is_some_and(|spec| spec.holder_identity.as_deref() == Some(&self.identity))
    }

    /// Returns how long a record is valid after it was last seen to change: the duration in the record, which
    /// may have another configuration, but never less than our own.
    fn validity(&self, spec: Option<&LeaseSpec>) -> Duration {
        let seconds = spec.and_then(|spec| spec.lease_duration_seconds).unwrap_or(0);
        let stated = Duration::from_secs(u64::try_from(seconds).unwrap_or(0));
        stated.min(MAX_DURATION).max(self.timing.duration)
    }

    fn record(&self, lease: Option<&Lease>, clock: Timestamp) -> Lease {
        let before = spec(lease).cloned().unwrap_or_default();
        let stays = self.names_me(lease);
        let clock = after(before.renew_time.as_ref(), clock);
        let acquired = before.acquire_time.clone().filter(|_| stays);
        let spec = LeaseSpec {
            holder_identity: Some(self.identity.clone()),
            lease_duration_seconds: i32::try_from(self.timing.duration.as_secs()).ok(),
            acquire_time: acquired.or_else(|| Some(clock.clone())),
            renew_time: Some(clock),
            lease_transitions: Some(match before.lease_transitions {
                Some(count) if stays => count,
                Some(count) => count.saturating_add(1),
                None => 0,
            }),
            ..before
        };
        let mut metadata = lease.map_or_else(ObjectMeta::default, |lease| lease.metadata.clone());
        metadata.name.get_or_insert_with(|| self.name.clone());
        metadata.managed_fields = None;
        if let Some(annotations) = &mut metadata.annotations {
            annotations.remove(RELEASED_ANNOTATION);
        }
        Lease {
            metadata,
            spec: Some(spec),
        }
    }
}

fn spec(lease: Option<&Lease>) -> Option<&LeaseSpec> {
    lease?.spec.as_ref()
}

fn version(lease: Option<&Lease>) -> Option<&str> {
    lease?.metadata.resource_version.as_deref()
}

/// Whether its last holder released it. An empty holder alone could be the result of a manual edit.
fn is_released(lease: &Lease) -> bool {
    let holder = spec(Some(lease)).and_then(|spec| spec.holder_identity.as_deref());
    let empty = holder.is_none_or(str::is_empty);
    let annotations = lease.metadata.annotations.as_ref();
    empty && annotations.is_some_and(|annotations| annotations.contains_key(RELEASED_ANNOTATION))
}

/// Returns the time with the precision of the API server, so that a record is read back as it was written.
/// Never returns the value in the record: a renewal must change it even when the clock stands still.
fn after(before: Option<&MicroTime>, clock: Timestamp) -> MicroTime {
    let clock = clock.round(Unit::Microsecond).unwrap_or(clock);
    let is_same = before.is_some_and(|MicroTime(before)| *before == clock);
    let later = clock.checked_add(Duration::from_micros(1)).unwrap_or(clock);
    MicroTime(if is_same { later } else { clock })
}

#[cfg(test)]
mod tests;
