//! What an External says about itself: conditions that `kubectl wait` and kstatus understand, and never text of an answer.

use std::collections::BTreeMap;

use kube::core::DynamicObject;
use serde_json::{Map, Value, json};

use operator_host_core::clock;
use operator_host_core::text::shorten;

/// The longest message.
const MAX_MESSAGE: usize = 1024;

/// Why a reconcile came to an end before everything was as it should be.
#[derive(Clone, Debug)]
pub(crate) struct Stop {
    /// In one word.
    pub(crate) reason: &'static str,
    /// For people.
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
    Backoff(std::time::Duration),
    /// Never in this term.
    Deposed,
}

impl Stop {
    /// Nothing helps but a change of the object or of the file of endpoints.
    pub(crate) fn stalled(reason: &'static str, message: impl Into<String>) -> Self {
        Self {
            reason,
            message: message.into(),
            next: Next::OnChange,
            is_stalled: true,
        }
    }

    /// It is tried again, although it will probably end in the same way.
    pub(crate) fn refused(reason: &'static str, message: impl Into<String>) -> Self {
        Self {
            next: Next::Backoff(std::time::Duration::ZERO),
            ..Self::stalled(reason, message)
        }
    }

    /// It is tried again, and may pass.
    pub(crate) fn failed(reason: &'static str, message: impl Into<String>) -> Self {
        Self {
            is_stalled: false,
            ..Self::refused(reason, message)
        }
    }
}

/// What one reconcile has found out and done, even if it came to an end early.
#[derive(Clone, Debug, Default)]
pub(crate) struct Seen {
    /// The code of the last answer.
    pub(crate) code: Option<u16>,
    /// Whether `set` was carried out.
    pub(crate) is_set: bool,
    /// The versions of the Secrets that were sent; `None` when nothing was.
    pub(crate) secrets: Option<BTreeMap<String, String>>,
    /// The reported values; `None` when nothing was looked at.
    pub(crate) values: Option<Map<String, Value>>,
}

/// Returns the status of an External after a reconcile; `None` when it need not be written.
pub(crate) fn status(
    external: &DynamicObject,
    identity: Option<&str>,
    seen: &Seen,
    end: Option<&Stop>,
) -> Option<Value> {
    let now = clock::whole_seconds(clock::now()).to_string();
    let before = &external.data["status"];
    let (reason, message) = end.map_or(("Matches", "the answer is as wanted".to_owned()), |stop| {
        (stop.reason, shorten(&stop.message, MAX_MESSAGE))
    });
    let is_stalled = end.is_some_and(|stop| stop.is_stalled);
    let conditions = [
        ("Ready", end.is_none()),
        ("Reconciling", end.is_some() && !is_stalled),
        ("Stalled", is_stalled),
    ];
    let generation = external.metadata.generation;
    let conditions = conditions.map(|(type_, holds)| {
        let status = if holds { "True" } else { "False" };
        let all = before["conditions"].as_array().into_iter().flatten();
        let mut old = all.filter(|condition| condition["type"] == type_ && condition["status"] == status);
        let since = old.next().and_then(|condition| condition["lastTransitionTime"].as_str());
        json!({
            "type": type_, "status": status, "reason": reason, "message": message, "observedGeneration": generation,
            "lastTransitionTime": since.unwrap_or(&now),
        })
    });
    let mut status = json!({"observedGeneration": generation, "conditions": conditions});
    let fields = [
        ("code", seen.code.map(Value::from)),
        ("values", seen.values.as_ref().map(|values| json!(values))),
        ("secrets", seen.secrets.as_ref().map(|secrets| json!(secrets))),
        ("lastSet", seen.is_set.then(|| json!(now))),
        // What it stood for first stays.
        (
            "identity",
            identity.filter(|_| before["identity"].is_null()).map(Value::from),
        ),
        ("lastObserved", None),
    ];
    for (field, new) in fields {
        let value = new.unwrap_or_else(|| before[field].clone());
        if !value.is_null() && value != json!({}) {
            status[field] = value;
        }
    }
    if status == *before {
        return None;
    }
    // It says since when the rest is so: a time that changed with each look would be a write for each.
    if seen.code.is_some() {
        status["lastObserved"] = now.into();
    }
    Some(status)
}

/// Returns the condition of a type.
pub(crate) fn condition<'a>(external: &'a DynamicObject, type_: &str) -> Option<&'a Value> {
    let mut all = external.data["status"]["conditions"].as_array()?.iter();
    all.find(|condition| condition["type"] == type_)
}

/// Reports whether the status says of the current spec that a condition is true, for any reason or for this one.
pub(crate) fn has(external: &DynamicObject, type_: &str, reason: Option<&str>) -> bool {
    let is_current = external.data["status"]["observedGeneration"].as_i64() == external.metadata.generation;
    is_current
        && condition(external, type_)
            .is_some_and(|it| it["status"] == "True" && reason.is_none_or(|reason| it["reason"] == reason))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_status_is_written_once_for_what_is_the_same() {
        let mut external: DynamicObject =
            serde_json::from_value(json!({"metadata": {"name": "a", "generation": 3}})).unwrap();
        let seen = Seen {
            code: Some(200),
            is_set: true,
            values: Some(Map::from_iter([("/id".to_owned(), json!(1))])),
            ..Seen::default()
        };
        let first = status(&external, Some("dns /a"), &seen, None).unwrap();
        assert_eq!(first["conditions"][0]["status"], "True");
        assert_eq!(first["observedGeneration"], 3);
        external.data = json!({"status": first});
        let again = Seen {
            is_set: false,
            ..seen
        };
        assert_eq!(status(&external, Some("dns /a"), &again, None), None);
        let stop = Stop::failed("TimedOut", "no whole answer");
        let failed = status(&external, Some("dns /b"), &Seen::default(), Some(&stop)).unwrap();
        assert_eq!(failed["conditions"][1]["reason"], "TimedOut");
        assert_eq!(failed["values"], first["values"], "what was reported stays");
        assert_eq!(failed["identity"], "dns /a", "what it stood for first stays");
    }
}
