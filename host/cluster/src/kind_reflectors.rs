//! The watches of one kind, for a controller that follows all namespaces or some.

use std::collections::BTreeMap;
use std::sync::{Arc, PoisonError, RwLock};

use kube::core::DynamicObject;

use super::cache::Reflector;
use operator_host_core::object::NamespacedName;

/// The watches of one kind: one for all namespaces, or one per configured namespace.
#[derive(Default)]
pub struct KindReflectors {
    everywhere: Option<Arc<Reflector>>,
    by_namespace: RwLock<ByNamespace>,
}

/// Watches by their namespace.
pub type ByNamespace = BTreeMap<String, Arc<Reflector>>;

impl KindReflectors {
    /// Creates one watch over all namespaces, or of a cluster-scoped kind.
    pub fn everywhere(watch: Arc<Reflector>) -> Self {
        Self {
            everywhere: Some(watch),
            by_namespace: RwLock::default(),
        }
    }

    /// Creates one watch per namespace.
    pub fn by_namespace(watches: ByNamespace) -> Self {
        Self {
            everywhere: None,
            by_namespace: RwLock::new(watches),
        }
    }

    /// Returns the names of all objects of all watches, in no particular order.
    pub fn names(&self) -> Vec<NamespacedName> {
        self.all().iter().flat_map(|watch| watch.names()).collect()
    }

    /// Returns all watches.
    #[must_use]
    pub fn all(&self) -> Vec<Arc<Reflector>> {
        let by_namespace = self.by_namespace.read().unwrap_or_else(PoisonError::into_inner);
        self.everywhere
            .iter()
            .chain(by_namespace.values())
            .cloned()
            .collect()
    }

    /// Returns the watch that covers a namespace; `None` when that namespace is not watched.
    #[must_use]
    pub fn of(&self, namespace: Option<&str>) -> Option<Arc<Reflector>> {
        if self.everywhere.is_some() {
            return self.everywhere.clone();
        }
        let by_namespace = self.by_namespace.read().unwrap_or_else(PoisonError::into_inner);
        by_namespace.get(namespace?).cloned()
    }

    /// Returns the watches per namespace; `None` when one watch covers all.
    pub fn namespaces(&self) -> Option<ByNamespace> {
        let by_namespace = self.by_namespace.read().unwrap_or_else(PoisonError::into_inner);
        self.everywhere.is_none().then(|| by_namespace.clone())
    }

    /// Replaces the watches for later reconciles.
    pub fn replace(&self, watches: ByNamespace) {
        *self.by_namespace.write().unwrap_or_else(PoisonError::into_inner) = watches;
    }

    /// Returns an object by its name.
    pub fn get(&self, name: &NamespacedName) -> Option<Arc<DynamicObject>> {
        self.of(name.namespace.as_deref())?.get(name)
    }
}
