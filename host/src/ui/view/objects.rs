//! A page of the objects of one controller.

use jiff::Timestamp;
use kube::core::DynamicObject;
use serde::Serialize;
use serde_json::Value;

use super::{Page, incomplete, not_running};
use crate::ui::Sources;
use operator_host_core::object::{PAUSED_ANNOTATION, annotation, is_terminating};
use operator_host_core::text::shorten;

/// Number of objects on one page.
const ON_A_PAGE: usize = 100;
/// Bytes of a message in a row; the object's own page has all of it.
const MESSAGE: usize = 300;
/// Number of namespaces that are named.
const NAMESPACES: usize = 20;

#[derive(Serialize)]
#[serde(rename_all = "camelCase")]
pub(super) struct Objects {
    controller: String,
    kind: String,
    total: usize,
    /// How many are not ready.
    problems: usize,
    /// How many match the filter.
    matching: usize,
    objects: Vec<Row>,
    /// The namespaces that the controller watches, the first ones; `None`: all. Objects in others are not shown.
    #[serde(skip_serializing_if = "Option::is_none")]
    namespaces: Option<Vec<String>>,
    /// How many more namespaces it watches.
    more_namespaces: usize,
    /// Why objects are missing.
    unreadable: Vec<String>,
    /// The last name of this page, if there is another one.
    #[serde(skip_serializing_if = "Option::is_none")]
    next: Option<String>,
}

#[derive(Serialize)]
struct Row {
    name: String,
    #[serde(flatten)]
    summary: Summary,
    created: Option<Timestamp>,
}

/// The state of an object in a few words.
#[derive(Debug, PartialEq, Serialize)]
pub(super) struct Summary {
    state: State,
    reason: String,
    message: String,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
enum State {
    Ready,
    NotReady,
    Stalled,
    Deleting,
    Paused,
    New,
}

impl Summary {
    /// Summarizes the conditions of an object.
    pub(super) fn of(object: &DynamicObject) -> Self {
        let conditions = object.data["status"]["conditions"].as_array();
        let condition = |type_: &str| {
            let mut all = conditions.into_iter().flatten();
            all.find(|condition| condition["type"] == type_)
        };
        let (ready, stalled) = (condition("Ready"), condition("Stalled"));
        let stalled = stalled.filter(|condition| condition["status"] == "True");
        let state = match ready {
            _ if is_terminating(object) => State::Deleting,
            _ if annotation(object, PAUSED_ANNOTATION) == Some("true") => State::Paused,
            _ if stalled.is_some() => State::Stalled,
            Some(ready) if ready["status"] == "True" => State::Ready,
            Some(_) => State::NotReady,
            None => State::New,
        };
        let told = stalled.or(ready).unwrap_or(&Value::Null);
        let text = |field: &str| shorten(told[field].as_str().unwrap_or_default(), MESSAGE);
        Self {
            state,
            reason: text("reason"),
            message: text("message"),
        }
    }

    fn is_problem(&self) -> bool {
        !matches!(self.state, State::Ready | State::Paused)
    }
}

pub(super) fn objects(sources: &Sources, page: &Page) -> Result<Objects, String> {
    let context = sources.controllers.named(&page.controller);
    let context = context.ok_or_else(|| not_running(&page.controller))?;
    let mut names = context.caches.parent_names();
    names.sort();
    let namespaces = context.caches.parents.namespaces();
    let watched = namespaces.as_ref().map_or(0, |watches| watches.len());
    let namespaces = namespaces.map(|watches| watches.into_keys().take(NAMESPACES).collect());
    let mut objects = Objects {
        controller: page.controller.clone(),
        kind: context.config.parent.to_string(),
        total: names.len(),
        problems: 0,
        matching: 0,
        objects: Vec::new(),
        namespaces,
        more_namespaces: watched.saturating_sub(NAMESPACES),
        unreadable: incomplete(&context.config.parent, &context.caches.parents),
        next: None,
    };
    for name in names {
        let Some(object) = context.caches.parent(&name) else {
            continue;
        };
        let summary = Summary::of(&object);
        objects.problems += usize::from(summary.is_problem());
        let text = name.to_string();
        if page.problems && !summary.is_problem() || !text.to_lowercase().contains(&page.filter) {
            continue;
        }
        objects.matching += 1;
        if page.after.as_ref().is_some_and(|after| name <= *after) {
            continue;
        }
        if objects.objects.len() == ON_A_PAGE {
            let last = objects.objects.last();
            objects.next = last.map(|row| row.name.clone());
            continue;
        }
        objects.objects.push(Row {
            name: text,
            summary,
            created: object.metadata.creation_timestamp.as_ref().map(|time| time.0),
        });
    }
    Ok(objects)
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn the_state_is_what_the_conditions_say() {
        let object = |metadata: Value, conditions: Value| -> DynamicObject {
            let mut object = json!({
                "apiVersion": "a.dev/v1", "kind": "Db", "metadata": metadata, "status": { "conditions": conditions },
            });
            object["metadata"]["name"] = "db".into();
            serde_json::from_value(object).unwrap()
        };
        let condition = |type_: &str, status: &str| json!({ "type": type_, "status": status, "reason": type_, "message": "m" });
        let state = |object: &DynamicObject| Summary::of(object).state;
        let ready = json!([condition("Ready", "True")]);
        assert_eq!(state(&object(json!({}), json!([]))), State::New);
        assert_eq!(state(&object(json!({}), ready.clone())), State::Ready);
        let stalled = object(
            json!({}),
            json!([condition("Ready", "False"), condition("Stalled", "True")]),
        );
        assert_eq!(
            Summary::of(&stalled),
            Summary {
                state: State::Stalled,
                reason: "Stalled".into(),
                message: "m".into()
            }
        );
        let not_stalled = json!([condition("Ready", "False"), condition("Stalled", "False")]);
        assert_eq!(Summary::of(&object(json!({}), not_stalled)).reason, "Ready");
        let paused = json!({ "annotations": { PAUSED_ANNOTATION: "true" } });
        assert_eq!(state(&object(paused, ready.clone())), State::Paused);
        let deleting = json!({ "deletionTimestamp": "2026-01-01T00:00:00Z" });
        assert_eq!(state(&object(deleting, ready)), State::Deleting);
    }
}
