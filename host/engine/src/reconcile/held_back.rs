//! The parents that hold back a new version of the plugin, with the reasons. `rollout` sets them; `status` shows
//! them in the conditions of those parents.

use std::collections::BTreeMap;
use std::sync::{Mutex, PoisonError};

use operator_host_core::object::NamespacedName;
use operator_host_desired::conditions::Reason;

/// The blocking parents of one controller; see the module.
#[derive(Debug, Default)]
pub struct BlockingParents(Mutex<BTreeMap<NamespacedName, Reason>>);

impl BlockingParents {
    /// Returns why a parent holds a version back.
    #[must_use]
    pub fn reason(&self, parent: &NamespacedName) -> Option<Reason> {
        self.0
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
            .get(parent)
            .cloned()
    }

    /// Replaces all of them and returns the previous ones.
    pub fn replace(&self, now: BTreeMap<NamespacedName, Reason>) -> BTreeMap<NamespacedName, Reason> {
        std::mem::replace(&mut *self.0.lock().unwrap_or_else(PoisonError::into_inner), now)
    }
}
