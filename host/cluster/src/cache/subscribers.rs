//! The subscribers of one watch, indexed by the objects that concern them: of a hundred controllers that make pods, a pod
//! concerns one or none.

use std::borrow::Cow;
use std::collections::{BTreeMap, HashMap};
use std::iter::repeat_n;
use std::sync::{Arc, Weak};

use kube::core::DynamicObject;

use super::{Change, Inner};
use operator_host_contract::Kind;
use operator_host_core::object::{controller_of, group_of, maker};
use operator_host_core::sync::lock;

/// Callback for changes. It runs on the watch's task or on a writer's, so it must return quickly and must not block. Of two
/// changes at a time, the later one may be told first: a subscriber that keeps a state reads it from the cache.
pub type Subscriber = Arc<dyn Fn(&Kind, &Change<'_>) + Send + Sync>;

/// The objects whose changes a subscriber hears of. An object counts if it was one of them before or is one of them now.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum Interest<'a> {
    /// All objects.
    All,
    /// Objects whose controller owner is of this kind, in any of its versions.
    OwnedBy {
        /// The API group; empty for the core group.
        group: Cow<'a, str>,
        /// The kind.
        kind: Cow<'a, str>,
    },
    /// Objects without a controller owner whose label names this controller.
    Labeled(Cow<'a, str>),
}

/// Ends a subscription when it is dropped.
pub struct Subscription {
    pub(super) inner: Weak<Inner>,
    pub(super) id: u64,
    pub(super) interests: Vec<Interest<'static>>,
}

impl Drop for Subscription {
    fn drop(&mut self) {
        if let Some(inner) = self.inner.upgrade() {
            lock(&inner.subscribers).remove(self.id, &self.interests);
        }
    }
}

/// Subscribers by an ID, in the order in which they have subscribed.
type ById = BTreeMap<u64, Subscriber>;

#[derive(Default)]
pub(super) struct Subscribers {
    by_interest: HashMap<Interest<'static>, ById>,
    next: u64,
}

impl Subscribers {
    pub(super) fn add(&mut self, interests: &[Interest<'static>], subscriber: Subscriber) -> u64 {
        let id = self.next;
        self.next += 1;
        for (interest, subscriber) in interests.iter().zip(repeat_n(subscriber, interests.len())) {
            let by_id = self.by_interest.entry(interest.clone()).or_default();
            by_id.insert(id, subscriber);
        }
        id
    }

    fn remove(&mut self, id: u64, interests: &[Interest<'static>]) {
        for interest in interests {
            if let Some(by_id) = self.by_interest.get_mut(interest) {
                by_id.remove(&id);
                if by_id.is_empty() {
                    self.by_interest.remove(interest);
                }
            }
        }
    }

    /// Returns the subscribers with one of these interests, each once.
    pub(super) fn with<'a>(&self, interests: impl IntoIterator<Item = Interest<'a>>) -> ById {
        // The keys of the map may live longer than the interests to look up.
        let by_interest: &HashMap<Interest<'a>, ById> = &self.by_interest;
        let found = interests.into_iter().filter_map(|it| by_interest.get(&it));
        found
            .flatten()
            .map(|(id, subscriber)| (*id, Arc::clone(subscriber)))
            .collect()
    }
}

/// Returns the interests that a change meets.
pub(super) fn met<'c>(change: &'c Change<'_>) -> impl Iterator<Item = Interest<'c>> {
    // If nothing has changed, it has the same owner and labels as before.
    let before = if change.is_same() { None } else { before(change) };
    let after = change.after().and_then(|object| relation(object));
    [Interest::All].into_iter().chain(before).chain(after)
}

fn before<'c>(change: &'c Change<'_>) -> Option<Interest<'c>> {
    // This is known without a look at the object itself.
    if let Some(owner) = change.old.as_ref()?.kept.owner() {
        let owner = owner.reference();
        return Some(owned_by(&owner.api_version, &owner.kind));
    }
    relation(change.before()?)
}

/// Returns what relates an object to its parent: its controller owner or, if it has none, its label.
fn relation(object: &DynamicObject) -> Option<Interest<'_>> {
    match controller_of(object) {
        Some(owner) => Some(owned_by(&owner.api_version, &owner.kind)),
        None => maker(object).map(|name| Interest::Labeled(name.into())),
    }
}

fn owned_by<'a>(api_version: &'a str, kind: &'a str) -> Interest<'a> {
    Interest::OwnedBy {
        group: group_of(api_version).into(),
        kind: kind.into(),
    }
}

#[cfg(test)]
mod tests;
