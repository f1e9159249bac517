//! The children of a resource, each with what its own controller has created.

use std::collections::{BTreeSet, HashSet};
use std::pin::pin;

use futures::stream::{self, StreamExt};
use jiff::Timestamp;
use k8s_openapi::api::apps::v1::ReplicaSet;
use k8s_openapi::api::batch::v1::Job;
use k8s_openapi::api::core::v1::Pod;
use kube::api::{ApiResource, DynamicObject, ListParams};
use kube::core::TypeMeta;
use kube::{Client, ResourceExt};
use serde_json::Value;

use super::kinds::{CONCURRENCY, Kinds};
use super::words;
use operator_host_author::output::{GREEN, Paint, RED, age, short, table};
use operator_host_cluster::objects::Objects;
use operator_host_core::managed_fields::is_only_status;
use operator_host_core::object::{
    CONTROLLER_LABEL, FIELD_MANAGER_PREFIX, NamespacedName, PARENT_ANNOTATION, Provenance, annotation,
    controller_of, group_of, kind_for_kubectl, kind_in_words, label, maker,
};
use operator_host_core::text::printable;
use operator_host_desired::readiness::unready;

/// Kinds whose objects may hold secrets or much data, and whose status does not matter.
const METADATA_ONLY: [&str; 2] = ["Secret", "ConfigMap"];
const HEADINGS: [&str; 6] = ["NAME", "STATE", "AGE", "PLUGIN", "GENERATION", "ALSO MANAGED BY"];
/// Longest state in the table.
const STATE: usize = 60;

/// The children that were found.
pub(super) struct Found {
    /// By kind, namespace and name.
    pub(super) all: Vec<DynamicObject>,
    /// What the controllers of Kubernetes may have created for them.
    pub(super) created: Vec<DynamicObject>,
    /// What could not be read, and why, one line each.
    pub(super) unread: BTreeSet<String>,
}

/// Finds the children of a resource.
pub(super) async fn find(
    client: &Client,
    kinds: &Kinds,
    parent: &DynamicObject,
    namespace: Option<&str>,
) -> Found {
    let unserved = kinds.unreadable.iter();
    let mut unread: BTreeSet<_> = unserved
        .map(|(version, why)| format!("{version}: {why}"))
        .collect();
    let mut forbidden = BTreeSet::new();
    let mut note = |resource: &ApiResource, error: &kube::Error| {
        let kind = kind_for_kubectl(&resource.group, &resource.plural);
        match error {
            kube::Error::Api(status) if status.code == 403 => forbidden.insert(kind),
            _ => unread.insert(format!("{kind}: {}", words(error))),
        };
    };
    let listable = kinds.all.iter().filter(|served| {
        served.is_listable && served.api.kind != "Event" && (namespace.is_none() || served.is_namespaced)
    });
    let listed = stream::iter(listable).map(|served| async move {
        let objects = children_of(parent, client, &served.api, namespace).await;
        (&served.api, objects)
    });
    let mut listed = pin!(listed.buffered(CONCURRENCY));
    let mut found = Vec::new();
    while let Some((resource, objects)) = listed.next().await {
        match objects {
            Ok(objects) => found.extend(objects),
            // A kind that disappears, or cannot be listed after all, is no kind of a child.
            Err(kube::Error::Api(status)) if matches!(status.code, 404 | 405) => {}
            Err(error) => note(resource, &error),
        }
    }
    // Several groups may serve one object, such as an Ingress.
    let mut uids = HashSet::new();
    found.retain(|child| child.metadata.uid.clone().is_none_or(|uid| uids.insert(uid)));
    found.sort_by_cached_key(|child| (kind(child), child.namespace(), child.name_any()));
    let mut created = Vec::new();
    let kinds = [
        ApiResource::erase::<ReplicaSet>(&()),
        ApiResource::erase::<Job>(&()),
        ApiResource::erase::<Pod>(&()),
    ];
    for resource in kinds.into_iter().filter(|_| !found.is_empty()) {
        match list(client, &resource, namespace, &ListParams::default()).await {
            Ok(objects) => created.extend(objects),
            Err(error) => note(&resource, &error),
        }
    }
    if !forbidden.is_empty() {
        let kinds: Vec<_> = forbidden.into_iter().collect();
        unread.insert(format!("you may not list: {}", kinds.join(", ")));
    }
    Found {
        all: found,
        created,
        unread,
    }
}

/// Lists the children of a kind. In the namespace of a parent, those whose label a policy has removed are among them.
async fn children_of(
    parent: &DynamicObject,
    client: &Client,
    resource: &ApiResource,
    namespace: Option<&str>,
) -> kube::Result<Vec<DynamicObject>> {
    let labelled = ListParams::default().labels(CONTROLLER_LABEL);
    let all = match namespace {
        Some(_) => ListParams::default(),
        None => labelled.clone(),
    };
    let name = NamespacedName::of(parent).to_string();
    let api = Objects::new(client.clone(), resource, namespace);
    let mut metadata = api.list_metadata(&all).await?.items;
    metadata.retain(|object| is_child(parent, &name, object));
    if metadata.is_empty() || METADATA_ONLY.contains(&resource.kind.as_str()) {
        let objects = metadata.into_iter().map(|object| DynamicObject {
            types: Some(types(resource)),
            metadata: object.metadata,
            data: Value::Null,
        });
        return Ok(objects.collect());
    }
    let is_labelled = metadata
        .iter()
        .all(|object| label(object, CONTROLLER_LABEL).is_some());
    let selected = if is_labelled { labelled } else { all };
    let mut objects = list(client, resource, namespace, &selected).await?;
    objects.retain(|object| is_child(parent, &name, object));
    Ok(objects)
}

/// Lists objects, with their kind, which lists leave out.
async fn list(
    client: &Client,
    resource: &ApiResource,
    namespace: Option<&str>,
    selected: &ListParams,
) -> kube::Result<Vec<DynamicObject>> {
    let api = Objects::new(client.clone(), resource, namespace);
    let mut objects = api.list(selected).await?.items;
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
        Some(owner) => Some(&owner.uid) == parent.metadata.uid.as_ref() && maker(object).is_some(),
        None => {
            label(object, CONTROLLER_LABEL).is_some() && annotation(object, PARENT_ANNOTATION) == Some(name)
        }
    }
}

/// Reports whether this is a ReplicaSet of an earlier version of a Deployment.
fn is_scaled_down(object: &DynamicObject) -> bool {
    let kind = object.types.as_ref().map(|types| types.kind.as_str());
    kind == Some("ReplicaSet") && object.data["spec"]["replicas"] == 0
}

/// Returns who else owns fields of an object. Managers that write only its status, such as the kubelet, are left out.
fn other_managers(object: &DynamicObject) -> Vec<String> {
    if maker(object).is_none() {
        return Vec::new();
    }
    let others = object.managed_fields().iter().filter(|entry| {
        let has_subresource = !entry.subresource.as_deref().unwrap_or_default().is_empty();
        !has_subresource && !is_only_status(entry)
    });
    let names = others.filter_map(|entry| entry.manager.clone());
    let names: BTreeSet<_> = names
        .filter(|name| !name.starts_with(FIELD_MANAGER_PREFIX))
        .collect();
    names.into_iter().collect()
}

/// Returns the kind of an object, with the group.
fn kind(object: &DynamicObject) -> String {
    let types = object.types.clone().unwrap_or_default();
    kind_in_words(group_of(&types.api_version), &types.kind).into_owned()
}

/// A row of the table, with its colour.
type Row = ([String; 6], Option<&'static str>);

impl Found {
    /// Formats the tree of children of an object in this namespace.
    pub(super) fn table(&self, namespace: Option<&str>, now: Timestamp, paint: Paint) -> String {
        let mut rows = vec![(HEADINGS.map(str::to_owned), None)];
        for child in &self.all {
            self.add_rows(&mut rows, child, ["", ""], namespace, now);
        }
        let (rows, colours): (Vec<_>, Vec<_>) = rows.into_iter().unzip();
        let lines = table(&rows).into_iter().zip(colours);
        let lines = lines.map(|(line, colour)| match colour {
            Some(colour) => format!("  {}\n", paint.with(colour, &line)),
            None => format!("  {line}\n"),
        });
        lines.collect()
    }

    /// Adds an object, and what its own controller has created. Names its namespace where that is another than that of its
    /// owner, which is `namespace`.
    fn add_rows(
        &self,
        rows: &mut Vec<Row>,
        object: &DynamicObject,
        [branch, indent]: [&str; 2],
        namespace: Option<&str>,
        now: Timestamp,
    ) {
        let own = object.metadata.namespace.as_deref();
        let place = own.filter(|_| own != namespace).map(|own| format!(" in {own}"));
        let unready = unready(object);
        let mut state: String = match &unready {
            Some(why) => printable(why).chars().take(STATE).collect(),
            None => "ready".to_owned(),
        };
        // It stays when the resource is deleted.
        if controller_of(object).is_none() {
            state += ", retained";
        }
        let created = object.metadata.creation_timestamp.as_ref();
        let made = Provenance::of(object);
        let plugin = made.map(|made| printable(&format!("{} ({})", made.plugin, short(made.digest))));
        let generation = made.and_then(|made| Some(made.parent?.0.to_string()));
        let row = [
            format!(
                "{branch}{}/{}{}",
                kind(object),
                object.name_any(),
                place.unwrap_or_default()
            ),
            state,
            created.map_or_else(String::new, |created| age(created.0, now)),
            plugin.unwrap_or_default(),
            generation.unwrap_or_default(),
            printable(&other_managers(object).join(", ")),
        ];
        rows.push((row, Some(if unready.is_none() { GREEN } else { RED })));
        let is_own = |other: &&DynamicObject| {
            controller_of(other).is_some_and(|owner| Some(&owner.uid) == object.metadata.uid.as_ref())
                && !is_scaled_down(other)
        };
        let mut below = self.created.iter().filter(is_own).peekable();
        while let Some(other) = below.next() {
            let [fork, line] = match below.peek() {
                None => ["└─ ", "   "],
                Some(_) => ["├─ ", "│  "],
            };
            let lead = [format!("{indent}{fork}"), format!("{indent}{line}")];
            self.add_rows(rows, other, [&lead[0], &lead[1]], own, now);
        }
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn object(value: Value) -> DynamicObject {
        serde_json::from_value(value).unwrap()
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
}
