//! What the plugin asked to read for each parent, indexed by what an object must be like to be selected.
//!
//! A change of an object looks up the needs that may select it: those for its name, those whose selector requires one of
//! its labels, and those that require neither. How many needs of other objects there are does not matter.

use std::collections::{BTreeSet, HashMap};
use std::sync::Mutex;

use kube::ResourceExt;
use kube::core::DynamicObject;

use operator_host_contract::{Kind, Need};
use operator_host_core::object::{NamespacedName, Selector};
use operator_host_core::sync::lock;
use operator_host_desired::selectors::selector;

use super::super::needs::kind_of;

/// The needs of all parents of one controller; see the module.
#[derive(Default)]
pub struct Needs(Mutex<Index>);

#[derive(Default)]
struct Index {
    /// What the plugin last asked to read.
    by_parent: HashMap<NamespacedName, Vec<Need>>,
    by_kind: HashMap<Kind, HashMap<Required, Vec<Entry>>>,
}

/// What an object must have to be selected, apart from its kind and namespace. A selector may require more.
#[derive(PartialEq, Eq, Hash)]
enum Required {
    Name(String),
    Label(String, String),
    Nothing,
}

struct Entry {
    parent: NamespacedName,
    namespace: Option<String>,
    /// A namespace selector counts as every namespace: what it picks is decided when the plugin is called.
    is_everywhere: bool,
    has_namespace_selector: bool,
    selector: Selector,
}

impl Needs {
    /// Returns what the plugin last asked to read for a parent.
    pub fn of(&self, parent: &NamespacedName) -> Vec<Need> {
        lock(&self.0).by_parent.get(parent).cloned().unwrap_or_default()
    }

    /// Replaces what the plugin last asked to read.
    pub fn set(&self, parent: &NamespacedName, needs: &[Need]) {
        let mut index = lock(&self.0);
        if index.by_parent.get(parent).map_or(&[][..], Vec::as_slice) != needs {
            index.replace(parent, needs);
        }
    }

    /// Forgets all needs of a parent.
    pub fn forget(&self, parent: &NamespacedName) {
        self.set(parent, &[]);
    }

    /// Forgets the needs of all other parents than these.
    pub fn retain(&self, is_kept: impl Fn(&NamespacedName) -> bool) {
        let mut index = lock(&self.0);
        let parents = index.by_parent.keys();
        let forgotten: Vec<_> = parents.filter(|parent| !is_kept(parent)).cloned().collect();
        for parent in forgotten {
            index.replace(&parent, &[]);
        }
    }

    /// Reports whether the plugin needs objects of a kind for any parent.
    pub fn has_kind(&self, kind: &Kind) -> bool {
        lock(&self.0).by_kind.contains_key(kind)
    }

    /// Returns the parents whose plugin needs objects of namespaces by their labels.
    pub fn parents_by_namespace_labels(&self) -> BTreeSet<NamespacedName> {
        let index = lock(&self.0);
        let entries = index.by_kind.values().flat_map(HashMap::values).flatten();
        let found = entries.filter(|entry| entry.has_namespace_selector);
        found.map(|entry| entry.parent.clone()).collect()
    }

    /// Returns the parents whose plugin needs an object.
    pub fn parents_in_need_of(&self, kind: &Kind, object: &DynamicObject) -> BTreeSet<NamespacedName> {
        let namespace = object.metadata.namespace.as_ref();
        let index = lock(&self.0);
        let candidates = index.candidates(kind, object);
        // A cluster-scoped object is in the reach of the parents of every namespace.
        let reached = candidates.filter(|entry| {
            entry.is_everywhere || namespace.is_none() || namespace == entry.namespace.as_ref()
        });
        let selected = reached.filter(|entry| entry.selector.matches(object.labels()));
        selected.map(|entry| entry.parent.clone()).collect()
    }
}

impl Index {
    /// Replaces the needs of a parent, here and in the index.
    fn replace(&mut self, parent: &NamespacedName, needs: &[Need]) {
        for need in self.by_parent.remove(parent).unwrap_or_default() {
            let (kind, Ok(selector)) = (kind_of(&need), selector(&need)) else {
                continue;
            };
            let Some(by_required) = self.by_kind.get_mut(&kind) else {
                continue;
            };
            for required in required(&need, &selector) {
                if let Some(entries) = by_required.get_mut(&required) {
                    entries.retain(|entry| entry.parent != *parent);
                    if entries.is_empty() {
                        by_required.remove(&required);
                    }
                }
            }
            if by_required.is_empty() {
                self.by_kind.remove(&kind);
            }
        }
        for need in needs {
            // An invalid selector selects nothing.
            let Ok(selector) = selector(need) else { continue };
            let by_required = self.by_kind.entry(kind_of(need)).or_default();
            let namespace = need.namespace.as_ref().or(parent.namespace.as_ref());
            for required in required(need, &selector) {
                by_required.entry(required).or_default().push(Entry {
                    parent: parent.clone(),
                    namespace: namespace.cloned(),
                    is_everywhere: need.is_everywhere(),
                    has_namespace_selector: need.namespace_selector.is_some(),
                    selector: selector.clone(),
                });
            }
        }
        if !needs.is_empty() {
            self.by_parent.insert(parent.clone(), needs.to_vec());
        }
    }

    /// Returns the needs that may select an object, depending on their namespaces and selectors.
    fn candidates<'a>(&'a self, kind: &Kind, object: &'a DynamicObject) -> impl Iterator<Item = &'a Entry> {
        let name = object.metadata.name.clone().map(Required::Name);
        let labels = object.metadata.labels.iter().flatten();
        let labels = labels.map(|(key, value)| Required::Label(key.clone(), value.clone()));
        let required = name.into_iter().chain(labels).chain([Required::Nothing]);
        let by_required = self.by_kind.get(kind);
        let found = required.filter_map(move |required| by_required?.get(&required));
        found.flatten()
    }
}

fn required(need: &Need, selector: &Selector) -> Vec<Required> {
    match (need.all_names(), selector.required()) {
        (Some(names), _) => names
            .into_iter()
            .map(|it| Required::Name(it.to_owned()))
            .collect(),
        (None, Some((key, value))) => vec![Required::Label(key.to_owned(), value.to_owned())],
        (None, None) => vec![Required::Nothing],
    }
}

#[cfg(test)]
mod tests;
