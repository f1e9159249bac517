//! The answer of a plugin.

use std::time::Duration;

use serde::Serialize;
use serde_json::Value;

pub use crate::bindings::operator_host::plugin::types::{
    Condition, ConditionStatus, Event, EventType, Failure, FieldError, GeneratedSecret, GeneratedValue,
    Invalid, Need, ObjectRef, Retry,
};

use crate::bindings::operator_host::plugin::types as wit;
use crate::kinds::Kind;
use crate::object::{self, Object};
use crate::text;

/// The desired state: the answer of `reconcile` and of `cleanup`.
///
/// The host deletes every child of the parent that the answer of `reconcile` does not name (with [`child`](Self::child),
/// [`keep`](Self::keep) or [`generate`](Self::generate)), except for the kinds that it retains. It deletes none for the answer
/// of `cleanup`, which is [`done`](Self::done) or [`not_yet`](Self::not_yet).
#[derive(Debug)]
#[must_use = "the host sees what the function returns"]
pub struct Response<Status> {
    children: Vec<Value>,
    status: Option<Status>,
    /// All the rest.
    record: wit::Response,
}

impl<Status> Response<Status> {
    /// Names no children yet: without further calls, the host deletes all of them. Sets this status.
    pub fn new(status: Status) -> Self {
        Self {
            status: Some(status),
            ..Self::empty()
        }
    }

    /// Names no children yet: without further calls, the host deletes all of them. The status stays as it is.
    pub fn empty() -> Self {
        Self {
            children: Vec::new(),
            status: None,
            record: wit::Response {
                done: false,
                children: Vec::new(),
                keep: Vec::new(),
                generate: Vec::new(),
                status: None,
                parent: None,
                conditions: Vec::new(),
                events: Vec::new(),
                requeue_after_ms: None,
                requeue_at: None,
                needs: Vec::new(),
            },
        }
    }

    /// Finishes a cleanup: the parent is released and deleted with the objects that it owns.
    pub fn done() -> Self {
        let mut done = Self::empty();
        done.record.done = true;
        done
    }

    /// Continues a cleanup: the host calls again when something changes.
    pub fn not_yet() -> Self {
        Self::empty()
    }

    /// Changes no children and no status: the host first reads these objects, and calls again with them.
    pub fn needs_first(needs: impl IntoIterator<Item = Need>) -> Self {
        let mut first = Self::empty();
        first.record.needs.extend(needs);
        first
    }

    /// Adds a child that should exist, as a complete object. Owned objects that the response does not name are
    /// deleted (or left alone, for the kinds that the host retains). `json!` makes `null` of a number that is not finite, so
    /// the field is absent; [`object`](Self::object) refuses such a number.
    ///
    /// If a child of the same name is being deleted, the host waits for the deletion and recreates it then.
    pub fn child(mut self, child: impl Into<Value>) -> Self {
        self.children.push(child.into());
        self
    }

    /// Adds a child that comes after others: the host creates and changes it when they are ready (a Job: when it has
    /// completed), and deletes it before them. The others must be among the children, the generated Secrets or the kept
    /// children of this response.
    ///
    /// ```
    /// use operator_plugin::builders::{Container, Deployment, Job};
    /// use operator_plugin::{JOB, Labels, ObjectRef, Response};
    ///
    /// let selector = Labels::new("app", "shop");
    /// let migrate = Job::new("migrate-7").container(Container::new("migrate", "shop:7"));
    /// let app = Deployment::new("shop", &selector).container(Container::new("app", "shop:7"));
    /// let response = Response::<()>::empty()
    ///     .child(migrate)
    ///     .child_after([ObjectRef::new(JOB, "migrate-7")], app);
    /// ```
    ///
    /// # Panics
    ///
    /// When the child, its metadata or its annotations are no JSON object.
    pub fn child_after(self, others: impl IntoIterator<Item = ObjectRef>, child: impl Into<Value>) -> Self {
        let mut child = child.into();
        let others: Vec<_> = others.into_iter().map(|other| other.in_annotation()).collect();
        child["metadata"]["annotations"]["operator-host.dev/after"] = others.join(", ").into();
        self.child(child)
    }

    /// Adds a child that says how it is changed, in the words of the annotation `operator-host.dev/update`: `replace` where a field
    /// is immutable, `one` child of its kind at a time. See "Update" in the contract.
    ///
    /// ```
    /// use operator_plugin::{Response, json};
    ///
    /// let pod = json!({ "apiVersion": "v1", "kind": "Pod", "metadata": { "name": "db-0" }, "spec": {} });
    /// let response = Response::<()>::empty().child_updated("one,replace,min-ready=10", pod);
    /// ```
    ///
    /// # Panics
    ///
    /// When the child, its metadata or its annotations are no JSON object.
    pub fn child_updated(self, words: &str, child: impl Into<Value>) -> Self {
        let mut child = child.into();
        child["metadata"]["annotations"]["operator-host.dev/update"] = words.into();
        self.child(child)
    }

    /// Adds several children; see [`child`](Self::child).
    pub fn children(mut self, children: impl IntoIterator<Item = Value>) -> Self {
        self.children.extend(children);
        self
    }

    /// Names children that stay unchanged: they are neither applied nor deleted.
    ///
    /// ```
    /// # use operator_plugin::prelude::*;
    /// # fn reconcile(request: &Request<(), ()>) -> Response<()> {
    /// Response::empty()
    ///     .keep(request.children_of(JOB))
    ///     .keep([ObjectRef::new(SECRET, "root")])
    /// # }
    /// ```
    ///
    /// They are deleted with their parent all the same. What must outlive its parent says so in the annotation
    /// `operator-host.dev/on-removal`, or is of a kind with `onRemoval: retain` in the configuration.
    pub fn keep<Child: Into<ObjectRef>>(mut self, children: impl IntoIterator<Item = Child>) -> Self {
        self.record.keep.extend(children.into_iter().map(Into::into));
        self
    }

    /// Adds a Secret whose values the host generates once. A plugin must not generate passwords itself: it has no
    /// unpredictable randomness.
    ///
    /// A [`child`](Self::child) of the same name is the rest of the Secret: its labels, annotations, type and other
    /// entries.
    ///
    /// ```
    /// # use operator_plugin::prelude::*;
    /// use operator_plugin::builders::Secret;
    ///
    /// # fn response() -> Response<()> {
    /// Response::empty()
    ///     .generate(GeneratedSecret::new("db").value("password", 24))
    ///     .child(Secret::new("db").labels(&Labels::new("app", "db")).entry("username", "root"))
    /// # }
    /// ```
    pub fn generate(mut self, secret: GeneratedSecret) -> Self {
        self.record.generate.push(secret);
        self
    }

    /// Adds a child from a type that serializes to a complete object, such as those of k8s-openapi.
    ///
    /// # Panics
    ///
    /// When it does not serialize to JSON: a map whose keys are not strings, a number that is not finite.
    pub fn object(self, child: &impl Serialize) -> Self {
        // Not `serde_json::to_value`: each field of a type of k8s-openapi would take more code.
        self.child(object::parse(&text::json("a child", child)))
    }

    /// Sets the parent's whole status, except `conditions` and `observedGeneration`, which the host writes.
    pub fn status(mut self, status: Status) -> Self {
        self.status = Some(status);
        self
    }

    /// Sets the fields that the parent should have, such as one annotation. Only for a Controller that decorates, below the paths
    /// of its `fields`. What an earlier answer named and this one does not is taken back.
    pub fn parent(mut self, fields: impl Into<Value>) -> Self {
        self.record.parent = Some(fields.into().to_string());
        self
    }

    /// Adds a condition. `Ready` replaces the one that the host derives. The host sets `Synced`, `Reconciling`, `Stalled`,
    /// `Paused`, `PluginHeldBack`, `Contested` and `KindNotListed`, and ignores conditions of these types.
    pub fn condition(mut self, condition: Condition) -> Self {
        self.record.conditions.push(condition);
        self
    }

    /// Adds an Event on the parent.
    pub fn event(mut self, event: Event) -> Self {
        self.record.events.push(event);
        self
    }

    /// Requests another call at this time of the host's clock even if nothing changes, for work that is due then, in
    /// RFC 3339, such as `2026-01-02T03:00:00Z` or a `jiff::Timestamp`. A time that is not after
    /// [`Request::now`](crate::Request::now) has no effect.
    pub fn requeue_at(mut self, time: impl std::fmt::Display) -> Self {
        self.record.requeue_at = Some(time.to_string());
        self
    }

    /// Requests another call after this time even if nothing changes, to look again at something that the host does
    /// not watch. A change of the parent, of a child or of an object of a need causes one anyway. For work that is
    /// due at a time, use [`requeue_at`](Self::requeue_at): each call then comes at its time, however long the one
    /// before took.
    pub fn requeue_after(mut self, after: Duration) -> Self {
        self.record.requeue_after_ms = Some(milliseconds(after));
        self
    }

    /// Adds objects to read and to watch; see [`Request::answer`](crate::Request::answer).
    pub fn need(mut self, need: Need) -> Self {
        self.record.needs.push(need);
        self
    }
}

impl<Status: Serialize> Response<Status> {
    /// Converts to the world's record, in which terminating children are kept instead of applied.
    pub(crate) fn into_wit(mut self, observed: &[Object]) -> wit::Response {
        let terminating = observed.iter().filter(|object| object.is_terminating());
        let terminating: Vec<ObjectRef> = terminating.map(ObjectRef::from).collect();
        self.children.retain(|child| {
            let same = terminating.iter().find(|object| refers_to(child, object));
            self.record.keep.extend(same.cloned());
            same.is_none()
        });
        wit::Response {
            children: self.children.iter().map(Value::to_string).collect(),
            status: self.status.as_ref().map(|status| text::json("status", status)),
            ..self.record
        }
    }
}

/// Reports whether a desired child is this object. A child without a namespace is in its parent's, and so is the
/// object.
fn refers_to(child: &Value, object: &ObjectRef) -> bool {
    let metadata = &child["metadata"];
    metadata["name"] == object.name
        && child["kind"] == object.kind
        && child["apiVersion"] == object.api_version
        && (metadata["namespace"].is_null() || metadata["namespace"].as_str() == object.namespace.as_deref())
}

/// Converts to milliseconds. Longer durations than 584 million years are capped.
fn milliseconds(duration: Duration) -> u64 {
    u64::try_from(duration.as_millis()).unwrap_or(u64::MAX)
}

impl ObjectRef {
    /// Refers to an object in the parent's namespace.
    #[must_use]
    pub fn new(kind: Kind, name: impl Into<String>) -> Self {
        Self {
            api_version: kind.api_version.to_owned(),
            kind: kind.kind.to_owned(),
            namespace: None,
            name: name.into(),
        }
    }

    /// Returns the reference as the host parses it in an annotation: `Kind.group/namespace/name`.
    fn in_annotation(&self) -> String {
        let group = self.api_version.split_once('/');
        let group = group.map(|(group, _)| [".", group].concat());
        let namespace = self.namespace.as_ref().map(|namespace| format!("{namespace}/"));
        let (group, namespace) = (group.unwrap_or_default(), namespace.unwrap_or_default());
        format!("{}{group}/{namespace}{}", self.kind, self.name)
    }
}

impl From<&Object> for ObjectRef {
    fn from(object: &Object) -> Self {
        Self {
            api_version: object.api_version().to_owned(),
            kind: object.kind().to_owned(),
            namespace: object.namespace().map(str::to_owned),
            name: object.name().to_owned(),
        }
    }
}

impl GeneratedSecret {
    /// Creates a Secret of this name in the parent's namespace.
    #[must_use]
    pub fn new(name: impl Into<String>) -> Self {
        Self {
            name: name.into(),
            entries: Vec::new(),
        }
    }

    /// Adds a key whose value has this many letters and digits, 8 to 1024. The host generates it when the Secret
    /// lacks the key, and never changes it.
    #[must_use]
    pub fn value(self, key: impl Into<String>, length: u32) -> Self {
        self.entry(key.into(), length, None)
    }

    /// Adds a key as [`value`](Self::value) does, with the characters to choose from: at least 2 different ones.
    #[must_use]
    pub fn value_from(self, key: impl Into<String>, length: u32, alphabet: impl Into<String>) -> Self {
        self.entry(key.into(), length, Some(alphabet.into()))
    }

    fn entry(mut self, key: String, length: u32, alphabet: Option<String>) -> Self {
        let value = GeneratedValue {
            key,
            length,
            alphabet,
        };
        self.entries.push(value);
        self
    }
}

impl FieldError {
    /// Creates an error from the field's path, such as `spec.rules[0].host`, and what is wrong and what to change, such as
    /// `must be at most 10`.
    pub fn new(path: impl Into<String>, message: impl Into<String>) -> Self {
        Self {
            path: path.into(),
            message: message.into(),
        }
    }
}

impl From<bool> for ConditionStatus {
    fn from(holds: bool) -> Self {
        if holds { Self::True } else { Self::False }
    }
}

impl Condition {
    /// Creates a condition from its type, a CamelCase reason for machines and a message for readers.
    pub fn new(
        type_: impl Into<String>,
        status: impl Into<ConditionStatus>,
        reason: impl Into<String>,
        message: impl Into<String>,
    ) -> Self {
        Self {
            type_: type_.into(),
            status: status.into(),
            reason: reason.into(),
            message: message.into(),
        }
    }

    /// Creates the condition that `kubectl wait --for=condition=Ready` waits for, which replaces the host's own.
    pub fn ready(
        status: impl Into<ConditionStatus>,
        reason: impl Into<String>,
        message: impl Into<String>,
    ) -> Self {
        Self::new("Ready", status, reason, message)
    }
}

impl Event {
    /// Creates an informational Event with a CamelCase reason, such as `ScaledDown`, and a message.
    pub fn normal(reason: impl Into<String>, message: impl Into<String>) -> Self {
        Self {
            type_: EventType::Normal,
            reason: reason.into(),
            message: message.into(),
        }
    }

    /// Creates an Event about a problem that needs attention.
    pub fn warning(reason: impl Into<String>, message: impl Into<String>) -> Self {
        Self {
            type_: EventType::Warning,
            ..Self::normal(reason, message)
        }
    }
}

impl Need {
    /// Creates a need for one object in the parent's namespace. The plugin chooses the id, which must be unique in
    /// the response.
    pub fn object(id: impl Into<String>, kind: Kind, name: impl Into<String>) -> Self {
        Self {
            name: Some(name.into()),
            ..Self::of(id.into(), kind)
        }
    }

    /// Creates a need for several objects by name, in the parent's namespace.
    pub fn objects<Name: Into<String>>(
        id: impl Into<String>,
        kind: Kind,
        names: impl IntoIterator<Item = Name>,
    ) -> Self {
        Self {
            names: names.into_iter().map(Into::into).collect(),
            ..Self::of(id.into(), kind)
        }
    }

    /// Creates a need for every object in the parent's namespace that matches a label selector, in the syntax of
    /// `kubectl get -l`.
    pub fn selected(id: impl Into<String>, kind: Kind, label_selector: impl Into<String>) -> Self {
        Self {
            label_selector: Some(label_selector.into()),
            ..Self::of(id.into(), kind)
        }
    }

    /// Reads from another namespace than the parent's, or with `*` from every namespace. The host's configuration must allow it.
    #[must_use]
    pub fn in_namespace(mut self, namespace: impl Into<String>) -> Self {
        self.namespace = Some(namespace.into());
        self
    }

    /// Reads from the namespaces that a label selector picks, in the syntax of `kubectl get -l`. The host's configuration must
    /// allow them.
    #[must_use]
    pub fn in_namespaces(mut self, selector: impl Into<String>) -> Self {
        self.namespace_selector = Some(selector.into());
        self
    }

    fn of(id: String, kind: Kind) -> Self {
        Self {
            id,
            api_version: kind.api_version.to_owned(),
            kind: kind.kind.to_owned(),
            namespace: None,
            namespace_selector: None,
            name: None,
            names: Vec::new(),
            label_selector: None,
        }
    }
}

impl Failure {
    /// Reports a problem that the user must fix in the resource. The message describes it and what to change. Until
    /// the resource changes, the host keeps the children of the last spec for which the plugin had an answer.
    pub fn invalid(message: impl Into<String>) -> Self {
        Self::invalid_for(None, message.into())
    }

    /// Reports such a problem as [`invalid`](Self::invalid) does, with a CamelCase reason other than `InvalidSpec`.
    pub fn invalid_because(reason: impl Into<String>, message: impl Into<String>) -> Self {
        Self::invalid_for(Some(reason.into()), message.into())
    }

    /// Reports something that is missing or failed temporarily. The host retries with a growing delay.
    pub fn retry(message: impl Into<String>) -> Self {
        Self::retry_in(None, message.into())
    }

    /// Reports a temporary problem as [`retry`](Self::retry) does, to be retried after this time.
    pub fn retry_after(message: impl Into<String>, after: Duration) -> Self {
        Self::retry_in(Some(milliseconds(after)), message.into())
    }

    fn invalid_for(reason: Option<String>, message: String) -> Self {
        Self::Invalid(Invalid {
            reason,
            message,
            status: None,
            conditions: Vec::new(),
        })
    }

    fn retry_in(after_ms: Option<u64>, message: String) -> Self {
        Self::Retry(Retry {
            message,
            after_ms,
            status: None,
            conditions: Vec::new(),
        })
    }

    /// Sets the parent's whole status, except `conditions` and `observedGeneration`. Without it, the status stays as it
    /// is.
    #[must_use]
    pub fn status(mut self, status: &impl Serialize) -> Self {
        let (Self::Invalid(Invalid { status: shown, .. }) | Self::Retry(Retry { status: shown, .. })) =
            &mut self;
        *shown = Some(text::json("status", status));
        self
    }

    /// Adds a condition to those of the parent. `Ready` has no effect: the host's reports the failure.
    #[must_use]
    pub fn condition(mut self, condition: Condition) -> Self {
        let (Self::Invalid(Invalid { conditions, .. }) | Self::Retry(Retry { conditions, .. })) = &mut self;
        conditions.push(condition);
        self
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;
    use crate::request::{Request, about};

    /// Like the types of k8s-openapi: the kind is not a field of the struct, but part of its serialized form.
    #[derive(Serialize)]
    #[serde(tag = "kind", rename_all = "camelCase")]
    struct ConfigMap {
        api_version: &'static str,
        metadata: Metadata,
        #[serde(skip_serializing_if = "Option::is_none")]
        immutable: Option<bool>,
    }

    #[derive(Serialize)]
    struct Metadata {
        name: String,
    }

    #[test]
    fn a_child_may_be_of_any_type_that_serializes_to_an_object() {
        let child = ConfigMap {
            api_version: "v1",
            metadata: Metadata { name: "a".into() },
            immutable: None,
        };
        let expected = json!({"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": "a"}});
        let response = Response::<()>::empty().object(&child);
        assert_eq!(response.children, std::slice::from_ref(&expected));
        assert_eq!(Response::<()>::done().object(&child).children, [expected]);
    }

    #[test]
    fn every_constructor_says_what_happens_to_the_children() {
        let pod = json!({
            "apiVersion": "v1", "kind": "Pod", "metadata": { "name": "p", "namespace": "n" }, "status": {},
        });
        let parent = json!({ "metadata": { "name": "a", "namespace": "n" }, "spec": {} });
        let request = Request::<Value, ()>::from_wit(wit::Request {
            children: vec![pod.to_string()],
            ..about(parent.to_string())
        });
        let request = request.unwrap_or_else(|failure| panic!("{failure:?}"));
        let named = |response: Response<()>| {
            let response = response.into_wit(&request.children);
            assert_eq!(response.children, Vec::<String>::new());
            let kept = response.keep.iter().map(|kept| {
                let namespace = kept.namespace.as_deref().unwrap_or_default();
                format!("{} {namespace}/{}", kept.kind, kept.name)
            });
            (kept.collect::<Vec<_>>().join(", "), response.status)
        };
        assert_eq!(named(Response::empty()), (String::new(), None));
        assert_eq!(named(Response::new(())), (String::new(), Some("null".into())));
        assert_eq!(
            named(Response::empty().keep(&request.children)),
            ("Pod n/p".into(), None)
        );
    }

    #[test]
    fn a_child_lists_those_that_it_comes_after_as_the_host_parses_them() {
        let elsewhere = ObjectRef {
            namespace: Some("other".into()),
            ..ObjectRef::new(crate::kinds::JOB, "migrate")
        };
        let others = [ObjectRef::new(crate::kinds::SECRET, "root"), elsewhere];
        let web = json!({ "apiVersion": "v1", "kind": "Pod", "metadata": { "name": "web" } });
        let response = Response::<()>::empty().child_after(others, web);
        let expected = json!({ "operator-host.dev/after": "Secret/root, Job.batch/other/migrate" });
        assert_eq!(response.children[0]["metadata"]["annotations"], expected);
    }
}
