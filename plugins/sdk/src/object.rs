//! An object of the cluster, as the API server shows it.

use serde::de::DeserializeOwned;
use serde_json::Value;

use crate::kinds::{DEPLOYMENT, Kind, POD};

/// An object of the cluster: JSON with the fields that every object has at hand.
#[derive(Clone, Debug, PartialEq)]
pub struct Object(Value);

impl From<Value> for Object {
    fn from(value: Value) -> Self {
        Self(value)
    }
}

impl Object {
    /// `metadata.name`.
    #[must_use]
    pub fn name(&self) -> &str {
        self.text("/metadata/name").unwrap_or_default()
    }

    /// `metadata.namespace`; `None` for a cluster-scoped object.
    #[must_use]
    pub fn namespace(&self) -> Option<&str> {
        self.text("/metadata/namespace")
    }

    /// Whether this is an object of that kind, in that version.
    #[must_use]
    pub fn is(&self, kind: Kind) -> bool {
        self.text("/kind") == Some(kind.kind) && self.text("/apiVersion") == Some(kind.api_version)
    }

    /// The value of a label.
    #[must_use]
    pub fn label(&self, key: &str) -> Option<&str> {
        self.get("/metadata/labels")?.get(key)?.as_str()
    }

    /// The value of an annotation.
    #[must_use]
    pub fn annotation(&self, key: &str) -> Option<&str> {
        self.get("/metadata/annotations")?.get(key)?.as_str()
    }

    /// The value at a path of field names and list positions, such as `/spec/ports/0/port`.
    #[must_use]
    pub fn get(&self, path: &str) -> Option<&Value> {
        // Not `Value::pointer`: its escapes bring 5 KB of text search into the plugin.
        path.split('/')
            .skip(1)
            .try_fold(&self.0, |value, step| match value {
                Value::Array(items) => items.get(step.parse::<usize>().ok()?),
                value => value.get(step),
            })
    }

    /// The text at a path; `None` when there is none or it is no text.
    #[must_use]
    pub fn text(&self, path: &str) -> Option<&str> {
        self.get(path)?.as_str()
    }

    /// The whole number at a path; `None` when there is none or it is no such number.
    #[must_use]
    pub fn integer(&self, path: &str) -> Option<i64> {
        self.get(path)?.as_i64()
    }

    /// The value at a path as a type of one's own; `None` when it is missing or does not fit.
    #[must_use]
    pub fn parse<T: DeserializeOwned>(&self, path: &str) -> Option<T> {
        T::deserialize(self.get(path)?).ok()
    }

    /// Whether the object is on its way out: it has a `metadata.deletionTimestamp`.
    #[must_use]
    pub fn is_terminating(&self) -> bool {
        self.get("/metadata/deletionTimestamp")
            .is_some_and(|timestamp| !timestamp.is_null())
    }

    /// The status of a condition in `status.conditions`: `Some(true)` for `True`, `Some(false)` for `False`,
    /// `None` when it is missing or unknown.
    #[must_use]
    pub fn condition(&self, type_: &str) -> Option<bool> {
        let conditions = self.get("/status/conditions")?.as_array()?;
        let condition = conditions.iter().find(|condition| condition["type"] == type_)?;
        match condition["status"].as_str()? {
            "True" => Some(true),
            "False" => Some(false),
            _ => None,
        }
    }

    /// Whether the object can be relied on, by what its own controller or kubelet reports; never for one that
    /// is terminating.
    ///
    /// A Pod by its condition `Ready`. A Deployment when its controller has seen the present spec, and all its
    /// replicas are updated and available. Any other kind by its condition `Ready`.
    #[must_use]
    pub fn is_ready(&self) -> bool {
        if self.is_terminating() {
            false
        } else if self.is(DEPLOYMENT) {
            self.deployment_is_ready()
        } else {
            self.condition("Ready") == Some(true)
        }
    }

    /// Whether this is a Pod whose containers have ended for good: `Failed` (an evicted one, too) or
    /// `Succeeded`.
    #[must_use]
    pub fn is_finished_pod(&self) -> bool {
        self.is(POD) && matches!(self.text("/status/phase"), Some("Failed" | "Succeeded"))
    }

    fn deployment_is_ready(&self) -> bool {
        let count = |path| self.integer(path).unwrap_or(0);
        let wanted = self.integer("/spec/replicas").unwrap_or(1);
        count("/status/observedGeneration") >= count("/metadata/generation")
            && count("/status/updatedReplicas") == wanted
            && count("/status/availableReplicas") == wanted
            // Pods of an earlier version that still run are not yet out of the way.
            && count("/status/replicas") == wanted
    }
}
