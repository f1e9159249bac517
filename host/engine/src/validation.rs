//! What a plugin finds wrong in a parent.

use kube::core::DynamicObject;
use serde_json::value::to_raw_value;

use operator_host_contract::{Failure, FieldError, Json};
use operator_host_runtime::{CallError, Plugin, RandomSource};

/// Asks the plugin whether a parent is valid, before it is reconciled without writing anything.
pub async fn check(plugin: &Plugin, parent: &DynamicObject) -> Result<(), CallError> {
    if !plugin.description().validates {
        return Ok(());
    }
    let call = plugin
        .proving(RandomSource::First)
        .validate(&text(parent)?, None)
        .await;
    verdict(&call.outcome?)
}

/// Returns a parent as `validate` gets it.
pub fn text(parent: &DynamicObject) -> Result<Json, CallError> {
    to_raw_value(parent).map(Json::from).map_err(CallError::host)
}

/// Returns the failure of a reconcile when there are errors.
pub fn verdict(errors: &[FieldError]) -> Result<(), CallError> {
    match joined(errors) {
        None => Ok(()),
        Some(message) => Err(CallError::Failure(Failure::Invalid {
            reason: None,
            message,
            status: None,
            conditions: Vec::new(),
        })),
    }
}

/// Returns the errors as the API server joins those of a schema; `None` when there are none.
pub fn joined<E: ToString>(errors: &[E]) -> Option<String> {
    let texts: Vec<String> = errors.iter().map(ToString::to_string).collect();
    match texts.as_slice() {
        [] => None,
        [one] => Some(one.clone()),
        several => Some(format!("[{}]", several.join(", "))),
    }
}
