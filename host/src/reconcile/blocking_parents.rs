//! The parents that hold a new version of the plugin back, with the reason. `rollout` fills it; `status` shows it in the
//! conditions of those parents.

use std::collections::BTreeMap;
use std::sync::{Mutex, PoisonError};

use crate::desired::conditions::Reason;
use crate::object::ObjectName;

/// See the module.
#[derive(Debug, Default)]
pub struct BlockingParents(Mutex<BTreeMap<ObjectName, Reason>>);

impl BlockingParents {
    /// Why a parent holds a version back.
    #[must_use]
    pub fn reason(&self, parent: &ObjectName) -> Option<Reason> {
        self.0
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
            .get(parent)
            .cloned()
    }

    /// Replaces all of them; gives those of before.
    pub fn replace(&self, now: BTreeMap<ObjectName, Reason>) -> BTreeMap<ObjectName, Reason> {
        std::mem::replace(&mut *self.0.lock().unwrap_or_else(PoisonError::into_inner), now)
    }
}
