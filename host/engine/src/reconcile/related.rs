//! Reads needs from the caches.

use std::collections::BTreeSet;
use std::sync::Arc;

use kube::ResourceExt;
use kube::core::DynamicObject;

use super::context::Context;
use super::needs::{NeedError, RelatedObjects, Rights, Wanted};
use operator_host_cluster::cache::{Reflector, WatchState};
use operator_host_config::ControllerConfig;
use operator_host_contract::Kind;
use operator_host_core::object::{NamespacedName, Selector};
use operator_host_desired::selectors::is_named;

/// Reads the current caches and returns the error of a failing watch. The caller has already checked the watches
/// that every reconcile needs (`Context::watch_failure`).
impl RelatedObjects for Context {
    fn rights(&self) -> Rights<'_> {
        Rights::Configured(&self.config)
    }

    fn is_namespaced(&self, kind: &Kind) -> bool {
        let resource = self.cluster.served.others.get(kind);
        resource.is_none_or(|resource| resource.namespaced)
    }

    async fn namespaces(
        &self,
        wanted: &Wanted<'_>,
        selector: &Selector,
    ) -> Result<BTreeSet<String>, NeedError> {
        let why = "the host watches some namespaces only (`namespaces` in its configuration), so it does not know their labels";
        let selected = self.caches.namespaces.select(selector);
        selected.ok_or_else(|| wanted.refused(why))
    }

    async fn read(&self, wanted: &Wanted<'_>) -> Result<Vec<Arc<DynamicObject>>, NeedError> {
        let namespace = wanted.namespace.as_deref();
        let reads = self.caches.reads.get(&wanted.kind);
        if let (true, Some(reads)) = (wanted.need.is_everywhere(), reads) {
            return everywhere(&self.config, wanted, &reads.all());
        }
        let Some(watch) = reads.and_then(|watches| watches.of(namespace)) else {
            let namespace = namespace.unwrap_or_default();
            return Err(wanted.refused(&format!(
                "the namespace {namespace:?} is not watched; list it under `namespaces` in the configuration"
            )));
        };
        if let WatchState::Failing(problem) = watch.state_now() {
            return Err(wanted.unreadable(&problem));
        }
        let Some(names) = wanted.need.all_names() else {
            return Ok(watch.select(namespace, &wanted.selector));
        };
        let names = names.into_iter();
        let names = names.map(|name| NamespacedName::new(wanted.namespace.clone(), name));
        let mut found: Vec<_> = names.filter_map(|name| watch.get(&name)).collect();
        found.retain(|object| wanted.selector.matches(object.labels()));
        Ok(found)
    }
}

/// Reads what a need selects in every namespace that the controller may read.
fn everywhere(
    config: &ControllerConfig,
    wanted: &Wanted<'_>,
    watches: &[Arc<Reflector>],
) -> Result<Vec<Arc<DynamicObject>>, NeedError> {
    let mut objects = Vec::new();
    for watch in watches {
        if let WatchState::Failing(problem) = watch.state_now() {
            return Err(wanted.unreadable(&problem));
        }
        objects.extend(watch.select(None, &wanted.selector));
    }
    let names = wanted.need.all_names();
    objects.retain(|object| is_named(names.as_ref(), object) && wanted.reaches(config, object));
    objects.sort_by_cached_key(|object| NamespacedName::of(object));
    Ok(objects)
}
