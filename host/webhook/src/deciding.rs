//! Calls `validate` and `default` of a plugin before a resource is stored.

use serde_json::{Map, Value};

use super::review::Review;
use super::{Decision, MESSAGE, NoDecision};
use crate::conversion::{Before, json};
use operator_host_contract::{Failure, Json};
use operator_host_core::text::shorten;
use operator_host_engine::calls::Calls;
use operator_host_engine::validation::joined;
use operator_host_runtime::{CallError, Plugin};

/// Returns whether the plugin accepts an object, in place of `old` if there is one.
pub(super) async fn validate(
    plugin: &Plugin,
    calls: &Calls,
    review: &Review<'_>,
    object: &Before<'_>,
    old: Option<&Before<'_>>,
) -> Result<Decision, NoDecision> {
    let old = old.map(|old| old.for_plugin(None));
    let (outcome, _share) = calls
        .validate(plugin, &object.for_plugin(None), old.as_ref())
        .await;
    let errors = outcome.map_err(|error| NoDecision::of_call(&error))?;
    let Some(mut message) = joined(&errors) else {
        return Ok(Decision::Allowed);
    };
    let version = plugin.description().parent.version();
    let written = review.written_version.as_deref();
    if let Some(written) = written.filter(|written| *written != version) {
        message = format!("in {version}, to which the resource in {written} was converted: {message}");
    }
    Ok(Decision::Denied(shorten(&message, MESSAGE)))
}

/// Returns the defaulted spec of an object, or that the plugin denies the object. It must answer the same for its own answer.
pub(super) async fn default(
    plugin: &Plugin,
    calls: &Calls,
    review: &Review<'_>,
    before: &Before<'_>,
) -> Result<Decision, NoDecision> {
    let given = before.members.get("spec").map_or(Ok(Value::Null), |spec| {
        serde_json::from_str(spec.get())
            .map_err(|why| NoDecision::new(format!("cannot read the object: {why}")))
    })?;
    if !given.is_null() && !given.is_object() {
        // The schema refuses it, with a message about the field.
        return Ok(Decision::Allowed);
    }
    let first = match call(plugin, calls, before.for_plugin(None)).await? {
        Ok(spec) => spec,
        Err(denied) => return Ok(Decision::Denied(denied)),
    };
    if given.as_object() == Some(&first) || (given.is_null() && first.is_empty()) {
        return Ok(Decision::Allowed);
    }
    let spec = json(&first);
    let again = call(plugin, calls, before.for_plugin(Some(&spec))).await?;
    if !again.is_ok_and(|again| json(&again).get() == spec.get()) {
        return Err(NoDecision::new(format!(
            "the `default` of the plugin {} changes its own answer for {}: called again, it must answer the same",
            plugin.description().name_and_version(),
            shorten(&review.name, 253)
        )));
    }
    Ok(Decision::Patched(Box::<str>::from(spec).into()))
}

/// Calls the plugin. Returns its message if it denies the object.
async fn call(
    plugin: &Plugin,
    calls: &Calls,
    parent: Json,
) -> Result<Result<Map<String, Value>, String>, NoDecision> {
    let (outcome, _share) = calls.default(plugin, &parent).await;
    match outcome {
        Ok(spec) => Ok(Ok(spec)),
        Err(CallError::Failure(Failure::Invalid { reason, message, .. })) => {
            let message = match reason {
                Some(reason) => format!("{reason}: {message}"),
                None => message,
            };
            Ok(Err(shorten(&message, MESSAGE)))
        }
        Err(error) => Err(NoDecision::of_call(&error)),
    }
}
