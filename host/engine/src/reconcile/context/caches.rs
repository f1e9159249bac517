//! The objects of one controller as its watches show them: the parents, their children, and what the plugin may read.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use kube::ResourceExt as _;
use kube::core::DynamicObject;

use operator_host_cluster::api_error::ApiError;
use operator_host_cluster::cache::{Managed, Reflector, WatchState};
use operator_host_cluster::kind_reflectors::KindReflectors;
use operator_host_cluster::namespaces::Namespaces;
use operator_host_config::ControllerConfig;
use operator_host_contract::Kind;
use operator_host_core::object::{
    CONTROLLER_LABEL, ChildRef, NamespacedName, controller_of, is_reference_to, kind_in_words, label,
};

/// The watches of one controller.
pub struct Caches {
    /// Those of the custom resources.
    pub parents: KindReflectors,
    /// Those of the kinds that the plugin may create.
    pub children: BTreeMap<Kind, KindReflectors>,
    /// Those of the kinds that the plugin may read.
    pub reads: BTreeMap<Kind, KindReflectors>,
    /// Tracks which namespaces are being deleted.
    pub namespaces: Arc<Namespaces>,
    /// Which of the objects that `parents` has are parents.
    pub config: Arc<ControllerConfig>,
}

/// A child as it is in the cluster.
pub(crate) struct LiveChild {
    pub(crate) object: Arc<DynamicObject>,
    /// Its managed fields, but for those of the status.
    pub(crate) managed: Managed,
}

impl Caches {
    /// Returns a parent as last known; `None` also for an object that the controller does not decorate.
    pub fn parent(&self, name: &NamespacedName) -> Option<Arc<DynamicObject>> {
        self.parents.get(name).filter(|object| self.selects(object))
    }

    /// Returns an object of the parents' kind that is none.
    pub fn unselected(&self, name: &NamespacedName) -> Option<Arc<DynamicObject>> {
        self.config.decorates.as_ref()?;
        self.parents.get(name).filter(|object| !self.selects(object))
    }

    /// Returns an object of the parents' kind with its managed fields, if a host has applied some.
    pub(crate) fn managed_parent(&self, name: &NamespacedName) -> Option<(Arc<DynamicObject>, Managed)> {
        self.parents.of(name.namespace.as_deref())?.get_managed(name)
    }

    /// Returns the objects that have fields of a controller that decorates.
    pub fn with_fields(&self) -> BTreeSet<NamespacedName> {
        if self.config.decorates.is_none() {
            return BTreeSet::new();
        }
        let manager = self.config.field_manager();
        let watches = self.parents.all().into_iter();
        watches.flat_map(|watch| watch.applied_by(&manager)).collect()
    }

    /// Reports whether an object of the parents' kind is a parent.
    pub fn selects(&self, object: &DynamicObject) -> bool {
        self.config.selects(object.labels()) && !self.is_of_child(object)
    }

    /// Reports whether a child of a controller of the host owns an object, such as a Job its pods. Decorated, a pod that has the
    /// labels of the first one would get a Job with such pods again, without end.
    fn is_of_child(&self, object: &DynamicObject) -> bool {
        let Some(owner) = controller_of(object).filter(|_| self.config.decorates.is_some()) else {
            return false;
        };
        let name = NamespacedName::new(object.metadata.namespace.clone(), &*owner.name);
        let is_owner = |child: &DynamicObject| {
            child.metadata.uid.as_ref() == Some(&owner.uid) && label(child, CONTROLLER_LABEL).is_some()
        };
        let mut all = self.children.iter();
        all.any(|(kind, watches)| {
            is_reference_to(kind, owner) && watches.get(&name).is_some_and(|child| is_owner(&child))
        })
    }

    /// Returns the names of all parents, in no particular order.
    pub fn parent_names(&self) -> Vec<NamespacedName> {
        match &self.config.decorates {
            None => self.parents.names(),
            Some(decorates) => {
                let watches = self.parents.all().into_iter();
                let found = watches.flat_map(|watch| watch.select(None, &decorates.selector));
                let found = found.filter(|object| self.selects(object));
                found.map(|object| NamespacedName::of(&object)).collect()
            }
        }
    }

    /// Counts the parents.
    pub fn parent_count(&self) -> usize {
        match &self.config.decorates {
            None => self.parents.all().iter().map(|watch| watch.count()).sum(),
            Some(_) => self.parent_names().len(),
        }
    }

    /// Reports whether a parent is known. It need not be readable.
    pub fn has_parent(&self, name: &NamespacedName) -> bool {
        let watch = self.parents.of(name.namespace.as_deref());
        watch.is_some_and(|watch| watch.contains(name))
            && (self.config.decorates.is_none() || self.parent(name).is_some())
    }

    /// Returns the current parent, which this reconcile may have written, but with the generation that the
    /// reconcile saw, since its status is about that one. `None` when it was deleted or replaced.
    pub(crate) fn as_seen(&self, seen: &DynamicObject) -> Option<Arc<DynamicObject>> {
        let now = self.parent(&NamespacedName::of(seen))?;
        if now.metadata.uid != seen.metadata.uid {
            return None;
        }
        if now.metadata.generation == seen.metadata.generation {
            return Some(now);
        }
        let mut now = DynamicObject::clone(&now);
        now.metadata.generation = seen.metadata.generation;
        Some(Arc::new(now))
    }

    /// Returns the objects that refer to a parent by an owner reference or by the annotation. It does not prove that they are
    /// the parent's.
    pub fn referring_to(&self, uid: &str, parent: &NamespacedName) -> Vec<Arc<DynamicObject>> {
        let watches = self.children.values().flat_map(KindReflectors::all);
        let referring = watches.flat_map(|watch| watch.referring_to(uid, parent));
        referring.collect()
    }

    /// Returns an object of a kind that this controller may create, whether it owns it or not.
    pub fn existing(&self, key: &ChildRef) -> Option<Arc<DynamicObject>> {
        self.children.get(&key.kind)?.get(&key.name)
    }

    /// Does what [`Caches::existing`] does, and returns the object's managed fields, too, if a host applied it.
    pub(crate) fn live_child(&self, key: &ChildRef) -> Option<LiveChild> {
        let (object, managed) = self.watch_of(key)?.get_managed(&key.name)?;
        Some(LiveChild { object, managed })
    }

    pub(crate) fn forget_child(&self, key: &ChildRef, uid: &str) {
        if let Some(watch) = self.watch_of(key) {
            watch.forget(&key.name, uid);
        }
    }

    /// Returns the watches of the parents, the children and what is read.
    pub fn watches(&self) -> Vec<Arc<Reflector>> {
        let others = self.children.values().chain(self.reads.values());
        let all = std::iter::once(&self.parents).chain(others);
        all.flat_map(KindReflectors::all).collect()
    }

    pub(super) fn watch_of(&self, key: &ChildRef) -> Option<Arc<Reflector>> {
        self.children.get(&key.kind)?.of(key.name.namespace.as_deref())
    }

    /// Reports whether the namespace of a parent is being deleted.
    pub fn is_namespace_terminating(&self, parent: &DynamicObject) -> bool {
        let namespace = parent.metadata.namespace.as_deref();
        namespace.is_some_and(|namespace| self.namespaces.is_terminating(namespace))
    }

    /// Checks that an object can be created, which is not possible in a namespace that is being deleted. The error is the one that
    /// the API server would return.
    pub(crate) fn check_namespace(&self, key: &ChildRef) -> Result<(), ApiError> {
        let Some(namespace) = &key.name.namespace else {
            return Ok(());
        };
        let kind = kind_in_words(key.kind.group(), &key.kind.kind);
        if self.namespaces.is_terminating(namespace) {
            return Err(ApiError::namespace_terminating(&kind, &key.name));
        }
        match self.watch_of(key).is_some_and(|watch| watch.lacks_namespace()) {
            true => Err(ApiError::namespace_missing(&kind, &key.name)),
            false => Ok(()),
        }
    }

    /// Records a namespace that a refusal reports as terminating.
    pub(crate) fn record_refused_namespace(&self, error: &ApiError) {
        if let (true, Some(namespace)) = (error.is_namespace_terminating(), &error.name.namespace) {
            self.namespaces.refused(namespace);
        }
    }

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

/// Returns the error of a watch, if it fails.
pub(super) fn failure(watch: &Reflector) -> Option<String> {
    match watch.state_now() {
        WatchState::Failing(message) => Some(message),
        WatchState::Starting | WatchState::Synced => None,
    }
}
