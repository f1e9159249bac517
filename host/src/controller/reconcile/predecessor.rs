//! Children of an earlier parent of the same name that stand in the way of this one's.
//!
//! The garbage collector deletes them as a rule, but it may be away, or take a dead owner for alive. What it knows can be
//! known here: an owner reference to this kind and name with another UID than the one that the API server serves is to
//! an owner that is gone.

use kube::core::DynamicObject;
use serde_json::json;
use tracing::{debug, info};

use super::answer::Changes;
use super::failure::{PassError, is_waiting_for_deletion};
use crate::config::Removal;
use crate::controller::api::{ApiError, Objects};
use crate::controller::children::{Refusal, is_ours, removal};
use crate::controller::context::Context;
use crate::controller::object::{ChildKey, ObjectName, controller_of, is_terminating};

/// Deletes what stands in the way, and frees what is retained from its dead owner. Whether the plan may come out
/// otherwise now.
///
/// # Errors
/// What the API server refuses.
pub(super) async fn clear(
    context: &Context,
    parent: &DynamicObject,
    error: &PassError,
    changes: &mut Changes,
) -> Result<bool, PassError> {
    let PassError::Refused(refusals) = error else {
        return Ok(false);
    };
    if !is_waiting_for_deletion(error) {
        return Ok(false);
    }
    let in_the_way: Vec<_> = refusals
        .iter()
        .filter_map(|refusal| match refusal {
            Refusal::OfPredecessor { child, .. } => Some((child, context.existing(child)?)),
            _ => None,
        })
        .filter(|(_, child)| !is_terminating(child) && is_ours(&context.config, child))
        .collect();
    if in_the_way.is_empty() {
        return Ok(false);
    }
    // The cache may be behind, and the owner be the one that is there now.
    let served = Objects::new(&context.writer, &context.resource)
        .read(&ObjectName::of(parent))
        .await?;
    let served = served.and_then(|served| served.metadata.uid);
    if served.is_none() || served != parent.metadata.uid {
        debug!("the parent is another one by now: its children are left alone");
        return Ok(false);
    }
    let (mut cleared, mut failed) = (false, Vec::new());
    for (key, child) in in_the_way {
        match clear_one(context, parent, key, &child, changes).await {
            Ok(done) => cleared |= done,
            // It changed meanwhile: the next pass looks at it again.
            Err(error) if error.is_conflict() || error.is_not_found() => {}
            Err(error) => failed.push(error),
        }
    }
    if failed.is_empty() {
        Ok(cleared)
    } else {
        Err(PassError::Api(failed))
    }
}

async fn clear_one(
    context: &Context,
    parent: &DynamicObject,
    key: &ChildKey,
    child: &DynamicObject,
    changes: &mut Changes,
) -> Result<bool, ApiError> {
    let config = &context.config;
    let proof = context.provenance.proof();
    let generated = proof.holds(&config.parent, parent, child);
    let removal = removal(config, generated, child).unwrap_or(Removal::Retain);
    let (Some(resource), Some(uid)) = (context.resources.get(&key.kind), child.metadata.uid.as_deref())
    else {
        return Ok(false);
    };
    let objects = Objects::new(&context.children_writer, resource);
    let version = child.metadata.resource_version.as_deref();
    let name = ObjectName::of(parent);
    if removal == Removal::Retain {
        // With its reference it would go with its dead owner.
        let dead = controller_of(child).map(|owner| owner.uid.clone());
        let owners = child.metadata.owner_references.iter().flatten();
        let owners: Vec<_> = owners.filter(|owner| Some(&owner.uid) != dead.as_ref()).collect();
        let body = json!({
            "metadata": { "uid": uid, "resourceVersion": version, "ownerReferences": owners },
        });
        let answer = objects.merge(&key.name, &body, &config.field_manager()).await?;
        info!("{key} is retained: it no longer refers to an earlier parent, which is gone");
        context.record_child(&name, key, answer);
        changes.updated.push(key.clone());
        return Ok(true);
    }
    let left = objects.delete(&key.name, uid, version).await?;
    info!("deleted {key}: it belonged to an earlier parent of this name, which is gone");
    changes.deleted.push(key.clone());
    match left {
        Some(terminating) => {
            context.record_child(&name, key, terminating);
            Ok(false)
        }
        None => {
            context.forget_child(key, uid);
            Ok(true)
        }
    }
}
