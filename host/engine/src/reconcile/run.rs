//! One reconcile of one parent.

use std::ops::Deref;

use tracing::Span;

use super::context::{Context, ParentMemory};
use operator_host_core::object::NamespacedName;

/// What the steps of one reconcile share: the controller's [`Context`], for one parent.
pub(super) struct Run<'a> {
    /// The controller.
    pub(super) context: &'a Context,
    /// The parent.
    pub(super) name: &'a NamespacedName,
    /// The span of this reconcile.
    pub(super) span: &'a Span,
}

impl<'a> Run<'a> {
    pub(super) const fn new(context: &'a Context, name: &'a NamespacedName, span: &'a Span) -> Self {
        Self { context, name, span }
    }

    /// Reads or changes what the controller remembers of the parent.
    pub(super) fn memory<T>(&self, look: impl FnOnce(&mut ParentMemory) -> T) -> T {
        self.context.state.memory_of(self.name, look)
    }
}

impl Deref for Run<'_> {
    type Target = Context;

    fn deref(&self) -> &Context {
        self.context
    }
}
