//! The work queue of one controller: which parents to reconcile, when, and why.
//!
//! Invariants: a parent is handed out to one worker at a time; a parent that is marked while it is being
//! worked on is handed out again afterwards; marks of one parent are merged; nothing marked is forgotten.

use std::collections::{BTreeSet, HashMap, VecDeque};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use tokio::sync::Notify;
use tokio::time::{Instant, sleep_until};

use super::object::{ChildKey, ObjectName};

/// Why a parent is reconciled.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Trigger {
    /// The parent itself is new or changed.
    Parent {
        /// Its resource version.
        version: Option<u128>,
    },
    /// A child changed, came or went.
    Child {
        /// Which one.
        child: ChildKey,
        /// Its resource version; `None` when it went.
        version: Option<u128>,
    },
    /// An object that the plugin needs changed.
    Related,
    /// The plugin asked for it, or a failed pass is tried again.
    Timer,
    /// Every object is looked at again from time to time.
    Resync,
    /// The plugin has a new version.
    Reload,
}

impl Trigger {
    /// One word for logs and spans.
    #[must_use]
    pub const fn as_str(&self) -> &'static str {
        match self {
            Self::Parent { .. } => "parent",
            Self::Child { .. } => "child",
            Self::Related => "related",
            Self::Timer => "timer",
            Self::Resync => "resync",
            Self::Reload => "reload",
        }
    }
}

/// A parent handed out to a worker, who owes a call of [`Queue::done`].
#[derive(Debug)]
pub struct Work {
    /// The parent.
    pub parent: ObjectName,
    /// All that happened since it was last handed out, at least one.
    pub triggers: Vec<Trigger>,
    /// When the first of them was put in.
    pub since: Instant,
}

/// How many triggers of one parent are kept apart; more are as good as a resync.
const MAX_TRIGGERS: usize = 32;

#[derive(Debug)]
struct Marks {
    triggers: Vec<Trigger>,
    since: Instant,
}

#[derive(Default)]
struct State {
    /// Parents that may be handed out, in order; each is in `marks` and not in `running`.
    ready: VecDeque<ObjectName>,
    marks: HashMap<ObjectName, Marks>,
    running: BTreeSet<ObjectName>,
    /// One timer a parent, the earliest asked for since it last ran.
    timers: HashMap<ObjectName, Instant>,
    by_time: BTreeSet<(Instant, ObjectName)>,
    closed: bool,
}

/// See the module.
#[derive(Default)]
pub struct Queue {
    state: Mutex<State>,
    changed: Notify,
}

impl Queue {
    /// Marks a parent; it is handed out as soon as a worker is free. A closed queue takes no marks.
    pub fn mark(&self, parent: &ObjectName, trigger: Trigger) {
        let mut state = self.lock();
        if state.closed {
            return;
        }
        state.mark(parent, trigger);
        drop(state);
        self.changed.notify_one();
    }

    /// Marks a parent at a later time, unless an earlier timer is set for it. A pass in between takes the
    /// timer away: it will set its own.
    pub fn mark_at(&self, parent: &ObjectName, at: Instant) {
        let mut state = self.lock();
        match state.timers.get(parent) {
            Some(earlier) if *earlier <= at => return,
            Some(later) => {
                let stale = (*later, parent.clone());
                state.by_time.remove(&stale);
            }
            None => {}
        }
        state.timers.insert(parent.clone(), at);
        state.by_time.insert((at, parent.clone()));
        drop(state);
        self.changed.notify_one();
    }

    /// Waits for the next parent; `None` once the queue is closed.
    pub async fn next(&self) -> Option<Work> {
        loop {
            // Enabled before the look, so that a mark in between is not missed.
            let changed = self.changed.notified();
            let wake = {
                let mut state = self.lock();
                if state.closed {
                    // The other workers wait too, and `notify_one` woke only this one.
                    self.changed.notify_one();
                    return None;
                }
                state.fire_timers(Instant::now());
                if let Some(work) = state.take() {
                    if !state.ready.is_empty() {
                        self.changed.notify_one();
                    }
                    return Some(work);
                }
                state.by_time.first().map(|(at, _)| *at)
            };
            match wake {
                Some(at) => tokio::select! { () = changed => {}, () = sleep_until(at) => {} },
                None => changed.await,
            }
        }
    }

    /// A worker is through with a parent. Marks that `is_own` recognises, the echo of what the pass itself
    /// wrote, are dropped; when others are left it is handed out again.
    pub fn done(&self, parent: &ObjectName, is_own: impl Fn(&Trigger) -> bool) {
        let mut state = self.lock();
        state.running.remove(parent);
        if let Some(marks) = state.marks.get_mut(parent) {
            marks.triggers.retain(|trigger| !is_own(trigger));
            if marks.triggers.is_empty() {
                state.marks.remove(parent);
            } else {
                state.ready.push_back(parent.clone());
            }
        }
        drop(state);
        self.changed.notify_one();
    }

    /// No more work is handed out.
    pub fn close(&self) {
        self.lock().closed = true;
        self.changed.notify_one();
    }

    /// Begins anew, with nothing marked. All work that was handed out has been done.
    pub fn open(&self) {
        *self.lock() = State::default();
    }

    /// How many parents wait for a worker, and for how long the first of them has.
    #[must_use]
    pub fn backlog(&self) -> (usize, Duration) {
        let state = self.lock();
        let first = state.ready.front().and_then(|parent| state.marks.get(parent));
        (
            state.ready.len(),
            first.map_or(Duration::ZERO, |marks| marks.since.elapsed()),
        )
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl State {
    fn mark(&mut self, parent: &ObjectName, trigger: Trigger) {
        if let Some(marks) = self.marks.get_mut(parent) {
            if marks.triggers.len() < MAX_TRIGGERS {
                marks.triggers.push(trigger);
            } else if let Some(last) = marks.triggers.last_mut() {
                *last = Trigger::Resync;
            }
            return;
        }
        self.marks.insert(
            parent.clone(),
            Marks {
                triggers: vec![trigger],
                since: Instant::now(),
            },
        );
        if !self.running.contains(parent) {
            self.ready.push_back(parent.clone());
        }
    }

    fn fire_timers(&mut self, now: Instant) {
        while self.by_time.first().is_some_and(|(at, _)| *at <= now) {
            if let Some((_, parent)) = self.by_time.pop_first() {
                self.timers.remove(&parent);
                self.mark(&parent, Trigger::Timer);
            }
        }
    }

    fn take(&mut self) -> Option<Work> {
        let parent = self.ready.pop_front()?;
        let marks = self.marks.remove(&parent)?;
        if let Some(at) = self.timers.remove(&parent) {
            self.by_time.remove(&(at, parent.clone()));
        }
        self.running.insert(parent.clone());
        Some(Work {
            parent,
            triggers: marks.triggers,
            since: marks.since,
        })
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    fn name(name: &str) -> ObjectName {
        ObjectName {
            namespace: Some("default".into()),
            name: name.into(),
        }
    }

    fn child(version: u128) -> Trigger {
        let kind = crate::plugin::contract::Kind {
            api_version: "v1".into(),
            kind: "Pod".into(),
        };
        Trigger::Child {
            child: ChildKey {
                kind,
                name: name("pod"),
            },
            version: Some(version),
        }
    }

    async fn is_idle(queue: &Queue) -> bool {
        tokio::time::timeout(Duration::from_millis(1), queue.next())
            .await
            .is_err()
    }

    #[tokio::test]
    async fn marks_of_one_parent_are_merged_and_a_running_parent_is_not_handed_out_twice() {
        let queue = Queue::default();
        queue.mark(&name("a"), Trigger::Resync);
        queue.mark(&name("a"), Trigger::Reload);
        let work = queue.next().await.unwrap();
        assert_eq!(work.triggers, [Trigger::Resync, Trigger::Reload]);
        queue.mark(&name("a"), Trigger::Related);
        assert!(is_idle(&queue).await);
        queue.done(&name("a"), |_| false);
        assert_eq!(queue.next().await.unwrap().triggers, [Trigger::Related]);
    }

    #[tokio::test]
    async fn the_echo_of_own_writes_does_not_run_the_parent_again_but_a_foreign_change_does() {
        let queue = Queue::default();
        queue.mark(&name("a"), Trigger::Resync);
        queue.next().await.unwrap();
        queue.mark(&name("a"), child(7));
        queue.done(&name("a"), |trigger| *trigger == child(7));
        assert!(is_idle(&queue).await);

        queue.mark(&name("a"), Trigger::Resync);
        queue.next().await.unwrap();
        queue.mark(&name("a"), child(8));
        queue.mark(&name("a"), child(9));
        queue.done(&name("a"), |trigger| *trigger == child(8));
        assert_eq!(queue.next().await.unwrap().triggers, [child(9)]);
    }

    #[tokio::test]
    async fn a_timer_fires_once_at_its_earliest_time_and_a_pass_in_between_takes_it_away() {
        let queue = Queue::default();
        let (start, ms) = (Instant::now(), Duration::from_millis);
        queue.mark_at(&name("a"), start + ms(900));
        queue.mark_at(&name("a"), start + ms(50));
        queue.mark_at(&name("a"), start + ms(700));
        assert_eq!(queue.next().await.unwrap().triggers, [Trigger::Timer]);
        assert!(start.elapsed() >= ms(50) && start.elapsed() < ms(700));
        queue.done(&name("a"), |_| false);
        assert!(is_idle(&queue).await);

        queue.mark_at(&name("a"), Instant::now() + ms(20));
        queue.mark(&name("a"), Trigger::Resync);
        queue.next().await.unwrap();
        queue.done(&name("a"), |_| false);
        let wait = tokio::time::timeout(ms(100), queue.next()).await;
        assert!(wait.is_err(), "the timer should be gone");
    }

    #[tokio::test]
    async fn closing_wakes_every_worker() {
        let queue = std::sync::Arc::new(Queue::default());
        let workers: Vec<_> = (0..8)
            .map(|_| {
                let queue = std::sync::Arc::clone(&queue);
                tokio::spawn(async move { queue.next().await.is_none() })
            })
            .collect();
        tokio::task::yield_now().await;
        queue.close();
        for worker in workers {
            assert!(
                tokio::time::timeout(Duration::from_secs(5), worker)
                    .await
                    .unwrap()
                    .unwrap()
            );
        }
    }

    #[tokio::test]
    async fn a_queue_that_was_closed_begins_anew_with_nothing_from_before() {
        let queue = Queue::default();
        queue.mark(&name("a"), Trigger::Resync);
        queue.mark_at(&name("a"), Instant::now());
        queue.close();
        queue.mark(&name("b"), Trigger::Resync);
        assert!(queue.next().await.is_none());
        queue.open();
        assert!(is_idle(&queue).await);
        queue.mark(&name("c"), Trigger::Resync);
        assert_eq!(queue.next().await.unwrap().parent, name("c"));
    }

    #[tokio::test]
    async fn nothing_is_lost_between_many_markers_and_many_workers() {
        let queue = std::sync::Arc::new(Queue::default());
        for i in 0..1000 {
            queue.mark(&name(&i.to_string()), Trigger::Resync);
        }
        let workers: Vec<_> = (0..4)
            .map(|_| {
                let queue = std::sync::Arc::clone(&queue);
                tokio::spawn(async move {
                    let mut seen = 0;
                    while let Some(work) = queue.next().await {
                        queue.done(&work.parent, |_| false);
                        seen += 1;
                        if queue.backlog().0 == 0 {
                            queue.close();
                        }
                    }
                    seen
                })
            })
            .collect();
        let mut total = 0;
        for worker in workers {
            total += worker.await.unwrap();
        }
        assert_eq!(total, 1000);
    }
}
