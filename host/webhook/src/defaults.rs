//! Asks the `default` of a plugin twice, to find the objects for which it fails or changes its own answer.

use std::time::Duration;

use serde_json::{Map, Value};
use tokio::time::{Instant, timeout};

use crate::conversion::{Before, Lost, json};
use operator_host_contract::{Failure, Json};
use operator_host_runtime::{Call, CallError, Plugin, RandomSource};
use operator_host_schema::difference::difference;

/// Returns the objects, in the version of the plugin's parent, for which the webhook would set no defaults, and why.
/// Objects that are not reached within the budget are skipped.
///
/// # Errors
/// When the host cannot call the plugin, so that nothing is known about it.
pub async fn unstable(plugin: &Plugin, objects: &[Value], budget: Duration) -> Result<Vec<Lost>, CallError> {
    let start = Instant::now();
    let mut found = Vec::new();
    if !plugin.description().defaults {
        return Ok(found);
    }
    for (index, object) in objects.iter().enumerate() {
        let rest = budget.saturating_sub(start.elapsed());
        let Ok(problem) = timeout(rest, problem(plugin, object)).await else {
            break;
        };
        found.extend(problem?.map(|message| Lost { index, message }));
    }
    Ok(found)
}

/// Returns what is wrong with the defaults of one object.
async fn problem(plugin: &Plugin, object: &Value) -> Result<Option<String>, CallError> {
    let text = object.to_string();
    // Of an object that the API server has stored, or that `check` has read.
    let Ok(before) = Before::read(&text) else {
        return Ok(None);
    };
    let first = match call(plugin, before.for_plugin(None)).await? {
        Ok(spec) => spec,
        Err(message) => return Ok(Some(message)),
    };
    let again = json(&first);
    let second = match call(plugin, before.for_plugin(Some(&again))).await? {
        Ok(spec) => spec,
        Err(message) => return Ok(Some(format!("{message}, for its own answer"))),
    };
    let (first, second) = (Value::Object(first), Value::Object(second));
    if first == second {
        return Ok(None);
    }
    // The order of fields or a null counts as well: the webhook compares the texts.
    let how = difference(&first, &second, "spec").unwrap_or_else(|| "spec changes".to_owned());
    Ok(Some(format!(
        "`default` changes its own answer: {how} when it is called again"
    )))
}

/// Calls the plugin for a proof. Returns what it says if it gives no spec.
async fn call(plugin: &Plugin, parent: Json) -> Result<Result<Map<String, Value>, String>, CallError> {
    let Call { outcome, .. } = plugin.proving(RandomSource::First).default(&parent).await;
    match outcome {
        Ok(spec) => Ok(Ok(spec)),
        Err(error) if error.is_of_host() => Err(error),
        Err(CallError::Failure(Failure::Invalid { message, .. })) => {
            Ok(Err(format!("`default` refuses it: {message}")))
        }
        Err(error) => Ok(Err(format!("`default` fails: {error}"))),
    }
}
