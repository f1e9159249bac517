//! Server-side apply of the children that differ from what is known to be there.

use futures::StreamExt;
use futures::stream;
use kube::core::DynamicObject;
use serde_json::Value;

use super::context::Context;
use super::freshness::may_create;
use crate::cluster::resource_client::{ApiError, Objects};
use crate::desired::drift::says;
use crate::desired::plan::{Desired, owns, retains};
use crate::object::{
    APPLIED_ANNOTATION, ChildKey, DIGEST_ANNOTATION, GENERATION_ANNOTATION, ObjectName, annotation,
    fingerprint, is_terminating, made_at,
};

/// How many children of one parent are applied at the same time.
const CONCURRENCY: usize = 4;

/// What came of it.
#[derive(Debug, Default)]
pub struct Applied {
    /// Children that were not known to be there.
    pub created: Vec<ChildKey>,
    /// Children that were changed.
    pub updated: Vec<ChildKey>,
    /// Children that the API server did not take.
    pub failed: Vec<ApiError>,
}

impl Applied {
    /// Whether the cluster is not as the plugin saw it any more.
    #[must_use]
    pub fn changed(&self) -> bool {
        !self.created.is_empty() || !self.updated.is_empty()
    }
}

/// Applies what differs. One child that fails does not keep the others from being applied.
pub async fn apply(context: &Context, parent: &DynamicObject, desired: &[Desired]) -> Applied {
    let mut applied = Applied::default();
    // One kind after the other, since a pod may need the claim before it.
    for group in desired.chunk_by(|a, b| a.key.kind == b.key.kind) {
        let requests: Vec<_> = group
            .iter()
            .map(|desired| apply_one(context, parent, desired))
            .collect();
        let mut results = std::pin::pin!(stream::iter(requests).buffered(CONCURRENCY));
        for desired in group {
            match results.next().await {
                Some(Ok(Outcome::Created)) => applied.created.push(desired.key.clone()),
                Some(Ok(Outcome::Updated)) => applied.updated.push(desired.key.clone()),
                Some(Ok(Outcome::Unchanged)) | None => {}
                Some(Err(error)) => {
                    // The next child would fare no better; but a namespace that goes is not the whole world of a
                    // cluster-scoped parent.
                    let stops = error.is_overload()
                        || (error.is_namespace_going() && parent.metadata.namespace.is_some());
                    applied.failed.push(error);
                    if stops {
                        // What is under way is given up: whether it was done shows in the next pass.
                        return applied;
                    }
                }
            }
        }
    }
    applied
}

enum Outcome {
    Created,
    Updated,
    Unchanged,
}

async fn apply_one(
    context: &Context,
    parent_object: &DynamicObject,
    desired: &Desired,
) -> Result<Outcome, ApiError> {
    let parent = &ObjectName::of(parent_object);
    let live = context.existing(&desired.key);
    if live
        .as_deref()
        .is_some_and(|live| !needs_apply(context, parent_object, desired, live))
    {
        return Ok(Outcome::Unchanged);
    }
    // `children::plan` has refused kinds that the cluster does not serve.
    let Some(resource) = context.resources.get(&desired.key.kind) else {
        return Ok(Outcome::Unchanged);
    };
    if live.is_none() && !may_create(context, parent_object, &desired.key).await? {
        return Ok(Outcome::Unchanged);
    }
    // Fields are taken over only in objects that are known to be ours. An object that nobody told us of yet
    // must not be overwritten: there a field of another manager is a conflict.
    let force = live.as_deref().is_some_and(|live| {
        owns(&context.config, parent_object, live)
            || retains(&context.config, context.provenance.proof(), parent_object, live)
    });
    let manager = context.config.field_manager();
    let mut body = desired.body.clone();
    if let Some(live) = live.as_ref().filter(|_| force) {
        // What was proved of that object is not proved of one that has its name by now.
        body["metadata"]["uid"] = live.metadata.uid.clone().into();
    }
    let answer = Objects::new(&context.children_writer, resource)
        .apply(&desired.key.name, &body, &manager, force)
        .await
        .inspect_err(|error| {
            context.heard(error);
            if error.is_lost_race() {
                context.doubt(parent);
            }
        })?;
    let was = live
        .as_ref()
        .and_then(|live| live.metadata.resource_version.clone());
    let outcome = match &live {
        None => Outcome::Created,
        Some(_) if was == answer.metadata.resource_version => Outcome::Unchanged,
        Some(_) => Outcome::Updated,
    };
    remember(context, parent, desired, &answer);
    // An answer that changed nothing is no write of ours: its version may be one that the plugin has not seen.
    if !matches!(outcome, Outcome::Unchanged) {
        context.record_child(parent, &desired.key, answer);
    }
    Ok(outcome)
}

/// Whether a child must be applied although it is there.
fn needs_apply(context: &Context, parent: &DynamicObject, desired: &Desired, live: &DynamicObject) -> bool {
    if is_terminating(live) {
        // It is made anew when it is gone; the watch will tell.
        return false;
    }
    if annotation(live, APPLIED_ANNOTATION) != Some(&desired.fingerprint) {
        return true;
    }
    // No generation is newer than the parent's: `freshness` has asked the API server.
    if made_at(parent, live) > parent.metadata.generation {
        return true;
    }
    if is_as_applied(desired, live) {
        return false;
    }
    // The API server may write a value in its own way for ever: then what counts is that it still is what came
    // of the last apply.
    let now = (desired.fingerprint.clone(), content(live));
    context.memory_of(&ObjectName::of(parent), |memory| {
        memory.normalized.get(&desired.key) != Some(&now)
    })
}

fn remember(context: &Context, parent: &ObjectName, desired: &Desired, answer: &DynamicObject) {
    context.memory_of(parent, |memory| {
        if is_as_applied(desired, answer) {
            memory.normalized.remove(&desired.key);
        } else {
            let came_of_it = (desired.fingerprint.clone(), content(answer));
            memory.normalized.insert(desired.key.clone(), came_of_it);
        }
    });
}

fn is_as_applied(desired: &Desired, live: &DynamicObject) -> bool {
    let group = desired.key.kind.group();
    says(group, &live.data, &desired.body) && says_metadata(&desired.body["metadata"], live)
}

fn says_metadata(desired: &Value, live: &DynamicObject) -> bool {
    let metadata = &live.metadata;
    let strings = |field: &str, live: Option<&std::collections::BTreeMap<String, String>>| {
        desired[field]
            .as_object()
            .into_iter()
            .flatten()
            .all(|(key, value)| {
                // Which version and generation changed the child last: another one alone is no reason to write.
                matches!(key.as_str(), DIGEST_ANNOTATION | GENERATION_ANNOTATION)
                    || live.and_then(|live| live.get(key)).map(String::as_str) == value.as_str()
            })
    };
    let owners = desired["ownerReferences"]
        .as_array()
        .into_iter()
        .flatten()
        .all(|owner| {
            let live = metadata.owner_references.iter().flatten();
            live.into_iter()
                .any(|live| owner["uid"] == live.uid && live.controller == Some(true))
        });
    let finalizers = desired["finalizers"]
        .as_array()
        .into_iter()
        .flatten()
        .all(|finalizer| metadata.finalizers.iter().flatten().any(|live| finalizer == live));
    owners
        && finalizers
        && strings("labels", metadata.labels.as_ref())
        && strings("annotations", metadata.annotations.as_ref())
}

/// Fingerprint of all that an apply could change.
fn content(live: &DynamicObject) -> String {
    let mut data = live.data.clone();
    if let Some(data) = data.as_object_mut() {
        data.remove("status");
    }
    let metadata = &live.metadata;
    fingerprint(&(
        &metadata.labels,
        &metadata.annotations,
        &metadata.owner_references,
        &metadata.finalizers,
        data,
    ))
}
