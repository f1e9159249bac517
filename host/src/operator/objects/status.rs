//! What a Controller shows: whether it is ready, which version of its plugin is live, and what is held back.

use std::collections::BTreeMap;

use jiff::Timestamp;
use kube::core::DynamicObject;
use serde_json::{Map, Value, json};

use super::admit::Refused;
use operator_host_contract::EventType;
use operator_host_core::object::shorten;
use operator_host_delivery::Prefix;
use operator_host_delivery::candidate_check::UNMATCHED_PIN;
use operator_host_delivery::history::HistoryEntry;
use operator_host_delivery::report::{CandidateState, CandidateVersion, PluginReport};
use operator_host_desired::conditions::PLUGIN_HELD_BACK;

/// Bytes of a message.
const MESSAGE: usize = 2048;

/// The reason of a Controller for which the host lacks a permission.
const FORBIDDEN: &str = "Forbidden";

/// Whether the API server refuses a request for want of a permission. The words are its own.
fn is_forbidden(message: &str) -> bool {
    message.contains("is forbidden: User ")
}

/// What is known about the controller of a Controller.
pub(super) struct Facts<'a> {
    /// The check of the controller, as `/readyz` has it; `None` until it has started.
    pub controller: Option<Result<String, String>>,
    /// The check of its plugin.
    pub plugin: Option<Result<String, String>>,
    pub report: Option<&'a PluginReport>,
    /// The versions that were live, the newest first.
    pub history: Vec<HistoryEntry>,
    /// Why a kind of a controller that has started cannot be watched.
    pub unwatched: Option<String>,
    /// The number of objects by condition.
    pub conditions: BTreeMap<(&'static str, &'static str), u64>,
}

/// The status of a Controller.
pub(super) struct Status {
    pub fields: Value,
    /// Whether the host runs it.
    pub runs: bool,
}

/// One condition before its time is known.
struct Condition {
    is_true: bool,
    reason: String,
    message: String,
}

fn condition(is_true: bool, reason: &str, message: &str) -> Condition {
    Condition {
        is_true,
        reason: reason.to_owned(),
        message: shorten(message, MESSAGE),
    }
}

/// Returns the status that a Controller should have.
pub(super) fn of(object: &DynamicObject, refused: Option<&Refused>, facts: &Facts<'_>) -> Status {
    let old = &object.data["status"];
    let mut fields = Map::new();
    let (ready, progressing, stalled) = match refused {
        Some(Refused { reason, message }) => {
            let refused = |is_true| condition(is_true, reason, message);
            (refused(false), refused(false), refused(true))
        }
        None => running(facts),
    };
    let candidate = facts.report.filter(|_| refused.is_none());
    let candidate = candidate.and_then(|report| report.candidate.as_ref());
    let held_back = match candidate {
        Some(version) if version.state == CandidateState::HeldBack => condition(
            true,
            version.reason.as_deref().unwrap_or(PLUGIN_HELD_BACK),
            &version.message,
        ),
        _ => match unmatched_pin(facts) {
            Some(words) => condition(true, UNMATCHED_PIN, &words),
            None => condition(false, "NothingHeldBack", "no version of the plugin is held back"),
        },
    };
    let error = match (refused, &facts.controller, &facts.plugin, candidate) {
        (Some(refused), ..) => Some(refused.message.clone()),
        (_, Some(Err(error)), ..) | (_, _, Some(Err(error)), _) => Some(error.clone()),
        (.., Some(version)) if version.state != CandidateState::Proving => Some(version.message.clone()),
        (_, _, Some(Ok(remarks)), _) if is_forbidden(remarks) => Some(remarks.clone()),
        _ => facts.unwatched.clone(),
    };
    if let Some(error) = error {
        fields.insert("lastError".to_owned(), shorten(&error, MESSAGE).into());
    }
    if let (None, Some(report)) = (refused, facts.report) {
        versions(&mut fields, report, &facts.history);
        let ready = |status| facts.conditions.get(&("Ready", status)).copied().unwrap_or(0);
        let not_ready = ready("False") + ready("Unknown");
        fields.insert(
            "objects".to_owned(),
            json!({"total": ready("True") + not_ready, "notReady": not_ready}),
        );
    }
    let conditions = [
        ("Ready", ready),
        ("Progressing", progressing),
        ("Stalled", stalled),
        (PLUGIN_HELD_BACK, held_back),
    ];
    let generation = object.metadata.generation;
    let conditions = conditions.map(|(type_, new)| dated(old, type_, &new, generation));
    fields.insert("conditions".to_owned(), conditions.to_vec().into());
    fields.insert("observedGeneration".to_owned(), generation.into());
    Status {
        fields: fields.into(),
        runs: refused.is_none(),
    }
}

/// Returns what is said about a pin that no version matches.
fn unmatched_pin(facts: &Facts<'_>) -> Option<String> {
    let report = facts.report?;
    let (pin, live) = (
        Prefix::parse(report.pinned.as_ref()?).ok()?,
        report.live.as_ref()?,
    );
    let live = live.digest.parse().ok()?;
    let words = facts.plugin.as_ref()?.as_ref().ok()?;
    (!pin.matches(&live)).then(|| words.clone())
}

/// Returns Ready, Progressing and Stalled of a Controller that runs.
fn running(facts: &Facts<'_>) -> (Condition, Condition, Condition) {
    let report = facts.report;
    let state = report
        .and_then(|report| report.candidate.as_ref())
        .map(|version| version.state);
    let is_live = report.is_some_and(|report| report.live.is_some());
    let (is_ready, is_moving, reason, message) = match (&facts.plugin, &facts.controller) {
        (_, None) | (None, _) => (false, true, "Starting", "it has just been added"),
        (Some(Err(error)), _) if !is_live => match state {
            Some(CandidateState::HeldBack) => (false, false, PLUGIN_HELD_BACK, error.as_str()),
            Some(CandidateState::Refused) => (false, false, "PluginRefused", error.as_str()),
            Some(CandidateState::Proving | CandidateState::PutAside) | None => {
                (false, true, "PluginNotLive", error.as_str())
            }
        },
        (_, Some(Err(error))) => (false, true, "Starting", error.as_str()),
        (_, Some(Ok(waits))) if !waits.is_empty() => (false, false, "KindNotServed", waits.as_str()),
        (_, Some(Ok(_))) => match &facts.unwatched {
            Some(error) => (false, true, "KindNotWatched", error.as_str()),
            None => (
                true,
                false,
                "Running",
                "its plugin is live and its kinds are watched",
            ),
        },
    };
    let (is_moving, reason) = match is_forbidden(message) {
        // It does not go on until someone grants what is missing.
        true => (false, FORBIDDEN),
        false => (is_moving, reason),
    };
    let is_moving = is_moving || state == Some(CandidateState::Proving);
    let moving = match (is_moving, is_ready) {
        (true, true) => {
            let version = report.and_then(|report| report.candidate.as_ref());
            condition(true, "Proving", version.map_or("", |version| &version.message))
        }
        (is_moving, _) => condition(is_moving, reason, message),
    };
    let stalls = ["PluginRefused", FORBIDDEN, PLUGIN_HELD_BACK].contains(&reason);
    (
        condition(is_ready, reason, message),
        moving,
        condition(stalls, reason, message),
    )
}

fn versions(fields: &mut Map<String, Value>, report: &PluginReport, history: &[HistoryEntry]) {
    if let Some(live) = &report.live {
        let entry = history.iter().find(|entry| entry.digest == live.digest);
        let mut version = json!({
            "name": live.name,
            "version": live.version,
            "digest": live.digest,
            "since": live.since,
            "because": shorten(&live.because, MESSAGE),
        });
        if let Some(by) = entry.and_then(|entry| entry.by.as_ref()) {
            version["by"] = by.clone().into();
        }
        fields.insert("live".to_owned(), version);
    }
    if let Some(candidate) = &report.candidate {
        fields.insert("proposed".to_owned(), proposed(candidate));
    }
    if !report.kept.is_empty() {
        let kept = report.kept.iter().map(
            |version| json!({"version": version.version, "digest": version.digest, "since": version.since}),
        );
        fields.insert("kept".to_owned(), kept.collect());
    }
}

fn proposed(candidate: &CandidateVersion) -> Value {
    let texts = [
        ("digest", &candidate.digest),
        ("version", &candidate.version),
        ("reason", &candidate.reason),
    ];
    let texts = texts
        .into_iter()
        .filter_map(|(field, text)| Some((field.to_owned(), Value::from(text.clone()?))));
    let mut fields: Map<String, Value> = texts.collect();
    fields.insert("state".to_owned(), json!(candidate.state));
    fields.insert("since".to_owned(), json!(candidate.since));
    fields.insert("message".to_owned(), shorten(&candidate.message, MESSAGE).into());
    fields.into()
}

/// Returns a condition with the time since when it has its status.
fn dated(old: &Value, type_: &str, new: &Condition, generation: Option<i64>) -> Value {
    let status = if new.is_true { "True" } else { "False" };
    let before = old["conditions"].as_array().into_iter().flatten();
    let before = before
        .filter(|before| before["type"] == type_ && before["status"] == status)
        .find_map(|before| before["lastTransitionTime"].as_str());
    let now = || Timestamp::now().strftime("%Y-%m-%dT%H:%M:%SZ").to_string();
    json!({
        "type": type_,
        "status": status,
        "reason": new.reason,
        "message": new.message,
        "observedGeneration": generation,
        "lastTransitionTime": before.map_or_else(now, str::to_owned),
    })
}

/// Returns the Events about a change of the status.
pub(super) fn events(old: &Value, new: &Value) -> Vec<(EventType, &'static str, String)> {
    let text = |value: &Value| value.as_str().unwrap_or_default().to_owned();
    let of = |status: &Value, type_: &str| {
        let conditions = status["conditions"].as_array().into_iter().flatten();
        let mut found = conditions
            .filter(|it| it["type"] == type_ && it["status"] == "True")
            .map(|it| (text(&it["reason"]), text(&it["message"])));
        found.next_back()
    };
    let mut events = Vec::new();
    if old["live"]["digest"] != new["live"]["digest"] && new["live"].is_object() {
        let live = &new["live"];
        let note = format!(
            "{} {} ({}) is live: {}",
            text(&live["name"]),
            text(&live["version"]),
            text(&live["digest"]),
            text(&live["because"])
        );
        events.push((EventType::Normal, "PluginLive", note));
    }
    for (type_, reason) in [(PLUGIN_HELD_BACK, PLUGIN_HELD_BACK), ("Stalled", "Stalled")] {
        match of(new, type_) {
            Some((why, message)) if of(old, type_) != Some((why.clone(), message.clone())) => {
                events.push((EventType::Warning, reason, format!("{why}: {message}")));
            }
            _ => {}
        }
    }
    events
}
