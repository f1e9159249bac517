//! What a Controller that decorates leaves when it is deleted: nothing. Its children are found by their label, and the fields that it has
//! written by its field manager, whoever their objects are, also when no host ran meanwhile.

use kube::api::{ListParams, PatchParams, PropagationPolicy};
use kube::{Client, ResourceExt as _};
use serde_json::json;

use operator_host_cluster::client::{Writer, said};
use operator_host_cluster::discovery::{Discovery, KindError};
use operator_host_cluster::objects::Objects;
use operator_host_cluster::resource_client::ResourceClient;
use operator_host_config::{Config, ControllerConfig};
use operator_host_core::child_rules::Removal;
use operator_host_core::managed_fields::applied_by;
use operator_host_core::object::{
    CONTROLLER_LABEL, GENERATED_LABEL, NamespacedName, controller_of, is_reference_to, is_terminating, label,
    next_page,
};
use operator_host_desired::ownership::is_ours;

/// The number of objects per page of a list.
const PAGE: u32 = 500;

/// Takes back the fields that a controller has written into objects of its parents' kind.
///
/// # Errors
/// Why some may be left.
pub(super) async fn take_back_fields(
    client: &Client,
    writer: &Writer,
    kinds: &Discovery,
    config: &Config,
    controller: &ControllerConfig,
) -> Result<(), String> {
    let kind = &controller.parent;
    let resource = match kinds.resolve(kind).await {
        Ok(resource) => resource,
        Err(KindError::Unknown(_)) => return Ok(()),
        Err(error) => return Err(error.to_string()),
    };
    let manager = controller.field_manager();
    let requests = ResourceClient::new(writer, &resource);
    let places = match resource.namespaced && !config.namespaces.is_empty() {
        true => config.namespaces.iter().map(|it| Some(it.as_str())).collect(),
        false => vec![None],
    };
    for place in places {
        let objects = Objects::new(client.clone(), &resource.api, place);
        let mut params = ListParams::default().limit(PAGE);
        loop {
            let page = objects.list_metadata(&params).await;
            let page = page.map_err(|error| format!("cannot list {kind}: {}", said(&error)))?;
            params.continue_token = next_page(&page.metadata);
            for object in page.items {
                let managed = object.metadata.managed_fields.as_deref().unwrap_or_default();
                if applied_by(managed, &manager).is_none() {
                    continue;
                }
                let name = NamespacedName::of(&object);
                let body = json!({
                    "apiVersion": kind.api_version,
                    "kind": kind.kind,
                    "metadata": { "name": name.name, "namespace": name.namespace, "uid": object.metadata.uid },
                });
                let taken = requests.apply(&name, &body, &PatchParams::apply(&manager)).await;
                match taken {
                    Err(error) if !error.is_not_found() && !error.is_lost_race() => {
                        return Err(error.to_string());
                    }
                    Ok(_) | Err(_) => {}
                }
            }
            if params.continue_token.is_none() {
                break;
            }
        }
    }
    Ok(())
}

/// Deletes the children of a controller, but for those that are retained. Returns how many there were.
///
/// # Errors
/// Why some may be left.
pub(super) async fn delete_children(
    client: &Client,
    writer: &Writer,
    kinds: &Discovery,
    config: &Config,
    controller: &ControllerConfig,
) -> Result<usize, String> {
    let mut deleted = 0;
    let mut params = ListParams::default()
        .labels(&format!("{CONTROLLER_LABEL}={}", controller.name))
        .limit(PAGE);
    for (kind, removal) in &controller.rules.children {
        let resource = match kinds.resolve(kind).await {
            Ok(resource) => resource,
            // What is not served has no objects.
            Err(KindError::Unknown(_)) => continue,
            Err(error) => return Err(error.to_string()),
        };
        let places: Vec<Option<&str>> = match resource.namespaced && !config.namespaces.is_empty() {
            true => {
                let others = controller.rules.other_names().into_iter().flatten();
                config
                    .namespaces
                    .iter()
                    .chain(others)
                    .map(|it| Some(it.as_str()))
                    .collect()
            }
            false => vec![None],
        };
        let requests = ResourceClient::new(writer, &resource);
        for place in places {
            let objects = Objects::new(client.clone(), &resource.api, place);
            loop {
                let page = objects.list_metadata(&params).await;
                let page = page.map_err(|error| format!("cannot list {kind}: {}", said(&error)))?;
                params.continue_token = next_page(&page.metadata);
                for child in page.items {
                    let is_generated = label(&child, GENERATED_LABEL).is_some();
                    let removal = if is_generated {
                        controller.rules.generated
                    } else {
                        *removal
                    };
                    let is_child =
                        controller_of(&child).is_some_and(|owner| is_reference_to(&controller.parent, owner));
                    if removal == Removal::Retain
                        || is_terminating(&child)
                        || !is_child
                        || !is_ours(controller.scope(), &child)
                    {
                        continue;
                    }
                    let (name, uid) = (NamespacedName::of(&child), child.uid().unwrap_or_default());
                    let gone = requests
                        .delete(&name, &uid, None, PropagationPolicy::Background)
                        .await;
                    match gone {
                        Err(error) if !error.is_conflict() => return Err(error.to_string()),
                        Ok(_) | Err(_) => deleted += 1,
                    }
                }
                if params.continue_token.is_none() {
                    break;
                }
            }
        }
    }
    Ok(deleted)
}
