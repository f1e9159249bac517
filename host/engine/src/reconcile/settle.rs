//! The heart of a reconcile: asks the plugin and does what it says until nothing changes any more. A cleanup is the same with
//! another end: it deletes nothing, and is over when the plugin says so.

use std::sync::Arc;

use kube::core::DynamicObject;
use tracing::debug;

use super::action::{OBSTRUCTED, Requeue};
use super::apply::{Applied, apply};
use super::brakes::BACK_OFF;
use super::call::call;
use super::decorate::{self, Decorated, decorate};
use super::error::{ReconcileError, Result, Stop};
use super::evaluate::export_for;
use super::going::is_namespace_going;
use super::orphans;
use super::outcome::{Changes, FinalAnswer, Outcome, collect_events};
use super::prune::prune;
use super::run::{Run, Snapshot};
use super::secrets::generate;
use super::status::unwritten;
use operator_host_cluster::api_error::ApiError;
use operator_host_contract::{Export, Kind, Request, Response};
use operator_host_core::clock::now;
use operator_host_core::object::{ChildRef, first_few};
use operator_host_desired::conditions::{Reason, Verdict};
use operator_host_desired::order::Waiting;
use operator_host_desired::plan::{Cause, Plan};
use operator_host_desired::readiness;
use operator_host_runtime::Plugin;

/// How many children that wait for their turn are named.
const SHOWN: usize = 3;

/// Asks the plugin and realizes its answers until an iteration changes nothing. Therefore the last answer, and the status
/// with it, describes the children that this reconcile has written.
pub(super) async fn settle(
    run: &Run<'_>,
    plugin: &Plugin,
    mut snapshot: Snapshot,
    changes: &mut Changes,
) -> Result<Outcome> {
    let export = export_for(plugin, &snapshot.parent);
    let mut events = Vec::new();
    let mut iterations = Iterations::default();
    while iterations.begin_next(changes) {
        if iterations.calls > 1 {
            snapshot = run.snapshot(snapshot.parent);
        }
        let seen = now();
        let shown = unwritten::shown(run, &snapshot.parent).await?;
        let subject = Request {
            namespace_terminating: run.context.caches.is_namespace_terminating(&snapshot.parent),
            ..Request::about(shown, snapshot.children.clone(), seen)
        };
        let (response, share) = call(run, plugin, export, &subject).await?;
        let fields = decorate::body_for(&run.context.config, &snapshot.parent, response.parent.as_ref());
        let fields = fields.map_err(ReconcileError::FieldsRefused)?;
        let parent = &mut snapshot.parent;
        let realized = match realize(run, plugin, parent, &snapshot.children, &response, changes).await {
            Ok(realized) => realized,
            Err(Stop::Outdated) => continue,
            Err(Stop::ParentChanged) => return Ok(Outcome::ParentChanged),
            Err(Stop::Error(error)) if loses_all(run, &error).await => {
                return Err(ReconcileError::NamespaceTerminating);
            }
            Err(Stop::Error(error)) => return Err(error),
        };
        let desired = realized.plan.desired.iter();
        iterations.turns = desired.filter(|child| child.update.one.is_some()).count();
        // Whole, so that a new field is not forgotten.
        let Response {
            done,
            status,
            conditions,
            events: published,
            requeue_after_ms,
            requeue_at,
            // In `fields`, in `realized`, or settled.
            parent: _,
            children: _,
            keep: _,
            generate: _,
            needs: _,
        } = response;
        collect_events(&mut events, published);
        let again = realized.applied.awaits_others.then_some(OBSTRUCTED);
        let again = again.into_iter().chain(realized.applied.again).min();
        let verdict = if export == Export::Cleanup {
            let waiting = realized.applied.waiting.into_iter().next();
            // A cleanup is over when the plugin says so, although it has just changed something, unless a child waits. What
            // it does not name is kept.
            let is_over = !realized.changed || (done && waiting.is_none());
            is_over.then(|| waiting.map(|waiting| Verdict::CleaningUp(Reason::waiting(waiting.why))))
        } else {
            let judged = prune_and_judge(run, parent, &snapshot.children, realized, changes).await?;
            judged.map(Some)
        };
        let Some(verdict) = verdict else {
            // The plugin has to see first what has changed.
            unwritten::note(run, parent, status.as_ref(), Some(&conditions));
            continue;
        };
        let verdict = match &fields {
            Some(fields) => match decorate(run, parent, fields).await? {
                Decorated::Unchanged => verdict,
                Decorated::Changed(now) => {
                    *parent = now;
                    continue;
                }
                Decorated::Held(why) => Some(Verdict::Reconciling(Reason::new(BACK_OFF, why))),
                Decorated::ParentChanged => return Ok(Outcome::ParentChanged),
            },
            None => verdict,
        };
        return Ok(Outcome::Settled(FinalAnswer {
            status,
            conditions,
            events,
            requeue: Requeue::of(requeue_after_ms, requeue_at, seen).or_after(again),
            done: done && verdict.is_none(),
            verdict,
            _share: share,
        }));
    }
    Err(ReconcileError::Unsettled {
        calls: iterations.calls,
    })
}

/// Maximum number of iterations of a reconcile that write or delete no child for the first time.
const MAX_REPEATS: usize = 4;
/// Maximum number of iterations of a reconcile, even if each of them changes another child, besides those for children that take
/// turns.
const MAX_STEPS: usize = 64;

/// Distinguishes a plugin that makes progress, one child after the other, from one that changes its mind each time.
#[derive(Default)]
struct Iterations {
    calls: usize,
    repeats: usize,
    touched: usize,
    /// How many children of the last answer take turns: each of them is changed, or deleted and created, in iterations of its own.
    turns: usize,
}

impl Iterations {
    /// Begins another iteration, if one is allowed, and returns whether it is; `changes` contains the changes of the
    /// reconcile so far.
    fn begin_next(&mut self, changes: &Changes) -> bool {
        let touched = changes.touched();
        if self.calls > 0 && touched == self.touched {
            self.repeats += 1;
        }
        self.touched = touched;
        let is_allowed = self.calls < MAX_STEPS + 2 * self.turns && self.repeats < MAX_REPEATS;
        self.calls += usize::from(is_allowed);
        is_allowed
    }
}

/// What was done for an answer before anything is deleted.
struct Realized {
    plan: Plan,
    applied: Applied,
    changed: bool,
}

/// Generates the Secrets and applies the children that an answer asks for.
async fn realize(
    run: &Run<'_>,
    plugin: &Plugin,
    parent: &mut Arc<DynamicObject>,
    shown: &[Arc<DynamicObject>],
    response: &Response,
    changes: &mut Changes,
) -> Result<Realized, Stop> {
    let mut plan = match make_plan(run, plugin, parent, shown, response) {
        Ok(plan) => plan,
        Err(error) if orphans::clear(run, parent, &error, changes).await? => {
            debug!("{error}: cleared the children of the earlier parent, asking the plugin again");
            return Err(Stop::Outdated);
        }
        Err(error) => return Err(error.into()),
    };
    let refused = std::mem::take(&mut plan.refused);
    let left_out = (!refused.is_empty()).then_some(ReconcileError::Refused(refused));
    let before = (changes.writes(), changes.deleted.len());
    let generated = generate(run, parent, response, &plan, changes).await?;
    let mut applied = apply(run, parent, &plan, shown, &generated, changes).await;
    let changed = (changes.writes(), changes.deleted.len()) != before;
    let may_pass = applied.failed.iter().all(ApiError::is_passing);
    match left_out {
        // An error that may pass does not hide the refusals, which do not.
        _ if !may_pass => Err(ReconcileError::Api(applied.failed).into()),
        None if !applied.failed.is_empty() => Err(ReconcileError::Api(applied.failed).into()),
        _ if let Some(stop) = applied.stop.take() => Err(stop),
        None => Ok(Realized {
            plan,
            applied,
            changed,
        }),
        Some(error) if changed || orphans::clear(run, parent, &error, changes).await? => {
            debug!("{error}: asking the plugin again");
            Err(Stop::Outdated)
        }
        // Children are deleted only after every desired child is applied.
        Some(error) => Err(error.into()),
    }
}

/// Reports whether a generated Secret is lost because its namespace is being deleted.
async fn loses_all(run: &Run<'_>, error: &ReconcileError) -> bool {
    let ReconcileError::Refused(refusals) = error else {
        return false;
    };
    let mut lost = refusals.iter().filter(|it| it.cause == Cause::SecretLost);
    let secret = lost.find_map(|refusal| refusal.there.as_deref());
    is_namespace_going(run, secret.and_then(|key| key.name.namespace.as_deref())).await
}

/// Deletes what is no longer wanted, and judges the children; `None` when something has changed.
async fn prune_and_judge(
    run: &Run<'_>,
    parent: &DynamicObject,
    observed: &[Arc<DynamicObject>],
    realized: Realized,
    changes: &mut Changes,
) -> Result<Option<Verdict>> {
    let (plan, applied) = (realized.plan, realized.applied);
    // What waits may replace what is no longer wanted, and what it waits for may have to be replaced first.
    let may_go = |kind: &Kind| {
        let waits_for = |waiting: &Waiting| waiting.kind.is_version_of(kind);
        applied.waiting.is_empty() || applied.waiting.iter().any(waits_for)
    };
    if prune(run, parent, observed, &plan, may_go, changes).await? || realized.changed {
        return Ok(None);
    }
    let existing = |key: &ChildRef| run.context.caches.existing(key);
    Ok(Some(match applied.waiting.into_iter().next() {
        _ if !applied.held.is_empty() => Verdict::Reconciling(Reason::new(BACK_OFF, applied.held.join(". "))),
        Some(waiting) => Verdict::Reconciling(Reason::waiting(waiting.why)),
        None if !applied.turns.is_empty() => {
            let turns = first_few(applied.turns, SHOWN, "; ");
            Verdict::Reconciling(Reason::new("WaitingForTurn", turns))
        }
        // One that is missing was deleted after it was applied.
        None => readiness::verdict(&plan, existing, |_| Some("it was deleted".into())),
    }))
}

fn make_plan(
    run: &Run<'_>,
    plugin: &Plugin,
    parent: &DynamicObject,
    shown: &[Arc<DynamicObject>],
    response: &Response,
) -> Result<Plan> {
    let plan = run.context.plan(plugin, parent, shown, response);
    let plan = plan.map_err(ReconcileError::Refused)?;
    // Those of a kind that a child defines, and that is not served yet, wait.
    let is_served = |key: &&ChildRef| run.context.cluster.served.others.contains_key(&key.kind);
    let failure = plan
        .keys()
        .filter(is_served)
        .find_map(|key| run.context.caches.watch_failure_of(key));
    failure.map_or(Ok(plan), |failure| Err(ReconcileError::Watch(failure)))
}

#[cfg(test)]
mod tests {
    use super::*;
    use operator_host_contract::Kind;
    use operator_host_core::object::{ChildRef, NamespacedName};

    fn rounds(mut change: impl FnMut(usize, &mut Changes)) -> usize {
        let (mut rounds, mut changes, mut count) = (Iterations::default(), Changes::default(), 0);
        while rounds.begin_next(&changes) {
            change(count, &mut changes);
            count += 1;
        }
        assert_eq!(rounds.calls, count);
        count
    }

    fn child(name: &str) -> ChildRef {
        ChildRef::new(Kind::new("v1", "Pod"), NamespacedName::parse(name))
    }

    #[test]
    fn each_new_child_is_progress_and_the_same_ones_again_are_not() {
        assert_eq!(
            rounds(|_, changes| changes.updated.push(child("a"))),
            MAX_REPEATS + 1
        );
        assert_eq!(rounds(|_, _| ()), MAX_REPEATS);
        let ten = |round: usize, changes: &mut Changes| {
            changes.created.push(child(&format!("n{}", round.min(9))));
        };
        assert_eq!(rounds(ten), 10 + MAX_REPEATS);
    }

    #[test]
    fn a_plugin_that_makes_something_new_each_time_is_stopped_in_the_end() {
        let endless = |round: usize, changes: &mut Changes| changes.created.push(child(&round.to_string()));
        assert_eq!(rounds(endless), MAX_STEPS);
        let mut many = Iterations {
            turns: 100,
            ..Iterations::default()
        };
        let mut changes = Changes::default();
        while many.begin_next(&changes) {
            endless(many.calls, &mut changes);
        }
        assert_eq!(many.calls, MAX_STEPS + 200);
    }
}
