//! The state that all reconciles of one controller share: handles, caches, and the memory of each parent.

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, RwLock};

use kube::Client;
use kube::core::{DynamicObject, Selector};
use opentelemetry::trace::SpanContext;
use tokio::sync::watch;
use tokio::time::Instant;

use super::blocking_parents::BlockingParents;
use super::observer::Observer;
use super::provenance::{Provenance, ProvenanceError};
use crate::cluster::cache::{Reflector, Subscription, WatchState};
use crate::cluster::client::Writer;
use crate::cluster::discovery::ResolvedKind;
use crate::cluster::event_recorder::Events;
use crate::cluster::namespaces::Namespaces;
use crate::cluster::resource_client::ApiError;
use crate::config::{Allow, ControllerConfig};
use crate::desired::plan::{Plan, owns, retains};
use crate::desired::versions::{self, Used};
use crate::object::{ChildRef, GENERATED_LABEL, Identity, NamespacedName, label, version};
use crate::plugin::contract::{EventType, Kind, Need};
use crate::plugin::registry::Live;
use crate::plugin::{Digest, Plugin};
use crate::work_queue::{Queue, ReconcileReason};

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
    #[must_use]
    pub fn everywhere(watch: Arc<Reflector>) -> Self {
        Self {
            everywhere: Some(watch),
            by_namespace: RwLock::default(),
        }
    }

    /// Creates one watch per namespace.
    #[must_use]
    pub fn by_namespace(watches: ByNamespace) -> Self {
        Self {
            everywhere: None,
            by_namespace: RwLock::new(watches),
        }
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
    #[must_use]
    pub fn namespaces(&self) -> Option<ByNamespace> {
        let by_namespace = self.by_namespace.read().unwrap_or_else(PoisonError::into_inner);
        self.everywhere.is_none().then(|| by_namespace.clone())
    }

    /// Replaces the watches for later reconciles.
    pub fn replace(&self, watches: ByNamespace) {
        *self.by_namespace.write().unwrap_or_else(PoisonError::into_inner) = watches;
    }

    fn get(&self, name: &NamespacedName) -> Option<Arc<DynamicObject>> {
        self.of(name.namespace.as_deref())?.get(name)
    }
}

/// Returns the error of a watch, if it fails.
fn failure(watch: &Reflector) -> Option<String> {
    match watch.state_now() {
        WatchState::Failing(message) => Some(message),
        WatchState::Starting | WatchState::Synced => None,
    }
}

/// What the host remembers of one parent between reconciles. Losing it costs a few
/// needless requests, except for `parent_in_doubt`, which [`Context::forget_all`] keeps.
#[derive(Debug, Default)]
pub struct ParentMemory {
    /// Number of consecutive failures.
    pub failures: u32,
    /// The last message logged about it, so that it is logged once.
    pub last_logged: Option<String>,
    /// The plugin version that was last asked about it.
    pub asked: Option<Digest>,
    /// What the plugin last asked to read.
    pub needs: Vec<Need>,
    /// The version in which that plugin named each child, if a child can be seen in several.
    pub versions: Used,
    /// The resource version of the last own write to each child, in any version of its kind.
    pub written: HashMap<Identity, u128>,
    /// The resource versions that the last own writes gave to the parent, oldest first.
    pub parent_written: Vec<u128>,
    /// Children whose live object differs from the applied body although the API server accepted it: the
    /// fingerprints of the applied body and of the result.
    pub normalized: HashMap<ChildRef, (String, String)>,
    /// The same for the status.
    pub status_normalized: Option<(String, String)>,
    /// Whether the parent was checked for traces of the controller's former names.
    pub handed_over: bool,
    /// Whether it was reported that the parent waits for its cleanup.
    pub leaving: bool,
    /// Whether there is a sign that the parent was deleted or replaced, such as a child that somebody else deleted.
    /// The parent is read before the next child is created.
    pub parent_in_doubt: bool,
    /// Since when children of an earlier parent of this name have been left over.
    pub left_since: Option<Instant>,
    /// The newest generation that a child claims to be made from and that the API server does not have, with the
    /// parent's UID.
    pub refuted_generation: Option<(String, i64)>,
    /// The span of the last reconcile, if it was sampled.
    pub last_span: Option<SpanContext>,
    /// Since when the API server has been overloaded or silent for it.
    pub transient_since: Option<Instant>,
}

/// How many writes of the parent are remembered. One reconcile writes its finalizers and its status.
const PARENT_WRITES: usize = 4;

impl ParentMemory {
    /// Remembers the resource version that an own write gave to the parent, unless the response contains changes that
    /// others made just before and that the reconcile, which has seen `seen`, does not know.
    fn wrote_parent(&mut self, seen: &DynamicObject, answer: &DynamicObject) {
        if !is_same_but_for_own_writes(seen, answer) {
            self.parent_written.clear();
            return;
        }
        if seen.metadata.resource_version == answer.metadata.resource_version {
            // The write changed nothing. Somebody else's write has this version.
            return;
        }
        // The watch may repeat an earlier write after the response to a later one.
        self.parent_written.extend(version(answer));
        if self.parent_written.len() > PARENT_WRITES {
            self.parent_written.remove(0);
        }
    }

    /// Reports whether a reason is only the watch event for this controller's own write.
    ///
    /// A child's event with an older version than our last write is one, too: the write's response was newer, and
    /// the plugin has seen it. For the parent only the exact version counts, because the plugin has not seen a
    /// change of the spec that was made just before our status write.
    #[must_use]
    pub fn is_echo(&self, reason: &ReconcileReason) -> bool {
        match reason {
            ReconcileReason::Child {
                child,
                version: Some(version),
            } => self
                .written
                .get(&child.identity())
                .is_some_and(|written| version <= written),
            ReconcileReason::Parent {
                version: Some(version),
            } => self.parent_written.contains(version),
            _ => false,
        }
    }
}

/// Reports whether two states of a parent differ only in what a controller writes to it: status and finalizers.
fn is_same_but_for_own_writes(known: &DynamicObject, answer: &DynamicObject) -> bool {
    let essence = |object: &DynamicObject| {
        let mut metadata = object.metadata.clone();
        metadata.resource_version = None;
        metadata.managed_fields = None;
        metadata.finalizers = None;
        let mut data = object.data.clone();
        if let Some(data) = data.as_object_mut() {
            data.remove("status");
        }
        (metadata, data)
    };
    essence(known) == essence(answer)
}

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
    /// The parent's resource.
    pub resource: Arc<ResolvedKind>,
    /// The resources of the kinds that the plugin may create or read, as far as the cluster serves them.
    pub resources: BTreeMap<Kind, Arc<ResolvedKind>>,
    /// The watches of the custom resources.
    pub parents: KindReflectors,
    /// The watches of the kinds that the plugin may create.
    pub children: BTreeMap<Kind, KindReflectors>,
    /// The watches of the kinds that the plugin may read.
    pub reads: BTreeMap<Kind, KindReflectors>,
    /// The plugin's live version.
    pub plugin: watch::Receiver<Live>,
    /// Publishes Events.
    pub events: Events,
    /// Reports what this controller does.
    pub observer: Observer,
    /// The parents that hold back a new version of the plugin.
    pub blocking_parents: Arc<BlockingParents>,
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
    pub(crate) subscriptions: watch::Sender<Vec<Subscription>>,
    memory: Mutex<HashMap<NamespacedName, ParentMemory>>,
    /// Objects of others that exist where a plugin wants a child, with the parents that wait for their deletion.
    in_the_way: Mutex<HashMap<ChildRef, BTreeSet<NamespacedName>>>,
}

impl Context {
    /// Queues an Event about a parent, with the plugin version that was last asked about it.
    pub fn publish(&self, parent: &DynamicObject, type_: EventType, reason: &str, note: &str) {
        let plugin = self.memory_of(&NamespacedName::of(parent), |memory| memory.asked);
        self.events
            .publish(&self.config.name, plugin, parent, type_, reason, note);
    }

    /// Returns the parent as last known.
    #[must_use]
    pub fn parent(&self, name: &NamespacedName) -> Option<Arc<DynamicObject>> {
        self.parents.get(name)
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
    pub async fn know_generated(
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
    pub fn is_beside_the_host(&self, parent: &DynamicObject) -> bool {
        parent.metadata.namespace.is_some()
            && parent.metadata.namespace.as_deref() == self.host_namespace.as_deref()
            && !self.config.allow.contains(&Allow::HostNamespace)
    }

    /// Returns the error for such a parent, with advice.
    #[must_use]
    pub fn host_namespace_error(&self) -> String {
        format!(
            "the namespace {:?} is the host's own: what a plugin makes there could use the host's ServiceAccount and read \
             its Secrets; put the {} into another namespace, or list `hostNamespace` under `allow` of the controller {:?}",
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
        if !versions::overlap(self.children.keys()) {
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
        versions::once_each(children, &used, &plugin.description().makes)
    }

    /// Remembers in which version the plugin named each child. Returns whether that changed: then the plugin has
    /// not seen the children in those versions.
    pub fn remember_versions(&self, parent: &NamespacedName, plan: &Plan) -> bool {
        if !versions::overlap(self.children.keys()) {
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

    /// Returns an object of a kind that this controller may create, whether it owns it or not. If the watch of that version
    /// has not seen it yet, the other versions are searched.
    #[must_use]
    pub fn existing(&self, key: &ChildRef) -> Option<Arc<DynamicObject>> {
        let in_this_version = self.children.get(&key.kind).and_then(|it| it.get(&key.name));
        in_this_version.or_else(|| self.other_versions(&key.kind).find_map(|it| it.get(&key.name)))
    }

    /// Returns the watches of the same kind in its other versions.
    fn other_versions<'a>(&'a self, kind: &'a Kind) -> impl Iterator<Item = &'a KindReflectors> {
        let is_other =
            move |other: &Kind| other != kind && other.kind == kind.kind && other.group() == kind.group();
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
        let mut objects = watch.select(namespace, selector);
        if let Some(name) = name {
            objects.retain(|object| object.metadata.name.as_deref() == Some(name));
        }
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
            memory.normalized.remove(key);
        }
    }

    /// Records that the parent may have been deleted or replaced.
    pub fn doubt(&self, parent: &NamespacedName) {
        if self.parent(parent).is_some() {
            self.memory_of(parent, |memory| memory.parent_in_doubt = true);
        }
    }

    /// Stores the response to a write of the parent, and remembers its version to recognize the watch event for it.
    /// `seen` is the parent as the reconcile knows it.
    pub fn record_parent(&self, seen: &DynamicObject, answer: DynamicObject) -> Option<Arc<DynamicObject>> {
        let name = NamespacedName::of(seen);
        // The cache is not asked what was known: the watch may have delivered the result of the write already, with
        // a change of others that the reconcile has not seen.
        self.memory_of(&name, |memory| memory.wrote_parent(seen, &answer));
        Some(self.parents.of(name.namespace.as_deref())?.record(answer))
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
            .filter(|(kind, _)| self.resources.contains_key(kind));
        served
            .flat_map(|(_, watches)| self.watches_of_children(watches, &name))
            .filter(|watch| !watch.was_listed() || !watch.referring_to(uid, &name).is_empty())
            .find_map(|watch| failure(&watch))
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

    /// Reports whether a first list that this parent needs is not complete yet: objects that it has not returned
    /// would appear to be missing.
    #[must_use]
    pub fn is_starting(&self, parent: &NamespacedName) -> bool {
        let own = self.parents.of(parent.namespace.as_deref());
        let children = self.children.values();
        let others = children
            .chain(self.reads.values())
            .flat_map(|watches| self.watches_of_children(watches, parent));
        own.into_iter()
            .chain(others)
            .any(|watch| watch.state_now() == WatchState::Starting)
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
    pub fn is_namespace_going(&self, parent: &DynamicObject) -> bool {
        let namespace = parent.metadata.namespace.as_deref();
        namespace.is_some_and(|namespace| self.namespaces.is_terminating(namespace))
    }

    /// Checks that an object can be created, which is not possible in a namespace that is being deleted.
    ///
    /// # Errors
    /// The same error that the API server would return.
    pub fn check_namespace(&self, key: &ChildRef) -> Result<(), ApiError> {
        match &key.name.namespace {
            Some(namespace) if self.namespaces.is_terminating(namespace) => {
                Err(ApiError::namespace_going(&key.kind.kind, &key.name))
            }
            _ => Ok(()),
        }
    }

    /// Records a namespace that a refusal reports as terminating.
    pub fn record_refused_namespace(&self, error: &ApiError) {
        if let (true, Some(namespace)) = (error.is_namespace_going(), &error.name.namespace) {
            self.namespaces.refused(namespace);
        }
    }

    /// Replaces the objects that are recorded as blocking a parent.
    pub fn set_in_the_way(&self, parent: &NamespacedName, keys: Vec<ChildRef>) {
        let mut in_the_way = self
            .state
            .in_the_way
            .lock()
            .unwrap_or_else(PoisonError::into_inner);
        if keys.is_empty() && in_the_way.is_empty() {
            return;
        }
        in_the_way.retain(|_, parents| {
            parents.remove(parent);
            !parents.is_empty()
        });
        for key in keys {
            in_the_way.entry(key).or_default().insert(parent.clone());
        }
    }

    /// Returns the parents that an object blocks.
    #[must_use]
    pub fn waiting_for(&self, key: &ChildRef) -> Vec<NamespacedName> {
        let in_the_way = self
            .state
            .in_the_way
            .lock()
            .unwrap_or_else(PoisonError::into_inner);
        in_the_way.get(key).into_iter().flatten().cloned().collect()
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
        self.set_in_the_way(parent, Vec::new());
    }

    /// Forgets all parents outside of these namespaces.
    pub fn forget_outside(&self, namespaces: &BTreeSet<String>) {
        self.memory().retain(|parent, _| {
            parent
                .namespace
                .as_ref()
                .is_none_or(|namespace| namespaces.contains(namespace))
        });
    }

    /// Forgets everything about all parents except which of them are in doubt.
    pub fn forget_all(&self) {
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
    pub fn is_echo(&self, parent: &NamespacedName, reason: &ReconcileReason) -> bool {
        self.memory()
            .get(parent)
            .is_some_and(|memory| memory.is_echo(reason))
    }

    /// Returns the parents whose plugin needs an object.
    #[must_use]
    pub fn parents_in_need_of(&self, kind: &Kind, object: &DynamicObject) -> Vec<NamespacedName> {
        let memory = self.memory();
        let in_need = |parent: &NamespacedName, memory: &ParentMemory| {
            memory
                .needs
                .iter()
                .any(|need| crate::desired::selectors::selects(need, parent, kind, object))
        };
        memory
            .iter()
            .filter(|(parent, memory)| in_need(parent, memory))
            .map(|(parent, _)| parent.clone())
            .collect()
    }

    fn memory(&self) -> MutexGuard<'_, HashMap<NamespacedName, ParentMemory>> {
        self.state.memory.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn parent(generation: i64, replicas: u32, status: &str, deleted: Option<&str>) -> DynamicObject {
        serde_json::from_value(json!({
            "apiVersion": "a/v1", "kind": "K",
            "metadata": {
                "name": "a", "generation": generation, "resourceVersion": format!("{generation}0"),
                "deletionTimestamp": deleted, "finalizers": [status],
            },
            "spec": { "replicas": replicas }, "status": { "phase": status },
        }))
        .unwrap()
    }

    /// Regression: the response to a status write that also contained a change of the spec was treated as an own
    /// write, and the change was not noticed until the next resync.
    #[test]
    fn an_answer_with_a_change_of_somebody_else_is_no_echo() {
        let known = parent(1, 1, "old", None);
        assert!(is_same_but_for_own_writes(&known, &parent(1, 1, "new", None)));
        assert!(!is_same_but_for_own_writes(&known, &parent(2, 2, "new", None)));
        let deleted = parent(1, 1, "new", Some("2026-01-01T00:00:00Z"));
        assert!(!is_same_but_for_own_writes(&known, &deleted));
    }
}

#[cfg(test)]
mod model;
