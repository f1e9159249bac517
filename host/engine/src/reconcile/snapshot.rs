//! What an iteration of a reconcile begins with. It is taken once and passed down, so that all steps judge the same state.

use std::sync::Arc;

use kube::core::DynamicObject;

use super::context::Context;
use operator_host_core::object::NamespacedName;
use operator_host_runtime::Plugin;

/// A parent with its children.
pub(super) struct Snapshot {
    pub(super) parent: Arc<DynamicObject>,
    /// The children that it owns or retains, in every watched version.
    pub(super) children: Vec<Arc<DynamicObject>>,
}

impl Snapshot {
    /// Takes the state of the caches.
    pub(super) fn take(context: &Context, parent: Arc<DynamicObject>) -> Self {
        let children = context.owned(&parent);
        Self { parent, children }
    }

    /// Returns each child once, in the version that the plugin uses.
    pub(super) fn seen_by(&self, context: &Context, plugin: &Plugin) -> Vec<Arc<DynamicObject>> {
        context.as_seen_by(plugin, &NamespacedName::of(&self.parent), self.children.clone())
    }
}
