//! Notices when another client keeps changing back what the host applies to a child. Then the host says who it is, and
//! applies that child less and less often, so that the two do not spin.

mod state;

use std::time::Duration;

use kube::core::DynamicObject;
use tokio::time::Instant;
use tracing::{debug, info, warn};

pub use self::state::Contests;
use self::state::{Report, Seen};
use super::apply::difference;
use super::context::Context;
use crate::cluster::resource_client::ResourceClient;
use crate::desired::field_path::other_writer;
use crate::desired::plan::Desired;
use crate::object::{APPLIED_ANNOTATION, NamespacedName, annotation};
use crate::plugin::contract::EventType;

/// Reports whether a child that differs is not applied now, because another client has changed it back again and again.
///
/// Each time that it is changed back, the first call reads it, to see who did it.
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
        Seen::Contested { hold, is_new } => {
            if is_new {
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
    // The caches do not have `managedFields`.
    let live = match ResourceClient::new(&context.children_writer, resource)
        .read(&key.name)
        .await
    {
        Ok(live) => live,
        Err(error) => {
            debug!("cannot find out who changes {key}: {error}");
            None
        }
    };
    let path = live.as_ref().and_then(|live| difference(desired, live));
    let writer = live.as_ref().zip(path.as_ref()).and_then(|(live, path)| {
        let managed = live.metadata.managed_fields.as_deref().unwrap_or_default();
        other_writer(managed, path, &context.config.field_manager())
    });
    let path = path.map(|path| path.to_string());
    let began = context.memory_of(&NamespacedName::of(parent), |memory| {
        let counted = || context.observer.metrics.contested();
        memory.contests.report(key, Report { path, writer }, counted)
    });
    if let Some(message) = began {
        warn!("{message}");
        context.publish(parent, EventType::Warning, "FieldContested", &message);
    }
}

/// Ends the contests that are over: those of children that nobody has changed back for a while, and those of children
/// that the plugin no longer wants.
pub(super) fn end(context: &Context, parent: &DynamicObject, desired: &[Desired]) {
    let ended = context.memory_of(&NamespacedName::of(parent), |memory| {
        let is_wanted = |key: &_| desired.iter().any(|desired| desired.key == *key);
        memory.contests.end(is_wanted, Instant::now())
    });
    for message in ended {
        info!("{message}");
        context.publish(parent, EventType::Normal, "ContestEnded", &message);
    }
}

/// Returns when to reconcile a parent again because of its contested children.
pub(super) fn next(context: &Context, parent: &NamespacedName) -> Option<Duration> {
    context.memory_of(parent, |memory| memory.contests.next(Instant::now()))
}
