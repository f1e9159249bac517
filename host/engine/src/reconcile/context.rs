//! The state that all reconciles of one controller share: handles, caches, and the memory of each parent.

mod caches;
mod cluster;
pub(super) mod conflicts;
mod memory;
mod needs;
mod objects;
pub(super) mod pace;
mod state;
mod unkept;
mod watches;

use std::sync::Arc;

use jiff::SignedDuration;
use kube::core::DynamicObject;

pub use self::caches::Caches;
pub(super) use self::caches::LiveChild;
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
use operator_host_config::ControllerConfig;
use operator_host_contract::EventType;
use operator_host_core::child_rules::Allow;
use operator_host_core::object::{ChildRef, GENERATED_LABEL, NamespacedName, label};
use operator_host_core::text::shorten;
use operator_host_desired::ownership::home;
use operator_host_desired::readiness::why_failed;
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
    let text = |field: &str| {
        child.data["status"][field]
            .as_str()
            .map(|text| shorten(text, 100))
    };
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
        let is_marked = |watch: Arc<Reflector>| {
            let referring = watch.referring_to(uid, &name);
            referring
                .iter()
                .any(|object| label(object, GENERATED_LABEL).is_some())
        };
        let secrets = self
            .caches
            .children
            .iter()
            .filter(|(kind, _)| kind.kind == "Secret");
        if !self.proof_key.is_known() && secrets.flat_map(|(_, watches)| watches.all()).any(is_marked) {
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
        let created = child
            .metadata
            .creation_timestamp
            .as_ref()
            .map(|created| created.0);
        let limit = if why_failed(child).is_some() {
            LIFETIME
        } else {
            MOMENTS
        };
        let now = self.cluster.writer.clock.now();
        let is_young = created.is_some_and(|created| now.duration_since(created) < limit);
        if is_young && self.caches.has_parent(parent) {
            let why = removal_in_words(child);
            self.state.memory_of(parent, |memory| {
                memory.pace(key.identity()).removed(why);
            });
        }
    }

    /// Records that the parent may have been deleted or replaced.
    pub fn doubt(&self, parent: &NamespacedName) {
        if self.caches.parent(parent).is_some() {
            self.state.memory_of(parent, |memory| memory.doubt.note());
        }
    }
}
