//! What slows down writes that would be repeated without end: those that another client keeps changing back, those that the API
//! server does not answer, for example because of a webhook, and those of what the plugin changes again and again. What else the
//! parent needs does not wait for them.

use std::fmt::Display;

use kube::core::DynamicObject;
use tokio::time::Instant;
use tracing::info;

use super::action::{Action, MIN_DELAY};
use super::context::conflicts::{Report, Seen};
use super::context::pace::{Cause, Pace};
use super::context::{LiveChild, ParentMemory};
use super::run::Run;
use operator_host_cluster::api_error::{ApiError, Fault};
use operator_host_contract::EventType;
use operator_host_core::field_path::FieldPath;
use operator_host_core::managed_fields::{FieldWriter, other_writer};
use operator_host_core::object::{APPLIED_ANNOTATION, ChildRef, annotation, made_at};
use operator_host_core::text::shorten;
use operator_host_desired::conditions::FIELD_CONTESTED;
use operator_host_desired::plan::Desired;

/// Maximum size of a path in a message, in bytes: a plugin may choose the keys in it.
pub(super) const MAX_PATH: usize = 256;

/// Reports whether a child that has drifted is not applied now, because it was changed back again and again.
pub(super) fn is_on_hold(
    run: &Run<'_>,
    parent: &DynamicObject,
    desired: &Desired,
    live: &LiveChild,
    drift: &FieldPath,
) -> bool {
    let (key, fingerprint) = (&desired.key, &desired.fingerprint);
    let applied = annotation(&live.object, APPLIED_ANNOTATION);
    let now = Instant::now();
    match run.memory(|memory| memory.conflicts.differs(key, fingerprint, applied, now)) {
        Seen::Edit => false,
        Seen::Contested { hold } => {
            report(run, parent, desired, live, drift);
            hold
        }
    }
}

/// Finds out who changes the field of a contested child, and publishes it the first time.
fn report(run: &Run<'_>, parent: &DynamicObject, desired: &Desired, live: &LiveChild, drift: &FieldPath) {
    let manager = run.context.config.field_manager();
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
    let (report, counted) = (Report { path, by }, || run.context.observer.metrics.contested());
    let began = run.memory(|memory| memory.conflicts.report(&desired.key, report, counted));
    if let Some(message) = began {
        run.warn(parent, FIELD_CONTESTED, &message);
    }
}

pub(super) fn in_words(writer: &FieldWriter) -> String {
    let subresource = writer.subresource.as_ref();
    let subresource = subresource.map(|name| format!(" (subresource {name})"));
    let time = writer.time.map(|time| format!(" at {time}"));
    let (subresource, time) = (subresource.unwrap_or_default(), time.unwrap_or_default());
    format!("by the field manager {:?}{subresource}{time}", writer.manager)
}

/// Remembers that a child was applied, which was `live`.
pub(super) fn applied(run: &Run<'_>, parent: &DynamicObject, desired: &Desired, live: &DynamicObject) {
    // The body was another one, although the parent has not changed: a second host may restore it. Or others have removed
    // the host's marks.
    let is_other_body = annotation(live, APPLIED_ANNOTATION) != Some(&desired.fingerprint)
        && made_at(parent, live).is_none_or(|made_at| Some(made_at) >= parent.metadata.generation);
    let (key, fingerprint, now) = (&desired.key, &desired.fingerprint, Instant::now());
    run.memory(|memory| memory.conflicts.applied(key, fingerprint, is_other_body, now));
}

/// Ends the conflicts that are over: those of children that nobody has changed back for a while, and those of children
/// that the plugin no longer wants.
pub(super) fn end_conflicts(run: &Run<'_>, parent: &DynamicObject, desired: &[Desired]) {
    let is_wanted = |key: &ChildRef| desired.iter().any(|desired| desired.key == *key);
    let ended = run.memory(|memory| {
        memory.unkept.retain(is_wanted);
        memory.conflicts.end(is_wanted, Instant::now())
    });
    for message in ended {
        info!("{message}");
        run.context
            .publish(parent, EventType::Normal, "ContestEnded", &message);
    }
}

/// Forgets the conflicts of a parent whose children are not applied any more, for example because it is paused.
pub(super) fn forget_conflicts(run: &Run<'_>) {
    run.memory(|memory| memory.conflicts.clear());
}

/// Returns when to reconcile a parent again: as decided, or before because of its contested children and of what backs off.
pub(super) fn next_look(run: &Run<'_>, decided: Action) -> Action {
    let after = match decided {
        Action::OnChange => None,
        Action::After(delay) => Some(delay),
        Action::Backoff | Action::BackoffAtMost(_) | Action::BackoffAtLeast(_) => return decided,
    };
    if !run.context.caches.has_parent(run.name) {
        return decided;
    }
    let now = Instant::now();
    let (conflict, write) = run.memory(|memory| (memory.conflicts.next(now), memory.next_write(now)));
    let look = conflict.into_iter().chain(write).min();
    let look = look.map(|look| look.max(MIN_DELAY));
    let next = after.into_iter().chain(look).min();
    next.map_or(Action::OnChange, Action::After)
}

/// Sends a write of a child, unless the last one was not answered a moment ago: then its error is returned again.
pub(super) async fn unless_silent<T>(
    run: &Run<'_>,
    child: &ChildRef,
    write: impl Future<Output = Result<T, ApiError>>,
) -> Result<T, ApiError> {
    let key = child.identity();
    let held = run.memory(|memory| {
        let (pace, error) = memory.silences.get(&key)?;
        pace.wait(Instant::now()).map(|_wait| error.clone())
    });
    if let Some(error) = held {
        return Err(error);
    }
    let answer = write.await;
    run.memory(|memory| {
        let known = memory.silences.remove(&key);
        if let Err(error) = &answer
            && error.is_unanswered()
        {
            let now = Instant::now();
            let mut pace = known.map_or_else(|| Pace::new(now), |(pace, _)| pace);
            let is_held = error.fault == Fault::Unanswered;
            pace.wrote(if is_held { Cause::Silence } else { Cause::Crowd }, now);
            memory.silences.insert(key, (pace, error.clone()));
        }
    });
    answer
}

/// The reason of the condition and of the Event about what backs off.
pub(super) const BACK_OFF: &str = "BackOff";

/// Returns the message about what was written too often to be written now, and publishes it once; `None` when it may be written.
pub(super) fn held(
    run: &Run<'_>,
    parent: &DynamicObject,
    what: &dyn Display,
    pace: impl FnOnce(&mut ParentMemory) -> Option<&mut Pace>,
) -> Option<String> {
    let (why, is_news) = run.memory(|memory| {
        let pace = pace(memory)?;
        let _wait = pace.wait(Instant::now())?;
        Some((format!("{what} {pace}"), pace.is_to_be_published()))
    })?;
    if is_news {
        run.warn(parent, BACK_OFF, &why);
    }
    Some(why)
}

/// As [`held`], of a child, or of a parent that is decorated.
pub(super) fn held_child(run: &Run<'_>, parent: &DynamicObject, key: &ChildRef) -> Option<String> {
    held(run, parent, key, |memory| memory.paces.get_mut(&key.identity()))
}
