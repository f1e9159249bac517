//! One reconcile of one parent.

use std::sync::Arc;

use kube::core::DynamicObject;
use serde_json::Value;
use tracing::{Span, warn};

use super::context::{Context, ParentMemory};
use operator_host_cluster::api_error::ApiError;
use operator_host_contract::EventType;
use operator_host_core::object::NamespacedName;

/// What the steps of one reconcile share.
pub(super) struct Run<'a> {
    /// The controller: handles, caches, and memory.
    pub(super) context: &'a Context,
    /// The parent.
    pub(super) name: &'a NamespacedName,
    /// The span of this reconcile.
    pub(super) span: &'a Span,
}

impl Run<'_> {
    /// Reads or changes what the controller remembers of the parent.
    pub(super) fn memory<T>(&self, look: impl FnOnce(&mut ParentMemory) -> T) -> T {
        self.context.state.memory_of(self.name, look)
    }

    /// Warns of something in the log and in an Event.
    pub(super) fn warn(&self, parent: &DynamicObject, reason: &str, note: &str) {
        warn!("{note}");
        self.context.publish(parent, EventType::Warning, reason, note);
    }

    /// Merges a body into the parent.
    pub(super) async fn merge(&self, body: &Value) -> Result<DynamicObject, ApiError> {
        let (objects, manager) = (
            self.context.cluster.own_requests(),
            self.context.config.field_manager(),
        );
        objects.merge(self.name, body, &manager).await
    }

    /// Takes the state of the caches.
    pub(super) fn snapshot(&self, parent: Arc<DynamicObject>) -> Snapshot {
        let children = self.context.owned(&parent);
        Snapshot { parent, children }
    }
}

/// What an iteration of a reconcile begins with: a parent with the children that it owns or retains, which the plugin is shown, and
/// which `prune` may delete. `desired::plan` and `apply` read the caches, which may be newer.
pub(super) struct Snapshot {
    pub(super) parent: Arc<DynamicObject>,
    pub(super) children: Vec<Arc<DynamicObject>>,
}
