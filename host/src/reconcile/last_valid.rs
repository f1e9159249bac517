//! Keeps the children of a parent's last valid spec while its spec is invalid.
//!
//! An invalid spec changes nothing, so the last valid one still counts: the plugin is called with it, its children are
//! repaired, and its status fields describe them as they are. Only the conditions speak of the invalid spec.
//!
//! The last valid spec is in no object of the cluster. A host that has just started or taken over does not know it,
//! and changes nothing until the spec is valid.

use std::sync::Arc;

use kube::core::{DynamicObject, ObjectMeta};
use serde_json::Value;
use tracing::debug;

use super::action::Action;
use super::context::Context;
use super::error::ReconcileError;
use super::failure::note_transient;
use super::iterate;
use super::outcome::{Changes, Kept};
use crate::object::{NamespacedName, is_terminating};
use crate::plugin::CallError;
use crate::plugin::registry::Live;

/// Reconciles the last valid spec of a parent whose spec the plugin has just found invalid. Returns `None` when none is
/// known.
pub(super) async fn keep(
    context: &Context,
    parent: &Arc<DynamicObject>,
    changes: &mut Changes,
) -> Option<Kept> {
    if is_terminating(parent) {
        return None;
    }
    let plugin = match &*context.plugin.borrow() {
        Live::Plugin(plugin) => plugin.clone(),
        Live::Loading | Live::Failed(_) => return None,
    };
    let name = NamespacedName::of(parent);
    let last = context.memory_of(&name, |memory| memory.last_valid_before(parent))?;
    // A change of one of these objects may make the spec valid.
    context.state.needs.keep_for_invalid(&name);
    debug!(
        generation = last.metadata.generation,
        "the spec is invalid: keeping the children of the last valid one"
    );
    let kept = match iterate(context, &plugin, &Arc::new(with_wish_of(&last, parent)), changes).await {
        Ok(answer) => {
            context.memory_of(&name, |memory| memory.failures = 0);
            Kept {
                next: answer.requeue.map_or(Action::OnChange, Action::After),
                answer: Some(answer),
                problem: None,
            }
        }
        // The plugin is another one by now, or something else that it has read has changed.
        Err(ReconcileError::Call(CallError::Invalid { .. })) => return None,
        Err(error) => {
            context.observer.metrics.failed(error.class());
            let is_transient = note_transient(context, parent, &error);
            Kept {
                next: error.backoff(),
                answer: None,
                problem: (!is_transient).then(|| error.to_string()),
            }
        }
    };
    Some(kept)
}

/// Returns the parent as it is now, with what its owner had set when it was last valid.
fn with_wish_of(last: &DynamicObject, parent: &DynamicObject) -> DynamicObject {
    let mut data = last.data.clone();
    if let Value::Object(data) = &mut data {
        data.remove("status");
        let status = parent.data.get("status").cloned();
        data.extend(status.map(|status| ("status".to_owned(), status)));
    }
    DynamicObject {
        types: parent.types.clone(),
        metadata: ObjectMeta {
            generation: last.metadata.generation,
            labels: last.metadata.labels.clone(),
            annotations: last.metadata.annotations.clone(),
            ..parent.metadata.clone()
        },
        data,
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn the_last_valid_parent_has_the_current_status_and_the_earlier_spec() {
        let parent = |generation: i64, label: &str, replicas: u32, status: Value| -> DynamicObject {
            serde_json::from_value(json!({
                "apiVersion": "a/v1", "kind": "K",
                "metadata": {
                    "name": "a", "generation": generation, "resourceVersion": format!("{generation}0"),
                    "labels": { "size": label },
                },
                "spec": { "replicas": replicas }, "status": status,
            }))
            .unwrap()
        };
        let last = parent(4, "small", 1, json!({ "phase": "Starting" }));
        let now = parent(5, "large", 99, json!({ "phase": "Running" }));
        let kept = serde_json::to_value(with_wish_of(&last, &now)).unwrap();
        let mut expected =
            serde_json::to_value(parent(4, "small", 1, json!({ "phase": "Running" }))).unwrap();
        expected["metadata"]["resourceVersion"] = "50".into();
        assert_eq!(kept, expected);
    }
}
