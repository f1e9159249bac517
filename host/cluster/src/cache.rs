//! Watches and their caches. The process runs one watch per kind and scope and shares it among all controllers.
//!
//! This module has its own store because a reflector lacks three things: the result of a write is stored at once,
//! so that the next reconcile sees it before the watch delivers it; objects that no controller owns are kept as
//! metadata only; and any number of tasks can wait for the first list. It also sends its own requests (`follow`,
//! `requests`), because kube's `watcher` does not report that a watch has recovered after a failure, waits forever
//! for an answer that does not arrive, reads an answer without limit, and discards the delay of a `Retry-After` header.
//!
//! It holds objects as text (`text`) and makes a tree of one when somebody looks at it (`trees`).
//!
//! Invariants: an entry is never replaced by an older one, unless the API server itself has gone back; subscribers are
//! notified after the store has changed; a failing watch affects only its own state; a transient error is not a failure.

use std::cell::OnceCell;
use std::collections::{BTreeSet, HashMap, HashSet};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, PoisonError, RwLock, Weak};
use std::time::Duration;

use k8s_openapi::apimachinery::pkg::apis::meta::v1::{ManagedFieldsEntry, OwnerReference};
use kube::Client;
use kube::core::DynamicObject;
use tokio::sync::watch;
use tokio_util::task::AbortOnDropHandle;
use tracing::{error, info, warn};

use self::first_lists::FirstLists;
use self::follow::run;
use self::packed::Samples;
use self::read::Head;
use self::requests::Form;
use self::store::Store;
pub use self::subscribers::{Interest, Subscriber, Subscription};
use self::subscribers::{Subscribers, met};
pub use self::text::Managed;
use self::text::{Cached, Owner, Taken, Text};
use self::trees::Trees;
use super::discovery::Discovery;
use operator_host_contract::Kind;
use operator_host_core::managed_fields::{is_apply_of, is_only_status};
use operator_host_core::object::{
    CONTROLLER_LABEL, GENERATED_LABEL, NamespacedName, Selector, controller_of, controller_of_entry,
    is_namespace, is_reference_to, label, maker, secret, slim, version,
};
use operator_host_core::sync::lock;
use operator_host_core::text::{printable, shorten};
use operator_host_telemetry::metrics::Metrics;

pub(super) use self::read::Whole;

mod first_lists;
mod follow;
pub mod fuzzing;
mod packed;
mod page;
mod read;
mod requests;
mod store;
mod subscribers;
#[cfg(any(test, feature = "testing"))]
pub mod testing;
mod text;
mod trees;

/// Longest reason why a list failed, in bytes.
const LIST_ERROR: usize = 1024;
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
pub struct Change<'a> {
    old: Option<Old<'a>>,
    new: Option<&'a Arc<DynamicObject>>,
    is_same: bool,
}

/// The state of an object before a change. Nobody looks at most of them.
struct Old<'a> {
    inner: &'a Inner,
    name: &'a NamespacedName,
    kept: &'a Cached,
    tree: OnceCell<Arc<DynamicObject>>,
}

impl<'a> Change<'a> {
    /// Returns the previously known state; `None` for a new object.
    pub fn before(&self) -> Option<&Arc<DynamicObject>> {
        let old = self.old.as_ref()?;
        Some(old.tree.get_or_init(|| old.inner.tree(old.name, old.kept)))
    }

    /// Returns the current state; `None` for a deleted object.
    pub const fn after(&self) -> Option<&'a Arc<DynamicObject>> {
        self.new
    }

    /// Returns the version of the previously known state; `None` when there is none.
    pub fn old_version(&self) -> Option<u128> {
        self.old.as_ref()?.kept.version()
    }

    /// Returns the current state, or the last one of a deleted object.
    pub fn object(&self) -> Option<&Arc<DynamicObject>> {
        self.new.or_else(|| self.before())
    }

    /// Returns both states.
    pub fn both(&self) -> impl Iterator<Item = &Arc<DynamicObject>> {
        self.before().into_iter().chain(self.new)
    }

    /// Reports whether the object is new.
    pub const fn is_new(&self) -> bool {
        self.old.is_none()
    }

    /// Reports whether both states are equal, except for the resource version. The caches do not hold the values of a
    /// generated Secret: only its resource version shows that one has changed.
    pub const fn is_same(&self) -> bool {
        self.is_same
    }
}

/// Defines which objects of each kind are stored in full. For kinds that are not listed, only objects with a
/// controller's label or with the label of a generated Secret are. Of all others only the name, UID, version and owner are
/// kept.
pub type KeepPolicy = HashMap<Kind, CachePolicy>;

/// Defines which objects of one kind are stored in full, in addition to those with a controller's label.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct CachePolicy {
    /// Store every object in full: parents have this kind, or plugins read it.
    pub all: bool,
    /// Store in full the objects that parents of these kinds own, whichever version of the parent's kind the reference
    /// names, and whatever labels the objects have.
    pub owned_by: BTreeSet<Kind>,
}

impl CachePolicy {
    fn keeps_whole(&self, object: &DynamicObject) -> bool {
        self.all
            || maker(object).is_some()
            // Its annotations prove what the host generated, even if the other label was removed.
            || label(object, GENERATED_LABEL).is_some()
            || controller_of(object)
                .is_some_and(|owner| self.owned_by.iter().any(|kind| is_reference_to(kind, owner)))
    }

    /// Reports whether a store that was filled under this policy contains everything that `wanted` requires.
    fn covers(&self, wanted: &Self) -> bool {
        self.all || !wanted.all && wanted.owned_by.is_subset(&self.owned_by)
    }
}

/// The policy and the schema with which a store must have been filled.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
struct Wanted {
    policy: CachePolicy,
    /// Counts the changes of the kind's schema. The API server sends no event for an object that has a new default
    /// value after such a change.
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
    trees: Arc<Trees>,
    first_lists: Arc<FirstLists>,
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
            // A plugin may choose namespaces by their labels.
            Form::Metadata => CachePolicy {
                all: is_namespace(&scope.kind),
                ..CachePolicy::default()
            },
        }
    }
}

impl SharedCache {
    /// Creates an empty set of watches.
    pub fn new(client: Client, kinds: Arc<Discovery>, metrics: Arc<Metrics>) -> Self {
        Self {
            client,
            kinds,
            metrics,
            trees: Arc::default(),
            first_lists: Arc::default(),
            running: Mutex::default(),
        }
    }

    /// Sets the policy for which objects are stored in full. A running watch that lacks some of them lists again
    /// and reports `Starting` until it is done.
    pub fn keep(&self, policy: KeepPolicy) {
        let mut running = lock(&self.running);
        running.keep = policy;
        for (scope, watch) in &running.watches {
            if let Some(watch) = watch.upgrade() {
                watch.inner.keep(running.keep_of(scope));
            }
        }
    }

    /// Lists the objects of a group again after one of its definitions has changed: they may have other default values.
    pub fn list_again(&self, group: &str) {
        let running = lock(&self.running);
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
        self.watch_in(kind, namespace, Form::Whole)
    }

    /// Returns the watch of the metadata of all objects of a kind. It runs until the last handle is dropped.
    pub fn watch_metadata(&self, kind: &Kind) -> Arc<Reflector> {
        self.watch_in(kind, None, Form::Metadata)
    }

    fn watch_in(&self, kind: &Kind, namespace: Option<&str>, form: Form) -> Arc<Reflector> {
        let scope = Scope {
            kind: kind.clone(),
            namespace: namespace.map(str::to_owned),
            form,
        };
        let mut running = lock(&self.running);
        if let Some(watch) = running.watches.get(&scope).and_then(Weak::upgrade) {
            return watch;
        }
        let keep = running.keep_of(&scope);
        let (metrics, trees) = (Arc::clone(&self.metrics), Arc::clone(&self.trees));
        let inner = Arc::new(Inner::new(scope.clone(), keep, metrics, trees));
        let task = tokio::spawn(run_for_ever(
            Arc::clone(&inner),
            self.client.clone(),
            Arc::clone(&self.kinds),
            Arc::clone(&self.first_lists),
        ));
        let watch = Arc::new(Reflector {
            inner,
            _task: AbortOnDropHandle::new(task),
        });
        running.watches.retain(|_, watch| watch.strong_count() > 0);
        running.watches.insert(scope, Arc::downgrade(&watch));
        watch
    }
}

/// Runs a watch again after a panic, which would otherwise leave its cache as it is, and apparently healthy.
async fn run_for_ever(
    inner: Arc<Inner>,
    client: Client,
    kinds: Arc<Discovery>,
    first_lists: Arc<FirstLists>,
) {
    loop {
        let (inner, first_lists) = (Arc::clone(&inner), Arc::clone(&first_lists));
        let kind = inner.scope.kind.clone();
        let running = tokio::spawn(run(inner, client.clone(), Arc::clone(&kinds), first_lists));
        let Err(panic) = AbortOnDropHandle::new(running).await;
        error!(%kind, %panic, "internal error: a watch panicked; watching again, please report it");
        tokio::time::sleep(PAUSE_AFTER_PANIC).await;
    }
}

/// The cache and the subscribers of one kind in one scope.
pub struct Reflector {
    inner: Arc<Inner>,
    _task: AbortOnDropHandle<()>,
}

impl Reflector {
    /// Returns a receiver for the current state and every later one.
    pub fn state(&self) -> watch::Receiver<WatchState> {
        self.inner.state.subscribe()
    }

    /// Returns the current state.
    pub fn state_now(&self) -> WatchState {
        self.inner.state.borrow().clone()
    }

    /// Returns a receiver for the reason why the last list failed, with the kind; `None` once one is complete.
    pub fn list_error(&self) -> watch::Receiver<Option<String>> {
        self.inner.list_error.subscribe()
    }

    /// Reports whether a list was ever completed. If so, an object that is not in the store did not exist at that
    /// time.
    pub fn was_listed(&self) -> bool {
        self.inner.was_listed.load(Ordering::Relaxed)
    }

    /// Reports whether the watched namespace is known not to exist, so that nothing can be in it.
    pub fn lacks_namespace(&self) -> bool {
        self.inner.lacks_namespace.load(Ordering::Relaxed)
    }

    /// Returns the watched kind.
    pub fn kind(&self) -> &Kind {
        &self.inner.scope.kind
    }

    /// Returns the watched namespace; `None` for all.
    pub fn namespace(&self) -> Option<&str> {
        self.inner.scope.namespace.as_deref()
    }

    /// Calls `subscriber` for every later change. Objects already in the store are not replayed.
    #[must_use]
    pub fn subscribe(&self, subscriber: Subscriber) -> Subscription {
        self.subscribe_to(vec![Interest::All], subscriber)
    }

    /// Calls `subscriber` for every later change of the objects of interest, once per change.
    #[must_use]
    pub fn subscribe_to(&self, interests: Vec<Interest<'static>>, subscriber: Subscriber) -> Subscription {
        let id = lock(&self.inner.subscribers).add(&interests, subscriber);
        Subscription {
            inner: Arc::downgrade(&self.inner),
            id,
            interests,
        }
    }

    /// Returns one object as last known.
    pub fn get(&self, name: &NamespacedName) -> Option<Arc<DynamicObject>> {
        let kept = self.inner.read().get(name)?;
        Some(self.inner.tree(name, &kept))
    }

    /// Returns one object as last known, with its managed fields if a host applied it.
    pub fn get_managed(&self, name: &NamespacedName) -> Option<(Arc<DynamicObject>, Managed)> {
        let kept = self.inner.read().get(name)?;
        Some((self.inner.tree(name, &kept), kept.managed()))
    }

    /// Returns the names of the objects that a manager has applied fields of.
    #[must_use]
    pub fn applied_by(&self, manager: &str) -> Vec<NamespacedName> {
        // The store is not locked while texts are read: that takes long for many objects.
        let texts: Vec<_> = {
            let store = self.inner.read();
            let texts = store.texts();
            texts
                .map(|(name, text)| (Arc::clone(name), Arc::clone(text)))
                .collect()
        };
        let is_applied = |text: &Text| {
            text.managed_fields()
                .iter()
                .any(|entry| is_apply_of(entry, manager))
        };
        let applied = texts.into_iter().filter(|(_, text)| is_applied(text));
        applied.map(|(name, _)| NamespacedName::clone(&name)).collect()
    }

    /// Reports whether an object is known.
    pub fn contains(&self, name: &NamespacedName) -> bool {
        self.inner.read().get(name).is_some()
    }

    /// Returns the number of objects.
    pub fn count(&self) -> usize {
        self.inner.read().count()
    }

    /// Returns the names of all objects, in no particular order.
    pub fn names(&self) -> Vec<NamespacedName> {
        self.inner.read().iter().map(|(name, _)| name).collect()
    }

    /// Returns the controller owners of the objects that concern the host, in no particular order: each with the
    /// namespaces of its dependents.
    pub fn owners(&self) -> Vec<(OwnerReference, BTreeSet<Option<String>>)> {
        self.inner.read().owners()
    }

    /// Returns the objects that refer to a parent by owner reference or by annotation, sorted by name. The caller
    /// must still verify that the parent owns them.
    pub fn referring_to(&self, uid: &str, parent: &NamespacedName) -> Vec<Arc<DynamicObject>> {
        let found = self.inner.read().referring_to(uid, &parent.to_string());
        let trees = found.into_iter();
        trees
            .map(|(name, text)| self.inner.tree(&name, &Cached::Text(text)))
            .collect()
    }

    /// Returns the objects of a namespace (or of all) that match a selector, sorted by name.
    pub fn select(&self, namespace: Option<&str>, selector: &Selector) -> Vec<Arc<DynamicObject>> {
        // The store is not locked while labels are read: that takes long for many objects.
        let mut picked: Vec<_> = {
            let store = self.inner.read();
            let texts = store.texts();
            texts
                .filter(|(name, _)| namespace.is_none() || name.namespace.as_deref() == namespace)
                .map(|(name, text)| (Arc::clone(name), Arc::clone(text)))
                .collect()
        };
        picked.retain(|(_, text)| selector.selects_all() || selector.matches(&text.labels()));
        picked.sort_by(|(a, _), (b, _)| a.cmp(b));
        let trees = picked.into_iter();
        trees
            .map(|(name, text)| self.inner.tree(&name, &Cached::Text(text)))
            .collect()
    }

    /// Stores the result of a write, unless the watch has already delivered it or a newer version. Subscribers are
    /// notified now, and not again when the watch delivers the same version. The writer recognizes its own change
    /// by the resource version; other controllers need the notification, since one controller's child may be
    /// another's parent.
    pub fn record(&self, object: DynamicObject) -> Arc<DynamicObject> {
        let object = self.inner.prepare(object);
        self.inner.put(&object, None);
        object.tree
    }

    /// Removes an object that the API server reports as deleted; a new object of the same name stays. The watch
    /// notifies the subscribers.
    pub fn forget(&self, name: &NamespacedName, uid: &str) {
        let mut store = self.inner.write();
        let known = store.get(name).filter(|known| known.has_uid(uid));
        store.remember_deletion(
            name.clone(),
            uid.to_owned(),
            known.as_ref().and_then(Cached::version),
        );
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
    samples: Samples,
    trees: Arc<Trees>,
    subscribers: Mutex<Subscribers>,
    state: watch::Sender<WatchState>,
    /// The policy of the last complete list. It changes only while the state is locked.
    filled: Mutex<CachePolicy>,
    /// Why the last list failed; `None` once one is complete.
    list_error: watch::Sender<Option<String>>,
    was_listed: AtomicBool,
    /// The watched namespace does not exist.
    lacks_namespace: AtomicBool,
    /// The last resource version of the API server.
    newest: Mutex<Option<u128>>,
}

/// An object that may be stored.
struct Prepared {
    name: NamespacedName,
    tree: Arc<DynamicObject>,
    kept: Cached,
}

/// Takes the managed fields out of an object, and returns those of a child: who owns which field, but for the status.
fn managed_fields(object: &mut DynamicObject) -> Vec<ManagedFieldsEntry> {
    let mut managed = object.metadata.managed_fields.take().unwrap_or_default();
    if managed.iter().any(|entry| controller_of_entry(entry).is_some()) {
        managed.retain(|entry| !is_only_status(entry));
    } else {
        managed.clear();
    }
    managed
}

/// Reports whether `a` is certainly newer than `b`.
fn is_newer(a: &Cached, b: &Cached) -> bool {
    matches!((a.version(), b.version()), (Some(a), Some(b)) if a > b)
}

impl Inner {
    fn new(scope: Scope, keep: CachePolicy, metrics: Arc<Metrics>, trees: Arc<Trees>) -> Self {
        let samples = match secret::is_secret_kind(&scope.kind) {
            true => Samples::none(),
            false => Samples::of_the_first(),
        };
        Self {
            scope,
            keep: watch::Sender::new(Wanted {
                policy: keep,
                schema: 0,
            }),
            metrics,
            store: RwLock::default(),
            samples,
            trees,
            subscribers: Mutex::default(),
            state: watch::Sender::new(WatchState::Starting),
            filled: Mutex::default(),
            list_error: watch::Sender::new(None),
            was_listed: AtomicBool::new(false),
            lacks_namespace: AtomicBool::new(false),
            newest: Mutex::default(),
        }
    }

    fn read(&self) -> std::sync::RwLockReadGuard<'_, Store> {
        self.store.read().unwrap_or_else(PoisonError::into_inner)
    }

    fn write(&self) -> std::sync::RwLockWriteGuard<'_, Store> {
        self.store.write().unwrap_or_else(PoisonError::into_inner)
    }

    fn keeps_whole(&self, object: &DynamicObject) -> bool {
        self.keep.borrow().policy.keeps_whole(object)
    }

    /// Reports whether more is read of an object than its metadata.
    fn reads_whole(&self, object: &DynamicObject) -> bool {
        self.scope.form == Form::Whole && self.keeps_whole(object)
    }

    fn prepare(&self, mut object: DynamicObject) -> Prepared {
        let kind = &self.scope.kind;
        let is_definition = kind.kind == "CustomResourceDefinition";
        // Partial metadata has a type of its own, which is not that of the object.
        if self.scope.form == Form::Metadata {
            object.types = None;
        }
        // List responses omit the type of their items.
        object.types.get_or_insert_with(|| kube::core::TypeMeta {
            api_version: kind.api_version.clone(),
            kind: kind.kind.clone(),
        });
        let made_by = maker(&object).map(str::to_owned);
        let managed = managed_fields(&mut object);
        slim(&mut object);
        if made_by.as_deref() != label(&object, CONTROLLER_LABEL) {
            // Only the managers, so that [`maker`] knows it from now on.
            let managers = managed
                .iter()
                .filter(|entry| controller_of_entry(entry).is_some());
            let manager = |entry: &ManagedFieldsEntry| ManagedFieldsEntry {
                manager: entry.manager.clone(),
                operation: entry.operation.clone(),
                ..ManagedFieldsEntry::default()
            };
            object.metadata.managed_fields = Some(managers.map(manager).collect());
        }
        let owner = Owner::of(&object).map(|owner| self.read().shared(owner));
        let mut taken = None;
        if !self.keeps_whole(&object) {
            object.data = serde_json::Value::Null;
            // Orders about plugin versions and the record of the live one are read from the definition of the kind.
            if let Some(annotations) = &mut object.metadata.annotations {
                annotations
                    .retain(|key, _| is_definition && operator_host_core::object::is_about_versions(key));
            }
            if !is_definition {
                taken = Taken::of(&object, owner.clone());
            }
        }
        let kept = match taken {
            Some(taken) => Cached::Taken(taken),
            None => Cached::Text(Arc::new(Text::of(&mut object, owner, &managed, &self.samples))),
        };
        Prepared {
            name: NamespacedName::of(&object),
            tree: Arc::new(object),
            kept,
        }
    }

    /// Returns the tree of an object as far as it is kept.
    fn tree(&self, name: &NamespacedName, kept: &Cached) -> Arc<DynamicObject> {
        let make = || kept.object(&self.scope.kind, name);
        match kept {
            Cached::Text(text) => self.trees.of(text, make),
            Cached::Taken(_) => Arc::new(make()),
        }
    }

    /// Reports whether this state of an object is known, and as a whole.
    fn knows(&self, head: &Head) -> bool {
        let name = NamespacedName::new(head.namespace.clone(), head.name.as_deref().unwrap_or_default());
        let known = self.read().get(&name);
        known.is_some_and(|known| known.is_whole_at(head))
    }

    /// Stores an object and notifies the subscribers, unless the same or a newer state is known. An object may have other
    /// content at the same version: its schema has got another default value. `list` is the version of the list that has the
    /// object: what is known up to that version is not newer.
    fn put(&self, object: &Prepared, list: Option<u128>) {
        let Prepared { name, tree, kept } = object;
        let old = {
            let mut store = self.write();
            match store.get(name) {
                Some(known) if known == *kept => return,
                // The answer to a write by this host may have been faster.
                Some(known)
                    if is_newer(&known, kept)
                        && !store.is_left(name, &known)
                        && list.is_none_or(|list| known.version() > Some(list)) =>
                {
                    return;
                }
                None if store.is_deleted(name, tree) => return,
                _ => store.put(name, kept.clone()),
            }
        };
        if let Cached::Text(text) = kept {
            self.trees.put(text, tree);
        }
        let is_same = old.as_ref().is_some_and(|old| {
            let is_generated = label(tree, GENERATED_LABEL).is_some();
            old.is_equal_but_for_version(kept) && (!is_generated || old == kept)
        });
        self.notify(&Change {
            old: old.as_ref().map(|old| self.old(name, old)),
            new: Some(tree),
            is_same,
        });
    }

    fn deleted(&self, object: DynamicObject) {
        let Prepared { name, tree, kept } = self.prepare(object);
        let old = {
            let mut store = self.write();
            match store.get(&name) {
                // It has been recreated since.
                Some(known) if is_newer(&known, &kept) => return,
                _ => {
                    let uid = tree.metadata.uid.clone().unwrap_or_default();
                    store.remember_deletion(name.clone(), uid, version(&tree));
                    store.take(&name)
                }
            }
        };
        // A write by this host may have removed it already; notify the subscribers anyway.
        self.notify(&Change {
            old: Some(self.old(&name, old.as_ref().unwrap_or(&kept))),
            new: None,
            is_same: false,
        });
    }

    fn old<'a>(&'a self, name: &'a NamespacedName, kept: &'a Cached) -> Old<'a> {
        Old {
            inner: self,
            name,
            kept,
            tree: OnceCell::new(),
        }
    }

    /// Takes the version of a list that begins. An older one than before shows that the API server has gone back to an
    /// earlier state, as after a restore of etcd: then what the store has is not newer.
    fn list_begins(&self, version: Option<u128>) {
        let last = std::mem::replace(&mut *lock(&self.newest), version);
        if version.is_some() && version < last {
            warn!(kind = %self.scope.kind, namespace = self.scope.namespace,
                "the API server has gone back to an earlier state, as after a restore of etcd: reading all objects again");
            self.write().has_gone_back();
        }
    }

    /// Removes every object that a complete list at this version does not contain. A newer object was written during
    /// the list; if it was deleted since, the watch from that version reports it.
    fn listed(&self, names: &HashSet<NamespacedName>, list: Option<u128>) {
        self.lacks_namespace.store(false, Ordering::Relaxed);
        self.list_error.send_replace(None);
        let gone: Vec<_> = {
            let mut store = self.write();
            let is_gone = |(name, kept): &(NamespacedName, Cached)| {
                !names.contains(name)
                    && (list.is_none() || kept.version() <= list || store.is_left(name, kept))
            };
            let gone: Vec<_> = store.iter().filter(is_gone).collect();
            store.is_listed();
            // Do not record these as deletions: the watch may still deliver an object created after the list.
            for (name, _) in &gone {
                store.take(name);
            }
            gone
        };
        self.was_listed.store(true, Ordering::Relaxed);
        for (name, old) in &gone {
            self.notify(&Change {
                old: Some(self.old(name, old)),
                new: None,
                is_same: false,
            });
        }
    }

    fn notify(&self, change: &Change<'_>) {
        let interests: Vec<_> = met(change).collect();
        let subscribers = lock(&self.subscribers).with(interests);
        for subscriber in subscribers.values() {
            subscriber(&self.scope.kind, change);
        }
    }

    fn keep(&self, policy: CachePolicy) {
        self.keep.send_modify(|wanted| wanted.policy = policy.clone());
        self.state.send_if_modified(|current| {
            let mut filled = lock(&self.filled);
            // A list under the new policy may have ended since it was set.
            let lacks = !filled.covers(&policy);
            if !lacks {
                *filled = policy;
            }
            let is_changed = lacks && *current == WatchState::Synced;
            if is_changed {
                *current = WatchState::Starting;
            }
            is_changed
        });
    }

    /// Marks the watch as synced, unless more of the kind is needed by now.
    fn synced(&self, keep: &watch::Receiver<Wanted>) {
        if matches!(*self.state.borrow(), WatchState::Failing(_)) {
            info!(kind = %self.scope.kind, namespace = self.scope.namespace, "watching again");
        }
        self.state.send_if_modified(|current| {
            let policy = keep.borrow().policy.clone();
            if keep.has_changed().unwrap_or(false) {
                return false;
            }
            *lock(&self.filled) = policy;
            let is_changed = *current != WatchState::Synced;
            if is_changed {
                *current = WatchState::Synced;
            }
            is_changed
        });
    }

    /// Remembers why a list failed. The reason is read only until the first list is complete.
    fn list_failed(&self, message: &str) {
        if !self.was_listed.load(Ordering::Relaxed) {
            let message = printable(&shorten(message, LIST_ERROR));
            self.list_error
                .send_replace(Some(format!("cannot list {}: {message}", self.scope.kind)));
        }
    }

    /// Notes that the namespace does not exist. This counts as an empty list, which the API server would return to a
    /// client that may list.
    fn has_no_namespace(&self) {
        if self.misses_namespace() {
            let namespace = self.scope.namespace.as_deref().unwrap_or_default();
            warn!(kind = %self.scope.kind, "namespace {namespace} does not exist");
        }
        self.synced(&self.keep.subscribe());
    }

    /// Notes that nothing is in the namespace, since it does not exist. Returns whether that is news.
    fn misses_namespace(&self) -> bool {
        // A list clears it.
        let is_known = self.lacks_namespace.load(Ordering::Relaxed);
        self.listed(&HashSet::new(), None);
        self.lacks_namespace.store(true, Ordering::Relaxed);
        !is_known
    }

    fn fail(&self, message: String) {
        self.lacks_namespace.store(false, Ordering::Relaxed);
        if *self.state.borrow() != WatchState::Failing(message.clone()) {
            warn!(kind = %self.scope.kind, namespace = self.scope.namespace, "cannot watch: {message}");
            self.state.send_replace(WatchState::Failing(message));
        }
    }
}

#[cfg(test)]
mod tests;
