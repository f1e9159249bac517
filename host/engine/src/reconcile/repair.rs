//! Puts right what server-side apply alone cannot: others have added to a child, and the result is refused.
//!
//! Examples are a probe with two handlers, a Service with two ports of one name, and the default of a strategy that is no
//! longer wanted. An apply removes nothing that it does not own. So the smallest part of the child that holds the refused
//! field is replaced by the wanted one, or removed if the host applied it and wants none, and then the child is applied. What
//! others have elsewhere stays.

use std::borrow::Cow;
use std::cmp::Reverse;
use std::collections::HashMap;
use std::sync::Arc;

use k8s_openapi::apimachinery::pkg::apis::meta::v1::ManagedFieldsEntry;
use kube::api::PatchParams;
use kube::core::DynamicObject;
use serde_json::{Value, json};
use tracing::debug;

use super::context::LiveChild;
use operator_host_cluster::api_error::{ApiError, Fault};
use operator_host_cluster::resource_client::ResourceClient;
use operator_host_core::field_path::{self, FieldPath};
use operator_host_core::managed_fields::{Elements, applied_by, is_apply_of};
use operator_host_desired::drift::{Cause, drift, leave_out};
use operator_host_desired::plan::Desired;

/// How many parts that an apply has left as they are, such as lists in another order, are put right at once.
const MOST_LOST: usize = 8;
/// How many replacements are tried, the smallest first.
const TRIES: usize = 3;
/// How often the host tries to give up what a replacement owns.
const DISOWN_TRIES: usize = 5;
/// Fields at the root that are never replaced as a whole: that would reset what others and the API server set.
const TOO_LARGE: [&str; 2] = ["metadata", "spec"];

/// The apply of a child that exists and is ours.
pub(super) struct Repair<'a> {
    pub(super) objects: &'a ResourceClient<'a>,
    pub(super) desired: &'a Desired,
    pub(super) body: &'a Value,
    pub(super) manager: &'a str,
}

/// Whether the API server refuses the object, and not only this version of it.
fn is_refusal(error: &ApiError) -> bool {
    error.fault == Fault::Refused(422) && !error.is_lost_race()
}

impl Repair<'_> {
    /// Applies the child, and replaces parts of it where the apply does not suffice; see the module.
    ///
    /// What only a subresource may change, or nobody may change back, is left as others set it: then the refusal is returned
    /// beside the answer.
    ///
    /// # Errors
    /// The refusal when no part can be replaced; the error of any other request.
    pub(super) async fn apply(
        &self,
        live: &LiveChild,
    ) -> Result<(DynamicObject, Option<ApiError>), ApiError> {
        let (desired, manager) = (self.desired, self.manager);
        let mut answer = match self.send(self.body).await {
            Ok(answer) => answer,
            Err(refused) if is_refusal(&refused) => {
                let fields = refused_fields(&refused.message);
                let parts = fields
                    .iter()
                    .flat_map(|field| parts(field, desired, live, manager));
                if let Some(replaced) = self.replace(live, parts.collect()).await? {
                    return Ok((replaced, None));
                }
                return match self.without_lost(live, &fields).await? {
                    Some(answer) => Ok((answer, Some(refused))),
                    None => Err(refused),
                };
            }
            Err(error) => return Err(error),
        };
        // Old API servers, such as 1.20, drop an empty map that is added to others' fields, without a word, and keep the order of
        // the elements that they have. Each replacement puts one part right.
        for _ in 0..MOST_LOST {
            let managed = answer.metadata.managed_fields.as_deref().unwrap_or_default();
            let mut lost = drift(managed, manager, &desired.body, &answer);
            lost.retain(|it| it.cause == Cause::Lost);
            if lost.is_empty() {
                break;
            }
            let managed = managed.to_vec().into();
            let object = Arc::new(answer);
            let after = LiveChild { object, managed };
            let steps = lost.iter().map(|it| steps_of(&it.path, &after.object.data));
            let parts = steps.flat_map(|steps| parts(&steps, desired, &after, manager));
            match self.replace(&after, parts.collect()).await? {
                Some(replaced) => answer = replaced,
                None => return Ok((Arc::unwrap_or_clone(after.object), None)),
            }
        }
        Ok((answer, None))
    }

    async fn send(&self, body: &Value) -> Result<DynamicObject, ApiError> {
        let params = PatchParams::apply(self.manager).force();
        self.objects.apply(&self.desired.key.name, body, &params).await
    }

    /// Applies the child without the refused fields that others have taken over or, if that is not enough, without all that they
    /// have taken over. Returns `None` when there are none, or that is refused, too.
    async fn without_lost(
        &self,
        live: &LiveChild,
        refused: &[Vec<String>],
    ) -> Result<Option<DynamicObject>, ApiError> {
        let lost = drift(&live.managed, self.manager, &self.desired.body, &live.object);
        let lost = lost.iter().filter(|it| it.cause == Cause::Lost);
        let lost: Vec<_> = lost.map(|it| &it.path).collect();
        let is_refused = |path: &FieldPath| {
            let steps = steps_of(path, &live.object.data);
            let mut refused = refused.iter();
            refused.any(|refused| steps.starts_with(refused) || refused.starts_with(&steps))
        };
        let named = lost.iter().copied().filter(|path| is_refused(path)).collect();
        let mut tried = Value::Null;
        for lost in [named, lost] {
            let mut body = self.body.clone();
            if !leave_out(&mut body, lost, &live.managed, self.manager) || body == tried {
                continue;
            }
            match self.send(&body).await {
                Ok(answer) => return Ok(Some(answer)),
                Err(error) if is_refusal(&error) => tried = body,
                Err(error) => return Err(error),
            }
        }
        Ok(None)
    }

    /// Removes these parts that are no longer wanted or, if there are none or that does not suffice, replaces the first of the
    /// others with which the child can be applied. Returns the object after it; `None` when there is no such part.
    async fn replace(
        &self,
        live: &LiveChild,
        parts: Vec<Part<'_>>,
    ) -> Result<Option<DynamicObject>, ApiError> {
        let key = &self.desired.key;
        let version = live.object.metadata.resource_version.as_deref();
        let changes = parts.iter().map(|part| (&*part.pointer, part.wanted.as_deref()));
        let (mut removed, replaced): (Vec<_>, Vec<_>) = changes.partition(|(_, wanted)| wanted.is_none());
        // The last of a list first, since the positions of those after it change.
        removed.sort_unstable_by_key(|(pointer, _)| Reverse((pointer.len(), *pointer)));
        removed.dedup();
        let removed = Some(removed).filter(|removed| !removed.is_empty());
        let tries = removed
            .into_iter()
            .chain(replaced.into_iter().map(|part| vec![part]));
        for changes in tries.take(TRIES) {
            let answer = self
                .objects
                .replace_parts(&key.name, version, &changes, self.manager)
                .await;
            match answer {
                Ok(_) => {}
                Err(error) if error.fault == Fault::Refused(422) => continue,
                Err(error) => return Err(error),
            }
            let pointers: Vec<_> = changes.iter().map(|(pointer, _)| pointer).collect();
            debug!("replaced {pointers:?} of {key}: what others did there was in the way");
            let mut body = self.body.clone();
            if let Some(metadata) = body["metadata"].as_object_mut() {
                // That of the object before it was replaced.
                metadata.remove("resourceVersion");
            }
            let answer = self.send(&body).await?;
            return self.disown(answer).await.map(Some);
        }
        Ok(None)
    }

    /// Gives up what the replacement owns beside the apply: a field that the plugin no longer wants would stay.
    async fn disown(&self, mut applied: DynamicObject) -> Result<DynamicObject, ApiError> {
        let (name, manager) = (&self.desired.key.name, self.manager);
        let is_replacement = |entry: &ManagedFieldsEntry| {
            entry.manager.as_deref() == Some(manager) && !is_apply_of(entry, manager)
        };
        // A controller of the kind, for example, may write the object meanwhile.
        for _ in 0..DISOWN_TRIES {
            let managed = applied.metadata.managed_fields.as_deref().unwrap_or_default();
            if !managed.iter().any(is_replacement) {
                break;
            }
            let others: Vec<_> = managed.iter().filter(|entry| !is_replacement(entry)).collect();
            let patch = json!({ "metadata": {
                "managedFields": others, "uid": applied.metadata.uid, "resourceVersion": applied.metadata.resource_version,
            } });
            match self.objects.merge(name, &patch, manager).await {
                Err(error) if error.is_lost_race() => match self.objects.read(name).await? {
                    Some(fresh) => applied = fresh,
                    None => break,
                },
                answer => return answer,
            }
        }
        Ok(applied)
    }
}

/// A part of a child that can be replaced: where it is in the live object (RFC 6901), and what it should be; `None` when it should
/// not be there.
#[derive(Debug, PartialEq)]
struct Part<'a> {
    pointer: String,
    wanted: Option<Cow<'a, Value>>,
}

impl Part<'_> {
    const fn removed(pointer: String) -> Self {
        let wanted = None;
        Self { pointer, wanted }
    }
}

/// Returns the fields that the API server names in a refusal, such as `spec.ports[1].name`.
///
/// Source: `field.Error` of `k8s.io/apimachinery/pkg/util/validation/field`.
fn refused_fields(message: &str) -> Vec<Vec<String>> {
    const REASONS: [&str; 6] = [
        ": Forbidden",
        ": Invalid value",
        ": Duplicate value",
        ": Required value",
        ": Unsupported value",
        ": Too many",
    ];
    let mut found = Vec::new();
    for (at, _) in message.match_indices(": ") {
        if REASONS.iter().any(|reason| message[at..].starts_with(reason)) {
            let path = message[..at].rsplit(' ').next().unwrap_or_default();
            let steps = path.split(['.', '[']).map(|step| step.trim_end_matches(']'));
            let steps = steps.filter(|step| !step.is_empty()).map(str::to_owned);
            let path: Vec<_> = steps.collect();
            if !path.is_empty() && !found.contains(&path) {
                found.push(path);
            }
        }
    }
    found
}

/// Returns the names and positions of a path in `live`, as far as it is there.
fn steps_of(path: &FieldPath, live: &Value) -> Vec<String> {
    let mut at = Some(live);
    let steps = path.0.iter().map_while(|step| {
        let now = at?;
        match step {
            field_path::Step::Field(name) => {
                at = now.get(name);
                Some(name.clone())
            }
            field_path::Step::Element(element) => {
                let position = now.as_array()?.iter().position(|live| live == &**element)?;
                at = now.get(position);
                Some(position.to_string())
            }
        }
    });
    steps.collect()
}

/// Returns the parts of a child that hold a refused field and differ from the desired ones, the smallest first. One that is not
/// desired is among them only if the manager applied it.
fn parts<'a>(path: &[String], desired: &'a Desired, live: &LiveChild, manager: &str) -> Vec<Part<'a>> {
    let mut parts = Vec::new();
    let mut pointer = String::new();
    let (mut wanted, mut is) = (&desired.body, &live.object.data);
    let mut place = applied_by(&live.managed, manager);
    for (depth, step) in (0..).zip(path) {
        let next = match (wanted, is) {
            (Value::Object(wanted), Value::Object(is)) => {
                place = place.and_then(|place| place.get(format!("f:{step}")));
                (wanted.get(step), is.get(step))
            }
            (Value::Array(wanted), Value::Array(is)) => {
                let Some(elements) = place.map(Elements::of) else {
                    break;
                };
                let names = elements.assign(wanted);
                let position: Result<usize, _> = step.parse();
                if position.is_err() {
                    // Old API servers, such as 1.20, name the fields of a custom resource without the positions.
                    let unwanted = is.iter().enumerate().filter(|(_, live)| {
                        let name = elements.find(live);
                        name.is_some() && !names.contains(&name)
                    });
                    parts.extend(unwanted.map(|(at, _)| Part::removed(format!("{pointer}/{at}"))));
                }
                let Some(live) = position.ok().and_then(|position| is.get(position)) else {
                    break;
                };
                let name = elements.find(live);
                let desired = name.and_then(|name| names.iter().position(|of| *of == Some(name)));
                place = name.map(|name| elements.at(name).1);
                (desired.and_then(|desired| wanted.get(desired)), Some(live))
            }
            _ => break,
        };
        let (next, Some(live)) = next else { break };
        pointer = format!("{pointer}/{}", step.replace('~', "~0").replace('/', "~1"));
        let Some(next) = next else {
            if place.is_some() {
                parts.push(Part::removed(pointer));
            }
            break;
        };
        (wanted, is) = (next, live);
        // An empty list has no elements to restore, and those of others may stay.
        let is_part = wanted.is_object() || wanted.as_array().is_some_and(|list| !list.is_empty());
        let is_small = depth > 0 || !TOO_LARGE.contains(&step.as_str());
        if is_part && is_small && wanted != is {
            let (pointer, wanted) = (pointer.clone(), Some(Cow::Borrowed(wanted)));
            parts.push(Part { pointer, wanted });
        }
        if depth + 1 == path.len()
            && let (Value::Array(wanted), Value::Array(is), Some(place)) = (wanted, is, place)
            && let Some(list) = reordered(wanted, is, &Elements::of(place))
        {
            let wanted = Some(Cow::Owned(list));
            return vec![Part { pointer, wanted }];
        }
    }
    parts.reverse();
    parts
}

/// Returns a live list with the manager's elements in the wanted order, in the places that they have together; `None` when they
/// are in that order.
fn reordered(wanted: &[Value], live: &[Value], elements: &Elements<'_>) -> Option<Value> {
    let places = live.iter().enumerate();
    let places: HashMap<_, _> = places
        .filter_map(|(at, live)| Some((elements.find(live)?, at)))
        .collect();
    let names = elements.assign(wanted).into_iter().flatten();
    let from: Vec<_> = names.filter_map(|name| places.get(&name).copied()).collect();
    if !elements.are_keyed() || from.is_sorted() {
        return None;
    }
    let mut to = from.clone();
    to.sort_unstable();
    let mut list = live.to_vec();
    for (to, from) in to.into_iter().zip(from) {
        list[to] = live[from].clone();
    }
    Some(Value::Array(list))
}

#[cfg(test)]
mod tests;
