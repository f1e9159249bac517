//! Validation at the door: an admission webhook that asks the plugin, before a custom resource is written, what it would
//! make of it, and denies what the plugin calls invalid. Nothing is written, so a dry run is as good as any.
//!
//! Every replica serves it, whoever leads: caches and plugins are the same. A plugin that fails, or has no answer in
//! time, is no verdict on the resource: the API server gets an error, and the webhook's `failurePolicy` decides.

mod certificates;
mod server;

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};

use kube::core::DynamicObject;
use kube::core::Status;
use kube::core::admission::{AdmissionRequest, AdmissionResponse, Operation};

use crate::controller::context::Context;
use crate::controller::object::is_terminating;
use crate::controller::reconcile::{Admission, admit};

pub use self::server::{PATH, ServerError, start};

/// The controllers that could be asked now.
#[derive(Default)]
pub struct Door(Mutex<BTreeMap<String, Weak<Context>>>);

/// Why there is no verdict; the API server is told, and its `failurePolicy` decides.
#[derive(Clone, Debug, PartialEq, Eq)]
struct NoVerdict {
    /// For a metric; `None` when no controller is for that kind.
    controller: Option<String>,
    message: String,
}

impl Door {
    /// A controller runs from now on.
    pub fn open(&self, context: &Arc<Context>) {
        let name = context.config.name.clone();
        self.lock().insert(name, Arc::downgrade(context));
    }

    fn lock(&self) -> MutexGuard<'_, BTreeMap<String, Weak<Context>>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The controller of a kind, whatever its version: with `matchPolicy: Equivalent` the resource comes in the one that
    /// the webhook's rules name.
    fn controller_of(&self, group: &str, kind: &str) -> Option<Arc<Context>> {
        let contexts = self.lock();
        let mut contexts = contexts.values().filter_map(Weak::upgrade);
        contexts.find(|context| {
            let parent = &context.config.parent;
            parent.group() == group && parent.kind == kind
        })
    }

    /// What the plugin says of a resource that is about to be written.
    async fn verdict(
        &self,
        request: &AdmissionRequest<DynamicObject>,
    ) -> Result<(String, AdmissionResponse), NoVerdict> {
        let allowed = AdmissionResponse::from(request);
        let kind = &request.kind;
        let Some(context) = self.controller_of(&kind.group, &kind.kind) else {
            return Err(NoVerdict {
                controller: None,
                message: format!("no controller for {} runs here yet", kind.kind),
            });
        };
        let controller = context.config.name.clone();
        let Some(object) = request.object.as_ref().filter(|_| is_asked(request)) else {
            return Ok((controller, allowed));
        };
        match admit(&context, object).await {
            Ok(Admission::Fine) => Ok((controller, allowed)),
            Ok(Admission::Invalid(message)) => {
                let mut denied = allowed.deny(&message);
                denied.result = Status::failure(&message, "Invalid").with_code(422);
                Ok((controller, denied))
            }
            Err(message) => Err(NoVerdict {
                controller: Some(controller),
                message,
            }),
        }
    }
}

/// Whether the plugin is to be asked. Not when the resource is going, or what the user wants stays as it was: else a
/// resource from before the webhook could lose its finalizers no more.
fn is_asked(request: &AdmissionRequest<DynamicObject>) -> bool {
    let writes = matches!(request.operation, Operation::Create | Operation::Update);
    let subresource = request
        .sub_resource
        .as_deref()
        .is_some_and(|name| !name.is_empty());
    let going = request.object.as_ref().is_some_and(is_terminating);
    let same = match (&request.old_object, &request.object) {
        (Some(old), Some(new)) => wants(old) == wants(new),
        _ => false,
    };
    writes && !subresource && !going && !same
}

/// What a resource says that is the user's to say.
fn wants(object: &DynamicObject) -> (serde_json::Value, [Option<&BTreeMap<String, String>>; 2]) {
    let mut data = object.data.clone();
    if let Some(data) = data.as_object_mut() {
        data.remove("status");
    }
    let metadata = &object.metadata;
    (data, [metadata.labels.as_ref(), metadata.annotations.as_ref()])
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;

    fn request(
        operation: &str,
        old: Value,
        new: Value,
        subresource: &str,
    ) -> AdmissionRequest<DynamicObject> {
        let kind = json!({"group": "a.dev", "version": "v1", "kind": "Thing"});
        let object = |value: Value| {
            let mut object = json!({"apiVersion": "a.dev/v1", "kind": "Thing", "metadata": {"name": "a"}});
            for (key, value) in value.as_object()? {
                object[key] = value.clone();
            }
            Some(object)
        };
        serde_json::from_value(json!({
            "uid": "1", "kind": kind, "name": "a", "operation": operation, "userInfo": {}, "subResource": subresource,
            "resource": {"group": "a.dev", "version": "v1", "resource": "things"},
            "object": object(new), "oldObject": object(old),
        }))
        .unwrap()
    }

    #[test]
    fn only_a_change_of_what_the_user_wants_is_asked_about() {
        let spec = |n: u32| json!({"spec": {"n": n}});
        assert!(is_asked(&request("CREATE", Value::Null, spec(1), "")));
        assert!(is_asked(&request("UPDATE", spec(1), spec(2), "")));
        let labelled = json!({"metadata": {"name": "a", "labels": {"a": "b"}}, "spec": {"n": 1}});
        assert!(is_asked(&request("UPDATE", spec(1), labelled, "")));

        assert!(!is_asked(&request("UPDATE", spec(1), spec(1), "")));
        let status = json!({"spec": {"n": 1}, "status": {"n": 2}});
        assert!(!is_asked(&request("UPDATE", spec(1), status.clone(), "")));
        assert!(!is_asked(&request("UPDATE", spec(2), status, "status")));
        let going =
            json!({"metadata": {"name": "a", "deletionTimestamp": "2026-01-01T00:00:00Z"}, "spec": {"n": 1}});
        assert!(!is_asked(&request("UPDATE", spec(2), going, "")));
        assert!(!is_asked(&request("DELETE", spec(1), Value::Null, "")));
    }
}
