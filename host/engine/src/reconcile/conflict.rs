//! Notices when another client keeps changing back what the host applies to a child. Then the host says who it is, and
//! applies that child less and less often, so that the two do not spin.

use kube::core::DynamicObject;
use tokio::time::Instant;
use tracing::{info, warn};

use super::action::{Action, MIN_DELAY};
use super::context::LiveChild;
use super::context::conflicts::{Report, Seen};
use super::run::Run;
use operator_host_contract::EventType;
use operator_host_core::field_path::FieldPath;
use operator_host_core::managed_fields::{FieldWriter, other_writer};
use operator_host_core::object::{APPLIED_ANNOTATION, ChildRef, annotation, made_at};
use operator_host_core::text::shorten;
use operator_host_desired::conditions::FIELD_CONTESTED;
use operator_host_desired::plan::Desired;

/// Maximum size of a path in a message, in bytes: a plugin may choose the keys in it.
const MAX_PATH: usize = 256;

/// Reports whether a child that has drifted is not applied now, because it was changed back again and again.
pub(super) fn is_on_hold(
    run: &Run<'_>,
    parent: &DynamicObject,
    desired: &Desired,
    live: &LiveChild,
    drift: &FieldPath,
) -> bool {
    let seen = run.memory(|memory| {
        let applied = annotation(&live.object, APPLIED_ANNOTATION);
        memory
            .conflicts
            .differs(&desired.key, &desired.fingerprint, applied, Instant::now())
    });
    match seen {
        Seen::Edit => false,
        Seen::Contested { hold } => {
            report(run, parent, desired, live, drift);
            hold
        }
    }
}

/// Finds out who changes the field of a contested child, and publishes it the first time.
fn report(run: &Run<'_>, parent: &DynamicObject, desired: &Desired, live: &LiveChild, drift: &FieldPath) {
    let manager = run.config.field_manager();
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
    let began = run.memory(|memory| {
        let counted = || run.observer.metrics.contested();
        memory
            .conflicts
            .report(&desired.key, Report { path, by }, counted)
    });
    if let Some(message) = began {
        warn!("{message}");
        run.publish(parent, EventType::Warning, FIELD_CONTESTED, &message);
    }
}

pub(super) fn in_words(writer: &FieldWriter) -> String {
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

/// Remembers that a child was applied, which was `live`.
pub(super) fn applied(run: &Run<'_>, parent: &DynamicObject, desired: &Desired, live: &DynamicObject) {
    // The body was another one, although the parent has not changed: a second host may restore it. Or others have removed
    // the host's marks.
    let is_other_body = annotation(live, APPLIED_ANNOTATION) != Some(&desired.fingerprint)
        && made_at(parent, live).is_none_or(|made_at| Some(made_at) >= parent.metadata.generation);
    run.memory(|memory| {
        let (key, fingerprint) = (&desired.key, &desired.fingerprint);
        memory
            .conflicts
            .applied(key, fingerprint, is_other_body, Instant::now());
    });
}

/// Ends the conflicts that are over: those of children that nobody has changed back for a while, and those of children
/// that the plugin no longer wants.
pub(super) fn end(run: &Run<'_>, parent: &DynamicObject, desired: &[Desired]) {
    let is_wanted = |key: &ChildRef| desired.iter().any(|desired| desired.key == *key);
    let ended = run.memory(|memory| {
        memory.unkept.retain(is_wanted);
        memory.conflicts.end(is_wanted, Instant::now())
    });
    for message in ended {
        info!("{message}");
        run.publish(parent, EventType::Normal, "ContestEnded", &message);
    }
}

/// Forgets the conflicts of a parent whose children are not applied any more, for example because it is paused.
pub(super) fn forget(run: &Run<'_>) {
    run.memory(|memory| memory.conflicts.clear());
}

/// Returns when to reconcile a parent again: as decided, or before because of its contested children and of what backs off.
pub(super) fn next_look(run: &Run<'_>, decided: Action) -> Action {
    let after = match decided {
        Action::OnChange => None,
        Action::After(delay) => Some(delay),
        Action::Backoff | Action::BackoffAtMost(_) | Action::BackoffAtLeast(_) => return decided,
    };
    if !run.caches.has_parent(run.name) {
        return decided;
    }
    let now = Instant::now();
    let look = run.memory(|memory| {
        memory
            .conflicts
            .next(now)
            .into_iter()
            .chain(memory.next_write(now))
            .min()
    });
    let look = look.map(|look| look.max(MIN_DELAY));
    let next = after.into_iter().chain(look).min();
    next.map_or(Action::OnChange, Action::After)
}
