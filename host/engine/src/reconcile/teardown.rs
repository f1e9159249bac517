//! Deletes the children of a parent that is being deleted in the reverse of their order, before the finalizer is removed.
//! The garbage collector deletes all others, in no order.

use std::sync::Arc;

use kube::ResourceExt;
use kube::core::DynamicObject;

use super::error::Result;
use super::finalizer::{is_cleaned_up, record_cleanup};
use super::outcome::Changes;
use super::prune::prune;
use super::run::Run;
use operator_host_core::object::{ChildRef, is_terminating, is_unreadable};
use operator_host_desired::conditions::Reason;
use operator_host_desired::order::Deletion;
use operator_host_desired::ownership::owns;
use operator_host_desired::plan::Plan;
use operator_host_desired::readiness::unready;

/// The finalizer with which the API server asks the garbage collector to leave the children alone.
const ORPHAN: &str = "orphan";

/// Deletes the children that come last. Returns what the parent waits for; `None` when there is no order, or no child is left.
pub(super) async fn delete_in_order(
    run: &Run<'_>,
    parent: &mut Arc<DynamicObject>,
    changes: &mut Changes,
) -> Result<Option<Reason>> {
    let children = owned(run, parent);
    let is_orphaned = parent.finalizers().iter().any(|finalizer| finalizer == ORPHAN);
    // The last child names none that is left: the mark on the parent tells that it is the last one of an order.
    let is_begun = is_cleaned_up(&run.context.config, parent);
    let references: Vec<_> = children.iter().map(|child| &**child).collect();
    if is_orphaned || !(is_begun || Deletion::of(&references).is_ordered()) {
        return Ok(None);
    }
    if !is_begun {
        match record_cleanup(run, parent).await? {
            Some(recorded) => *parent = recorded,
            None => return Ok(None),
        }
    }
    prune(run, parent, &children, &Plan::default(), |_| true, changes).await?;
    let left = owned(run, parent);
    if left.is_empty() {
        return Ok(None);
    }
    let going = left.iter().find(|child| is_terminating(child));
    let going = going.map(|it| format!("; {}: {}", ChildRef::of(it), unready(it).unwrap_or_default()));
    let message = format!(
        "its children are deleted in the reverse of their order, and {} of them are left, so the finalizer {} stays{}",
        left.len(),
        run.context.config.finalizer(),
        going.unwrap_or_default()
    );
    Ok(Some(Reason::new("DeletingChildren", message)))
}

/// Returns the children that go with their parent, including those that are being deleted. What `prune` leaves alone, since it
/// cannot be read, goes with the garbage collector.
fn owned(run: &Run<'_>, parent: &Arc<DynamicObject>) -> Vec<Arc<DynamicObject>> {
    let mut children = run.context.owned(parent);
    children.retain(|child| {
        owns(run.context.config.scope(), parent, child) && (is_terminating(child) || !is_unreadable(child))
    });
    children
}
