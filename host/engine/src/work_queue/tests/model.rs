//! Checks random sequences against a very simple model: no enqueued parent is lost, no parent is given to two
//! workers, and a worker gets all reasons.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use futures::FutureExt;
use proptest::prelude::*;

use super::*;

#[derive(Clone, Debug)]
enum Op {
    Enqueue(usize, Trigger),
    /// A timer or an appointment that is due, or one in the distant future.
    EnqueueAt(usize, bool, bool),
    Next,
    /// Whether own writes among the reasons are dropped.
    Done(usize, bool),
}

fn op() -> impl Strategy<Value = Op> {
    let parent = 0..3_usize;
    let reason = prop_oneof![
        Just(Trigger::Related),
        Just(Trigger::Resync),
        (1..4_u128).prop_map(|version| Trigger::Parent {
            version: Some(version)
        }),
    ];
    prop_oneof![
        4 => (parent.clone(), reason).prop_map(|(parent, reason)| Op::Enqueue(parent, reason)),
        2 => (parent.clone(), any::<[bool; 2]>()).prop_map(|(parent, [due, clock])| Op::EnqueueAt(parent, due, clock)),
        3 => Just(Op::Next),
        3 => (parent, any::<bool>()).prop_map(|(parent, is_own)| Op::Done(parent, is_own)),
    ]
}

/// The reason that counts as an own write here.
fn is_own_write(reason: &Trigger) -> bool {
    *reason == Trigger::Related
}

#[derive(Default)]
struct Model {
    pending: BTreeMap<usize, Vec<Trigger>>,
    running: BTreeSet<usize>,
    /// Whether the timer of a parent is due.
    timers: BTreeMap<usize, bool>,
}

impl Model {
    fn enqueue(&mut self, parent: usize, reason: Trigger) {
        let pending = self.pending.entry(parent).or_default();
        if matches!(reason, Trigger::Parent { .. }) || !pending.contains(&reason) {
            pending.push(reason);
        }
    }

    fn fire(&mut self) {
        let due: Vec<_> = self
            .timers
            .iter()
            .filter(|(_, due)| **due)
            .map(|(parent, _)| *parent)
            .collect();
        for parent in due {
            self.timers.remove(&parent);
            self.enqueue(parent, Trigger::Timer);
        }
    }

    fn is_idle(&self) -> bool {
        self.pending.keys().all(|parent| self.running.contains(parent))
    }

    /// Records that the queue has given out this work.
    fn take(&mut self, work: &Work) -> Result<(), TestCaseError> {
        let parent: usize = work.parent.name.parse().unwrap();
        prop_assert!(self.running.insert(parent), "{parent} was handed out twice");
        let mut expected = self.pending.remove(&parent).unwrap_or_default();
        let mut given = work.reasons.clone();
        let key = |reason: &Trigger| format!("{reason:?}");
        expected.sort_by_key(key);
        given.sort_by_key(key);
        prop_assert_eq!(given, expected);
        self.timers.remove(&parent);
        Ok(())
    }
}

proptest! {
    // Fewer than `MAX_REASONS`, so that each reason is kept separately.
    #[test]
    fn what_is_handed_out_is_what_was_marked(ops in prop::collection::vec(op(), 1..64)) {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_time().build().unwrap();
        let _within = runtime.enter();
        let (queue, mut model) = (Queue::new(1000), Model::default());
        let name = |parent: usize| NamespacedName { namespace: None, name: parent.to_string() };
        let past = Instant::now();
        let future = past + Duration::from_secs(3600);
        let next = || queue.next().now_or_never().flatten();
        for op in ops {
            match op {
                Op::Enqueue(parent, reason) => {
                    queue.enqueue(&name(parent), reason.clone());
                    model.enqueue(parent, reason);
                }
                Op::EnqueueAt(parent, due, by_clock) => {
                    let at = if due { past } else { future };
                    match by_clock {
                        true => queue.enqueue_at_time(&name(parent), clock::now() + (at - past)),
                        false => queue.enqueue_at(&name(parent), at),
                    }
                    let timer = model.timers.entry(parent).or_insert(due);
                    *timer |= due;
                }
                Op::Next => {
                    model.fire();
                    match next() {
                        Some(work) => model.take(&work)?,
                        None => prop_assert!(model.is_idle(), "{:?} waits", model.pending),
                    }
                }
                Op::Done(parent, is_own) => {
                    // A worker finishes only a parent that it has.
                    if !model.running.remove(&parent) {
                        continue;
                    }
                    queue.done(&name(parent), |reason| is_own && is_own_write(reason));
                    if let Some(pending) = model.pending.get_mut(&parent) {
                        pending.retain(|reason| !(is_own && is_own_write(reason)));
                        if pending.is_empty() {
                            model.pending.remove(&parent);
                        }
                    }
                }
            }
            let waiting = model.pending.keys().filter(|parent| !model.running.contains(parent)).count();
            prop_assert_eq!(queue.backlog().0, waiting);
        }
        // Nothing is left over.
        for parent in std::mem::take(&mut model.running) {
            queue.done(&name(parent), |_| false);
        }
        model.fire();
        while let Some(work) = next() {
            model.take(&work)?;
        }
        prop_assert!(model.is_idle(), "{:?} were forgotten", model.pending);
    }
}
