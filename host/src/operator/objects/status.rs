//! What a Controller shows: whether it is ready, which version of its plugin is live, and what is held back.

use kube::core::DynamicObject;
use serde::Serialize;
use serde_json::{Value, json};

use super::admit::Refused;
use operator_host_contract::{Condition, ConditionStatus, EventType};
use operator_host_core::clock;
use operator_host_core::object::NamespacedName;
use operator_host_core::text::shorten;
use operator_host_delivery::candidate_check::UNMATCHED_PIN;
use operator_host_delivery::history::HistoryEntry;
use operator_host_delivery::report::{CandidateState, PluginReport};
use operator_host_desired::conditions::{PLUGIN_HELD_BACK, Reason, current, render};

/// How many objects that are not ready are named.
pub(super) const FIRST: usize = 10;
/// Bytes of the reason. What a plugin says about an object is in its Events, for those who may read the object.
const SHORT: usize = 64;
/// Bytes of a message.
const MESSAGE: usize = 2048;

/// The reason of a Controller with a plugin that cannot be used.
const PLUGIN_REFUSED: &str = "PluginRefused";
/// The reason of a Controller for which the host lacks a permission.
const FORBIDDEN: &str = "Forbidden";

/// How the API server says that the conversion of an object failed. What follows is of the webhook.
const CONVERSION: &str = "conversion webhook";

/// Whether the API server refuses a request for want of a permission. The words are its own.
pub(super) fn is_forbidden(message: &str) -> bool {
    message.contains("is forbidden: User ")
}

/// What is known about the controller of a Controller, or about those of one that decorates several kinds.
#[derive(Default)]
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
    /// How many objects are not decorated any more, and keep their children.
    pub held: usize,
    /// The first objects that are decorated and not ready, with their kinds, and why.
    pub unready: Vec<(String, NamespacedName, Reason)>,
    /// How many objects there are, and how many of them are not Ready; `None` until all were looked at.
    pub objects: Option<(u64, u64)>,
}

impl Facts<'_> {
    /// The facts of a controller that waits for its kind.
    pub(super) fn waiting(why: String) -> Self {
        Self {
            controller: Some(Ok(why)),
            plugin: Some(Ok(String::new())),
            objects: Some((0, 0)),
            ..Self::default()
        }
    }

    /// Adds those of another controller of the same Controller. The worse of two states is that of both, and the plugin is shown as the
    /// one has it that is behind.
    #[must_use]
    pub(super) fn and(self, other: Self) -> Self {
        let both = self.objects.zip(other.objects);
        let is_behind = behind(self.report) < behind(other.report);
        let (report, history) = match is_behind {
            true => (other.report, other.history),
            false => (self.report, self.history),
        };
        Self {
            controller: worse(self.controller, other.controller),
            plugin: worse(self.plugin, other.plugin),
            report,
            history,
            unwatched: self.unwatched.or(other.unwatched),
            held: self.held + other.held,
            unready: [self.unready, other.unready].concat(),
            objects: both.map(|(one, other)| (one.0 + other.0, one.1 + other.1)),
        }
    }
}

/// Returns an error before a check that has not begun, this before one with remarks, and all of them before one that is well.
fn worse(one: Check, other: Check) -> Check {
    let rank = |check: &Check| match check {
        Some(Err(_)) => 3,
        None => 2,
        Some(Ok(remarks)) => u8::from(!remarks.is_empty()),
    };
    match rank(&one) < rank(&other) {
        true => other,
        false => one,
    }
}

type Check = Option<Result<String, String>>;

/// Returns how far a plugin is from having only a live version.
fn behind(report: Option<&PluginReport>) -> u8 {
    match report {
        None => 0,
        Some(report) if report.live.is_none() => 4,
        Some(report) if held_back(report).is_some() => 3,
        Some(report) => 1 + u8::from(report.candidate.is_some()),
    }
}

/// The status of a Controller.
pub(super) struct Status {
    pub fields: Value,
    /// Whether the host runs it.
    pub runs: bool,
}

/// Returns a condition whose type is not set yet.
fn condition(is_true: bool, reason: &str, message: &str) -> Condition {
    Condition {
        type_: String::new(),
        status: match is_true {
            true => ConditionStatus::True,
            false => ConditionStatus::False,
        },
        reason: reason.to_owned(),
        message: shorten(message, MESSAGE),
    }
}

/// Returns the status that a Controller should have.
pub(super) fn of(object: &DynamicObject, refused: Option<&Refused>, facts: &Facts<'_>) -> Status {
    let old = &object.data["status"];
    let runs = refused.is_none_or(|refused| refused.still_runs);
    let (ready, progressing, stalled) = match refused {
        Some(Refused { reason, message, .. }) => {
            let refused = |is_true| condition(is_true, reason, message);
            (refused(false), refused(false), refused(true))
        }
        None => running(facts),
    };
    let report = facts.report.filter(|_| runs);
    let held_back = report.and_then(held_back);
    let held = (facts.held > 0).then(|| {
        format!(
            "the selector leaves out {} objects whose children are there, more than `proving.maxDeletions` lets go at once, so these \
             children stay: correct the selector or the labels, or set `proving.maxDeletions` to 100%",
            facts.held
        )
    });
    let error = match (refused, &facts.controller, &facts.plugin, &held_back) {
        (Some(refused), ..) => Some(&refused.message),
        (_, Some(Err(error)), ..) | (_, _, Some(Err(error)), _) => Some(error),
        (.., Some(held_back)) => Some(&held_back.message),
        (_, _, Some(Ok(remarks)), _) if is_forbidden(remarks) => Some(remarks),
        _ => facts.unwatched.as_ref().or(held.as_ref()),
    };
    let error = error.map(|error| shorten(error, MESSAGE));
    let [live, proposed, kept] = versions(report, &facts.history, old);
    let objects = match facts.objects.filter(|_| runs) {
        Some((total, not_ready)) => {
            let mut objects = json!({"total": total, "notReady": not_ready});
            let shown = |(kind, name, why): &(String, NamespacedName, Reason)| json!({"kind": kind, "name": name.to_string(), "reason": shorten(&why.reason, SHORT)});
            if !facts.unready.is_empty() {
                objects["first"] = facts.unready.iter().take(FIRST).map(shown).collect();
            }
            objects
        }
        None => old["objects"].clone(),
    };
    let nothing = || condition(false, "NothingHeldBack", "no version of the plugin is held back");
    let conditions = [
        ("Ready", ready),
        ("Progressing", progressing),
        ("Stalled", stalled),
        (PLUGIN_HELD_BACK, held_back.unwrap_or_else(nothing)),
    ];
    let generation = object.metadata.generation;
    let conditions = conditions.map(|(type_, new)| {
        let new = Condition {
            type_: type_.to_owned(),
            ..new
        };
        render(&new, current(object), generation, clock::now())
    });
    let fields = present(json!({
        "lastError": error,
        "live": live,
        "proposed": proposed,
        "kept": kept,
        "objects": objects,
        "conditions": conditions,
        "observedGeneration": generation,
    }));
    Status { fields, runs }
}

/// Leaves out the fields without a value.
fn present(mut object: Value) -> Value {
    if let Some(fields) = object.as_object_mut() {
        fields.retain(|_, value| !value.is_null());
    }
    object
}

/// Returns what is said about a version that does not become live: of a pin that no version matches, of a version that is held
/// back, or of a file that cannot be used.
fn held_back(report: &PluginReport) -> Option<Condition> {
    if let Some(problem) = &report.pin_problem {
        return Some(condition(true, UNMATCHED_PIN, problem));
    }
    let version = report.candidate.as_ref()?;
    let reason = match version.state {
        CandidateState::HeldBack => version.reason.as_deref().unwrap_or(PLUGIN_HELD_BACK),
        CandidateState::Refused => PLUGIN_REFUSED,
        CandidateState::Proving | CandidateState::PutAside => return None,
    };
    Some(condition(true, reason, version.without_objects()))
}

/// Returns an error of a list without what a plugin said about an object that it could not convert.
pub(super) fn without_conversion(mut error: String) -> String {
    if let Some(start) = error.find(CONVERSION) {
        error.truncate(start + CONVERSION.len());
        error += " refuses objects of the kind; the host's log has its words";
    }
    error
}

/// Returns Ready, Progressing and Stalled of a Controller that runs.
fn running(facts: &Facts<'_>) -> (Condition, Condition, Condition) {
    let report = facts.report;
    let candidate = report.and_then(|report| report.candidate.as_ref());
    let state = candidate.map(|version| version.state);
    let is_live = report.is_some_and(|report| report.live.is_some());
    let (is_ready, is_moving, reason, message) = match (&facts.plugin, &facts.controller) {
        (_, None) | (None, _) => (false, true, "Starting", "it has just been added"),
        (Some(Err(error)), _) if !is_live => match state {
            _ if report.is_some_and(|report| report.pin_problem.is_some()) => {
                (false, false, UNMATCHED_PIN, error.as_str())
            }
            Some(CandidateState::HeldBack) => (false, false, PLUGIN_HELD_BACK, error.as_str()),
            Some(CandidateState::Refused) => (false, false, PLUGIN_REFUSED, error.as_str()),
            Some(CandidateState::Proving | CandidateState::PutAside) | None => {
                (false, true, "PluginNotLive", error.as_str())
            }
        },
        (_, Some(Err(error))) => (false, true, "Starting", error.as_str()),
        (_, Some(Ok(waits))) if !waits.is_empty() => (false, false, "KindNotServed", waits.as_str()),
        (_, Some(Ok(_))) => {
            let running = "its plugin is live and its kinds are watched";
            let error = facts.unwatched.as_deref();
            error.map_or((true, false, "Running", running), |error| {
                (false, true, "KindNotWatched", error)
            })
        }
    };
    let (is_moving, reason) = match is_forbidden(message) {
        // It does not go on until someone grants what is missing.
        true => (false, FORBIDDEN),
        false => (is_moving, reason),
    };
    let is_moving = is_moving || state == Some(CandidateState::Proving);
    let moving = match candidate.filter(|_| is_moving && is_ready) {
        Some(version) => condition(true, "Proving", version.without_objects()),
        None => condition(is_moving, reason, message),
    };
    let stalls = [PLUGIN_REFUSED, FORBIDDEN, PLUGIN_HELD_BACK, UNMATCHED_PIN].contains(&reason);
    (
        condition(is_ready, reason, message),
        moving,
        condition(stalls, reason, message),
    )
}

/// Returns the live version, the proposed one and those that are kept, null where none is known. The one that was live, and those to
/// return to, stay until others are known.
fn versions(report: Option<&PluginReport>, history: &[HistoryEntry], old: &Value) -> [Value; 3] {
    let live = match report.and_then(|report| report.live.as_ref()) {
        Some(live) => {
            let entry = history.iter().find(|entry| entry.digest == live.digest);
            // A process knows only the versions that became live in it, or in the folder of versions.
            match entry.is_none() && old["live"]["digest"] == live.digest.as_str() {
                true => old["live"].clone(),
                false => {
                    let mut version = shown(live);
                    if let Some(by) = entry.and_then(|entry| entry.by.as_ref()) {
                        version["by"] = by.clone().into();
                    }
                    version
                }
            }
        }
        None => old["live"].clone(),
    };
    let candidate = report.and_then(|report| report.candidate.as_ref());
    let kept = match report {
        Some(report) if report.kept.is_empty() => Value::Null,
        Some(report) => json!(report.kept),
        None => old["kept"].clone(),
    };
    [live, candidate.map(shown).unwrap_or_default(), kept]
}

/// Returns a version without the differences that it makes, which contain parts of children.
fn shown(version: &impl Serialize) -> Value {
    let mut version = json!(version);
    version["diff"].take();
    if let summary @ Value::String(_) = version["summary"].take() {
        version["message"] = summary;
    }
    for text in ["because", "message"] {
        if let Some(Value::String(text)) = version.get_mut(text) {
            *text = shorten(text, MESSAGE);
        }
    }
    present(version)
}

/// Returns the Events about a change of the status.
pub(super) fn events(old: &Value, new: &Value) -> Vec<(EventType, &'static str, String)> {
    let text = |value: &Value| value.as_str().unwrap_or_default().to_owned();
    let of = |status: &Value, type_: &str| {
        let mut conditions = status["conditions"].as_array()?.iter();
        let found = conditions.rfind(|it| it["type"] == type_ && it["status"] == "True")?;
        Some((text(&found["reason"]), text(&found["message"])))
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
    for type_ in [PLUGIN_HELD_BACK, "Stalled"] {
        let now = of(new, type_).filter(|now| of(old, type_).as_ref() != Some(now));
        events.extend(now.map(|(why, message)| (EventType::Warning, type_, format!("{why}: {message}"))));
    }
    events
}

#[cfg(test)]
mod tests {
    use jiff::Timestamp;

    use super::*;
    use operator_host_delivery::history::Why;
    use operator_host_delivery::report::{CandidateVersion, LiveVersion};

    fn facts(report: Option<&PluginReport>) -> Facts<'_> {
        Facts {
            controller: Some(Ok(String::new())),
            plugin: Some(Ok("sha256:a".into())),
            report,
            ..Facts::default()
        }
    }

    #[test]
    fn of_several_kinds_the_worst_is_told_and_their_objects_are_counted_together() {
        let (good, held) = (live("sha256:a", ""), PluginReport::default());
        let of = |report, total| Facts {
            objects: Some((total, 1)),
            ..facts(Some(report))
        };
        let failing = Facts {
            controller: Some(Err("no right".into())),
            ..of(&good, 1)
        };
        let both = of(&good, 2).and(failing).and(of(&held, 3));
        assert_eq!(both.controller, Some(Err("no right".into())));
        assert_eq!(both.objects, Some((6, 3)));
        assert!(
            both.report.is_some_and(|report| report.live.is_none()),
            "the one that is behind"
        );
        let waits = of(&good, 2).and(Facts::waiting("waits for it".into()));
        assert_eq!(waits.controller, Some(Ok("waits for it".into())));
        assert_eq!(waits.objects, Some((2, 1)));
        let starting = of(&good, 2).and(Facts::default());
        assert_eq!((starting.controller, starting.objects), (None, None));
    }

    fn live(digest: &str, because: &str) -> PluginReport {
        PluginReport {
            live: Some(LiveVersion {
                digest: digest.into(),
                name: "echo".into(),
                version: "1".into(),
                since: Timestamp::now(),
                because: because.into(),
                diff: String::new(),
            }),
            ..PluginReport::default()
        }
    }

    fn candidate(state: CandidateState) -> CandidateVersion {
        CandidateVersion {
            digest: None,
            version: None,
            state,
            reason: None,
            message: "another version is pinned".into(),
            summary: String::new(),
            diff: String::new(),
            since: Timestamp::now(),
        }
    }

    fn object(status: &Value) -> DynamicObject {
        serde_json::from_value(json!({"metadata": {"name": "echo", "generation": 2}, "status": status}))
            .unwrap()
    }

    fn condition_of(status: &Value, type_: &str) -> [String; 3] {
        let conditions = status["conditions"].as_array().unwrap();
        let found = conditions.iter().find(|it| it["type"] == type_).unwrap();
        ["status", "reason", "message"].map(|field| found[field].as_str().unwrap().to_owned())
    }

    fn old() -> Value {
        json!({
            "live": {"digest": "sha256:a", "since": "2026-01-01T00:00:00Z", "because": "proved: on 3 objects", "by": "me"},
            "kept": [{"digest": "sha256:b"}],
            "objects": {"total": 3, "notReady": 0},
        })
    }

    #[test]
    fn a_controller_that_does_not_run_keeps_what_was_live() {
        let message = "`spec.resync`: \"soon\" is not a duration";
        let mut refused = Refused {
            reason: "InvalidSpec",
            message: message.into(),
            still_runs: false,
        };
        let status = of(&object(&old()), Some(&refused), &facts(None));
        assert!(!status.runs);
        for field in ["live", "kept"] {
            assert_eq!(status.fields[field], old()[field]);
        }
        let expected = ["False", "InvalidSpec", message];
        assert_eq!(condition_of(&status.fields, "Ready"), expected);
        assert_eq!(status.fields["lastError"], message);
        // What it said before may run; that is reported, too.
        refused.still_runs = true;
        let mut report = live("sha256:a", "proved");
        report.candidate = Some(CandidateVersion {
            reason: Some("Fails".into()),
            message: "it fails on 1 object: shop/a: the password is b".into(),
            summary: "it fails on 1 object".into(),
            ..candidate(CandidateState::HeldBack)
        });
        let status = of(&object(&old()), Some(&refused), &facts(Some(&report)));
        assert!(status.runs);
        assert_eq!(condition_of(&status.fields, "Ready")[1], "InvalidSpec");
        // Of the object only its own readers may know.
        let expected = ["True", "Fails", "it fails on 1 object"];
        assert_eq!(condition_of(&status.fields, PLUGIN_HELD_BACK), expected);
        assert!(!status.fields.to_string().contains("shop/a"), "{}", status.fields);
        assert_eq!(status.fields["lastError"], message);
    }

    #[test]
    fn what_a_plugin_says_about_an_object_that_it_cannot_convert_is_left_out() {
        let error = "cannot list: conversion webhook for a.dev/v1, Kind=A failed: the password is b";
        let shown =
            "cannot list: conversion webhook refuses objects of the kind; the host's log has its words";
        assert_eq!(without_conversion(error.into()), shown);
        assert_eq!(without_conversion("as it is".into()), "as it is");
    }

    #[test]
    fn a_version_that_stays_live_keeps_its_time_and_reason_over_a_restart() {
        let report = live("sha256:a", "it was the last good one before the restart");
        let status = |facts: &Facts<'_>| of(&object(&old()), None, facts).fields["live"].clone();
        assert_eq!(status(&facts(Some(&report))), old()["live"]);
        // What this process knows itself is newer.
        let entry = HistoryEntry {
            at: Timestamp::now(),
            version: "1".into(),
            digest: "sha256:a".into(),
            before: None,
            why: Why::Forced,
            because: "promoted by force".into(),
            by: Some("kubectl-patch".into()),
            diff: String::new(),
        };
        let known = Facts {
            history: vec![entry],
            ..facts(Some(&report))
        };
        assert_eq!(status(&known)["by"], "kubectl-patch");
        let other = live("sha256:b", "proved");
        assert_eq!(status(&facts(Some(&other)))["because"], "proved");
    }

    #[test]
    fn objects_are_counted_when_all_were_looked_at() {
        let report = live("sha256:a", "proved");
        let status = |facts: &Facts<'_>| of(&object(&old()), None, facts).fields["objects"].clone();
        assert_eq!(status(&facts(Some(&report))), old()["objects"]);
        let counted = Facts {
            objects: Some((4, 1)),
            ..facts(Some(&report))
        };
        assert_eq!(status(&counted), json!({"total": 4, "notReady": 1}));
    }

    #[test]
    fn what_does_not_become_live_has_one_sentence_in_all_places() {
        let mut report = live("sha256:a", "proved");
        report.candidate = Some(candidate(CandidateState::PutAside));
        let said = |report: &PluginReport| {
            let fields = of(&object(&Value::Null), None, &facts(Some(report))).fields;
            let [status, reason, message] = condition_of(&fields, PLUGIN_HELD_BACK);
            let is_said = fields["lastError"] == message.as_str();
            (status, reason, is_said)
        };
        // It does as it was told.
        assert_eq!(said(&report), ("False".into(), "NothingHeldBack".into(), false));
        report.pin_problem = Some("the version 0 is pinned".into());
        assert_eq!(said(&report), ("True".into(), UNMATCHED_PIN.into(), true));
        report.pin_problem = None;
        report.candidate = Some(candidate(CandidateState::Refused));
        assert_eq!(said(&report), ("True".into(), PLUGIN_REFUSED.into(), true));
    }
}
