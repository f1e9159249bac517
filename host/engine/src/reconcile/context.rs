//! The state that all reconciles of one controller share: handles, caches, and the memory of each parent.

mod caches;
mod cluster;
pub(super) mod conflicts;
mod memory;
mod needs;
pub(super) mod pace;
mod state;
mod unkept;

use std::sync::Arc;

use jiff::SignedDuration;
use kube::core::DynamicObject;
use serde_json::Value;

pub use self::caches::Caches;
pub(crate) use self::caches::LiveChild;
use self::caches::failure;
pub use self::cluster::Cluster;
pub use self::conflicts::Conflicts;
pub use self::memory::{Doubt, FailureMemory, OwnWrites, ParentMemory};
pub use self::state::ControllerState;
pub use self::unkept::Unkept;
use super::canary::Versions;
use super::observer::Observer;
use super::proof_key::{ProofKey, ProofKeyError};
use crate::work_queue::Queue;
use operator_host_cluster::cache::Reflector;
use operator_host_cluster::client::Writer;
use operator_host_cluster::event_recorder::Events;
use operator_host_cluster::kind_reflectors::KindReflectors;
use operator_host_config::ControllerConfig;
use operator_host_contract::{EventType, Kind, Response};
use operator_host_core::child_rules::Allow;
use operator_host_core::object::{ChildRef, GENERATED_LABEL, NamespacedName, label, version};
use operator_host_core::text::shorten;
use operator_host_desired::ownership::{home, leave_out_others, owns, retains};
use operator_host_desired::plan::{Plan, Policy, Refusal, plan_around};
use operator_host_desired::readiness::why_failed;
use operator_host_runtime::Plugin;
use operator_host_telemetry::trace;

/// The shared state of one controller; see the module.
pub struct Context {
    /// The controller's configuration.
    pub config: Arc<ControllerConfig>,
    /// The API server, as this controller uses it.
    pub cluster: Cluster,
    /// What the watches show of it.
    pub caches: Caches,
    /// The versions of the plugin.
    pub versions: Versions,
    /// Publishes Events.
    pub events: Events,
    /// Reports what this controller does.
    pub observer: Observer,
    /// Proves which Secrets the host generated.
    pub proof_key: Arc<ProofKey>,
    /// The host's own namespace, if it runs in one.
    pub host_namespace: Option<Arc<str>>,
    /// The parents to reconcile.
    pub queue: Arc<Queue>,
    /// What the controller remembers between reconciles.
    pub state: ControllerState,
}

/// A child that lives no longer than this was removed within moments of its creation.
const MOMENTS: SignedDuration = SignedDuration::from_secs(10);
/// A pod that fails earlier than this, such as one that is evicted again and again, backs off, too. What is slower is no loop.
const LIFETIME: SignedDuration = SignedDuration::from_secs(60);

/// Says what became of a child that is gone.
fn removal_in_words(child: &DynamicObject) -> String {
    let text = |field: &str| Some(shorten(child.data["status"][field].as_str()?, 100));
    match (text("phase"), text("reason")) {
        (Some(phase), Some(reason)) => format!("its phase was {phase} ({reason})"),
        (Some(phase), None) if phase != "Pending" && phase != "Running" => format!("its phase was {phase}"),
        _ => "it was deleted".to_owned(),
    }
}

impl Context {
    /// Queues an Event about a parent, with the plugin version that was last asked about it.
    pub fn publish(&self, parent: &DynamicObject, type_: EventType, reason: &str, note: &str) {
        let name = NamespacedName::of(parent);
        let plugin = self.state.memory_of(&name, |memory| memory.asked);
        if let Some(journal) = &self.observer.journal {
            let is_warning = type_ == EventType::Warning;
            journal.published(&name, is_warning, reason, note, trace::current().as_ref());
        }
        self.events.publish(plugin, parent, type_, reason, note);
    }

    /// Ensures that the proofs of the Secrets that claim to be generated for this parent can be checked. Reads the
    /// key at most once per process, and only if there is such a Secret. The leader passes a writer.
    ///
    /// # Errors
    /// When the key is not available.
    pub async fn load_proof_key(
        &self,
        parent: &DynamicObject,
        writer: Option<&Writer>,
    ) -> Result<(), ProofKeyError> {
        let name = NamespacedName::of(parent);
        let uid = parent.metadata.uid.as_deref().unwrap_or_default();
        let children = self.caches.children.iter();
        let secrets = children.filter(|(kind, _)| kind.kind == "Secret");
        let secrets = secrets.flat_map(|(_, watches)| watches.all());
        let mut secrets = secrets.flat_map(|watch| watch.referring_to(uid, &name));
        if !self.proof_key.is_known() && secrets.any(|it| label(&it, GENERATED_LABEL).is_some()) {
            self.proof_key.load(writer).await?;
        }
        Ok(())
    }

    /// Returns what is wrong with a parent in the host's own namespace, which is not allowed: its children could use the
    /// host's ServiceAccount and read its Secrets.
    pub fn refuses_namespace(&self, parent: &DynamicObject) -> Option<String> {
        let namespace = home(self.config.scope(), parent)?;
        let is_allowed = self.config.rules.allow.contains(&Allow::HostNamespace);
        (!is_allowed && Some(namespace) == self.host_namespace.as_deref()).then(|| {
            format!(
                "the namespace {namespace:?} is the host's own: what a plugin creates there could use the host's \
                 ServiceAccount and read its Secrets; put the {} into another namespace, or list `hostNamespace` under \
                 `allow` of the controller {:?}",
                self.config.parent.kind, self.config.name
            )
        })
    }

    /// Notes that a child is gone, or is being deleted. If that is within moments of its creation, the next one may wait.
    pub fn note_removal(&self, parent: &NamespacedName, key: &ChildRef, child: &DynamicObject) {
        let created = child.metadata.creation_timestamp.as_ref();
        let limit = why_failed(child).map_or(MOMENTS, |_| LIFETIME);
        let now = self.cluster.writer.clock.now();
        let is_young = created.is_some_and(|created| now.duration_since(created.0) < limit);
        if is_young && self.caches.has_parent(parent) {
            let why = removal_in_words(child);
            let note = |memory: &mut ParentMemory| memory.pace(key.identity()).removed(why);
            self.state.memory_of(parent, note);
        }
    }

    /// Records that the parent may have been deleted or replaced.
    pub fn doubt(&self, parent: &NamespacedName) {
        if self.caches.parent(parent).is_some() {
            self.state.memory_of(parent, |memory| memory.doubt.note());
        }
    }

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
    pub(crate) fn record_child(&self, parent: &NamespacedName, key: &ChildRef, object: DynamicObject) {
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
    pub(crate) fn record_parent(
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
        let others = &self.config.rules.other_namespaces;
        let mut all = watches.all();
        all.retain(|watch| {
            watch
                .namespace()
                .is_none_or(|namespace| others.contains(namespace))
        });
        all
    }
}
