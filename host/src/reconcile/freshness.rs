//! A parent's cache can be behind its children's: a replica that has just begun to lead may see what its predecessor
//! made of a spec that it has not seen itself, and a replica that was stopped may see children go before it sees that
//! their parent went. What such a child shows is not undone before the API server was asked.

use std::sync::Arc;

use kube::core::DynamicObject;
use tracing::info;

use super::context::Context;
use crate::cluster::resource_client::{ApiError, Objects};
use crate::object::{ChildKey, ObjectName, is_terminating, made_at};

/// The parent as it is known, or as the API server has it when one of its children was made of a newer generation or
/// something else puts it in doubt. `None` when it is gone or another one has its name.
///
/// # Errors
/// With the parent as it is known, when the API server does not say.
pub(super) async fn up_to_date(
    context: &Context,
    parent: Arc<DynamicObject>,
) -> Result<Option<Arc<DynamicObject>>, (Arc<DynamicObject>, ApiError)> {
    let children = context.owned(&parent);
    let newest = children.iter().filter_map(|child| made_at(&parent, child)).max();
    let name = ObjectName::of(&parent);
    let claim = parent.metadata.uid.clone().zip(newest);
    let is_behind = newest > parent.metadata.generation
        && context.memory_of(&name, |memory| memory.refuted_generation != claim);
    if is_behind {
        info!(
            known = parent.metadata.generation,
            newest, "a child was made of a newer generation than is known of its parent: reading the parent"
        );
    }
    // Whatever comes while it is read puts it in doubt again.
    let in_doubt = context.memory_of(&name, |memory| std::mem::take(&mut memory.parent_in_doubt));
    if !is_behind && !in_doubt {
        return Ok(Some(parent));
    }
    let fresh = read(context, &parent).await;
    if !matches!(fresh, Ok(Some(_))) {
        // As long as the cache shows it, no reconcile may believe that.
        context.memory_of(&name, |memory| memory.parent_in_doubt = true);
    }
    let fresh = match fresh {
        Ok(Some(fresh)) => fresh,
        Ok(None) => return Ok(None),
        Err(error) => return Err((parent, error)),
    };
    if newest > fresh.metadata.generation {
        // Somebody wrote that annotation, or the cluster was restored from a backup: it is put right when the child is
        // applied, and of one that is not applied it is not asked again.
        context.memory_of(&name, |memory| memory.refuted_generation = claim);
    }
    Ok(Some(context.record_parent(fresh).unwrap_or(parent)))
}

/// Whether a child that is missing may be created: its namespace stays, and its parent is still the one that the
/// reconcile began with. Both the parent's deletion and what puts the parent in doubt may come while the plugin is called;
/// in doubt, the API server is asked.
///
/// # Errors
/// When the namespace is being deleted, or the API server does not say whether the parent is there.
pub(super) async fn may_create(
    context: &Context,
    parent: &DynamicObject,
    child: &ChildKey,
) -> Result<bool, ApiError> {
    context.check_namespace(child)?;
    let name = ObjectName::of(parent);
    let is_the_same = |other: &DynamicObject| {
        other.metadata.uid == parent.metadata.uid && is_terminating(other) == is_terminating(parent)
    };
    if !context.parent(&name).is_some_and(|known| is_the_same(&known)) {
        return Ok(false);
    }
    if !context.memory_of(&name, |memory| memory.parent_in_doubt) {
        return Ok(true);
    }
    let fresh = read(context, parent).await?;
    let is_the_same = fresh.is_some_and(|fresh| is_the_same(&fresh));
    if is_the_same {
        context.memory_of(&name, |memory| memory.parent_in_doubt = false);
    }
    Ok(is_the_same)
}

/// The parent as the API server has it. `None` when it is gone or another one has its name: the watch brings that one.
async fn read(context: &Context, parent: &DynamicObject) -> Result<Option<DynamicObject>, ApiError> {
    let objects = Objects::new(&context.writer, &context.resource);
    let fresh = objects.read(&ObjectName::of(parent)).await?;
    Ok(fresh.filter(|fresh| fresh.metadata.uid == parent.metadata.uid))
}
