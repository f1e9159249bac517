//! Applies the children that differ from their known state, with server-side apply.

use std::sync::Arc;

use futures::StreamExt;
use futures::stream;
use kube::core::DynamicObject;
use tokio::time::Instant;
use tracing::debug;

use super::contest;
use super::context::{Blocking, Context};
use super::difference::{content, difference, is_as_applied};
use super::freshness::may_create;
use crate::cluster::api_error::ApiError;
use crate::cluster::resource_client::ResourceClient;
use crate::desired::left_fields;
use crate::desired::order::{Order, Waiting};
use crate::desired::ownership::{owns, retains};
use crate::desired::plan::Desired;
use crate::object::{
    APPLIED_ANNOTATION, CONTROLLER_LABEL, ChildRef, NamespacedName, annotation, controller_of,
    is_terminating, label, made_at, too_deep,
};
use crate::plugin::contract::Kind;

/// Maximum number of concurrent applies per parent.
const CONCURRENCY: usize = 4;

/// The result of the applies.
#[derive(Debug, Default)]
pub struct Applied {
    /// Children that were not known to exist.
    pub created: Vec<ChildRef>,
    /// Children that were changed.
    pub updated: Vec<ChildRef>,
    /// What children wait for that were not applied.
    pub waiting: Vec<Waiting>,
    /// Errors for children that the API server rejected.
    pub failed: Vec<ApiError>,
}

impl Applied {
    /// Reports whether the cluster changed since the plugin saw it.
    #[must_use]
    pub fn changed(&self) -> bool {
        !self.created.is_empty() || !self.updated.is_empty()
    }
}

/// Applies the children that differ. One failure does not prevent the other applies.
pub async fn apply(context: &Context, parent: &DynamicObject, desired: &[Desired]) -> Applied {
    let mut applied = Applied::default();
    let mut blocked = Vec::new();
    let order = &Order::of(desired);
    // One kind after the other, since a pod may need the claim before it.
    for group in desired.chunk_by(|a, b| a.depth == b.depth && a.key.kind == b.key.kind) {
        let requests: Vec<_> = group
            .iter()
            .map(|desired| async move {
                let live = context.existing(&desired.key);
                let outcome = apply_one(context, parent, desired, live.clone(), order).await;
                outcome.map_err(|error| (error, live))
            })
            .collect();
        let mut results = std::pin::pin!(stream::iter(requests).buffered(CONCURRENCY));
        for desired in group {
            match results.next().await {
                Some(Ok(ApplyOutcome::Created)) => applied.created.push(desired.key.clone()),
                Some(Ok(ApplyOutcome::Updated)) => applied.updated.push(desired.key.clone()),
                Some(Ok(ApplyOutcome::Waiting(why))) => applied.waiting.push(why),
                Some(Ok(ApplyOutcome::Unchanged)) => {
                    // Without an owner, no event of it is one of a child.
                    let going = context.existing(&desired.key).filter(|live| is_terminating(live));
                    if let Some(live) = going.filter(|live| !owns(&context.config, parent, live)) {
                        blocked.push(Blocking::new(&desired.key, Some(&live)));
                    }
                }
                None => {}
                Some(Err((error, live))) => {
                    // Another object may have the name: the API server calls that a conflict, or an invalid UID.
                    if error.is_conflict() || error.is_lost_race() {
                        blocked.push(Blocking::new(&desired.key, live.as_deref()));
                    }
                    // The next child would fail, too. A terminating namespace, however, stops only its own parents;
                    // a cluster-scoped parent may have children elsewhere.
                    let stops = error.stops_others()
                        || (error.is_namespace_terminating() && parent.metadata.namespace.is_some());
                    applied.failed.push(error);
                    if stops {
                        // Requests in progress are abandoned; the next reconcile shows whether they were executed.
                        return applied;
                    }
                }
            }
        }
    }
    if !blocked.is_empty() {
        // The parent is reconciled again when such an object is deleted, or gets another owner.
        context.wait_for(&NamespacedName::of(parent), &blocked);
    }
    contest::end(context, parent, desired);
    applied
}

enum ApplyOutcome {
    Created,
    Updated,
    Unchanged,
    /// It comes after a child that is not ready.
    Waiting(Waiting),
}

async fn apply_one(
    context: &Context,
    parent_object: &DynamicObject,
    desired: &Desired,
    live: Option<Arc<DynamicObject>>,
    order: &Order<'_>,
) -> Result<ApplyOutcome, ApiError> {
    let parent = &NamespacedName::of(parent_object);
    if live
        .as_deref()
        .is_some_and(|live| !needs_apply(context, parent_object, desired, live))
    {
        let (key, now) = (&desired.key, Instant::now());
        let is_going = live.as_deref().is_some_and(is_terminating);
        context.memory_of(parent, |memory| match is_going {
            true => memory.contests.forget(key),
            false => memory.contests.is_as_desired(key, now),
        });
        return Ok(ApplyOutcome::Unchanged);
    }
    // What the plugin wanted before is restored at once, and a cleanup can change what exists.
    let may_wait = live.as_deref().is_none_or(|live| {
        !is_terminating(parent_object) && annotation(live, APPLIED_ANNOTATION) != Some(&desired.fingerprint)
    });
    let has_status = |kind: &Kind| context.resources.get(kind).is_some_and(|kind| kind.has_status);
    if may_wait && let Some(waiting) = order.waits_for(desired, |key| context.existing(key), has_status) {
        // It is not applied, so it cannot be changed back.
        context.memory_of(parent, |memory| memory.contests.forget(&desired.key));
        return Ok(ApplyOutcome::Waiting(waiting));
    }
    // `desired::plan` has refused kinds that the cluster does not serve.
    let Some(resource) = context.resources.get(&desired.key.kind) else {
        return Ok(ApplyOutcome::Unchanged);
    };
    if live.is_none() && !may_create(context, parent_object, &desired.key).await? {
        return Ok(ApplyOutcome::Unchanged);
    }
    // Take over fields only in objects that are known to be ours. In an object that is adopted, a field of another manager
    // is a conflict.
    let force = live.as_deref().is_some_and(|live| {
        owns(&context.config, parent_object, live)
            || retains(&context.config, context.provenance.proof(), parent_object, live)
    });
    // Without its label it is a child that cannot be forced, and that others may contest all the same.
    let is_child = force
        || live.as_deref().is_some_and(|live| {
            controller_of(live).is_some_and(|owner| Some(&owner.uid) == parent_object.metadata.uid.as_ref())
        });
    if let Some(live) = live.as_deref().filter(|_| is_child)
        && contest::is_on_hold(context, parent_object, desired, live).await
    {
        return Ok(ApplyOutcome::Unchanged);
    }
    if let Some(live) = &live {
        let path = difference(desired, live).map_or_else(|| "its marks".to_owned(), |path| path.to_string());
        debug!("applying {}, because it differs in {path}", desired.key);
    }
    let manager = context.config.field_manager();
    let mut body = match &live {
        None => desired.new_body(),
        Some(live) => {
            let mut body = desired.body.clone();
            // The decision to apply it is about this object only, not about a new one of the same name.
            body["metadata"]["uid"] = live.metadata.uid.clone().into();
            body
        }
    };
    if live.is_some() && !desired.left.is_empty() {
        // The caches contain no managed fields.
        let fresh = ResourceClient::new(&context.writer, resource)
            .read(&desired.key.name)
            .await?;
        let Some(fresh) = fresh else {
            // The watch reports the deletion.
            return Ok(ApplyOutcome::Unchanged);
        };
        if too_deep(&fresh).is_some() {
            // Nobody knows which of these fields it has. The watch reports it.
            return Ok(ApplyOutcome::Unchanged);
        }
        left_fields::add_owned(&desired.left, &fresh, &manager, &mut body);
        // Refused if another manager changes a left field meanwhile.
        body["metadata"]["resourceVersion"] = fresh.metadata.resource_version.into();
    }
    let objects = ResourceClient::new(&context.children_writer, resource);
    let answer = match &live {
        None => objects.apply_new(&desired.key.name, body, &manager).await,
        Some(live) => objects
            .apply(&desired.key.name, &body, &manager, force)
            .await
            .map_err(|error| advise_about_label(context, live, error)),
    };
    let answer = answer.inspect_err(|error| {
        context.record_refused_namespace(error);
        if error.is_lost_race() {
            context.doubt(parent);
        }
    })?;
    let was = live
        .as_ref()
        .and_then(|live| live.metadata.resource_version.clone());
    let outcome = match &live {
        None => ApplyOutcome::Created,
        Some(_) if was == answer.metadata.resource_version => ApplyOutcome::Unchanged,
        Some(_) => ApplyOutcome::Updated,
    };
    remember(context, parent, desired, &answer);
    if let Some(live) = live.as_deref().filter(|_| is_child) {
        contest::applied(context, parent_object, desired, live, &answer);
    }
    // A response without a change is not our write: the plugin may not have seen that version.
    if !matches!(outcome, ApplyOutcome::Unchanged) {
        context.record_child(parent, &desired.key, answer);
    }
    Ok(outcome)
}

/// Explains why the host does not take over the fields of a child: its label says that another controller made it.
fn advise_about_label(context: &Context, live: &DynamicObject, error: ApiError) -> ApiError {
    let own = &context.config.name;
    match label(live, CONTROLLER_LABEL).filter(|named| !context.config.is_or_was(named)) {
        Some(named) => {
            let advice = format!(
                "its label names the controller {named:?}: set it back to {own:?}, or delete the object"
            );
            error.advise_about(CONTROLLER_LABEL, &advice)
        }
        None => error,
    }
}

/// Reports whether an existing child must be applied.
fn needs_apply(context: &Context, parent: &DynamicObject, desired: &Desired, live: &DynamicObject) -> bool {
    if is_terminating(live) {
        // It is recreated after its deletion, which the watch reports.
        return false;
    }
    if annotation(live, APPLIED_ANNOTATION) != Some(&desired.fingerprint) {
        return true;
    }
    // No generation is newer than the parent's: `freshness` has asked the API server.
    if made_at(parent, live) > parent.metadata.generation {
        return true;
    }
    if is_as_applied(desired, live) {
        return false;
    }
    // The API server may permanently normalize a value, and the host does not hold the values of a generated Secret. Then
    // compare with the result of the last apply.
    let now = (desired.fingerprint.clone(), content(live));
    context.memory_of(&NamespacedName::of(parent), |memory| {
        memory.normalized.get(&desired.key) != Some(&now)
    })
}

fn remember(context: &Context, parent: &NamespacedName, desired: &Desired, answer: &DynamicObject) {
    context.memory_of(parent, |memory| {
        if is_as_applied(desired, answer) {
            memory.normalized.remove(&desired.key);
        } else {
            let result = (desired.fingerprint.clone(), content(answer));
            memory.normalized.insert(desired.key.clone(), result);
        }
    });
}
