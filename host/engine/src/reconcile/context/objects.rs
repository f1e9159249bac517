//! The objects of one controller: its parents, their children, and what its plugin may read, as the caches have them.

use std::sync::Arc;

use k8s_openapi::apimachinery::pkg::apis::meta::v1::ManagedFieldsEntry;
use kube::core::DynamicObject;
use serde_json::Value;

use super::Context;
use operator_host_cluster::cache::Reflector;
use operator_host_cluster::kind_reflectors::KindReflectors;
use operator_host_contract::{Kind, Response};
use operator_host_core::object::{ChildRef, NamespacedName, version};
use operator_host_desired::ownership::{leave_out_others, owns, retains};
use operator_host_desired::plan::{Plan, Policy, Refusal, plan_around};
use operator_host_runtime::Plugin;

/// A child as it is in the cluster.
pub(in crate::reconcile) struct LiveChild {
    pub(in crate::reconcile) object: Arc<DynamicObject>,
    /// Its managed fields, but for those of the status.
    pub(in crate::reconcile) managed: Vec<ManagedFieldsEntry>,
}

impl Context {
    /// Returns the parent as last known.
    #[must_use]
    pub fn parent(&self, name: &NamespacedName) -> Option<Arc<DynamicObject>> {
        self.parents.get(name)
    }

    /// Reports whether a parent is known to exist.
    #[must_use]
    pub fn has_parent(&self, name: &NamespacedName) -> bool {
        let watch = self.parents.of(name.namespace.as_deref());
        watch.is_some_and(|watch| watch.contains(name))
    }

    /// Returns the current parent, which this reconcile may have written, but with the generation that the
    /// reconcile saw, since its status is about that one. `None` when it was deleted or replaced.
    pub(in crate::reconcile) fn as_seen(&self, seen: &DynamicObject) -> Option<Arc<DynamicObject>> {
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

    /// Returns the children that this parent owns or retains, sorted by API version, kind, namespace and name.
    #[must_use]
    pub fn owned(&self, parent: &DynamicObject) -> Vec<Arc<DynamicObject>> {
        let name = NamespacedName::of(parent);
        let uid = parent.metadata.uid.as_deref().unwrap_or_default();
        let mut children = self.referring_to(uid, &name);
        let proof = self.proof_key.proof();
        children
            .retain(|child| owns(&self.config, parent, child) || retains(&self.config, proof, parent, child));
        leave_out_others(&self.config, parent, &mut children);
        children
    }

    /// Returns the objects that refer to a parent by an owner reference or by the annotation. It does not prove that they are
    /// the parent's.
    #[must_use]
    pub fn referring_to(&self, uid: &str, parent: &NamespacedName) -> Vec<Arc<DynamicObject>> {
        let watches = self.children.values().flat_map(KindReflectors::all);
        watches
            .flat_map(|watch| watch.referring_to(uid, parent))
            .collect()
    }

    /// Returns an object of a kind that this controller may create, whether it owns it or not.
    #[must_use]
    pub fn existing(&self, key: &ChildRef) -> Option<Arc<DynamicObject>> {
        self.children.get(&key.kind)?.get(&key.name)
    }

    /// Does what [`Context::existing`] does, and returns the object's managed fields, too, if a host applied it.
    pub(in crate::reconcile) fn live_child(&self, key: &ChildRef) -> Option<LiveChild> {
        let (object, managed) = self.watch_of(key)?.get_managed(&key.name)?;
        Some(LiveChild { object, managed })
    }

    pub(super) fn watch_of(&self, key: &ChildRef) -> Option<Arc<Reflector>> {
        self.children.get(&key.kind)?.of(key.name.namespace.as_deref())
    }

    /// Plans what a version of the plugin has answered for a parent.
    ///
    /// # Errors
    /// As [`plan_around`].
    pub fn plan(
        &self,
        plugin: &Plugin,
        parent: &DynamicObject,
        answer: &Response,
    ) -> Result<Plan, Vec<Refusal>> {
        let policy = Policy {
            config: &self.config,
            parent,
            digest: &plugin.digest().to_string(),
            plugin: &plugin.description().name_and_version(),
            namespaced: &|kind: &Kind| self.served.namespaced(kind),
            existing: &|key: &ChildRef| self.existing(key),
            proof: self.proof_key.proof(),
        };
        plan_around(&policy, answer)
    }

    /// Stores the result of a write in the cache, and remembers its version to recognize the watch event for it.
    pub fn record_child(&self, parent: &NamespacedName, key: &ChildRef, object: DynamicObject) {
        if let Some(version) = version(&object) {
            self.memory_of(parent, |memory| {
                memory.own_writes.children.insert(key.identity(), version);
            });
        }
        if let Some(watch) = self.watch_of(key) {
            watch.record(object);
        }
    }

    /// Removes a deleted child from the caches.
    pub fn forget_child(&self, key: &ChildRef, uid: &str) {
        if let Some(watch) = self.watch_of(key) {
            watch.forget(&key.name, uid);
        }
    }

    /// Stores the response to a write of the parent, and remembers its version to recognize the watch event for it.
    /// `seen` is the parent as the reconcile knows it, `status` the status that was written, if it was.
    pub fn record_parent(
        &self,
        seen: &DynamicObject,
        status: Option<&Value>,
        answer: DynamicObject,
    ) -> Option<Arc<DynamicObject>> {
        let name = NamespacedName::of(seen);
        // The cache is not asked what was known: the watch may have delivered the result of the write already, with
        // a change of others that the reconcile has not seen.
        self.memory_of(&name, |memory| memory.wrote_parent(seen, status, &answer));
        let watch = self.parents.of(name.namespace.as_deref())?;
        Some(watch.record(answer))
    }
}
