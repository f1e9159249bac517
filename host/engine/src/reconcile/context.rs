//! The state that all reconciles of one controller share: handles, caches, and the memory of each parent.

pub(super) mod contests;
mod memory;
mod needs;
pub(super) mod pace;

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use jiff::SignedDuration;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::ManagedFieldsEntry;
use kube::Client;
use kube::core::DynamicObject;
use serde_json::Value;
use tokio::sync::watch;

pub use self::contests::Contests;
pub use self::memory::{FailureMemory, Paced, ParentMemory};
use self::needs::Needs;
use super::observer::Observer;
use super::provenance_key::{Provenance, ProvenanceError};
use super::reasons::ParentReasons;
use super::staged::Staged;
use crate::work_queue::{Queue, ReconcileReason};
use operator_host_cluster::api_error::ApiError;
use operator_host_cluster::cache::{Reflector, Subscription, WatchState};
use operator_host_cluster::client::Writer;
use operator_host_cluster::discovery::{Discovery, ResolvedKind};
use operator_host_cluster::event_recorder::Events;
use operator_host_cluster::kind_reflectors::KindReflectors;
use operator_host_cluster::namespaces::Namespaces;
use operator_host_config::{Allow, ControllerConfig};
use operator_host_contract::{EventType, Kind};
use operator_host_core::clock::now;
use operator_host_core::object::{
    ChildRef, GENERATED_LABEL, NamespacedName, NotServed, Selector, kind_in_words, label, shorten, version,
};
use operator_host_core::trace;
use operator_host_delivery::registry::Live;
use operator_host_desired::api_versions::{self, Used};
use operator_host_desired::ownership::{leave_out_others, owns, retains};
use operator_host_desired::plan::Plan;
use operator_host_desired::readiness::why_failed;
use operator_host_runtime::Plugin;
use operator_host_schema::status::StatusFields;

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
    /// The parent's resource.
    pub resource: Arc<ResolvedKind>,
    /// What the schema of the parent's status has.
    pub status_fields: StatusFields,
    /// The resources of the kinds that the plugin may create or read, as far as the cluster serves them.
    pub resources: BTreeMap<Kind, Arc<ResolvedKind>>,
    /// Why the cluster does not serve the remaining ones.
    pub not_served: BTreeMap<Kind, NotServed>,
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
    pub blocking_parents: Arc<ParentReasons>,
    /// Tracks which namespaces are being deleted.
    pub namespaces: Arc<Namespaces>,
    /// Proves which Secrets the host generated.
    pub provenance: Arc<Provenance>,
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
    memory: Mutex<HashMap<NamespacedName, ParentMemory>>,
    /// What the plugin asked to read for each parent.
    pub needs: Needs,
    /// The parents with children of kinds that the configuration does not list any more.
    pub unlisted: ParentReasons,
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
            journal.published(name, is_warning, reason, note, trace::current().as_ref());
        }
        self.events.publish(plugin, parent, type_, reason, note);
    }

    /// Returns whether a kind that the plugin may create is namespaced.
    ///
    /// # Errors
    /// When the cluster does not serve it.
    pub fn namespaced(&self, kind: &Kind) -> Result<bool, NotServed> {
        let why = || self.not_served.get(kind).cloned();
        match self.resources.get(kind) {
            Some(resource) => Ok(resource.namespaced),
            None => Err(why().unwrap_or_else(|| NotServed::new(kind.clone()))),
        }
    }

    /// Returns the watches of the parents, the children and what is read.
    #[must_use]
    pub fn watches(&self) -> Vec<Arc<Reflector>> {
        let others = self.children.values().chain(self.reads.values());
        let all = std::iter::once(&self.parents).chain(others);
        all.flat_map(KindReflectors::all).collect()
    }

    /// Returns the version of the plugin that a parent has.
    #[must_use]
    pub fn plugin_of(&self, parent: &DynamicObject) -> Live {
        match &*self.staged.borrow() {
            Some(staged) if staged.includes(parent) => Live::Plugin(staged.plugin.clone()),
            Some(_) | None => self.plugin.borrow().clone(),
        }
    }

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
    pub(super) fn as_seen(&self, seen: &DynamicObject) -> Option<Arc<DynamicObject>> {
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

    /// Returns the children that this parent owns or retains, sorted by API version, kind, namespace and name; each
    /// object once, in the version that the plugin uses.
    #[must_use]
    pub fn observed(&self, parent: &DynamicObject, plugin: &Plugin) -> Vec<Arc<DynamicObject>> {
        self.as_seen_by(plugin, &NamespacedName::of(parent), self.owned(parent))
    }

    /// Returns the children that this parent owns or retains, in every watched version.
    #[must_use]
    pub fn owned(&self, parent: &DynamicObject) -> Vec<Arc<DynamicObject>> {
        let name = NamespacedName::of(parent);
        let uid = parent.metadata.uid.as_deref().unwrap_or_default();
        let mut children = self.referring_to(uid, &name);
        let proof = self.provenance.proof();
        children
            .retain(|child| owns(&self.config, parent, child) || retains(&self.config, proof, parent, child));
        leave_out_others(&self.config, parent, &mut children);
        children
    }

    /// Returns the objects that refer to a parent by owner reference or by annotation, in every watched version.
    /// Ownership is not verified.
    #[must_use]
    pub fn referring_to(&self, uid: &str, parent: &NamespacedName) -> Vec<Arc<DynamicObject>> {
        let watches = self.children.values().flat_map(KindReflectors::all);
        watches
            .flat_map(|watch| watch.referring_to(uid, parent))
            .collect()
    }

    /// Ensures that the proofs of the Secrets that claim to be generated for this parent can be checked. Reads the
    /// key at most once per process, and only if there is such a Secret. The leader passes a writer.
    ///
    /// # Errors
    /// When the key is not available.
    pub async fn load_provenance_key(
        &self,
        parent: &DynamicObject,
        writer: Option<&Writer>,
    ) -> Result<(), ProvenanceError> {
        let name = NamespacedName::of(parent);
        let uid = parent.metadata.uid.as_deref().unwrap_or_default();
        let is_marked = |watch: Arc<Reflector>| {
            let referring = watch.referring_to(uid, &name);
            referring
                .iter()
                .any(|object| label(object, GENERATED_LABEL).is_some())
        };
        let secrets = self.children.iter().filter(|(kind, _)| kind.kind == "Secret");
        if !self.provenance.is_known() && secrets.flat_map(|(_, watches)| watches.all()).any(is_marked) {
            self.provenance.load(writer).await?;
        }
        Ok(())
    }

    /// Reports whether a parent is in the host's own namespace, which is not allowed: its children could use the
    /// host's ServiceAccount and read its Secrets.
    #[must_use]
    pub fn is_in_host_namespace(&self, parent: &DynamicObject) -> bool {
        parent.metadata.namespace.is_some()
            && parent.metadata.namespace.as_deref() == self.host_namespace.as_deref()
            && !self.config.allow.contains(&Allow::HostNamespace)
    }

    /// Returns the error for such a parent, with advice.
    #[must_use]
    pub fn host_namespace_error(&self) -> String {
        format!(
            "the namespace {:?} is the host's own: what a plugin creates there could use the host's ServiceAccount and \
             read its Secrets; put the {} into another namespace, or list `hostNamespace` under `allow` of the controller {:?}",
            self.host_namespace.as_deref().unwrap_or_default(),
            self.config.parent.kind,
            self.config.name
        )
    }

    /// Returns each child of a parent once, in the version that the plugin uses.
    #[must_use]
    pub fn as_seen_by(
        &self,
        plugin: &Plugin,
        parent: &NamespacedName,
        children: Vec<Arc<DynamicObject>>,
    ) -> Vec<Arc<DynamicObject>> {
        if !api_versions::overlap(self.children.keys()) {
            return children;
        }
        let used = self.memory_of(parent, |memory| {
            let same_plugin = memory.asked.as_ref() == Some(plugin.digest());
            if same_plugin {
                memory.versions.clone()
            } else {
                Used::default()
            }
        });
        api_versions::once_each(children, &used, &plugin.description().makes)
    }

    /// Remembers in which version the plugin named each child. Returns whether that changed: then the plugin has
    /// not seen the children in those versions.
    pub fn remember_versions(&self, parent: &NamespacedName, plan: &Plan) -> bool {
        if !api_versions::overlap(self.children.keys()) {
            return false;
        }
        let used: Used = plan
            .keys()
            .filter_map(|key| Some((self.existing(key)?.metadata.uid.clone()?, key.kind.clone())))
            .collect();
        self.memory_of(parent, |memory| {
            let is_changed = memory.versions != used;
            memory.versions = used;
            is_changed
        })
    }

    /// Returns an object of a kind that this controller may create, whether it owns it or not. If the watch of that
    /// version has not seen it yet, the other versions are searched.
    #[must_use]
    pub fn existing(&self, key: &ChildRef) -> Option<Arc<DynamicObject>> {
        let watches = self.children.get(&key.kind).into_iter();
        let mut watches = watches.chain(self.other_versions(&key.kind));
        watches.find_map(|it| it.get(&key.name))
    }

    /// Does what [`Context::existing`] does, and returns the object's managed fields, too, if a host applied it.
    #[must_use]
    pub fn existing_managed(&self, key: &ChildRef) -> Option<(Arc<DynamicObject>, Vec<ManagedFieldsEntry>)> {
        let watches = self.children.get(&key.kind).into_iter();
        let mut watches = watches.chain(self.other_versions(&key.kind));
        watches.find_map(|it| it.of(key.name.namespace.as_deref())?.get_managed(&key.name))
    }

    /// Returns the watches of the same kind in its other versions.
    fn other_versions<'a>(&'a self, kind: &'a Kind) -> impl Iterator<Item = &'a KindReflectors> {
        let is_other = move |other: &Kind| other != kind && other.is_version_of(kind);
        self.children
            .iter()
            .filter(move |(other, _)| is_other(other))
            .map(|(_, watches)| watches)
    }

    /// Returns the objects that a need selects, sorted by name; `None` when its namespace is not watched.
    #[must_use]
    pub fn related(
        &self,
        kind: &Kind,
        namespace: Option<&str>,
        name: Option<&str>,
        selector: &Selector,
    ) -> Option<Vec<Arc<DynamicObject>>> {
        let watch = self.reads.get(kind)?.of(namespace)?;
        let Some(name) = name else {
            return Some(watch.select(namespace, selector));
        };
        let name = NamespacedName {
            namespace: namespace.map(str::to_owned),
            name: name.to_owned(),
        };
        let mut objects: Vec<_> = watch.get(&name).into_iter().collect();
        let labels = |object: &DynamicObject| object.metadata.labels.clone().unwrap_or_default();
        objects.retain(|object| selector.matches(&labels(object)));
        Some(objects)
    }

    /// Stores the result of a write in the cache, and remembers its version to recognize the watch event for it.
    pub fn record_child(&self, parent: &NamespacedName, key: &ChildRef, object: DynamicObject) {
        if let Some(version) = version(&object) {
            self.memory_of(parent, |memory| {
                memory.written.insert(key.identity(), version);
            });
        }
        let watch = self
            .children
            .get(&key.kind)
            .and_then(|watches| watches.of(key.name.namespace.as_deref()));
        if let Some(watch) = watch {
            watch.record(object);
        }
    }

    /// Removes a deleted child from the caches, in all versions.
    pub fn forget_child(&self, key: &ChildRef, uid: &str) {
        let watches = self.children.get(&key.kind).into_iter();
        for watches in watches.chain(self.other_versions(&key.kind)) {
            if let Some(watch) = watches.of(key.name.namespace.as_deref()) {
                watch.forget(&key.name, uid);
            }
        }
    }

    /// Forgets the own writes to a child after its deletion.
    pub fn forget_written(&self, parent: &NamespacedName, key: &ChildRef) {
        if let Some(memory) = self.memory().get_mut(parent) {
            memory.written.remove(&key.identity());
            memory.unowned.remove(key);
            memory.contests.forget(key);
        }
    }

    /// Forgets which children are as applied although nothing shows it: each is applied once more.
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
                memory.pace(Paced::Child(key.identity())).removed(why);
            });
        }
    }

    /// Records that the parent may have been deleted or replaced.
    pub fn doubt(&self, parent: &NamespacedName) {
        if self.parent(parent).is_some() {
            self.memory_of(parent, |memory| memory.parent_in_doubt = true);
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
            .filter(|(kind, _)| !self.not_served.contains_key(kind));
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

    /// Returns why the state of these objects, which a plugin wants to have, is unknown: the watch that would show
    /// them fails.
    #[must_use]
    pub fn watch_failure_of<'a>(&self, keys: impl Iterator<Item = &'a ChildRef>) -> Option<String> {
        keys.filter_map(|key| self.children.get(&key.kind)?.of(key.name.namespace.as_deref()))
            .find_map(|watch| failure(&watch))
    }

    /// Returns why the objects of a need cannot be shown.
    #[must_use]
    pub fn watch_failure_of_read(&self, kind: &Kind, namespace: Option<&str>) -> Option<String> {
        failure(&*self.reads.get(kind)?.of(namespace)?)
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
            *memory = ParentMemory {
                parent_in_doubt: true,
                ..ParentMemory::default()
            };
        }
    }

    /// Reports whether a reason is only the watch event for an own write.
    #[must_use]
    pub fn is_own_write(&self, parent: &NamespacedName, reason: &ReconcileReason) -> bool {
        self.memory()
            .get(parent)
            .is_some_and(|memory| memory.is_own_write(reason))
    }

    fn memory(&self) -> MutexGuard<'_, HashMap<NamespacedName, ParentMemory>> {
        self.state.memory.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Returns the error of a watch, if it fails.
fn failure(watch: &Reflector) -> Option<String> {
    match watch.state_now() {
        WatchState::Failing(message) => Some(message),
        WatchState::Starting | WatchState::Synced => None,
    }
}
