//! What every pass of one controller can reach: handles, caches, and what is remembered of each parent.

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
use crate::cluster::cache::{Subscription, Watch, WatchState};
use crate::cluster::client::Writer;
use crate::cluster::discovery::Resource;
use crate::cluster::event_recorder::Events;
use crate::cluster::namespaces::Namespaces;
use crate::cluster::resource_client::ApiError;
use crate::config::{Allow, ControllerConfig};
use crate::desired::plan::{Plan, owns, retains};
use crate::desired::versions::{self, Used};
use crate::object::{ChildKey, GENERATED_LABEL, Identity, ObjectName, label};
use crate::plugin::contract::{EventType, Kind, Need};
use crate::plugin::registry::Live;
use crate::plugin::{Digest, Plugin};
use crate::work_queue::{Queue, Trigger};

/// The watches of one kind: one for all namespaces, or one for each that the configuration names.
#[derive(Default)]
pub struct KindWatches {
    everywhere: Option<Arc<Watch>>,
    by_namespace: RwLock<ByNamespace>,
}

/// Watches by the namespace that they see.
pub type ByNamespace = BTreeMap<String, Arc<Watch>>;

impl KindWatches {
    /// One watch over all namespaces, or of a cluster-scoped kind.
    #[must_use]
    pub fn everywhere(watch: Arc<Watch>) -> Self {
        Self {
            everywhere: Some(watch),
            by_namespace: RwLock::default(),
        }
    }

    /// One watch a namespace.
    #[must_use]
    pub fn by_namespace(watches: ByNamespace) -> Self {
        Self {
            everywhere: None,
            by_namespace: RwLock::new(watches),
        }
    }

    /// All of them.
    #[must_use]
    pub fn all(&self) -> Vec<Arc<Watch>> {
        let by_namespace = self.by_namespace.read().unwrap_or_else(PoisonError::into_inner);
        self.everywhere
            .iter()
            .chain(by_namespace.values())
            .cloned()
            .collect()
    }

    /// The one that sees a namespace; `None` when that namespace is not watched.
    #[must_use]
    pub fn of(&self, namespace: Option<&str>) -> Option<Arc<Watch>> {
        if self.everywhere.is_some() {
            return self.everywhere.clone();
        }
        let by_namespace = self.by_namespace.read().unwrap_or_else(PoisonError::into_inner);
        by_namespace.get(namespace?).cloned()
    }

    /// Those that there are a namespace; `None` when one sees all.
    #[must_use]
    pub fn namespaces(&self) -> Option<ByNamespace> {
        let by_namespace = self.by_namespace.read().unwrap_or_else(PoisonError::into_inner);
        self.everywhere.is_none().then(|| by_namespace.clone())
    }

    /// Passes see these from now on.
    pub fn replace(&self, watches: ByNamespace) {
        *self.by_namespace.write().unwrap_or_else(PoisonError::into_inner) = watches;
    }

    fn get(&self, name: &ObjectName) -> Option<Arc<DynamicObject>> {
        self.of(name.namespace.as_deref())?.get(name)
    }
}

/// What is wrong with a watch, in its own words.
fn failure(watch: &Watch) -> Option<String> {
    match watch.state_now() {
        WatchState::Failing(message) => Some(message),
        WatchState::Starting | WatchState::Synced => None,
    }
}

/// What is remembered of one parent between passes. Losing it costs a few needless requests, nothing else.
#[derive(Debug, Default)]
pub struct Memory {
    /// How many passes failed in a row.
    pub failures: u32,
    /// What the log last said about it, so that it is said once.
    pub said: Option<String>,
    /// The version of the plugin that was last asked about it.
    pub asked: Option<Digest>,
    /// What the plugin last asked to read.
    pub needs: Vec<Need>,
    /// The version in which that plugin named each child, where a child can be seen in several.
    pub versions: Used,
    /// The resource version that the last own write gave to each child, in whatever version of its kind.
    pub written: HashMap<Identity, u128>,
    /// The resource version that the last own write gave to the parent.
    pub parent_written: Option<u128>,
    /// Children whose live object does not say literally what was applied, though the API server took it: the
    /// fingerprints of what was applied and of what came of it.
    pub normalized: HashMap<ChildKey, (String, String)>,
    /// The same for the status.
    pub status_normalized: Option<(String, String)>,
    /// Whether the parent was looked at for traces of the controller's former names.
    pub handed_over: bool,
    /// Whether it was said that the parent waits for its cleanup.
    pub leaving: bool,
    /// Whether something shows that the parent may be gone or another one by now, such as a child that somebody else has
    /// deleted. It is read before the next child is created.
    pub parent_in_doubt: bool,
    /// Since when children of an earlier parent of this name are left.
    pub left_since: Option<Instant>,
    /// The newest generation that a child claims to be of and that the API server does not know, with the parent's UID.
    pub refuted_generation: Option<(String, i64)>,
    /// The span of the last pass, when it was sampled.
    pub last_span: Option<SpanContext>,
    /// Since when the API server has had no time for it, or was silent.
    pub bad_weather: Option<Instant>,
}

impl Memory {
    /// Whether a trigger is only the echo of what this controller wrote.
    ///
    /// A child at an older version than our last write of it is an echo too: the write's answer was newer and the
    /// plugin has seen it. The parent is different: a change of its spec just before our status write was
    /// not seen, so only the very version counts.
    #[must_use]
    pub fn is_echo(&self, trigger: &Trigger) -> bool {
        match trigger {
            Trigger::Child {
                child,
                version: Some(version),
            } => self
                .written
                .get(&child.identity())
                .is_some_and(|written| version <= written),
            Trigger::Parent {
                version: Some(version),
            } => self.parent_written == Some(*version),
            _ => false,
        }
    }
}

/// Whether two states of a parent differ in nothing but what a controller writes to it: status and finalizers.
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

/// See the module.
pub struct Context {
    /// The controller's configuration.
    pub config: Arc<ControllerConfig>,
    /// Reads what no cache has, whoever leads.
    pub client: Client,
    /// Writes the parent's status and finalizers: the host's own word.
    pub writer: Writer,
    /// Writes the children, in the name of the controller's ServiceAccount when it has one.
    pub children_writer: Writer,
    /// The parent's resource.
    pub resource: Arc<Resource>,
    /// The resources of the kinds that the plugin may make or read, as far as the cluster serves them.
    pub resources: BTreeMap<Kind, Arc<Resource>>,
    /// The custom resources.
    pub parents: KindWatches,
    /// What the plugin may make.
    pub children: BTreeMap<Kind, KindWatches>,
    /// What the plugin may read.
    pub reads: BTreeMap<Kind, KindWatches>,
    /// The plugin's live version.
    pub plugin: watch::Receiver<Live>,
    /// Where Events go.
    pub events: Events,
    /// Where it is said what this controller does.
    pub observer: Observer,
    /// Which parents hold a new version of the plugin back.
    pub blocking_parents: Arc<BlockingParents>,
    /// Which namespaces are being deleted.
    pub namespaces: Arc<Namespaces>,
    /// What proves which Secrets the host generated.
    pub provenance: Arc<Provenance>,
    /// The host's own namespace, when it runs in one.
    pub host_namespace: Option<Arc<str>>,
    /// Which parents to reconcile.
    pub queue: Arc<Queue>,
    /// What the controller remembers between reconciles.
    pub state: State,
}

/// What one controller remembers between reconciles. It begins empty.
#[derive(Default)]
pub struct State {
    /// What tells this controller of changes. It changes with the namespaces.
    pub(crate) subscriptions: watch::Sender<Vec<Subscription>>,
    memory: Mutex<HashMap<ObjectName, Memory>>,
    /// Objects that are not a parent's and stand where its plugin wants one, with the parents that wait for them to go.
    in_the_way: Mutex<HashMap<ChildKey, BTreeSet<ObjectName>>>,
}

impl Context {
    /// Puts an Event about a parent in line, with the version of the plugin that was last asked about it.
    pub fn publish(&self, parent: &DynamicObject, type_: EventType, reason: &str, note: &str) {
        let plugin = self.memory_of(&ObjectName::of(parent), |memory| memory.asked);
        self.events
            .publish(&self.config.name, plugin, parent, type_, reason, note);
    }

    /// The parent as last known.
    #[must_use]
    pub fn parent(&self, name: &ObjectName) -> Option<Arc<DynamicObject>> {
        self.parents.get(name)
    }

    /// The parent as it is now, which the pass may have written itself, but with the generation that the pass saw:
    /// that is the one its status speaks of. `None` when it is gone or another one has its name.
    pub(super) fn as_seen(&self, seen: &DynamicObject) -> Option<Arc<DynamicObject>> {
        let now = self.parent(&ObjectName::of(seen))?;
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

    /// What this parent owns or retains, sorted by API version, kind, namespace and name; each object once, in the
    /// version that suits the plugin.
    #[must_use]
    pub fn observed(&self, parent: &DynamicObject, plugin: &Plugin) -> Vec<Arc<DynamicObject>> {
        self.as_seen_by(plugin, &ObjectName::of(parent), self.owned(parent))
    }

    /// What this parent owns or retains in every version in which it is watched.
    #[must_use]
    pub fn owned(&self, parent: &DynamicObject) -> Vec<Arc<DynamicObject>> {
        let name = ObjectName::of(parent);
        let uid = parent.metadata.uid.as_deref().unwrap_or_default();
        let mut children = self.referring_to(uid, &name);
        let proof = self.provenance.proof();
        children
            .retain(|child| owns(&self.config, parent, child) || retains(&self.config, proof, parent, child));
        children
    }

    /// What refers to a parent, by owner reference or by annotation, in every version in which it is watched; not
    /// proved to be its.
    #[must_use]
    pub fn referring_to(&self, uid: &str, parent: &ObjectName) -> Vec<Arc<DynamicObject>> {
        let watches = self.children.values().flat_map(KindWatches::all);
        watches
            .flat_map(|watch| watch.referring_to(uid, parent))
            .collect()
    }

    /// Sees to it that it can be told whether the Secrets that say that they were generated for this parent were. Asks
    /// the API server once in the life of the process, and not before there is such a Secret. Who leads gives a writer.
    ///
    /// # Errors
    /// When it cannot.
    pub async fn know_generated(
        &self,
        parent: &DynamicObject,
        writer: Option<&Writer>,
    ) -> Result<(), ProvenanceError> {
        let name = ObjectName::of(parent);
        let uid = parent.metadata.uid.as_deref().unwrap_or_default();
        let is_marked = |watch: Arc<Watch>| {
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

    /// Whether a parent is in the host's own namespace, and must not be there: its children could take the host's
    /// ServiceAccount, and read its Secrets.
    #[must_use]
    pub fn is_beside_the_host(&self, parent: &DynamicObject) -> bool {
        parent.metadata.namespace.is_some()
            && parent.metadata.namespace.as_deref() == self.host_namespace.as_deref()
            && !self.config.allow.contains(&Allow::HostNamespace)
    }

    /// What to do about it.
    #[must_use]
    pub fn says_beside_the_host(&self) -> String {
        format!(
            "the namespace {:?} is the host's own: what a plugin makes there could use the host's ServiceAccount and read \
             its Secrets; put the {} into another namespace, or list `hostNamespace` under `allow` of the controller {:?}",
            self.host_namespace.as_deref().unwrap_or_default(),
            self.config.parent.kind,
            self.config.name
        )
    }

    /// Of the children of a parent each once, in the version that suits the plugin.
    #[must_use]
    pub fn as_seen_by(
        &self,
        plugin: &Plugin,
        parent: &ObjectName,
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

    /// Remembers in which version the plugin named each child. Whether that is news: then it has not seen them so.
    pub fn remember_versions(&self, parent: &ObjectName, plan: &Plan) -> bool {
        if !versions::overlap(self.children.keys()) {
            return false;
        }
        let used: Used = plan
            .keys()
            .filter_map(|key| Some((self.existing(key)?.metadata.uid.clone()?, key.kind.clone())))
            .collect();
        self.memory_of(parent, |memory| {
            let news = memory.versions != used;
            memory.versions = used;
            news
        })
    }

    /// One object of a kind that this controller may make, whoever owns it. What the watch of that version has not
    /// seen yet is looked for in the other versions.
    #[must_use]
    pub fn existing(&self, key: &ChildKey) -> Option<Arc<DynamicObject>> {
        let in_this_version = self.children.get(&key.kind).and_then(|it| it.get(&key.name));
        in_this_version.or_else(|| self.other_versions(&key.kind).find_map(|it| it.get(&key.name)))
    }

    /// The watches of the same kind in its other versions.
    fn other_versions<'a>(&'a self, kind: &'a Kind) -> impl Iterator<Item = &'a KindWatches> {
        let is_other =
            move |other: &Kind| other != kind && other.kind == kind.kind && other.group() == kind.group();
        self.children
            .iter()
            .filter(move |(other, _)| is_other(other))
            .map(|(_, watches)| watches)
    }

    /// What a need selects, sorted by name; `None` when its namespace is not watched.
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

    /// Puts the answer to a write into the cache, and remembers that the watch will repeat it.
    pub fn record_child(&self, parent: &ObjectName, key: &ChildKey, object: DynamicObject) {
        if let Some(version) = crate::object::version(&object) {
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

    /// Takes a deleted child out of the caches, in whatever versions it is there.
    pub fn forget_child(&self, key: &ChildKey, uid: &str) {
        let watches = self.children.get(&key.kind).into_iter();
        for watches in watches.chain(self.other_versions(&key.kind)) {
            if let Some(watch) = watches.of(key.name.namespace.as_deref()) {
                watch.forget(&key.name, uid);
            }
        }
    }

    /// What this controller wrote of a child is of no more use once the child is gone.
    pub fn forget_written(&self, parent: &ObjectName, key: &ChildKey) {
        if let Some(memory) = self.memory().get_mut(parent) {
            memory.written.remove(&key.identity());
            memory.normalized.remove(key);
        }
    }

    /// Something shows that the parent may be gone or another one by now.
    pub fn doubt(&self, parent: &ObjectName) {
        if self.parent(parent).is_some() {
            self.memory_of(parent, |memory| memory.parent_in_doubt = true);
        }
    }

    /// Puts the answer to a write of the parent into the cache, and remembers that the watch will repeat it.
    pub fn record_parent(&self, object: DynamicObject) -> Option<Arc<DynamicObject>> {
        let name = ObjectName::of(&object);
        // The answer also holds what others changed just before the write, and the watch will not tell of that
        // any more: the cache is ahead of it. Then it is news, not an echo.
        let echo = self
            .parent(&name)
            .is_some_and(|known| is_same_but_for_own_writes(&known, &object));
        self.memory_of(&name, |memory| {
            memory.parent_written = crate::object::version(&object).filter(|_| echo);
        });
        Some(self.parents.of(name.namespace.as_deref())?.record(object))
    }

    /// Why the plugin cannot be shown this parent and its children as they are, in the words of the watch that does not
    /// work. What the plugin may read is another matter: that is looked at when it asks.
    ///
    /// Of a kind whose watch has worked before it is known whether the parent has such children: it has none that the
    /// host did not make. Of one that was never listed it is not known, and they must not look missing. One that the
    /// cluster does not serve has no objects.
    #[must_use]
    pub fn watch_failure(&self, parent: &DynamicObject) -> Option<String> {
        let name = ObjectName::of(parent);
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

    /// Why nothing can be said of these objects, which a plugin wants to have: the watch that would show what is there
    /// does not work.
    #[must_use]
    pub fn watch_failure_of<'a>(&self, keys: impl Iterator<Item = &'a ChildKey>) -> Option<String> {
        keys.filter_map(|key| self.children.get(&key.kind)?.of(key.name.namespace.as_deref()))
            .find_map(|watch| failure(&watch))
    }

    /// Why what a need selects cannot be shown.
    #[must_use]
    pub fn watch_failure_of_read(&self, kind: &Kind, namespace: Option<&str>) -> Option<String> {
        failure(&*self.reads.get(kind)?.of(namespace)?)
    }

    /// Whether a first list is under way that this parent needs: what it has not shown yet would look missing.
    #[must_use]
    pub fn is_starting(&self, parent: &ObjectName) -> bool {
        let own = self.parents.of(parent.namespace.as_deref());
        let children = self.children.values();
        let others = children
            .chain(self.reads.values())
            .flat_map(|watches| self.watches_of_children(watches, parent));
        own.into_iter()
            .chain(others)
            .any(|watch| watch.state_now() == WatchState::Starting)
    }

    /// Of the watches of one kind those that may show children of a parent: in its own namespace; those of a
    /// cluster-scoped parent may be in the others that the configuration names.
    fn watches_of_children(&self, watches: &KindWatches, parent: &ObjectName) -> Vec<Arc<Watch>> {
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

    /// Whether the namespace of a parent is being deleted.
    #[must_use]
    pub fn is_namespace_going(&self, parent: &DynamicObject) -> bool {
        let namespace = parent.metadata.namespace.as_deref();
        namespace.is_some_and(|namespace| self.namespaces.is_terminating(namespace))
    }

    /// Whether something can be created under a name: not in a namespace that is being deleted.
    ///
    /// # Errors
    /// As if the API server had been asked.
    pub fn check_namespace(&self, key: &ChildKey) -> Result<(), ApiError> {
        match &key.name.namespace {
            Some(namespace) if self.namespaces.is_terminating(namespace) => {
                Err(ApiError::namespace_going(&key.kind.kind, &key.name))
            }
            _ => Ok(()),
        }
    }

    /// Remembers what a refusal says of a namespace.
    pub fn heard(&self, error: &ApiError) {
        if let (true, Some(namespace)) = (error.is_namespace_going(), &error.name.namespace) {
            self.namespaces.refused(namespace);
        }
    }

    /// Remembers what stands in the way of a parent, in place of what did before.
    pub fn set_in_the_way(&self, parent: &ObjectName, keys: Vec<ChildKey>) {
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

    /// The parents in whose way an object stands.
    #[must_use]
    pub fn waiting_for(&self, key: &ChildKey) -> Vec<ObjectName> {
        let in_the_way = self
            .state
            .in_the_way
            .lock()
            .unwrap_or_else(PoisonError::into_inner);
        in_the_way.get(key).into_iter().flatten().cloned().collect()
    }

    /// Looks at what is remembered of a parent, and may change it.
    pub fn memory_of<T>(&self, parent: &ObjectName, look: impl FnOnce(&mut Memory) -> T) -> T {
        let mut memory = self.memory();
        match memory.get_mut(parent) {
            Some(memory) => look(memory),
            None => look(memory.entry(parent.clone()).or_default()),
        }
    }

    /// The parent is gone.
    pub fn forget(&self, parent: &ObjectName) {
        self.memory().remove(parent);
        self.set_in_the_way(parent, Vec::new());
    }

    /// Nothing is known any more of parents outside of these namespaces.
    pub fn forget_outside(&self, namespaces: &BTreeSet<String>) {
        self.memory().retain(|parent, _| {
            parent
                .namespace
                .as_ref()
                .is_none_or(|namespace| namespaces.contains(namespace))
        });
    }

    /// Nothing is known of what happened to any parent since, but that some are in doubt.
    pub fn forget_all(&self) {
        let mut memory = self.memory();
        memory.retain(|_, memory| memory.parent_in_doubt);
        for memory in memory.values_mut() {
            *memory = Memory {
                parent_in_doubt: true,
                ..Memory::default()
            };
        }
    }

    /// Whether a trigger is only the echo of an own write.
    #[must_use]
    pub fn is_echo(&self, parent: &ObjectName, trigger: &Trigger) -> bool {
        self.memory()
            .get(parent)
            .is_some_and(|memory| memory.is_echo(trigger))
    }

    /// The parents whose plugin needs an object.
    #[must_use]
    pub fn parents_in_need_of(&self, kind: &Kind, object: &DynamicObject) -> Vec<ObjectName> {
        let memory = self.memory();
        let in_need = |parent: &ObjectName, memory: &Memory| {
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

    fn memory(&self) -> MutexGuard<'_, HashMap<ObjectName, Memory>> {
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

    /// Regression: the answer to a status write that also held a change of the spec was taken for an echo, and the
    /// change was not seen until the next resync.
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
