//! What a Controller that decorates leaves when it is deleted: nothing. Its children are found by their label, and the fields that it has
//! written by its field manager, whoever their objects are, also when no host ran meanwhile.

use std::pin::pin;
use std::sync::Arc;

use futures::TryStreamExt as _;
use kube::api::{ListParams, PatchParams, PropagationPolicy, TypeMeta};
use kube::{Client, ResourceExt as _};
use serde_json::Map;

use operator_host_cluster::client::{Writer, said};
use operator_host_cluster::discovery::{Discovery, KindError, ResolvedKind};
use operator_host_cluster::objects::Objects;
use operator_host_cluster::resource_client::ResourceClient;
use operator_host_config::{Config, ControllerConfig};
use operator_host_contract::Kind;
use operator_host_core::child_rules::Removal;
use operator_host_core::managed_fields::applied_by;
use operator_host_core::object::{
    CONTROLLER_LABEL, GENERATED_LABEL, NamespacedName, controller_of, is_reference_to, is_terminating, label,
};
use operator_host_desired::ownership::is_ours;
use operator_host_desired::parent_fields;

/// Deletes the children of a controller, but for those that are retained, and takes back the fields that it has written into objects
/// of its parents' kind. Returns how many children there were, or why something may be left.
pub(super) async fn undecorate(
    client: &Client,
    writer: &Writer,
    kinds: &Discovery,
    config: &Config,
    controller: &ControllerConfig,
) -> Result<usize, String> {
    let mut deleted = 0;
    let labelled = ListParams::default().labels(&format!("{CONTROLLER_LABEL}={}", controller.name));
    for (kind, removal) in &controller.rules.children {
        let Some(resource) = resolve(kinds, kind).await? else {
            continue;
        };
        let mut places = config.places(resource.namespaced);
        if places != [None] {
            let others = controller.rules.other_names().into_iter().flatten();
            places.extend(others.map(|it| Some(it.as_str())));
        }
        let requests = ResourceClient::new(writer, &resource);
        for place in places {
            let objects = Objects::new(client.clone(), &resource.api, place);
            let mut children = pin!(objects.all_metadata(labelled.clone()));
            let unlisted = |error| unlisted(kind, &error);
            while let Some(child) = children.try_next().await.map_err(unlisted)? {
                let removal = match label(&child, GENERATED_LABEL) {
                    Some(_) => controller.rules.generated,
                    None => *removal,
                };
                let owner = controller_of(&child);
                let is_child = owner.is_some_and(|owner| is_reference_to(&controller.parent, owner))
                    && is_ours(controller.scope(), &child);
                if removal == Removal::Retain || is_terminating(&child) || !is_child {
                    continue;
                }
                let (name, uid) = (NamespacedName::of(&child), child.uid().unwrap_or_default());
                let policy = PropagationPolicy::Background;
                match requests.delete(&name, &uid, None, policy).await {
                    Err(error) if !error.is_conflict() => return Err(error.to_string()),
                    Ok(_) | Err(_) => deleted += 1,
                }
            }
        }
    }
    take_back_fields(client, writer, kinds, config, controller).await?;
    Ok(deleted)
}

async fn take_back_fields(
    client: &Client,
    writer: &Writer,
    kinds: &Discovery,
    config: &Config,
    controller: &ControllerConfig,
) -> Result<(), String> {
    let kind = &controller.parent;
    let Some(resource) = resolve(kinds, kind).await? else {
        return Ok(());
    };
    let manager = controller.field_manager();
    let requests = ResourceClient::new(writer, &resource);
    for place in config.places(resource.namespaced) {
        let objects = Objects::new(client.clone(), &resource.api, place);
        let mut objects = pin!(objects.all_metadata(ListParams::default()));
        while let Some(mut object) = objects.try_next().await.map_err(|error| unlisted(kind, &error))? {
            let managed = object.metadata.managed_fields.as_deref().unwrap_or_default();
            if applied_by(managed, &manager).is_none() {
                continue;
            }
            // Partial metadata has a type of its own.
            object.types = Some(TypeMeta {
                api_version: kind.api_version.clone(),
                kind: kind.kind.clone(),
            });
            let body = parent_fields::body(&object, &Map::new(), &[])?;
            let name = NamespacedName::of(&object);
            let taken = requests.apply(&name, &body, &PatchParams::apply(&manager)).await;
            if let Err(error) = taken
                && !error.is_not_found()
                && !error.is_lost_race()
            {
                return Err(error.to_string());
            }
        }
    }
    Ok(())
}

/// Returns how a kind is served; `None` for one that is not, which has no objects.
async fn resolve(kinds: &Discovery, kind: &Kind) -> Result<Option<Arc<ResolvedKind>>, String> {
    match kinds.resolve(kind).await {
        Ok(resource) => Ok(Some(resource)),
        Err(KindError::Unknown(_)) => Ok(None),
        Err(error) => Err(error.to_string()),
    }
}

fn unlisted(kind: &Kind, error: &kube::Error) -> String {
    format!("cannot list {kind}: {}", said(error))
}
