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

use crate::screen::{Mood, Screen};

/// The label that the host puts on every child.
const CHILD_LABEL: &str = "operator-host.dev/controller";

/// Returns the kinds of children that a host's configuration lists.
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
    screen: Screen,
) -> JoinHandle<()> {
    let parents = definitions.iter().filter_map(resource_of);
    let children = join_all(children.iter().map(|kind| pinned_kind(client, kind))).await;
    let children = children.into_iter().filter_map(|found| Some(found.ok()?.0));
    let all = parents
        .map(|parent| (false, parent))
        .chain(children.map(|child| (true, child)));
    let streams: Vec<_> = all
        .map(|(child, resource)| {
            let config = if child {
                watcher::Config::default().labels(CHILD_LABEL)
            } else {
                watcher::Config::default()
            };
            let api = Api::<DynamicObject>::all_with(client.clone(), &resource);
            watcher(api, config)
                .default_backoff()
                .map(move |event| (child, resource.clone(), event))
                .boxed()
        })
        .collect();
    tokio::spawn(async move {
        let mut events = stream::select_all(streams);
        let mut seen = Seen {
            screen,
            states: HashMap::new(),
        };
        while let Some((child, resource, event)) = events.next().await {
            match event {
                Ok(watcher::Event::Apply(object) | watcher::Event::InitApply(object)) => {
                    seen.changed(child, &resource.kind, &object);
                }
                Ok(watcher::Event::Delete(object)) => seen.gone(child, &resource.kind, &object),
                // The watch restarts by itself; errors also occur when the cluster ends.
                Ok(watcher::Event::Init | watcher::Event::InitDone) | Err(_) => {}
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

/// The last printed state of each object.
struct Seen {
    screen: Screen,
    states: HashMap<String, String>,
}

impl Seen {
    fn changed(&mut self, child: bool, kind: &str, object: &DynamicObject) {
        let (state, mood) = if child {
            child_state(kind, object)
        } else {
            parent_state(object)
        };
        let (state, mood) = match object.meta().deletion_timestamp {
            Some(_) => (format!("is being deleted; {state}"), Mood::Faint),
            None => (state, mood),
        };
        let last = self
            .states
            .insert(object.uid().unwrap_or_default(), state.clone());
        if last.as_ref() != Some(&state) {
            let state = if last.is_none() {
                format!("created; {state}")
            } else {
                state
            };
            self.screen
                .object(child, &name(kind, object), state.trim_end_matches("; "), mood);
        }
    }

    fn gone(&mut self, child: bool, kind: &str, object: &DynamicObject) {
        self.states.remove(&object.uid().unwrap_or_default());
        self.screen
            .object(child, &name(kind, object), "deleted", Mood::Faint);
    }
}

fn name(kind: &str, object: &DynamicObject) -> String {
    match object.namespace().as_deref() {
        None | Some("default") => format!("{kind}/{}", object.name_any()),
        Some(namespace) => format!("{kind}/{namespace}/{}", object.name_any()),
    }
}

/// Returns the Ready condition, then every scalar of the status.
fn parent_state(object: &DynamicObject) -> (String, Mood) {
    let status = &object.data["status"];
    let condition = |kind: &str| {
        status["conditions"]
            .as_array()?
            .iter()
            .find(|it| it["type"] == kind)
    };
    let mut parts = Vec::new();
    let mood = match (condition("Ready"), condition("Stalled")) {
        (_, Some(stalled)) if stalled["status"] == "True" => {
            parts.push(format!(
                "Stalled: {}: {}",
                text(&stalled["reason"]),
                text(&stalled["message"])
            ));
            Mood::Bad
        }
        (Some(ready), _) if ready["status"] == "True" => {
            parts.push("Ready".to_owned());
            Mood::Good
        }
        (Some(ready), _) => {
            parts.push(format!(
                "not Ready: {}: {}",
                text(&ready["reason"]),
                text(&ready["message"])
            ));
            Mood::Waiting
        }
        (None, _) => Mood::Waiting,
    };
    if let Some(held) = condition("PluginHeldBack").filter(|held| held["status"] == "True") {
        parts.push(format!("holds a new plugin back: {}", text(&held["reason"])));
    }
    // `lastUpdate` changes together with other fields and adds no information.
    let quiet = ["observedGeneration", "lastUpdate"];
    let scalars = status.as_object().into_iter().flatten();
    let scalars = scalars
        .filter(|(key, value)| !value.is_object() && !value.is_array() && !quiet.contains(&key.as_str()));
    let scalars: Vec<_> = scalars
        .map(|(key, value)| format!("{key}={}", scalar(value)))
        .collect();
    parts.extend((!scalars.is_empty()).then(|| scalars.join(" ")));
    (parts.join("; "), mood)
}

fn child_state(kind: &str, object: &DynamicObject) -> (String, Mood) {
    let (spec, status) = (&object.data["spec"], &object.data["status"]);
    match kind {
        "Pod" => {
            let conditions = status["conditions"].as_array();
            let ready = conditions
                .into_iter()
                .flatten()
                .any(|it| it["type"] == "Ready" && it["status"] == "True");
            let phase = text(&status["phase"]);
            match (phase, ready) {
                (_, true) => ("Ready".to_owned(), Mood::Good),
                ("Failed", _) => ("Failed".to_owned(), Mood::Bad),
                (phase, _) => (phase.to_owned(), Mood::Waiting),
            }
        }
        "PersistentVolumeClaim" => {
            let (has, wants) = (
                text(&status["capacity"]["storage"]),
                text(&spec["resources"]["requests"]["storage"]),
            );
            match text(&status["phase"]) {
                "Bound" if has == wants => (format!("Bound, {has}"), Mood::Good),
                "Bound" => (format!("Bound, {has}, growing to {wants}"), Mood::Waiting),
                phase => (format!("{phase}, wants {wants}"), Mood::Waiting),
            }
        }
        "Service" => {
            let ports = spec["ports"].as_array().into_iter().flatten();
            let ports: Vec<_> = ports.map(|port| scalar(&port["port"])).collect();
            let kind = if spec["clusterIP"] == "None" {
                "headless, "
            } else {
                ""
            };
            (format!("{kind}port {}", ports.join(", ")), Mood::Good)
        }
        "Secret" => {
            let keys: Vec<_> = object.data["data"]
                .as_object()
                .into_iter()
                .flatten()
                .map(|(key, _)| &**key)
                .collect();
            (format!("holds {}", keys.join(", ")), Mood::Good)
        }
        "Deployment" => {
            let (ready, wanted) = (
                status["readyReplicas"].as_u64().unwrap_or(0),
                spec["replicas"].as_u64().unwrap_or(1),
            );
            let mood = if ready == wanted {
                Mood::Good
            } else {
                Mood::Waiting
            };
            (format!("{ready} of {wanted} ready"), mood)
        }
        _ => (String::new(), Mood::Good),
    }
}

fn text(value: &Value) -> &str {
    value.as_str().unwrap_or_default()
}

fn scalar(value: &Value) -> String {
    value.as_str().map_or_else(|| value.to_string(), str::to_owned)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_kind_that_the_configuration_lists_is_shown_once() {
        let config = "controllers:\n- children: [{apiVersion: v1, kind: ConfigMap}, {apiVersion: batch/v1, kind: Job}]\n\
                      - children: [{apiVersion: v1, kind: ConfigMap, onRemoval: retain}]\n- name: none\n";
        let kinds: Vec<_> = children(config)
            .iter()
            .map(|it| format!("{}/{} {}", it.group, it.version, it.kind))
            .collect();
        assert_eq!(kinds, ["/v1 ConfigMap", "batch/v1 Job"]);
        assert!(children("").is_empty());
    }
    use serde_json::json;

    fn object(status: &Value) -> DynamicObject {
        serde_json::from_value(json!({ "metadata": { "name": "demo" }, "status": status })).unwrap()
    }

    #[test]
    fn a_parent_shows_its_condition_and_the_scalars_of_its_status() {
        let ready =
            json!([{ "type": "Ready", "status": "False", "reason": "Scaling", "message": "1 of 3 pods" }]);
        let status =
            json!({ "conditions": ready, "currentReplicas": 1, "lastUpdate": "…", "phase": "Scaling" });
        let (state, mood) = parent_state(&object(&status));
        assert_eq!(
            state,
            "not Ready: Scaling: 1 of 3 pods; currentReplicas=1 phase=Scaling"
        );
        assert_eq!(mood, Mood::Waiting);
    }

    #[test]
    fn a_parent_that_holds_a_plugin_back_is_as_ready_as_before() {
        let held = json!([
            { "type": "Ready", "status": "True" },
            { "type": "PluginHeldBack", "status": "True", "reason": "Fails", "message": "…" },
        ]);
        let (state, mood) = parent_state(&object(&json!({ "conditions": held })));
        assert_eq!(state, "Ready; holds a new plugin back: Fails");
        assert_eq!(mood, Mood::Good);
        let none = json!([
            { "type": "Ready", "status": "True" },
            { "type": "PluginHeldBack", "status": "False", "reason": "NothingHeldBack", "message": "…" },
        ]);
        assert_eq!(parent_state(&object(&json!({ "conditions": none }))).0, "Ready");
    }

    #[test]
    fn a_stalled_parent_shows_what_to_change() {
        let stalled =
            json!([{ "type": "Stalled", "status": "True", "reason": "InvalidSpec", "message": "too small" }]);
        assert_eq!(
            parent_state(&object(&json!({ "conditions": stalled }))).0,
            "Stalled: InvalidSpec: too small"
        );
    }
}
