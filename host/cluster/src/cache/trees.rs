//! The trees of the objects that were looked at last.
//!
//! A reconcile looks at the same few objects several times, and the next one probably at others. The trees of the first
//! are kept for the next look, those of all others are made again from their text. While somebody holds a tree, it is
//! not made a second time, however large it is.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, PoisonError, Weak};

use kube::core::DynamicObject;

use super::text::Text;

/// The most bytes of text in one of the two generations. A tree takes up to ten times as many.
const BYTES: usize = 128 << 10;

/// How many trees in use are remembered before those that are not used any more are forgotten.
const IN_USE: usize = 64;

/// The trees of all caches of the process.
#[derive(Default)]
pub(super) struct Trees(Mutex<Generations>);

#[derive(Default)]
struct Generations {
    young: Generation,
    old: Generation,
    /// Bytes of text in the young generation.
    bytes: usize,
    /// Trees that are in neither generation and that somebody held when they were last there. By the address of the
    /// text, which is not used again while its entry exists.
    in_use: HashMap<usize, (Weak<Text>, Weak<DynamicObject>)>,
    /// The number of entries at which unused ones are next removed.
    in_use_limit: usize,
}

/// By the address of the text, which is not used again while its entry holds the text.
type Generation = HashMap<usize, (Arc<Text>, Arc<DynamicObject>)>;

impl Trees {
    /// Returns the tree of a text, which `make` makes unless it is known.
    pub(super) fn of(&self, text: &Arc<Text>, make: impl FnOnce() -> DynamicObject) -> Arc<DynamicObject> {
        if let Some(tree) = self.get(text) {
            return tree;
        }
        let tree = Arc::new(make());
        self.put(text, &tree);
        tree
    }

    fn get(&self, text: &Arc<Text>) -> Option<Arc<DynamicObject>> {
        let mut trees = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let key = Arc::as_ptr(text).addr();
        if let Some((_, tree)) = trees.young.get(&key) {
            return Some(Arc::clone(tree));
        }
        let tree = match trees.old.remove(&key) {
            Some((_, tree)) => tree,
            None => trees.in_use.get(&key)?.1.upgrade()?,
        };
        trees.add(text, &tree);
        Some(tree)
    }

    /// Remembers the tree of a text.
    pub(super) fn put(&self, text: &Arc<Text>, tree: &Arc<DynamicObject>) {
        self.0
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
            .add(text, tree);
    }
}

impl Generations {
    fn add(&mut self, text: &Arc<Text>, tree: &Arc<DynamicObject>) {
        // A large object would push out all others.
        if text.bytes() > BYTES {
            self.remember_in_use(text, tree);
            return;
        }
        if self.bytes + text.bytes() > BYTES {
            let young = std::mem::take(&mut self.young);
            self.bytes = 0;
            for (text, tree) in std::mem::replace(&mut self.old, young).into_values() {
                if Arc::strong_count(&tree) > 1 {
                    self.remember_in_use(&text, &tree);
                }
            }
        }
        let entry = (Arc::clone(text), Arc::clone(tree));
        if self.young.insert(Arc::as_ptr(text).addr(), entry).is_none() {
            self.bytes += text.bytes();
        }
    }

    fn remember_in_use(&mut self, text: &Arc<Text>, tree: &Arc<DynamicObject>) {
        if self.in_use.len() >= self.in_use_limit {
            self.in_use.retain(|_, (_, tree)| tree.strong_count() > 0);
            self.in_use_limit = IN_USE.max(2 * self.in_use.len());
        }
        let entry = (Arc::downgrade(text), Arc::downgrade(tree));
        self.in_use.insert(Arc::as_ptr(text).addr(), entry);
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::super::packed::Samples;
    use super::*;

    fn text(bytes: usize) -> (Arc<Text>, DynamicObject) {
        let mut object: DynamicObject = serde_json::from_value(json!({
            "apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": "a"}, "data": {"a": "a".repeat(bytes)},
        }))
        .unwrap();
        (
            Arc::new(Text::of(&mut object, None, &[], &Samples::none())),
            object,
        )
    }

    #[test]
    fn a_tree_is_made_once_while_it_is_looked_at() {
        let trees = Trees::default();
        let (hot, object) = text(1000);
        let first = trees.of(&hot, || object.clone());
        for _ in 0..1000 {
            let (other, object) = text(1000);
            trees.of(&other, || object);
            let again = trees.of(&hot, || panic!("made again"));
            assert!(Arc::ptr_eq(&first, &again));
        }
    }

    #[test]
    fn the_trees_are_bounded_however_many_objects_there_are() {
        let trees = Trees::default();
        let texts: Vec<_> = (0..1000).map(|number| text(100 * (number % 20))).collect();
        for (text, object) in &texts {
            trees.of(text, || object.clone());
            let held = trees.0.lock().unwrap();
            let bytes = |trees: &Generation| trees.values().map(|(text, _)| text.bytes()).sum::<usize>();
            assert!(bytes(&held.young) <= BYTES && bytes(&held.old) <= BYTES);
            assert_eq!(bytes(&held.young), held.bytes);
        }
        let (last, _) = &texts[999];
        assert!(trees.get(last).is_some());
        for _ in 0..1000 {
            let (huge, object) = text(2 * BYTES);
            trees.of(&huge, || object);
            assert!(trees.get(&huge).is_none());
            assert!(trees.0.lock().unwrap().in_use.len() <= IN_USE);
        }
        assert!(trees.get(last).is_some(), "a large object pushes out nothing");
    }

    #[test]
    fn a_tree_that_somebody_holds_is_not_made_again() {
        let trees = Trees::default();
        for bytes in [1000, 2 * BYTES] {
            let (held, object) = text(bytes);
            let first = trees.of(&held, || object);
            for _ in 0..1000 {
                let (other, object) = text(1000);
                trees.of(&other, || object);
            }
            let again = trees.of(&held, || panic!("made again"));
            assert!(Arc::ptr_eq(&first, &again));
        }
    }
}
