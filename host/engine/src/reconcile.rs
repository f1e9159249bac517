//! Reconciles one parent: calls the plugin, applies and prunes the children, and writes the status.

use std::cell::RefCell;
use std::sync::Arc;

use kube::ResourceExt;
use kube::core::DynamicObject;
use tracing::{Span, debug, record_all, warn};

pub use self::action::Action;
use self::action::requeue;
use self::apply::{BACK_OFF, apply};
use self::call::{call, check_readable, check_valid};
use self::context::{Blocking, Context};
use self::error::ReconcileError;
use self::failure::{count_failure, fail, note_transient, status_not_written, tell_repeated};
use self::finalizer::{finalizer_of, finalizer_of_another, remove_finalizer, set_finalizers};
use self::freshness::up_to_date;
use self::iterations::Iterations;
use self::outcome::{Changes, FinalAnswer, collect_events};
use self::prune::prune;
use self::release::release;
use self::secrets::{Generated, generate, record};
use self::teardown::Teardown;
use operator_host_contract::{CleanupResponse, Kind, Response};
use operator_host_core::clock::now;
use operator_host_core::object::{ChildRef, NamespacedName, PAUSED_ANNOTATION, annotation, is_terminating};
use operator_host_core::trace;
use operator_host_delivery::registry::Live;
use operator_host_desired::conditions::{Reason, StatusUpdate, Verdict};
use operator_host_desired::order::Waiting;
use operator_host_desired::ownership::owns;
use operator_host_desired::plan::{Plan, Policy, beside_obstacles, plan};
use operator_host_desired::readiness;
use operator_host_runtime::Plugin;

pub mod apply;
pub mod context;
pub mod evaluate;
pub mod first_sign;
pub mod held_back;
pub mod needs;
pub mod observer;
pub mod provenance_key;
pub mod prune;
pub mod release;
pub mod secrets;
pub mod status;
pub mod unlisted;

mod action;
mod call;
mod contest;
mod error;
mod failure;
mod finalizer;
mod freshness;
mod iterations;
mod leaving;
mod outcome;
mod predecessor;
mod related;
mod repair;
mod teardown;
mod too_large;

/// Reconciles one parent and returns when to reconcile it next. Never fails: it reports errors in the parent's
/// conditions, in an Event and in the log.
///
/// `span` is the span of this reconcile.
pub async fn reconcile(context: &Context, name: &NamespacedName, span: &Span) -> Action {
    let decided = reconcile_now(context, name, span).await;
    contest::next(context, name, decided)
}

async fn reconcile_now(context: &Context, name: &NamespacedName, span: &Span) -> Action {
    let Some(parent) = context.parent(name) else {
        return without_parent(context, name).await;
    };
    let parent = match up_to_date(context, parent).await {
        Ok(Some(parent)) => parent,
        Ok(None) => return Action::OnChange,
        Err((parent, error)) => return fail(context, &parent, &error.into()).await,
    };
    record_all!(
        span,
        k8s.object.uid = parent.metadata.uid.as_deref().unwrap_or_default(),
        k8s.object.generation = parent.metadata.generation.unwrap_or_default(),
    );
    if matches!(&*context.plugin.borrow(), Live::Failed(failed) if failed.is_of_other_kind)
        && finalizer_of(context, &parent).is_none()
    {
        // A mistake in the configuration must not write into the objects of another operator.
        return Action::OnChange;
    }
    let is_paused = annotation(&parent, PAUSED_ANNOTATION) == Some("true");
    if is_paused && leaving::check_deadline(context, &parent, true) {
        return match leaving::abandon(context, &parent, "the resource is paused").await {
            Ok(()) => Action::OnChange,
            Err(error) => fail(context, &parent, &error).await,
        };
    }
    if let Some(finalizer) = finalizer_of_another(context, &parent) {
        return fail(context, &parent, &ReconcileError::OtherController(finalizer)).await;
    }
    if is_paused {
        contest::forget(context, name);
        return finish(context, &parent, None, Verdict::Paused, Action::OnChange).await;
    }
    let mut changes = Changes::default();
    let mut result = converge(context, &parent, &mut changes).await;
    tell_repeated(context, name, &mut result);
    changes.publish(context, &parent);
    let has_tried = match &result {
        Ok(answer) => answer.is_some(),
        Err(error) => !note_transient(context, &parent, error),
    };
    if leaving::check_deadline(context, &parent, has_tried) {
        let why = match &result {
            Ok(_) => "the plugin did not say that it is done".to_owned(),
            Err(error) => error.to_string(),
        };
        return match leaving::abandon(context, &parent, &why).await {
            Ok(()) => Action::OnChange,
            Err(error) => fail(context, &parent, &error).await,
        };
    }
    match result {
        Ok(None) => {
            contest::forget(context, name);
            Action::OnChange
        }
        Ok(Some(answer)) => {
            answer.publish(context, &parent);
            let next = answer.requeue.map_or(Action::OnChange, Action::After);
            let Some(parent) = context.as_seen(&parent) else {
                return Action::OnChange;
            };
            let verdict = match &answer.verdict {
                Some(verdict) => verdict.clone(),
                None => leaving::cleaning_up_verdict(context, &parent),
            };
            finish(context, &parent, Some(&answer), verdict, next).await
        }
        Err(error) => {
            let class = error.class();
            context.observer.metrics.failed(class);
            if !span.is_disabled() {
                trace::fail(span, class, &error.to_string(), "");
            }
            fail(context, &parent, &error).await
        }
    }
}

/// Reconciles a parent that is up to date and not paused. Returns `None` when no status is to be written, for example
/// because the parent was deleted.
async fn converge(
    context: &Context,
    parent: &Arc<DynamicObject>,
    changes: &mut Changes,
) -> Result<Option<FinalAnswer>, ReconcileError> {
    release(context, parent, &mut changes.updated).await?;
    let plugin = match &*context.plugin.borrow() {
        Live::Plugin(plugin) => plugin.clone(),
        // Workers start only when loading has ended.
        Live::Loading => return Ok(None),
        Live::Failed(failed) => return Err(ReconcileError::NoPlugin(Arc::clone(&failed.why))),
    };
    check_watches(context, parent)?;
    let has_finalizer = finalizer_of(context, parent).is_some();
    if is_terminating(parent) {
        return match has_finalizer {
            true => wind_down(context, &plugin, parent, changes).await,
            // The garbage collector deletes its dependents.
            false => Ok(None),
        };
    }
    if context.is_namespace_terminating(parent) {
        // The parent will soon be deleted, too.
        return Err(ReconcileError::NamespaceTerminating);
    }
    if context.is_in_host_namespace(parent) {
        return Err(ReconcileError::Namespace(context.host_namespace_error()));
    }
    check_readable(parent)?;
    check_valid(context, &plugin, parent).await?;
    let mut parent = Arc::clone(parent);
    if plugin.description().finalizer && !has_finalizer {
        // Set it before the first child is created, so that the cleanup sees every child.
        let all = parent.finalizers().iter().cloned();
        let all = all.chain([context.config.finalizer()]).collect();
        match set_finalizers(context, &parent, all).await? {
            Some(with_finalizer) => parent = with_finalizer,
            None => return Ok(None),
        }
    }
    let mut answer = iterate(context, &plugin, &parent, changes).await?;
    let left = predecessor::sweep(context, &NamespacedName::of(&parent), Some(&parent), changes).await?;
    answer.requeue = answer.requeue.into_iter().chain(left).min();
    Ok(Some(answer))
}

/// Cleans up after a parent that is being deleted, deletes the children that are in an order, and removes the finalizer.
/// Returns `None` when it was removed.
async fn wind_down(
    context: &Context,
    plugin: &Plugin,
    parent: &Arc<DynamicObject>,
    changes: &mut Changes,
) -> Result<Option<FinalAnswer>, ReconcileError> {
    let answer = if plugin.description().finalizer && !teardown::has_begun(context, parent) {
        cleanup(context, plugin, parent, changes).await?
    } else {
        FinalAnswer::done()
    };
    if !answer.done {
        return Ok(Some(answer));
    }
    match teardown::delete_in_order(context, plugin, parent, changes).await? {
        Teardown::Waiting(reason) => {
            return Ok(Some(FinalAnswer {
                verdict: Some(Verdict::CleaningUp(reason)),
                ..answer
            }));
        }
        Teardown::Done(parent) => remove_finalizer(context, &parent).await?,
        Teardown::Gone => {}
    }
    // No status is written any more, but the Events of the cleanup must be visible.
    answer.publish(context, parent);
    Ok(None)
}

/// Deletes the children of a deleted parent if the garbage collector does not.
async fn without_parent(context: &Context, name: &NamespacedName) -> Action {
    if context.parents.of(name.namespace.as_deref()).is_none() {
        // Its namespace is not watched: the children are those of another host.
        return Action::OnChange;
    }
    let mut changes = Changes::default();
    let left = predecessor::sweep(context, name, None, &mut changes).await;
    changes.count(context);
    match left {
        Ok(left) => left.map_or(Action::OnChange, Action::After),
        Err(error) => {
            warn!(
                "cannot delete the children of the deleted {} {name}: {error}",
                context.config.parent.kind
            );
            Action::After(predecessor::GC_GRACE_PERIOD)
        }
    }
}

/// Checks that the watches of this parent and its children work.
fn check_watches(context: &Context, parent: &DynamicObject) -> Result<(), ReconcileError> {
    context
        .watch_failure(parent)
        .map_or(Ok(()), |failure| Err(ReconcileError::Watch(failure)))
}

/// Calls the plugin and applies its response until an iteration changes nothing. Therefore the last response, and the
/// status with it, describes the children that this reconcile has written.
async fn iterate(
    context: &Context,
    plugin: &Plugin,
    parent: &Arc<DynamicObject>,
    changes: &mut Changes,
) -> Result<FinalAnswer, ReconcileError> {
    let mut parent = Arc::clone(parent);
    let mut events = Vec::new();
    let mut iterations = Iterations::default();
    while iterations.begin_next(changes) {
        let observed = context.observed(&parent, plugin);
        let seen = now();
        let (response, share): (Response, _) = call(context, plugin, &parent, &observed, seen).await?;
        let (plan, left_out) = match make_plan(context, plugin, &parent, &response) {
            Ok(planned) => planned,
            Err(error) if predecessor::clear(context, &parent, &error, changes).await? => {
                debug!("{error}: cleared the children of the earlier parent, asking the plugin again");
                continue;
            }
            Err(error) => return Err(error),
        };
        let mut changed = false;
        for secret in &plan.secrets {
            match generate(context, &parent, secret).await? {
                Generated::Created => changes.created.push(secret.key.clone()),
                Generated::Updated => changes.updated.push(secret.key.clone()),
                Generated::Unchanged => continue,
            }
            changed = true;
        }
        parent = record(context, &parent, &plan.secrets).await?;
        let parent = &parent;
        let applied = apply(context, parent, &plan.desired).await;
        changed |= applied.changed();
        changes.created.extend(applied.created);
        changes.updated.extend(applied.updated);
        let is_lasting = applied.failed.iter().any(|error| !error.is_passing());
        // What passes by itself must not hide what does not.
        if is_lasting || !applied.failed.is_empty() && left_out.is_none() {
            return Err(ReconcileError::Api(applied.failed));
        }
        if let Some(error) = left_out {
            if changed || predecessor::clear(context, parent, &error, changes).await? {
                continue;
            }
            // Nothing is deleted before all that is wanted is there.
            return Err(error);
        }
        // What waits may replace what is no longer wanted, and what it waits for may have to be replaced first.
        let may_go = |kind: &Kind| {
            let waits_for = |waiting: &Waiting| waiting.kind.is_version_of(kind);
            applied.waiting.is_empty() || applied.waiting.iter().any(waits_for)
        };
        let (deleted, failed) = prune(context, parent, &observed, &plan, may_go).await;
        changed |= !deleted.is_empty();
        changes.deleted.extend(deleted);
        if !failed.is_empty() {
            return Err(ReconcileError::Api(failed));
        }
        changed |= context.remember_versions(&NamespacedName::of(parent), &plan);
        let Response {
            status,
            conditions,
            events: new,
            requeue_after_ms,
            requeue_at,
            ..
        } = response;
        collect_events(&mut events, new);
        if !changed {
            return Ok(FinalAnswer {
                status,
                conditions,
                events,
                requeue: requeue(requeue_after_ms, requeue_at, seen),
                verdict: Some(match applied.waiting.into_iter().next() {
                    _ if !applied.held.is_empty() => {
                        Verdict::Reconciling(Reason::new(BACK_OFF, applied.held.join(". ")))
                    }
                    Some(waiting) => Verdict::Reconciling(Reason::waiting(waiting.why)),
                    // One that is missing was deleted after it was applied.
                    None => readiness::verdict(
                        &plan,
                        |key| context.existing(key),
                        |_| Some("it was deleted".into()),
                    ),
                }),
                done: false,
                _share: share,
            });
        }
    }
    Err(ReconcileError::Unsettled {
        calls: iterations.calls(),
    })
}

/// Runs the plugin's cleanup for a parent that is being deleted. Keeps the children that the response does not name.
async fn cleanup(
    context: &Context,
    plugin: &Plugin,
    parent: &Arc<DynamicObject>,
    changes: &mut Changes,
) -> Result<FinalAnswer, ReconcileError> {
    let mut events = Vec::new();
    let mut iterations = Iterations::default();
    while iterations.begin_next(changes) {
        let observed = context.observed(parent, plugin);
        let seen = now();
        let (response, share) = call(context, plugin, parent, &observed, seen).await?;
        let CleanupResponse {
            done,
            children,
            status,
            conditions,
            events: new,
            requeue_after_ms,
            requeue_at,
            ..
        } = response;
        let response = Response {
            children,
            ..Response::default()
        };
        let (plan, left_out) = make_plan(context, plugin, parent, &response)?;
        let applied = apply(context, parent, &plan.desired).await;
        let changed = applied.changed();
        changes.created.extend(applied.created);
        changes.updated.extend(applied.updated);
        if !applied.failed.is_empty() {
            return Err(ReconcileError::Api(applied.failed));
        }
        collect_events(&mut events, new);
        let waiting = applied.waiting.into_iter().next();
        let done = done && waiting.is_none();
        match left_out {
            None => {}
            Some(_) if changed => continue,
            Some(error) => return Err(error),
        }
        if done || !changed {
            return Ok(FinalAnswer {
                status,
                conditions,
                events,
                requeue: requeue(requeue_after_ms, requeue_at, seen),
                verdict: waiting.map(|waiting| Verdict::CleaningUp(Reason::waiting(waiting.why))),
                done,
                _share: share,
            });
        }
    }
    Err(ReconcileError::Unsettled {
        calls: iterations.calls(),
    })
}

/// Returns the plan, and the error for what it leaves out.
fn make_plan(
    context: &Context,
    plugin: &Plugin,
    parent: &DynamicObject,
    response: &Response,
) -> Result<(Plan, Option<ReconcileError>), ReconcileError> {
    // Existing objects that have the name of a desired child, but another owner.
    let blocked = RefCell::new(Vec::new());
    let existing = |key: &ChildRef| {
        let existing = context.existing(key)?;
        if !owns(&context.config, parent, &existing) {
            blocked.borrow_mut().push(Blocking::new(key, Some(&existing)));
        }
        Some(existing)
    };
    let policy = Policy {
        config: &context.config,
        parent,
        digest: &plugin.digest().to_string(),
        plugin: &plugin.description().name_and_version(),
        namespaced: &|kind: &Kind| context.namespaced(kind),
        existing: &existing,
        proof: context.provenance.proof(),
    };
    let whole = plan(&policy, &response.children, &response.keep, &response.generate);
    // When such an object is deleted or gets another owner, the parent is reconciled again.
    let in_the_way = match &whole {
        Ok(_) => Vec::new(),
        Err(_) => blocked.take(),
    };
    context.wait_for(&NamespacedName::of(parent), &in_the_way);
    let (plan, left_out) = match whole {
        Ok(plan) => (plan, None),
        Err(refusals) => {
            let Response {
                children,
                keep,
                generate,
                ..
            } = response;
            let others = beside_obstacles(&policy, children, keep, generate, &refusals);
            match (others, ReconcileError::Refused(refusals)) {
                (Some(plan), error) => (plan, Some(error)),
                (None, error) => return Err(error),
            }
        }
    };
    let desired = plan.desired.iter().map(|desired| &desired.key);
    let keys = desired
        .chain(plan.secrets.iter().map(|secret| &secret.key))
        .chain(&plan.keep);
    // Those of a kind that a child defines, and that is not served yet, wait.
    let keys = keys.filter(|key| context.resources.contains_key(&key.kind));
    match context.watch_failure_of(keys) {
        Some(failure) => Err(ReconcileError::Watch(failure)),
        None => Ok((plan, left_out)),
    }
}

/// Writes the status and returns when to reconcile the parent next.
async fn finish(
    context: &Context,
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
    let name = NamespacedName::of(parent);
    match status::write(context, parent, &update).await {
        Ok(_) => {
            context.memory_of(&name, |memory| {
                memory.failures = 0;
                memory.last_logged = None;
                memory.last_published = None;
                memory.transient_since = None;
            });
            next
        }
        // The plugin's fields were rejected; write only the host's conditions.
        Err(error) if answer.is_some() && error.is_invalid() => {
            context.observer.metrics.failed("status");
            fail(context, parent, &ReconcileError::Status(error)).await
        }
        Err(error) => {
            count_failure(context, &name);
            status_not_written(context, parent, error)
        }
    }
}
