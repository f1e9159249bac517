//! Changes the children of one kind one at a time, where the plugin says so.

use std::collections::{HashMap, HashSet};
use std::sync::Arc;
use std::time::Duration;

use kube::core::DynamicObject;
use tokio::time::Instant;

use super::run::Run;
use operator_host_contract::Kind;
use operator_host_core::object::{APPLIED_ANNOTATION, ChildRef, Identity, annotation, is_terminating};
use operator_host_desired::order::{Order, Waiting};
use operator_host_desired::planned::{Desired, Plan};
use operator_host_desired::readiness::unfinished;
use operator_host_desired::update::{GOING, Member, Turn, Turns, turns};

/// For how long a child may keep the others of its kind from their turn before an Event says so.
const PATIENCE: Duration = Duration::from_secs(300);

/// What the host remembers of the children of one parent that take turns. Without it, `min-ready` begins anew.
#[derive(Debug, Default)]
pub struct TurnMemory {
    /// Since when children are as wanted, and ready.
    ready: HashMap<Identity, Instant>,
    /// The children that keep others from their turn: since when, and whether that was published.
    pending: HashMap<Identity, (Instant, bool)>,
}

impl TurnMemory {
    /// Notes whether a child is as wanted and ready, and returns how long it must still be.
    fn rest(&mut self, child: Identity, is_ready: bool, turn: Turn, now: Instant) -> Option<Duration> {
        if !is_ready {
            self.ready.remove(&child);
            return None;
        }
        let since = *self.ready.entry(child).or_insert(now);
        let rest = (since + turn.min_ready).saturating_duration_since(now);
        (!rest.is_zero()).then_some(rest)
    }

    /// Notes which children keep others from their turn. Returns those about which it is time to say so, and when the next one is
    /// due.
    fn keep_waiting(&mut self, pending: &[ChildRef], now: Instant) -> (Vec<ChildRef>, Option<Duration>) {
        self.pending
            .retain(|known, _| pending.iter().any(|key| key.identity() == *known));
        let (mut due, mut next) = (Vec::new(), None);
        for key in pending {
            let (since, is_published) = self.pending.entry(key.identity()).or_insert((now, false));
            let left = (*since + PATIENCE).saturating_duration_since(now);
            if left.is_zero() && !std::mem::replace(is_published, true) {
                due.push(key.clone());
            } else if !*is_published {
                next = next.into_iter().chain([left]).min();
            }
        }
        (due, next)
    }
}

/// Decides whose turn it is, and says so when one child keeps the others waiting for long. Returns also when to look again.
pub(super) fn decide(
    run: &Run<'_>,
    parent: &DynamicObject,
    plan: &Plan,
    shown: &[Arc<DynamicObject>],
    order: &Order<'_>,
) -> (Turns, Option<Duration>) {
    let (now, mut again) = (Instant::now(), None::<Duration>);
    let wanted: HashSet<_> = plan.desired.iter().map(|child| child.key.identity()).collect();
    run.memory(|memory| memory.turns.ready.retain(|known, _| wanted.contains(known)));
    // As the plugin saw it: it may be gone since, and the answer does not name it yet. An SDK keeps such a child.
    let going = shown.iter().filter(|child| is_terminating(child));
    let going = going.map(|child| ChildRef::of(child));
    let going: Vec<_> = going.filter(|key| plan.keep.contains(key)).collect();
    let turns = turns(&plan.desired, &going, |child, turn| {
        let live = run.context.caches.existing(&child.key);
        let is_blocked = || waits_for(run, child, order).is_some();
        let has_status = has_status(run, &child.key.kind);
        let is_as_wanted =
            |live: &DynamicObject| annotation(live, APPLIED_ANNOTATION) == Some(&child.fingerprint);
        let member = match &live {
            // One that comes after another is not created yet, and must not keep that one waiting.
            None if is_blocked() => Member::Done,
            None => Member::Pending("it does not exist yet".to_owned()),
            Some(live) if is_as_wanted(live) => {
                unfinished(live, has_status).map_or(Member::Done, Member::Pending)
            }
            Some(live) if is_terminating(live) => Member::Pending(GOING.to_owned()),
            Some(_) if is_blocked() => Member::Blocked,
            Some(live) => Member::Outdated {
                is_ready: unfinished(live, has_status).is_none(),
            },
        };
        let is_ready = live.is_some() && member == Member::Done;
        let rest = run.memory(|memory| memory.turns.rest(child.key.identity(), is_ready, turn, now));
        match rest {
            Some(rest) => {
                again = again.into_iter().chain([rest]).min();
                Member::Pending(format!("it must be ready for {} s", turn.min_ready.as_secs()))
            }
            None => member,
        }
    });
    let keys: Vec<_> = turns.pending.iter().map(|(key, _)| key.clone()).collect();
    let (due, next) = run.memory(|memory| memory.turns.keep_waiting(&keys, now));
    for (key, why) in turns.pending.iter().filter(|(key, _)| due.contains(key)) {
        let others = turns.waiting.keys().filter(|waiting| waiting.kind == key.kind);
        let note = format!(
            "{key} keeps {} other children of its kind from being changed, for {} s: {why}",
            others.count(),
            PATIENCE.as_secs()
        );
        run.warn(parent, "WaitingForTurn", &note);
    }
    // Without one that waits, nothing is due.
    let again = again.filter(|_| !turns.waiting.is_empty());
    (turns, again.into_iter().chain(next).min())
}

/// Returns what a child waits for, by its order.
pub(super) fn waits_for(run: &Run<'_>, child: &Desired, order: &Order<'_>) -> Option<Waiting> {
    order.waits_for(
        child,
        |key| run.context.caches.existing(key),
        |kind| has_status(run, kind),
    )
}

fn has_status(run: &Run<'_>, kind: &Kind) -> bool {
    let kind = run.context.cluster.served.others.get(kind);
    kind.is_some_and(|kind| kind.has_status)
}

#[cfg(test)]
mod tests {
    use super::*;
    use operator_host_core::object::NamespacedName;

    fn key(name: &str) -> ChildRef {
        ChildRef::new(Kind::new("v1", "Pod"), NamespacedName::parse(name))
    }

    #[test]
    fn the_time_for_which_a_child_is_ready_begins_anew_when_it_is_not() {
        let (mut memory, start) = (TurnMemory::default(), Instant::now());
        let turn = Turn {
            min_ready: Duration::from_secs(30),
            ..Turn::default()
        };
        let mut rest = |is_ready, after| {
            memory.rest(
                key("a").identity(),
                is_ready,
                turn,
                start + Duration::from_secs(after),
            )
        };
        assert_eq!(rest(true, 0), Some(Duration::from_secs(30)));
        assert_eq!(rest(true, 20), Some(Duration::from_secs(10)));
        assert_eq!(rest(false, 25), None, "it flaps");
        assert_eq!(rest(true, 26), Some(Duration::from_secs(30)));
        assert_eq!(rest(true, 56), None);
    }

    #[test]
    fn a_child_that_keeps_others_waiting_for_long_is_told_once() {
        let (mut memory, start) = (TurnMemory::default(), Instant::now());
        let mut wait = |names: &[&str], after: Duration| {
            let keys: Vec<_> = names.iter().map(|name| key(name)).collect();
            let (due, next) = memory.keep_waiting(&keys, start + after);
            (due.len(), next)
        };
        assert_eq!(wait(&["a"], Duration::ZERO), (0, Some(PATIENCE)));
        assert_eq!(wait(&["a", "b"], PATIENCE / 2), (0, Some(PATIENCE / 2)));
        assert_eq!(wait(&["a", "b"], PATIENCE), (1, Some(PATIENCE / 2)));
        assert_eq!(wait(&["a"], PATIENCE * 2), (0, None), "it was told");
        assert_eq!(wait(&[], PATIENCE * 2), (0, None));
        assert_eq!(
            wait(&["a"], PATIENCE * 2),
            (0, Some(PATIENCE)),
            "it was ready since"
        );
    }
}
