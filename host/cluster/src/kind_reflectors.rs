//! The watches of one kind, for a controller that follows all namespaces or some.

use std::collections::BTreeMap;
use std::sync::{Arc, PoisonError, RwLock, RwLockReadGuard};

use kube::core::DynamicObject;

use super::cache::Reflector;
use operator_host_core::object::NamespacedName;

/// The watches of one kind: one for all namespaces (`None`), or one per configured namespace.
#[derive(Default)]
pub struct KindReflectors(RwLock<BTreeMap<Option<String>, Arc<Reflector>>>);

/// Watches by their namespace.
pub type ByNamespace = BTreeMap<String, Arc<Reflector>>;

impl KindReflectors {
    /// Creates one watch over all namespaces, or of a cluster-scoped kind.
    pub fn everywhere(watch: Arc<Reflector>) -> Self {
        Self(RwLock::new([(None, watch)].into()))
    }

    /// Creates one watch per namespace.
    pub fn by_namespace(watches: ByNamespace) -> Self {
        let created = Self::default();
        created.replace(watches);
        created
    }

    fn read(&self) -> RwLockReadGuard<'_, BTreeMap<Option<String>, Arc<Reflector>>> {
        self.0.read().unwrap_or_else(PoisonError::into_inner)
    }

    /// Returns the names of all objects of all watches, in no particular order.
    pub fn names(&self) -> Vec<NamespacedName> {
        self.all().iter().flat_map(|watch| watch.names()).collect()
    }

    /// Returns all watches.
    #[must_use]
    pub fn all(&self) -> Vec<Arc<Reflector>> {
        self.read().values().cloned().collect()
    }

    /// Returns the watch that covers a namespace; `None` when that namespace is not watched.
    #[must_use]
    pub fn of(&self, namespace: Option<&str>) -> Option<Arc<Reflector>> {
        let watches = self.read();
        let everywhere = watches.get(&None);
        everywhere
            .or_else(|| watches.get(&Some(namespace?.to_owned())))
            .cloned()
    }

    /// Returns the watches per namespace; `None` when one watch covers all.
    pub fn namespaces(&self) -> Option<ByNamespace> {
        let watches = self.read().clone().into_iter();
        watches
            .map(|(namespace, watch)| Some((namespace?, watch)))
            .collect()
    }

    /// Replaces the watches for later reconciles.
    pub fn replace(&self, watches: ByNamespace) {
        let watches = watches
            .into_iter()
            .map(|(namespace, watch)| (Some(namespace), watch));
        *self.0.write().unwrap_or_else(PoisonError::into_inner) = watches.collect();
    }

    /// Returns an object by its name.
    pub fn get(&self, name: &NamespacedName) -> Option<Arc<DynamicObject>> {
        self.of(name.namespace.as_deref())?.get(name)
    }
}
