//! Notices when another client keeps changing back what the host applies to a child. Then the host says who it is, and
//! applies that child less and less often, so that the two do not spin.

use kube::core::DynamicObject;
use tokio::time::Instant;
use tracing::{info, warn};

use super::action::{Action, MIN_DELAY};
use super::apply::Live;
use super::context::Context;
use super::context::ParentMemory;
use super::context::pace::{Pace, Report};
use operator_host_contract::EventType;
use operator_host_core::field_path::FieldPath;
use operator_host_core::managed_fields::{FieldWriter, other_writer};
use operator_host_core::object::{APPLIED_ANNOTATION, ChildRef, NamespacedName, annotation, shorten};
use operator_host_desired::conditions::{FIELD_CONTESTED, Reason};
use operator_host_desired::plan::Desired;

/// Maximum size of a path in a message, in bytes: a plugin may choose the keys in it.
const MAX_PATH: usize = 256;

/// How many children the condition names.
const SHOWN: usize = 3;

/// Reports whether another client has changed a child that differs from what is desired: it has the marks of this body, or
/// this body was written last.
pub(super) fn is_changed_back(
    context: &Context,
    parent: &DynamicObject,
    desired: &Desired,
    live: &Live,
) -> bool {
    let applied = annotation(&live.object, APPLIED_ANNOTATION);
    applied == Some(&desired.fingerprint)
        || context.memory_of(&NamespacedName::of(parent), |memory| {
            let pace = memory.paces.get(&desired.key.identity());
            pace.is_some_and(|pace| pace.is_of(&desired.fingerprint))
        })
}

/// Reports whether a child that was changed back is not applied now, because that happens again and again.
pub(super) fn is_on_hold(
    context: &Context,
    parent: &DynamicObject,
    desired: &Desired,
    live: &Live,
    drift: &FieldPath,
) -> bool {
    let now = Instant::now();
    let contested = context.memory_of(&NamespacedName::of(parent), |memory| {
        let pace = memory.paces.get_mut(&desired.key.identity())?;
        pace.changed_back(now);
        pace.is_contested().then(|| pace.wait(now).is_some())
    });
    if contested.is_some() {
        report(context, parent, desired, live, drift);
    }
    contested == Some(true)
}

/// Finds out who changes the field of a contested child, and publishes it the first time.
fn report(context: &Context, parent: &DynamicObject, desired: &Desired, live: &Live, drift: &FieldPath) {
    let manager = context.config.field_manager();
    let applied = annotation(&live.object, APPLIED_ANNOTATION);
    let by = match other_writer(&live.managed, drift, &manager) {
        Some(writer) if writer.is_owner => in_words(&writer),
        _ if applied.is_some_and(|applied| applied != desired.fingerprint) => {
            format!("by another host with the same field manager, {manager:?}")
        }
        Some(writer) => format!("probably {}", in_words(&writer)),
        None => "by another client".to_owned(),
    };
    let path = shorten(&drift.to_string(), MAX_PATH);
    let began = context.memory_of(&NamespacedName::of(parent), |memory| {
        let counted = || context.observer.metrics.contested();
        let pace = memory.pace(desired.key.identity());
        let is_first = pace.report(Report { path, by }, counted);
        is_first.then(|| format!("{} {pace}", desired.key))
    });
    if let Some(message) = began {
        warn!("{message}");
        context.publish(parent, EventType::Warning, FIELD_CONTESTED, &message);
    }
}

fn in_words(writer: &FieldWriter) -> String {
    let subresource = writer.subresource.as_ref();
    let subresource = subresource.map(|name| format!(" (subresource {name})"));
    let time = writer.time.map(|time| format!(" at {time}"));
    format!(
        "by the field manager {:?}{}{}",
        writer.manager,
        subresource.unwrap_or_default(),
        time.unwrap_or_default()
    )
}

/// Ends the contests that are over: those of children that nobody has changed back for a while, and those of children
/// that the plugin no longer wants.
pub(super) fn end(context: &Context, parent: &DynamicObject, desired: &[Desired]) {
    let now = Instant::now();
    let ended = context.memory_of(&NamespacedName::of(parent), |memory| {
        let mut messages = Vec::new();
        memory.paces.retain(|key, pace| {
            if pace.is_contest() && !desired.iter().any(|desired| desired.key.identity() == *key) {
                return false;
            }
            let ended = pace.ended(now);
            messages.extend(ended.map(|path| format!("{key}: {path} is no longer changed back")));
            ended.is_none()
        });
        messages
    });
    for message in ended {
        info!("{message}");
        context.publish(parent, EventType::Normal, "ContestEnded", &message);
    }
}

/// Forgets the contests of a parent whose children are not applied any more, for example because it is paused.
pub(super) fn forget(context: &Context, parent: &NamespacedName) {
    context.memory_of(parent, |memory| memory.paces.retain(|_, pace| !pace.is_contest()));
}

/// Returns when to reconcile a parent again: as decided, or before because of its contested children and of what backs off.
pub(super) fn next(context: &Context, parent: &NamespacedName, decided: Action) -> Action {
    let after = match decided {
        Action::OnChange => None,
        Action::After(delay) => Some(delay),
        Action::Backoff | Action::BackoffAtMost(_) | Action::BackoffAtLeast(_) => return decided,
    };
    if !context.has_parent(parent) {
        return decided;
    }
    let now = Instant::now();
    let look = context.memory_of(parent, |memory| memory.next_write(now));
    let look = look.map(|look| look.max(MIN_DELAY));
    let next = after.into_iter().chain(look).min();
    next.map_or(Action::OnChange, Action::After)
}

impl ParentMemory {
    /// Forgets that others changed a child back: it was deleted, or is not applied.
    pub(super) fn forget_contest(&mut self, key: &ChildRef) {
        let key = key.identity();
        if self.paces.get(&key).is_some_and(Pace::is_contest) {
            self.paces.remove(&key);
        }
    }

    /// Returns the condition about the contested children; `None` when there are none.
    pub(super) fn contested(&self) -> Option<Reason> {
        let mut contested: Vec<_> = self.paces.iter().filter(|(_, pace)| pace.is_reported()).collect();
        contested.sort_by_key(|(key, _)| *key);
        let shown = contested.iter().take(SHOWN);
        let mut messages: Vec<_> = shown.map(|(key, pace)| format!("{key} {pace}")).collect();
        if contested.len() > SHOWN {
            messages.push(format!("and {} more children", contested.len() - SHOWN));
        }
        (!messages.is_empty()).then(|| Reason::new(FIELD_CONTESTED, messages.join(". ")))
    }
}
