//! Detects that the cached parent may be older than its children. A new leader may see children that its predecessor
//! created from a newer spec. A replica that was suspended may see children deleted before it sees the deletion of
//! their parent. In both cases the parent is read from the API server before anything is undone.

use std::sync::Arc;

use kube::core::DynamicObject;
use tracing::info;

use super::run::{Run, Snapshot};
use operator_host_cluster::api_error::ApiError;
use operator_host_core::object::{ChildRef, is_terminating, made_at};

/// Returns the parent as known, or as read from the API server when a child was created from a newer generation or
/// something else puts the parent in doubt. `None` when it was deleted or replaced. The error has the parent as known.
pub(super) async fn up_to_date(
    run: &Run<'_>,
    known: Snapshot,
) -> Result<Option<Snapshot>, (Arc<DynamicObject>, ApiError)> {
    let parent = &known.parent;
    let made = known.children.iter().filter_map(|child| made_at(parent, child));
    let newest = made.max();
    let is_behind = newest > parent.metadata.generation;
    if is_behind {
        info!(
            known = parent.metadata.generation,
            newest,
            "a child was created from a newer generation of its parent than the cached one: reading the parent"
        );
    }
    let doubt = run.memory(|memory| memory.doubt.open());
    if !is_behind && doubt.is_none() {
        return Ok(Some(known));
    }
    let fresh = match read(run, parent).await {
        Ok(Some(fresh)) => {
            run.memory(|memory| memory.doubt.answer(doubt.unwrap_or_default()));
            fresh
        }
        missing_or_error => {
            // As long as the cache contains the parent, no reconcile may trust it.
            run.context.doubt(run.name);
            return match missing_or_error {
                Ok(_) => Ok(None),
                Err(error) => Err((known.parent, error)),
            };
        }
    };
    let fresh = run.context.record_parent(parent, None, fresh);
    Ok(Some(run.snapshot(fresh.unwrap_or(known.parent))))
}

/// Reports whether a missing child may be created: its namespace stays, and its parent is still the one that the
/// reconcile began with. The parent may be deleted or come into doubt while the plugin is called; if in doubt, the
/// API server is asked.
pub(super) async fn may_create(
    run: &Run<'_>,
    parent: &DynamicObject,
    child: &ChildRef,
) -> Result<bool, ApiError> {
    run.context.caches.check_namespace(child)?;
    let is_the_same = |other: &DynamicObject| {
        other.metadata.uid == parent.metadata.uid && is_terminating(other) == is_terminating(parent)
    };
    let known = run.context.caches.parent(run.name);
    if !known.is_some_and(|known| is_the_same(&known)) {
        return Ok(false);
    }
    let Some(doubt) = run.memory(|memory| memory.doubt.open()) else {
        return Ok(true);
    };
    let fresh = read(run, parent).await?;
    let is_the_same = fresh.is_some_and(|fresh| is_the_same(&fresh));
    if is_the_same {
        run.memory(|memory| memory.doubt.answer(doubt));
    }
    Ok(is_the_same)
}

/// Reads the parent from the API server. `None` when it was deleted or replaced: the watch delivers the new one.
pub(super) async fn read(run: &Run<'_>, parent: &DynamicObject) -> Result<Option<DynamicObject>, ApiError> {
    let objects = run.context.cluster.own_requests();
    let fresh = objects.read(run.name).await?;
    Ok(fresh.filter(|fresh| fresh.metadata.uid == parent.metadata.uid))
}
