//! What the host remembers of one parent between reconciles, and how it recognizes its own writes.

use std::collections::{HashMap, HashSet};
use std::time::Duration;

use kube::core::{DynamicObject, ObjectMeta};
use opentelemetry::trace::SpanContext;
use serde_json::Value;
use tokio::time::Instant;

use super::conflicts::Conflicts;
use super::pace::Pace;
use super::unkept::Unkept;
use crate::reconcile::status::unwritten::Unwritten;
use crate::reconcile::turns::TurnMemory;
use crate::work_queue::Trigger;
use operator_host_cluster::api_error::ApiError;
use operator_host_core::digest::Digest;
use operator_host_core::object::{ChildRef, Identity, version};
use operator_host_telemetry::metrics::parents::CountedParent;

/// What the host remembers of one parent between reconciles. Losing it costs a few needless requests, except for
/// `doubt`, which [`super::ControllerState::forget_all`] keeps.
#[derive(Debug, Default)]
pub struct ParentMemory {
    /// Its failures since the last reconcile that succeeded.
    pub failure: FailureMemory,
    /// The plugin version that was last asked about it.
    pub asked: Option<Digest>,
    /// What this controller has written since the last reconcile was done.
    pub own_writes: OwnWrites,
    /// Children that are as applied although not every field of the body is there and owned, for example because the API server
    /// keeps no `managedFields` for them.
    pub unkept: Unkept,
    /// Its status.
    pub(crate) status: StatusMemory,
    /// How often children are written; see [`ParentMemory::begin`].
    pub(crate) paces: HashMap<Identity, Pace>,
    /// The children of which the last write was not answered in time: how often, and what it said.
    pub(crate) silences: HashMap<Identity, (Pace, ApiError)>,
    /// The generation and the plugin version that these and the pace of the status are about.
    pub(super) paced: Option<(Option<i64>, Digest)>,
    /// Children that are changed one at a time.
    pub(crate) turns: TurnMemory,
    /// Children that others may be changing back.
    pub conflicts: Conflicts,
    /// What decided which children are retained when the last of them lost its owner reference: a hash of the parent's UID
    /// and annotations, which say what Secrets are generated. When the configuration changes, all memory is new.
    pub released: Option<u64>,
    /// The warnings of the API server about its children that were reported, as hashes.
    pub(crate) warnings: HashSet<u64>,
    /// Whether it was reported that the parent waits for its cleanup.
    pub is_cleaning_up: bool,
    /// What was last applied to it, if the controller decorates.
    pub(crate) decorated: Option<Digest>,
    /// The signs that the parent was deleted or replaced.
    pub doubt: Doubt,
    /// Since when children of an earlier parent of this name have been left over.
    pub left_since: Option<Instant>,
    /// The span of the last reconcile, if it was sampled.
    pub last_span: Option<SpanContext>,
}

/// Whether a parent may have been deleted or replaced, for example because somebody else deleted one of its children. It is
/// read before the next child is created.
#[derive(Clone, Debug, Default)]
pub struct Doubt {
    /// How many signs there were.
    signs: u64,
    /// How many of them came before the last read of the parent.
    answered: u64,
}

impl Doubt {
    /// Notes a sign.
    pub const fn note(&mut self) {
        self.signs += 1;
    }

    /// Returns the number of signs, for [`Doubt::answer`]; `None` when the parent has been read since the last one.
    pub fn open(&self) -> Option<u64> {
        (self.signs > self.answered).then_some(self.signs)
    }

    /// Notes that the parent was read after so many signs. What the read does not show yet may be the reason of later ones.
    pub fn answer(&mut self, signs: u64) {
        self.answered = self.answered.max(signs);
    }
}

/// What the host remembers of a parent's failures until a reconcile succeeds.
#[derive(Debug, Default)]
pub struct FailureMemory {
    /// Number of consecutive failures.
    pub count: u32,
    /// The last message logged about it, so that it is logged once.
    pub(crate) last_logged: Option<String>,
    /// The last failure that was published as an Event: a hash of the reason, the message, and the parent's UID and
    /// generation.
    pub(crate) last_published: Option<u64>,
    /// Since when the API server has been overloaded or silent for it.
    pub(crate) transient_since: Option<Instant>,
    /// Hashes of the internal errors of the API server in the last reconcile.
    pub(crate) internal_errors: Vec<u64>,
}

/// What the host remembers of a parent's status.
#[derive(Debug, Default)]
pub(crate) struct StatusMemory {
    /// The fingerprints of the applied status and of the result, if they differ although the API server accepted it.
    pub(crate) normalized: Option<(String, String)>,
    /// How often it is written.
    pub(crate) pace: Option<Pace>,
    /// A hash of the status that was last written, without its times.
    pub(crate) written: Option<String>,
    /// A hash of what the conditions said then: their types, statuses and reasons.
    pub(crate) stated: Option<u64>,
    /// What the plugin said and is not written.
    pub(crate) unwritten: Option<Unwritten>,
    /// How the metrics count the parent.
    pub(crate) counted: Option<CountedParent>,
    /// Whether others have conditions in the same list, which each write replaces as a whole.
    pub(crate) shares_conditions: bool,
}

/// The writes of a controller whose watch events may still be in its queue. Later ones reach no queue: the cache has the
/// response to a write, and a watch brings nothing that the cache knows.
#[derive(Debug, Default)]
pub struct OwnWrites {
    /// The resource version of the last write to each child.
    pub(super) children: HashMap<Identity, u128>,
    /// The resource version at which the answer to an apply showed a child as it was applied. The apply may have changed nothing,
    /// so the version may be that of another's write.
    pub(crate) as_applied: HashMap<ChildRef, u128>,
    /// The resource versions that the last writes gave to the parent, oldest first.
    parent: Vec<u128>,
}

/// How many writes of the parent are remembered. One reconcile writes its finalizers and its status.
const PARENT_WRITES: usize = 4;

impl ParentMemory {
    /// Begins a reconcile: a new spec or a new plugin version is written at once, whatever was written before.
    pub(crate) fn begin(&mut self, generation: Option<i64>, plugin: Digest) {
        let paced = Some((generation, plugin));
        if std::mem::replace(&mut self.paced, paced) != paced {
            self.paces.clear();
            self.silences.clear();
            self.status.pace = None;
        }
        let now = Instant::now();
        self.paces.retain(|_, pace| !pace.is_over(now));
        self.silences.retain(|_, (pace, _)| !pace.is_over(now));
        self.status.pace = self.status.pace.take().filter(|pace| !pace.is_over(now));
    }

    pub(crate) fn pace(&mut self, child: Identity) -> &mut Pace {
        let pace = self.paces.entry(child);
        pace.or_insert_with(|| Pace::new(Instant::now()))
    }

    /// Returns when the next of what backs off may be written.
    pub(crate) fn next_write(&self, now: Instant) -> Option<Duration> {
        let all = self.paces.values().chain(&self.status.pace);
        all.filter_map(|pace| pace.wait(now)).min()
    }

    /// Remembers the resource version that an own write gave to the parent, unless the response contains changes that
    /// others made just before and that the reconcile, which has seen `seen`, does not know. `status` is the status
    /// that was written, if it was.
    pub(super) fn wrote_parent(
        &mut self,
        seen: &DynamicObject,
        status: Option<&Value>,
        answer: &DynamicObject,
    ) {
        let is_own = status.is_none_or(|status| is_own_status(seen, status, answer));
        if !is_own || !is_same_but_for_own_writes(seen, answer) {
            self.own_writes.parent.clear();
            return;
        }
        if seen.metadata.resource_version == answer.metadata.resource_version {
            // The write changed nothing. Somebody else's write has this version.
            return;
        }
        // The watch may repeat an earlier write after the response to a later one.
        let written = &mut self.own_writes.parent;
        written.extend(version(answer));
        if written.len() > PARENT_WRITES {
            written.remove(0);
        }
    }
}

impl StatusMemory {
    pub(crate) fn pace(&mut self) -> &mut Pace {
        self.pace.get_or_insert_with(|| Pace::new(Instant::now()))
    }
}

impl OwnWrites {
    /// Reports whether a reason is only the watch event for this controller's own write.
    ///
    /// A child's event with an older version than our last write is one, too: the write's response was newer, and
    /// the plugin has seen it. For the parent only the exact version counts, because the plugin has not seen a
    /// change of the spec that was made just before our status write.
    pub fn explain(&self, reason: &Trigger) -> bool {
        match reason {
            Trigger::Child { child, version } => {
                let written = self.children.get(&child.identity());
                matches!((version, written), (Some(version), Some(written)) if version <= written)
            }
            Trigger::Parent { version } => version.is_some_and(|version| self.parent.contains(&version)),
            _ => false,
        }
    }
}

/// Reports whether two states of a parent differ only in what a controller writes to it: status and finalizers.
fn is_same_but_for_own_writes<'o>(known: &'o DynamicObject, answer: &'o DynamicObject) -> bool {
    let metadata = |object: &DynamicObject| ObjectMeta {
        resource_version: None,
        managed_fields: None,
        finalizers: None,
        ..object.metadata.clone()
    };
    let data = |object: &'o DynamicObject| {
        let fields = object.data.as_object().into_iter().flatten();
        fields.filter(|(name, _)| *name != "status")
    };
    metadata(known) == metadata(answer) && data(known).eq(data(answer))
}

/// Reports whether a status write changed only what was written. The response then contains each field as written or
/// as seen, and the finalizers as seen. An API server that normalizes what was written costs a needless reconcile.
fn is_own_status(seen: &DynamicObject, written: &Value, answer: &DynamicObject) -> bool {
    let (before, after) = (&seen.data["status"], &answer.data["status"]);
    let is_known = |condition: &Value| {
        let lists = [&before["conditions"], &written["conditions"]];
        let mut known = lists.into_iter().filter_map(Value::as_array).flatten();
        known.any(|known| known == condition)
    };
    let fields = after.as_object().into_iter().flatten();
    let mut fields = fields.map(|(field, value)| match (field.as_str(), value.as_array()) {
        ("conditions", Some(conditions)) => conditions.iter().all(is_known),
        _ => *value == written[field] || (written[field].is_null() && *value == before[field]),
    });
    seen.metadata.finalizers == answer.metadata.finalizers && fields.all(|is_own| is_own)
}

#[cfg(test)]
mod tests {
    mod model;

    use serde_json::json;

    use super::*;

    fn parent(generation: i64, replicas: u32, status: &str, deleted: Option<&str>) -> DynamicObject {
        serde_json::from_value(json!({
            "apiVersion": "a/v1", "kind": "K",
            "metadata": {
                "name": "a", "generation": generation, "resourceVersion": format!("{generation}0"),
                "deletionTimestamp": deleted, "finalizers": [status],
            },
            "spec": { "replicas": replicas }, "status": { "phase": status },
        }))
        .unwrap()
    }

    /// Regression: a sign that came while the parent was read was forgotten with the ones before it.
    #[test]
    fn a_doubt_stays_open_when_a_sign_comes_during_the_read() {
        let mut doubt = Doubt::default();
        assert_eq!(doubt.open(), None);
        doubt.note();
        // Two children are created at a time, and each read begins before the second sign.
        let (one, other) = (doubt.open().unwrap(), doubt.open().unwrap());
        doubt.note();
        doubt.answer(one);
        doubt.answer(other);
        let last = doubt.open().unwrap();
        doubt.answer(last);
        assert_eq!(doubt.open(), None);
    }

    /// Regression: the response to a status write that also contained a change of the spec was treated as an own
    /// write, and the change was not noticed until the next resync.
    #[test]
    fn a_response_with_a_change_by_another_client_is_not_an_own_write() {
        let known = parent(1, 1, "old", None);
        assert!(is_same_but_for_own_writes(&known, &parent(1, 1, "new", None)));
        assert!(!is_same_but_for_own_writes(&known, &parent(2, 2, "new", None)));
        let deleted = parent(1, 1, "new", Some("2026-01-01T00:00:00Z"));
        assert!(!is_same_but_for_own_writes(&known, &deleted));
    }

    /// Regression: a status field of another manager, or a removed finalizer, that came with the response to an own
    /// status write was not noticed until the next resync.
    #[test]
    fn a_response_with_a_status_by_another_manager_is_not_an_own_write() {
        let parent = |finalizers: &[&str], status: Value| -> DynamicObject {
            serde_json::from_value(json!({
                "apiVersion": "a/v1", "kind": "K", "metadata": { "name": "a", "finalizers": finalizers },
                "status": status,
            }))
            .unwrap()
        };
        let ready = |ready: bool| json!({ "type": "Ready", "status": ready });
        let theirs = json!({ "type": "Backed", "status": true });
        let seen = parent(
            &["f"],
            json!({ "phase": "old", "backup": 1, "conditions": [ready(false), theirs] }),
        );
        let written = json!({ "phase": "new", "conditions": [ready(true)] });
        let answer = |phase: &str, backup: u8, conditions: Value, finalizers: &[&str]| {
            let status = json!({ "phase": phase, "backup": backup, "conditions": conditions });
            is_own_status(&seen, &written, &parent(finalizers, status))
        };
        let both = json!([ready(true), theirs]);
        assert!(answer("new", 1, both.clone(), &["f"]));
        assert!(!answer("new", 2, both.clone(), &["f"]), "another field");
        assert!(
            !answer("newer", 1, both.clone(), &["f"]),
            "a field that was written"
        );
        assert!(!answer("new", 1, both, &[]), "a finalizer");
        let changed = json!([ready(true), { "type": "Backed", "status": false }]);
        assert!(!answer("new", 1, changed, &["f"]), "a condition");
    }
}
