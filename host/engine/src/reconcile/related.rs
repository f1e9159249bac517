//! Reads needs from the caches.

use std::sync::Arc;

use kube::core::DynamicObject;

use super::context::Context;
use super::needs::{NeedError, RelatedObjects, Rights, Wanted};
use operator_host_contract::Kind;

/// Reads the current caches and returns the error of a failing watch. The caller has already checked the watches
/// that every reconcile needs (`Context::watch_failure`).
impl RelatedObjects for Context {
    fn rights(&self) -> Rights<'_> {
        Rights::Configured(&self.config)
    }

    fn is_namespaced(&self, kind: &Kind) -> bool {
        self.resources
            .get(kind)
            .is_none_or(|resource| resource.namespaced)
    }

    async fn read(&self, wanted: &Wanted<'_>) -> Result<Vec<Arc<DynamicObject>>, NeedError> {
        let Wanted {
            need, kind, selector, ..
        } = wanted;
        let namespace = wanted.namespace.as_deref();
        if let Some(problem) = self.watch_failure_of_read(kind, namespace) {
            return Err(wanted.unreadable(&problem));
        }
        let objects = self.related(kind, namespace, need.name.as_deref(), selector);
        objects.ok_or_else(|| {
            let namespace = namespace.unwrap_or_default();
            wanted.refused(&format!(
                "the namespace {namespace:?} is not watched; list it under `namespaces` in the configuration"
            ))
        })
    }
}
