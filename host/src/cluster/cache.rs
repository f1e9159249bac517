//! Watches and their caches. The process runs one watch per kind and scope and shares it among all controllers.
//!
//! This module has its own store because a reflector lacks three things: the result of a write is stored at once,
//! so that the next reconcile sees it before the watch delivers it; objects that no controller owns are kept as
//! metadata only; and any number of tasks can wait for the first list. It also sends its own requests (`follow`,
//! `requests`), because kube's `watcher` does not report that a watch has recovered after a failure, waits forever
//! for an answer that does not arrive, and discards the delay of a `Retry-After` header.
//!
//! Invariants: an entry is never replaced by an older one; subscribers are notified after the store has changed; a
//! failing watch affects only its own state; a transient error is not a failure.

use std::collections::{BTreeSet, HashMap, HashSet};
use std::panic::AssertUnwindSafe;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, PoisonError, RwLock, Weak};
use std::time::Duration;

use futures::FutureExt;
use kube::Client;
use kube::core::{DynamicObject, Selector, SelectorExt};
use tokio::sync::watch;
use tokio::task::JoinHandle;
use tracing::{error, info, warn};

use self::follow::run;
use self::requests::Form;
use self::store::{Reference, Store};
use super::discovery::Discovery;
use crate::metrics::Metrics;
use crate::object::{CONTROLLER_LABEL, GENERATED_LABEL, NamespacedName, controller_of, label, slim, version};
use crate::plugin::contract::Kind;

mod follow;
mod requests;
mod store;

/// The pause before a watch that panicked is run again.
const PAUSE_AFTER_PANIC: Duration = Duration::from_secs(1);

/// The state of a watch.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum WatchState {
    /// The first list is in progress.
    Starting,
    /// The store reflects the API server's latest answers.
    Synced,
    /// The API server refuses the request, or has been unreachable or overloaded for a minute. The text contains
    /// the error and what to do about it. The store keeps the last known objects, if there were any.
    Failing(String),
}

/// A change to one object.
#[derive(Clone, Copy, Debug)]
pub struct Change<'a> {
    /// The previously known state; `None` for a new object.
    pub old: Option<&'a Arc<DynamicObject>>,
    /// The current state; `None` for a deleted object.
    pub new: Option<&'a Arc<DynamicObject>>,
}

/// Callback for changes. It runs on the watch's task, so it must return quickly and must not block.
pub type Subscriber = Arc<dyn Fn(&Kind, Change<'_>) + Send + Sync>;

/// Defines which objects of each kind are stored in full. For kinds that are not listed, only objects with a
/// controller's label or with the label of a generated Secret are.
pub type KeepPolicy = HashMap<Kind, CachePolicy>;

/// Defines which objects of one kind are stored in full, in addition to those with a controller's label.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct CachePolicy {
    /// Store every object in full: parents have this kind, or plugins read it.
    pub all: bool,
    /// Store in full the objects that parents of these kinds own, regardless of their labels.
    pub owned_by: BTreeSet<Kind>,
}

impl CachePolicy {
    fn keeps_whole(&self, object: &DynamicObject) -> bool {
        self.all
            || label(object, CONTROLLER_LABEL).is_some()
            // Its annotations prove what the host generated, even if the other label was removed.
            || label(object, GENERATED_LABEL).is_some()
            || controller_of(object).is_some_and(|owner| {
                let owner = Kind {
                    api_version: owner.api_version.clone(),
                    kind: owner.kind.clone(),
                };
                self.owned_by.contains(&owner)
            })
    }

    /// Reports whether a store that was filled under this policy contains everything that `wanted` requires.
    fn covers(&self, wanted: &Self) -> bool {
        self.all || !wanted.all && wanted.owned_by.is_subset(&self.owned_by)
    }
}

/// What a store must have been filled under.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
struct Wanted {
    policy: CachePolicy,
    /// Counts the changes of the kind's schema. The API server sends no event for an object that has a new default
    /// value since.
    schema: u64,
}

impl Wanted {
    /// Reports whether a store that was filled under these contains everything that `wanted` requires.
    fn covers(&self, wanted: &Self) -> bool {
        self.schema == wanted.schema && self.policy.covers(&wanted.policy)
    }
}

#[derive(Clone, Debug, PartialEq, Eq, Hash)]
struct Scope {
    kind: Kind,
    /// `None` means all namespaces.
    namespace: Option<String>,
    form: Form,
}

/// All watches of the process.
pub struct SharedCache {
    client: Client,
    kinds: Arc<Discovery>,
    metrics: Arc<Metrics>,
    running: Mutex<Running>,
}

#[derive(Default)]
struct Running {
    keep: KeepPolicy,
    watches: HashMap<Scope, Weak<Reflector>>,
}

impl Running {
    fn keep_of(&self, scope: &Scope) -> CachePolicy {
        match scope.form {
            Form::Whole => self.keep.get(&scope.kind).cloned().unwrap_or_default(),
            // Metadata watches store nothing in full.
            Form::Metadata => CachePolicy::default(),
        }
    }
}

impl SharedCache {
    /// Creates an empty set of watches.
    #[must_use]
    pub fn new(client: Client, kinds: Arc<Discovery>, metrics: Arc<Metrics>) -> Self {
        Self {
            client,
            kinds,
            metrics,
            running: Mutex::default(),
        }
    }

    /// Sets the policy for which objects are stored in full. A running watch that lacks some of them lists again
    /// and reports `Starting` until it is done.
    pub fn keep(&self, policy: KeepPolicy) {
        let mut running = self.running.lock().unwrap_or_else(PoisonError::into_inner);
        running.keep = policy;
        for (scope, watch) in &running.watches {
            if let Some(watch) = watch.upgrade() {
                watch.inner.keep(running.keep_of(scope));
            }
        }
    }

    /// Lists the objects of a group again, whose definition has changed: they may have other default values.
    pub fn list_again(&self, group: &str) {
        let running = self.running.lock().unwrap_or_else(PoisonError::into_inner);
        let of_the_group = running
            .watches
            .iter()
            .filter(|(scope, _)| scope.kind.group() == group);
        for watch in of_the_group.filter_map(|(_, watch)| watch.upgrade()) {
            watch.inner.keep.send_modify(|wanted| wanted.schema += 1);
        }
    }

    /// Returns the watch of a kind in one namespace, or in all. It runs until the last handle is dropped.
    pub fn watch(&self, kind: &Kind, namespace: Option<&str>) -> Arc<Reflector> {
        self.watch_in(Scope {
            kind: kind.clone(),
            namespace: namespace.map(str::to_owned),
            form: Form::Whole,
        })
    }

    /// Returns the watch of the metadata of all objects of a kind. It runs until the last handle is dropped.
    pub fn watch_metadata(&self, kind: &Kind) -> Arc<Reflector> {
        self.watch_in(Scope {
            kind: kind.clone(),
            namespace: None,
            form: Form::Metadata,
        })
    }

    fn watch_in(&self, scope: Scope) -> Arc<Reflector> {
        let mut running = self.running.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(watch) = running.watches.get(&scope).and_then(Weak::upgrade) {
            return watch;
        }
        let keep = running.keep_of(&scope);
        let inner = Arc::new(Inner::new(scope.clone(), keep, Arc::clone(&self.metrics)));
        let task = tokio::spawn(run_for_ever(
            Arc::clone(&inner),
            self.client.clone(),
            Arc::clone(&self.kinds),
        ));
        let watch = Arc::new(Reflector { inner, task });
        running.watches.retain(|_, watch| watch.strong_count() > 0);
        running.watches.insert(scope, Arc::downgrade(&watch));
        watch
    }
}

/// Runs a watch again after a panic, which would otherwise leave its cache as it is, and apparently healthy.
async fn run_for_ever(inner: Arc<Inner>, client: Client, kinds: Arc<Discovery>) {
    loop {
        let running = run(Arc::clone(&inner), client.clone(), Arc::clone(&kinds));
        let Err(panic) = AssertUnwindSafe(running).catch_unwind().await;
        let text = panic
            .downcast_ref::<String>()
            .map(String::as_str)
            .or_else(|| panic.downcast_ref().copied())
            .unwrap_or_default();
        error!(kind = %inner.scope.kind, panic = text, "internal error: a watch panicked; watching again, please report it");
        tokio::time::sleep(PAUSE_AFTER_PANIC).await;
    }
}

/// The cache and the subscribers of one kind in one scope.
pub struct Reflector {
    inner: Arc<Inner>,
    task: JoinHandle<()>,
}

impl Drop for Reflector {
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

impl Reflector {
    /// Returns a receiver for the current state and every later one.
    #[must_use]
    pub fn state(&self) -> watch::Receiver<WatchState> {
        self.inner.state.subscribe()
    }

    /// Returns the current state.
    #[must_use]
    pub fn state_now(&self) -> WatchState {
        self.inner.state.borrow().clone()
    }

    /// Reports whether a list was ever completed. If so, an object that is not in the store did not exist at that
    /// time.
    #[must_use]
    pub fn was_listed(&self) -> bool {
        self.inner.was_listed.load(Ordering::Relaxed)
    }

    /// Returns the watched namespace; `None` for all.
    #[must_use]
    pub fn namespace(&self) -> Option<&str> {
        self.inner.scope.namespace.as_deref()
    }

    /// Calls `subscriber` for every later change. Objects already in the store are not replayed.
    #[must_use]
    pub fn subscribe(&self, subscriber: Subscriber) -> Subscription {
        self.inner.subscribers().push(Arc::clone(&subscriber));
        Subscription {
            inner: Arc::downgrade(&self.inner),
            subscriber,
        }
    }

    /// Returns one object as last known.
    #[must_use]
    pub fn get(&self, name: &NamespacedName) -> Option<Arc<DynamicObject>> {
        self.inner.read().objects.get(name).cloned()
    }

    /// Returns the names of all objects, in no particular order.
    #[must_use]
    pub fn names(&self) -> Vec<NamespacedName> {
        self.inner.read().objects.keys().cloned().collect()
    }

    /// Returns all objects, in no particular order.
    #[must_use]
    pub fn objects(&self) -> Vec<Arc<DynamicObject>> {
        self.inner.read().objects.values().cloned().collect()
    }

    /// Returns the objects that refer to a parent by owner reference or by annotation, sorted by name. The caller
    /// must still verify that the parent owns them.
    #[must_use]
    pub fn referring_to(&self, uid: &str, parent: &NamespacedName) -> Vec<Arc<DynamicObject>> {
        let store = self.inner.read();
        let by_uid = store.index.get(&Reference::Owner(uid.to_owned()));
        let by_annotation = store.index.get(&Reference::Annotation(parent.to_string()));
        let names: BTreeSet<&NamespacedName> = by_uid.into_iter().chain(by_annotation).flatten().collect();
        names
            .into_iter()
            .filter_map(|name| store.objects.get(name).cloned())
            .collect()
    }

    /// Returns the objects of a namespace (or of all) that match a selector, sorted by name.
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

    /// Stores the result of a write, unless the watch has already delivered it or a newer version. Subscribers are
    /// notified now, and not again when the watch delivers the same version. The writer recognizes its own change
    /// by the resource version; other controllers need the notification, since one controller's child may be
    /// another's parent.
    pub fn record(&self, object: DynamicObject) -> Arc<DynamicObject> {
        let object = self.inner.prepare(object);
        self.inner.put(&object);
        object
    }

    /// Removes an object that the API server reports as deleted; a new object of the same name stays. The watch
    /// notifies the subscribers.
    pub fn forget(&self, name: &NamespacedName, uid: &str) {
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
    keep: watch::Sender<Wanted>,
    metrics: Arc<Metrics>,
    store: RwLock<Store>,
    subscribers: Mutex<Vec<Subscriber>>,
    state: watch::Sender<WatchState>,
    was_listed: AtomicBool,
}

/// Reports whether `a` is certainly newer than `b`.
fn is_newer(a: &DynamicObject, b: &DynamicObject) -> bool {
    matches!((version(a), version(b)), (Some(a), Some(b)) if a > b)
}

/// Reports whether both are the same object at the same version, and equally complete.
fn is_the_same(a: &DynamicObject, b: &DynamicObject) -> bool {
    a.metadata.resource_version == b.metadata.resource_version
        && a.metadata.uid == b.metadata.uid
        && a.data.is_null() == b.data.is_null()
}

impl Inner {
    fn new(scope: Scope, keep: CachePolicy, metrics: Arc<Metrics>) -> Self {
        Self {
            scope,
            keep: watch::Sender::new(Wanted {
                policy: keep,
                schema: 0,
            }),
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
        // List responses omit the type of their items.
        object.types.get_or_insert_with(|| kube::core::TypeMeta {
            api_version: kind.api_version.clone(),
            kind: kind.kind.clone(),
        });
        slim(&mut object);
        if !self.keep.borrow().policy.keeps_whole(&object) {
            object.data = serde_json::Value::Null;
            // Promote and pin annotations are read from the definition of the kind.
            if let Some(annotations) = &mut object.metadata.annotations {
                annotations.retain(|key, _| is_definition && crate::object::is_order(key));
            }
        }
        Arc::new(object)
    }

    /// Stores an object and notifies the subscribers, unless the same or a newer version is known.
    fn put(&self, object: &Arc<DynamicObject>) {
        self.put_unless(object, |known| {
            is_newer(known, object) || is_the_same(known, object)
        });
    }

    /// Stores an object of a list at this version. The list contains everything up to that version, so a known object
    /// that only seems to be newer is of a cluster that was restored from a backup. The same version may have other
    /// content, after such a restoration, or since the schema has another default value.
    fn put_listed(&self, object: &Arc<DynamicObject>, list: Option<u128>) {
        self.put_unless(object, |known| {
            is_newer(known, object) && version(known) > list || known == &**object
        });
    }

    fn put_unless(&self, object: &Arc<DynamicObject>, is_needless: impl Fn(&DynamicObject) -> bool) {
        let name = NamespacedName::of(object);
        let old = {
            let mut store = self.write();
            match store.objects.get(&name) {
                // A write by this host was faster.
                Some(known) if is_needless(known) => return,
                None if store.is_deleted(&name, object) => return,
                _ => store.put(name, Arc::clone(object)),
            }
        };
        self.notify(Change {
            old: old.as_ref(),
            new: Some(object),
        });
    }

    fn deleted(&self, object: DynamicObject) {
        let object = self.prepare(object);
        let name = NamespacedName::of(&object);
        let old = {
            let mut store = self.write();
            match store.objects.get(&name) {
                // It has been recreated since.
                Some(known) if is_newer(known, &object) => return,
                _ => {
                    let uid = object.metadata.uid.clone().unwrap_or_default();
                    store.remember_deletion(name.clone(), uid, version(&object));
                    store.take(&name)
                }
            }
        };
        // A write by this host may have removed it already; notify the subscribers anyway.
        self.notify(Change {
            old: old.as_ref().or(Some(&object)),
            new: None,
        });
    }

    /// Returns the highest version of all known objects.
    fn newest(&self) -> Option<u128> {
        self.read()
            .objects
            .values()
            .filter_map(|object| version(object))
            .max()
    }

    /// Prepares for a list at a lower version than that of an object that was known when the list was requested: the
    /// cluster was restored from a backup. Every listed object then replaces the known one.
    ///
    /// An object that this host has written since may well be newer than the list. `has_gone_back` is set when the
    /// watch had a newer version, for example of a deletion.
    fn rewind_to(&self, list: Option<u128>, newest_before: Option<u128>, has_gone_back: bool) {
        if !has_gone_back && (list.is_none() || newest_before <= list) {
            return;
        }
        warn!(kind = %self.scope.kind, "the API server's objects are older than before: replacing those in the cache");
        self.write().rewind();
    }

    /// Removes every object that a complete list at this version does not contain. A newer object was written during
    /// the list; if it was deleted since, the watch from that version reports it.
    fn listed(&self, names: &HashSet<NamespacedName>, list: Option<u128>) {
        let gone: Vec<_> = {
            let mut store = self.write();
            let gone: Vec<_> = store
                .objects
                .iter()
                .filter(|(name, object)| {
                    !names.contains(*name) && (list.is_none() || version(object) <= list)
                })
                .map(|(name, _)| name.clone())
                .collect();
            // Do not record these as deletions: the watch may still deliver an object created after the list.
            gone.iter().filter_map(|name| store.take(name)).collect()
        };
        self.was_listed.store(true, Ordering::Relaxed);
        for old in &gone {
            self.notify(Change {
                old: Some(old),
                new: None,
            });
        }
    }

    fn notify(&self, change: Change<'_>) {
        let subscribers = self.subscribers().clone();
        for subscriber in &subscribers {
            subscriber(&self.scope.kind, change);
        }
    }

    fn keep(&self, policy: CachePolicy) {
        let covered = self.keep.borrow().policy.covers(&policy);
        self.keep.send_modify(|wanted| wanted.policy = policy);
        // Set the state after the policy, so that a list that ends now cannot override it.
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

    /// Marks the watch as synced, unless more of the kind is needed by now.
    fn synced(&self, keep: &watch::Receiver<Wanted>) {
        if matches!(*self.state.borrow(), WatchState::Failing(_)) {
            info!(kind = %self.scope.kind, namespace = self.scope.namespace, "watching again");
        }
        self.state.send_if_modified(|current| {
            let is_changed = *current != WatchState::Synced && !keep.has_changed().unwrap_or(false);
            if is_changed {
                *current = WatchState::Synced;
            }
            is_changed
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
