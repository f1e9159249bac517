//! What is said about parents in a condition, and found outside of their reconciles: that they hold back a new version of the
//! plugin, which `rollout` knows, and that they have [children that nobody watches](super::unwatched).

use std::collections::BTreeMap;
use std::sync::Mutex;

use operator_host_core::object::NamespacedName;
use operator_host_core::sync::lock;
use operator_host_desired::conditions::Reason;

/// The reasons for one condition of the parents of one controller; see the module.
#[derive(Debug, Default)]
pub struct ParentConditions(Mutex<BTreeMap<NamespacedName, Reason>>);

impl ParentConditions {
    /// Returns why a parent has the condition; `None` if it has not.
    pub fn reason(&self, parent: &NamespacedName) -> Option<Reason> {
        lock(&self.0).get(parent).cloned()
    }

    /// Replaces all of them and returns the previous ones.
    pub fn replace(&self, now: BTreeMap<NamespacedName, Reason>) -> BTreeMap<NamespacedName, Reason> {
        std::mem::replace(&mut *lock(&self.0), now)
    }
}
