//! Which objects of the caches are a parent's, and what the controller does with what it wrote itself.

use std::sync::Arc;

use kube::core::DynamicObject;
use serde_json::Value;

use super::{Context, ParentMemory};
use operator_host_contract::{Kind, Response};
use operator_host_core::object::{ChildRef, NamespacedName, version};
use operator_host_desired::ownership::{leave_out_others, owns, retains};
use operator_host_desired::plan::{Plan, Policy, Refusal, plan_around};
use operator_host_runtime::Plugin;
use operator_host_telemetry::trace;

impl Context {
    /// Returns the children that this parent owns or retains, sorted by API version, kind, namespace and name.
    pub fn owned(&self, parent: &DynamicObject) -> Vec<Arc<DynamicObject>> {
        let name = NamespacedName::of(parent);
        let uid = parent.metadata.uid.as_deref().unwrap_or_default();
        let mut children = self.caches.referring_to(uid, &name);
        let proof = self.proof_key.proof();
        children.retain(|child| {
            owns(self.config.scope(), parent, child) || retains(self.config.scope(), proof, parent, child)
        });
        leave_out_others(self.config.scope(), parent, &mut children);
        children
    }

    /// Plans what a version of the plugin has answered for a parent and the children that it was shown.
    ///
    /// # Errors
    /// As [`plan_around`].
    pub fn plan(
        &self,
        plugin: &Plugin,
        parent: &DynamicObject,
        shown: &[Arc<DynamicObject>],
        answer: &Response,
    ) -> Result<Plan, Vec<Refusal>> {
        let trace = trace::current().map(|context| trace::header(&context));
        let policy = Policy {
            scope: self.config.scope(),
            parent,
            digest: &plugin.digest().to_string(),
            trace: trace.as_deref(),
            plugin: &plugin.description().name_and_version(),
            namespaced: &|kind: &Kind| self.cluster.served.namespaced(kind),
            existing: &|key: &ChildRef| self.caches.existing(key),
            shown,
            proof: self.proof_key.proof(),
        };
        plan_around(&policy, answer)
    }

    /// Stores the result of a write in the cache, and remembers its version to recognize the watch event for it.
    pub(in crate::reconcile) fn record_child(
        &self,
        parent: &NamespacedName,
        key: &ChildRef,
        object: DynamicObject,
    ) {
        if let Some(version) = version(&object) {
            self.state.memory_of(parent, |memory| {
                memory.own_writes.children.insert(key.identity(), version);
            });
        }
        if let Some(watch) = self.caches.watch_of(key) {
            watch.record(object);
        }
    }

    /// Stores the response to a write of the parent, and remembers its version to recognize the watch event for it.
    /// `seen` is the parent as the reconcile knows it, `status` the status that was written, if it was.
    pub(in crate::reconcile) fn record_parent(
        &self,
        seen: &DynamicObject,
        status: Option<&Value>,
        answer: DynamicObject,
    ) -> Option<Arc<DynamicObject>> {
        let name = NamespacedName::of(seen);
        // The cache is not asked what was known: the watch may have delivered the result of the write already, with
        // a change of others that the reconcile has not seen.
        let note = |memory: &mut ParentMemory| memory.wrote_parent(seen, status, &answer);
        self.state.memory_of(&name, note);
        let watch = self.caches.parents.of(name.namespace.as_deref())?;
        Some(watch.record(answer))
    }
}
