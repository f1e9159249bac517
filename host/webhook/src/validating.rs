//! Refuses what a plugin finds wrong: calls the `validate` of a plugin before a resource is stored.

use super::review::Review;
use super::{Decision, MESSAGE, NoDecision};
use crate::conversion::Before;
use operator_host_core::text::shorten;
use operator_host_engine::calls::Calls;
use operator_host_engine::validation::joined;
use operator_host_runtime::Plugin;

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
