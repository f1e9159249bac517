//! Deletes what a parent owns and no longer wants. Called only after every apply of the pass has succeeded.

use std::sync::Arc;

use kube::core::DynamicObject;

use super::api::{ApiError, Objects};
use super::children::{Named, Plan, owns, removal};
use super::context::Context;
use super::object::{ChildKey, ObjectName, is_terminating};
use crate::config::{ControllerConfig, Removal};

/// Deletes, and says what it deleted.
///
/// # Errors
/// Every deletion that failed; the others were made.
pub async fn prune(
    context: &Context,
    parent: &DynamicObject,
    observed: &[Arc<DynamicObject>],
    plan: &Plan,
) -> (Vec<ChildKey>, Vec<ApiError>) {
    let parent_name = ObjectName::of(parent);
    let (mut deleted, mut failed) = (Vec::new(), Vec::new());
    // Now, since the applies of this round may have made some of them.
    let named = plan.named(&|key| context.existing(key));
    for child in observed {
        let Some(key) = unwanted(&context.config, parent, child, &named) else {
            continue;
        };
        // What is in the cache was listed, so its kind is served, and the server gave it a UID.
        let (Some(resource), Some(uid)) = (context.resources.get(&key.kind), child.metadata.uid.as_deref())
        else {
            continue;
        };
        match Objects::new(&context.children_writer, resource)
            .delete(&key.name, uid, None)
            .await
        {
            Ok(Some(terminating)) => context.record_child(&parent_name, &key, terminating),
            Ok(None) => context.forget_child(&key),
            // Another object stands under this name now, and it is not known whose.
            Err(error) if error.is_conflict() => continue,
            Err(error) => {
                failed.push(error);
                continue;
            }
        }
        deleted.push(key);
    }
    (deleted, failed)
}

/// The key of a child that is to be deleted; `None` of one that stays.
#[must_use]
pub fn unwanted(
    config: &ControllerConfig,
    parent: &DynamicObject,
    child: &DynamicObject,
    named: &Named,
) -> Option<ChildKey> {
    let (key, removal) = removable(config, parent, child)?;
    (removal == Removal::Delete && !named.contains(child)).then_some(key)
}

/// What happens to an object when its parent no longer wants it; `None` when nothing does: it is not the parent's, or
/// is being deleted.
pub(super) fn removable(
    config: &ControllerConfig,
    parent: &DynamicObject,
    child: &DynamicObject,
) -> Option<(ChildKey, Removal)> {
    let removal = removal(config, child)?;
    let is_own = match removal {
        Removal::Delete => owns(config, parent, child),
        // What is retained has no owner reference.
        Removal::Retain => true,
    };
    (is_own && !is_terminating(child)).then(|| (ChildKey::of(child), removal))
}
