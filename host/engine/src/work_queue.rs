//! The work queue of one controller: which parents to reconcile, when, and why.
//!
//! Invariants: a parent is given to one worker at a time; a parent that is enqueued while a worker processes it is
//! processed again afterwards; reasons for the same parent are merged; no enqueued parent is lost; the namespaces take turns,
//! so that many parents in one delay those in another by no more than one of them; parents that are enqueued for another
//! reason take precedence over a retry and over a resync or reload of all parents, but do not starve them; while parents are
//! edited, these take an eighth of the workers, and of the processor and the API server.

use std::collections::{BTreeMap, BTreeSet, HashMap, HashSet};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use jiff::Timestamp;
use tokio::sync::Notify;
use tokio::time::{Instant, sleep_until};

use operator_host_core::clock;
use operator_host_core::object::{ChildRef, NamespacedName};
use operator_host_core::sync::lock;
use operator_host_telemetry::metrics::{ControllerMetrics, QueueState};

/// The reason why a parent is reconciled.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Trigger {
    /// The parent itself is new or changed.
    Parent {
        /// Its resource version.
        version: Option<u128>,
    },
    /// A child was created, changed or deleted.
    Child {
        /// The child.
        child: ChildRef,
        /// Its resource version; `None` when it was deleted.
        version: Option<u128>,
    },
    /// An object that the plugin needs changed.
    Related,
    /// The plugin asked for it, or a failed reconcile is retried.
    Timer,
    /// A reconcile is retried whose write the API server has not answered.
    Retry,
    /// Something may have changed for many parents alike: the periodic resync, a namespace, a watch that works again,
    /// or a version that is held back.
    Resync,
    /// The plugin has a new version.
    Reload,
}

impl Trigger {
    /// Reports whether others come first: the reason applies to all parents alike, so that no user waits for this parent, or
    /// it may have to wait again.
    const fn is_bulk(&self) -> bool {
        matches!(self, Self::Retry | Self::Resync | Self::Reload)
    }

    /// Returns the version of the object that changed. Without one, no own write explains the reason.
    const fn version_mut(&mut self) -> Option<&mut Option<u128>> {
        match self {
            Self::Parent { version } | Self::Child { version, .. } => Some(version),
            Self::Related | Self::Timer | Self::Retry | Self::Resync | Self::Reload => None,
        }
    }

    /// Returns the name used in logs and spans.
    pub const fn as_str(&self) -> &'static str {
        match self {
            Self::Parent { .. } => "parent",
            Self::Child { .. } => "child",
            Self::Related => "related",
            Self::Timer => "timer",
            Self::Retry => "retry",
            Self::Resync => "resync",
            Self::Reload => "reload",
        }
    }
}

/// A parent given to a worker, which must call [`Queue::done`].
#[derive(Debug)]
pub struct Work {
    /// The parent.
    pub parent: NamespacedName,
    /// All reasons since it was last given to a worker; at least one.
    pub reasons: Vec<Trigger>,
    /// When the first of them was enqueued.
    pub since: Instant,
}

/// Maximum number of changes per parent that are kept apart. One reconcile of a thousand children causes fewer by its own writes.
const MAX_REASONS: usize = 4096;

/// After this many urgent parents in a row, one bulk parent gets a turn.
const TURNS: u32 = 4;

/// How long after an edit of a parent another edit is expected. Until then, most workers do no bulk work.
const EDITING: Duration = Duration::from_secs(1);
/// While edits are expected, one in this many workers does bulk work; at least one does.
const BULK_SHARE: usize = 8;

/// How often to compare the next appointment with the clock, which may have been set.
const LOOK: Duration = Duration::from_secs(5);

#[derive(Debug)]
struct Pending {
    reasons: Vec<Trigger>,
    since: Instant,
    /// Its position in the line while it waits for a worker.
    position: Option<Position>,
}

/// Whether it waits among the bulk parents, the round in which its namespace has this turn, and its number there: the first in
/// is the first out.
type Position = (bool, u64, u64);

/// The turns of the namespaces in one part of the line: each has one in each round.
#[derive(Default)]
struct Rounds {
    /// The round of the parent that was last taken.
    current: u64,
    /// The round of the last turn that each namespace has.
    last: HashMap<Option<String>, u64>,
}

impl Rounds {
    /// Returns the round of one more parent in a namespace.
    fn next(&mut self, namespace: Option<&String>) -> u64 {
        let last = self.last.get(&namespace.cloned()).map_or(0, |last| last + 1);
        let round = last.max(self.current);
        self.last.insert(namespace.cloned(), round);
        round
    }
}

/// How a worker has a parent.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Taken {
    Urgent,
    Bulk,
    /// It waits for the API server, and its worker has taken another one.
    Aside,
}

/// At most one time for each parent: the earliest one requested since its last reconcile.
struct Timers<T> {
    of: BTreeMap<NamespacedName, T>,
    by_time: BTreeSet<(T, NamespacedName)>,
}

impl<T> Default for Timers<T> {
    fn default() -> Self {
        Self {
            of: BTreeMap::new(),
            by_time: BTreeSet::new(),
        }
    }
}

impl<T: Copy + Ord> Timers<T> {
    fn set(&mut self, parent: &NamespacedName, at: T) {
        if self.of.get(parent).is_none_or(|known| at < *known) {
            self.remove(parent);
            self.of.insert(parent.clone(), at);
            self.by_time.insert((at, parent.clone()));
        }
    }

    fn remove(&mut self, parent: &NamespacedName) {
        if let Some(at) = self.of.remove(parent) {
            self.by_time.remove(&(at, parent.clone()));
        }
    }

    fn first(&self) -> Option<T> {
        self.by_time.first().map(|(at, _)| *at)
    }

    /// Takes a parent whose time has come.
    fn pop(&mut self, now: T) -> Option<NamespacedName> {
        self.first().filter(|at| *at <= now)?;
        let (_, parent) = self.by_time.pop_first()?;
        self.of.remove(&parent);
        Some(parent)
    }
}

#[derive(Default)]
struct State {
    /// The parents that wait: first the urgent ones, then those in bulk, which were enqueued only because all parents were.
    /// Each is in `pending`, with its position, and not in `running`.
    line: BTreeMap<Position, NamespacedName>,
    /// The next number.
    next_number: u64,
    /// The turns of the urgent parents and of those in bulk.
    rounds: [Rounds; 2],
    /// How many urgent parents were taken in a row while others waited in bulk.
    in_a_row: u32,
    pending: BTreeMap<NamespacedName, Pending>,
    running: BTreeMap<NamespacedName, Taken>,
    /// How many were done.
    finished: u64,
    /// When an edited parent was last given to a worker.
    edited: Option<Instant>,
    /// The timers, of the monotonic clock.
    timers: Timers<Instant>,
    /// The appointments, of the clock that plugins see. It can be set, so nobody knows how long an appointment is away.
    appointments: Timers<Timestamp>,
    /// When reconciles are retried whose writes were not answered.
    retries: Timers<Instant>,
    closed: bool,
}

/// The queue of one controller; see the module.
pub struct Queue {
    /// The most bulk parents that workers process at a time while others are edited.
    bulk_limit: usize,
    state: Mutex<State>,
    changed: Notify,
}

impl Queue {
    /// Creates an empty queue for this many workers.
    pub fn new(workers: usize) -> Self {
        Self {
            bulk_limit: (workers / BULK_SHARE).max(1),
            state: Mutex::default(),
            changed: Notify::new(),
        }
    }

    /// Creates an empty queue for this many workers, which the metrics of a controller show.
    pub fn measured(workers: usize, metrics: &ControllerMetrics) -> Arc<Self> {
        let queue = Arc::new(Self::new(workers));
        let gauge = Arc::downgrade(&queue);
        metrics.queue(move || {
            let queue = gauge.upgrade()?;
            let (waiting, oldest) = queue.backlog();
            Some(QueueState {
                waiting,
                oldest,
                busy: queue.busy(),
                workers,
            })
        });
        queue
    }

    /// Enqueues a parent; it is processed as soon as a worker is free. Has no effect on a closed queue.
    pub fn enqueue(&self, parent: &NamespacedName, reason: Trigger) {
        let mut state = lock(&self.state);
        if state.closed {
            return;
        }
        state.enqueue(parent, reason);
        drop(state);
        self.changed.notify_one();
    }

    /// Enqueues a parent at a later time, unless it has an earlier timer. A reconcile in between removes the timer
    /// and sets its own.
    pub fn enqueue_at(&self, parent: &NamespacedName, at: Instant) {
        lock(&self.state).timers.set(parent, at);
        self.changed.notify_one();
    }

    /// Enqueues a parent with a write that was not answered at a later time. Otherwise as [`Queue::enqueue_at`].
    pub fn retry_at(&self, parent: &NamespacedName, at: Instant) {
        lock(&self.state).retries.set(parent, at);
        self.changed.notify_one();
    }

    /// Enqueues a parent when the host's clock has reached a time, even if the clock is set meanwhile. Otherwise as
    /// [`Queue::enqueue_at`].
    pub fn enqueue_at_time(&self, parent: &NamespacedName, at: Timestamp) {
        lock(&self.state).appointments.set(parent, at);
        self.changed.notify_one();
    }

    /// Waits for the next parent; `None` once the queue is closed.
    pub async fn next(&self) -> Option<Work> {
        loop {
            // Register before checking, so that a parent enqueued in between is not missed.
            let changed = self.changed.notified();
            let wake = {
                let mut state = lock(&self.state);
                if state.closed {
                    // The other workers wait too, and `notify_one` woke only this one.
                    self.changed.notify_one();
                    return None;
                }
                let now = Instant::now();
                let clock = clock::now();
                state.fire_timers(now, clock);
                let held_back = state.holds_bulk_back(self.bulk_limit, now);
                if let Some(work) = state.take(held_back.is_none(), now) {
                    if !state.line.is_empty() {
                        self.changed.notify_one();
                    }
                    return Some(work);
                }
                let until = held_back.filter(|_| state.first(true).is_some());
                let appointment = state.appointments.first().map(|at| {
                    let away = Duration::try_from(at.duration_since(clock)).unwrap_or_default();
                    now + away.min(LOOK)
                });
                let timers = [until, state.timers.first(), state.retries.first(), appointment];
                timers.into_iter().flatten().min()
            };
            match wake {
                Some(at) => tokio::select! { () = changed => {}, () = sleep_until(at) => {} },
                None => changed.await,
            }
        }
    }

    /// Reports that a worker has finished a parent. Reasons for which `is_own` returns true, such as watch events
    /// for the reconcile's own writes, are dropped; if others remain, the parent is processed again.
    pub fn done(&self, parent: &NamespacedName, is_own: impl Fn(&Trigger) -> bool) {
        let mut state = lock(&self.state);
        state.running.remove(parent);
        state.finished += 1;
        if let Some(pending) = state.pending.get_mut(parent) {
            pending.reasons.retain(|reason| !is_own(reason));
            if pending.reasons.is_empty() {
                state.pending.remove(parent);
            } else {
                state.line_up(parent);
            }
        }
        drop(state);
        self.changed.notify_one();
    }

    /// Reports that a worker takes others, while its parent waits for the API server. The parent is still to be [`Queue::done`].
    pub fn set_aside(&self, parent: &NamespacedName) {
        if let Some(taken) = lock(&self.state).running.get_mut(parent) {
            *taken = Taken::Aside;
        }
        self.changed.notify_one();
    }

    /// Stops giving out work.
    pub fn close(&self) {
        lock(&self.state).closed = true;
        self.changed.notify_one();
    }

    /// Reopens the queue, empty. All work that was given out must be done.
    pub fn open(&self) {
        *lock(&self.state) = State::default();
    }

    /// Returns the parents that wait for a worker or are with one; `None` for a closed queue.
    pub fn unfinished(&self) -> Option<HashSet<NamespacedName>> {
        let state = lock(&self.state);
        let all = state.pending.keys().chain(state.running.keys());
        (!state.closed).then(|| all.cloned().collect())
    }

    /// Returns the number of parents that are set aside.
    pub fn aside(&self) -> usize {
        lock(&self.state).count(|taken| taken == Taken::Aside)
    }

    /// Returns how many parents workers have finished since the queue was opened.
    pub fn finished(&self) -> u64 {
        lock(&self.state).finished
    }

    /// Reports whether a worker has this parent.
    pub fn is_running(&self, parent: &NamespacedName) -> bool {
        lock(&self.state).running.contains_key(parent)
    }

    /// Returns the number of parents that workers have, without those that are set aside.
    pub fn busy(&self) -> usize {
        lock(&self.state).count(|taken| taken != Taken::Aside)
    }

    /// Returns the number of parents that wait for a worker, and how long the first of them has waited.
    pub fn backlog(&self) -> (usize, Duration) {
        let state = lock(&self.state);
        let firsts = [false, true].into_iter().filter_map(|bulk| state.first(bulk));
        let firsts = firsts.filter_map(|position| state.pending.get(&state.line[&position]));
        let longest = firsts.map(|pending| pending.since.elapsed()).max();
        (state.line.len(), longest.unwrap_or_default())
    }
}

impl State {
    fn enqueue(&mut self, parent: &NamespacedName, mut reason: Trigger) {
        if let Some(pending) = self.pending.get_mut(parent) {
            let promotes = !reason.is_bulk() && pending.position.is_some_and(|(bulk, ..)| bulk);
            let is_change = reason.version_mut().is_some();
            if is_change && pending.reasons.len() >= MAX_REASONS {
                // The last change stands for all later ones, so no own write may explain it.
                if let Some(version) = pending.reasons.iter_mut().rev().find_map(Trigger::version_mut) {
                    *version = None;
                }
            } else if is_change || !pending.reasons.contains(&reason) {
                pending.reasons.push(reason);
            }
            if promotes {
                self.line_up(parent);
            }
            return;
        }
        let pending = Pending {
            reasons: vec![reason],
            since: Instant::now(),
            position: None,
        };
        self.pending.insert(parent.clone(), pending);
        if !self.running.contains_key(parent) {
            self.line_up(parent);
        }
    }

    /// Puts an enqueued parent at the end of the part of the line that its reasons belong to.
    fn line_up(&mut self, parent: &NamespacedName) {
        let Some(pending) = self.pending.get_mut(parent) else {
            return;
        };
        let bulk = pending.reasons.iter().all(Trigger::is_bulk);
        let round = self.rounds[usize::from(bulk)].next(parent.namespace.as_ref());
        let position = (bulk, round, self.next_number);
        self.next_number += 1;
        if let Some(before) = pending.position.replace(position) {
            self.line.remove(&before);
        }
        self.line.insert(position, parent.clone());
    }

    /// Returns the first position in one part of the line.
    fn first(&self, bulk: bool) -> Option<Position> {
        let mut all = self.line.range((bulk, 0, 0)..=(bulk, u64::MAX, u64::MAX));
        all.next().map(|(position, _)| *position)
    }

    fn fire_timers(&mut self, now: Instant, clock: Timestamp) {
        while let Some(parent) = self.timers.pop(now).or_else(|| self.appointments.pop(clock)) {
            self.enqueue(&parent, Trigger::Timer);
        }
        while let Some(parent) = self.retries.pop(now) {
            self.enqueue(&parent, Trigger::Retry);
        }
    }

    /// Returns until when no worker may take another bulk parent, if so.
    fn holds_bulk_back(&self, limit: usize, now: Instant) -> Option<Instant> {
        let until = Some(self.edited? + EDITING).filter(|until| *until > now)?;
        (self.count(|taken| taken == Taken::Bulk) >= limit).then_some(until)
    }

    /// Counts the parents that workers have in such a way.
    fn count(&self, is_one: impl Fn(Taken) -> bool) -> usize {
        self.running.values().filter(|taken| is_one(**taken)).count()
    }

    fn take(&mut self, may_be_bulk: bool, now: Instant) -> Option<Work> {
        let urgent = self.first(false);
        let in_bulk = self.first(true).filter(|_| may_be_bulk);
        let next_in_bulk = in_bulk.filter(|_| urgent.is_none() || self.in_a_row >= TURNS);
        self.in_a_row = match in_bulk.is_some() && next_in_bulk.is_none() {
            true => self.in_a_row + 1,
            false => 0,
        };
        let position = next_in_bulk.or(urgent)?;
        let parent = self.line.remove(&position)?;
        let pending = self.pending.remove(&parent)?;
        let (bulk, round, _) = position;
        let is_last = self.first(bulk).is_none();
        let rounds = &mut self.rounds[usize::from(bulk)];
        match is_last {
            true => *rounds = Rounds::default(),
            false => rounds.current = round,
        }
        self.timers.remove(&parent);
        self.appointments.remove(&parent);
        self.retries.remove(&parent);
        let taken = if bulk { Taken::Bulk } else { Taken::Urgent };
        self.running.insert(parent.clone(), taken);
        let is_edit = |reason: &Trigger| matches!(reason, Trigger::Parent { .. });
        if pending.reasons.iter().any(is_edit) {
            self.edited = Some(now);
        }
        Some(Work {
            parent,
            reasons: pending.reasons,
            since: pending.since,
        })
    }
}

#[cfg(test)]
mod tests {
    mod model;

    use std::time::Duration;

    use futures::FutureExt;

    use super::*;

    /// More than a test has parents.
    const WORKERS: usize = 1000;

    fn name(name: &str) -> NamespacedName {
        NamespacedName::new(Some("default".into()), name)
    }

    async fn is_idle(queue: &Queue) -> bool {
        tokio::time::timeout(Duration::from_millis(1), queue.next())
            .await
            .is_err()
    }

    #[tokio::test]
    async fn a_timer_fires_once_at_its_earliest_time_and_a_reconcile_in_between_removes_it() {
        let queue = Queue::new(WORKERS);
        let (start, ms) = (Instant::now(), Duration::from_millis);
        queue.enqueue_at(&name("a"), start + ms(90_000));
        queue.enqueue_at(&name("a"), start + ms(50));
        queue.enqueue_at(&name("a"), start + ms(70_000));
        assert_eq!(queue.next().await.unwrap().reasons, [Trigger::Timer]);
        assert!(start.elapsed() >= ms(50) && start.elapsed() < ms(70_000));
        queue.done(&name("a"), |_| false);
        assert!(is_idle(&queue).await);

        queue.enqueue_at(&name("a"), Instant::now() + ms(20));
        queue.enqueue(&name("a"), Trigger::Resync);
        queue.next().await.unwrap();
        queue.done(&name("a"), |_| false);
        let wait = tokio::time::timeout(ms(100), queue.next()).await;
        assert!(wait.is_err(), "the timer should be gone");
    }

    /// Regression: from the 33rd on, they were a resync, so a user's edit among them waited in the bulk line, and a parent
    /// with as many children was reconciled once more.
    #[tokio::test]
    async fn own_writes_of_a_thousand_children_are_dropped_and_what_comes_with_too_many_is_not() {
        let own = |index: usize| Trigger::Child {
            child: ChildRef::new(
                operator_host_contract::Kind::new("v1", "Pod"),
                name(&index.to_string()),
            ),
            version: Some(1),
        };
        let is_own = |reason: &Trigger| matches!(reason, Trigger::Child { version: Some(1), .. });
        let queue = Queue::new(WORKERS);
        for (count, has_more) in [(1000, false), (MAX_REASONS + 1, true)] {
            queue.enqueue(&name("a"), Trigger::Resync);
            queue.next().await.unwrap();
            queue.enqueue(&name("b"), Trigger::Resync);
            (0..count).for_each(|index| queue.enqueue(&name("a"), own(index)));
            if has_more {
                let (parent, reason) = edit("a");
                queue.enqueue(&parent, reason);
            }
            queue.done(&name("a"), is_own);
            let next = queue.next().await.unwrap().parent;
            assert_eq!(next, name(if has_more { "a" } else { "b" }));
            assert_eq!(
                queue.backlog().0,
                usize::from(has_more),
                "the other one waits, or none"
            );
            queue.done(&next, is_own);
        }
    }

    #[tokio::test]
    async fn closing_wakes_every_worker() {
        let queue = Arc::new(Queue::new(WORKERS));
        let workers: Vec<_> = (0..8)
            .map(|_| {
                let queue = Arc::clone(&queue);
                tokio::spawn(async move { queue.next().await.is_none() })
            })
            .collect();
        tokio::task::yield_now().await;
        queue.close();
        for worker in workers {
            let closed = tokio::time::timeout(Duration::from_secs(5), worker).await;
            assert!(closed.unwrap().unwrap());
        }
    }

    #[tokio::test]
    async fn a_closed_queue_reopens_empty() {
        let queue = Queue::new(WORKERS);
        queue.enqueue(&name("a"), Trigger::Resync);
        queue.enqueue_at(&name("a"), Instant::now());
        queue.close();
        queue.enqueue(&name("b"), Trigger::Resync);
        assert!(queue.next().await.is_none());
        queue.open();
        assert!(is_idle(&queue).await);
        queue.enqueue(&name("c"), Trigger::Resync);
        assert_eq!(queue.next().await.unwrap().parent, name("c"));
    }

    fn edit(name: &str) -> (NamespacedName, Trigger) {
        (self::name(name), Trigger::Parent { version: Some(1) })
    }

    /// Regression: a user's change waited until all parents were resynced.
    #[tokio::test]
    async fn urgent_parents_precede_a_resync_of_all() {
        let queue = Queue::new(WORKERS);
        for i in 0..100 {
            queue.enqueue(&name(&i.to_string()), Trigger::Resync);
        }
        for (parent, reason) in [edit("new"), edit("99")] {
            queue.enqueue(&parent, reason);
        }
        assert_eq!(queue.backlog().0, 101, "each stands in one line");
        let work = queue.next().await.unwrap();
        assert_eq!(work.parent, name("new"));
        let work = queue.next().await.unwrap();
        assert_eq!(work.parent, name("99"), "it is moved to the front");
        assert_eq!(work.reasons.len(), 2, "with all that happened to it");
        assert_eq!(queue.next().await.unwrap().parent, name("0"));
        assert_eq!(queue.backlog().0, 98);
    }

    #[tokio::test]
    async fn a_stream_of_edits_does_not_starve_a_reload() {
        let queue = Queue::new(WORKERS);
        for i in 0..3 {
            queue.enqueue(&name(&format!("all-{i}")), Trigger::Reload);
        }
        let mut bulk = 0;
        for i in 0..20 {
            // There is always another one.
            let (parent, reason) = edit(&format!("edit-{i}"));
            queue.enqueue(&parent, reason);
            let work = queue.next().await.unwrap();
            bulk += usize::from(work.parent.name.starts_with("all-"));
            queue.done(&work.parent, |_| false);
        }
        assert_eq!(bulk, 3, "one in five is the reload's");
    }

    /// Regression: an edit during a resync took nine times as long, since it shared processor and API server with as many
    /// other reconciles as there were workers.
    #[tokio::test]
    async fn a_resync_leaves_most_workers_to_the_next_edit() {
        let queue = Queue::new(16);
        for i in 0..20 {
            queue.enqueue(&name(&i.to_string()), Trigger::Resync);
        }
        let first = queue.next().await.unwrap().parent;
        let (parent, reason) = edit("new");
        let edited = Instant::now();
        queue.enqueue(&parent, reason);
        assert_eq!(queue.next().await.unwrap().parent, parent);
        queue.next().await.unwrap();
        assert!(
            queue.next().now_or_never().is_none(),
            "two of sixteen do bulk work"
        );
        // Another one when one of them has ended.
        queue.done(&first, |_| false);
        queue.next().await.unwrap();
        assert!(queue.next().now_or_never().is_none());
        // All of them when nobody edits any more.
        for _ in 0..5 {
            queue.next().await.unwrap();
            assert!(edited.elapsed() >= EDITING);
        }
    }

    /// Regression: all workers waited for the parents of one namespace, whose children took long to apply.
    #[tokio::test]
    async fn a_namespace_waits_for_one_parent_of_another_and_not_for_all() {
        let queue = Queue::new(WORKERS);
        let of = |namespace: &str, index: usize| NamespacedName::parse(&format!("{namespace}/{index}"));
        let edit = || Trigger::Parent { version: Some(1) };
        for index in 0..500 {
            queue.enqueue(&of("many", index), edit());
        }
        queue.next().await.unwrap();
        for index in 0..3 {
            queue.enqueue(&of("few", index), edit());
        }
        let mut next = Vec::new();
        for _ in 0..7 {
            next.push(queue.next().await.unwrap().parent);
        }
        // Those of one namespace keep their order.
        for (namespace, numbers) in [("few", 0..3), ("many", 1..5)] {
            let found = next
                .iter()
                .filter(|parent| parent.namespace.as_deref() == Some(namespace));
            assert!(
                found.cloned().eq(numbers.map(|number| of(namespace, number))),
                "{next:?}"
            );
        }
    }

    #[tokio::test]
    async fn a_retry_comes_after_what_others_wait_for_and_one_that_is_set_aside_holds_nobody_back() {
        let queue = Queue::new(8);
        for parent in ["a", "b"] {
            queue.retry_at(&name(parent), Instant::now());
        }
        let (parent, reason) = edit("new");
        queue.enqueue(&parent, reason);
        assert_eq!(queue.next().await.unwrap().parent, parent);
        let work = queue.next().await.unwrap();
        assert_eq!(
            (&work.parent, &work.reasons[..]),
            (&name("a"), &[Trigger::Retry][..])
        );
        assert!(
            queue.next().now_or_never().is_none(),
            "one of eight does bulk work"
        );
        assert_eq!(queue.busy(), 2);
        queue.set_aside(&name("a"));
        assert_eq!(queue.busy(), 1);
        assert_eq!(queue.next().await.unwrap().parent, name("b"));
        // Nobody else gets it before it is done.
        queue.enqueue(&name("a"), Trigger::Related);
        assert!(is_idle(&queue).await);
        queue.done(&name("a"), |_| false);
        assert_eq!(queue.next().await.unwrap().parent, name("a"));
    }

    #[tokio::test]
    async fn an_appointment_is_kept_by_the_clock_that_plugins_see() {
        let queue = Queue::new(WORKERS);
        let minute = Duration::from_secs(60);
        queue.enqueue_at_time(&name("a"), clock::now() + minute);
        assert!(is_idle(&queue).await);
        queue.enqueue_at_time(&name("a"), clock::now());
        assert_eq!(queue.next().await.unwrap().reasons, [Trigger::Timer]);
        queue.done(&name("a"), |_| false);
        assert!(is_idle(&queue).await, "the earlier one replaced the later one");
    }

    #[tokio::test]
    async fn a_parent_that_is_edited_while_a_resync_of_it_runs_comes_first_after_it_also_with_one_worker() {
        let queue = Queue::new(1);
        queue.enqueue(&name("a"), Trigger::Resync);
        queue.next().await.unwrap();
        queue.enqueue(&name("b"), Trigger::Resync);
        let (parent, reason) = edit("a");
        queue.enqueue(&parent, Trigger::Resync);
        queue.enqueue(&parent, reason);
        queue.done(&parent, |_| false);
        assert_eq!(queue.next().await.unwrap().parent, name("a"));
        queue.done(&parent, |_| false);
        assert_eq!(queue.next().await.unwrap().parent, name("b"));
    }

    #[tokio::test]
    async fn no_parent_is_lost_with_concurrent_enqueues() {
        let queue = Arc::new(Queue::new(WORKERS));
        for i in 0..1000 {
            queue.enqueue(&name(&i.to_string()), Trigger::Resync);
        }
        let workers: Vec<_> = (0..4)
            .map(|_| {
                let queue = Arc::clone(&queue);
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
