//! Names that a plugin wants for children but that other objects already use.

use std::collections::HashMap;
use std::sync::{Mutex, MutexGuard, PoisonError};

use operator_host_cluster::cache::Subscription;
use operator_host_core::object::NamespacedName;

/// The parents that wait until an object of others is deleted or gets another owner, also one that cannot be adopted, each with subscriptions to the
/// changes of these objects.
#[derive(Default)]
pub(super) struct NameConflicts(Mutex<HashMap<NamespacedName, Vec<Subscription>>>);

impl NameConflicts {
    /// Replaces the subscriptions to the objects that block a parent.
    pub(super) fn set(&self, parent: &NamespacedName, objects: Vec<Subscription>) {
        // Dropped after the lock.
        let _earlier = match objects.is_empty() {
            true => self.lock().remove(parent),
            false => self.lock().insert(parent.clone(), objects),
        };
    }

    /// Forgets the conflicts of all other parents than these.
    pub(super) fn retain(&self, is_kept: impl Fn(&NamespacedName) -> bool) {
        self.lock().retain(|parent, _| is_kept(parent));
    }

    fn lock(&self) -> MutexGuard<'_, HashMap<NamespacedName, Vec<Subscription>>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
