//! What the host did last, for people who look: the last reconciles of each controller, those that failed or were slow,
//! the last Events, and how much there was to do.
//!
//! It exists only while the page is served (`--ui-addr`). Everything in it is bounded, so that a controller with many
//! objects takes no more memory than one with few.

use std::collections::{BTreeMap, HashMap, VecDeque};
use std::sync::{Arc, Mutex, Weak};
use std::time::Duration;

use jiff::Timestamp;
use opentelemetry::trace::SpanContext;
use serde::Serialize;
use tokio::time::MissedTickBehavior;

use operator_host_core::object::NamespacedName;
use operator_host_core::sync::lock;
use operator_host_core::text::shorten;

/// Number of reconciles of each controller.
const RECONCILES: usize = 200;
/// Number of reconciles of each controller that failed or were slow. They stay longer than the others.
const TROUBLED: usize = 32;
/// Number of Events of each controller.
const EVENTS: usize = 32;
/// Bytes of a message: a plugin may choose its text.
const MESSAGE: usize = 300;
/// A reconcile that takes longer is slow.
const SLOW: Duration = Duration::from_secs(1);
/// The time that one entry of the series covers.
pub const STEP: Duration = Duration::from_secs(10);
/// Number of entries of the series: ten minutes.
const STEPS: usize = 60;

/// The outcome of a reconcile without a failure.
pub const OK: &str = "ok";

/// The journals of all controllers. One per process.
#[derive(Debug, Default)]
pub struct Journal(Mutex<BTreeMap<String, Arc<ControllerJournal>>>);

/// What one controller did last.
#[derive(Debug, Default)]
pub struct ControllerJournal(Mutex<State>);

#[derive(Debug, Default)]
struct State {
    /// Why the running reconcile of a parent fails. A parent has at most one running reconcile.
    failures: HashMap<NamespacedName, (&'static str, String)>,
    reconciles: VecDeque<Reconcile>,
    troubled: VecDeque<Reconcile>,
    events: VecDeque<PublishedEvent>,
    series: VecDeque<Step>,
}

/// A reconcile that has ended.
#[derive(Clone, Debug, PartialEq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct Reconcile {
    /// When it ended.
    pub at: Timestamp,
    /// The parent, as `namespace/name` or `name`.
    pub parent: String,
    /// The first of the reasons for it, such as `child`.
    pub reason: &'static str,
    /// The time in the queue before it, in milliseconds.
    pub waited_ms: f64,
    /// Its duration in milliseconds.
    pub took_ms: f64,
    /// `ok`, or the class of the failure.
    pub outcome: &'static str,
    /// Why it failed.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub message: Option<String>,
    /// Its trace, when it was sampled.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub trace_id: Option<String>,
}

/// An Event that the host published.
#[derive(Clone, Debug, PartialEq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct PublishedEvent {
    /// When it was published.
    pub at: Timestamp,
    /// The parent that it is about, as `namespace/name` or `name`.
    pub about: String,
    /// Whether it is a Warning.
    pub warning: bool,
    /// The reason in CamelCase.
    pub reason: String,
    /// The text.
    pub note: String,
    /// The trace of the reconcile that published it, when it was sampled.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub trace_id: Option<String>,
}

/// What happened in one [`STEP`].
#[derive(Clone, Debug, Default, PartialEq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct Step {
    /// Number of reconciles.
    pub reconciles: u32,
    /// Number of reconciles that failed.
    pub errors: u32,
    /// The sum of their durations, in milliseconds.
    pub total_ms: f64,
    /// The longest duration, in milliseconds.
    pub max_ms: f64,
    /// The number of parents that waited at its end.
    pub queue: usize,
}

impl Journal {
    /// Returns the journal of a controller.
    pub fn of(&self, controller: &str) -> Arc<ControllerJournal> {
        Arc::clone(lock(&self.0).entry(controller.to_owned()).or_default())
    }

    /// Forgets a controller that is no longer in the configuration.
    pub fn forget(&self, controller: &str) {
        lock(&self.0).remove(controller);
    }

    /// Ends a step of all series. `queue` returns how many parents of a controller wait.
    pub fn step(&self, queue: impl Fn(&str) -> usize) {
        let all: Vec<_> = lock(&self.0)
            .iter()
            .map(|(name, journal)| (name.clone(), Arc::clone(journal)))
            .collect();
        for (name, journal) in all {
            journal.step(queue(&name));
        }
    }

    /// Ends a step of all series every [`STEP`], until the journal is dropped.
    pub async fn keep_stepping(journal: Weak<Self>, queue: impl Fn(&str) -> usize) {
        let mut tick = tokio::time::interval(STEP);
        // A process that was suspended does not make up for it.
        tick.set_missed_tick_behavior(MissedTickBehavior::Skip);
        loop {
            tick.tick().await;
            let Some(journal) = journal.upgrade() else { return };
            journal.step(&queue);
        }
    }
}

impl ControllerJournal {
    /// Records why the running reconcile of a parent fails. Only the first failure counts: it causes the others.
    pub fn fails(&self, parent: &NamespacedName, class: &'static str, message: &str) {
        let message = shorten(message, MESSAGE);
        lock(&self.0)
            .failures
            .entry(parent.clone())
            .or_insert((class, message));
    }

    /// Records a reconcile that has ended.
    pub fn done(
        &self,
        parent: &NamespacedName,
        reason: &'static str,
        waited: Duration,
        took: Duration,
        span: Option<&SpanContext>,
    ) {
        let mut state = lock(&self.0);
        let failure = state.failures.remove(parent);
        let failed = failure.is_some();
        let (outcome, message) = failure.map_or((OK, None), |(class, message)| (class, Some(message)));
        let took_ms = milliseconds(took);
        let entry = Reconcile {
            at: Timestamp::now(),
            parent: parent.to_string(),
            reason,
            waited_ms: milliseconds(waited),
            took_ms,
            outcome,
            message,
            trace_id: trace_id(span),
        };
        let step = state.current();
        step.reconciles += 1;
        step.errors += u32::from(failed);
        step.total_ms += took_ms;
        step.max_ms = step.max_ms.max(took_ms);
        if failed || took > SLOW {
            push(&mut state.troubled, entry.clone(), TROUBLED);
        }
        push(&mut state.reconciles, entry, RECONCILES);
    }

    /// Records an Event about a parent.
    pub fn published(
        &self,
        about: &NamespacedName,
        warning: bool,
        reason: &str,
        note: &str,
        span: Option<&SpanContext>,
    ) {
        let entry = PublishedEvent {
            at: Timestamp::now(),
            about: about.to_string(),
            warning,
            reason: shorten(reason, MESSAGE),
            note: shorten(note, MESSAGE),
            trace_id: trace_id(span),
        };
        push(&mut lock(&self.0).events, entry, EVENTS);
    }

    fn step(&self, queue: usize) {
        let mut state = lock(&self.0);
        state.current().queue = queue;
        push(&mut state.series, Step::default(), STEPS);
    }

    /// Returns the last reconciles of a parent, the newest first.
    pub fn of_parent(&self, parent: &NamespacedName, limit: usize) -> Vec<Reconcile> {
        let (state, parent) = (lock(&self.0), parent.to_string());
        let all = state.reconciles.iter().chain(&state.troubled);
        let mut all: Vec<_> = all.filter(|entry| entry.parent == parent).cloned().collect();
        all.sort_by_key(|entry| std::cmp::Reverse(entry.at));
        all.dedup_by_key(|entry| entry.at);
        all.truncate(limit);
        all
    }

    /// Returns the last reconciles that failed or were slow, the newest first.
    pub fn troubled(&self) -> Vec<Reconcile> {
        lock(&self.0).troubled.iter().rev().cloned().collect()
    }

    /// Returns the last Events, the newest first; of one parent, or of all.
    pub fn events(&self, about: Option<&NamespacedName>) -> Vec<PublishedEvent> {
        let about = about.map(ToString::to_string);
        let state = lock(&self.0);
        let events = state.events.iter().rev();
        events
            .filter(|event| about.as_ref().is_none_or(|about| event.about == *about))
            .cloned()
            .collect()
    }

    /// Returns the series, the oldest step first.
    pub fn series(&self) -> Vec<Step> {
        lock(&self.0).series.iter().cloned().collect()
    }
}

impl State {
    fn current(&mut self) -> &mut Step {
        if self.series.is_empty() {
            self.series.push_back(Step::default());
        }
        let last = self.series.len() - 1;
        &mut self.series[last]
    }
}

fn push<T>(entries: &mut VecDeque<T>, entry: T, limit: usize) {
    if entries.len() >= limit {
        entries.pop_front();
    }
    entries.push_back(entry);
}

fn trace_id(span: Option<&SpanContext>) -> Option<String> {
    span.map(|span| span.trace_id().to_string())
}

fn milliseconds(duration: Duration) -> f64 {
    // Microseconds are exact enough.
    (duration.as_secs_f64() * 1e6).round() / 1e3
}

#[cfg(test)]
mod tests {
    use super::*;

    fn name(name: &str) -> NamespacedName {
        NamespacedName::parse(&format!("shop/{name}"))
    }

    fn done(journal: &ControllerJournal, parent: &str, took: Duration) {
        journal.done(&name(parent), "child", Duration::ZERO, took, None);
    }

    #[test]
    fn failed_and_slow_reconciles_stay_longer_than_the_others() {
        let journal = ControllerJournal::default();
        journal.fails(&name("bad"), "trap", "it panicked");
        journal.fails(&name("bad"), "status", "and its status was not written");
        done(&journal, "bad", Duration::from_millis(2));
        done(&journal, "slow", Duration::from_secs(2));
        for _ in 0..RECONCILES * 2 {
            done(&journal, "good", Duration::from_millis(1));
        }
        let troubled = journal.troubled();
        let parents: Vec<_> = troubled.iter().map(|it| it.parent.as_str()).collect();
        assert_eq!(parents, ["shop/slow", "shop/bad"]);
        assert_eq!(troubled[1].outcome, "trap");
        assert_eq!(troubled[1].message.as_deref(), Some("it panicked"));
        assert_eq!(journal.of_parent(&name("bad"), 10), [troubled[1].clone()]);
        assert_eq!(journal.of_parent(&name("good"), 10).len(), 10);
        // The failure was that of one reconcile.
        done(&journal, "bad", Duration::from_millis(2));
        assert_eq!(journal.of_parent(&name("bad"), 10)[0].outcome, OK);
    }

    #[test]
    fn a_journal_does_not_grow() {
        let journal = ControllerJournal::default();
        let long = "x".repeat(10_000);
        for i in 0..1000 {
            journal.fails(&name("a"), "api", &long);
            done(&journal, "a", Duration::from_millis(1));
            journal.published(&name("a"), true, "Reason", &long, None);
            journal.step(i);
        }
        let state = lock(&journal.0);
        assert_eq!(state.reconciles.len(), RECONCILES);
        assert_eq!(state.troubled.len(), TROUBLED);
        assert_eq!(state.events.len(), EVENTS);
        assert_eq!(state.series.len(), STEPS);
        assert!(state.failures.is_empty());
        assert!(state.events[0].note.len() <= MESSAGE);
        assert!(state.troubled[0].message.as_ref().unwrap().len() <= MESSAGE);
    }

    #[test]
    fn a_step_counts_what_happened_in_it() {
        let journal = Journal::default();
        let echo = journal.of("echo");
        echo.fails(&name("a"), "api", "no");
        done(&echo, "a", Duration::from_millis(30));
        done(&echo, "b", Duration::from_millis(10));
        journal.step(|controller| {
            assert_eq!(controller, "echo");
            7
        });
        let first = Step {
            reconciles: 2,
            errors: 1,
            total_ms: 40.0,
            max_ms: 30.0,
            queue: 7,
        };
        assert_eq!(echo.series(), [first, Step::default()]);
    }
}
