//! A parent that is being deleted and waits for its cleanup: why, and for how long at most.

use std::sync::Arc;
use std::time::Duration;

use kube::core::DynamicObject;
use tokio::time::Instant;
use tracing::info;

use super::error::Result;
use super::finalizer::{has_finalizer, is_cleaned_up, remove_finalizer};
use super::outcome::{FinalAnswer, Outcome};
use super::release::release;
use super::run::Run;
use operator_host_contract::EventType;
use operator_host_desired::conditions::{Reason, Verdict};

/// Returns the verdict on a parent whose cleanup succeeded but is not done. Reports it the first time.
pub(super) fn cleaning_up_verdict(run: &Run<'_>, parent: &DynamicObject) -> Verdict {
    let reason = Reason::cleaning_up(&run.context.config.finalizer());
    if !run.memory(|memory| std::mem::replace(&mut memory.is_cleaning_up, true)) {
        info!("{}", reason.message);
        run.context
            .publish(parent, EventType::Normal, "CleaningUp", &reason.message);
    }
    Verdict::CleaningUp(reason)
}

/// Reports whether the time for a parent's cleanup is over, unless this reconcile has released it.
pub(super) fn is_overdue(run: &Run<'_>, parent: &DynamicObject) -> bool {
    let now = run.context.caches.as_seen(parent);
    now.and_then(|now| time_left(run, &now)) == Some(Duration::ZERO)
}

/// Has a parent reconciled when the time for its cleanup is over.
pub(super) fn wake_when_overdue(run: &Run<'_>, parent: &DynamicObject) {
    if let Some(left) = time_left(run, parent).filter(|left| !left.is_zero()) {
        run.context.queue.enqueue_at(run.name, Instant::now() + left);
    }
}

/// Returns how long a parent may still wait for its cleanup; `None` when that is not limited.
pub(super) fn time_left(run: &Run<'_>, parent: &DynamicObject) -> Option<Duration> {
    let limit = run.context.config.release_after?;
    let since = parent.metadata.deletion_timestamp.as_ref()?;
    has_finalizer(&run.context.config, parent).then_some(())?;
    let waited = run.context.cluster.writer.clock.now().duration_since(since.0);
    Some(limit.saturating_sub(Duration::try_from(waited).unwrap_or_default()))
}

/// Releases the parent without its cleanup, and reports it. `why` is the reason why the cleanup is not done.
pub(super) async fn abandon(run: &Run<'_>, parent: &Arc<DynamicObject>, why: &str) -> Result<Outcome> {
    // What is retained must not go with its parent. The reconcile may have failed before, or because of it.
    release(run, &run.snapshot(Arc::clone(parent)), &mut Vec::new()).await?;
    let limit = run.context.config.release_after.unwrap_or_default();
    let message = if is_cleaned_up(&run.context.config, parent) {
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
    let left = remove_finalizer(run, parent).await?;
    run.warn(parent, "CleanupAbandoned", &message);
    Ok(Outcome::without_finalizer(
        left.as_deref(),
        FinalAnswer::default(),
    ))
}
