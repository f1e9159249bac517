//! An object of the cluster, as the API server returns it.

use std::cell::OnceCell;
use std::fmt;
use std::ops::Range;

use serde::de::DeserializeOwned;
use serde_json::Value;

use crate::kinds::{JOB, Kind, POD};
use crate::scan::{self, Escaped, Item};

/// An object of the cluster: JSON, with accessors for the fields that every object has.
#[derive(Clone)]
pub struct Object {
    /// The text from the host; empty for an object that was created from a value.
    text: String,
    /// The positions of its top-level members and those of its metadata, which every reconcile reads.
    members: Vec<Member>,
    metadata: Vec<Member>,
    /// The parsed value, once it is needed.
    value: OnceCell<Value>,
}

/// A member's position in the text.
#[derive(Clone)]
struct Member {
    /// Without its quotes.
    name: Range<usize>,
    value: Range<usize>,
    /// Whether the value is a string with escapes.
    escaped: bool,
}

/// The value at a path.
enum Found<'a> {
    /// In the text. Contains no escapes.
    Item(Item<'a>),
    /// In the parsed value.
    Value(&'a Value),
}

impl From<Value> for Object {
    fn from(value: Value) -> Self {
        Self {
            text: String::new(),
            members: Vec::new(),
            metadata: Vec::new(),
            value: value.into(),
        }
    }
}

impl fmt::Debug for Object {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("Object").field(self.value()).finish()
    }
}

impl PartialEq for Object {
    fn eq(&self, other: &Self) -> bool {
        self.value() == other.value()
    }
}

impl Object {
    /// Wraps JSON from the host. Fields are looked up in the text, which is parsed completely only when necessary.
    pub(crate) fn from_text(text: String) -> Self {
        let start = |item: Item| item.json.as_ptr() as usize - text.as_ptr() as usize;
        let mut odd = false;
        let mut members = |object| {
            let mut members = Vec::new();
            for scan::Member { name, value } in scan::members(object) {
                odd |= name.escaped;
                members.push(Member {
                    name: start(name) + 1..start(name) + name.json.len() - 1,
                    value: start(value)..start(value) + value.json.len(),
                    escaped: value.escaped,
                });
            }
            members
        };
        let outermost = members(&text);
        let part = |place: &Range<usize>| text.get(place.clone()).unwrap_or_default();
        let metadata = outermost.iter().find(|member| part(&member.name) == "metadata");
        let metadata = members(metadata.map_or("", |metadata| part(&metadata.value)));
        if odd {
            // A name with an escape cannot be compared as text.
            return Self::from(parse(&text));
        }
        Self {
            metadata,
            members: outermost,
            text,
            value: OnceCell::new(),
        }
    }

    /// Returns `apiVersion`.
    #[must_use]
    pub fn api_version(&self) -> &str {
        self.string(&["apiVersion"]).unwrap_or_default()
    }

    /// Returns `kind`.
    #[must_use]
    pub fn kind(&self) -> &str {
        self.string(&["kind"]).unwrap_or_default()
    }

    /// Returns `metadata.name`.
    #[must_use]
    pub fn name(&self) -> &str {
        self.string(&["metadata", "name"]).unwrap_or_default()
    }

    /// Returns `metadata.namespace`; `None` for a cluster-scoped object.
    #[must_use]
    pub fn namespace(&self) -> Option<&str> {
        self.string(&["metadata", "namespace"])
    }

    /// Returns `metadata.uid`, which no other object ever has; empty for an object that does not exist yet.
    #[must_use]
    pub fn uid(&self) -> &str {
        self.string(&["metadata", "uid"]).unwrap_or_default()
    }

    /// Reports whether the object has this kind and version.
    #[must_use]
    pub fn is(&self, kind: Kind) -> bool {
        self.kind() == kind.kind && self.api_version() == kind.api_version
    }

    /// Returns the value of a label.
    #[must_use]
    pub fn label(&self, key: &str) -> Option<&str> {
        self.string(&["metadata", "labels", key])
    }

    /// Returns the value of an annotation.
    #[must_use]
    pub fn annotation(&self, key: &str) -> Option<&str> {
        self.string(&["metadata", "annotations", key])
    }

    /// Returns the value at a path of field names and list positions, such as `/spec/ports/0/port`. It is a JSON
    /// pointer (RFC 6901): in a name, write `~1` for `/` and `~0` for `~`.
    #[must_use]
    pub fn get(&self, path: &str) -> Option<&Value> {
        along(path, |steps| walk(self.value(), steps))
    }

    /// Returns the string at a path as in [`get`](Self::get); `None` when the value is missing or not a string.
    #[must_use]
    pub fn text(&self, path: &str) -> Option<&str> {
        along(path, |steps| self.string(steps))
    }

    /// Returns the integer at a path as in [`get`](Self::get); `None` when the value is missing or not an integer.
    #[must_use]
    pub fn integer(&self, path: &str) -> Option<i64> {
        along(path, |steps| self.number(steps))
    }

    /// Parses the value at a path into a type; `None` when it is missing or does not match.
    #[must_use]
    pub fn parse<T: DeserializeOwned>(&self, path: &str) -> Option<T> {
        T::deserialize(self.get(path)?).ok()
    }

    /// Reports whether the object is terminating: it has a `metadata.deletionTimestamp`.
    #[must_use]
    pub fn is_terminating(&self) -> bool {
        match self.find(&["metadata", "deletionTimestamp"]) {
            Some(Found::Item(timestamp)) => timestamp.json != "null",
            Some(Found::Value(timestamp)) => !timestamp.is_null(),
            None => false,
        }
    }

    /// Returns the status of a condition in `status.conditions`: `Some(true)` for `True`, `Some(false)` for
    /// `False`, `None` when it is missing or unknown.
    #[must_use]
    pub fn condition(&self, type_: &str) -> Option<bool> {
        match self.condition_status(type_)? {
            "True" => Some(true),
            "False" => Some(false),
            _ => None,
        }
    }

    /// Returns the status of a condition as it is written: `True`, `False` or `Unknown`.
    pub(crate) fn condition_status(&self, type_: &str) -> Option<&str> {
        const PATH: &[&str] = &["status", "conditions"];
        match self.find(PATH)? {
            Found::Item(conditions) => match condition(conditions, type_) {
                Ok(status) => status,
                Err(Escaped) => condition_of(walk(self.value(), PATH)?, type_),
            },
            Found::Value(conditions) => condition_of(conditions, type_),
        }
    }

    /// Reports whether this is a Pod whose containers have ended permanently: `Failed` (including evicted pods) or
    /// `Succeeded`.
    #[must_use]
    pub fn is_finished_pod(&self) -> bool {
        self.is(POD) && matches!(self.string(&["status", "phase"]), Some("Failed" | "Succeeded"))
    }

    /// Reports whether this is a Job that has ended: its condition `Complete` or `Failed` is true.
    #[must_use]
    pub fn is_finished_job(&self) -> bool {
        let ended = |type_| self.condition(type_) == Some(true);
        self.is(JOB) && (ended("Complete") || ended("Failed"))
    }

    pub(crate) fn string(&self, steps: &[&str]) -> Option<&str> {
        match self.find(steps)? {
            Found::Item(item) => item.string().ok()?,
            Found::Value(value) => value.as_str(),
        }
    }

    pub(crate) fn number(&self, steps: &[&str]) -> Option<i64> {
        match self.find(steps)? {
            // Other numbers are read from the parsed value.
            Found::Item(item) => item.integer().or_else(|| walk(self.value(), steps)?.as_i64()),
            Found::Value(value) => value.as_i64(),
        }
    }

    fn find(&self, steps: &[&str]) -> Option<Found<'_>> {
        if self.value.get().is_none()
            && let Ok(found) = self.scan(steps)
        {
            return found.map(Found::Item);
        }
        walk(self.value(), steps).map(Found::Value)
    }

    fn scan(&self, steps: &[&str]) -> Result<Option<Item<'_>>, Escaped> {
        let (members, name, inner) = match steps {
            ["metadata", name, inner @ ..] => (&self.metadata, name, inner),
            [name, inner @ ..] => (&self.members, name, inner),
            [] => return Err(Escaped),
        };
        let part = |place: &Range<usize>| self.text.get(place.clone()).unwrap_or_default();
        let Some(member) = members.iter().find(|member| part(&member.name) == *name) else {
            return Ok(None);
        };
        let mut item = Item {
            json: part(&member.value),
            escaped: member.escaped,
        };
        for step in inner {
            // List positions are looked up in the parsed value.
            if item.json.starts_with('[') {
                return Err(Escaped);
            }
            match item.member(step)? {
                Some(value) => item = value,
                None => return Ok(None),
            }
        }
        if item.escaped {
            Err(Escaped)
        } else {
            Ok(Some(item))
        }
    }

    pub(crate) fn value(&self) -> &Value {
        self.value.get_or_init(|| parse(&self.text))
    }
}

/// Calls `f` with the names in a path.
pub(crate) fn along<T>(path: &str, f: impl FnOnce(&[&str]) -> T) -> T {
    let steps = path.split('/').skip(1);
    if !path.contains('~') {
        return f(&steps.collect::<Vec<_>>());
    }
    let names: Vec<String> = steps.map(unescaped).collect();
    f(&names.iter().map(String::as_str).collect::<Vec<_>>())
}

// Not `str::replace`: its string search adds 5 KB to the plugin.
pub(crate) fn unescaped(step: &str) -> String {
    let mut rest = step.chars();
    let mut name = String::with_capacity(step.len());
    while let Some(c) = rest.next() {
        let after = rest.as_str().chars().next();
        let meant = match (c, after) {
            ('~', Some('0')) => Some('~'),
            ('~', Some('1')) => Some('/'),
            _ => None,
        };
        if meant.is_some() {
            rest.next();
        }
        name.push(meant.unwrap_or(c));
    }
    name
}

// Not `Value::pointer`: its escape handling adds 5 KB of string search code to the plugin.
fn walk<'a>(value: &'a Value, steps: &[&str]) -> Option<&'a Value> {
    steps.iter().try_fold(value, |value, step| match value {
        Value::Object(members) => members.get(*step),
        Value::Array(items) => items.get(step.parse::<usize>().ok()?),
        _ => None,
    })
}

/// Returns the status of a condition of this type.
fn condition<'a>(conditions: Item<'a>, type_: &str) -> Result<Option<&'a str>, Escaped> {
    for condition in scan::elements(conditions.json) {
        let text = |name| condition.member(name)?.map_or(Ok(None), Item::string);
        if text("type")? == Some(type_) {
            return text("status");
        }
    }
    Ok(None)
}

/// Does the same as [`condition`] in a parsed value.
fn condition_of<'a>(conditions: &'a Value, type_: &str) -> Option<&'a str> {
    let mut conditions = conditions.as_array()?.iter();
    conditions.find(|condition| condition["type"] == type_)?["status"].as_str()
}

/// Parses text from the host, which is JSON by contract; panics with a message otherwise.
pub(crate) fn parse(text: &str) -> Value {
    match serde_json::from_str(text) {
        Ok(value) => value,
        Err(error) => panic!("the host sent an object that is not JSON: {error}"),
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;
    use crate::kinds::SERVICE;

    #[test]
    fn a_job_has_ended_when_it_is_complete_or_failed() {
        let job = |kind: &str, type_: &str, status: &str| {
            let job = json!({ "apiVersion": "batch/v1", "kind": kind, "metadata": { "name": "j", "uid": "u" },
                "status": { "conditions": [{ "type": type_, "status": status }] } });
            Object::from(job)
        };
        assert_eq!(job("Job", "Complete", "True").uid(), "u");
        assert!(job("Job", "Complete", "True").is_finished_job());
        assert!(job("Job", "Failed", "True").is_finished_job());
        assert!(!job("Job", "Complete", "False").is_finished_job());
        assert!(!job("Job", "Suspended", "True").is_finished_job());
        assert!(!job("CronJob", "Complete", "True").is_finished_job());
    }

    fn pod() -> Value {
        json!({
            "apiVersion": "v1", "kind": "Pod",
            "metadata": {
                "name": "p", "namespace": "n", "deletionTimestamp": null, "generation": 7,
                "labels": { "app": "a/b", "odd": "say \"x\"" }, "annotations": { "k\"ey": "odd", "plain": "{\"a\":[1]}" },
            },
            "spec": { "replicas": -3, "none": 0, "half": 0.5, "huge": u64::MAX, "large": i64::MAX, "ports": [{ "port": 80 }] },
            "status": { "phase": "Failed", "conditions": [
                { "message": "a \"quoted\" ] }", "type": "Other", "status": "False" },
                { "lastProbeTime": null, "type": "Ready", "status": "True" },
                { "type": "Odd", "status": "Unknown" }, { "type": "None" },
            ] },
        })
    }

    type Question = Box<dyn Fn(&Object) -> String>;

    /// Returns all queries for an object with their results.
    fn questions() -> Vec<Question> {
        let mut all: Vec<Question> = vec![
            Box::new(|o| format!("{} {} {:?}", o.api_version(), o.kind(), (o.name(), o.namespace()))),
            Box::new(|o| format!("{:?}", (o.is(POD), o.is(SERVICE)))),
            Box::new(|o| format!("{:?}", (o.is_terminating(), o.is_finished_pod()))),
            Box::new(|o| o.is_ready().to_string()),
        ];
        for path in [
            "/metadata/labels/app",
            "/metadata/labels/odd",
            "/metadata/generation",
            "/metadata/missing",
            "/metadata/k\"ey",
            "/metadata/k\\\"ey",
            "/k\"ey",
            "/k\\\"ey",
            "/missing/too",
            "/spec/replicas",
            "/spec/half",
            "/spec/none",
            "/spec/huge",
            "/spec/large",
            "/spec/ports",
            "/spec/ports/0/port",
            "/spec/ports/1/port",
            "/status/conditions/1/type",
            "/status/phase/deeper",
            "",
        ] {
            all.push(Box::new(move |o| format!("{path} {:?}", o.text(path))));
            all.push(Box::new(move |o| format!("{path} {:?}", o.integer(path))));
        }
        for type_ in ["Ready", "Other", "Odd", "None", "Missing"] {
            all.push(Box::new(move |o| format!("{type_} {:?}", o.condition(type_))));
        }
        for key in ["app", "odd", "k\"ey", "plain", "missing"] {
            all.push(Box::new(move |o| format!("{key} {:?}", o.label(key))));
            all.push(Box::new(move |o| format!("{key} {:?}", o.annotation(key))));
        }
        all
    }

    #[test]
    fn a_text_answers_as_the_tree_of_it_does_in_any_order() {
        let mut objects = vec![
            pod(),
            json!({}),
            json!({ "metadata": null, "status": [] }),
            json!({ "k\"ey": "odd", "metadata": { "name": "n" } }),
            json!({ "metadata": { "k\"ey": "odd", "name": "n" } }),
        ];
        let mut leaving = pod();
        leaving["metadata"]["deletionTimestamp"] = "2026-01-01T00:00:00Z".into();
        objects.push(leaving);
        for ready in [1, 2] {
            objects.push(json!({
                "apiVersion": "apps/v1", "kind": "Deployment", "metadata": { "name": "d", "generation": 2 },
                "spec": { "replicas": 2 }, "status": {
                    "observedGeneration": 2, "updatedReplicas": 2, "availableReplicas": ready, "replicas": 2,
                },
            }));
        }
        for value in objects {
            let tree = Object::from(value.clone());
            for text in [value.to_string(), serde_json::to_string_pretty(&value).unwrap()] {
                let object = Object::from_text(text.clone());
                for ask in questions() {
                    assert_eq!(
                        ask(&Object::from_text(text.clone())),
                        ask(&tree),
                        "first of {text}"
                    );
                    // Some of the earlier queries have parsed it.
                    assert_eq!(ask(&object), ask(&tree), "later of {text}");
                }
                assert_eq!(object, tree);
                assert_eq!(object.get("/spec"), value.get("spec"));
            }
        }
        let object = Object::from(pod());
        assert_eq!(
            (object.integer("/spec/replicas"), object.is(POD)),
            (Some(-3), true)
        );
        assert_eq!(
            (object.condition("Ready"), object.condition("Other")),
            (Some(true), Some(false))
        );
    }

    #[test]
    fn a_path_reaches_names_with_slashes_and_tildes() {
        let value = json!({
            "metadata": { "annotations": { "example.com/a": "slash", "~": "tilde", "~1": "both", "~x": "other" } },
            "a/b": 3,
        });
        for object in [Object::from(value.clone()), Object::from_text(value.to_string())] {
            for (path, expected) in [
                ("/metadata/annotations/example.com~1a", "slash"),
                ("/metadata/annotations/~0", "tilde"),
                ("/metadata/annotations/~01", "both"),
                ("/metadata/annotations/~x", "other"),
            ] {
                assert_eq!(object.text(path), Some(expected), "{path}");
                assert_eq!(object.get(path), Some(&expected.into()), "{path}");
            }
            assert_eq!(object.integer("/a~1b"), Some(3));
        }
    }
}
