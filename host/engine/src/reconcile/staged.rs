//! A new version of the plugin that only some parents have yet. `rollout` selects them; a reconcile asks which version is its
//! parent's.

use kube::ResourceExt;
use kube::core::DynamicObject;

use operator_host_core::object::{Selector, fingerprint};
use operator_host_runtime::Plugin;

/// A version that some parents have.
#[derive(Clone)]
pub struct Staged {
    /// The version.
    pub plugin: Plugin,
    /// The parents that have it: those in any of these shares.
    pub shares: Vec<Share>,
}

/// Some parents of a kind. Whether a parent is one of them does not depend on the other parents.
#[derive(Clone, Debug, PartialEq)]
pub enum Share {
    /// Those whose UID has a hash up to this one.
    First(u64),
    /// Those with these labels.
    Labeled(Selector),
}

impl Staged {
    /// Reports whether a parent has the version.
    #[must_use]
    pub fn includes(&self, parent: &DynamicObject) -> bool {
        self.shares.iter().any(|share| share.includes(parent))
    }
}

impl Share {
    /// Reports whether a parent is in it.
    #[must_use]
    pub fn includes(&self, parent: &DynamicObject) -> bool {
        match self {
            Self::First(last) => hash(parent) <= *last,
            Self::Labeled(selector) => selector.matches(parent.labels()),
        }
    }
}

/// Returns the hash by which parents are chosen: the same on every replica.
#[must_use]
pub fn hash(parent: &DynamicObject) -> u64 {
    let digits = fingerprint(&parent.metadata.uid);
    // They are hexadecimal.
    u64::from_str_radix(&digits, 16).unwrap_or_default()
}
