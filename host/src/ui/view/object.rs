//! One object: its conditions, the tree of its children, its last reconciles and Events.

use std::sync::Arc;

use jiff::Timestamp;
use kube::ResourceExt;
use kube::core::DynamicObject;
use serde::Serialize;
use serde_json::{Value, json};

use super::objects::Summary;
use super::{One, incomplete, not_running};
use crate::ui::Sources;
use operator_host_contract::Kind;
use operator_host_core::object::{NamespacedName, Provenance, controller_of, group_of, kind_in_words};
use operator_host_core::text::shorten;
use operator_host_delivery::report::CandidateVersion;
use operator_host_desired::readiness::unready;
use operator_host_engine::reconcile::context::Context;
use operator_host_instruments::journal::{PublishedEvent, Reconcile};

/// Number of reconciles.
const RECONCILES: usize = 20;
/// Bytes of a text from the cluster: its authors choose it.
const TEXT: usize = 2048;
/// Levels of the tree below the object.
const DEPTH: usize = 3;

#[derive(Serialize)]
#[serde(rename_all = "camelCase")]
pub(super) struct Object {
    controller: String,
    kind: String,
    name: String,
    #[serde(flatten)]
    summary: Summary,
    /// Whether this replica reconciles it. Otherwise the reconciles are those from before.
    leads: bool,
    generation: Option<i64>,
    observed_generation: Option<i64>,
    created: Option<Timestamp>,
    conditions: Vec<Value>,
    children: Vec<Child>,
    /// How many children there are, with those that are not shown.
    total_children: usize,
    /// How many of them are not ready.
    unready_children: usize,
    /// The kinds that the controller watches for its children. Objects of others are in no cache, so they are not shown.
    watched_kinds: Vec<String>,
    /// What cannot be shown, and why.
    unreadable: Vec<String>,
    reconciles: Vec<Reconcile>,
    events: Vec<PublishedEvent>,
    /// The version of the plugin that is not live.
    #[serde(skip_serializing_if = "Option::is_none")]
    candidate: Option<CandidateVersion>,
    /// Why the object holds that version back.
    #[serde(skip_serializing_if = "Option::is_none")]
    blocks: Option<String>,
}

#[derive(Serialize)]
#[serde(rename_all = "camelCase")]
struct Child {
    kind: String,
    name: String,
    /// Why it is not ready; absent when it is.
    #[serde(skip_serializing_if = "Option::is_none")]
    unready: Option<String>,
    /// Whether it stays when the object is deleted.
    retained: bool,
    created: Option<Timestamp>,
    /// The version of the plugin that last changed it.
    #[serde(skip_serializing_if = "Option::is_none")]
    plugin: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    digest: Option<String>,
    /// The generation of the object at that change.
    #[serde(skip_serializing_if = "Option::is_none")]
    generation: Option<String>,
    #[serde(skip_serializing_if = "Vec::is_empty")]
    children: Vec<Child>,
    /// How many more objects it owns that are not shown.
    #[serde(skip_serializing_if = "is_zero")]
    more: usize,
}

#[expect(clippy::trivially_copy_pass_by_ref, reason = "serde passes a reference")]
const fn is_zero(number: &usize) -> bool {
    *number == 0
}

pub(super) fn object(sources: &Sources, one: &One) -> Result<Object, String> {
    let context = sources.controllers.named(&one.controller);
    let context = context.ok_or_else(|| not_running(&one.controller))?;
    let config = &context.config;
    let missing = || format!("there is no {} {}", in_words(&config.parent), one.name);
    let parent = context.caches.parent(&one.name).ok_or_else(missing)?;
    let mut owned = context.owned(&parent);
    let total_children = owned.len();
    let unready_children = owned.iter().filter(|child| unready(child).is_some()).count();
    // The ones that need attention are not among those that are left out.
    owned.sort_by_cached_key(|child| (unready(child).is_none(), kind(child), NamespacedName::of(child)));
    owned.truncate(one.children);
    let mut room = one.children;
    let journal = sources.journal.of(&config.id);
    let mut reports = sources.health.plugins().into_iter();
    let report = reports.find(|report| report.controller == config.id);
    let blocks = context.versions.blocking_parents.reason(&one.name);
    Ok(Object {
        controller: config.id.clone(),
        kind: config.parent.to_string(),
        name: one.name.to_string(),
        summary: Summary::of(&parent),
        leads: context.cluster.writer.term.holds(),
        generation: parent.metadata.generation,
        observed_generation: parent.data["status"]["observedGeneration"].as_i64(),
        created: created(&parent),
        conditions: conditions(&parent),
        children: children(&context, &owned, DEPTH, &mut room),
        total_children,
        unready_children,
        watched_kinds: context.caches.children.keys().map(in_words).collect(),
        unreadable: unreadable(&context),
        reconciles: journal.of_parent(&one.name, RECONCILES),
        events: journal.events(Some(&one.name)),
        candidate: report.and_then(|report| report.candidate),
        blocks: blocks.map(|reason| reason.message),
    })
}

fn created(object: &DynamicObject) -> Option<Timestamp> {
    object.metadata.creation_timestamp.as_ref().map(|time| time.0)
}

fn kind(object: &DynamicObject) -> String {
    let types = object.types.clone().unwrap_or_default();
    kind_in_words(group_of(&types.api_version), &types.kind).into_owned()
}

fn in_words(kind: &Kind) -> String {
    kind_in_words(kind.group(), &kind.kind).into_owned()
}

fn conditions(parent: &DynamicObject) -> Vec<Value> {
    let all = parent.data["status"]["conditions"].as_array();
    let conditions = all.into_iter().flatten().map(|condition| {
        let text = |field: &str| shorten(condition[field].as_str().unwrap_or_default(), TEXT);
        json!({
            "type": text("type"),
            "status": text("status"),
            "reason": text("reason"),
            "message": text("message"),
            "since": text("lastTransitionTime").parse::<Timestamp>().ok(),
        })
    });
    conditions.collect()
}

fn children(context: &Context, all: &[Arc<DynamicObject>], depth: usize, room: &mut usize) -> Vec<Child> {
    all.iter().map(|it| child(context, it, depth, room)).collect()
}

/// Describes a child, with what its own controller has created, as far as the host watches it. `room` is the number of
/// such objects that may still be shown.
fn child(context: &Context, object: &Arc<DynamicObject>, depth: usize, room: &mut usize) -> Child {
    let mut below = created_for(context, object);
    let all = below.len();
    below.truncate(if depth == 0 { 0 } else { *room });
    let more = all - below.len();
    *room -= below.len();
    let made = Provenance::of(object);
    Child {
        kind: kind(object),
        name: object.name_any(),
        unready: unready(object).map(|why| shorten(&why, TEXT)),
        retained: controller_of(object).is_none(),
        created: created(object),
        plugin: made.map(|made| shorten(made.plugin, TEXT)),
        digest: made.map(|made| shorten(made.digest, TEXT)),
        generation: made.and_then(|made| Some(made.parent?.0.to_string())),
        children: children(context, &below, depth.saturating_sub(1), room),
        more,
    }
}

/// Returns the objects in the caches that an object owns.
fn created_for(context: &Context, owner: &DynamicObject) -> Vec<Arc<DynamicObject>> {
    let Some(uid) = owner.metadata.uid.as_deref() else {
        return Vec::new();
    };
    let mut owned = context.caches.referring_to(uid, &NamespacedName::of(owner));
    owned.retain(|object| controller_of(object).is_some_and(|owner| owner.uid == uid));
    owned
}

/// Returns the kinds whose objects the caches lack.
fn unreadable(context: &Context) -> Vec<String> {
    let parents = std::iter::once((&context.config.parent, &context.caches.parents));
    let watches = parents.chain(&context.caches.children);
    let incomplete = watches.flat_map(|(kind, watches)| incomplete(kind, watches));
    let not_served = context.cluster.served.not_served.values();
    let all = incomplete.chain(not_served.map(ToString::to_string));
    all.map(|text| shorten(&text, TEXT)).collect()
}
