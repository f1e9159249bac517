//! A parent that is being deleted and waits for its cleanup: why, and for how long at most.

use std::sync::Arc;
use std::time::Duration;

use kube::core::DynamicObject;
use tokio::time::Instant;
use tracing::{info, warn};

use super::context::Context;
use super::error::ReconcileError;
use super::finalizer::{has_finalizer, is_cleaned_up, remove_finalizer};
use super::release::release;
use super::snapshot::Snapshot;
use operator_host_contract::EventType;
use operator_host_core::object::NamespacedName;
use operator_host_desired::conditions::{Reason, Verdict};

/// Returns the verdict on a parent whose cleanup succeeded but is not done. Reports it the first time.
pub(super) fn cleaning_up_verdict(context: &Context, parent: &DynamicObject) -> Verdict {
    let reason = Reason::cleaning_up(&context.config.finalizer());
    let name = NamespacedName::of(parent);
    if !context.memory_of(&name, |memory| std::mem::replace(&mut memory.leaving, true)) {
        info!("{}", reason.message);
        context.publish(parent, EventType::Normal, "CleaningUp", &reason.message);
    }
    Verdict::CleaningUp(reason)
}

/// Watches the time limit of a parent's cleanup: reports whether it is over, or else has the parent reconciled when it will be. The
/// cleanup is tried at least once, however late.
pub(super) fn watch_deadline(context: &Context, parent: &DynamicObject, has_tried: bool) -> bool {
    let Some(left) = time_left(context, parent) else {
        return false;
    };
    if !left.is_zero() {
        context
            .queue
            .enqueue_at(&NamespacedName::of(parent), Instant::now() + left);
    }
    has_tried && left.is_zero()
}

/// Returns how long a parent may still wait for its cleanup; `None` when that is not limited.
pub(super) fn time_left(context: &Context, parent: &DynamicObject) -> Option<Duration> {
    let limit = context.config.release_after?;
    let since = parent.metadata.deletion_timestamp.as_ref()?;
    has_finalizer(&context.config, parent).then_some(())?;
    let waited = context.writer.clock.now().duration_since(since.0);
    Some(limit.saturating_sub(Duration::try_from(waited).unwrap_or_default()))
}

/// Releases the parent without its cleanup, and reports it. `why` is the reason why the cleanup is not done.
///
/// # Errors
/// When the parent stays, because it or its retained children cannot be released.
pub(super) async fn abandon(
    context: &Context,
    parent: &Arc<DynamicObject>,
    why: &str,
) -> Result<(), ReconcileError> {
    // What is retained must not go with its parent. The reconcile may have failed before, or because of it.
    release(
        context,
        &Snapshot::take(context, Arc::clone(parent)),
        &mut Vec::new(),
    )
    .await?;
    let limit = context.config.release_after.unwrap_or_default();
    let message = if is_cleaned_up(&context.config, parent) {
        format!(
            "the children were not deleted in their order within {limit:?} (`finalizer.releaseAfter`), so the others are \
             deleted at once"
        )
    } else {
        format!(
            "the cleanup was not done within {limit:?} (`finalizer.releaseAfter`), so the resource is released without \
             it. It may leave behind what it should have cleaned up: {why}"
        )
    };
    remove_finalizer(context, parent).await?;
    warn!("{message}");
    context.publish(parent, EventType::Warning, "CleanupAbandoned", &message);
    Ok(())
}
