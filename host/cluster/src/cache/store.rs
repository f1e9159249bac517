//! The objects that a watch has seen, indexed by name and by the parent that they refer to.

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::sync::Arc;
use std::time::Duration;

use k8s_openapi::apimachinery::pkg::apis::meta::v1::OwnerReference;
use kube::core::DynamicObject;
use tokio::time::Instant;

use super::text::{Cached, Owner, Taken, Text};
use operator_host_core::object::{NamespacedName, version};

/// How long a deletion is remembered: longer than the response to a write can be delayed.
const MEMORY_OF_DELETIONS: Duration = Duration::from_secs(60);

/// A deleted object.
struct Deletion {
    /// A UID is never reused.
    uid: String,
    /// The version of the deletion, or the last version before it.
    version: Option<u128>,
    at: Instant,
}

/// The objects with one controller owner.
#[derive(Default)]
struct Dependents {
    names: BTreeSet<Arc<NamespacedName>>,
    /// How many more objects have this owner and are known only as taken names.
    taken: usize,
}

#[derive(Default)]
pub(super) struct Store {
    texts: HashMap<Arc<NamespacedName>, Arc<Text>>,
    /// By namespace, which is empty for cluster-scoped objects, and name. There may be very many.
    taken: HashMap<Box<str>, HashMap<Box<str>, Taken>>,
    /// By UID. The other parts of the key come from one of the dependents and may be wrong: anybody can write an owner
    /// reference.
    owners: HashMap<Owner, Dependents>,
    /// By the value of the parent annotation.
    annotated: HashMap<Box<str>, BTreeSet<Arc<NamespacedName>>>,
    /// Recent deletions. The response to a write may arrive after the deletion event of its object and must not
    /// restore it.
    deletions: HashMap<NamespacedName, Deletion>,
    /// When old deletions were last removed.
    forgotten: Option<Instant>,
    /// The versions of all objects in a state that the API server has left for an earlier one. The next list replaces
    /// them, whatever versions it has.
    left: HashMap<NamespacedName, Option<u128>>,
}

#[cfg(test)]
impl Store {
    /// Reports whether there is nothing in any index.
    pub(super) fn is_empty(&self) -> bool {
        self.texts.is_empty() && self.taken.is_empty() && self.owners.is_empty() && self.annotated.is_empty()
    }
}

fn namespace(name: &NamespacedName) -> &str {
    name.namespace.as_deref().unwrap_or_default()
}

impl Store {
    pub(super) fn get(&self, name: &NamespacedName) -> Option<Cached> {
        match self.texts.get(name) {
            Some(text) => Some(Cached::Text(Arc::clone(text))),
            None => {
                let taken = self.taken.get(namespace(name))?.get(&*name.name)?;
                Some(Cached::Taken(taken.clone()))
            }
        }
    }

    /// Returns the number of objects.
    pub(super) fn count(&self) -> usize {
        self.texts.len() + self.taken.values().map(HashMap::len).sum::<usize>()
    }

    /// Returns all objects.
    pub(super) fn iter(&self) -> impl Iterator<Item = (NamespacedName, Cached)> {
        let texts = self
            .texts
            .iter()
            .map(|(name, text)| (NamespacedName::clone(name), Cached::Text(Arc::clone(text))));
        let taken = self.taken.iter().flat_map(|(namespace, names)| {
            names.iter().map(|(name, taken)| {
                let name = NamespacedName {
                    namespace: Some(String::from(&**namespace)).filter(|it| !it.is_empty()),
                    name: String::from(&**name),
                };
                (name, Cached::Taken(taken.clone()))
            })
        });
        texts.chain(taken)
    }

    /// Returns the objects that are kept as text.
    pub(super) fn texts(&self) -> impl Iterator<Item = (&Arc<NamespacedName>, &Arc<Text>)> {
        self.texts.iter()
    }

    /// Returns the owners of the objects that are kept as text, each with the namespaces of its dependents.
    pub(super) fn owners(&self) -> Vec<(OwnerReference, BTreeSet<Option<String>>)> {
        let mut owners: BTreeMap<_, (OwnerReference, BTreeSet<_>)> = BTreeMap::new();
        for (name, text) in &self.texts {
            if let Some(owner) = text.owner.as_ref().map(Owner::reference) {
                let whole = [&owner.uid, &owner.api_version, &owner.kind, &owner.name];
                let (_, namespaces) = owners
                    .entry(whole)
                    .or_insert_with(|| (owner.clone(), BTreeSet::new()));
                // There are many dependents, and few namespaces.
                if !namespaces.contains(&name.namespace) {
                    namespaces.insert(name.namespace.clone());
                }
            }
        }
        owners.into_values().collect()
    }

    /// Returns the objects with an owner of this UID or with this parent annotation, sorted by name.
    pub(super) fn referring_to(&self, uid: &str, parent: &str) -> Vec<(Arc<NamespacedName>, Arc<Text>)> {
        let by_uid = self.owners.get(uid).map(|dependents| &dependents.names);
        let by_annotation = self.annotated.get(parent);
        let names: BTreeSet<&Arc<NamespacedName>> =
            by_uid.into_iter().chain(by_annotation).flatten().collect();
        let found = names.into_iter();
        found
            .filter_map(|name| Some((Arc::clone(name), Arc::clone(self.texts.get(name)?))))
            .collect()
    }

    /// Returns the owner that the store has already, so that objects of one owner share it. An owner reference with the
    /// same UID and other differences is not shared.
    pub(super) fn shared(&self, owner: Owner) -> Owner {
        match self.owners.get_key_value(&owner) {
            Some((known, _)) if known.reference() == owner.reference() => known.clone(),
            _ => owner,
        }
    }

    pub(super) fn put(&mut self, name: &NamespacedName, kept: Cached) -> Option<Cached> {
        if let (Cached::Text(text), Some(known)) = (&kept, self.texts.get_mut(name))
            && text.owner == known.owner
            && text.parent == known.parent
        {
            return Some(Cached::Text(std::mem::replace(known, Arc::clone(text))));
        }
        let old = self.take(name);
        let dependents = kept
            .owner()
            .map(|owner| self.owners.entry(owner.clone()).or_default());
        match kept {
            Cached::Text(text) => {
                let name = Arc::new(name.clone());
                if let Some(dependents) = dependents {
                    dependents.names.insert(Arc::clone(&name));
                }
                if let Some(parent) = &text.parent {
                    let names = match self.annotated.get_mut(parent) {
                        Some(names) => names,
                        None => self.annotated.entry(parent.clone()).or_default(),
                    };
                    names.insert(Arc::clone(&name));
                }
                self.texts.insert(name, text);
            }
            Cached::Taken(taken) => {
                if let Some(dependents) = dependents {
                    dependents.taken += 1;
                }
                let names = match self.taken.get_mut(namespace(name)) {
                    Some(names) => names,
                    None => self.taken.entry(namespace(name).into()).or_default(),
                };
                names.insert(name.name.as_str().into(), taken);
            }
        }
        old
    }

    pub(super) fn remember_deletion(&mut self, name: NamespacedName, uid: String, version: Option<u128>) {
        let now = Instant::now();
        if self.forgotten.is_none_or(|at| now - at > MEMORY_OF_DELETIONS) {
            self.deletions
                .retain(|_, deletion| now - deletion.at <= MEMORY_OF_DELETIONS);
            self.forgotten = Some(now);
        }
        self.deletions.insert(
            name,
            Deletion {
                uid,
                version,
                at: now,
            },
        );
    }

    /// Notes that the API server has gone back to an earlier state. What was deleted after it may exist again.
    pub(super) fn has_gone_back(&mut self) {
        self.deletions.clear();
        self.left = self.iter().map(|(name, kept)| (name, kept.version())).collect();
    }

    /// Reports whether an object is as in a state that the API server has left.
    pub(super) fn is_left(&self, name: &NamespacedName, known: &Cached) -> bool {
        self.left
            .get(name)
            .is_some_and(|version| *version == known.version())
    }

    /// Notes that a list is complete.
    pub(super) fn is_listed(&mut self) {
        self.left = HashMap::new();
    }

    pub(super) fn is_deleted(&self, name: &NamespacedName, object: &DynamicObject) -> bool {
        self.deletions.get(name).is_some_and(|deletion| {
            let is_older =
                matches!((deletion.version, version(object)), (Some(gone), Some(version)) if version <= gone);
            is_older || object.metadata.uid.as_ref() == Some(&deletion.uid)
        })
    }

    pub(super) fn take(&mut self, name: &NamespacedName) -> Option<Cached> {
        let Some(text) = self.texts.remove(name) else {
            return self.take_taken(name).map(Cached::Taken);
        };
        if let Some(owner) = &text.owner
            && let Some(dependents) = self.owners.get_mut(owner)
        {
            dependents.names.remove(name);
            self.drop_unused(owner);
        }
        if let Some(parent) = &text.parent
            && let Some(names) = self.annotated.get_mut(parent)
        {
            names.remove(name);
            if names.is_empty() {
                self.annotated.remove(parent);
            }
        }
        Some(Cached::Text(text))
    }

    fn take_taken(&mut self, name: &NamespacedName) -> Option<Taken> {
        let names = self.taken.get_mut(namespace(name))?;
        let taken = names.remove(&*name.name)?;
        if names.is_empty() {
            self.taken.remove(namespace(name));
        } else if names.len() < names.capacity() / 4 {
            names.shrink_to_fit();
        }
        if let Some(owner) = &taken.owner
            && let Some(dependents) = self.owners.get_mut(owner)
        {
            dependents.taken = dependents.taken.saturating_sub(1);
            self.drop_unused(owner);
        }
        Some(taken)
    }

    fn drop_unused(&mut self, owner: &Owner) {
        let is_used = |it: &Dependents| it.taken > 0 || !it.names.is_empty();
        if !self.owners.get(owner).is_some_and(is_used) {
            self.owners.remove(owner);
        }
    }
}
