//! What one controller remembers between reconciles: of each parent, and of all of them.

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::sync::{Mutex, MutexGuard};

use tokio::sync::watch;

use super::memory::{OwnWrites, ParentMemory};
use super::needs::Needs;
use crate::reconcile::parent_conditions::ParentConditions;
use operator_host_cluster::cache::Subscription;
use operator_host_core::object::{ChildRef, NamespacedName};
use operator_host_core::sync::lock;
use operator_host_desired::conditions::Reason;

/// What one controller remembers. Initially empty.
#[derive(Default)]
pub struct ControllerState {
    /// The subscriptions to changes. They are replaced when the namespaces change.
    pub subscriptions: watch::Sender<Vec<Subscription>>,
    memory: Mutex<HashMap<NamespacedName, Box<ParentMemory>>>,
    /// What the plugin asked to read for each parent.
    pub needs: Needs,
    /// The parents with children of kinds that the configuration does not list any more.
    pub unwatched: ParentConditions,
    /// The fields of the definition because of which a part of a status is left out. Empty until the API server has refused one.
    pub(crate) narrow: Mutex<BTreeSet<String>>,
    /// The objects that are decorated and not ready, with the reason.
    unready: Mutex<BTreeMap<NamespacedName, Reason>>,
    /// The objects that are not decorated any more, and whose children stay: too many of them were given up at once.
    held: Mutex<BTreeSet<NamespacedName>>,
}

impl ControllerState {
    /// Reads or changes the memory of a parent.
    pub fn memory_of<T>(&self, parent: &NamespacedName, look: impl FnOnce(&mut ParentMemory) -> T) -> T {
        let mut memory = self.memory();
        match memory.get_mut(parent) {
            Some(memory) => look(memory),
            None => look(memory.entry(parent.clone()).or_default()),
        }
    }

    /// Reports whether the last write of a child of this parent was not answered in time.
    pub fn is_silent(&self, parent: &NamespacedName) -> bool {
        let memory = self.memory();
        let memory = memory.get(parent);
        memory.is_some_and(|memory| !memory.silences.is_empty())
    }

    /// Forgets the own writes to a child after its deletion.
    pub fn forget_written(&self, parent: &NamespacedName, key: &ChildRef) {
        if let Some(memory) = self.memory().get_mut(parent) {
            memory.own_writes.children.remove(&key.identity());
            memory.unkept.forget(key);
            memory.conflicts.forget(key);
        }
    }

    /// Lets each child that is as applied, although its managed fields do not show it, be applied once more.
    pub fn try_unkept_again(&self, parent: &NamespacedName) {
        if let Some(memory) = self.memory().get_mut(parent) {
            memory.unkept.try_again();
        }
    }

    /// Returns the own writes of the reconcile that is done, and forgets them.
    pub fn take_own_writes(&self, parent: &NamespacedName) -> OwnWrites {
        let mut memory = self.memory();
        let memory = memory.get_mut(parent);
        memory.map_or_else(OwnWrites::default, |memory| {
            std::mem::take(&mut memory.own_writes)
        })
    }

    /// Remembers that an object which is decorated is ready, or why it is not.
    pub(crate) fn note_unready(&self, parent: &NamespacedName, why: Option<Reason>) {
        let mut unready = lock(&self.unready);
        match why {
            Some(why) => drop(unready.insert(parent.clone(), why)),
            None => drop(unready.remove(parent)),
        }
    }

    /// Returns the first objects that are decorated and not ready, with the reason.
    pub fn first_unready(&self, most: usize) -> Vec<(NamespacedName, Reason)> {
        let unready = lock(&self.unready);
        let first = unready.iter().take(most);
        first.map(|(name, why)| (name.clone(), why.clone())).collect()
    }

    /// Keeps the children of these objects, which are not decorated any more.
    pub fn hold(&self, objects: BTreeSet<NamespacedName>) {
        *lock(&self.held) = objects;
    }

    /// Counts the objects whose children are kept so.
    pub fn held(&self) -> usize {
        lock(&self.held).len()
    }

    /// Reports whether the children of an object are kept so.
    pub(crate) fn is_held(&self, object: &NamespacedName) -> bool {
        lock(&self.held).contains(object)
    }

    /// Ends that the children of an object are kept, which is decorated again.
    pub(crate) fn let_go(&self, object: &NamespacedName) {
        lock(&self.held).remove(object);
    }

    pub(crate) fn forget(&self, parent: &NamespacedName) {
        self.note_unready(parent, None);
        self.let_go(parent);
        self.memory().remove(parent);
        self.needs.forget(parent);
    }

    /// Forgets all parents outside of these namespaces.
    pub fn forget_outside(&self, namespaces: &BTreeSet<String>) {
        let is_within = |parent: &NamespacedName| {
            let namespace = parent.namespace.as_ref();
            namespace.is_none_or(|namespace| namespaces.contains(namespace))
        };
        self.memory().retain(|parent, _| is_within(parent));
        self.needs.retain(is_within);
    }

    /// Forgets the memory and the needs of all parents, but not which of them are in doubt.
    pub fn forget_all(&self) {
        self.needs.retain(|_| false);
        lock(&self.unready).clear();
        let mut memory = self.memory();
        memory.retain(|_, memory| memory.doubt.open().is_some());
        for memory in memory.values_mut() {
            **memory = ParentMemory {
                doubt: memory.doubt.clone(),
                ..ParentMemory::default()
            };
        }
    }

    fn memory(&self) -> MutexGuard<'_, HashMap<NamespacedName, Box<ParentMemory>>> {
        lock(&self.memory)
    }
}
