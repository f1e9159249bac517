//! What an iteration of a reconcile begins with. It is taken once and passed down, so that all steps judge the same state.

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
