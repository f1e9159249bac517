//! Reads what the cluster knows about a resource. Nothing is written.

use std::collections::BTreeSet;

use anyhow::anyhow;
use futures::stream::{self, StreamExt};
use jiff::Timestamp;
use k8s_openapi::api::core::v1 as core;
use kube::api::{Api, ApiResource, DynamicObject, ListParams};
use kube::core::TypeMeta;
use kube::{Client, ResourceExt};
use serde_json::Value;

use super::kinds::{CONCURRENCY, Kinds, Served, full_name};
use super::{Advice, Child, Condition, Event, Explanation, Proposed, advice, words};
use operator_host_cluster::objects::Objects;
use operator_host_config::object;
use operator_host_contract::Kind;
use operator_host_core::managed_fields::is_only_status;
use operator_host_core::object::{
    CONTROLLER_LABEL, FIELD_MANAGER_PREFIX, NamespacedName, PARENT_ANNOTATION, PAUSED_ANNOTATION, Provenance,
    annotation, controller_of, is_terminating, is_unreadable, kind_in_words, label, unreadable,
};
use operator_host_desired::names;
use operator_host_desired::readiness::unready;

/// The condition of a resource that holds back a version of its plugin.
const HELD_BACK: &str = "PluginHeldBack";
/// Number of Events to show.
const EVENTS: usize = 10;
/// Kinds whose objects may hold secrets or much data, and whose status does not matter.
const METADATA_ONLY: [&str; 2] = ["Secret", "ConfigMap"];
/// Kinds that the controllers of Kubernetes create for a child.
const DESCENDANTS: [(&str, &str, &str); 3] = [
    ("apps/v1", "ReplicaSet", "replicasets"),
    ("batch/v1", "Job", "jobs"),
    ("v1", "Pod", "pods"),
];

/// Collects everything about a resource.
///
/// # Errors
/// When the kind or the resource does not exist, or the API server does not answer.
pub(super) async fn explain(
    client: &Client,
    kind: &str,
    name: &str,
    namespace: Option<&str>,
) -> anyhow::Result<Explanation> {
    let kinds = Kinds::read(client).await?;
    let served = kinds.find(kind)?;
    let resource = &served.api;
    if let Some(problem) = names::problem(&kind_of(resource), name) {
        return Err(anyhow!("{name:?} cannot be a name: {problem}"));
    }
    let namespace = served
        .is_namespaced
        .then(|| namespace.unwrap_or(client.default_namespace()));
    let found = Objects::new(client.clone(), resource, namespace).get(name).await;
    let kind = kind_in_words(&resource.group, &resource.kind);
    if let Err(kube::Error::Api(status)) = &found
        && status.code == 404
    {
        let place = namespace.map(|namespace| format!(" in the namespace {namespace}"));
        let namesakes = kinds.namesakes(served);
        let others = match namesakes.is_empty() {
            true => String::new(),
            false => format!(
                "; other groups have the kind, too: name it as {}",
                namesakes.join(" or ")
            ),
        };
        return Err(anyhow!(
            "there is no {kind} {name}{}{others}",
            place.unwrap_or_default()
        ));
    }
    let parent = found.map_err(|error| anyhow!("cannot read {kind} {name}: {}", words(&error)))?;
    let mut unread = Unread::default();
    for (version, why) in &kinds.unreadable {
        unread.add(version, why);
    }
    let mut state = state(&parent);
    if resource.group != object::GROUP {
        state.extend(controller(client, &kinds, &parent).await);
    }
    let children = children(client, &kinds.all, &parent, namespace, &mut unread).await;
    let (children_incomplete, mut unreadable) = unread.lines();
    let events = match events(client, &parent).await {
        Ok(events) => events,
        Err(error) => {
            unreadable.push(format!("Events: {}", words(&error)));
            Vec::new()
        }
    };
    let conditions = conditions(&parent);
    Ok(Explanation {
        api_version: resource.api_version.clone(),
        kind: resource.kind.clone(),
        namespace: parent.namespace(),
        name: parent.name_any(),
        state,
        next: next(&parent, &conditions),
        proposed: proposed(&conditions),
        reconciles: None,
        conditions,
        children,
        children_incomplete,
        events,
        unreadable,
    })
}

/// Says where the controller of a resource is configured, once it has written anything into it.
async fn controller(client: &Client, kinds: &Kinds, parent: &DynamicObject) -> Option<String> {
    let mut managers = parent
        .managed_fields()
        .iter()
        .filter_map(|it| it.manager.as_deref());
    let name = managers.find_map(|manager| manager.strip_prefix(FIELD_MANAGER_PREFIX))?;
    let is_controller = |it: &&Served| it.api.group == object::GROUP && it.api.kind == object::KIND;
    let found = match kinds.all.iter().find(is_controller) {
        Some(served) => Objects::new(client.clone(), &served.api, None).get(name).await,
        None => {
            return Some(format!(
                "Its controller is {name}, of the host's configuration file."
            ));
        }
    };
    Some(match found {
        // The file comes first.
        Ok(object) if !object.data["status"].to_string().contains("\"NameTaken\"") => format!(
            "Its controller is the Controller {name}: kubectl describe {}.{} {name}",
            object::PLURAL,
            object::GROUP
        ),
        Err(kube::Error::Api(status)) if status.code != 404 => format!(
            "Its controller is {name}. Whether it is a Controller of the cluster or of the host's configuration file cannot be \
             read: {}",
            status.message
        ),
        Ok(_) | Err(_) => format!("Its controller is {name}, of the host's configuration file."),
    })
}

fn kind_of(resource: &ApiResource) -> Kind {
    Kind {
        api_version: resource.api_version.clone(),
        kind: resource.kind.clone(),
    }
}

/// What could not be read of the children.
#[derive(Default)]
struct Unread {
    /// Kinds that the user may not list.
    forbidden: BTreeSet<String>,
    /// One line each, which names its kind or version.
    others: BTreeSet<String>,
}

impl Unread {
    fn add(&mut self, what: &str, why: &str) {
        self.others.insert(format!("{what}: {why}"));
    }

    fn fail(&mut self, kind: String, error: &kube::Error) {
        match error {
            kube::Error::Api(status) if status.code == 403 => {
                self.forbidden.insert(kind);
            }
            _ => self.add(&kind, &words(error)),
        }
    }

    /// Reports whether there is anything, and returns its lines.
    fn lines(self) -> (bool, Vec<String>) {
        let mut lines: Vec<String> = self.others.into_iter().collect();
        if !self.forbidden.is_empty() {
            let kinds: Vec<_> = self.forbidden.into_iter().collect();
            lines.insert(0, format!("you may not list: {}", kinds.join(", ")));
        }
        (!lines.is_empty(), lines)
    }
}

/// Returns the children, each with what its own controller has created.
async fn children(
    client: &Client,
    kinds: &[Served],
    parent: &DynamicObject,
    namespace: Option<&str>,
    unread: &mut Unread,
) -> Vec<Child> {
    let listable = kinds.iter().filter(|served| {
        served.is_listable && served.api.kind != "Event" && (namespace.is_none() || served.is_namespaced)
    });
    let listed = stream::iter(listable)
        .map(|served| async move { (&served.api, labelled(client, &served.api, namespace).await) })
        .buffered(CONCURRENCY)
        .collect::<Vec<_>>()
        .await;
    let name = NamespacedName::of(parent).to_string();
    let mut found = Vec::new();
    for (resource, objects) in listed {
        match objects {
            Ok(objects) => found.extend(objects.into_iter().filter(|child| is_child(parent, &name, child))),
            // A kind that disappears, or cannot be listed after all, is no kind of a child.
            Err(kube::Error::Api(status)) if matches!(status.code, 404 | 405) => {}
            Err(error) => unread.fail(full_name(resource), &error),
        }
    }
    once(&mut found);
    let descendants = if found.is_empty() {
        Vec::new()
    } else {
        descendants(client, namespace, unread).await
    };
    let mut children: Vec<_> = found.iter().map(|child| describe(child, &descendants)).collect();
    children.sort_by(|a, b| (&a.kind, &a.namespace, &a.name).cmp(&(&b.kind, &b.namespace, &b.name)));
    children
}

/// Removes objects that are there several times: old API servers serve some kinds in two groups, such as the Ingresses of
/// `extensions`.
fn once(objects: &mut Vec<DynamicObject>) {
    let mut seen = BTreeSet::new();
    objects.retain(|object| object.uid().is_none_or(|uid| seen.insert(uid)));
}

/// Lists the objects of a kind that carry the label of children.
async fn labelled(
    client: &Client,
    resource: &ApiResource,
    namespace: Option<&str>,
) -> kube::Result<Vec<DynamicObject>> {
    let api = Objects::new(client.clone(), resource, namespace);
    let selected = ListParams::default().labels(CONTROLLER_LABEL);
    let metadata = api.list_metadata(&selected).await?.items;
    if metadata.is_empty() || METADATA_ONLY.contains(&resource.kind.as_str()) {
        let objects = metadata.into_iter().map(|object| DynamicObject {
            types: Some(types(resource)),
            metadata: object.metadata,
            data: Value::Null,
        });
        return Ok(objects.collect());
    }
    let mut objects = api.list(&selected).await?.items;
    for object in &mut objects {
        object.types = Some(types(resource));
    }
    Ok(objects)
}

fn types(resource: &ApiResource) -> TypeMeta {
    TypeMeta {
        api_version: resource.api_version.clone(),
        kind: resource.kind.clone(),
    }
}

/// Reports whether the parent owns an object, or has left it as a retained one.
fn is_child(parent: &DynamicObject, name: &str, object: &DynamicObject) -> bool {
    match controller_of(object) {
        Some(owner) => Some(&owner.uid) == parent.metadata.uid.as_ref(),
        None => {
            label(object, CONTROLLER_LABEL).is_some() && annotation(object, PARENT_ANNOTATION) == Some(name)
        }
    }
}

/// Lists what the controllers of Kubernetes may have created for children.
async fn descendants(client: &Client, namespace: Option<&str>, unread: &mut Unread) -> Vec<DynamicObject> {
    let mut all = Vec::new();
    for (api_version, kind, plural) in DESCENDANTS {
        let (group, version) = api_version.split_once('/').unwrap_or(("", api_version));
        let resource = ApiResource {
            group: group.to_owned(),
            version: version.to_owned(),
            api_version: api_version.to_owned(),
            kind: kind.to_owned(),
            plural: plural.to_owned(),
        };
        match Objects::new(client.clone(), &resource, namespace)
            .list(&ListParams::default())
            .await
        {
            Ok(list) => all.extend(list.items.into_iter().map(|mut object| {
                object.types = Some(types(&resource));
                object
            })),
            Err(error) => unread.fail(full_name(&resource), &error),
        }
    }
    all
}

fn describe(object: &DynamicObject, descendants: &[DynamicObject]) -> Child {
    let types = object.types.clone().unwrap_or_default();
    let own = descendants
        .iter()
        .filter(|other| {
            controller_of(other).is_some_and(|owner| Some(&owner.uid) == object.metadata.uid.as_ref())
        })
        .map(|other| describe(other, descendants))
        .filter(|child| !is_scaled_down(child, descendants));
    let made = Provenance::of(object);
    Child {
        api_version: types.api_version,
        kind: types.kind,
        namespace: object.namespace(),
        name: object.name_any(),
        unready: unready(object),
        retained: controller_of(object).is_none(),
        created: object.metadata.creation_timestamp.as_ref().map(|time| time.0),
        plugin_digest: made.map(|made| made.digest.to_owned()),
        plugin: made.map(|made| made.plugin.to_owned()),
        generation: made.and_then(|made| Some(made.parent?.0)),
        other_managers: other_managers(object),
        children: own.collect(),
    }
}

/// Reports whether this is a ReplicaSet of an earlier version of a Deployment.
fn is_scaled_down(child: &Child, descendants: &[DynamicObject]) -> bool {
    child.kind == "ReplicaSet"
        && child.children.is_empty()
        && descendants.iter().any(|object| {
            object.name_any() == child.name
                && object.namespace() == child.namespace
                && object.data["spec"]["replicas"] == 0
        })
}

/// Returns who else owns fields of an object. Managers that write only its status, such as the kubelet, are left out.
fn other_managers(object: &DynamicObject) -> Vec<String> {
    let is_own = |manager: &str| manager.starts_with(FIELD_MANAGER_PREFIX);
    let mut managers = BTreeSet::new();
    if label(object, CONTROLLER_LABEL).is_none() {
        return Vec::new();
    }
    for entry in object.managed_fields() {
        let manager = entry.manager.as_deref().unwrap_or_default();
        let has_subresource = !entry.subresource.as_deref().unwrap_or_default().is_empty();
        if !is_own(manager) && !has_subresource && !is_only_status(entry) {
            managers.insert(manager.to_owned());
        }
    }
    managers.into_iter().collect()
}

fn state(parent: &DynamicObject) -> Vec<String> {
    let mut state = Vec::new();
    let generation = parent.metadata.generation;
    let observed = parent.data["status"]["observedGeneration"].as_i64();
    state.push(match (generation, observed) {
        (Some(generation), Some(observed)) if observed < generation => format!(
            "The host has not reconciled the current spec: generation {generation}, last reconciled {observed}."
        ),
        (Some(generation), Some(_)) => format!("The host has seen the current spec, generation {generation}."),
        _ if is_unreadable(parent) => format!("The host does not reconcile it: {}.", unreadable("it")),
        (_, None) => "No host has written a status yet: no controller has seen the resource, or its definition has no \
                      status subresource."
            .to_owned(),
        (None, Some(_)) => "The host has written a status.".to_owned(),
    });
    if is_terminating(parent) {
        let finalizers = parent.finalizers();
        state.push(match finalizers {
            [] => "It is being deleted.".to_owned(),
            _ => format!(
                "It is being deleted, and waits for its finalizers: {}.",
                finalizers.join(", ")
            ),
        });
    }
    if annotation(parent, PAUSED_ANNOTATION) == Some("true") {
        state.push(format!("It is paused by the annotation {PAUSED_ANNOTATION}."));
    }
    state
}

fn conditions(parent: &DynamicObject) -> Vec<Condition> {
    let all = parent.data["status"]["conditions"].as_array();
    let conditions = all.into_iter().flatten().map(|condition| {
        let text = |field: &str| condition[field].as_str().unwrap_or_default().to_owned();
        Condition {
            type_: text("type"),
            status: text("status"),
            reason: text("reason"),
            message: text("message"),
            since: text("lastTransitionTime").parse().ok(),
        }
    });
    conditions.collect()
}

/// Returns what to do about each condition that is not as it should be.
fn next(parent: &DynamicObject, conditions: &[Condition]) -> Vec<Advice> {
    let mut next: Vec<Advice> = Vec::new();
    // The host writes no condition about it.
    let unread = is_unreadable(parent).then_some("Unreadable");
    let problems = conditions.iter().filter(|condition| condition.is_problem());
    for reason in unread
        .into_iter()
        .chain(problems.map(|condition| condition.reason.as_str()))
    {
        let is_known = next.iter().any(|advice| advice.reason == reason);
        if !is_known && let Some(text) = advice::about(reason) {
            next.push(Advice {
                reason: reason.to_owned(),
                text,
            });
        }
    }
    next
}

/// Returns the version that the resource holds back, as its condition describes it.
fn proposed(conditions: &[Condition]) -> Option<Proposed> {
    let held = conditions
        .iter()
        .find(|condition| condition.type_ == HELD_BACK && condition.status == "True")?;
    // The differences follow the message.
    let (message, diff) = held.message.split_once('\n').unwrap_or((&held.message, ""));
    Some(Proposed {
        version: None,
        digest: None,
        state: "held back".to_owned(),
        message: message.to_owned(),
        diff: diff.to_owned(),
    })
}

/// Returns the newest Events about an object.
async fn events(client: &Client, parent: &DynamicObject) -> kube::Result<Vec<Event>> {
    let namespace = parent.namespace();
    let api: Api<core::Event> = Api::namespaced(client.clone(), namespace.as_deref().unwrap_or("default"));
    let uid = parent.uid().unwrap_or_default();
    let about = ListParams::default().fields(&format!("involvedObject.uid={uid}"));
    let mut events: Vec<_> = api.list(&about).await?.items.into_iter().map(event).collect();
    events.sort_by_key(|event| std::cmp::Reverse(event.last));
    events.truncate(EVENTS);
    Ok(events)
}

fn event(event: core::Event) -> Event {
    let last = last_time(&event);
    let annotations = event.metadata.annotations.unwrap_or_default();
    Event {
        type_: event.type_.unwrap_or_default(),
        reason: event.reason.unwrap_or_default(),
        message: event.message.unwrap_or_default(),
        last,
        trace_id: annotations.get("operator-host.dev/trace-id").cloned(),
    }
}

fn last_time(event: &core::Event) -> Option<Timestamp> {
    let series = event
        .series
        .as_ref()
        .and_then(|series| series.last_observed_time.as_ref());
    let micro = series.or(event.event_time.as_ref()).map(|time| time.0);
    let created = event.metadata.creation_timestamp.as_ref().map(|time| time.0);
    event
        .last_timestamp
        .as_ref()
        .map(|time| time.0)
        .or(micro)
        .or(created)
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn object(value: Value) -> DynamicObject {
        serde_json::from_value(value).unwrap()
    }

    #[test]
    fn an_object_that_is_served_in_two_groups_is_one_child() {
        let ingress = |group: &str, uid: &str| {
            object(json!({ "apiVersion": group, "kind": "Ingress", "metadata": { "name": "a", "uid": uid } }))
        };
        let mut found = vec![
            ingress("networking.k8s.io/v1", "1"),
            ingress("networking.k8s.io/v1", "2"),
            ingress("extensions/v1beta1", "1"),
        ];
        once(&mut found);
        let uids: Vec<_> = found.iter().filter_map(ResourceExt::uid).collect();
        assert_eq!(uids, ["1", "2"]);
    }

    #[test]
    fn a_child_is_what_the_parent_owns_or_has_left() {
        let parent = object(json!({
            "apiVersion": "a.dev/v1", "kind": "Db", "metadata": { "name": "db", "namespace": "shop", "uid": "1" },
        }));
        let child = |uid: Option<&str>, of: &str| {
            let owners = uid.map(|uid| {
                json!([{ "apiVersion": "a.dev/v1", "kind": "Db", "name": "db", "uid": uid, "controller": true }])
            });
            object(json!({ "apiVersion": "v1", "kind": "Pod", "metadata": {
                "name": "p", "namespace": "shop", "labels": { CONTROLLER_LABEL: "db" },
                "annotations": { PARENT_ANNOTATION: of }, "ownerReferences": owners,
            } }))
        };
        let is_child = |child: &DynamicObject| is_child(&parent, "shop/db", child);
        assert!(is_child(&child(Some("1"), "shop/db")));
        assert!(is_child(&child(None, "shop/db")));
        assert!(!is_child(&child(Some("2"), "shop/db")), "of an earlier parent");
        assert!(!is_child(&child(None, "shop/other")));
    }

    #[test]
    fn what_the_user_may_not_list_is_one_line_and_other_errors_are_in_words() {
        let refused = |code, message: &str| {
            let status = kube::core::Status::failure(message, "x").with_code(code);
            kube::Error::Api(Box::new(status))
        };
        let mut unread = Unread::default();
        assert_eq!(Unread::default().lines(), (false, Vec::new()));
        for kind in ["secrets", "configmaps", "secrets"] {
            unread.fail(
                kind.to_owned(),
                &refused(403, "secrets is forbidden: User \"me\" cannot"),
            );
        }
        unread.fail("pods".to_owned(), &refused(500, "no etcd"));
        let lines = ["you may not list: configmaps, secrets", "pods: no etcd"];
        assert_eq!(unread.lines(), (true, lines.map(str::to_owned).to_vec()));
    }

    #[test]
    fn others_that_own_more_than_the_status_are_named() {
        let field = |manager: &str, fields: Value, subresource: &str| json!({ "manager": manager, "operation": "Update", "fieldsV1": fields, "subresource": subresource });
        let pod = object(json!({ "apiVersion": "v1", "kind": "Pod", "metadata": {
            "name": "p", "labels": { CONTROLLER_LABEL: "db" }, "managedFields": [
                field("operator-host/db", json!({ "f:spec": {} }), ""),
                field("kubelet", json!({ "f:status": {} }), "status"),
                field("old-kubelet", json!({ "f:status": {} }), ""),
                field("kubectl-edit", json!({ "f:spec": {} }), ""),
            ],
        } }));
        assert_eq!(other_managers(&pod), ["kubectl-edit"]);
    }

    #[test]
    fn the_version_that_a_resource_holds_back_is_in_its_condition() {
        let condition = |type_: &str, status: &str, message: &str| Condition {
            type_: type_.to_owned(),
            status: status.to_owned(),
            reason: "WouldDelete".to_owned(),
            message: message.to_owned(),
            since: None,
        };
        let held = condition(HELD_BACK, "True", "it would delete a; fix it\n-a\n+b");
        let proposed = proposed(&[condition("Ready", "True", "x"), held]).unwrap();
        assert_eq!(proposed.message, "it would delete a; fix it");
        assert_eq!(proposed.diff, "-a\n+b");
        assert_eq!(super::proposed(&[condition(HELD_BACK, "False", "x")]), None);
    }
}
