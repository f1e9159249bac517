//! Reconciles one parent: calls the plugin, applies and prunes the children, and writes the status.

use std::sync::Arc;

use kube::ResourceExt;
use kube::core::DynamicObject;
use tracing::{Span, record_all};

pub use self::action::Action;
use self::call::{check_readable, check_valid};
use self::context::{Context, FailureMemory};
use self::error::{ReconcileError, Result};
use self::failure::{count_failure, fail, is_transient, mark_repeated, note, status_not_written};
use self::finalizer::{Stage, add_finalizer, finalizer_of_another, has_finalizer, remove_finalizer};
use self::freshness::up_to_date;
use self::outcome::{Changes, FinalAnswer, Outcome};
use self::release::release;
use self::run::{Run, Snapshot};
use self::settle::settle;
use operator_host_core::object::{NamespacedName, PAUSED_ANNOTATION, annotation};
use operator_host_delivery::registry::Live;
use operator_host_desired::conditions::{StatusUpdate, Verdict};

mod apply;
mod brakes;
pub mod canary;
pub mod context;
pub mod decorate;
pub mod evaluate;
pub mod initial_condition;
pub mod needs;
pub mod observer;
pub mod parent_conditions;
pub mod proof_key;
pub mod prune;
mod release;
mod secrets;
pub mod status;
pub mod unwatched;

mod action;
mod call;
mod cleanup_deadline;
mod error;
mod failure;
mod finalizer;
mod freshness;
mod going;
mod orphans;
mod outcome;
mod related;
mod repair;
mod replace;
mod run;
mod settle;
mod teardown;
pub mod turns;

/// Reconciles one parent and returns when to reconcile it next. Never fails: it reports errors in the parent's
/// conditions, in an Event and in the log.
///
/// `span` is the span of this reconcile.
pub async fn reconcile(context: &Context, name: &NamespacedName, span: &Span) -> Action {
    let run = &Run { context, name, span };
    let decided = reconcile_now(run).await;
    brakes::next_look(run, decided)
}

async fn reconcile_now(run: &Run<'_>) -> Action {
    let Some(parent) = run.context.caches.parent(run.name) else {
        return match run.context.caches.unselected(run.name) {
            Some(object) => decorate::undecorate(run, &object).await,
            None => without_parent(run).await,
        };
    };
    let snapshot = match up_to_date(run, run.snapshot(parent)).await {
        Ok(Some(snapshot)) => snapshot,
        Ok(None) => return Action::OnChange,
        Err((parent, error)) => {
            let result = going::release_or(run, &parent, error.into()).await;
            return conclude(run, &parent, result).await;
        }
    };
    run.context.state.let_go(run.name);
    let parent = Arc::clone(&snapshot.parent);
    record_all!(
        run.span,
        k8s.object.uid = parent.metadata.uid.as_deref().unwrap_or_default(),
        k8s.object.generation = parent.metadata.generation.unwrap_or_default(),
    );
    if matches!(&*run.context.versions.live.borrow(), Live::Failed(failed) if failed.is_of_other_kind)
        && !has_finalizer(&run.context.config, &parent)
    {
        // A mistake in the configuration must not write into the objects of another operator.
        return Action::OnChange;
    }
    // What is decorated may have a controller of its own.
    if run.context.config.decorates.is_none()
        && let Some(finalizer) = finalizer_of_another(&run.context.config, &parent)
    {
        return fail(run, &parent, &ReconcileError::OtherController(finalizer)).await;
    }
    cleanup_deadline::wake_when_overdue(run, &parent);
    if annotation(&parent, PAUSED_ANNOTATION) == Some("true") {
        if cleanup_deadline::is_overdue(run, &parent) {
            return abandon(run, &parent, "the resource is paused").await;
        }
        brakes::forget_conflicts(run);
        return finish(run, &parent, None, Verdict::Paused, Action::OnChange).await;
    }
    let mut changes = Changes::default();
    let mut result = converge(run, snapshot, &mut changes).await;
    if let Err(error) = result {
        result = going::release_or(run, &parent, error).await;
    }
    mark_repeated(run, &mut result);
    changes.publish(run, &parent);
    // However late it is, the cleanup is tried once.
    let untidy = match &result {
        Ok(Outcome::Settled(_)) => Some("the plugin did not say that it is done".to_owned()),
        Ok(_) => None,
        Err(error) => {
            note(run, error);
            (!is_transient(run, &parent, error)).then(|| error.to_string())
        }
    };
    match untidy.filter(|_| cleanup_deadline::is_overdue(run, &parent)) {
        Some(why) => abandon(run, &parent, &why).await,
        None => conclude(run, &parent, result).await,
    }
}

/// Tells how the reconcile of a parent ended, and returns when to reconcile it next.
async fn conclude(run: &Run<'_>, parent: &Arc<DynamicObject>, result: Result<Outcome>) -> Action {
    let answer = match result {
        Ok(Outcome::Settled(answer)) => answer,
        Ok(Outcome::ParentChanged | Outcome::Released | Outcome::Loading) => {
            brakes::forget_conflicts(run);
            return Action::OnChange;
        }
        Err(error) => return fail(run, parent, &error).await,
    };
    answer.publish(run, parent);
    let next = answer.requeue.after.map_or(Action::OnChange, Action::After);
    let Some(parent) = run.context.caches.as_seen(parent) else {
        return Action::OnChange;
    };
    if let Some(at) = answer.requeue.at {
        run.context.queue.enqueue_at_time(run.name, at);
    }
    let verdict = match &answer.verdict {
        Some(verdict) => verdict.clone(),
        None => cleanup_deadline::cleaning_up_verdict(run, &parent),
    };
    finish(run, &parent, Some(&answer), verdict, next).await
}

/// Reconciles a parent that is up to date and not paused.
async fn converge(run: &Run<'_>, mut snapshot: Snapshot, changes: &mut Changes) -> Result<Outcome> {
    release(run, &snapshot, &mut changes.updated).await?;
    if !changes.updated.is_empty() {
        snapshot = run.snapshot(snapshot.parent);
    }
    let parent = &snapshot.parent;
    if Stage::of(&run.context.config, parent, false) == Stage::Released {
        let left = (!parent.finalizers().is_empty()).then_some(&**parent);
        return Ok(Outcome::without_finalizer(left, FinalAnswer::default()));
    }
    let plugin = match run.context.versions.of(parent) {
        Live::Plugin(plugin) => plugin,
        Live::Loading => return Ok(Outcome::Loading),
        Live::Failed(failed) => return Err(ReconcileError::NoPlugin(failed.why)),
    };
    if let Some(failure) = run.context.watch_failure(parent) {
        return Err(ReconcileError::Watch(failure));
    }
    let stage = Stage::of(&run.context.config, parent, plugin.description().finalizer);
    match stage {
        Stage::CleaningUp => {
            let parent = Arc::clone(&snapshot.parent);
            return match settle(run, &plugin, snapshot, changes).await? {
                Outcome::Settled(answer) if answer.done => wind_down(run, parent, answer, changes).await,
                other => Ok(other),
            };
        }
        Stage::TearingDown => return wind_down(run, snapshot.parent, FinalAnswer::done(), changes).await,
        // One that is released has returned above.
        Stage::Unguarded | Stage::Alive | Stage::Released => {}
    }
    if run.context.caches.is_namespace_terminating(parent) {
        // The parent will soon be deleted, too.
        return Err(ReconcileError::NamespaceTerminating);
    }
    if let Some(problem) = run.context.refuses_namespace(parent) {
        return Err(ReconcileError::Namespace(problem));
    }
    check_readable(parent)?;
    check_valid(run, &plugin, parent).await?;
    if stage == Stage::Unguarded {
        match add_finalizer(run, parent).await? {
            Some(guarded) => snapshot.parent = guarded,
            None => return Ok(Outcome::ParentChanged),
        }
    }
    let parent = Arc::clone(&snapshot.parent);
    let mut outcome = settle(run, &plugin, snapshot, changes).await?;
    if let Outcome::Settled(answer) = &mut outcome {
        let left = orphans::sweep(run, Some(&parent), changes).await;
        answer.requeue = answer.requeue.or_after(left);
    }
    Ok(outcome)
}

/// Deletes the children that are in an order, of a parent that is cleaned up, and removes its finalizer.
async fn wind_down(
    run: &Run<'_>,
    mut parent: Arc<DynamicObject>,
    answer: FinalAnswer,
    changes: &mut Changes,
) -> Result<Outcome> {
    if let Some(reason) = teardown::delete_in_order(run, &mut parent, changes).await? {
        return Ok(Outcome::Settled(FinalAnswer {
            verdict: Some(Verdict::CleaningUp(reason)),
            ..answer
        }));
    }
    let left = remove_finalizer(run, &parent).await?;
    if left.is_none() {
        // No status is written any more, but the Events of the cleanup must be visible.
        answer.publish(run, &parent);
    }
    Ok(Outcome::without_finalizer(left.as_deref(), answer))
}

/// Releases a parent whose time for the cleanup is over.
async fn abandon(run: &Run<'_>, parent: &Arc<DynamicObject>, why: &str) -> Action {
    let result = cleanup_deadline::abandon(run, parent, why).await;
    conclude(run, parent, result).await
}

/// Deletes the children of a deleted parent if the garbage collector does not.
async fn without_parent(run: &Run<'_>) -> Action {
    let watch = run.context.caches.parents.of(run.name.namespace.as_deref());
    if watch.is_none() {
        // Its namespace is not watched: the children are those of another host.
        return Action::OnChange;
    }
    let mut changes = Changes::default();
    let left = orphans::sweep(run, None, &mut changes).await;
    changes.count(run);
    left.map_or(Action::OnChange, Action::After)
}

/// Writes the status and returns when to reconcile the parent next.
async fn finish(
    run: &Run<'_>,
    parent: &DynamicObject,
    answer: Option<&FinalAnswer>,
    verdict: Verdict,
    next: Action,
) -> Action {
    let update = StatusUpdate {
        fields: answer.and_then(|answer| answer.status.as_ref()),
        conditions: answer.map(|answer| answer.conditions.as_slice()),
        added: &[],
        verdict: &verdict,
    };
    match status::write(run, parent, &update, None).await {
        Ok(_) => {
            run.memory(|memory| memory.failure = FailureMemory::default());
            next
        }
        // The plugin's fields were rejected; write only the host's conditions.
        Err(error)
            if answer.is_some_and(|answer| answer.status.is_some() || !answer.conditions.is_empty())
                && error.is_invalid() =>
        {
            fail(run, parent, &ReconcileError::Status(error)).await
        }
        Err(error) => {
            count_failure(run);
            status_not_written(run, parent, error)
        }
    }
}
