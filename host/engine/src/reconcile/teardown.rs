//! Deletes the children of a parent that is being deleted in the reverse of their order, before the finalizer is removed.
//! The garbage collector deletes all others, in no order.

use std::sync::Arc;

use kube::ResourceExt;
use kube::core::DynamicObject;
use serde_json::json;

use super::context::Context;
use super::error::ReconcileError;
use super::finalizer::shown_finalizer;
use super::outcome::Changes;
use super::prune::prune;
use operator_host_cluster::resource_client::ResourceClient;
use operator_host_core::object::{
    CLEANED_UP_ANNOTATION, ChildRef, NamespacedName, annotation, is_terminating,
};
use operator_host_desired::conditions::Reason;
use operator_host_desired::order::Deletion;
use operator_host_desired::ownership::owns;
use operator_host_desired::plan::Plan;
use operator_host_desired::readiness::unready;
use operator_host_runtime::Plugin;

/// The finalizer with which the API server asks the garbage collector to leave the children alone.
const ORPHAN: &str = "orphan";

/// Reports whether the deletion of the children has begun. Then the plugin's cleanup is done, and is not called again: it
/// would miss children that are deleted already.
pub(super) fn has_begun(context: &Context, parent: &DynamicObject) -> bool {
    let mark = annotation(parent, CLEANED_UP_ANNOTATION).and_then(|mark| mark.rsplit_once('/'));
    mark.is_some_and(|(finalizer, uid)| {
        context.config.owns_finalizer(finalizer) && parent.metadata.uid.as_deref() == Some(uid)
    })
}

/// Returns the value of the annotation. A copy of the parent must not look cleaned up, and neither must it for another
/// controller.
fn mark(finalizer: &str, parent: &DynamicObject) -> String {
    format!(
        "{finalizer}/{}",
        parent.metadata.uid.as_deref().unwrap_or_default()
    )
}

/// The state of the deletion.
pub(super) enum Teardown {
    /// No child that is left comes after another one. The parent may have been changed.
    Done(Arc<DynamicObject>),
    /// It waits for children to be deleted.
    Waiting(Reason),
    /// The parent was deleted meanwhile.
    Gone,
}

/// Deletes the children that come last.
pub(super) async fn delete_in_order(
    context: &Context,
    plugin: &Plugin,
    parent: &Arc<DynamicObject>,
    changes: &mut Changes,
) -> Result<Teardown, ReconcileError> {
    let mut parent = Arc::clone(parent);
    let children = owned(context, plugin, &parent);
    let is_orphaned = parent.finalizers().iter().any(|finalizer| finalizer == ORPHAN);
    if is_orphaned || !Deletion::of(&refer(&children)).is_ordered() {
        return Ok(Teardown::Done(parent));
    }
    if !has_begun(context, &parent) {
        match begin(context, &parent).await? {
            Some(begun) => parent = begun,
            None => return Ok(Teardown::Gone),
        }
    }
    let (deleted, failed) = prune(context, &parent, &children, &Plan::default(), |_| true).await;
    changes.deleted.extend(deleted);
    if !failed.is_empty() {
        return Err(ReconcileError::Api(failed));
    }
    let left = owned(context, plugin, &parent);
    if !Deletion::of(&refer(&left)).is_ordered() {
        return Ok(Teardown::Done(parent));
    }
    let going = left.iter().find(|child| is_terminating(child));
    let going = going.map(|child| {
        format!(
            "; {}: {}",
            ChildRef::of(child),
            unready(child).unwrap_or_default()
        )
    });
    let message = format!(
        "its children are deleted in the reverse of their order, and {} of them are left, so the finalizer {} stays{}",
        left.len(),
        shown_finalizer(context, &parent),
        going.unwrap_or_default()
    );
    Ok(Teardown::Waiting(Reason::new("DeletingChildren", message)))
}

/// Returns the children that go with their parent, including those that are being deleted.
fn owned(context: &Context, plugin: &Plugin, parent: &DynamicObject) -> Vec<Arc<DynamicObject>> {
    let mut children = context.observed(parent, plugin);
    children.retain(|child| owns(&context.config, parent, child));
    children
}

fn refer(objects: &[Arc<DynamicObject>]) -> Vec<&DynamicObject> {
    objects.iter().map(|object| &**object).collect()
}

/// Records on the parent that its cleanup is done; `None` when the parent was deleted.
async fn begin(
    context: &Context,
    parent: &DynamicObject,
) -> Result<Option<Arc<DynamicObject>>, ReconcileError> {
    let body = json!({ "metadata": {
        "resourceVersion": parent.resource_version(), "annotations": { CLEANED_UP_ANNOTATION: mark(&shown_finalizer(context, parent), parent) },
    } });
    let name = NamespacedName::of(parent);
    let objects = ResourceClient::new(&context.writer, &context.resource);
    match objects.merge(&name, &body, &context.config.field_manager()).await {
        Ok(answer) => Ok(context.record_parent(parent, None, answer)),
        Err(error) if error.is_not_found() => Ok(None),
        Err(error) => Err(error.into()),
    }
}
