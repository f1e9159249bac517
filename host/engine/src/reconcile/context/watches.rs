//! Whether the watches of one controller show its objects.

use std::sync::Arc;

use kube::core::DynamicObject;

use super::{Caches, Context};
use operator_host_cluster::cache::{Reflector, WatchState};
use operator_host_cluster::kind_reflectors::KindReflectors;
use operator_host_core::object::{ChildRef, NamespacedName};

impl Caches {
    /// Returns why no parent is known: every watch of them fails.
    pub fn parents_failure(&self) -> Option<String> {
        let failures: Option<Vec<String>> = self.parents.all().iter().map(|watch| failure(watch)).collect();
        failures?.into_iter().next()
    }

    /// Returns why the state of an object, which a plugin wants to have, is unknown: the watch that would show it fails.
    pub fn watch_failure_of(&self, key: &ChildRef) -> Option<String> {
        failure(&*self.watch_of(key)?)
    }
}

impl Context {
    /// Returns why the plugin cannot be shown this parent and its children: the error of the failing watch. Watches
    /// for reads are checked when the plugin asks for them.
    ///
    /// For a kind whose watch has worked before, it is known whether the parent has such children: it has only
    /// those that the host created. For a kind that was never listed it is not known, and the children must not
    /// appear to be missing. A kind that the cluster does not serve has no objects.
    pub fn watch_failure(&self, parent: &DynamicObject) -> Option<String> {
        let name = NamespacedName::of(parent);
        let own = self.caches.parents.of(name.namespace.as_deref());
        if let Some(failure) = own.as_deref().and_then(failure) {
            return Some(failure);
        }
        let uid = parent.metadata.uid.as_deref().unwrap_or_default();
        let not_served = &self.cluster.served.not_served;
        let children = self.caches.children.iter();
        children
            .filter(|(kind, _)| !not_served.contains_key(kind))
            .flat_map(|(_, watches)| self.watches_of_children(watches, &name))
            .filter_map(|watch| Some((failure(&watch)?, watch)))
            .find(|(_, watch)| !watch.was_listed() || !watch.referring_to(uid, &name).is_empty())
            .map(|(failure, _)| failure)
    }

    /// Returns why a kind that the cluster serves cannot be watched.
    pub fn unwatched(&self) -> Option<String> {
        let others = self.caches.children.iter().chain(&self.caches.reads);
        let served = others.filter(|(kind, _)| !self.cluster.served.not_served.contains_key(kind));
        std::iter::once(&self.caches.parents)
            .chain(served.map(|(_, watches)| watches))
            .flat_map(KindReflectors::all)
            .find_map(|watch| failure(&watch))
    }

    /// Returns the watches of one kind that may show children of a parent: those of its own namespace, or, for a
    /// cluster-scoped parent, those of all configured namespaces.
    fn watches_of_children(&self, watches: &KindReflectors, parent: &NamespacedName) -> Vec<Arc<Reflector>> {
        if parent.namespace.is_some() {
            return watches.of(parent.namespace.as_deref()).into_iter().collect();
        }
        let mut all = watches.all();
        all.retain(|watch| {
            watch
                .namespace()
                .is_none_or(|namespace| self.config.rules.other_namespaces.contains(namespace))
        });
        all
    }
}

/// Returns the error of a watch, if it fails.
fn failure(watch: &Reflector) -> Option<String> {
    match watch.state_now() {
        WatchState::Failing(message) => Some(message),
        WatchState::Starting | WatchState::Synced => None,
    }
}
