//! Gives an object that the controller decorates the fields that its plugin wants, and takes back those that it wants no more. They
//! are applied without force: a field that somebody else has set stays as it is.

use std::sync::Arc;

use kube::api::PatchParams;
use kube::core::DynamicObject;
use serde_json::{Map, Value};
use tokio::time::Instant;

use super::apply::held;
use super::context::pace::Cause;
use super::error::ReconcileError;
use super::run::Run;
use operator_host_cluster::resource_client::ResourceClient;
use operator_host_config::ControllerConfig;
use operator_host_core::digest::Digest;
use operator_host_core::managed_fields::applied_by;
use operator_host_core::object::ChildRef;
use operator_host_desired::parent_fields::{self, has_values, is_applied};

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
///
/// # Errors
/// When another manager has set one of the fields, or the API server refuses them.
pub(super) async fn decorate(
    run: &Run<'_>,
    parent: &DynamicObject,
    body: &Value,
) -> Result<Decorated, ReconcileError> {
    let manager = run.config.field_manager();
    let Some((live, managed)) = run.caches.managed_parent(run.name) else {
        return Ok(Decorated::ParentChanged);
    };
    let digest = || Digest::of(body.to_string().as_bytes());
    // The API server may keep a value in another form, so what was applied last counts as well.
    let is_known = || run.memory(|memory| memory.decorated == Some(digest()));
    if is_applied(body, &live, &managed, &manager) && (has_values(&live, body) || is_known()) {
        return Ok(Decorated::Unchanged);
    }
    let key = ChildRef::of(parent);
    if let Some(why) = held(run, parent, &key) {
        return Ok(Decorated::Held(why));
    }
    let objects = ResourceClient::new(&run.cluster.children_writer, &run.cluster.served.parent);
    let answer = objects.apply(run.name, body, &PatchParams::apply(&manager)).await;
    let answer = match answer {
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
    let now = run.record_parent(&live, None, answer);
    Ok(match now {
        _ if is_same => Decorated::Unchanged,
        Some(now) => Decorated::Changed(now),
        None => Decorated::ParentChanged,
    })
}

/// Takes back all fields of an object.
///
/// # Errors
/// As [`decorate`].
pub(super) async fn take_back(run: &Run<'_>, object: &DynamicObject) -> Result<(), ReconcileError> {
    let body = parent_fields::body(object, &Map::new(), &[]).map_err(ReconcileError::FieldsRefused)?;
    decorate(run, object, &body).await.map(drop)
}

/// Reports whether an object has fields that this controller has written.
pub(super) fn has_fields(run: &Run<'_>, object: &DynamicObject) -> bool {
    let managed = run.caches.managed_parent(run.name);
    managed.is_some_and(|(live, managed)| {
        live.metadata.uid == object.metadata.uid
            && applied_by(&managed, &run.config.field_manager()).is_some()
    })
}
