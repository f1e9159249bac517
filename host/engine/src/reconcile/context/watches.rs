//! Whether the watches of one controller show its objects, and which namespaces can hold them.

use std::sync::Arc;

use kube::core::DynamicObject;

use super::Context;
use operator_host_cluster::api_error::ApiError;
use operator_host_cluster::cache::{Reflector, WatchState};
use operator_host_cluster::kind_reflectors::KindReflectors;
use operator_host_core::object::{ChildRef, NamespacedName, kind_in_words};

impl Context {
    /// Returns the watches of the parents, the children and what is read.
    #[must_use]
    pub fn watches(&self) -> Vec<Arc<Reflector>> {
        let others = self.children.values().chain(self.reads.values());
        let all = std::iter::once(&self.parents).chain(others);
        all.flat_map(KindReflectors::all).collect()
    }

    /// Returns why the plugin cannot be shown this parent and its children: the error of the failing watch. Watches
    /// for reads are checked when the plugin asks for them.
    ///
    /// For a kind whose watch has worked before, it is known whether the parent has such children: it has only
    /// those that the host created. For a kind that was never listed it is not known, and the children must not
    /// appear to be missing. A kind that the cluster does not serve has no objects.
    #[must_use]
    pub fn watch_failure(&self, parent: &DynamicObject) -> Option<String> {
        let name = NamespacedName::of(parent);
        let own = self.parents.of(name.namespace.as_deref());
        if let Some(failure) = own.as_deref().and_then(failure) {
            return Some(failure);
        }
        let uid = parent.metadata.uid.as_deref().unwrap_or_default();
        let served = self
            .children
            .iter()
            .filter(|(kind, _)| !self.served.not_served.contains_key(kind));
        served
            .flat_map(|(_, watches)| self.watches_of_children(watches, &name))
            .filter_map(|watch| Some((failure(&watch)?, watch)))
            .find(|(_, watch)| !watch.was_listed() || !watch.referring_to(uid, &name).is_empty())
            .map(|(failure, _)| failure)
    }

    /// Returns why no parent is known: every watch of them fails.
    #[must_use]
    pub fn parents_failure(&self) -> Option<String> {
        let failures: Option<Vec<String>> = self.parents.all().iter().map(|watch| failure(watch)).collect();
        failures?.into_iter().next()
    }

    /// Returns why a kind that the cluster serves cannot be watched.
    #[must_use]
    pub fn unwatched(&self) -> Option<String> {
        let others = self.children.iter().chain(&self.reads);
        let served = others.filter(|(kind, _)| !self.served.not_served.contains_key(kind));
        std::iter::once(&self.parents)
            .chain(served.map(|(_, watches)| watches))
            .flat_map(KindReflectors::all)
            .find_map(|watch| failure(&watch))
    }

    /// Returns why the state of an object, which a plugin wants to have, is unknown: the watch that would show it fails.
    #[must_use]
    pub fn watch_failure_of(&self, key: &ChildRef) -> Option<String> {
        failure(&*self.watch_of(key)?)
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
                .is_none_or(|namespace| self.config.other_namespaces.contains(namespace))
        });
        all
    }

    /// Reports whether the namespace of a parent is being deleted.
    #[must_use]
    pub fn is_namespace_terminating(&self, parent: &DynamicObject) -> bool {
        let namespace = parent.metadata.namespace.as_deref();
        namespace.is_some_and(|namespace| self.namespaces.is_terminating(namespace))
    }

    /// Checks that an object can be created, which is not possible in a namespace that is being deleted.
    ///
    /// # Errors
    /// The same error that the API server would return.
    pub fn check_namespace(&self, key: &ChildRef) -> Result<(), ApiError> {
        let Some(namespace) = &key.name.namespace else {
            return Ok(());
        };
        let kind = kind_in_words(key.kind.group(), &key.kind.kind);
        let watch = self.children.get(&key.kind).and_then(|it| it.of(Some(namespace)));
        if self.namespaces.is_terminating(namespace) {
            return Err(ApiError::namespace_terminating(&kind, &key.name));
        }
        match watch.is_some_and(|watch| watch.lacks_namespace()) {
            true => Err(ApiError::namespace_missing(&kind, &key.name)),
            false => Ok(()),
        }
    }

    /// Records a namespace that a refusal reports as terminating.
    pub fn record_refused_namespace(&self, error: &ApiError) {
        if let (true, Some(namespace)) = (error.is_namespace_terminating(), &error.name.namespace) {
            self.namespaces.refused(namespace);
        }
    }
}

/// Returns the error of a watch, if it fails.
fn failure(watch: &Reflector) -> Option<String> {
    match watch.state_now() {
        WatchState::Failing(message) => Some(message),
        WatchState::Starting | WatchState::Synced => None,
    }
}
