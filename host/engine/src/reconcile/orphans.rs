//! Handles children of an earlier parent of the same name: those that block this parent's children, and those that
//! are left over.
//!
//! Usually the garbage collector deletes them. It may be stopped, or its cache may still contain the deleted owner. The
//! host checks for itself: if an owner reference names this kind and name with a UID other than that of the object in
//! the API server, its owner was deleted.

use std::sync::Arc;
use std::time::Duration;

use kube::api::PropagationPolicy;
use kube::core::DynamicObject;
use tokio::time::Instant;
use tracing::{debug, info, warn};

use super::error::{ReconcileError, Result, is_waiting_for_deletion};
use super::outcome::Changes;
use super::prune::delete;
use super::release::disown;
use super::run::Run;
use operator_host_cluster::api_error::ApiError;
use operator_host_core::child_rules::Removal;
use operator_host_core::object::{
    ChildRef, GENERATED_LABEL, controller_of, is_reference_to, is_terminating, label,
};
use operator_host_desired::ownership::{is_ours, reaches, removal};

/// How long the garbage collector has to delete leftovers that block nobody.
const GC_GRACE_PERIOD: Duration = Duration::from_secs(20);

/// Deletes blocking children, and removes the owner reference of retained ones. Returns whether the plan may now
/// differ.
pub(super) async fn clear(
    run: &Run<'_>,
    parent: &DynamicObject,
    error: &ReconcileError,
    changes: &mut Changes,
) -> Result<bool> {
    let refusals = match error {
        ReconcileError::Refused(refusals) if is_waiting_for_deletion(error) => refusals,
        _ => return Ok(false),
    };
    let there = refusals.iter().filter_map(|refusal| refusal.there.as_deref());
    let there = there.filter_map(|key| Some((key.clone(), run.context.caches.existing(key)?)));
    let scope = run.context.config.scope();
    let in_the_way = there.filter(|(_, child)| !is_terminating(child) && is_ours(scope, child));
    clear_all(run, Some(parent), in_the_way.collect(), changes).await
}

/// Deletes children of an earlier parent that nobody wants and the garbage collector has left, whether or not a
/// parent of that name exists now. Returns when to check again; `None` when there are none. They are in nobody's way, so one
/// that cannot be deleted is only logged.
pub(super) async fn sweep(
    run: &Run<'_>,
    parent: Option<&DynamicObject>,
    changes: &mut Changes,
) -> Option<Duration> {
    let left = left_over(run, parent);
    if left.is_empty() {
        if parent.is_some() {
            run.memory(|memory| memory.left_since = None);
        } else {
            run.context.state.forget(run.name);
        }
        return None;
    }
    let now = Instant::now();
    let since = run.memory(|memory| *memory.left_since.get_or_insert(now));
    let wait = (since + GC_GRACE_PERIOD).saturating_duration_since(now);
    if !wait.is_zero() {
        return Some(wait);
    }
    if let Err(error) = clear_all(run, parent, left, changes).await {
        let kind = &run.context.config.parent.kind;
        warn!(
            "cannot delete the children of an earlier {kind} {}: {error}",
            run.name
        );
    }
    Some(GC_GRACE_PERIOD)
}

fn left_over(run: &Run<'_>, parent: Option<&DynamicObject>) -> Vec<(ChildRef, Arc<DynamicObject>)> {
    let config = &run.context.config;
    let uid = parent.and_then(|parent| parent.metadata.uid.as_ref());
    let home = config.scope().home(&run.name.name, run.name.namespace.as_deref());
    let is_left = |child: &DynamicObject| {
        controller_of(child).is_some_and(|owner| {
            is_reference_to(&config.parent, owner) && owner.name == run.name.name && Some(&owner.uid) != uid
        }) && is_ours(config.scope(), child)
            && reaches(config.scope(), home, child.metadata.namespace.as_deref())
            && !is_terminating(child)
            // Without its parent the proof that it was generated cannot be checked, and its values exist nowhere
            // else.
            && (parent.is_some() || label(child, GENERATED_LABEL).is_none())
    };
    let referring = run.context.caches.referring_to("", run.name).into_iter();
    let left = referring.filter(|child| is_left(child));
    left.map(|child| (ChildRef::of(&child), child)).collect()
}

/// Returns whether one of them was deleted or changed.
async fn clear_all(
    run: &Run<'_>,
    parent: Option<&DynamicObject>,
    mut children: Vec<(ChildRef, Arc<DynamicObject>)>,
    changes: &mut Changes,
) -> Result<bool> {
    if children.is_empty() {
        return Ok(false);
    }
    // The cache may be behind, and the owner may be the current parent.
    let served = run.context.cluster.own_requests().read(run.name).await?;
    let served = served.and_then(|served| served.metadata.uid);
    if parent.is_some_and(|parent| served.is_none() || served != parent.metadata.uid) {
        debug!("the parent was replaced: leaving its children alone");
        return Ok(false);
    }
    children.retain(|(_, child)| controller_of(child).map(|owner| &owner.uid) != served.as_ref());
    let (mut cleared, mut failed) = (false, Vec::new());
    for (key, child) in children {
        match clear_one(run, parent, &key, &child, changes).await {
            Ok(done) => cleared |= done,
            // It changed meanwhile: the next reconcile checks it again.
            Err(error) if error.is_conflict() || error.is_not_found() => {}
            Err(error) => failed.push(error),
        }
    }
    match failed.is_empty() {
        true => Ok(cleared),
        false => Err(ReconcileError::Api(failed)),
    }
}

/// Returns whether the child is gone or has no owner any more.
async fn clear_one(
    run: &Run<'_>,
    parent: Option<&DynamicObject>,
    key: &ChildRef,
    child: &DynamicObject,
    changes: &mut Changes,
) -> Result<bool, ApiError> {
    let config = &run.context.config;
    let proof = run.context.proof_key.proof();
    let generated = parent.is_some_and(|parent| proof.holds(&config.parent, parent, child));
    if removal(config.scope(), generated, child).unwrap_or(Removal::Retain) == Removal::Retain {
        // With the reference it would be deleted with its former owner.
        let dead = controller_of(child).map(|owner| &*owner.uid);
        disown(run, child, dead).await?;
        info!("removed the owner reference of {key}, which is retained: its earlier parent was deleted");
        changes.updated.push(key.clone());
        return Ok(true);
    }
    if !delete(run, key, child, PropagationPolicy::Background).await? {
        return Ok(false);
    }
    info!("deleted {key}: it belonged to an earlier parent of this name, which was deleted");
    changes.deleted.push(key.clone());
    // It may wait for its finalizers.
    Ok(run.context.caches.existing(key).is_none())
}
