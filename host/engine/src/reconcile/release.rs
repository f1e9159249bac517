//! Removes the owner reference of children whose kind has become retained: the garbage collector would otherwise
//! delete them with their parent.

use kube::core::DynamicObject;
use serde_json::json;

use super::error::{ReconcileError, Result};
use super::run::{Run, Snapshot};
use operator_host_cluster::api_error::ApiError;
use operator_host_core::child_rules::Removal;
use operator_host_core::digest::hash_of;
use operator_host_core::object::{ChildRef, GENERATED_LABEL, is_terminating, label};
use operator_host_desired::ownership::{owns, removal};

/// Removes the owner reference of every child that is retained now and has one, whether the plugin names it or not, and
/// adds those children to `released`. A reconcile begins with it, so that it happens even when the plugin fails, unless nothing
/// that decides it has changed. One child that cannot be released does not keep the others.
pub(super) async fn release(
    run: &Run<'_>,
    Snapshot { parent, children }: &Snapshot,
    released: &mut Vec<ChildRef>,
) -> Result<()> {
    let writer = Some(&run.context.cluster.writer);
    let unknown = run.context.load_proof_key(parent, writer).await.err();
    let state = Some(hash_of((&parent.metadata.uid, &parent.metadata.annotations)));
    if unknown.is_none() && run.memory(|memory| memory.released) == state {
        return Ok(());
    }
    let proof = run.context.proof_key.proof();
    let is_to_be_released = |child: &DynamicObject| {
        let generated = proof.holds(&run.context.config.parent, parent, child);
        removal(run.context.config.scope(), generated, child) == Some(Removal::Retain)
            && owns(run.context.config.scope(), parent, child)
            && !is_terminating(child)
            && !(unknown.is_some() && label(child, GENERATED_LABEL).is_some())
    };
    let mut failed = Vec::new();
    for child in children.iter().filter(|child| is_to_be_released(child)) {
        match disown(run, child, parent.metadata.uid.as_deref()).await {
            Ok(()) => released.push(ChildRef::of(child)),
            Err(error) => {
                let stops = error.stops_others();
                failed.push(error);
                if stops {
                    break;
                }
            }
        }
    }
    match (unknown, failed.is_empty()) {
        (Some(error), _) => Err(error.into()),
        (None, false) => Err(ReconcileError::Api(failed)),
        (None, true) => {
            run.memory(|memory| memory.released = state);
            Ok(())
        }
    }
}

/// Removes the reference to this owner from a child, unless the child has changed: the list of owners would be outdated.
pub(super) async fn disown(
    run: &Run<'_>,
    child: &DynamicObject,
    owner: Option<&str>,
) -> Result<(), ApiError> {
    let key = ChildRef::of(child);
    // An object in the cache was listed, so its kind is served.
    let Some(objects) = run.context.cluster.requests_for(&key.kind) else {
        return Ok(());
    };
    let owners = child.metadata.owner_references.iter().flatten();
    let others: Vec<_> = owners.filter(|one| Some(&*one.uid) != owner).collect();
    let body = json!({ "metadata": {
        "uid": child.metadata.uid, "resourceVersion": child.metadata.resource_version, "ownerReferences": others,
    } });
    let manager = run.context.config.field_manager();
    let answer = objects.merge(&key.name, &body, &manager).await?;
    run.context.record_child(run.name, &key, answer);
    Ok(())
}
