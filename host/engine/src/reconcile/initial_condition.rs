//! Writes a first condition about a parent that has had none for a few seconds, whatever it waits for. Without it, its user
//! does not know whether anything happens at all.

use std::collections::{HashMap, HashSet, VecDeque};
use std::convert::Infallible;
use std::time::Duration;

use futures::stream::{self, StreamExt};
use tokio::time::{Instant, interval};
use tracing::{Span, debug};

use super::context::Context;
use super::failure::{FIRST_GRACE, is_unreported};
use super::run::Run;
use super::status;
use operator_host_cluster::cache::WatchState;
use operator_host_core::object::NamespacedName;
use operator_host_delivery::registry::Live;
use operator_host_desired::conditions::{Reason, StatusUpdate, Verdict, WAITING, current};

/// How often it looks.
const PERIOD: Duration = Duration::from_secs(1);
/// How many times it looks to see how fast parents are finished.
const LOOKS: usize = 5;
/// How many statuses are written at a time.
const AT_A_TIME: usize = 4;
/// When so many reconciles are finished in a second, for example at a start or when hundreds of parents are created, those that
/// wait need no such condition: to write it would hold up the others.
const FAST: u64 = 20;

/// Looks for such parents while this replica leads.
pub async fn follow(context: &Context) -> Infallible {
    let mut beat = interval(PERIOD);
    // How long each parent waits; `None` once its condition says so.
    let mut waiting: HashMap<NamespacedName, Option<Wait>> = HashMap::new();
    let mut line = Line::default();
    loop {
        beat.tick().await;
        let now = Instant::now();
        let names = match context.cluster.writer.term.leads() {
            true => parents_that_wait(context),
            false => HashSet::new(),
        };
        let moves = line.moves_fast(context.queue.finished());
        let look = |name: NamespacedName| {
            let known = waiting.remove(&name).unwrap_or(Some(Wait::new(now)));
            let wait = known.map(|wait| wait.look(context.queue.is_running(&name), now));
            (name, wait)
        };
        waiting = names.into_iter().map(look).collect();
        let is_due = |wait: &Option<Wait>| wait.is_some_and(|wait| wait.is_due(moves, now));
        let due = waiting.iter().filter(|(_, wait)| is_due(wait));
        let due: Vec<_> = due.map(|(name, _)| name.clone()).collect();
        let told = stream::iter(due).map(|name| async {
            let again = !tell(context, &name).await;
            (name, again.then(|| Wait::new(Instant::now())))
        });
        let told: Vec<_> = told.buffer_unordered(AT_A_TIME).collect().await;
        waiting.extend(told);
    }
}

/// How long one parent waits.
#[derive(Clone, Copy)]
struct Wait {
    since: Instant,
    /// Since when a worker has it.
    running: Option<Instant>,
}

impl Wait {
    const fn new(now: Instant) -> Self {
        Self {
            since: now,
            running: None,
        }
    }

    fn look(self, is_running: bool, now: Instant) -> Self {
        let running = is_running.then(|| self.running.unwrap_or(now));
        Self { running, ..self }
    }

    /// Reports whether to say what it waits for. In a line that moves fast, only a reconcile takes long.
    fn is_due(self, moves: bool, now: Instant) -> bool {
        let since = if moves { self.running } else { Some(self.since) };
        since.is_some_and(|since| now - since >= FIRST_GRACE)
    }
}

/// How many reconciles were finished each time it looked, the last few times.
#[derive(Default)]
struct Line(VecDeque<u64>);

impl Line {
    /// Reports whether many are finished in a second, now that so many are.
    fn moves_fast(&mut self, finished: u64) -> bool {
        if self.0.len() > LOOKS {
            self.0.pop_front();
        }
        let since = self.0.front().map(|first| finished.saturating_sub(*first));
        let moves = since.is_some_and(|since| since >= FAST * self.0.len() as u64);
        self.0.push_back(finished);
        moves
    }
}

/// Returns the parents that no reconcile has finished with: all of them before the first one.
fn parents_that_wait(context: &Context) -> HashSet<NamespacedName> {
    let all = || context.caches.parent_names().into_iter().collect();
    context.queue.unfinished().unwrap_or_else(all)
}

/// Writes the condition if the parent has none. Returns whether that need not be tried again.
async fn tell(context: &Context, name: &NamespacedName) -> bool {
    // There may be many of them.
    tokio::task::yield_now().await;
    let Some(parent) = context.caches.parent(name) else {
        return true;
    };
    // Until a plugin says that it is for this kind, the objects may be those of another operator, which writes their status.
    let is_for_the_kind = matches!(*context.versions.live.borrow(), Live::Plugin(_));
    if !is_unreported(context, &parent) || !(is_for_the_kind || current(&parent).is_empty()) {
        return true;
    }
    let Some(what) = waits_for(context, name) else {
        return true;
    };
    let verdict = Verdict::Reconciling(Reason::new(WAITING, format!("waiting for {what}")));
    let update = StatusUpdate::of_host(&verdict);
    let at = parent.metadata.resource_version.as_deref();
    let run = Run {
        context,
        name,
        span: &Span::none(),
    };
    match status::write(&run, &parent, &update, at).await {
        Ok(_) => true,
        Err(error) => {
            debug!(controller = context.config.name, parent = %name, "cannot write a first condition: {error}");
            !error.is_passing()
        }
    }
}

/// Returns what the first reconcile of a parent waits for.
fn waits_for(context: &Context, name: &NamespacedName) -> Option<String> {
    if context.queue.is_running(name) {
        return Some("the first answers of the plugin and of the API server about the children".to_owned());
    }
    let mut watches = context.caches.watches();
    watches.retain(|watch| watch.state_now() == WatchState::Starting);
    let errors = watches.iter().map(|watch| watch.list_error().borrow().clone());
    if let Some(error) = errors.flatten().next() {
        return Some(format!("the first lists of the controller's kinds: {error}"));
    }
    if !watches.is_empty() {
        let kinds: Vec<_> = watches.iter().map(|watch| watch.kind().to_string()).collect();
        return Some(format!("the first list of {}", kinds.join(" and of ")));
    }
    match &*context.versions.live.borrow() {
        Live::Loading => Some("the plugin, which is being compiled or proved".to_owned()),
        // The reconcile that is about to begin leaves the object to another operator.
        Live::Failed(failed) if failed.is_of_other_kind => None,
        _ if context.queue.unfinished().is_some() => Some(format!(
            "a worker: all {} of the controller are busy (`concurrency`)",
            context.config.concurrency
        )),
        _ => Some("the controller, which decides about its definition and its plugin's version".to_owned()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn moves(finished: &[u64]) -> Vec<bool> {
        let mut line = Line::default();
        finished
            .iter()
            .map(|finished| line.moves_fast(*finished))
            .collect()
    }

    /// Regression: at each look, those that workers just had got a condition and, moments later, another one.
    #[test]
    fn a_parent_that_a_fast_line_has_just_brought_to_a_worker_needs_no_condition() {
        let start = Instant::now();
        let at = |seconds| start + Duration::from_secs(seconds);
        let waited = Wait::new(start).look(false, at(2));
        assert!(waited.is_due(false, at(2)) && !waited.is_due(true, at(2)));
        let taken = waited.look(true, at(3));
        assert!(!taken.is_due(true, at(3)) && taken.is_due(false, at(3)));
        assert!(
            taken.look(true, at(5)).is_due(true, at(5)),
            "the reconcile itself takes long"
        );
        assert!(
            !taken.look(false, at(4)).look(true, at(5)).is_due(true, at(5)),
            "another one"
        );
    }

    #[test]
    fn a_line_moves_fast_while_many_of_it_are_finished() {
        assert_eq!(moves(&[0, 100, 250, 250, 400]), [false, true, true, true, true]);
        assert_eq!(moves(&[0, 1, 2, 2, 3]), [false; 5], "a slow plugin");
        let stuck = [[0, 100].as_slice(), [100; 7].as_slice()].concat();
        assert_eq!(moves(&stuck)[..2], [false, true]);
        assert!(!moves(&stuck)[8], "it moves no more");
    }
}
