//! The input of one call of a plugin.

use serde::de::DeserializeOwned;
use serde_json::{Map, Value};

use crate::bindings::operator_host::plugin::types as wit;
use crate::kinds::Kind;
use crate::object::{Object, parse};
use crate::response::{Failure, FieldError, Need};

/// The input of one call of a plugin.
#[derive(Debug)]
pub struct Request<Spec, Status> {
    /// The custom resource.
    pub parent: Parent<Spec, Status>,
    /// The objects in the cluster that the parent owns, with their status, sorted by API version, kind, namespace
    /// and name. The values of a generated Secret are blank.
    pub children: Vec<Object>,
    /// The host's clock, in RFC 3339, UTC, whole seconds. It differs in each call: writing it to the status would
    /// change the status each time, so use [`Request::stamp`].
    pub now: String,
    /// Whether the parent's namespace is being deleted: no object can be created in it any more, and a cleanup must
    /// do without.
    pub namespace_terminating: bool,
    related: Vec<(String, Vec<Object>)>,
}

/// The custom resource that is being reconciled.
#[derive(Debug)]
pub struct Parent<Spec, Status> {
    /// Its name, unique per kind in the namespace.
    pub name: String,
    /// `None` for a cluster-scoped parent.
    pub namespace: Option<String>,
    /// The rest of the resource: its metadata, without spec and status.
    pub object: Object,
    /// The desired state.
    pub spec: Spec,
    /// The status from the last reconcile. `None` at first, and when it does not match the type (an older version
    /// of the plugin wrote it).
    pub status: Option<Status>,
}

impl<Spec, Status> Request<Spec, Status> {
    /// Returns the owned children of one kind.
    pub fn children_of(&self, kind: Kind) -> impl Iterator<Item = &Object> {
        self.children.iter().filter(move |child| child.is(kind))
    }

    /// Returns an owned child by kind and name, in the parent's namespace. For a cluster-scoped parent, only a
    /// cluster-scoped child; use [`Request::child_in`] for children in namespaces.
    #[must_use]
    pub fn child(&self, kind: Kind, name: &str) -> Option<&Object> {
        self.child_in(kind, self.parent.namespace.as_deref(), name)
    }

    /// Returns an owned child by kind, namespace and name; the namespace is `None` for a cluster-scoped kind.
    #[must_use]
    pub fn child_in(&self, kind: Kind, namespace: Option<&str>, name: &str) -> Option<&Object> {
        self.children_of(kind)
            .find(|child| child.name() == name && child.namespace() == namespace)
    }

    /// Returns the objects that the host read for a need, empty if there are none; `None` when the need has not
    /// been requested yet. The response must contain the need in both cases, so that the host keeps watching:
    ///
    /// ```
    /// # use operator_plugin::prelude::*;
    /// # fn reconcile(request: &Request<(), ()>) -> Result<Response<()>, Failure> {
    /// let need = Need::object("settings", CONFIG_MAP, "settings");
    /// let Some(found) = request.answer(&need) else {
    ///     return Ok(Response::needs_first([need]));
    /// };
    /// # let _ = found;
    /// Ok(Response::empty().need(need))
    /// # }
    /// ```
    #[must_use]
    pub fn answer(&self, need: &Need) -> Option<&[Object]> {
        let found = self.related.iter().find(|(id, _)| *id == need.id);
        found.map(|(_, objects)| objects.as_slice())
    }
}

#[cfg(feature = "jiff")]
impl<Spec, Status> Request<Spec, Status> {
    /// Returns the host's clock: [`Request::now`] as a type.
    #[must_use]
    pub fn time(&self) -> jiff::Timestamp {
        // The host writes RFC 3339.
        self.now.parse().unwrap_or_default()
    }
}

impl<Spec, Status: Clone + PartialEq> Request<Spec, Status> {
    /// Sets the time of last change in the status: the current time if anything else differs from the parent's
    /// current status, otherwise the existing time. A status that changed in each reconcile would cause another
    /// write and another reconcile, endlessly.
    #[must_use]
    pub fn stamp(&self, mut status: Status, time: fn(&mut Status) -> &mut String) -> Status {
        if let Some(mut previous) = self.parent.status.clone() {
            time(&mut status).clone_from(time(&mut previous));
            if status == previous && !time(&mut status).is_empty() {
                return status;
            }
        }
        time(&mut status).clone_from(&self.now);
        status
    }
}

impl<Spec: DeserializeOwned, Status: DeserializeOwned> Request<Spec, Status> {
    pub(crate) fn from_wit(request: wit::Request) -> Result<Self, Failure> {
        // Whole, so that a new field is not forgotten.
        let wit::Request {
            parent,
            children,
            related,
            now,
            // It differs in each call, and an answer must not depend on it.
            traceparent: _,
            namespace_terminating,
        } = request;
        let parent = Parent::from_text(&parent);
        let related = related.into_iter().map(|it| (it.id, objects(it.objects)));
        Ok(Self {
            parent: parent.map_err(|error| Failure::invalid(format!("{}: {}", error.path, error.message)))?,
            children: objects(children),
            now,
            namespace_terminating,
            related: related.collect(),
        })
    }
}

impl<Spec: DeserializeOwned, Status: DeserializeOwned> Parent<Spec, Status> {
    /// Reads a parent into the plugin's types. A spec that does not match is the user's to fix: this happens with a
    /// CustomResourceDefinition that is older than the plugin, or is not the plugin's.
    pub(crate) fn from_text(text: &str) -> Result<Self, FieldError> {
        let mut parent = parse(text);
        // A custom resource without a spec uses the defaults.
        let spec = match parent["spec"].take() {
            Value::Null => Value::Object(Map::new()),
            spec => spec,
        };
        let status = parent["status"].take();
        let object = Object::from(parent);
        let spec = Spec::deserialize(spec).map_err(|error| {
            let given = || parse(text)["spec"].take();
            let error_of = |spec: Value| Spec::deserialize(spec).err().map(|error| error.to_string());
            let error = error.to_string();
            FieldError::new(path_of(&error, &given, &error_of), error)
        })?;
        Ok(Self {
            name: object.name().to_owned(),
            namespace: object.namespace().map(str::to_owned),
            object,
            spec,
            status: Status::deserialize(status).ok(),
        })
    }
}

/// Returns the path of the value that an error is about, which the error does not say: without that value, there is another
/// error or none. This is little code, for it is in every plugin.
fn path_of(error: &str, given: &dyn Fn() -> Value, error_of: &dyn Fn(Value) -> Option<String>) -> String {
    let (mut path, mut steps) = ("spec".to_owned(), Vec::new());
    let missing = error.strip_prefix("missing field `");
    let missing = missing.map(|name| name.trim_end_matches('`'));
    loop {
        // Without another required field, that one is missing. So see first whether the field belongs here.
        let mut spec = given();
        if let (Some(name), Some(Value::Object(fields))) = (missing, inner(&mut spec, &steps)) {
            fields.insert(name.to_owned(), Value::Null);
            if error_of(spec).as_deref() != Some(error) {
                return path;
            }
        }
        let names: Vec<String> = match inner(&mut given(), &steps) {
            Some(Value::Object(fields)) => fields.keys().map(|name| [".", name].concat()).collect(),
            // Lists lose their last values first, so that the others keep their places.
            Some(Value::Array(items)) => (0..items.len()).rev().map(|index| format!("[{index}]")).collect(),
            _ => Vec::new(),
        };
        let count = names.len();
        let is_about = |first: usize| {
            let mut spec = given();
            match inner(&mut spec, &steps) {
                Some(Value::Object(fields)) => {
                    for (name, value) in std::mem::take(fields).into_iter().skip(first + 1) {
                        fields.insert(name, value);
                    }
                }
                Some(Value::Array(items)) => items.truncate(count - 1 - first),
                _ => {}
            }
            error_of(spec).as_deref() != Some(error)
        };
        // Once the value is gone, it stays so: half of those that are left are in question each time.
        let (mut first, mut last) = (0, count);
        while first < last {
            let middle = usize::midpoint(first, last);
            if is_about(middle) {
                last = middle;
            } else {
                first = middle + 1;
            }
        }
        if first == count {
            return path;
        }
        path += &names[first];
        let is_list = names[first].starts_with('[');
        steps.push(if is_list { count - 1 - first } else { first });
    }
}

/// Returns a value within another one.
fn inner<'a>(mut value: &'a mut Value, steps: &[usize]) -> Option<&'a mut Value> {
    for &step in steps {
        value = match value {
            Value::Object(fields) => fields.values_mut().nth(step)?,
            Value::Array(items) => items.get_mut(step)?,
            _ => return None,
        };
    }
    Some(value)
}

/// Returns the record of a request that says nothing else than the parent.
#[cfg(any(test, feature = "command", feature = "testing"))]
pub(crate) fn about(parent: String) -> wit::Request {
    wit::Request {
        parent,
        children: Vec::new(),
        related: Vec::new(),
        now: String::new(),
        traceparent: None,
        namespace_terminating: false,
    }
}

fn objects(texts: Vec<String>) -> Vec<Object> {
    texts.into_iter().map(Object::from_text).collect()
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;
    use crate::kinds::{CONFIG_MAP, SECRET};

    fn request(parent_namespace: Option<&str>, children: &[Value]) -> Request<Value, Value> {
        let mut parent = json!({ "apiVersion": "a.dev/v1", "kind": "Thing", "metadata": { "name": "one" } });
        if let Some(namespace) = parent_namespace {
            parent["metadata"]["namespace"] = namespace.into();
        }
        let request = wit::Request {
            children: children.iter().map(Value::to_string).collect(),
            ..about(parent.to_string())
        };
        Request::from_wit(request).unwrap()
    }

    fn config_map(namespace: Option<&str>, owner: &str) -> Value {
        let mut child = json!({ "apiVersion": "v1", "kind": "ConfigMap", "metadata": { "name": "same" },
            "data": { "of": owner } });
        if let Some(namespace) = namespace {
            child["metadata"]["namespace"] = namespace.into();
        }
        child
    }

    fn owner(child: Option<&Object>) -> Option<&str> {
        child?.value()["data"]["of"].as_str()
    }

    #[test]
    fn what_does_not_match_the_type_of_the_spec_is_named_by_its_path() {
        #[derive(Debug, serde::Deserialize)]
        #[allow(dead_code, reason = "only read")]
        struct Spec {
            text: Option<String>,
            list: Option<Vec<u8>>,
            inner: Option<Box<Spec>>,
            pair: Option<Pair>,
        }
        #[derive(Debug, serde::Deserialize)]
        #[allow(dead_code, reason = "only read")]
        struct Pair {
            left: u8,
            right: u8,
        }
        for (spec, expected) in [
            (
                json!({ "text": 5 }),
                "spec.text: invalid type: integer `5`, expected a string",
            ),
            (
                json!({ "inner": { "inner": { "text": 5 } } }),
                "spec.inner.inner.text: invalid type",
            ),
            (json!({ "list": [1, 2, "a", 3] }), "spec.list[2]: invalid type"),
            (
                json!({ "list": [1, "a"], "text": [2] }),
                "spec.list[1]: invalid type",
            ),
            // Twice the same.
            (
                json!({ "inner": { "text": 5 }, "text": 5 }),
                "text: invalid type: integer `5`",
            ),
            (json!({ "inner": 5, "other": 7 }), "spec.inner: invalid type"),
            (json!("text"), "spec: invalid type"),
            (
                json!({ "pair": { "left": 1 } }),
                "spec.pair: missing field `right`",
            ),
            (
                json!({ "pair": { "right": 1 } }),
                "spec.pair: missing field `left`",
            ),
            (
                json!({ "pair": {}, "text": "a" }),
                "spec.pair: missing field `left`",
            ),
            (
                json!({ "pair": { "left": 1, "right": "a" } }),
                "spec.pair.right: invalid type",
            ),
        ] {
            let parent = json!({ "metadata": { "name": "one" }, "spec": spec });
            let failure = Request::<Spec, Value>::from_wit(about(parent.to_string())).unwrap_err();
            let Failure::Invalid(invalid) = failure else {
                panic!("{failure:?}")
            };
            assert!(invalid.message.contains(expected), "{}", invalid.message);
        }
    }

    #[test]
    fn of_two_children_with_one_name_the_one_in_the_namespace_is_found() {
        let children = [
            config_map(Some("b"), "in b"),
            config_map(Some("a"), "in a"),
            config_map(None, "in none"),
        ];
        let namespaced = request(Some("a"), &children);
        assert_eq!(owner(namespaced.child(CONFIG_MAP, "same")), Some("in a"));
        for (namespace, expected) in [
            (Some("a"), Some("in a")),
            (Some("b"), Some("in b")),
            (None, Some("in none")),
            (Some("c"), None),
        ] {
            let child = namespaced.child_in(CONFIG_MAP, namespace, "same");
            assert_eq!(owner(child), expected, "{namespace:?}");
        }
        assert!(namespaced.child_in(SECRET, Some("a"), "same").is_none());
        assert!(namespaced.child_in(CONFIG_MAP, Some("a"), "other").is_none());
        let cluster_scoped = request(None, &children);
        assert_eq!(owner(cluster_scoped.child(CONFIG_MAP, "same")), Some("in none"));
        let elsewhere = request(Some("c"), &children);
        assert!(elsewhere.child(CONFIG_MAP, "same").is_none());
    }
}
