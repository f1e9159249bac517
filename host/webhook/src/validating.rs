//! Refuses what a plugin finds wrong: calls the `validate` of a plugin before a resource is stored.

use super::review::Review;
use super::{Decision, MESSAGE, NO_ANSWER, NoDecision};
use crate::conversion::Before;
use operator_host_core::object::shorten;
use operator_host_engine::calls::Calls;
use operator_host_engine::validation::joined;
use operator_host_runtime::Plugin;

/// Returns whether the plugin accepts an object, in place of `old` if there is one.
///
/// # Errors
/// When an object cannot be read, or the call failed.
pub(super) async fn validate(
    plugin: &Plugin,
    calls: &Calls,
    review: &Review<'_>,
    object: &str,
    old: Option<&str>,
) -> Result<Decision, NoDecision> {
    let description = plugin.description();
    if !description.validates {
        return Ok(Decision::Allowed);
    }
    let before = read(object)?;
    if before.api_version != description.parent.api_version {
        return Err(NoDecision::new(format!(
            "the object is in {}, but the plugin validates {}: print the webhook again with `operator-host \
             webhook-manifests`",
            shorten(&before.api_version, 63),
            description.parent.api_version
        )));
    }
    let old = old.map(read).transpose()?.map(|old| old.for_plugin(None));
    let (outcome, _share) = calls
        .validate(plugin, &before.for_plugin(None), old.as_ref())
        .await;
    let errors = outcome.map_err(|error| NoDecision {
        public: NO_ANSWER.to_owned(),
        detail: error.to_string(),
        try_again: false,
    })?;
    let Some(mut message) = joined(&errors) else {
        return Ok(Decision::Allowed);
    };
    let version = description.parent.version();
    let written = review.written_version.as_deref();
    if let Some(written) = written.filter(|written| *written != version) {
        message = format!("in {version}, to which the resource in {written} was converted: {message}");
    }
    Ok(Decision::Denied(shorten(&message, MESSAGE)))
}

fn read(object: &str) -> Result<Before<'_>, NoDecision> {
    Before::read(object).map_err(|why| NoDecision::new(format!("cannot read the object: {why}")))
}
