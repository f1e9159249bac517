//! One pass over one parent: the straight line that everything else in this crate serves.

use std::cell::RefCell;
use std::sync::Arc;

use kube::ResourceExt;
use kube::core::DynamicObject;
use tracing::{Span, debug, record_all, warn};

pub use self::action::Action;
use self::action::after;
pub use self::admit::{Admission, admit};
use self::answer::{Answer, Changes};
use self::apply::apply;
use self::ask::ask;
use self::context::Context;
use self::error::ReconcileError;
use self::failure::{count_failure, fail, is_passing, say};
use self::finalizer::{let_go, set_finalizers};
use self::iterations::Iterations;

use self::freshness::up_to_date;
use self::prune::prune;
use self::release::release;
use self::secrets::{Generated, generate};
use crate::desired::conditions::{Said, Verdict};
use crate::desired::plan::{Plan, Policy, owns, plan};
use crate::object::{ChildRef, NamespacedName, PAUSED_ANNOTATION, annotation, is_terminating};
use crate::plugin::Plugin;
use crate::plugin::contract::{CleanupResponse, Kind, Response};
use crate::plugin::registry::Live;
use crate::trace;

pub mod blocking_parents;
pub mod context;
pub mod observer;

pub mod evaluate;
pub mod needs;

mod freshness;
mod handover;
mod predecessor;
pub mod release;

mod action;
mod answer;
mod ask;
pub(crate) mod clock;
mod iterations;
mod related;

pub mod provenance;
pub mod secrets;

pub mod apply;
pub mod prune;

mod error;
mod failure;
mod finalizer;
mod leaving;
pub mod status;

mod admit;

/// How many Events of a plugin a pass publishes; more are dropped.
const MAX_EVENTS: usize = 32;
/// Reconciles one parent. Never fails: what goes wrong ends in the parent's conditions, an Event and the log.
///
/// `span` is the one around the pass.
pub async fn reconcile(context: &Context, name: &NamespacedName, span: &Span) -> Action {
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
    if annotation(&parent, PAUSED_ANNOTATION) == Some("true") {
        return finish(context, &parent, None, Verdict::Paused, Action::OnChange).await;
    }
    let parent = match handover::take_over(context, parent).await {
        Ok(Some(parent)) => parent,
        Ok(None) => return Action::OnChange,
        Err((parent, error)) => return fail(context, &parent, &error.into()).await,
    };
    let mut changes = Changes::default();
    let result = pass(context, &parent, &mut changes).await;
    changes.publish(context, &parent);
    if leaving::is_overdue(context, &parent, &result) {
        return leaving::abandon(context, &parent, &result).await;
    }
    match result {
        Ok(None) => Action::OnChange,
        Ok(Some(answer)) => {
            answer.publish(context, &parent);
            let next = answer.requeue.map_or(Action::OnChange, Action::After);
            let Some(parent) = context.as_seen(&parent) else {
                return Action::OnChange;
            };
            let verdict = if is_terminating(&parent) {
                leaving::waits_for_the_plugin(context, &parent)
            } else {
                Verdict::Reconciled
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

/// The pass itself; `None` when there is nothing to say about the parent any more.
async fn pass(
    context: &Context,
    parent: &Arc<DynamicObject>,
    changes: &mut Changes,
) -> Result<Option<Answer>, ReconcileError> {
    let plugin = match &*context.plugin.borrow() {
        Live::Plugin(plugin) => plugin.clone(),
        // Workers start only when loading has ended.
        Live::Loading => return Ok(None),
        Live::Failed(why) => return Err(ReconcileError::NoPlugin(Arc::clone(why))),
    };
    check_watches(context, parent)?;
    context.know_generated(parent, Some(&context.writer)).await?;
    changes.updated.extend(release(context, parent).await?);
    let finalizer = context.config.finalizer();
    let has_finalizer = parent.finalizers().contains(&finalizer);
    if is_terminating(parent) {
        if !has_finalizer {
            // The garbage collector deletes what it owns.
            return Ok(None);
        }
        let answer = if plugin.description().finalizer {
            cleanup(context, &plugin, parent, changes).await?
        } else {
            Answer::done()
        };
        if answer.done {
            let_go(context, parent).await?;
            // There is no status to come, but the last word of the cleanup is to be seen.
            answer.publish(context, parent);
            return Ok(None);
        }
        return Ok(Some(answer));
    }
    if context.is_namespace_going(parent) {
        // It is deleted in a moment itself.
        return Err(ReconcileError::NamespaceGoing);
    }
    if context.is_beside_the_host(parent) {
        return Err(ReconcileError::Namespace(context.says_beside_the_host()));
    }
    let mut parent = Arc::clone(parent);
    if plugin.description().finalizer && !has_finalizer {
        // Before the first child, so that none is left behind uncleaned.
        let all = parent.finalizers().iter().cloned().chain([finalizer]).collect();
        match set_finalizers(context, &parent, all).await? {
            Some(with_finalizer) => parent = with_finalizer,
            None => return Ok(None),
        }
    }
    let mut answer = rounds(context, &plugin, &parent, changes).await?;
    let left = predecessor::sweep(context, &NamespacedName::of(&parent), Some(&parent), changes).await?;
    answer.requeue = answer.requeue.into_iter().chain(left).min();
    Ok(Some(answer))
}

/// What there is to do for a parent that is gone: its children, should the garbage collector leave them.
async fn without_parent(context: &Context, name: &NamespacedName) -> Action {
    let mut changes = Changes::default();
    let left = predecessor::sweep(context, name, None, &mut changes).await;
    changes.count(context);
    match left {
        Ok(left) => left.map_or(Action::OnChange, Action::After),
        Err(error) => {
            warn!(
                "cannot delete what the {} {name}, which is gone, has left: {error}",
                context.config.parent.kind
            );
            Action::After(predecessor::PATIENCE)
        }
    }
}

/// Whether the caches show this parent and its children as they are.
fn check_watches(context: &Context, parent: &DynamicObject) -> Result<(), ReconcileError> {
    context
        .watch_failure(parent)
        .map_or(Ok(()), |failure| Err(ReconcileError::Watch(failure)))
}

/// Asks the plugin and makes it so, until what it sees is what it asked for: its last answer, and so the status,
/// knows the children as this very pass left them.
async fn rounds(
    context: &Context,
    plugin: &Plugin,
    parent: &Arc<DynamicObject>,
    changes: &mut Changes,
) -> Result<Answer, ReconcileError> {
    let mut events = Vec::new();
    let mut rounds = Iterations::default();
    while rounds.may_go_on(changes) {
        let observed = context.observed(parent, plugin);
        let (response, share): (Response, _) = ask(context, plugin, parent, &observed).await?;
        let plan = match make_plan(context, plugin, parent, &response) {
            Ok(plan) => plan,
            Err(error) if predecessor::clear(context, parent, &error, changes).await? => {
                debug!("{error}: it is gone now");
                continue;
            }
            Err(error) => return Err(error),
        };
        let mut changed = false;
        for secret in &plan.secrets {
            match generate(context, parent, secret).await? {
                Generated::Created => changes.created.push(secret.key.clone()),
                Generated::Updated => changes.updated.push(secret.key.clone()),
                Generated::Unchanged => continue,
            }
            changed = true;
        }
        let applied = apply(context, parent, &plan.desired).await;
        changed |= applied.changed();
        changes.created.extend(applied.created);
        changes.updated.extend(applied.updated);
        if !applied.failed.is_empty() {
            return Err(ReconcileError::Api(applied.failed));
        }
        let (deleted, failed) = prune(context, parent, &observed, &plan).await;
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
            ..
        } = response;
        // Each round may have its say, but not the same twice, and not without end.
        for event in new {
            if events.len() < MAX_EVENTS && !events.contains(&event) {
                events.push(event);
            }
        }
        if !changed {
            return Ok(Answer {
                status,
                conditions,
                events,
                requeue: requeue_after_ms.map(after),
                done: false,
                _share: share,
            });
        }
    }
    Err(ReconcileError::Unsettled)
}

/// The plugin's last words for a parent that is being deleted. Children that it does not name stay.
async fn cleanup(
    context: &Context,
    plugin: &Plugin,
    parent: &Arc<DynamicObject>,
    changes: &mut Changes,
) -> Result<Answer, ReconcileError> {
    let mut rounds = Iterations::default();
    while rounds.may_go_on(changes) {
        let observed = context.observed(parent, plugin);
        let (response, share) = ask(context, plugin, parent, &observed).await?;
        let CleanupResponse {
            done,
            children,
            status,
            conditions,
            mut events,
            requeue_after_ms,
            ..
        } = response;
        let response = Response {
            children,
            ..Response::default()
        };
        let plan = make_plan(context, plugin, parent, &response)?;
        let applied = apply(context, parent, &plan.desired).await;
        let changed = applied.changed();
        changes.created.extend(applied.created);
        changes.updated.extend(applied.updated);
        if !applied.failed.is_empty() {
            return Err(ReconcileError::Api(applied.failed));
        }
        if done || !changed {
            events.truncate(MAX_EVENTS);
            return Ok(Answer {
                status,
                conditions,
                events,
                requeue: requeue_after_ms.map(after),
                done,
                _share: share,
            });
        }
    }
    Err(ReconcileError::Unsettled)
}

fn make_plan(
    context: &Context,
    plugin: &Plugin,
    parent: &DynamicObject,
    response: &Response,
) -> Result<Plan, ReconcileError> {
    // What has a wanted name and is not the parent's.
    let in_the_way = RefCell::new(Vec::new());
    let existing = |key: &ChildRef| {
        let existing = context.existing(key)?;
        if !owns(&context.config, parent, &existing) {
            in_the_way.borrow_mut().push(key.clone());
        }
        Some(existing)
    };
    let policy = Policy {
        config: &context.config,
        parent,
        digest: &plugin.digest().to_string(),
        namespaced: &|kind: &Kind| context.resources.get(kind).map(|resource| resource.namespaced),
        existing: &existing,
        proof: context.provenance.proof(),
    };
    let plan = plan(&policy, &response.children, &response.keep, &response.generate);
    // When it goes, or becomes another's, the parent is looked at again.
    let in_the_way = match &plan {
        Ok(_) => Vec::new(),
        Err(_) => in_the_way.take(),
    };
    context.set_in_the_way(&NamespacedName::of(parent), in_the_way);
    let plan = plan.map_err(ReconcileError::Refused)?;
    let desired = plan.desired.iter().map(|desired| &desired.key);
    let keys = desired
        .chain(plan.secrets.iter().map(|secret| &secret.key))
        .chain(&plan.keep);
    match context.watch_failure_of(keys) {
        Some(failure) => Err(ReconcileError::Watch(failure)),
        None => Ok(plan),
    }
}

/// Writes the status and says when to come back.
async fn finish(
    context: &Context,
    parent: &DynamicObject,
    answer: Option<&Answer>,
    verdict: Verdict,
    next: Action,
) -> Action {
    let said = Said {
        fields: answer.and_then(|answer| answer.status.as_ref()),
        conditions: answer.map(|answer| answer.conditions.as_slice()),
        verdict: &verdict,
    };
    let name = NamespacedName::of(parent);
    match status::write(context, parent, &said).await {
        Ok(_) => {
            context.memory_of(&name, |memory| {
                memory.failures = 0;
                memory.said = None;
                memory.bad_weather = None;
            });
            next
        }
        // The plugin's own part of it is at fault: the host's part goes without it.
        Err(error) if answer.is_some() && error.is_invalid() => {
            context.observer.metrics.failed("status");
            fail(context, parent, &ReconcileError::Status(error)).await
        }
        Err(error) => {
            context.observer.metrics.failed("status");
            let error = ReconcileError::from(error);
            if is_passing(context, parent, &error) {
                debug!("{error}");
            } else {
                say(context, &name, &error);
            }
            count_failure(context, &name);
            error.backoff()
        }
    }
}
