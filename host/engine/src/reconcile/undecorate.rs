//! What becomes of an object that the controller does not decorate any more, because its labels or the selector have changed: its
//! children are deleted, as those that a plugin does not want any more, and the fields that the plugin gave it are taken back.

use std::sync::Arc;

use kube::core::DynamicObject;

use super::action::Action;
use super::decorate::{has_fields, take_back};
use super::error::ReconcileError;
use super::failure::{count_failure, log_once};
use super::freshness;
use super::outcome::Changes;
use super::prune::prune;
use super::run::Run;
use operator_host_core::object::{PAUSED_ANNOTATION, annotation, is_terminating};
use operator_host_desired::plan::Plan;

/// Deletes the children of an object. What waits for others to be deleted is deleted after these: their end enqueues the object.
pub(super) async fn undecorate(run: &Run<'_>, object: &Arc<DynamicObject>) -> Action {
    let is_paused = annotation(object, PAUSED_ANNOTATION) == Some("true");
    // The garbage collector deletes the children of an object that is being deleted.
    run.state.note_unready(run.name, None);
    let children = run.owned(object);
    if children.is_empty() && !has_fields(run, object) {
        run.state.forget(run.name);
        return Action::OnChange;
    }
    if is_paused || is_terminating(object) || run.state.is_held(run.name) {
        return Action::OnChange;
    }
    let result = async {
        // A cache that is behind may not have the label yet.
        let fresh = freshness::read(run, object).await?;
        if fresh.is_none_or(|fresh| run.caches.selects(&fresh) || is_terminating(&fresh)) {
            // The watch delivers what it is.
            return Ok(());
        }
        if let Some(failure) = run.watch_failure(object) {
            return Err(ReconcileError::Watch(failure));
        }
        take_back(run, object).await?;
        run.load_proof_key(object, None).await?;
        let mut changes = Changes::default();
        let (deleted, failed) = prune(run, object, &children, &Plan::default(), |_| true).await;
        changes.deleted.extend(deleted);
        changes.publish(run, object);
        match failed.is_empty() {
            true => Ok(()),
            false => Err(ReconcileError::Api(failed)),
        }
    };
    match result.await {
        Ok(()) => Action::OnChange,
        Err(error) => {
            run.observer.fails(run.name, error.class(), &error, run.span);
            count_failure(run);
            log_once(run, &error);
            error.backoff()
        }
    }
}
