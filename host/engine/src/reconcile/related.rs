//! Reads needs from the caches.

use std::sync::Arc;

use kube::ResourceExt;
use kube::core::DynamicObject;

use super::context::Context;
use super::needs::{NeedError, RelatedObjects, Rights, Wanted};
use operator_host_cluster::cache::WatchState;
use operator_host_contract::Kind;
use operator_host_core::object::NamespacedName;

/// Reads the current caches and returns the error of a failing watch. The caller has already checked the watches
/// that every reconcile needs (`Context::watch_failure`).
impl RelatedObjects for Context {
    fn rights(&self) -> Rights<'_> {
        Rights::Configured(&self.config)
    }

    fn is_namespaced(&self, kind: &Kind) -> bool {
        self.cluster
            .served
            .others
            .get(kind)
            .is_none_or(|resource| resource.namespaced)
    }

    async fn read(&self, wanted: &Wanted<'_>) -> Result<Vec<Arc<DynamicObject>>, NeedError> {
        let namespace = wanted.namespace.as_deref();
        let reads = self.caches.reads.get(&wanted.kind);
        let Some(watch) = reads.and_then(|watches| watches.of(namespace)) else {
            let namespace = namespace.unwrap_or_default();
            return Err(wanted.refused(&format!(
                "the namespace {namespace:?} is not watched; list it under `namespaces` in the configuration"
            )));
        };
        if let WatchState::Failing(problem) = watch.state_now() {
            return Err(wanted.unreadable(&problem));
        }
        let Some(name) = &wanted.need.name else {
            return Ok(watch.select(namespace, &wanted.selector));
        };
        let name = NamespacedName {
            namespace: wanted.namespace.clone(),
            name: name.clone(),
        };
        let mut objects: Vec<_> = watch.get(&name).into_iter().collect();
        objects.retain(|object| wanted.selector.matches(object.labels()));
        Ok(objects)
    }
}
