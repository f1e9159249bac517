//! The objects that a watch has seen, indexed by name and by the parent that they refer to.

use std::collections::{BTreeSet, HashMap};
use std::sync::Arc;
use std::time::Duration;

use kube::core::DynamicObject;
use tokio::time::Instant;

use crate::object::{NamespacedName, PARENT_ANNOTATION, annotation, controller_of, version};

/// How an object refers to its parent.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(super) enum Reference {
    Owner(String),
    Annotation(String),
}

fn references(object: &DynamicObject) -> impl Iterator<Item = Reference> {
    let owner = controller_of(object).map(|owner| Reference::Owner(owner.uid.clone()));
    let annotation = annotation(object, PARENT_ANNOTATION).map(|name| Reference::Annotation(name.to_owned()));
    owner.into_iter().chain(annotation)
}

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

#[derive(Default)]
pub(super) struct Store {
    pub(super) objects: HashMap<NamespacedName, Arc<DynamicObject>>,
    pub(super) index: HashMap<Reference, BTreeSet<NamespacedName>>,
    /// Recent deletions. The response to a write may arrive after the deletion event of its object and must not
    /// restore it.
    deletions: HashMap<NamespacedName, Deletion>,
    /// When old deletions were last removed.
    forgotten: Option<Instant>,
}

impl Store {
    pub(super) fn put(
        &mut self,
        name: NamespacedName,
        object: Arc<DynamicObject>,
    ) -> Option<Arc<DynamicObject>> {
        let old = self.take(&name);
        for reference in references(&object) {
            self.index.entry(reference).or_default().insert(name.clone());
        }
        self.objects.insert(name, object);
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

    pub(super) fn is_deleted(&self, name: &NamespacedName, object: &DynamicObject) -> bool {
        self.deletions.get(name).is_some_and(|deletion| {
            let is_older =
                matches!((deletion.version, version(object)), (Some(gone), Some(version)) if version <= gone);
            is_older || object.metadata.uid.as_ref() == Some(&deletion.uid)
        })
    }

    /// Forgets the versions of all objects, and all deletions, so that any version replaces them.
    pub(super) fn rewind(&mut self) {
        self.deletions.clear();
        for object in self.objects.values_mut() {
            Arc::make_mut(object).metadata.resource_version = None;
        }
    }

    pub(super) fn take(&mut self, name: &NamespacedName) -> Option<Arc<DynamicObject>> {
        let old = self.objects.remove(name)?;
        for reference in references(&old) {
            if let Some(names) = self.index.get_mut(&reference) {
                names.remove(name);
                if names.is_empty() {
                    self.index.remove(&reference);
                }
            }
        }
        Some(old)
    }
}
