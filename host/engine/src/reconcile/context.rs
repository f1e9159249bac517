//! The state that all reconciles of one controller share: handles, caches, and the memory of each parent.

pub(super) mod contests;
mod memory;
mod needs;
pub(super) mod objects;
pub(super) mod pace;
mod watches;

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use jiff::SignedDuration;
use kube::Client;
use kube::core::DynamicObject;
use tokio::sync::watch;

pub use self::contests::Contests;
pub use self::memory::{FailureMemory, OwnWrites, ParentMemory};
use self::needs::Needs;
use super::observer::Observer;
use super::parent_conditions::ParentConditions;
use super::proof_key::{ProofKey, ProofKeyError};
use super::staged::Staged;
use crate::work_queue::Queue;
use operator_host_cluster::cache::{Reflector, Subscription};
use operator_host_cluster::client::Writer;
use operator_host_cluster::discovery::{Discovery, Resolved};
use operator_host_cluster::event_recorder::Events;
use operator_host_cluster::kind_reflectors::KindReflectors;
use operator_host_cluster::namespaces::Namespaces;
use operator_host_cluster::resource_client::ResourceClient;
use operator_host_config::{Allow, ControllerConfig};
use operator_host_contract::{EventType, Kind};
use operator_host_core::clock::now;
use operator_host_core::object::{ChildRef, GENERATED_LABEL, NamespacedName, label, shorten};
use operator_host_core::trace;
use operator_host_delivery::registry::Live;
use operator_host_desired::readiness::why_failed;

/// The shared state of one controller; see the module.
pub struct Context {
    /// The controller's configuration.
    pub config: Arc<ControllerConfig>,
    /// Reads objects that are in no cache, on leaders and standbys.
    pub client: Client,
    /// Writes the parent's status and finalizers, as the host itself.
    pub writer: Writer,
    /// Writes the children, as the controller's ServiceAccount if it has one.
    pub children_writer: Writer,
    /// Looks up kinds that the configuration does not list.
    pub kinds: Arc<Discovery>,
    /// How the cluster serves the kinds of the parents, of the children and of what the plugin may read.
    pub served: Resolved,
    /// The watches of the custom resources.
    pub parents: KindReflectors,
    /// The watches of the kinds that the plugin may create.
    pub children: BTreeMap<Kind, KindReflectors>,
    /// The watches of the kinds that the plugin may read.
    pub reads: BTreeMap<Kind, KindReflectors>,
    /// The plugin's live version.
    pub plugin: watch::Receiver<Live>,
    /// A newer version that some parents have already.
    pub staged: watch::Receiver<Option<Staged>>,
    /// Publishes Events.
    pub events: Events,
    /// Reports what this controller does.
    pub observer: Observer,
    /// The parents that hold back a new version of the plugin.
    pub blocking_parents: Arc<ParentConditions>,
    /// Tracks which namespaces are being deleted.
    pub namespaces: Arc<Namespaces>,
    /// Proves which Secrets the host generated.
    pub proof_key: Arc<ProofKey>,
    /// The host's own namespace, if it runs in one.
    pub host_namespace: Option<Arc<str>>,
    /// The parents to reconcile.
    pub queue: Arc<Queue>,
    /// What the controller remembers between reconciles.
    pub state: ControllerState,
}

/// What one controller remembers between reconciles. Initially empty.
#[derive(Default)]
pub struct ControllerState {
    /// The subscriptions to changes. They are replaced when the namespaces change.
    pub subscriptions: watch::Sender<Vec<Subscription>>,
    memory: Mutex<HashMap<NamespacedName, Box<ParentMemory>>>,
    /// What the plugin asked to read for each parent.
    pub needs: Needs,
    /// The parents with children of kinds that the configuration does not list any more.
    pub unlisted: ParentConditions,
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
        let plugin = self.memory_of(&name, |memory| memory.asked);
        if let Some(journal) = &self.observer.journal {
            let is_warning = type_ == EventType::Warning;
            journal.published(&name, is_warning, reason, note, trace::current().as_ref());
        }
        self.events.publish(plugin, parent, type_, reason, note);
    }

    /// Returns the requests for the parents, which the host sends as itself.
    pub(in crate::reconcile) fn own_requests(&self) -> ResourceClient<'_> {
        ResourceClient::new(&self.writer, &self.served.parent)
    }

    /// Returns the requests for the children of a kind, which the host sends as the controller's ServiceAccount if it has one;
    /// `None` when the cluster does not serve the kind.
    pub(in crate::reconcile) fn requests_for(&self, kind: &Kind) -> Option<ResourceClient<'_>> {
        let resource = self.served.others.get(kind)?;
        Some(ResourceClient::new(&self.children_writer, resource))
    }

    /// Returns the version of the plugin that a parent has.
    #[must_use]
    pub fn plugin_of(&self, parent: &DynamicObject) -> Live {
        match &*self.staged.borrow() {
            Some(staged) if staged.includes(parent) => Live::Plugin(staged.plugin.clone()),
            Some(_) | None => self.plugin.borrow().clone(),
        }
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
        let secrets = self.children.iter().filter(|(kind, _)| kind.kind == "Secret");
        if !self.proof_key.is_known() && secrets.flat_map(|(_, watches)| watches.all()).any(is_marked) {
            self.proof_key.load(writer).await?;
        }
        Ok(())
    }

    /// Returns what is wrong with a parent in the host's own namespace, which is not allowed: its children could use the
    /// host's ServiceAccount and read its Secrets.
    #[must_use]
    pub fn refuses_namespace(&self, parent: &DynamicObject) -> Option<String> {
        let namespace = parent.metadata.namespace.as_deref()?;
        let is_allowed = self.config.allow.contains(&Allow::HostNamespace);
        (!is_allowed && Some(namespace) == self.host_namespace.as_deref()).then(|| {
            format!(
                "the namespace {namespace:?} is the host's own: what a plugin creates there could use the host's \
                 ServiceAccount and read its Secrets; put the {} into another namespace, or list `hostNamespace` under \
                 `allow` of the controller {:?}",
                self.config.parent.kind, self.config.name
            )
        })
    }

    /// Forgets the own writes to a child after its deletion.
    pub fn forget_written(&self, parent: &NamespacedName, key: &ChildRef) {
        if let Some(memory) = self.memory().get_mut(parent) {
            memory.own_writes.children.remove(&key.identity());
            memory.unowned.remove(key);
            memory.contests.forget(key);
        }
    }

    /// Forgets which children are as applied although their managed fields do not show it: each is applied once more.
    pub fn forget_unowned(&self, parent: &NamespacedName) {
        if let Some(memory) = self.memory().get_mut(parent) {
            memory.unowned.clear();
        }
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
        let is_young = created.is_some_and(|created| now().duration_since(created) < limit);
        if is_young && self.has_parent(parent) {
            let why = removal_in_words(child);
            self.memory_of(parent, |memory| {
                memory.pace(key.identity()).removed(why);
            });
        }
    }

    /// Records that the parent may have been deleted or replaced.
    pub fn doubt(&self, parent: &NamespacedName) {
        if self.parent(parent).is_some() {
            self.memory_of(parent, |memory| memory.parent_in_doubt = true);
        }
    }

    /// Reads or changes the memory of a parent.
    pub fn memory_of<T>(&self, parent: &NamespacedName, look: impl FnOnce(&mut ParentMemory) -> T) -> T {
        let mut memory = self.memory();
        match memory.get_mut(parent) {
            Some(memory) => look(memory),
            None => look(memory.entry(parent.clone()).or_default()),
        }
    }

    /// Forgets a deleted parent.
    pub fn forget(&self, parent: &NamespacedName) {
        self.memory().remove(parent);
        self.state.needs.forget(parent);
    }

    /// Forgets all parents outside of these namespaces.
    pub fn forget_outside(&self, namespaces: &BTreeSet<String>) {
        let is_within = |parent: &NamespacedName| {
            let namespace = parent.namespace.as_ref();
            namespace.is_none_or(|namespace| namespaces.contains(namespace))
        };
        self.memory().retain(|parent, _| is_within(parent));
        self.state.needs.retain(is_within);
    }

    /// Forgets everything about all parents except which of them are in doubt.
    pub fn forget_all(&self) {
        self.state.needs.retain(|_| false);
        let mut memory = self.memory();
        memory.retain(|_, memory| memory.parent_in_doubt);
        for memory in memory.values_mut() {
            **memory = ParentMemory {
                parent_in_doubt: true,
                ..ParentMemory::default()
            };
        }
    }

    /// Returns the own writes of the reconcile that is done, and forgets them.
    #[must_use]
    pub fn take_own_writes(&self, parent: &NamespacedName) -> OwnWrites {
        let mut memory = self.memory();
        let memory = memory.get_mut(parent);
        memory
            .map(|memory| std::mem::take(&mut memory.own_writes))
            .unwrap_or_default()
    }

    fn memory(&self) -> MutexGuard<'_, HashMap<NamespacedName, Box<ParentMemory>>> {
        self.state.memory.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
