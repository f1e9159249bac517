//! The host's finalizer on the parent.

use std::sync::Arc;

use kube::ResourceExt;
use kube::core::DynamicObject;
use serde_json::json;

use super::context::Context;
use operator_host_cluster::api_error::ApiError;
use operator_host_cluster::resource_client::ResourceClient;
use operator_host_core::object::NamespacedName;

/// Returns the host's finalizer of the parent.
pub(super) fn finalizer_of<'a>(context: &Context, parent: &'a DynamicObject) -> Option<&'a str> {
    let mut all = parent.finalizers().iter().map(String::as_str);
    all.find(|finalizer| context.config.owns_finalizer(finalizer))
}

/// Returns the finalizer of the parent that belongs to a controller of another name.
pub(super) fn finalizer_of_another(context: &Context, parent: &DynamicObject) -> Option<String> {
    let mut all = parent.finalizers().iter();
    all.find(|finalizer| context.config.is_finalizer_of_another(finalizer))
        .cloned()
}

/// Returns the host's finalizer of the parent for a message, also when somebody has removed it meanwhile.
pub(super) fn shown_finalizer(context: &Context, parent: &DynamicObject) -> String {
    finalizer_of(context, parent).map_or_else(|| context.config.finalizer(), str::to_owned)
}

/// Removes the host's finalizer from the parent.
pub(super) async fn remove_finalizer(context: &Context, parent: &DynamicObject) -> Result<(), ApiError> {
    let all = parent.finalizers().iter();
    let rest = all.filter(|finalizer| !context.config.owns_finalizer(finalizer));
    set_finalizers(context, parent, rest.cloned().collect()).await?;
    Ok(())
}

/// Replaces the parent's finalizers unless the parent has changed; `None` when it was deleted.
pub(super) async fn set_finalizers(
    context: &Context,
    parent: &DynamicObject,
    finalizers: Vec<String>,
) -> Result<Option<Arc<DynamicObject>>, ApiError> {
    let name = NamespacedName::of(parent);
    let body = json!({
        "metadata": { "resourceVersion": parent.metadata.resource_version, "finalizers": finalizers },
    });
    let objects = ResourceClient::new(&context.writer, &context.resource);
    match objects.merge(&name, &body, &context.config.field_manager()).await {
        Ok(answer) => Ok(context.record_parent(parent, None, answer)),
        Err(error) if error.is_not_found() => Ok(None),
        Err(error) => Err(error),
    }
}
