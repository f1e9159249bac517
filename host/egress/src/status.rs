//! What an External says about itself: conditions that `kubectl wait` and kstatus understand, and never text of an answer.

use std::time::Duration;

use kube::core::DynamicObject;
use serde_json::{Map, Value, json};
use thiserror::Error;

use operator_host_cluster::api_error::ApiError;
use operator_host_contract::Condition;
use operator_host_contract::ConditionStatus::{False, True};
use operator_host_core::clock;
use operator_host_core::text::shorten;
use operator_host_desired::conditions::{READY, RECONCILING, STALLED, current, render};

/// The longest message.
const MAX_MESSAGE: usize = 1024;

/// Why a reconcile came to an end before everything was as it should be.
#[derive(Clone, Debug, Error)]
#[error("{message}")]
pub(crate) struct Stop {
    /// In one word: also the class of the error in the metrics.
    pub(crate) reason: &'static str,
    /// For people. Nothing in it is text of a server outside of the cluster.
    pub(crate) message: String,
    pub(crate) next: Next,
    /// Whether somebody must change something, as far as is known.
    pub(crate) is_stalled: bool,
}

/// When an External is looked at again.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Next {
    /// When something changes.
    OnChange,
    /// After its `every`.
    Every,
    /// After a delay that grows, and at least this time.
    Backoff(Duration),
    /// Never in this term.
    Deposed,
}

impl Stop {
    fn new(reason: &'static str, message: impl Into<String>, next: Next, is_stalled: bool) -> Self {
        Self {
            reason,
            message: message.into(),
            next,
            is_stalled,
        }
    }

    /// Nothing helps but a change of the object or of the file of endpoints.
    pub(crate) fn stalled(reason: &'static str, message: impl Into<String>) -> Self {
        Self::new(reason, message, Next::OnChange, true)
    }

    /// It is tried again, although it will probably end in the same way.
    pub(crate) fn refused(reason: &'static str, message: impl Into<String>) -> Self {
        Self::new(reason, message, Next::Backoff(Duration::ZERO), true)
    }

    pub(crate) fn body_too_large(limit: usize) -> Self {
        Self::refused("BodyTooLarge", format!("the body has more than {limit} bytes"))
    }

    /// It is tried again, and may pass.
    pub(crate) fn failed(reason: &'static str, message: impl Into<String>) -> Self {
        Self::new(reason, message, Next::Backoff(Duration::ZERO), false)
    }

    /// The server asks not to be asked for this time.
    pub(crate) fn waits(left: Duration) -> Self {
        let mut stop = Self::failed("AsksToWait", "it asks to wait");
        stop.next = Next::Backoff(left);
        stop
    }

    /// Another replica may send now. No condition says so.
    pub(crate) fn deposed() -> Self {
        let why = "this replica is no longer the leader, so it sends nothing";
        Self::new("NotLeading", why, Next::Deposed, false)
    }
}

impl From<ApiError> for Stop {
    fn from(error: ApiError) -> Self {
        Self::failed("ApiError", error.to_string())
    }
}

/// Returns the status of an External after a reconcile, which has `seen` these of its fields; `None` when it need not be written.
pub(crate) fn status(
    external: &DynamicObject,
    identity: Option<&str>,
    seen: &Map<String, Value>,
    end: Option<&Stop>,
) -> Option<Value> {
    let now = clock::whole_seconds(clock::now());
    let (before, generation) = (current(external), external.metadata.generation);
    let (reason, message) = end.map_or(("Matches", "the answer is as wanted"), |stop| {
        (stop.reason, stop.message.as_str())
    });
    let is_stalled = end.is_some_and(|stop| stop.is_stalled);
    let conditions = [
        (READY, end.is_none()),
        (RECONCILING, end.is_some() && !is_stalled),
        (STALLED, is_stalled),
    ];
    let conditions = conditions.map(|(type_, holds)| {
        let condition = Condition {
            type_: type_.to_owned(),
            status: if holds { True } else { False },
            reason: reason.to_owned(),
            message: shorten(message, MAX_MESSAGE),
        };
        render(&condition, before, generation, now)
    });
    let mut status = Map::from_iter(identity.map(|identity| ("identity".to_owned(), identity.into())));
    // What it stood for first stays, and what has not been looked at.
    status.extend(before.clone());
    status.extend(seen.clone());
    status.insert("conditions".to_owned(), json!(conditions));
    status.insert("observedGeneration".to_owned(), json!(generation));
    status.retain(|_, value| *value != json!({}));
    if status == *before {
        return None;
    }
    // It says since when the rest is so: a time that changed with each look would be a write for each.
    if seen.contains_key("code") {
        status.insert("lastObserved".to_owned(), json!(now));
    }
    Some(Value::Object(status))
}

/// Reports whether the status says of the current spec that a condition is true, for any reason or for this one.
pub(crate) fn has(external: &DynamicObject, type_: &str, reason: Option<&str>) -> bool {
    let status = &external.data["status"];
    let is_true = |it: &Value| it["type"] == type_ && it["status"] == "True";
    let mut conditions = status["conditions"].as_array().into_iter().flatten();
    status["observedGeneration"].as_i64() == external.metadata.generation
        && conditions.any(|it| is_true(it) && reason.is_none_or(|reason| it["reason"] == reason))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn map(fields: Value) -> Map<String, Value> {
        serde_json::from_value(fields).unwrap()
    }

    #[test]
    fn a_status_is_written_once_for_what_is_the_same() {
        let mut external: DynamicObject =
            serde_json::from_value(json!({"metadata": {"name": "a", "generation": 3}})).unwrap();
        let mut seen = map(json!({"code": 200, "values": {"/id": 1}, "secrets": {}, "lastSet": "now"}));
        let first = status(&external, Some("dns /a"), &seen, None).unwrap();
        assert_eq!(first["conditions"][0]["status"], "True");
        assert_eq!(first["observedGeneration"], 3);
        external.data = json!({"status": first});
        seen.remove("lastSet");
        assert_eq!(status(&external, Some("dns /a"), &seen, None), None);
        let stop = Stop::failed("TimedOut", "no whole answer");
        let failed = status(&external, Some("dns /b"), &Map::new(), Some(&stop)).unwrap();
        assert_eq!(failed["conditions"][1]["reason"], "TimedOut");
        assert_eq!(failed["values"], first["values"], "what was reported stays");
        assert_eq!(failed["identity"], "dns /a", "what it stood for first stays");
    }
}
