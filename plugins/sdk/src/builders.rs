//! Builders for the kinds that most operators create.
//!
//! A builder writes the JSON that the API server expects, with the fields that are required and those that
//! server-side apply needs to tell list items apart. Everything else can be set by its path.
//!
//! ```
//! use operator_plugin::builders::{Container, Deployment, Ingress, Service};
//! use operator_plugin::{Labels, Response};
//!
//! let selector = Labels::new("app", "shop");
//! let app = Container::new("app", "shop:1.4")
//!     .port("http", 8080)
//!     .env("LANG", "C.UTF-8")
//!     .env_from_secret("PASSWORD", "shop-db", "password")
//!     .ready_when_http("/healthz", "http")
//!     .limits("500m", "256Mi");
//! let response = Response::<()>::empty()
//!     .child(Deployment::new("shop", &selector).replicas(3).container(app))
//!     .child(Service::new("shop", &selector).port("http", 80))
//!     .child(
//!         Ingress::new("shop")
//!             .rule("shop.example.com", "/", "shop", "http")
//!             .set("/spec/ingressClassName", "nginx"),
//!     );
//! ```

mod configuration;
mod network;
mod scaling;
mod workloads;

use serde_json::{Map, Value};

use crate::kinds::Kind;
use crate::labels::Labels;
use crate::object;

pub use configuration::{ConfigMap, PersistentVolumeClaim, Secret, ServiceAccount};
pub use network::{Ingress, NetworkPolicy, Service};
pub use scaling::{HorizontalPodAutoscaler, PodDisruptionBudget};
pub use workloads::{Container, CronJob, DaemonSet, Deployment, Job, StatefulSet, Volume};

/// Defines the builder of a kind, with the fields that every object has.
macro_rules! builder {
    ($(#[$documentation:meta])* $name:ident) => {
        $(#[$documentation])*
        #[derive(Clone, Debug, PartialEq)]
        #[must_use = "give it to `Response::child`"]
        pub struct $name(serde_json::Value);

        impl $name {
            /// Adds labels to the object itself.
            pub fn labels(mut self, labels: &crate::Labels) -> Self {
                crate::builders::add_labels(&mut self.0, &["metadata", "labels"], labels);
                self
            }

            /// Adds an annotation to the object itself.
            pub fn annotation(self, key: &str, value: impl Into<String>) -> Self {
                self.with(&["metadata", "annotations", key], value.into().into())
            }

            /// Sets the namespace, for a child of a cluster-scoped parent. The default is the parent's namespace.
            pub fn namespace(self, namespace: impl Into<String>) -> Self {
                self.with(&["metadata", "namespace"], namespace.into().into())
            }

            /// Sets any field by its path, such as `/spec/template/spec/priorityClassName`: a JSON pointer as in
            /// [`Object::get`](crate::Object::get). Fields on the way that are missing are added.
            ///
            /// # Panics
            ///
            /// When the path leads into a value that has no fields, or beyond the end of a list.
            pub fn set(mut self, path: &str, value: impl Into<serde_json::Value>) -> Self {
                crate::builders::put_at(&mut self.0, path, value.into());
                self
            }

            fn with(mut self, path: &[&str], value: serde_json::Value) -> Self {
                crate::builders::put(&mut self.0, path, value);
                self
            }
        }

        impl From<$name> for serde_json::Value {
            fn from(builder: $name) -> Self {
                builder.0
            }
        }
    };
}
pub(crate) use builder;

/// Returns an object with its kind and name only.
fn object(kind: Kind, name: String) -> Value {
    let mut object = Value::Null;
    put(&mut object, &["apiVersion"], kind.api_version.into());
    put(&mut object, &["kind"], kind.kind.into());
    put(&mut object, &["metadata", "name"], name.into());
    object
}

// The functions below are not generic, and all builders share them: a plugin contains each once.

/// Returns the value at a path, which is added where it is missing.
fn at<'a>(value: &'a mut Value, path: &[&str]) -> &'a mut Value {
    path.iter().fold(value, |value, step| match value {
        Value::Array(items) => match step.parse::<usize>().ok().and_then(|index| items.get_mut(index)) {
            Some(item) => item,
            None => panic!("the list has no item {step}"),
        },
        Value::Object(fields) => fields.entry(*step).or_insert(Value::Null),
        Value::Null => {
            *value = Value::Object(Map::new());
            &mut value[*step]
        }
        _ => panic!("a value that is not an object has no field {step}"),
    })
}

/// Sets the value at a path.
fn put(object: &mut Value, path: &[&str], value: Value) {
    *at(object, path) = value;
}

/// Sets the value at a path that is a JSON pointer.
pub(crate) fn put_at(object: &mut Value, path: &str, value: Value) {
    object::along(path, |steps| put(object, steps, value));
}

/// Adds an item to the list at a path.
fn push(object: &mut Value, path: &[&str], item: Value) {
    let list = at(object, path);
    match list {
        Value::Array(items) => items.push(item),
        other => *other = Value::Array(vec![item]),
    }
}

/// Adds labels to those at a path.
fn add_labels(object: &mut Value, path: &[&str], labels: &Labels) {
    let target = at(object, path);
    for (key, value) in labels.iter() {
        put(target, &[key], value.into());
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn a_field_is_set_by_its_path_through_objects_and_lists() {
        let service = Service::new("shop", &Labels::new("app", "shop"))
            .port("http", 80)
            .labels(&Labels::new("tier", "front"))
            .labels(&Labels::new("team", "a"))
            .annotation("example.com/a", "b")
            .namespace("n")
            .set("/spec/ports/0/nodePort", 30080)
            .set("/metadata/annotations/example.com~1c", "d");
        assert_eq!(
            Value::from(service),
            json!({
                "apiVersion": "v1", "kind": "Service",
                "metadata": {
                    "name": "shop", "namespace": "n", "labels": { "tier": "front", "team": "a" },
                    "annotations": { "example.com/a": "b", "example.com/c": "d" },
                },
                "spec": {
                    "selector": { "app": "shop" },
                    "ports": [
                        { "name": "http", "port": 80, "targetPort": "http", "protocol": "TCP", "nodePort": 30080 },
                    ],
                },
            })
        );
    }

    #[test]
    #[should_panic(expected = "the list has no item 1")]
    fn a_path_beyond_the_end_of_a_list_is_a_bug() {
        let service = Service::new("shop", &Labels::new("app", "shop")).port("http", 80);
        let _ = service.set("/spec/ports/1/nodePort", 1);
    }
}
