//! Migrates a parent from a former name of its controller to the current one: the finalizer, the label of the
//! children, and the field managers, without which no field could be removed later.

use std::collections::HashSet;
use std::sync::Arc;

use k8s_openapi::apimachinery::pkg::apis::meta::v1::{ManagedFieldsEntry, ObjectMeta};
use kube::core::DynamicObject;
use serde_json::{Map, Value, json};
use tracing::info;

use super::context::Context;
use crate::cluster::api_error::ApiError;
use crate::cluster::resource_client::ResourceClient;
use crate::config::ControllerConfig;
use crate::object::{CONTROLLER_LABEL, ChildRef, NamespacedName, is_terminating, label, too_deep};

/// Migrates a parent and its children, each with one write that is refused when the object has changed. Returns the
/// resulting parent; `None` when it was deleted or replaced. One child that cannot be migrated does not keep the others.
///
/// Field managers are not in the caches, so each parent is read once after every start for as long as former names
/// are configured.
///
/// # Errors
/// With the parent as known, when the API server refuses writes.
pub(super) async fn take_over(
    context: &Context,
    parent: Arc<DynamicObject>,
) -> Result<Option<Arc<DynamicObject>>, (Arc<DynamicObject>, Vec<ApiError>)> {
    if context.config.formerly.is_empty() {
        return Ok(Some(parent));
    }
    let name = NamespacedName::of(&parent);
    let mut parent = parent;
    // A host under the former name that still runs may have given it back its finalizer.
    let is_back = has_finalizer_to_replace(&context.config, &parent.metadata);
    if is_back || context.memory_of(&name, |memory| !memory.handed_over) {
        match migrate_parent(context, &parent).await {
            Ok(Some(now)) => parent = now,
            Ok(None) => return Ok(None),
            Err(error) => return Err((parent, vec![error])),
        }
        // The managers of one that is nested too deep may not be known.
        context.memory_of(&name, |memory| memory.handed_over = too_deep(&parent).is_none());
    }
    let (mut seen, mut failed) = (HashSet::new(), Vec::new());
    for child in context.owned(&parent) {
        let current = label(&child, CONTROLLER_LABEL) == Some(&context.config.name);
        if current || is_terminating(&child) || !seen.insert(child.metadata.uid.clone()) {
            continue;
        }
        if let Err(error) = migrate_child(context, &name, &child).await {
            let stops = error.stops_others();
            failed.push(error);
            if stops {
                break;
            }
        }
    }
    match failed.is_empty() {
        true => Ok(Some(parent)),
        false => Err((parent, failed)),
    }
}

async fn migrate_parent(
    context: &Context,
    parent: &DynamicObject,
) -> Result<Option<Arc<DynamicObject>>, ApiError> {
    let name = NamespacedName::of(parent);
    let objects = ResourceClient::new(&context.writer, &context.resource);
    let fresh = objects.read(&name).await?;
    // The watch delivers the new parent.
    let Some(fresh) = fresh.filter(|fresh| fresh.metadata.uid == parent.metadata.uid) else {
        return Ok(None);
    };
    let Some(patch) = renamed(&context.config, &fresh.metadata) else {
        return Ok(context.record_parent(parent, None, fresh));
    };
    let answer = objects
        .merge(&name, &patch, &context.config.field_manager())
        .await?;
    info!(
        "handed over to the controller {:?} from one of its former names",
        context.config.name
    );
    Ok(context.record_parent(parent, None, answer))
}

async fn migrate_child(
    context: &Context,
    parent: &NamespacedName,
    child: &DynamicObject,
) -> Result<(), ApiError> {
    let key = ChildRef::of(child);
    let Some(resource) = context.resources.get(&key.kind) else {
        return Ok(());
    };
    // An impersonated ServiceAccount may only write.
    let fresh = ResourceClient::new(&context.writer, resource)
        .read(&key.name)
        .await?;
    // The managers of one that is nested too deep may not be known.
    let fresh = fresh.filter(|fresh| fresh.metadata.uid == child.metadata.uid && too_deep(fresh).is_none());
    // Deleted by now, or already migrated.
    let Some(patch) = fresh.and_then(|fresh| renamed(&context.config, &fresh.metadata)) else {
        return Ok(());
    };
    let answer = ResourceClient::new(&context.children_writer, resource)
        .merge(&key.name, &patch, &context.config.field_manager())
        .await?;
    context.record_child(parent, &key, answer);
    Ok(())
}

/// Whether a parent has a finalizer of a former name that can be replaced. While a parent is being deleted, API servers
/// refuse a finalizer that it does not have yet.
fn has_finalizer_to_replace(config: &ControllerConfig, metadata: &ObjectMeta) -> bool {
    let mut finalizers = metadata.finalizers.iter().flatten();
    metadata.deletion_timestamp.is_none()
        && finalizers.any(|finalizer| config.former_finalizers().any(|former| former == *finalizer))
}

/// Returns the merge patch that replaces the former names by the current one; `None` when there are none.
fn renamed(config: &ControllerConfig, metadata: &ObjectMeta) -> Option<Value> {
    let mut patch = Map::new();
    let former: Vec<String> = config.former_field_managers().collect();
    let managed = metadata.managed_fields.as_deref().unwrap_or_default();
    let is_former = |entry: &ManagedFieldsEntry| {
        let manager = entry.manager.as_ref();
        manager.is_some_and(|manager| former.contains(manager))
    };
    if managed.iter().any(is_former) {
        let present = config.field_manager();
        let mut entries: Vec<ManagedFieldsEntry> = Vec::new();
        // Entries of the current name first: of two entries for the same operation only one can stay.
        let (before, now): (Vec<_>, Vec<_>) = managed.iter().cloned().partition(is_former);
        for mut entry in now.into_iter().chain(before) {
            if is_former(&entry) {
                entry.manager = Some(present.clone());
            }
            let same = |other: &ManagedFieldsEntry| {
                other.manager == entry.manager
                    && other.operation == entry.operation
                    && other.subresource == entry.subresource
                    && (other.api_version == entry.api_version || entry.operation.as_deref() == Some("Apply"))
            };
            if !entries.iter().any(same) {
                entries.push(entry);
            }
        }
        patch.insert("managedFields".into(), json!(entries));
    }
    let finalizers = metadata.finalizers.as_deref().unwrap_or_default();
    let former: Vec<String> = config.former_finalizers().collect();
    if has_finalizer_to_replace(config, metadata) {
        let others = finalizers.iter().filter(|other| !former.contains(other)).cloned();
        let mut all: Vec<String> = others.collect();
        if !all.contains(&config.finalizer()) {
            all.push(config.finalizer());
        }
        patch.insert("finalizers".into(), json!(all));
    }
    let marked = metadata
        .labels
        .as_ref()
        .and_then(|labels| labels.get(CONTROLLER_LABEL));
    if marked.is_some_and(|name| config.formerly.contains(name)) {
        patch.insert("labels".into(), json!({ CONTROLLER_LABEL: config.name }));
    }
    if patch.is_empty() {
        return None;
    }
    patch.insert("uid".into(), json!(metadata.uid));
    patch.insert("resourceVersion".into(), json!(metadata.resource_version));
    Some(json!({ "metadata": patch }))
}
