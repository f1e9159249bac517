//! What the plugin asked to read for each parent, indexed by what an object must be like to be selected.
//!
//! A change of an object looks up the needs that may select it: those for its name, those whose selector requires one of
//! its labels, and those that require neither, in each case in its namespace. How many other needs there are does not
//! matter. Needs with the same selector share one, which is parsed once and compared once per object.

use std::borrow::Cow;
use std::collections::{BTreeMap, BTreeSet, HashMap, HashSet};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use kube::core::DynamicObject;

use operator_host_contract::{Kind, Need};
use operator_host_core::object::{NamespacedName, Selector};
use operator_host_desired::selectors::Parsed;

/// The needs of all parents of one controller; see the module.
#[derive(Default)]
pub struct Needs(Mutex<Index>);

#[derive(Default)]
struct Index {
    /// What the plugin last asked to read.
    by_parent: HashMap<Arc<NamespacedName>, Vec<Need>>,
    by_kind: HashMap<Kind, HashMap<Required<'static>, Places>>,
    /// The selectors of all indexed needs, by their text.
    selectors: HashMap<Arc<str>, Arc<Parsed>>,
}

/// What an object must have to be selected, apart from its kind and namespace. A selector may require more.
#[derive(PartialEq, Eq, Hash)]
enum Required<'a> {
    Name(Cow<'a, str>),
    Label(Cow<'a, str>, Cow<'a, str>),
    Nothing,
}

/// Needs by the namespace that they select from, which is empty for a cluster-scoped parent without another one, and by
/// the text of their selector.
type Places = HashMap<Box<str>, HashMap<Arc<str>, Group>>;

/// The parents with needs that select the same objects.
struct Group {
    selector: Arc<Parsed>,
    parents: HashSet<Arc<NamespacedName>>,
}

impl Needs {
    /// Returns what the plugin last asked to read for a parent.
    pub fn of(&self, parent: &NamespacedName) -> Vec<Need> {
        let index = self.lock();
        let needs = index.by_parent.get(parent);
        needs.cloned().unwrap_or_default()
    }

    /// Replaces what the plugin last asked to read.
    pub fn set(&self, parent: &NamespacedName, needs: &[Need]) {
        let mut index = self.lock();
        if index.by_parent.get(parent).map_or(&[][..], Vec::as_slice) != needs {
            index.replace(parent, needs.to_vec());
        }
    }

    /// Forgets all needs of a parent.
    pub fn forget(&self, parent: &NamespacedName) {
        self.set(parent, &[]);
    }

    /// Forgets the needs of all other parents than these.
    pub fn retain(&self, is_kept: impl Fn(&NamespacedName) -> bool) {
        let mut index = self.lock();
        let parents = index.by_parent.keys();
        let forgotten: Vec<_> = parents.filter(|parent| !is_kept(parent)).cloned().collect();
        for parent in forgotten {
            index.replace(&parent, Vec::new());
        }
    }

    /// Reports whether the plugin needs objects of a kind for any parent.
    pub fn has_kind(&self, kind: &Kind) -> bool {
        self.lock().by_kind.contains_key(kind)
    }

    /// Returns the parents whose plugin needs an object.
    pub fn parents_in_need_of(&self, kind: &Kind, object: &DynamicObject) -> BTreeSet<NamespacedName> {
        let none = BTreeMap::new();
        let labels = object.metadata.labels.as_ref().unwrap_or(&none);
        let index = self.lock();
        let mut matches: HashMap<&str, bool> = HashMap::new();
        let mut in_need = BTreeSet::new();
        for (text, group) in index.candidates(kind, object) {
            let is_selected = *matches
                .entry(text)
                .or_insert_with(|| group.selector.selector.matches(labels));
            if is_selected {
                in_need.extend(group.parents.iter().map(|parent| NamespacedName::clone(parent)));
            }
        }
        in_need
    }

    /// Returns the label selector of a need, or why it is invalid. That of a known need is not parsed again.
    pub fn selector(&self, need: &Need) -> Result<Arc<Selector>, String> {
        let text = need.label_selector.as_deref().unwrap_or_default();
        if let Some(known) = self.lock().selectors.get(text) {
            return Ok(Arc::clone(&known.selector));
        }
        Ok(Parsed::of(text)?.selector)
    }

    fn lock(&self) -> MutexGuard<'_, Index> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Looks up a key that lives shorter than those of the map.
fn get<'m, 'a>(
    by_required: &'m HashMap<Required<'a>, Places>,
    required: &Required<'a>,
) -> Option<&'m Places> {
    by_required.get(required)
}

impl Index {
    /// Replaces the needs of a parent, here and in the index.
    fn replace(&mut self, parent: &NamespacedName, needs: Vec<Need>) {
        let known = self.by_parent.remove_entry(parent);
        let (parent, before) = known.unwrap_or_else(|| (Arc::new(parent.clone()), Vec::new()));
        for need in &before {
            self.withdraw(&parent, need);
        }
        for need in &needs {
            self.enter(&parent, need);
        }
        if !needs.is_empty() {
            self.by_parent.insert(parent, needs);
        }
    }

    /// Returns the groups whose needs may select an object, depending on their selectors, with the text of these.
    fn candidates<'a>(&'a self, kind: &Kind, object: &'a DynamicObject) -> Vec<(&'a str, &'a Group)> {
        let Some(by_required) = self.by_kind.get(kind) else {
            return Vec::new();
        };
        let name = object.metadata.name.as_deref();
        let name = name.map(|name| Required::Name(name.into()));
        let labels = object.metadata.labels.iter().flatten();
        let labels = labels.map(|(key, value)| Required::Label(key.into(), value.into()));
        let required = name.into_iter().chain(labels).chain([Required::Nothing]);
        let places = required.filter_map(|required| get(by_required, &required));
        let groups = places.flat_map(|places| -> Vec<_> {
            match object.metadata.namespace.as_deref() {
                Some(namespace) => places.get(namespace).into_iter().collect(),
                // A cluster-scoped object is in the reach of the parents of every namespace.
                None => places.values().collect(),
            }
        });
        groups.flatten().map(|(text, group)| (&**text, group)).collect()
    }

    fn enter(&mut self, parent: &Arc<NamespacedName>, need: &Need) {
        let text = need.label_selector.as_deref().unwrap_or_default();
        let (text, selector) = match self.selectors.get_key_value(text) {
            Some((text, selector)) => (Arc::clone(text), Arc::clone(selector)),
            None => {
                // An invalid selector selects nothing.
                let Ok(parsed) = Parsed::of(text) else { return };
                let (text, parsed) = (Arc::<str>::from(text), Arc::new(parsed));
                self.selectors.insert(Arc::clone(&text), Arc::clone(&parsed));
                (text, parsed)
            }
        };
        let by_required = self.by_kind.entry(kind_of(need)).or_default();
        let places = by_required
            .entry(required(need, &selector).into_owned())
            .or_default();
        let groups = places.entry(namespace_of(need, parent).into()).or_default();
        let group = groups.entry(text).or_insert_with(|| Group {
            selector,
            parents: HashSet::new(),
        });
        group.parents.insert(Arc::clone(parent));
    }

    /// Removes a need, and what is then empty.
    fn withdraw(&mut self, parent: &NamespacedName, need: &Need) {
        let text = need.label_selector.as_deref().unwrap_or_default();
        let (kind, namespace) = (kind_of(need), namespace_of(need, parent));
        let Some(selector) = self.selectors.get(text).map(Arc::clone) else {
            return;
        };
        let required = required(need, &selector).into_owned();
        let Some(by_required) = self.by_kind.get_mut(&kind) else {
            return;
        };
        let Some(places) = by_required.get_mut(&required) else {
            return;
        };
        let Some(groups) = places.get_mut(namespace) else {
            return;
        };
        let Some(group) = groups.get_mut(text) else { return };
        group.parents.remove(parent);
        if group.parents.is_empty() {
            groups.remove(text);
        }
        if groups.is_empty() {
            places.remove(namespace);
        }
        if places.is_empty() {
            by_required.remove(&required);
        }
        if by_required.is_empty() {
            self.by_kind.remove(&kind);
        }
        // The map and this function have the last two references.
        if Arc::strong_count(&selector) == 2 {
            self.selectors.remove(text);
        }
    }
}

impl Required<'_> {
    fn into_owned(self) -> Required<'static> {
        let owned = |text: Cow<'_, str>| Cow::Owned(text.into_owned());
        match self {
            Self::Name(name) => Required::Name(owned(name)),
            Self::Label(key, value) => Required::Label(owned(key), owned(value)),
            Self::Nothing => Required::Nothing,
        }
    }
}

fn required<'a>(need: &'a Need, selector: &'a Parsed) -> Required<'a> {
    match (&need.name, &selector.required) {
        (Some(name), _) => Required::Name(name.into()),
        (None, Some((key, value))) => Required::Label(key.into(), value.into()),
        (None, None) => Required::Nothing,
    }
}

fn namespace_of<'a>(need: &'a Need, parent: &'a NamespacedName) -> &'a str {
    let namespace = need.namespace.as_ref().or(parent.namespace.as_ref());
    namespace.map(String::as_str).unwrap_or_default()
}

fn kind_of(need: &Need) -> Kind {
    Kind {
        api_version: need.api_version.clone(),
        kind: need.kind.clone(),
    }
}

#[cfg(test)]
mod tests;
