//! What a plan consists of.

use std::collections::HashSet;

use serde_json::Value;

use super::left_fields::{self, LeftField};
use super::refusal::Refusal;
use super::update::Update;
use operator_host_contract::GeneratedSecret;
use operator_host_core::object::{ChildRef, Identity};

/// The desired state of one child.
#[derive(Clone, Debug, PartialEq)]
pub struct Desired {
    /// Kind and name.
    pub key: ChildRef,
    /// The complete body to apply, with owner reference, labels and annotations, but without the fields to leave.
    pub body: Value,
    /// The fields that stay as they are once the child exists.
    pub left: Vec<LeftField>,
    /// Hash of the body without the provenance.
    pub fingerprint: String,
    /// The children that come before it.
    pub after: Vec<ChildRef>,
    /// How many children come before it, one after the other.
    pub depth: usize,
    /// How it is changed.
    pub update: Update,
    /// Its position in the answer.
    pub place: usize,
}

impl Desired {
    /// Creates a child with this body, which leaves no field to others and comes after no other child.
    pub fn new(key: ChildRef, body: Value) -> Self {
        Self {
            key,
            body,
            left: Vec::new(),
            fingerprint: String::new(),
            after: Vec::new(),
            depth: 0,
            update: Update::default(),
            place: 0,
        }
    }

    /// Returns the body of a child that does not exist yet.
    pub fn new_body(&self) -> Value {
        let mut body = self.body.clone();
        left_fields::add_initial(&self.left, &mut body);
        body
    }
}

/// A Secret whose values the host generates.
#[derive(Clone, Debug, PartialEq)]
pub struct DesiredSecret {
    /// Kind and name.
    pub key: ChildRef,
    /// The required entries.
    pub secret: GeneratedSecret,
    /// The resource version of the Secret as it was judged; `None` when there was none.
    pub seen: Option<String>,
    /// The Secret without its data. A child of the same name, if there is one, has its other labels and entries.
    pub body: Value,
}

/// The changes to make for one parent.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Plan {
    /// In the order in which they are applied.
    pub desired: Vec<Desired>,
    /// Children that stay unchanged.
    pub keep: HashSet<ChildRef>,
    /// Secrets to generate.
    pub secrets: Vec<DesiredSecret>,
    /// What the answer names beside these, but existing objects are in the way.
    pub left_out: HashSet<Identity>,
    /// Why it is left out. Nothing may be deleted before all that is wanted is there.
    pub refused: Vec<Refusal>,
}

impl Plan {
    /// Returns every child that the plan names, as the plugin named it.
    pub fn keys(&self) -> impl Iterator<Item = &ChildRef> {
        let desired = self.desired.iter().map(|desired| &desired.key);
        let secrets = self.secrets.iter().map(|secret| &secret.key);
        desired.chain(secrets).chain(&self.keep)
    }

    /// Returns every child that the answer names, independent of the version.
    pub fn named(&self) -> HashSet<Identity> {
        let keys = self.keys().map(ChildRef::identity);
        keys.chain(self.left_out.iter().cloned()).collect()
    }
}
