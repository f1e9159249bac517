//! Which version of the plugin a parent has: a new version may be that of only some parents yet, which `rollout` selects.

use std::sync::Arc;

use kube::ResourceExt;
use kube::core::DynamicObject;
use tokio::sync::watch;

use super::parent_conditions::ParentConditions;
use operator_host_core::object::{Selector, fingerprint};
use operator_host_delivery::registry::Live;
use operator_host_runtime::Plugin;

/// The versions of one controller's plugin.
pub struct Versions {
    /// The live version.
    pub live: watch::Receiver<Live>,
    /// A newer version that some parents have already.
    pub canary: watch::Receiver<Option<Canary>>,
    /// The parents that hold back a new version.
    pub blocking_parents: Arc<ParentConditions>,
}

/// A version that some parents have.
#[derive(Clone)]
pub struct Canary {
    /// The version.
    pub plugin: Plugin,
    /// The parents that have it: those in any of these cohorts.
    pub cohorts: Vec<Cohort>,
}

/// Some parents of a kind. Whether a parent is one of them does not depend on the other parents.
#[derive(Clone, Debug, PartialEq)]
pub enum Cohort {
    /// Those whose UID has a hash up to this one.
    First(u64),
    /// Those with these labels.
    Labeled(Selector),
}

impl Versions {
    /// Returns the version that a parent has.
    pub fn of(&self, parent: &DynamicObject) -> Live {
        match &*self.canary.borrow() {
            Some(canary) if canary.includes(parent) => Live::Plugin(canary.plugin.clone()),
            Some(_) | None => self.live.borrow().clone(),
        }
    }
}

impl Canary {
    /// Reports whether a parent has the version.
    pub fn includes(&self, parent: &DynamicObject) -> bool {
        self.cohorts.iter().any(|cohort| cohort.includes(parent))
    }
}

impl Cohort {
    /// Reports whether a parent is in it.
    pub fn includes(&self, parent: &DynamicObject) -> bool {
        match self {
            Self::First(last) => hash(parent) <= *last,
            Self::Labeled(selector) => selector.matches(parent.labels()),
        }
    }
}

/// Returns the hash by which parents are chosen: the same on every replica.
pub fn hash(parent: &DynamicObject) -> u64 {
    let digits = fingerprint(&parent.metadata.uid);
    // They are hexadecimal.
    u64::from_str_radix(&digits, 16).unwrap_or_default()
}
