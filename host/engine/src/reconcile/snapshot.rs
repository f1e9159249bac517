//! What an iteration of a reconcile begins with: what the plugin is shown, and what `prune` may delete. `desired::plan` and
//! `apply` read the caches, which may be newer.

use std::sync::Arc;

use kube::core::DynamicObject;

use super::context::Context;

/// A parent with its children.
pub(super) struct Snapshot {
    pub(super) parent: Arc<DynamicObject>,
    /// The children that it owns or retains.
    pub(super) children: Vec<Arc<DynamicObject>>,
}

impl Snapshot {
    /// Takes the state of the caches.
    pub(super) fn take(context: &Context, parent: Arc<DynamicObject>) -> Self {
        let children = context.owned(&parent);
        Self { parent, children }
    }
}
