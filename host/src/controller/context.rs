//! What every pass of one controller can reach: handles, caches, and what is remembered of each parent.

use std::collections::{BTreeMap, HashMap};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use kube::Client;
use kube::core::{DynamicObject, Selector};
use opentelemetry::trace::SpanContext;
use tokio::sync::watch;

use super::children::{Plan, owns, retains};
use super::events::Events;
use super::kinds::Resource;
use super::object::{ChildKey, Identity, ObjectName};
use super::observer::Observer;
use super::proving::Proving;
use super::queue::{Queue, Trigger};
use super::versions::{self, Used};
use super::watches::{Watch, WatchState};
use crate::client::Writer;
use crate::config::ControllerConfig;
use crate::plugin::contract::{EventType, Kind, Need};
use crate::plugin::registry::Live;
use crate::plugin::{Digest, Plugin};

/// The watches of one kind: one for all namespaces, or one for each that the configuration names.
#[derive(Clone, Default)]
pub struct KindWatches {
    everywhere: Option<Arc<Watch>>,
    by_namespace: BTreeMap<String, Arc<Watch>>,
}

impl KindWatches {
    /// One watch over all namespaces, or of a cluster-scoped kind.
    #[must_use]
    pub fn everywhere(watch: Arc<Watch>) -> Self {
        Self {
            everywhere: Some(watch),
            by_namespace: BTreeMap::new(),
        }
    }

    /// One watch a namespace.
    #[must_use]
    pub fn by_namespace(watches: BTreeMap<String, Arc<Watch>>) -> Self {
        Self {
            everywhere: None,
            by_namespace: watches,
        }
    }

    /// All of them.
    pub fn iter(&self) -> impl Iterator<Item = &Arc<Watch>> {
        self.everywhere.iter().chain(self.by_namespace.values())
    }

    /// The one that sees a namespace; `None` when that namespace is not watched.
    #[must_use]
    pub fn of(&self, namespace: Option<&str>) -> Option<&Arc<Watch>> {
        self.everywhere
            .as_ref()
            .or_else(|| self.by_namespace.get(namespace?))
    }

    fn get(&self, name: &ObjectName) -> Option<Arc<DynamicObject>> {
        self.of(name.namespace.as_deref())?.get(name)
    }

    /// The first that does not work, in its own words.
    fn failure(&self) -> Option<String> {
        self.iter().find_map(|watch| match &*watch.state().borrow() {
            WatchState::Failing(message) => Some(message.clone()),
            WatchState::Starting | WatchState::Synced => None,
        })
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
    /// The newest generation that a child claims to be of and that the API server does not know, with the parent's UID.
    pub refuted_generation: Option<(String, i64)>,
    /// The span of the last pass, when it was sampled.
    pub last_span: Option<SpanContext>,
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
    /// What proves new versions of the plugin.
    pub proving: Arc<Proving>,
    /// Which parents to reconcile.
    pub queue: Arc<Queue>,
    memory: Mutex<HashMap<ObjectName, Memory>>,
}

/// The parts of a [`Context`] that come from outside.
pub struct Parts {
    /// See [`Context::config`].
    pub config: Arc<ControllerConfig>,
    /// See [`Context::client`].
    pub client: Client,
    /// See [`Context::writer`].
    pub writer: Writer,
    /// See [`Context::children_writer`].
    pub children_writer: Writer,
    /// See [`Context::resource`].
    pub resource: Arc<Resource>,
    /// See [`Context::resources`].
    pub resources: BTreeMap<Kind, Arc<Resource>>,
    /// See [`Context::parents`].
    pub parents: KindWatches,
    /// See [`Context::children`].
    pub children: BTreeMap<Kind, KindWatches>,
    /// See [`Context::reads`].
    pub reads: BTreeMap<Kind, KindWatches>,
    /// See [`Context::plugin`].
    pub plugin: watch::Receiver<Live>,
    /// See [`Context::events`].
    pub events: Events,
    /// See [`Context::observer`].
    pub observer: Observer,
    /// See [`Context::proving`].
    pub proving: Arc<Proving>,
}

impl Context {
    /// Nothing is remembered and nothing is queued yet.
    #[must_use]
    pub fn new(parts: Parts) -> Self {
        let Parts {
            config,
            client,
            writer,
            children_writer,
            resource,
            resources,
            parents,
            children,
            reads,
            plugin,
            events,
            observer,
            proving,
        } = parts;
        let queue = Arc::<Queue>::default();
        let gauge = Arc::downgrade(&queue);
        observer
            .metrics
            .queue(move || gauge.upgrade().map(|queue| queue.backlog()));
        let memory = Mutex::default();
        Self {
            config,
            client,
            writer,
            children_writer,
            resource,
            resources,
            parents,
            children,
            reads,
            plugin,
            events,
            observer,
            proving,
            queue,
            memory,
        }
    }

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
        let refers = |watch: &Arc<Watch>| watch.referring_to(uid, &name);
        let mut children: Vec<_> = Vec::new();
        for watches in self.children.values() {
            for watch in watches.iter() {
                children.extend(refers(watch));
            }
        }
        children.retain(|child| owns(&self.config, parent, child) || retains(&self.config, parent, child));
        children
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
        if let Some(version) = super::object::version(&object) {
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
    pub fn forget_child(&self, key: &ChildKey) {
        let watches = self.children.get(&key.kind).into_iter();
        for watches in watches.chain(self.other_versions(&key.kind)) {
            if let Some(watch) = watches.of(key.name.namespace.as_deref()) {
                watch.forget(&key.name);
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

    /// Puts the answer to a write of the parent into the cache, and remembers that the watch will repeat it.
    pub fn record_parent(&self, object: DynamicObject) -> Option<Arc<DynamicObject>> {
        let name = ObjectName::of(&object);
        // The answer also holds what others changed just before the write, and the watch will not tell of that
        // any more: the cache is ahead of it. Then it is news, not an echo.
        let echo = self
            .parent(&name)
            .is_some_and(|known| is_same_but_for_own_writes(&known, &object));
        self.memory_of(&name, |memory| {
            memory.parent_written = super::object::version(&object).filter(|_| echo);
        });
        Some(self.parents.of(name.namespace.as_deref())?.record(object))
    }

    /// The first watch that this controller needs and that does not work, in its own words.
    #[must_use]
    pub fn watch_failure(&self) -> Option<String> {
        self.children
            .values()
            .chain(self.reads.values())
            .find_map(KindWatches::failure)
    }

    /// Whether a first list is under way: what it has not shown yet would look missing.
    #[must_use]
    pub fn is_starting(&self) -> bool {
        let others = self.children.values().chain(self.reads.values());
        std::iter::once(&self.parents)
            .chain(others)
            .flat_map(KindWatches::iter)
            .any(|watch| *watch.state().borrow() == WatchState::Starting)
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
    }

    /// Nothing is known of what happened to any parent since.
    pub fn forget_all(&self) {
        self.memory().clear();
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
                .any(|need| super::needs::selects(need, parent, kind, object))
        };
        memory
            .iter()
            .filter(|(parent, memory)| in_need(parent, memory))
            .map(|(parent, _)| parent.clone())
            .collect()
    }

    fn memory(&self) -> MutexGuard<'_, HashMap<ObjectName, Memory>> {
        self.memory.lock().unwrap_or_else(PoisonError::into_inner)
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
