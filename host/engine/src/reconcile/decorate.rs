//! Gives an object that the controller decorates the fields that its plugin wants, and takes back those that it wants no more. They
//! are applied without force: a field that somebody else has set stays as it is.
//!
//! An object that is not decorated any more, because its labels or the selector have changed, gives back all its fields, and its
//! children are deleted, as those that a plugin does not want any more.

use std::sync::Arc;

use kube::api::PatchParams;
use kube::core::DynamicObject;
use serde_json::{Map, Value};
use tokio::time::Instant;

use super::action::Action;
use super::brakes::held_child;
use super::context::pace::Cause;
use super::error::{ReconcileError, Result};
use super::failure::{count_failure, log_once};
use super::freshness;
use super::outcome::Changes;
use super::prune::prune;
use super::run::Run;
use operator_host_cluster::resource_client::ResourceClient;
use operator_host_config::ControllerConfig;
use operator_host_core::digest::Digest;
use operator_host_core::managed_fields::applied_by;
use operator_host_core::object::{ChildRef, PAUSED_ANNOTATION, annotation, is_terminating};
use operator_host_desired::parent_fields::{self, has_values, is_applied};
use operator_host_desired::plan::Plan;

/// Returns what to apply to a parent for an answer; `None` for a controller that does not decorate.
///
/// # Errors
/// When the answer has a field that it may not have.
pub fn body_for(
    config: &ControllerConfig,
    parent: &DynamicObject,
    fields: Option<&Map<String, Value>>,
) -> Result<Option<Value>, String> {
    let none = Map::new();
    match &config.decorates {
        Some(decorates) => parent_fields::body(parent, fields.unwrap_or(&none), &decorates.fields).map(Some),
        None if fields.is_some() => Err(
            "the plugin gives its parent fields, which only a Controller that decorates can do".to_owned(),
        ),
        None => Ok(None),
    }
}

/// What became of the fields.
pub(super) enum Decorated {
    /// They are as they should be.
    Unchanged,
    /// They were written; the parent as it is now.
    Changed(Arc<DynamicObject>),
    /// They were written too often to be written now.
    Held(String),
    /// The parent has gone, or the watch will say what it is.
    ParentChanged,
}

/// Applies a body that [`body_for`] has returned.
pub(super) async fn decorate(run: &Run<'_>, parent: &DynamicObject, body: &Value) -> Result<Decorated> {
    let manager = run.context.config.field_manager();
    let Some((live, managed)) = run.context.caches.managed_parent(run.name) else {
        return Ok(Decorated::ParentChanged);
    };
    let digest = || Digest::of(body.to_string().as_bytes());
    // The API server may keep a value in another form, so what was applied last counts as well.
    let is_known = || run.memory(|memory| memory.decorated == Some(digest()));
    if is_applied(body, &live, &managed, &manager) && (has_values(&live, body) || is_known()) {
        return Ok(Decorated::Unchanged);
    }
    let key = ChildRef::of(parent);
    if let Some(why) = held_child(run, parent, &key) {
        return Ok(Decorated::Held(why));
    }
    let cluster = &run.context.cluster;
    let objects = ResourceClient::new(&cluster.children_writer, &cluster.served.parent);
    let answer = match objects.apply(run.name, body, &PatchParams::apply(&manager)).await {
        Ok(answer) => answer,
        Err(error) if error.is_not_found() || error.is_lost_race() => return Ok(Decorated::ParentChanged),
        Err(error) if error.is_conflict() => {
            let error = Box::new(error);
            return Err(ReconcileError::Contested { manager, error });
        }
        Err(error) => return Err(error.into()),
    };
    let is_same = answer.metadata.resource_version == live.metadata.resource_version;
    run.memory(|memory| {
        memory.decorated = Some(digest());
        if !is_same {
            memory.pace(key.identity()).wrote(Cause::Change, Instant::now());
        }
    });
    let now = run.context.record_parent(&live, None, answer);
    Ok(match now {
        _ if is_same => Decorated::Unchanged,
        Some(now) => Decorated::Changed(now),
        None => Decorated::ParentChanged,
    })
}

async fn take_back(run: &Run<'_>, object: &DynamicObject) -> Result<()> {
    let body = parent_fields::body(object, &Map::new(), &[]).map_err(ReconcileError::FieldsRefused)?;
    decorate(run, object, &body).await.map(drop)
}

/// Reports whether an object has fields that this controller has written.
fn has_fields(run: &Run<'_>, object: &DynamicObject) -> bool {
    let managed = run.context.caches.managed_parent(run.name);
    managed.is_some_and(|(live, managed)| {
        live.metadata.uid == object.metadata.uid
            && applied_by(&managed, &run.context.config.field_manager()).is_some()
    })
}

/// Deletes the children of an object. What waits for others to be deleted is deleted after these: their end enqueues the object.
pub(super) async fn undecorate(run: &Run<'_>, object: &Arc<DynamicObject>) -> Action {
    let is_paused = annotation(object, PAUSED_ANNOTATION) == Some("true");
    // The garbage collector deletes the children of an object that is being deleted.
    run.context.state.note_unready(run.name, None);
    let children = run.context.owned(object);
    if children.is_empty() && !has_fields(run, object) {
        run.context.state.forget(run.name);
        return Action::OnChange;
    }
    if is_paused || is_terminating(object) || run.context.state.is_held(run.name) {
        return Action::OnChange;
    }
    let result = async {
        // A cache that is behind may not have the label yet.
        let fresh = freshness::read(run, object).await?;
        if fresh.is_none_or(|fresh| run.context.caches.selects(&fresh) || is_terminating(&fresh)) {
            // The watch delivers what it is.
            return Ok(());
        }
        if let Some(failure) = run.context.watch_failure(object) {
            return Err(ReconcileError::Watch(failure));
        }
        take_back(run, object).await?;
        run.context.load_proof_key(object, None).await?;
        let mut changes = Changes::default();
        let pruned = prune(run, object, &children, &Plan::default(), |_| true, &mut changes).await;
        changes.publish(run, object);
        pruned.map(drop)
    };
    match result.await {
        Ok(()) => Action::OnChange,
        Err(error) => {
            run.context
                .observer
                .fails(run.name, error.class(), &error, run.span);
            count_failure(run);
            log_once(run, &error);
            error.next()
        }
    }
}
