//! A parent that is being deleted and waits for its cleanup: what it waits for, and how long at most.

use std::time::Duration;

use jiff::Timestamp;
use kube::ResourceExt;
use kube::core::DynamicObject;
use tokio::time::Instant;
use tracing::{info, warn};

use super::action::Action;
use super::answer::Answer;
use super::context::Context;
use super::error::PassError;
use super::failure::{fail, is_passing};
use super::finalizer::let_go;
use crate::desired::conditions::{Reason, Verdict};
use crate::object::{ObjectName, is_terminating};
use crate::plugin::contract::EventType;

/// The verdict on a parent whose cleanup went well and is not done. The first time it is news.
pub(super) fn waits_for_the_plugin(context: &Context, parent: &DynamicObject) -> Verdict {
    let message = format!(
        "it is being deleted and keeps the finalizer {} until the plugin's cleanup says that it is done",
        context.config.finalizer()
    );
    let name = ObjectName::of(parent);
    if !context.memory_of(&name, |memory| std::mem::replace(&mut memory.leaving, true)) {
        info!("{message}");
        context.publish(parent, EventType::Normal, "CleaningUp", &message);
    }
    Verdict::CleaningUp(Reason::new("CleaningUp", message))
}

/// Whether the cleanup of a parent has had its time and is still not done. Tried once at least, however late.
///
/// Sees to it that the question is asked again when the time is up.
pub(super) fn is_overdue(
    context: &Context,
    parent: &DynamicObject,
    result: &Result<Option<Answer>, PassError>,
) -> bool {
    let has_tried = match result {
        Ok(answer) => answer.is_some(),
        Err(error) => !is_passing(context, parent, error),
    };
    let finalizer = context.config.finalizer();
    if !is_terminating(parent) || !parent.finalizers().contains(&finalizer) {
        return false;
    }
    let (Some(limit), Some(since)) = (context.config.release_after, &parent.metadata.deletion_timestamp)
    else {
        return false;
    };
    // A clock that was behind when it was deleted makes it wait a little longer, no more.
    let waited = Timestamp::now().duration_since(since.0);
    let left = limit.saturating_sub(Duration::try_from(waited).unwrap_or_default());
    if !left.is_zero() {
        context
            .queue
            .mark_at(&ObjectName::of(parent), Instant::now() + left);
    }
    has_tried && left.is_zero()
}

/// Lets the parent go without its cleanup, and says so.
pub(super) async fn abandon(
    context: &Context,
    parent: &DynamicObject,
    result: &Result<Option<Answer>, PassError>,
) -> Action {
    let why = match result {
        Ok(_) => "the plugin did not say that it is done".to_owned(),
        Err(error) => error.to_string(),
    };
    let message = format!(
        "the cleanup was not done within {:?} (`finalizer.releaseAfter`), and the resource is released without it, with \
         whatever it was to clean up: {why}",
        context.config.release_after.unwrap_or_default()
    );
    if let Err(error) = let_go(context, parent).await {
        return fail(context, parent, &error.into()).await;
    }
    warn!("{message}");
    context.publish(parent, EventType::Warning, "CleanupAbandoned", &message);
    Action::OnChange
}
