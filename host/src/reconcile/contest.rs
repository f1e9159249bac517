//! Notices when another client keeps changing back what the host applies to a child. Then the host says who it is, and
//! applies that child less and less often, so that the two do not spin.

use std::collections::HashSet;
use std::time::Duration;

use kube::core::DynamicObject;
use tokio::time::Instant;
use tracing::{debug, info, warn};

use super::action::{Action, MIN_DELAY};
use super::context::Context;
use super::context::contests::{Report, Rival, Seen};
use super::difference::{content, difference};
use crate::cluster::resource_client::ResourceClient;
use crate::desired::conditions::FIELD_CONTESTED;
use crate::desired::field_path::{FieldPath, other_writer};
use crate::desired::plan::Desired;
use crate::object::{
    APPLIED_ANNOTATION, ChildRef, GENERATION_ANNOTATION, NamespacedName, annotation, made_at, shorten,
};
use crate::plugin::contract::EventType;

/// Maximum size of a path in a message, in bytes: a plugin may choose the keys in it.
const MAX_PATH: usize = 256;

/// Reports whether a child that differs is not applied now, because it was changed back again and again.
///
/// Each time that it is changed back, it is read once, to see who did it.
pub(super) async fn is_on_hold(
    context: &Context,
    parent: &DynamicObject,
    desired: &Desired,
    live: &DynamicObject,
) -> bool {
    let seen = context.memory_of(&NamespacedName::of(parent), |memory| {
        let applied = annotation(live, APPLIED_ANNOTATION);
        memory
            .contests
            .differs(&desired.key, &desired.fingerprint, applied, Instant::now())
    });
    match seen {
        Seen::Edit => false,
        Seen::Contested { hold, is_reported } => {
            if !is_reported {
                report(context, parent, desired).await;
            }
            hold
        }
    }
}

/// Finds out which field of a contested child is changed by whom, and publishes it the first time.
async fn report(context: &Context, parent: &DynamicObject, desired: &Desired) {
    let key = &desired.key;
    let Some(resource) = context.resources.get(&key.kind) else {
        return;
    };
    // The caches do not have `managedFields`, and the account that writes the children may not read them.
    let objects = ResourceClient::new(&context.writer, resource);
    let live = match objects.read(&key.name).await {
        Ok(Some(live)) => live,
        Ok(None) => return,
        Err(error) => {
            // The next reconcile asks again.
            debug!("cannot find out who changes {key}: {error}");
            return;
        }
    };
    let mark = || {
        let path = FieldPath::default().field("metadata").field("annotations");
        let is_newer = made_at(parent, &live) > parent.metadata.generation;
        is_newer.then(|| path.field(GENERATION_ANNOTATION))
    };
    let Some(path) = difference(desired, &live).or_else(mark) else {
        return;
    };
    let manager = context.config.field_manager();
    let applied = annotation(&live, APPLIED_ANNOTATION);
    let managed = live.metadata.managed_fields.as_deref().unwrap_or_default();
    let rival = match other_writer(managed, &path, &manager) {
        Some(writer) if writer.is_owner => Rival::Manager(writer),
        _ if applied.is_some_and(|applied| applied != desired.fingerprint) => Rival::Host(manager),
        writer => writer.map_or(Rival::Unknown, Rival::Manager),
    };
    let path = shorten(&path.to_string(), MAX_PATH);
    let began = context.memory_of(&NamespacedName::of(parent), |memory| {
        let counted = || context.observer.metrics.contested();
        memory.contests.report(key, Report { path, rival }, counted)
    });
    if let Some(message) = began {
        warn!("{message}");
        context.publish(parent, EventType::Warning, FIELD_CONTESTED, &message);
    }
}

/// Remembers that a child was applied, which made `answer` of `live`.
pub(super) fn applied(
    context: &Context,
    parent: &DynamicObject,
    desired: &Desired,
    live: &DynamicObject,
    answer: &DynamicObject,
) {
    let name = NamespacedName::of(parent);
    let was_changed = context.memory_of(&name, |memory| memory.contests.is_changed(&desired.key));
    // If an apply changes nothing, the API server or a webhook always writes a field otherwise.
    let is_futile = was_changed && content(live) == content(answer);
    // The body was another one, although the parent has not changed: a second host may restore it. Or others have removed
    // the host's marks.
    let is_other_body = annotation(live, APPLIED_ANNOTATION) != Some(&desired.fingerprint)
        && made_at(parent, live).is_none_or(|made_at| Some(made_at) >= parent.metadata.generation);
    context.memory_of(&name, |memory| {
        let contests = &mut memory.contests;
        if is_futile {
            contests.take_back(&desired.key);
        } else {
            contests.applied(&desired.key, &desired.fingerprint, is_other_body, Instant::now());
        }
    });
}

/// Ends the contests that are over: those of children that nobody has changed back for a while, and those of children
/// that the plugin no longer wants.
pub(super) fn end(context: &Context, parent: &DynamicObject, desired: &[Desired]) {
    let name = NamespacedName::of(parent);
    if context.memory_of(&name, |memory| memory.contests.is_empty()) {
        return;
    }
    let wanted: HashSet<&ChildRef> = desired.iter().map(|desired| &desired.key).collect();
    let ended = context.memory_of(&name, |memory| {
        memory.contests.end(|key| wanted.contains(key), Instant::now())
    });
    for message in ended {
        info!("{message}");
        context.publish(parent, EventType::Normal, "ContestEnded", &message);
    }
}

/// Forgets the contests of a parent whose children are not applied any more, for example because it is paused.
pub(super) fn forget(context: &Context, parent: &NamespacedName) {
    context.memory_of(parent, |memory| memory.contests.clear());
}

/// Returns when to reconcile a parent again: when the plugin asks for it, or because of its contested children.
pub(super) fn next(context: &Context, parent: &NamespacedName, requeue: Option<Duration>) -> Action {
    let look = context.memory_of(parent, |memory| memory.contests.next(Instant::now()));
    let look = look.map(|look| look.max(MIN_DELAY));
    let next = requeue.into_iter().chain(look).min();
    next.map_or(Action::OnChange, Action::After)
}
