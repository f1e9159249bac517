//! Deletes what a parent owns and no longer wants. Called only after every apply of the pass has succeeded.

use std::pin::pin;
use std::sync::Arc;

use futures::{StreamExt, stream};
use kube::core::DynamicObject;

use super::context::Context;
use crate::cluster::resource_client::{ApiError, Objects};
use crate::config::{ControllerConfig, Removal};
use crate::desired::plan::{Named, Plan, owns, removal};
use crate::desired::proof::Proof;
use crate::object::{ChildKey, ObjectName, is_terminating};

/// How many children of one parent are deleted at the same time.
const CONCURRENCY: usize = 4;

/// Deletes, and says what it deleted. It stops when the API server has no time or is silent.
///
/// # Errors
/// Every deletion that failed; the others were made.
pub async fn prune(
    context: &Context,
    parent: &DynamicObject,
    observed: &[Arc<DynamicObject>],
    plan: &Plan,
) -> (Vec<ChildKey>, Vec<ApiError>) {
    let parent_name = &ObjectName::of(parent);
    let (mut deleted, mut failed) = (Vec::new(), Vec::new());
    // Now, since the applies of this round may have made some of them.
    let named = plan.named(&|key| context.existing(key));
    let proof = context.provenance.proof();
    let requests: Vec<_> = observed
        .iter()
        .filter_map(|child| Some((unwanted(&context.config, proof, parent, child, &named)?, child)))
        .map(|(key, child)| async move {
            let outcome = delete(context, parent_name, &key, child).await;
            (key, outcome)
        })
        .collect();
    let mut results = pin!(stream::iter(requests).buffered(CONCURRENCY));
    while let Some((key, outcome)) = results.next().await {
        match outcome {
            Ok(true) => deleted.push(key),
            Ok(false) => {}
            Err(error) => {
                // The next one would fare no better.
                let stops = error.is_overload();
                failed.push(error);
                if stops {
                    // What is under way is given up: whether it was done shows in the next pass.
                    break;
                }
            }
        }
    }
    (deleted, failed)
}

/// Deletes one child, and only that very object; whether it did.
async fn delete(
    context: &Context,
    parent: &ObjectName,
    key: &ChildKey,
    child: &DynamicObject,
) -> Result<bool, ApiError> {
    // What is in the cache was listed, so its kind is served, and the server gave it a UID.
    let (Some(resource), Some(uid)) = (context.resources.get(&key.kind), child.metadata.uid.as_deref())
    else {
        return Ok(false);
    };
    match Objects::new(&context.children_writer, resource)
        .delete(&key.name, uid, None)
        .await
    {
        Ok(Some(terminating)) => context.record_child(parent, key, terminating),
        Ok(None) => context.forget_child(key, uid),
        // Another object stands under this name now, and it is not known whose.
        Err(error) if error.is_conflict() => return Ok(false),
        Err(error) => return Err(error),
    }
    Ok(true)
}

/// The key of a child that is to be deleted; `None` of one that stays.
#[must_use]
pub fn unwanted(
    config: &ControllerConfig,
    proof: Proof<'_>,
    parent: &DynamicObject,
    child: &DynamicObject,
    named: &Named,
) -> Option<ChildKey> {
    let (key, removal) = removable(config, proof, parent, child)?;
    (removal == Removal::Delete && !named.contains(child)).then_some(key)
}

/// What happens to an object when its parent no longer wants it; `None` when nothing does: it is not the parent's, or
/// is being deleted.
pub(crate) fn removable(
    config: &ControllerConfig,
    proof: Proof<'_>,
    parent: &DynamicObject,
    child: &DynamicObject,
) -> Option<(ChildKey, Removal)> {
    let removal = removal(config, proof.holds(&config.parent, parent, child), child)?;
    let is_own = match removal {
        Removal::Delete => owns(config, parent, child),
        // What is retained has no owner reference.
        Removal::Retain => true,
    };
    (is_own && !is_terminating(child)).then(|| (ChildKey::of(child), removal))
}
