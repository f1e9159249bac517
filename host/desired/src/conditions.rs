//! Computes the desired status of the parent: the plugin's fields, the conditions and `observedGeneration`.
//!
//! Conditions follow kstatus: `Ready` is always present, `Synced` except during a cleanup; `Reconciling` and `Stalled`
//! only while they are true.

use std::collections::BTreeSet;
use std::sync::LazyLock;

use jiff::Timestamp;
use kube::core::DynamicObject;
use serde_json::{Map, Value, json};

use operator_host_contract::Condition;
use operator_host_contract::ConditionStatus::{self, False, True};
use operator_host_core::object::{PAUSED_ANNOTATION, conventional_reason, is_terminating};
use operator_host_core::text::shorten;

/// The condition that reports whether the resource is in the desired state.
pub const READY: &str = "Ready";
/// Present and true while the host works towards the desired state.
pub const RECONCILING: &str = "Reconciling";
/// Present and true when retrying alone is not expected to help.
pub const STALLED: &str = "Stalled";
/// Present except during a cleanup: whether every child is applied as the current spec wants it.
pub const SYNCED: &str = "Synced";

/// Present and true while the parent is paused.
pub const PAUSED: &str = "Paused";

/// Present and true while a new version of the plugin is held back because of this parent.
pub const PLUGIN_HELD_BACK: &str = "PluginHeldBack";

/// Present and true while another client keeps changing back what the host applied to a child.
pub const CONTESTED: &str = "Contested";
/// The reason of [`CONTESTED`].
pub const FIELD_CONTESTED: &str = "FieldContested";

/// The reason of [`SYNCED`], which is True, when the API server does not keep all that was applied.
pub const FIELDS_DROPPED: &str = "FieldsDropped";

/// The reason of [`SYNCED`], which is False, when a field stays as others set it, since the API server refuses to change it back.
pub const FIELDS_REFUSED: &str = "FieldsRefused";

/// The reason while no version of the plugin can be called.
pub const NO_PLUGIN: &str = "PluginNotLoaded";
/// The reason until the first reconcile of a parent.
pub const WAITING: &str = "Waiting";
/// The reason while objects that a reconcile needs cannot be watched.
pub const WATCH_FAILED: &str = "WatchFailed";
/// The reasons that no answer of a plugin has led to.
pub const NOT_CALLED: [&str; 3] = [WAITING, NO_PLUGIN, WATCH_FAILED];
/// The reason while the plugin asks to be called again.
pub const RETRYING: &str = "Retrying";
/// The message of the host's own [`READY`].
const ALL_READY: &str = "every child is applied and ready";

/// Present and true while there are children of a kind that the configuration does not list any more. Its reason is the same.
pub const KIND_NOT_LISTED: &str = "KindNotListed";

/// The types that the host sets. A plugin may set only the first one.
pub const HOST_TYPES: [&str; 8] = [
    READY,
    SYNCED,
    RECONCILING,
    STALLED,
    PAUSED,
    PLUGIN_HELD_BACK,
    CONTESTED,
    KIND_NOT_LISTED,
];

/// The result of a reconcile, for the conditions.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Verdict {
    /// Every child is applied and ready. The plugin's own `Ready` takes precedence, if it gave one.
    Reconciled,
    /// Every child is applied, and some are not ready. The plugin's own `Ready` takes precedence, if it gave one; if that is
    /// not True, this reason is appended to its message.
    Progressing(Reason),
    /// Not done yet; the host tries again.
    Reconciling(Reason),
    /// A user must change something; the host may still retry.
    Stalled(Reason),
    /// The parent is being deleted, and the plugin's cleanup is not done.
    CleaningUp(Reason),
    /// The parent is paused by its annotation.
    Paused,
}

/// The reason and the message of a condition.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Reason {
    /// CamelCase.
    pub reason: String,
    /// A sentence for readers.
    pub message: String,
}

/// Longer texts are truncated, and a reason is brought into the allowed form: where the definition has the limits of
/// `metav1.Condition`, the API server would otherwise reject the whole status.
const MAX_REASON: usize = 1024;
/// Maximum bytes of a message of the host, well below [`LONGEST_MESSAGE`] for readability.
const MAX_MESSAGE: usize = 4096;
/// Maximum bytes of a plugin's message. Source: `metav1.Condition`, which counts characters.
pub const LONGEST_MESSAGE: usize = 32 << 10;

impl Reason {
    /// Creates a reason and truncates overlong parts.
    pub fn new(reason: impl Into<String>, message: impl Into<String>) -> Self {
        Self {
            reason: conventional_reason(&reason.into(), MAX_REASON),
            message: shorten(&message.into(), MAX_MESSAGE),
        }
    }

    /// Creates the reason why not every child is applied: one comes after another that is not ready.
    pub fn waiting(why: impl Into<String>) -> Self {
        Reason::new("WaitingForChild", why)
    }

    /// Creates the reason why a deleted parent stays: its cleanup succeeded but is not done.
    pub fn cleaning_up(finalizer: &str) -> Self {
        let message = format!(
            "it is being deleted and keeps the finalizer {finalizer} until the plugin's cleanup says that it is done"
        );
        Reason::new("CleaningUp", message)
    }
}

/// Computes the desired status.
///
/// `fields` are the plugin's. When it gave none or could not be asked, they are `None` and the current fields stay.
/// The same applies to `conditions`.
pub fn desired(
    parent: &DynamicObject,
    fields: Option<&Map<String, Value>>,
    conditions: Option<&[Condition]>,
    verdict: &Verdict,
    now: Timestamp,
) -> Map<String, Value> {
    let update = StatusUpdate {
        fields,
        conditions,
        ..StatusUpdate::of_host(verdict)
    };
    compose(parent, current(parent), &update, &Remarks::default(), now)
}

/// What a reconcile reports about its parent.
#[derive(Clone, Copy, Debug)]
pub struct StatusUpdate<'a> {
    /// The plugin's fields; `None` when it gave none or could not be asked.
    pub fields: Option<&'a Map<String, Value>>,
    /// The plugin's conditions; `None` when it gave none or could not be asked. Of two of one type, the first is used.
    pub conditions: Option<&'a [Condition]>,
    /// Conditions of a failure, which are added to the others.
    pub added: &'a [Condition],
    /// The result of the reconcile.
    pub verdict: &'a Verdict,
}

impl<'a> StatusUpdate<'a> {
    /// Returns an update of the host's own conditions: what the plugin gave stays.
    pub const fn of_host(verdict: &'a Verdict) -> Self {
        Self {
            fields: None,
            conditions: None,
            added: &[],
            verdict,
        }
    }

    /// Reports whether the status keeps parts that this reconcile did not set.
    pub fn repeats(&self, status: &Map<String, Value>) -> bool {
        let fields = self.fields.is_none() && status.keys().any(|name| !is_host_field(name));
        let conditions = existing(status).any(|c| self.keeps(&c.type_));
        fields || conditions || *self.verdict == Verdict::Paused
    }

    fn adds(&self, type_: &str) -> bool {
        self.added.iter().any(|condition| condition.type_ == type_)
    }

    /// Reports whether an existing condition of this type stays.
    fn keeps(&self, type_: &str) -> bool {
        // A cleanup adds to the conditions of the last reconcile, which say what there is to clean up.
        let is_kept = self.conditions.is_none_or(|given| {
            matches!(self.verdict, Verdict::CleaningUp(_)) && given.iter().all(|it| it.type_ != type_)
        });
        is_kept && !self.adds(type_) && !HOST_TYPES.contains(&type_)
    }
}

/// What the host says of a parent beside its verdict. Each is a condition that is true while it has a reason.
#[derive(Clone, Debug, Default)]
pub struct Remarks {
    /// The reason of [`PLUGIN_HELD_BACK`].
    pub held_back: Option<Reason>,
    /// The reason of [`CONTESTED`]. While there is one, not every child is as applied, so the host does not call the parent
    /// ready.
    pub contested: Option<Reason>,
    /// The reason of [`SYNCED`], which is otherwise True, when the API server does not keep all that was applied.
    pub dropped: Option<Reason>,
    /// The reason of [`KIND_NOT_LISTED`].
    pub unwatched: Option<Reason>,
}

impl Remarks {
    const TYPES: [&str; 3] = [PLUGIN_HELD_BACK, CONTESTED, KIND_NOT_LISTED];

    fn add_to(&self, conditions: &mut Vec<Condition>) {
        if let Some(dropped) = &self.dropped {
            for condition in conditions.iter_mut() {
                if condition.type_ == SYNCED && condition.status == True {
                    let is_refused = dropped.reason == FIELDS_REFUSED;
                    *condition = host(SYNCED, if is_refused { False } else { True }, dropped);
                } else if condition.type_ == READY && condition.message == ALL_READY {
                    let but = format!(", but not all of their fields are kept: see the condition {SYNCED}");
                    condition.message.push_str(&but);
                }
            }
        }
        if let Some(contested) = &self.contested {
            let reason = Reason::new(&contested.reason, format!("see the condition {CONTESTED}"));
            for condition in conditions.iter_mut() {
                // The plugin's own `Ready` has another message.
                let is_synced = condition.type_ == SYNCED && condition.status == True;
                if is_synced || (condition.type_ == READY && condition.message.starts_with(ALL_READY)) {
                    *condition = host(&condition.type_, False, &reason);
                }
            }
        }
        let reasons = [&self.held_back, &self.contested, &self.unwatched];
        let remarks = Self::TYPES.into_iter().zip(reasons);
        conditions.extend(remarks.filter_map(|(type_, reason)| Some(host(type_, True, reason.as_ref()?))));
    }
}

/// `before` is the current status, from which missing parts are kept.
pub fn compose(
    parent: &DynamicObject,
    before: &Map<String, Value>,
    update: &StatusUpdate<'_>,
    remarks: &Remarks,
    now: Timestamp,
) -> Map<String, Value> {
    let StatusUpdate {
        fields,
        conditions,
        added,
        verdict,
    } = *update;
    let current = current(parent);
    if *verdict == Verdict::Paused {
        return paused(parent, before, remarks, now);
    }
    let mut status = fields.unwrap_or(before).clone();
    let given = conditions.unwrap_or_default().iter();
    let given = given.filter(|c| !update.adds(&c.type_)).chain(added);
    let given = given.filter(|c| !is_host_type(&c.type_)).cloned();
    let kept = existing(before).filter(|c| update.keeps(&c.type_));
    let mut wanted: Vec<Condition> = given.chain(kept).collect();
    let mut seen = BTreeSet::new();
    wanted.retain(|c| seen.insert(c.type_.clone()));
    match verdict {
        Verdict::Reconciled | Verdict::Progressing(_) => {
            match (wanted.iter_mut().find(|c| c.type_ == READY), verdict) {
                (None, Verdict::Progressing(cause)) => wanted.insert(0, host(READY, False, cause)),
                (None, _) => wanted.insert(0, host(READY, True, &Reason::new("Reconciled", ALL_READY))),
                (Some(own), Verdict::Progressing(cause)) if own.status != True => {
                    append(&mut own.message, &cause.message);
                }
                (Some(_), _) => {}
            }
            let reason = Reason::new("Applied", "every child is applied");
            wanted.push(host(SYNCED, True, &reason));
        }
        Verdict::Reconciling(reason) | Verdict::Stalled(reason) => {
            wanted.retain(|c| c.type_ != READY);
            wanted.insert(0, host(READY, False, reason));
            let is_stalled = matches!(verdict, Verdict::Stalled(_));
            let type_ = if is_stalled { STALLED } else { RECONCILING };
            wanted.push(host(type_, True, reason));
            // The message is there twice already, and may be long.
            let reason = Reason::new(&reason.reason, format!("see the condition {type_}"));
            wanted.push(host(SYNCED, False, &reason));
        }
        Verdict::CleaningUp(reason) => {
            if !wanted.iter().any(|c| c.type_ == READY) {
                wanted.insert(0, host(READY, False, reason));
            }
            wanted.push(host(RECONCILING, True, reason));
        }
        // Handled above.
        Verdict::Paused => {}
    }
    remarks.add_to(&mut wanted);
    let generation = parent.metadata.generation;
    let rendered = wanted
        .iter()
        .map(|condition| render(condition, current, generation, now))
        .collect();
    status.insert("conditions".into(), Value::Array(rendered));
    if let Some(generation) = generation {
        status.insert("observedGeneration".into(), generation.into());
    }
    status
}

/// Returns the current status with the `Paused` condition. `observedGeneration` stays unchanged.
fn paused(
    parent: &DynamicObject,
    before: &Map<String, Value>,
    remarks: &Remarks,
    now: Timestamp,
) -> Map<String, Value> {
    let waits = match is_terminating(parent) {
        true => "; it is being deleted, and waits for its removal",
        false => "",
    };
    let message = format!("nothing is done while the annotation {PAUSED_ANNOTATION} is true{waits}");
    let mut said = vec![host(PAUSED, True, &Reason::new("Annotated", message))];
    remarks.add_to(&mut said);
    let is_replaced = |condition: &&Value| {
        let is = |type_: &str| condition["type"] == type_;
        is(PAUSED)
            || Remarks::TYPES.into_iter().any(is)
            // The contest has ended, since nothing is applied.
            || (is(SYNCED) && condition["reason"] == FIELD_CONTESTED)
    };
    let others = conditions_of(before).filter(|condition| !is_replaced(condition));
    let render = |said: &_| render(said, current(parent), parent.metadata.generation, now);
    let conditions = others.cloned().chain(said.iter().map(render)).collect();
    let mut status = before.clone();
    status.insert("conditions".into(), Value::Array(conditions));
    status
}

fn host(type_: &str, status: ConditionStatus, reason: &Reason) -> Condition {
    Condition {
        type_: type_.to_owned(),
        status,
        reason: reason.reason.clone(),
        message: reason.message.clone(),
    }
}

/// Appends the host's cause to a plugin's message, unless it is in it, or would not fit.
fn append(message: &mut String, cause: &str) {
    if message.contains(cause) || message.len() + cause.len() + 2 > LONGEST_MESSAGE {
        return;
    }
    if !message.is_empty() {
        message.push_str(": ");
    }
    message.push_str(cause);
}

/// Reports whether a field of a status is the host's, not the plugin's.
pub fn is_host_field(name: &str) -> bool {
    matches!(name, "conditions" | "observedGeneration")
}

/// Reports whether the host alone sets conditions of this type.
pub fn is_host_type(type_: &str) -> bool {
    type_ != READY && HOST_TYPES.contains(&type_)
}

/// Returns the conditions of the host in a status, for labels, and since when `Ready` is not True.
pub fn labels(status: &Map<String, Value>) -> (Vec<(&'static str, &'static str)>, Option<Timestamp>) {
    let mut unready_since = None;
    let labels = conditions_of(status).filter_map(|condition| {
        let type_ = HOST_TYPES.into_iter().find(|type_| condition["type"] == *type_)?;
        let mut all = ["True", "False", "Unknown"].into_iter();
        let status = all.find(|status| condition["status"] == *status)?;
        if type_ == READY && status != "True" {
            let since = condition["lastTransitionTime"].as_str();
            unready_since = since.and_then(|since| since.parse().ok());
        }
        Some((type_, status))
    });
    (labels.collect(), unready_since)
}

/// Returns the status of a parent; an empty one if it has none.
pub fn current(parent: &DynamicObject) -> &Map<String, Value> {
    static EMPTY: LazyLock<Map<String, Value>> = LazyLock::new(Map::new);
    parent.data["status"].as_object().unwrap_or(&EMPTY)
}

/// Returns the conditions in a status.
pub fn conditions_of(status: &Map<String, Value>) -> impl Iterator<Item = &Value> {
    let conditions = status.get("conditions").and_then(Value::as_array);
    conditions.into_iter().flatten()
}

fn existing(status: &Map<String, Value>) -> impl Iterator<Item = Condition> {
    conditions_of(status).filter_map(|condition| {
        let text = |field: &str| condition[field].as_str().unwrap_or_default().to_owned();
        let status = serde_json::from_value(condition["status"].clone()).ok()?;
        Some(Condition {
            type_: text("type"),
            status,
            reason: text("reason"),
            message: text("message"),
        })
    })
}

/// Returns a condition with the time since when it has its status. `current` is the status that has it, or not.
pub fn render(
    condition: &Condition,
    current: &Map<String, Value>,
    generation: Option<i64>,
    now: Timestamp,
) -> Value {
    let status = json!(condition.status);
    let mut before = conditions_of(current);
    let before = before.find(|before| before["type"] == condition.type_);
    // The time of the last change of the status, not of the last check.
    let before = before.filter(|before| before["status"] == status);
    let since = before.and_then(|before| before["lastTransitionTime"].as_str());
    let mut rendered = json!({
        "type": condition.type_,
        "status": status,
        "reason": conventional_reason(&condition.reason, MAX_REASON),
        "message": shorten(&condition.message, LONGEST_MESSAGE),
        "lastTransitionTime": since.map_or_else(|| now.to_string(), str::to_owned),
    });
    if let Some(generation) = generation {
        rendered["observedGeneration"] = generation.into();
    }
    rendered
}

#[cfg(test)]
mod tests {
    use super::*;
    use ConditionStatus::{False, True};

    fn parent(status: &Value) -> DynamicObject {
        serde_json::from_value(json!({
            "apiVersion": "my-operator.dev/v1", "kind": "Echo",
            "metadata": { "name": "a", "generation": 2 },
            "status": status,
        }))
        .unwrap()
    }

    /// Returns a condition that a plugin gives.
    fn given(type_: &str, status: ConditionStatus, reason: &str, message: &str) -> Condition {
        Condition {
            type_: type_.to_owned(),
            status,
            reason: reason.to_owned(),
            message: message.to_owned(),
        }
    }

    /// Returns the status of a parent that has none yet, after its plugin has given these conditions.
    fn first(given: &[Condition], verdict: &Verdict) -> Map<String, Value> {
        desired(&parent(&json!({})), None, Some(given), verdict, at(1))
    }

    fn at(second: i64) -> Timestamp {
        Timestamp::from_second(second).unwrap()
    }

    /// Returns the conditions of a status, such as `Ready=False InvalidSpec`.
    fn said(status: &Map<String, Value>) -> Vec<String> {
        let said = |it: &Value| {
            let [type_, status, reason] =
                ["type", "status", "reason"].map(|field| it[field].as_str().unwrap());
            format!("{type_}={status} {reason}")
        };
        conditions_of(status).map(said).collect()
    }

    fn stalled() -> Verdict {
        Verdict::Stalled(Reason::new("InvalidSpec", "replicas: greater than 20"))
    }

    /// Regression: one of 270 KB was written, or the whole status rejected where the definition limits the length.
    #[test]
    fn a_long_message_of_a_plugin_is_cut_and_the_same_again_changes_nothing() {
        let long = [given(READY, False, "Long", &"ä".repeat(100_000))];
        let first = first(&long, &Verdict::Reconciled);
        let message = first["conditions"][0]["message"].as_str().unwrap();
        assert!(message.ends_with("ä…") && message.len() > LONGEST_MESSAGE - 5);
        assert!(message.len() <= LONGEST_MESSAGE);
        let parent = parent(&first.clone().into());
        let again = desired(&parent, None, Some(&long), &Verdict::Reconciled, at(9));
        assert_eq!(again, first);
    }

    #[test]
    fn the_same_verdict_again_changes_nothing_at_any_time() {
        let fields = json!({"currentReplicas": 3}).as_object().cloned().unwrap();
        let first = desired(
            &parent(&json!({})),
            Some(&fields),
            Some(&[]),
            &Verdict::Reconciled,
            at(1),
        );
        assert_eq!(first["conditions"][0]["type"], "Ready");
        let expected = "1970-01-01T00:00:01Z";
        assert_eq!(first["conditions"][0]["lastTransitionTime"], expected);
        let parent = parent(&first.clone().into());
        let again = desired(&parent, Some(&fields), Some(&[]), &Verdict::Reconciled, at(99));
        assert_eq!(again, first);
    }

    #[test]
    fn of_two_conditions_of_a_failure_with_one_type_the_first_is_shown() {
        let condition = |reason: &str| given("Failing", True, reason, "");
        let verdict = stalled();
        let update = StatusUpdate {
            added: &[condition("First"), condition("Second")],
            ..StatusUpdate::of_host(&verdict)
        };
        let parent = parent(&json!({}));
        let status = compose(&parent, current(&parent), &update, &Remarks::default(), at(1));
        assert_eq!(
            said(&status)[1..3],
            ["Failing=True First", "Stalled=True InvalidSpec"]
        );
    }

    /// Regression: the second one had a new time in each reconcile, and each reconcile wrote it.
    #[test]
    fn of_two_conditions_of_one_type_the_first_counts_also_when_the_status_has_both() {
        let twice = [given("Full", True, "One", ""), given("Full", False, "Two", "")];
        let status = first(&twice, &Verdict::Reconciled);
        assert_eq!(said(&status)[1..], ["Full=True One", "Synced=True Applied"]);
        let both = json!({ "conditions": [
            { "type": "Full", "status": "True", "lastTransitionTime": "1970-01-01T00:00:01Z" },
            { "type": "Full", "status": "False", "lastTransitionTime": "1970-01-01T00:00:01Z" },
        ] });
        let kept = |at_| desired(&parent(&both), None, None, &stalled(), at(at_)).remove("conditions");
        let times = |status: Option<Value>| {
            let all = status.unwrap();
            let full = all.as_array().unwrap().iter().filter(|c| c["type"] == "Full");
            full.map(|c| c["lastTransitionTime"].clone()).collect::<Vec<_>>()
        };
        assert_eq!(times(kept(99)), ["1970-01-01T00:00:01Z"]);
    }

    #[test]
    fn a_failure_keeps_the_fields_and_the_plugins_conditions_and_takes_ready_away() {
        let before = json!({
            "phase": "Running",
            "conditions": [
                {"type": "Ready", "status": "True", "reason": "R", "message": "", "lastTransitionTime": "t0"},
                {"type": "Backed", "status": "True", "reason": "B", "message": "m", "lastTransitionTime": "t1"},
            ],
        });
        let status = desired(&parent(&before), None, None, &stalled(), at(5));
        assert_eq!(status["phase"], "Running");
        let expected = [
            "Ready=False InvalidSpec",
            "Backed=True B",
            "Stalled=True InvalidSpec",
            "Synced=False InvalidSpec",
        ];
        assert_eq!(said(&status), expected);
        let expected = "1970-01-01T00:00:05Z";
        assert_eq!(status["conditions"][0]["lastTransitionTime"], expected);
        assert_eq!(status["conditions"][1]["lastTransitionTime"], "t1");
        assert_eq!(status["conditions"][2]["message"], "replicas: greater than 20");
        assert_eq!(status["observedGeneration"], 2);
    }

    #[test]
    fn a_good_reconcile_removes_stalled_and_the_plugins_ready_counts() {
        let stalled = desired(&parent(&json!({})), None, None, &stalled(), at(1));
        let rolling = given(READY, False, "RollingOut", "1/3");
        let status = desired(
            &parent(&stalled.into()),
            None,
            Some(&[rolling]),
            &Verdict::Reconciled,
            at(2),
        );
        assert_eq!(said(&status), ["Ready=False RollingOut", "Synced=True Applied"]);
    }

    #[test]
    fn children_that_are_not_ready_take_ready_away_unless_the_plugin_decides() {
        let progressing =
            Verdict::Progressing(Reason::new("ChildrenNotReady", "Pod a-0: it has not started"));
        let status = first(&[], &progressing);
        assert_eq!(
            said(&status),
            ["Ready=False ChildrenNotReady", "Synced=True Applied"]
        );
        let messages: Vec<_> = conditions_of(&status).map(|it| &it["message"]).collect();
        assert_eq!(
            messages,
            ["Pod a-0: it has not started", "every child is applied"]
        );
        let ready = given(READY, True, "Enough", "");
        let status = first(&[ready], &progressing);
        assert_eq!(status["conditions"][0]["reason"], "Enough");
    }

    #[test]
    fn a_cleanup_adds_its_conditions_to_those_of_the_last_reconcile() {
        let before = json!({ "conditions": [
            {"type": "Ready", "status": "True", "reason": "R", "message": "", "lastTransitionTime": "t0"},
            {"type": "Backed", "status": "True", "reason": "B", "message": "m", "lastTransitionTime": "t1"},
            {"type": "Drained", "status": "False", "reason": "D", "message": "", "lastTransitionTime": "t1"},
        ] });
        let verdict = Verdict::CleaningUp(Reason::new("CleaningUp", "it is being deleted"));
        let drained = given("Drained", True, "Empty", "");
        let update = StatusUpdate {
            conditions: Some(&[drained]),
            ..StatusUpdate::of_host(&verdict)
        };
        let (parent, before) = (parent(&before), before.as_object().cloned().unwrap());
        let status = compose(&parent, &before, &update, &Remarks::default(), at(5));
        let expected = [
            "Ready=False CleaningUp",
            "Drained=True Empty",
            "Backed=True B",
            "Reconciling=True CleaningUp",
        ];
        assert_eq!(said(&status), expected);
        assert!(
            update.repeats(&before),
            "`Backed` is repeated from the current status"
        );
        assert_eq!(
            compose(&parent, &status, &update, &Remarks::default(), at(5)),
            status
        );
    }

    /// Regression: the host called such a parent ready, because every child was "applied and ready".
    #[test]
    fn a_parent_with_a_contested_child_is_not_ready_unless_the_plugin_says_so() {
        let ready = |given: &[Condition]| {
            let parent = parent(&json!({}));
            let update = StatusUpdate {
                conditions: Some(given),
                ..StatusUpdate::of_host(&Verdict::Reconciled)
            };
            let remarks = Remarks {
                contested: Some(Reason::new(FIELD_CONTESTED, "by others")),
                ..Remarks::default()
            };
            let status = compose(&parent, current(&parent), &update, &remarks, at(1));
            assert_eq!(said(&status)[1], "Synced=False FieldContested");
            let message = status["conditions"][0]["message"].as_str().unwrap();
            format!("{}: {message}", said(&status)[0])
        };
        let expected = "Ready=False FieldContested: see the condition Contested";
        assert_eq!(ready(&[]), expected);
        let own = given(READY, True, "Enough", "enough servers");
        assert_eq!(ready(&[own]), "Ready=True Enough: enough servers");
    }

    /// Regression: "0/2 servers are Ready", and nobody said that a claim had no volume.
    #[test]
    fn a_ready_of_the_plugin_that_is_not_true_gets_the_cause_that_the_host_knows() {
        let ready = |status, message: &str| {
            let own = given(READY, status, "ServersNotReady", message);
            let verdict = Verdict::Progressing(Reason::new("ChildrenNotReady", "Pod a: Evicted"));
            let status = first(&[own], &verdict);
            let ready = conditions_of(&status)
                .find(|c| c["type"] == READY)
                .cloned()
                .unwrap();
            assert_eq!(ready["reason"], "ServersNotReady");
            ready["message"].as_str().unwrap().to_owned()
        };
        assert_eq!(ready(False, "0/2 are Ready"), "0/2 are Ready: Pod a: Evicted");
        assert_eq!(ready(False, ""), "Pod a: Evicted");
        assert_eq!(ready(False, "so: Pod a: Evicted"), "so: Pod a: Evicted");
        assert_eq!(ready(True, "enough"), "enough");
    }
}
