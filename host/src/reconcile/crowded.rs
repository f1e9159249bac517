//! A cluster-scoped parent whose children are too large for one request. The namespaces with the most are left alone, so
//! that whoever fills one namespace does not stop the parent's children in the others.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::{fmt, io};

use kube::core::{DynamicObject, ObjectMeta};
use serde::Serialize;
use serde_json::Value;

use crate::object::{ChildRef, NamespacedName};
use crate::plugin::CallError;

/// How many of the largest children a message names.
const NAMED: usize = 3;

/// The namespaces whose children are too large for a request.
#[derive(Debug)]
pub(super) struct Crowded {
    /// All children. Those in these namespaces have only what identifies them.
    pub(super) shown: Vec<Arc<DynamicObject>>,
    namespaces: BTreeSet<Option<String>>,
    /// The number of children in these namespaces, and the largest of them.
    children: usize,
    largest: Vec<String>,
    error: CallError,
}

impl Crowded {
    /// Returns the fewest namespaces without whose children the others take at most half of a request of `limit` bytes.
    ///
    /// # Errors
    /// With `error`, when the children are not what is too large, or the parent is namespaced: all its children are in
    /// its own namespace.
    pub(super) fn of(
        parent: &DynamicObject,
        observed: &[Arc<DynamicObject>],
        limit: usize,
        error: CallError,
    ) -> Result<Self, CallError> {
        let sized: Vec<_> = observed.iter().map(|child| (size(&**child), child)).collect();
        let mut left: usize = sized.iter().map(|(size, _)| size).sum();
        if parent.metadata.namespace.is_some() || left <= limit / 2 {
            return Err(error);
        }
        let mut sizes: BTreeMap<&Option<String>, usize> = BTreeMap::new();
        for (size, child) in &sized {
            *sizes.entry(&child.metadata.namespace).or_default() += size;
        }
        let mut by_size: Vec<_> = sizes.into_iter().collect();
        by_size.sort_unstable_by_key(|(_, size)| std::cmp::Reverse(*size));
        let mut namespaces = BTreeSet::new();
        for (namespace, size) in by_size {
            if left <= limit / 2 {
                break;
            }
            left -= size;
            namespaces.insert(namespace.clone());
        }
        let mut within: Vec<_> = sized
            .iter()
            .filter(|(_, child)| namespaces.contains(&child.metadata.namespace))
            .collect();
        within.sort_by_key(|(size, _)| std::cmp::Reverse(*size));
        let largest = within.iter().take(NAMED);
        let largest =
            largest.map(|(size, child)| format!("{} ({} KiB)", ChildRef::of(child), size.div_ceil(1 << 10)));
        let shown = observed
            .iter()
            .map(|child| match namespaces.contains(&child.metadata.namespace) {
                true => Arc::new(identity(child)),
                false => Arc::clone(child),
            });
        Ok(Self {
            shown: shown.collect(),
            children: within.len(),
            largest: largest.collect(),
            namespaces,
            error,
        })
    }

    /// Whether nothing is changed in the namespace of this object.
    pub(super) fn has(&self, name: &NamespacedName) -> bool {
        self.namespaces.contains(&name.namespace)
    }
}

/// Why the reconcile fails, and what to do.
impl fmt::Display for Crowded {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let places = self.namespaces.iter().map(|namespace| match namespace {
            Some(namespace) => format!("in the namespace {namespace}"),
            None => "without a namespace".to_owned(),
        });
        write!(
            f,
            "{}. {} children {} take most of it, such as {}: delete those that the plugin did not make. Until then nothing \
             is changed there, and no child of this resource is deleted",
            self.error,
            self.children,
            places.collect::<Vec<_>>().join(" and "),
            self.largest.join(", ")
        )
    }
}

/// Returns the number of bytes of an object's JSON.
fn size(object: &impl Serialize) -> usize {
    struct Count(usize);
    impl io::Write for Count {
        fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
            self.0 += bytes.len();
            Ok(bytes.len())
        }

        fn flush(&mut self) -> io::Result<()> {
            Ok(())
        }
    }
    let mut count = Count(0);
    // Counting does not fail, and an object from the API server can be written.
    let _ = serde_json::to_writer(&mut count, object);
    count.0
}

/// Returns only what identifies an object.
fn identity(object: &DynamicObject) -> DynamicObject {
    DynamicObject {
        types: object.types.clone(),
        metadata: ObjectMeta {
            name: object.metadata.name.clone(),
            namespace: object.metadata.namespace.clone(),
            uid: object.metadata.uid.clone(),
            ..ObjectMeta::default()
        },
        data: Value::Object(serde_json::Map::new()),
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    const LIMIT: usize = 10_000;

    fn object(kind: &str, namespace: Option<&str>, name: &str, bytes: usize) -> Arc<DynamicObject> {
        let object = json!({
            "apiVersion": "v1", "kind": kind, "metadata": { "name": name, "namespace": namespace },
            "data": { "text": "x".repeat(bytes) },
        });
        Arc::new(serde_json::from_value(object).unwrap())
    }

    fn crowded(parent: Option<&str>, children: &[Arc<DynamicObject>]) -> Result<Crowded, CallError> {
        let error = CallError::Request {
            limit: LIMIT,
            children: children.len(),
            related: 0,
        };
        Crowded::of(&object("K", parent, "p", 0), children, LIMIT, error)
    }

    #[test]
    fn the_namespaces_with_the_most_are_left_alone() {
        let mut children = vec![object("ConfigMap", None, "own", 10)];
        for number in 0..9 {
            children.push(object(
                "ConfigMap",
                Some("full"),
                &format!("f{number}"),
                900 + number,
            ));
            children.push(object("ConfigMap", Some("other"), &format!("o{number}"), 100));
        }
        let crowded = crowded(None, &children).unwrap();
        let is_full = |namespace: Option<&str>| {
            crowded.has(&NamespacedName {
                namespace: namespace.map(str::to_owned),
                name: "any".into(),
            })
        };
        assert_eq!(
            [Some("full"), Some("other"), None].map(is_full),
            [true, false, false]
        );
        assert_eq!(crowded.shown.len(), children.len());
        for (shown, child) in crowded.shown.iter().zip(&children) {
            assert_eq!(ChildRef::of(shown), ChildRef::of(child));
            let is_whole = shown.data == child.data;
            assert_eq!(is_whole, child.metadata.namespace.as_deref() != Some("full"));
        }
        let words = crowded.to_string();
        assert!(
            words.contains(
                "9 children in the namespace full take most of it, such as ConfigMap full/f8 (1 KiB), ConfigMap full/f7"
            ),
            "{words}"
        );
    }

    #[test]
    fn every_namespace_can_be_too_full() {
        let children = ["a", "b"].map(|namespace| object("ConfigMap", Some(namespace), "c", 9_000));
        let crowded = crowded(None, &children).unwrap();
        assert_eq!(crowded.namespaces.len(), 2);
    }

    #[test]
    fn nothing_is_left_alone_when_the_children_are_small_or_in_the_parents_namespace() {
        let small = [object("ConfigMap", Some("a"), "c", 2_000)];
        assert!(matches!(crowded(None, &small), Err(CallError::Request { .. })));
        let large = [object("ConfigMap", Some("a"), "c", 20_000)];
        assert!(matches!(
            crowded(Some("a"), &large),
            Err(CallError::Request { .. })
        ));
    }
}
