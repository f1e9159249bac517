//! Runs a plugin natively on resources from YAML, and keeps its CustomResourceDefinition up to date.
//!
//! ```
//! # use operator_plugin::prelude::*;
//! # fn reconcile(_: &Request<Value, ()>) -> Result<Response<()>, Failure> {
//! #     Ok(Response::empty().child(json!({ "apiVersion": "v1", "kind": "Pod", "metadata": { "name": "a" } })))
//! # }
//! use operator_plugin::testing::Case;
//! # const PLUGIN: Plugin<Value, ()> = Plugin::new("example.com/v1", "Greeting", reconcile).makes(&[POD]);
//!
//! let outcome = Case::new("{ metadata: { name: hello } }").run(&PLUGIN).unwrap();
//! assert_eq!(outcome.names(), ["a"]);
//! ```

mod generate;
mod rules;
mod versions;

use std::path::Path;
use std::time::Duration;
use std::{env, fs};

use serde::Serialize;
use serde_json::Value;
use serde_json::ser::{PrettyFormatter, Serializer};

use crate::bindings::operator_host::plugin::types as wit;
use crate::builders;
use crate::kinds::Kind;
use crate::object::{self, Object};
use crate::plugin::Reconciler;
use crate::request::about;
use crate::response::{Condition, Event, Failure, FieldError, GeneratedSecret, Need};

pub use self::versions::check_versions;

/// How often the host calls a plugin until its needs settle.
const CALLS: usize = 5;

/// The input of one call: a parent, the existing objects, and the time.
#[derive(Clone, Debug)]
pub struct Case {
    parent: Value,
    children: Vec<Value>,
    related: Vec<(String, Vec<Value>)>,
    existing: Vec<Value>,
    /// The parent before an update, for the rules.
    old: Option<Value>,
    /// What else a request says.
    rest: wit::Request,
}

impl Case {
    /// Creates a case with a parent from YAML. The parent's namespace is `default` unless the YAML contains another one.
    ///
    /// Further documents are objects that exist in the cluster, as in a `sample.yaml` with the ConfigMap that the plugin
    /// reads: [`run`](Self::run) and [`clean_up`](Self::clean_up) answer needs with them, as the host does.
    ///
    /// # Panics
    ///
    /// When the text is not YAML, or is empty.
    #[must_use]
    pub fn new(yaml: &str) -> Self {
        let mut documents = documents(yaml);
        assert!(!documents.is_empty(), "the first document is the parent");
        let mut parent = documents.remove(0);
        default_to(&mut parent["metadata"]["namespace"], "default");
        Self {
            parent,
            children: Vec::new(),
            related: Vec::new(),
            existing: documents,
            old: None,
            rest: wit::Request {
                now: "2026-01-01T00:00:00Z".to_owned(),
                ..about(String::new())
            },
        }
    }

    /// Sets the value at a path of the parent, such as `/spec/replicas`. `null` removes a field.
    #[must_use]
    pub fn set(mut self, path: &str, value: impl Into<Value>) -> Self {
        builders::put_at(&mut self.parent, path, value.into());
        self
    }

    /// Adds existing objects owned by the parent, from any number of YAML documents.
    ///
    /// # Panics
    ///
    /// When the text is not YAML.
    #[must_use]
    pub fn observed(mut self, yaml: &str) -> Self {
        self.children.extend(documents(yaml));
        self
    }

    /// Sets the children and the status to those of an outcome, as the cluster would show them in the next call.
    /// Children that the outcome does not contain are removed, unless the host retains their kind.
    #[must_use]
    pub fn after(mut self, outcome: &Outcome) -> Self {
        let observed = std::mem::take(&mut self.children);
        self.children
            .extend(outcome.children.iter().map(|child| match find(&observed, child) {
                Some(before) => merged(before, child),
                None => child.clone(),
            }));
        let is_named = |child: &Value| outcome.keep.iter().any(|it| child["metadata"]["name"] == **it);
        let kept = |child: &&Value| {
            find(&self.children, child).is_none()
                && (child["kind"] == "PersistentVolumeClaim" || is_named(child))
        };
        let kept: Vec<Value> = observed.iter().filter(kept).cloned().collect();
        self.children.extend(kept);
        if !outcome.status.is_null() {
            self.parent["status"] = outcome.status.clone();
        }
        self
    }

    /// Sets a value at a path of an existing object, such as `/metadata/deletionTimestamp`.
    ///
    /// # Panics
    ///
    /// When there is no object of that name.
    #[must_use]
    pub fn with(mut self, kind: Kind, name: &str, path: &str, value: impl Into<Value>) -> Self {
        let mut children = self.children.iter_mut();
        match children.find(|child| is(child, kind, name)) {
            Some(child) => builders::put_at(child, path, value.into()),
            None => panic!("there is no {} {name}", kind.kind),
        }
        self
    }

    /// Makes the existing pods Running and Ready.
    #[must_use]
    pub fn pods_ready(mut self) -> Self {
        for child in self.children.iter_mut().filter(|child| child["kind"] == "Pod") {
            child["status"] = serde_json::json!({
                "phase": "Running",
                "conditions": [{ "type": "Ready", "status": "True" }],
            });
        }
        self
    }

    /// Sets the answer to a need, from any number of YAML documents.
    ///
    /// # Panics
    ///
    /// When the text is not YAML.
    #[must_use]
    pub fn related(mut self, id: &str, yaml: &str) -> Self {
        self.related.push((id.to_owned(), documents(yaml)));
        self
    }

    /// Sets the time, in RFC 3339, UTC.
    #[must_use]
    pub fn at(mut self, now: &str) -> Self {
        now.clone_into(&mut self.rest.now);
        self
    }

    /// Marks the namespace as being deleted.
    #[must_use]
    pub fn in_a_terminating_namespace(mut self) -> Self {
        self.rest.namespace_terminating = true;
        self
    }

    /// Sets the plugin's defaults, as the host's webhook does before a resource is stored.
    ///
    /// # Errors
    ///
    /// When the plugin refuses the resource.
    ///
    /// # Panics
    ///
    /// When the plugin changes its own defaults: the host refuses such a resource.
    pub fn with_defaults(mut self, plugin: &impl Reconciler) -> Result<Self, Failure> {
        self.parent["spec"] = object::parse(&plugin.default(&self.parent.to_string())?);
        let again = object::parse(&plugin.default(&self.parent.to_string())?);
        assert_eq!(
            again, self.parent["spec"],
            "the defaults change when they are set again"
        );
        Ok(self)
    }

    /// Returns the parent in another version of its kind, such as `example.com/v1beta1`.
    ///
    /// # Errors
    ///
    /// When the plugin cannot convert the resource.
    ///
    /// # Panics
    ///
    /// When the plugin does not answer with one resource.
    pub fn in_version(&self, plugin: &impl Reconciler, api_version: &str) -> Result<Value, String> {
        let mut converted = plugin.convert(api_version, &[self.parent.to_string()]);
        assert_eq!(converted.len(), 1, "one resource is converted to one");
        Ok(object::parse(&converted.remove(0)?))
    }

    /// Calls `validate` as the host's webhook does: for a new resource, or for one that replaces that of another case.
    pub fn validate(&self, plugin: &impl Reconciler, replaced: Option<&Self>) -> Vec<FieldError> {
        let replaced = replaced.map(|case| case.parent.to_string());
        plugin.validate(&self.parent.to_string(), replaced.as_deref())
    }

    /// Calls `validate` and `reconcile` as the host does.
    ///
    /// # Errors
    ///
    /// What is invalid, and the plugin's own failures.
    ///
    /// # Panics
    ///
    /// When the plugin violates the contract: a child of a kind that it does not declare, two children of the same
    /// name, or two calls with the same request and different responses. When its needs change with each answer.
    pub fn run(&self, plugin: &impl Reconciler) -> Result<Outcome, Failure> {
        let errors = plugin.validate(&self.parent.to_string(), None);
        if !errors.is_empty() {
            let texts = errors.iter().map(|it| format!("{}: {}", it.path, it.message));
            let text = texts.collect::<Vec<_>>().join(", ");
            return Err(Failure::invalid(match errors.len() {
                1 => text,
                _ => format!("[{text}]"),
            }));
        }
        let outcome = Outcome::from(self.settled(|request| plugin.reconcile(request))?);
        let makes = plugin.describe("", "", "").makes;
        for (position, child) in outcome.children.iter().enumerate() {
            let is_made = |kind: &wit::Kind| {
                child["kind"] == kind.kind.as_str() && child["apiVersion"] == kind.api_version.as_str()
            };
            assert!(
                makes.iter().any(is_made),
                "the plugin does not say that it makes {child}"
            );
            assert!(
                find(&outcome.children[..position], child).is_none(),
                "twice in the response: {child}"
            );
        }
        Ok(outcome)
    }

    /// Calls `cleanup` as the host does.
    ///
    /// # Errors
    ///
    /// The plugin's own failures.
    ///
    /// # Panics
    ///
    /// As [`run`](Self::run).
    pub fn clean_up(&self, plugin: &impl Reconciler) -> Result<Outcome, Failure> {
        self.settled(|request| plugin.cleanup(request)).map(Outcome::from)
    }

    /// Calls the plugin, and again while existing objects answer needs that the request did not.
    fn settled(
        &self,
        call: impl Fn(wit::Request) -> Result<wit::Response, Failure>,
    ) -> Result<wit::Response, Failure> {
        let mut case = self.clone();
        for _ in 0..CALLS {
            let answer = call(case.request());
            assert_eq!(
                answer,
                call(case.request()),
                "the same request gives the same response"
            );
            let answer = answer?;
            let is_answered = |need: &&Need| case.related.iter().any(|(id, _)| *id == need.id);
            let unanswered = answer.needs.iter().filter(|need| !is_answered(need));
            let unanswered: Vec<Need> = unanswered.cloned().collect();
            // Without existing objects the test itself answers the needs, with `related`.
            if unanswered.is_empty() || self.existing.is_empty() {
                return Ok(answer);
            }
            for need in unanswered {
                let found = self.existing.iter().filter(|it| self.is_needed(&need, it));
                case.related.push((need.id.clone(), found.cloned().collect()));
            }
        }
        panic!("the plugin has other needs after each of {CALLS} calls");
    }

    /// Reports whether a need selects an existing object.
    fn is_needed(&self, need: &Need, object: &Value) -> bool {
        let own = &self.parent["metadata"]["namespace"];
        let wanted = need.namespace.as_deref().or(own.as_str());
        let metadata = &object["metadata"];
        let namespace = metadata["namespace"].as_str().or(own.as_str());
        let mut names = need.name.iter().chain(&need.names);
        let mut terms = need
            .label_selector
            .iter()
            .flat_map(|selector| selector.split(','));
        object["apiVersion"] == need.api_version.as_str()
            && object["kind"] == need.kind.as_str()
            && (namespace == wanted || wanted == Some("*") || need.namespace_selector.is_some())
            && (need.name.is_none() && need.names.is_empty() || names.any(|name| metadata["name"] == *name))
            && terms.all(|term| match term.split_once('=') {
                Some((key, value)) if !key.ends_with('!') && !value.starts_with('=') => {
                    metadata["labels"][key] == value
                }
                _ => panic!(
                    "a test knows selectors of the form `key=value` only, and not {term:?}: use `related`"
                ),
            })
    }

    fn request(&self) -> wit::Request {
        let texts = |values: &[Value]| values.iter().map(Value::to_string).collect();
        // The host shows children with their namespace; the default is their parent's.
        let mut children = self.children.clone();
        if let Some(namespace) = self.parent["metadata"]["namespace"].as_str() {
            for child in &mut children {
                default_to(&mut child["metadata"]["namespace"], namespace);
            }
        }
        wit::Request {
            parent: self.parent.to_string(),
            children: texts(&children),
            related: self
                .related
                .iter()
                .map(|(id, objects)| wit::Related {
                    id: id.clone(),
                    objects: texts(objects),
                })
                .collect(),
            ..self.rest.clone()
        }
    }
}

/// The answer of a plugin.
#[derive(Clone, Debug, PartialEq)]
pub struct Outcome {
    /// Of a cleanup: whether the parent is released.
    pub done: bool,
    /// The children that should exist.
    pub children: Vec<Value>,
    /// The names of children that stay unchanged.
    pub keep: Vec<String>,
    /// The Secrets that the host generates.
    pub generate: Vec<GeneratedSecret>,
    /// The status, or `null`.
    pub status: Value,
    /// The fields that the parent should have, or `null`.
    pub parent: Value,
    /// The conditions.
    pub conditions: Vec<Condition>,
    /// The Events.
    pub events: Vec<Event>,
    /// The time after which the plugin wants to be called again, whatever changes.
    pub requeue_after: Option<Duration>,
    /// The time at which the plugin wants to be called again, in RFC 3339.
    pub requeue_at: Option<String>,
    /// The objects that the plugin wants to read.
    pub needs: Vec<Need>,
}

impl Outcome {
    /// Returns the condition of a type.
    ///
    /// # Panics
    ///
    /// When the plugin does not set it.
    #[must_use]
    pub fn condition(&self, type_: &str) -> &Condition {
        match self.conditions.iter().find(|condition| condition.type_ == type_) {
            Some(condition) => condition,
            None => panic!("there is no condition {type_} among {:?}", self.conditions),
        }
    }

    /// Returns the names of the children, in order.
    #[must_use]
    pub fn names(&self) -> Vec<&str> {
        self.children.iter().filter_map(name_of).collect()
    }

    /// Returns the names of the children of one kind, in order.
    #[must_use]
    pub fn names_of(&self, kind: Kind) -> Vec<&str> {
        let of_kind = self.children.iter().filter(|child| child["kind"] == kind.kind);
        of_kind.filter_map(name_of).collect()
    }

    /// Returns one child.
    ///
    /// # Panics
    ///
    /// When it does not exist.
    #[must_use]
    pub fn child(&self, kind: Kind, name: &str) -> Object {
        match self.children.iter().find(|child| is(child, kind, name)) {
            Some(child) => Object::from(child.clone()),
            None => panic!("there is no {} {name} among {:?}", kind.kind, self.names()),
        }
    }
}

impl From<wit::Response> for Outcome {
    fn from(response: wit::Response) -> Self {
        // Whole, so that a new field is not forgotten.
        let wit::Response {
            done,
            children,
            keep,
            generate,
            status,
            parent,
            conditions,
            events,
            requeue_after_ms,
            requeue_at,
            needs,
        } = response;
        Self {
            done,
            children: children.iter().map(|child| object::parse(child)).collect(),
            keep: keep.into_iter().map(|kept| kept.name).collect(),
            generate,
            status: status.map_or(Value::Null, |status| object::parse(&status)),
            parent: parent.map_or(Value::Null, |fields| object::parse(&fields)),
            conditions,
            events,
            requeue_after: requeue_after_ms.map(Duration::from_millis),
            requeue_at,
            needs,
        }
    }
}

/// Compares `crd.json` in the plugin's folder with the definition generated from the plugin's types, and updates it
/// if it differs.
///
/// The file is compiled into the plugin instead of its generator, which is as large as all of Echo. The tests that
/// [`register!`](crate::register) adds to the plugin call this function. With `CI` set, the file is only compared.
///
/// # Panics
///
/// When the file was out of date, because earlier builds contain the old one, or when a type has no structural
/// schema.
pub fn check_crd(folder: &str, plugin: &impl Reconciler) {
    let path = Path::new(folder).join("crd.json");
    let (definition, mut problems) = plugin.crd();
    problems.extend(rules::problems(&definition));
    let expected = readable(&definition);
    let up_to_date = fs::read_to_string(&path).is_ok_and(|text| text == expected);
    if !problems.is_empty() {
        if !up_to_date {
            // Write it anyway: `operator-host check` also reports its problems.
            let _ = fs::write(&path, expected);
        }
        panic!(
            "the API server would refuse this definition:\n  {}",
            problems.join("\n  ")
        );
    }
    if up_to_date {
        return;
    }
    let shown = path.display();
    if env::var_os("CI").is_none() {
        if let Err(error) = fs::write(&path, expected) {
            panic!("{shown}: {error}");
        }
        panic!("{shown} was out of date and has been updated: build the plugin again");
    }
    panic!("{shown} does not match the plugin's types: run the plugin's tests and commit what they write");
}

/// Returns the text of a definition. It is a part of the plugin, so it is indented by one byte for each level.
fn readable(definition: &Value) -> String {
    let mut text = Vec::new();
    let mut serializer = Serializer::with_formatter(&mut text, PrettyFormatter::with_indent(b"\t"));
    if let Err(error) = definition.serialize(&mut serializer) {
        panic!("{error}");
    }
    text.push(b'\n');
    String::from_utf8_lossy(&text).into_owned()
}

/// Parses a value from YAML.
///
/// # Panics
///
/// When the text is not a single YAML document.
#[must_use]
pub fn yaml(text: &str) -> Value {
    match serde_saphyr::from_str(text) {
        Ok(value) => value,
        Err(error) => panic!("{error}"),
    }
}

fn documents(yaml: &str) -> Vec<Value> {
    match serde_saphyr::from_multiple(yaml) {
        Ok(documents) => documents,
        Err(error) => panic!("{error}"),
    }
}

fn default_to(value: &mut Value, text: &str) {
    if value.is_null() {
        *value = text.into();
    }
}

fn name_of(object: &Value) -> Option<&str> {
    object["metadata"]["name"].as_str()
}

fn is(object: &Value, kind: Kind, name: &str) -> bool {
    object["kind"] == kind.kind && object["metadata"]["name"] == name
}

fn find<'a>(objects: &'a [Value], like: &Value) -> Option<&'a Value> {
    objects.iter().find(|object| {
        object["kind"] == like["kind"] && object["metadata"]["name"] == like["metadata"]["name"]
    })
}

/// Merges the applied fields into an existing object.
fn merged(before: &Value, applied: &Value) -> Value {
    match (before, applied) {
        (Value::Object(before), Value::Object(applied)) => {
            let mut all = before.clone();
            for (name, value) in applied {
                let before = before.get(name).unwrap_or(&Value::Null);
                all.insert(name.clone(), merged(before, value));
            }
            Value::Object(all)
        }
        _ => applied.clone(),
    }
}

#[cfg(test)]
mod tests;
