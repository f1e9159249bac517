//! Deletes children that a parent owns and no longer wants. Called only after every apply of the reconcile has
//! succeeded.

use std::collections::HashSet;
use std::pin::pin;
use std::sync::Arc;

use futures::{StreamExt, stream};
use kube::api::PropagationPolicy;
use kube::core::DynamicObject;

use super::brakes::unless_silent;
use super::error::{ReconcileError, Result};
use super::outcome::Changes;
use super::run::Run;
use operator_host_cluster::api_error::ApiError;
use operator_host_config::ControllerConfig;
use operator_host_contract::{EventType, Kind};
use operator_host_core::child_rules::Removal;
use operator_host_core::object::{ChildRef, Identity, is_terminating, is_unreadable};
use operator_host_desired::order::Deletion;
use operator_host_desired::ownership::{owns, removal};
use operator_host_desired::plan::Plan;
use operator_host_desired::provenance::SecretProof;
use operator_host_desired::readiness::why_failed;

/// Maximum number of concurrent deletions per parent.
const CONCURRENCY: usize = 4;

/// Deletes unwanted children of the kinds that may go, except those before others that are not deleted yet. Returns whether it has
/// deleted one. When the API server is overloaded or silent, it stops early and leaves the others to the next reconcile.
pub(super) async fn prune(
    run: &Run<'_>,
    parent: &DynamicObject,
    observed: &[Arc<DynamicObject>],
    plan: &Plan,
    may_go: impl Fn(&Kind) -> bool,
    changes: &mut Changes,
) -> Result<bool> {
    let (before, mut failed) = (changes.deleted.len(), Vec::new());
    let named = plan.named();
    let proof = run.context.proof_key.proof();
    let is_unwanted = |child: &DynamicObject| {
        unwanted(&run.context.config, proof, parent, child, &named).is_some_and(|key| may_go(&key.kind))
    };
    // A child waits for those after it, also for those that are being deleted already.
    let is_going =
        |child: &DynamicObject| is_terminating(child) && owns(run.context.config.scope(), parent, child);
    let going = observed.iter().map(|child| &**child);
    let going: Vec<_> = going
        .filter(|child| is_going(child) || is_unwanted(child))
        .collect();
    let requests: Vec<_> = Deletion::of(&going)
        .deletable()
        .into_iter()
        .map(|(child, is_waited_for)| async move {
            let key = ChildRef::of(child);
            let propagation = propagation(&key.kind, is_waited_for);
            let outcome = delete(run, &key, child, propagation).await;
            if let (Ok(true), Some(why)) = (&outcome, why_failed(child)) {
                let note = format!("deletes {key}, which has failed: {why}");
                run.context
                    .publish(parent, EventType::Warning, "PodFailed", &note);
            }
            (key, outcome)
        })
        .collect();
    let mut results = pin!(stream::iter(requests).buffered(CONCURRENCY));
    while let Some((key, outcome)) = results.next().await {
        match outcome {
            Ok(true) => changes.deleted.push(key),
            Ok(false) => {}
            Err(error) => {
                // The next one would fail, too.
                let stops = error.stops_others();
                failed.push(error);
                if stops {
                    // Requests in progress are abandoned; the next reconcile shows whether they were executed.
                    break;
                }
            }
        }
    }
    match failed.is_empty() {
        true => Ok(changes.deleted.len() > before),
        false => Err(ReconcileError::Api(failed)),
    }
}

/// Returns when the dependents of a child are deleted. Something may wait until a workload's pods are gone, too. All
/// others are deleted first: a custom resource, for example, needs its dependents until its cleanup is done.
fn propagation(kind: &Kind, is_waited_for: bool) -> PropagationPolicy {
    let is_workload = kind.group() == "apps" || (kind.group() == "batch" && kind.kind == "Job");
    match is_waited_for && is_workload {
        true => PropagationPolicy::Foreground,
        false => PropagationPolicy::Background,
    }
}

/// Deletes one child, unless it has changed, and returns whether it did.
pub(super) async fn delete(
    run: &Run<'_>,
    key: &ChildRef,
    child: &DynamicObject,
    propagation: PropagationPolicy,
) -> Result<bool, ApiError> {
    // An object in the cache was listed, so its kind is served and it has a UID.
    let (Some(objects), Some(uid)) = (
        run.context.cluster.requests_for(&key.kind),
        child.metadata.uid.as_deref(),
    ) else {
        return Ok(false);
    };
    let version = child.metadata.resource_version.as_deref();
    let request = objects.delete(&key.name, uid, version, propagation);
    match unless_silent(run, key, request).await {
        Ok(Some(terminating)) => run.context.record_child(run.name, key, terminating),
        Ok(None) => run.context.caches.forget_child(key, uid),
        // It has changed, and may no longer be the parent's, or another object has this name now: the watch delivers
        // the current one.
        Err(error) if error.is_conflict() => return Ok(false),
        Err(error) => return Err(error),
    }
    run.context.note_removal(run.name, key, child);
    Ok(true)
}

/// Returns the key of a child to delete; `None` for one that stays.
pub fn unwanted(
    config: &ControllerConfig,
    proof: SecretProof<'_>,
    parent: &DynamicObject,
    child: &DynamicObject,
    named: &HashSet<Identity>,
) -> Option<ChildRef> {
    let (key, removal) = removable(config, proof, parent, child)?;
    // What the plugin does not name may be what it could not read.
    let may_go = removal == Removal::Delete && !is_unreadable(child);
    (may_go && !named.contains(&key.identity())).then_some(key)
}

/// Returns how to remove an object that its parent no longer wants; `None` when it is not the parent's or is
/// already being deleted.
pub fn removable(
    config: &ControllerConfig,
    proof: SecretProof<'_>,
    parent: &DynamicObject,
    child: &DynamicObject,
) -> Option<(ChildRef, Removal)> {
    let removal = removal(config.scope(), proof.holds(&config.parent, parent, child), child)?;
    let is_own = match removal {
        Removal::Delete => owns(config.scope(), parent, child),
        // A retained object has no owner reference.
        Removal::Retain => true,
    };
    (is_own && !is_terminating(child)).then(|| (ChildRef::of(child), removal))
}
