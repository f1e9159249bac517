//! Watches and the caches behind them: one a kind and scope in the whole process, shared by every controller
//! that needs it.
//!
//! The store is this module's own, because three things are needed that a reflector does not give: what a write
//! returned is put in at once, so that the next pass knows of it before the watch says so; objects that are nobody's
//! here are kept as metadata only; and any number of waiters can wait for the first list. So are the requests
//! (`follow`, `source`), because kube's `watcher` does not say that a watch goes on after a failure, waits for ever for
//! an answer that does not come, and loses the time that a `Retry-After` asks for.
//!
//! Invariants: an entry is never replaced by an older one; subscribers are told after the store has changed;
//! a watch that fails says so in its own state and in nobody else's; a trouble that passes by itself is no failure.

use std::collections::{BTreeSet, HashMap, HashSet};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, PoisonError, RwLock, Weak};

use kube::Client;
use kube::core::{DynamicObject, Selector, SelectorExt};
use tokio::sync::watch;
use tokio::task::JoinHandle;
use tracing::{info, warn};

use self::follow::run;
use self::source::Form;
use self::store::{Reference, Store};
use super::discovery::Kinds;
use crate::metrics::Metrics;
use crate::object::{CONTROLLER_LABEL, ObjectName, controller_of, label, slim, version};
use crate::plugin::contract::Kind;

mod follow;
mod source;
mod store;

/// How a watch is doing.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum WatchState {
    /// The first list is under way.
    Starting,
    /// The store holds what the API server last said.
    Synced,
    /// The API server refuses, or has not been there or had no time for a minute; the text says what and what to do.
    /// The store holds what it last said, if it ever did.
    Failing(String),
}

/// What happened to one object.
#[derive(Clone, Copy, Debug)]
pub struct Change<'a> {
    /// As it was known before; `None` when it is new.
    pub old: Option<&'a Arc<DynamicObject>>,
    /// As it is now; `None` when it is gone.
    pub new: Option<&'a Arc<DynamicObject>>,
}

/// Called from the watch's task, so it must be quick and must not block.
pub type Subscriber = Arc<dyn Fn(&Kind, Change<'_>) + Send + Sync>;

/// What of each kind is stored whole; of kinds that are not in it, only what has a controller's label.
pub type KeepPolicy = HashMap<Kind, Keep>;

/// What of one kind is stored whole, besides what has a controller's label.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Keep {
    /// Every object: it is a kind of parents, or plugins read it.
    pub all: bool,
    /// What parents of these kinds own, whatever its labels say.
    pub owned_by: BTreeSet<Kind>,
}

impl Keep {
    fn keeps_whole(&self, object: &DynamicObject) -> bool {
        self.all
            || label(object, CONTROLLER_LABEL).is_some()
            || controller_of(object).is_some_and(|owner| {
                let owner = Kind {
                    api_version: owner.api_version.clone(),
                    kind: owner.kind.clone(),
                };
                self.owned_by.contains(&owner)
            })
    }

    /// Whether a store that was filled under this policy lacks nothing that `wanted` asks for.
    fn covers(&self, wanted: &Self) -> bool {
        self.all || !wanted.all && wanted.owned_by.is_subset(&self.owned_by)
    }
}

#[derive(Clone, Debug, PartialEq, Eq, Hash)]
struct Scope {
    kind: Kind,
    /// `None`: all namespaces.
    namespace: Option<String>,
    form: Form,
}

/// All watches of the process.
pub struct Watches {
    client: Client,
    kinds: Arc<Kinds>,
    metrics: Arc<Metrics>,
    running: Mutex<Running>,
}

#[derive(Default)]
struct Running {
    keep: KeepPolicy,
    watches: HashMap<Scope, Weak<Watch>>,
}

impl Running {
    fn keep_of(&self, scope: &Scope) -> Keep {
        match scope.form {
            Form::Whole => self.keep.get(&scope.kind).cloned().unwrap_or_default(),
            // There is nothing to keep whole.
            Form::Metadata => Keep::default(),
        }
    }
}

impl Watches {
    /// Nothing is watched yet.
    #[must_use]
    pub fn new(client: Client, kinds: Arc<Kinds>, metrics: Arc<Metrics>) -> Self {
        Self {
            client,
            kinds,
            metrics,
            running: Mutex::default(),
        }
    }

    /// Stores whole what `policy` says from now on. A running watch that lacks something of it lists anew, and says
    /// that it is starting until it has.
    pub fn keep(&self, policy: KeepPolicy) {
        let mut running = self.running.lock().unwrap_or_else(PoisonError::into_inner);
        running.keep = policy;
        for (scope, watch) in &running.watches {
            if let Some(watch) = watch.upgrade() {
                watch.inner.keep(running.keep_of(scope));
            }
        }
    }

    /// The watch of a kind in one namespace, or in all; it runs as long as somebody holds it.
    pub fn watch(&self, kind: &Kind, namespace: Option<&str>) -> Arc<Watch> {
        self.watch_in(Scope {
            kind: kind.clone(),
            namespace: namespace.map(str::to_owned),
            form: Form::Whole,
        })
    }

    /// The watch of the metadata of all objects of a kind; it, too, runs as long as somebody holds it.
    pub fn watch_metadata(&self, kind: &Kind) -> Arc<Watch> {
        self.watch_in(Scope {
            kind: kind.clone(),
            namespace: None,
            form: Form::Metadata,
        })
    }

    fn watch_in(&self, scope: Scope) -> Arc<Watch> {
        let mut running = self.running.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(watch) = running.watches.get(&scope).and_then(Weak::upgrade) {
            return watch;
        }
        let keep = running.keep_of(&scope);
        let inner = Arc::new(Inner::new(scope.clone(), keep, Arc::clone(&self.metrics)));
        let task = tokio::spawn(run(
            Arc::clone(&inner),
            self.client.clone(),
            Arc::clone(&self.kinds),
        ));
        let watch = Arc::new(Watch { inner, task });
        running.watches.retain(|_, watch| watch.strong_count() > 0);
        running.watches.insert(scope, Arc::downgrade(&watch));
        watch
    }
}

/// One kind in one scope: its cache and its subscribers.
pub struct Watch {
    inner: Arc<Inner>,
    task: JoinHandle<()>,
}

impl Drop for Watch {
    fn drop(&mut self) {
        self.task.abort();
    }
}

/// Ends a subscription when it is dropped.
pub struct Subscription {
    inner: Weak<Inner>,
    subscriber: Subscriber,
}

impl Drop for Subscription {
    fn drop(&mut self) {
        if let Some(inner) = self.inner.upgrade() {
            inner
                .subscribers()
                .retain(|other| !Arc::ptr_eq(other, &self.subscriber));
        }
    }
}

impl Watch {
    /// How it is doing now and from now on.
    #[must_use]
    pub fn state(&self) -> watch::Receiver<WatchState> {
        self.inner.state.subscribe()
    }

    /// How it is doing at this moment.
    #[must_use]
    pub fn state_now(&self) -> WatchState {
        self.inner.state.borrow().clone()
    }

    /// Whether a list was ever complete: what is not in the store was not there then.
    #[must_use]
    pub fn was_listed(&self) -> bool {
        self.inner.was_listed.load(Ordering::Relaxed)
    }

    /// The namespace that it sees; `None` when it sees all.
    #[must_use]
    pub fn namespace(&self) -> Option<&str> {
        self.inner.scope.namespace.as_deref()
    }

    /// Calls `subscriber` for every change from now on. What is in the store already is not replayed.
    #[must_use]
    pub fn subscribe(&self, subscriber: Subscriber) -> Subscription {
        self.inner.subscribers().push(Arc::clone(&subscriber));
        Subscription {
            inner: Arc::downgrade(&self.inner),
            subscriber,
        }
    }

    /// One object as last known.
    #[must_use]
    pub fn get(&self, name: &ObjectName) -> Option<Arc<DynamicObject>> {
        self.inner.read().objects.get(name).cloned()
    }

    /// The names of all objects, in no order.
    #[must_use]
    pub fn names(&self) -> Vec<ObjectName> {
        self.inner.read().objects.keys().cloned().collect()
    }

    /// All objects, in no order.
    #[must_use]
    pub fn objects(&self) -> Vec<Arc<DynamicObject>> {
        self.inner.read().objects.values().cloned().collect()
    }

    /// What refers to a parent, by owner reference or by annotation, sorted by name; not yet proved to be its.
    #[must_use]
    pub fn referring_to(&self, uid: &str, parent: &ObjectName) -> Vec<Arc<DynamicObject>> {
        let store = self.inner.read();
        let by_uid = store.index.get(&Reference::Owner(uid.to_owned()));
        let by_annotation = store.index.get(&Reference::Annotation(parent.to_string()));
        let names: BTreeSet<&ObjectName> = by_uid.into_iter().chain(by_annotation).flatten().collect();
        names
            .into_iter()
            .filter_map(|name| store.objects.get(name).cloned())
            .collect()
    }

    /// The objects of a namespace (or of all) that a selector picks, sorted by name.
    #[must_use]
    pub fn select(&self, namespace: Option<&str>, selector: &Selector) -> Vec<Arc<DynamicObject>> {
        let store = self.inner.read();
        let empty = std::collections::BTreeMap::new();
        let mut picked: Vec<_> = store
            .objects
            .iter()
            .filter(|(name, _)| namespace.is_none() || name.namespace.as_deref() == namespace)
            .filter(|(_, object)| selector.matches(object.metadata.labels.as_ref().unwrap_or(&empty)))
            .collect();
        picked.sort_by_key(|(name, _)| *name);
        picked.into_iter().map(|(_, object)| Arc::clone(object)).collect()
    }

    /// Puts in what the API server answered to a write, unless the watch was faster. The subscribers are told now,
    /// and not again when the watch repeats it: whoever wrote knows its own by the resource version, the others
    /// must hear of it, since one controller's child may be another's parent.
    pub fn record(&self, object: DynamicObject) -> Arc<DynamicObject> {
        let object = self.inner.prepare(object);
        self.inner.put(&object);
        object
    }

    /// Takes out an object that the API server says is gone; one that has its name since then stays. The subscribers
    /// are told by the watch.
    pub fn forget(&self, name: &ObjectName, uid: &str) {
        let mut store = self.inner.write();
        let known = store.objects.get(name).cloned();
        let known = known.filter(|known| known.metadata.uid.as_deref() == Some(uid));
        store.remember_deletion(name.clone(), uid.to_owned(), known.as_deref().and_then(version));
        if known.is_some() {
            store.take(name);
        }
    }
}

struct Inner {
    scope: Scope,
    keep: watch::Sender<Keep>,
    metrics: Arc<Metrics>,
    store: RwLock<Store>,
    subscribers: Mutex<Vec<Subscriber>>,
    state: watch::Sender<WatchState>,
    was_listed: AtomicBool,
}

/// Whether `a` is certainly newer than `b`.
fn is_newer(a: &DynamicObject, b: &DynamicObject) -> bool {
    matches!((version(a), version(b)), (Some(a), Some(b)) if a > b)
}

/// Whether two are one object at one version, and as much of it.
fn is_the_same(a: &DynamicObject, b: &DynamicObject) -> bool {
    a.metadata.resource_version == b.metadata.resource_version
        && a.metadata.uid == b.metadata.uid
        && a.data.is_null() == b.data.is_null()
}

impl Inner {
    fn new(scope: Scope, keep: Keep, metrics: Arc<Metrics>) -> Self {
        Self {
            scope,
            keep: watch::Sender::new(keep),
            metrics,
            store: RwLock::default(),
            subscribers: Mutex::default(),
            state: watch::Sender::new(WatchState::Starting),
            was_listed: AtomicBool::new(false),
        }
    }

    fn read(&self) -> std::sync::RwLockReadGuard<'_, Store> {
        self.store.read().unwrap_or_else(PoisonError::into_inner)
    }

    fn write(&self) -> std::sync::RwLockWriteGuard<'_, Store> {
        self.store.write().unwrap_or_else(PoisonError::into_inner)
    }

    fn subscribers(&self) -> std::sync::MutexGuard<'_, Vec<Subscriber>> {
        self.subscribers.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn prepare(&self, mut object: DynamicObject) -> Arc<DynamicObject> {
        let kind = &self.scope.kind;
        let is_definition = kind.kind == "CustomResourceDefinition";
        slim(&mut object);
        if !self.keep.borrow().keeps_whole(&object) {
            object.data = serde_json::Value::Null;
            // What people want of a plugin stands on the definition of its kind.
            if let Some(annotations) = &mut object.metadata.annotations {
                annotations.retain(|key, _| is_definition && crate::object::is_order(key));
            }
        }
        // Lists leave the type out of their items.
        object.types.get_or_insert_with(|| kube::core::TypeMeta {
            api_version: kind.api_version.clone(),
            kind: kind.kind.clone(),
        });
        Arc::new(object)
    }

    /// Stores an object and tells the subscribers, unless the same or a newer one is known.
    fn put(&self, object: &Arc<DynamicObject>) {
        let name = ObjectName::of(object);
        let old = {
            let mut store = self.write();
            match store.objects.get(&name) {
                // A write of our own was faster.
                Some(known) if is_newer(known, object) || is_the_same(known, object) => return,
                None if store.is_deleted(&name, object) => return,
                _ => store.put(name, Arc::clone(object)),
            }
        };
        self.tell(Change {
            old: old.as_ref(),
            new: Some(object),
        });
    }

    fn deleted(&self, object: DynamicObject) {
        let object = self.prepare(object);
        let name = ObjectName::of(&object);
        let old = {
            let mut store = self.write();
            match store.objects.get(&name) {
                // It was made anew since.
                Some(known) if is_newer(known, &object) => return,
                _ => {
                    let uid = object.metadata.uid.clone().unwrap_or_default();
                    store.remember_deletion(name.clone(), uid, version(&object));
                    store.take(&name)
                }
            }
        };
        // A write of our own may have taken it out already: the change is news all the same.
        self.tell(Change {
            old: old.as_ref().or(Some(&object)),
            new: None,
        });
    }

    /// The list is complete: what it does not name is gone. An object that was written while the list was
    /// under way may be missing from it; dropping it costs one apply that changes nothing.
    fn listed(&self, names: &HashSet<ObjectName>) {
        let gone: Vec<_> = {
            let mut store = self.write();
            let gone: Vec<_> = store
                .objects
                .keys()
                .filter(|name| !names.contains(*name))
                .cloned()
                .collect();
            // Not remembered as deletions: the watch may still tell of one that the list was too early for.
            gone.iter().filter_map(|name| store.take(name)).collect()
        };
        self.was_listed.store(true, Ordering::Relaxed);
        for old in &gone {
            self.tell(Change {
                old: Some(old),
                new: None,
            });
        }
    }

    fn tell(&self, change: Change<'_>) {
        let subscribers = self.subscribers().clone();
        for subscriber in &subscribers {
            subscriber(&self.scope.kind, change);
        }
    }

    fn keep(&self, wanted: Keep) {
        let covered = self.keep.borrow().covers(&wanted);
        self.keep.send_replace(wanted);
        // After the policy, so that a list that ends just now cannot have the last word.
        if !covered {
            self.state.send_if_modified(|current| {
                let synced = *current == WatchState::Synced;
                if synced {
                    *current = WatchState::Starting;
                }
                synced
            });
        }
    }

    /// The store is as the API server says, unless more of the kind is needed by now.
    fn synced(&self, keep: &watch::Receiver<Keep>) {
        if matches!(*self.state.borrow(), WatchState::Failing(_)) {
            info!(kind = %self.scope.kind, namespace = self.scope.namespace, "watching again");
        }
        self.state.send_if_modified(|current| {
            let news = *current != WatchState::Synced && !keep.has_changed().unwrap_or(false);
            if news {
                *current = WatchState::Synced;
            }
            news
        });
    }

    fn fail(&self, message: String) {
        if *self.state.borrow() != WatchState::Failing(message.clone()) {
            warn!(kind = %self.scope.kind, namespace = self.scope.namespace, "cannot watch: {message}");
            self.state.send_replace(WatchState::Failing(message));
        }
    }
}

#[cfg(test)]
mod tests;
