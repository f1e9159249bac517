//! Watches custom resources and their children and prints a line whenever one has changed.

use std::collections::HashMap;

use futures::{StreamExt, future::join_all, stream};
use kube::{
    Api, Client, Resource, ResourceExt,
    api::{ApiResource, DynamicObject, GroupVersionKind},
    discovery::pinned_kind,
    runtime::{WatchStreamExt, watcher},
};
use serde_json::Value;
use tokio::task::JoinHandle;

/// The label that the host puts on every child.
const CHILD_LABEL: &str = "operator-host.dev/controller";

/// Returns the kinds of children that a host's configuration lists, each once.
pub(crate) fn children(config: &str) -> Vec<GroupVersionKind> {
    let config: Value = serde_saphyr::from_str(config).unwrap_or_default();
    let controllers = config["controllers"].as_array().into_iter().flatten();
    let listed = controllers.flat_map(|controller| controller["children"].as_array().into_iter().flatten());
    let mut kinds: Vec<GroupVersionKind> = Vec::new();
    for child in listed {
        let (api_version, kind) = (text(&child["apiVersion"]), text(&child["kind"]));
        let (group, version) = api_version.split_once('/').unwrap_or(("", api_version));
        let kind = GroupVersionKind::gvk(group, version, kind);
        if !kinds.contains(&kind) {
            kinds.push(kind);
        }
    }
    kinds
}

/// Starts to print. The task runs until it is aborted. Kinds of children that the cluster does not serve are left out.
pub(crate) async fn start(
    client: &Client,
    definitions: &[DynamicObject],
    children: &[GroupVersionKind],
) -> JoinHandle<()> {
    let parents = definitions.iter().filter_map(resource_of);
    let parents = parents.map(|resource| (resource, watcher::Config::default()));
    let children = join_all(children.iter().map(|kind| pinned_kind(client, kind))).await;
    let children = children.into_iter().filter_map(|found| Some(found.ok()?.0));
    let children = children.map(|resource| (resource, watcher::Config::default().labels(CHILD_LABEL)));
    let streams: Vec<_> = parents
        .chain(children)
        .map(|(resource, config)| {
            let api = Api::<DynamicObject>::all_with(client.clone(), &resource);
            let events = watcher(api, config).default_backoff();
            events.map(move |event| (resource.kind.clone(), event)).boxed()
        })
        .collect();
    tokio::spawn(async move {
        let mut events = stream::select_all(streams);
        let mut last: HashMap<String, String> = HashMap::new();
        while let Some((kind, event)) = events.next().await {
            let (object, state) = match event {
                Ok(watcher::Event::Apply(object) | watcher::Event::InitApply(object)) => {
                    let state = state(&object);
                    (object, state)
                }
                Ok(watcher::Event::Delete(object)) => (object, "deleted".to_owned()),
                // The watch restarts by itself; errors also occur when the cluster ends.
                Ok(watcher::Event::Init | watcher::Event::InitDone) | Err(_) => continue,
            };
            let before = last.insert(object.uid().unwrap_or_default(), state.clone());
            if before.as_ref() != Some(&state) {
                let time = jiff::Zoned::now().strftime("%H:%M:%S");
                let namespace = object.namespace().unwrap_or_default();
                println!("{time} {kind} {namespace}/{} {state}", object.name_any());
            }
        }
    })
}

/// Returns the served kind of a definition.
fn resource_of(definition: &DynamicObject) -> Option<ApiResource> {
    let spec = definition.data.get("spec")?;
    let versions = spec["versions"].as_array()?;
    let version = versions.iter().find(|version| version["storage"] == true)?["name"].as_str()?;
    let names = &spec["names"];
    let kind = GroupVersionKind::gvk(spec["group"].as_str()?, version, names["kind"].as_str()?);
    Some(ApiResource::from_gvk_with_plural(
        &kind,
        names["plural"].as_str()?,
    ))
}

/// Returns what the conditions Stalled and Ready say, or else the phase.
fn state(object: &DynamicObject) -> String {
    let status = &object.data["status"];
    let conditions = status["conditions"].as_array();
    let condition = |type_: &str| conditions?.iter().find(|it| it["type"] == type_);
    let words = |of: &Value| format!("{}: {}", text(&of["reason"]), text(&of["message"]));
    let stalled = condition("Stalled").filter(|stalled| stalled["status"] == "True");
    let state = match (stalled, condition("Ready")) {
        (Some(stalled), _) => format!("Stalled: {}", words(stalled)),
        (None, Some(ready)) if ready["status"] == "True" => "Ready".to_owned(),
        (None, Some(ready)) => format!("not Ready: {}", words(ready)),
        (None, None) => text(&status["phase"]).to_owned(),
    };
    match object.meta().deletion_timestamp {
        Some(_) => format!("is being deleted; {state}"),
        None => state,
    }
}

fn text(value: &Value) -> &str {
    value.as_str().unwrap_or_default()
}
