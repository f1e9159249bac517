//! Names that a plugin wants for children but that other objects already use.

use std::collections::{BTreeSet, HashMap};
use std::sync::{Mutex, MutexGuard, PoisonError};

use crate::object::{ChildRef, NamespacedName};

/// Objects of others that exist where a plugin wants a child, with the parents that wait for their deletion.
#[derive(Default)]
pub(crate) struct NameConflicts(Mutex<HashMap<ChildRef, BTreeSet<NamespacedName>>>);

impl NameConflicts {
    /// Replaces the objects that are recorded as blocking a parent.
    pub(crate) fn set(&self, parent: &NamespacedName, keys: Vec<ChildRef>) {
        let mut blocked = self.lock();
        if keys.is_empty() && blocked.is_empty() {
            return;
        }
        blocked.retain(|_, parents| {
            parents.remove(parent);
            !parents.is_empty()
        });
        for key in keys {
            blocked.entry(key).or_default().insert(parent.clone());
        }
    }

    /// Returns the parents that an object blocks.
    pub(crate) fn waiting_for(&self, key: &ChildRef) -> Vec<NamespacedName> {
        self.lock().get(key).into_iter().flatten().cloned().collect()
    }

    fn lock(&self) -> MutexGuard<'_, HashMap<ChildRef, BTreeSet<NamespacedName>>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
