//! The trees of the objects that were looked at last.
//!
//! A reconcile looks at the same few objects several times, and the next one probably at others. The latest trees are kept
//! for the next look, those of all others are made again from their text. While somebody holds a tree, it is not made a
//! second time, however large it is.

use std::collections::{HashMap, VecDeque};
use std::sync::{Arc, Mutex, Weak};

use kube::core::DynamicObject;

use super::text::Text;
use operator_host_core::sync::lock;

/// The most bytes of text of the trees that are kept. A tree takes up to ten times as many.
const BYTES: usize = 256 << 10;

/// How many trees are remembered before those that are not used any more are forgotten.
const REMEMBERED: usize = 64;

/// The trees of all caches of the process.
#[derive(Default)]
pub(super) struct Trees(Mutex<State>);

#[derive(Default)]
struct State {
    /// By the address of the text, which is not used again while its entry exists.
    trees: HashMap<usize, (Weak<Text>, Weak<DynamicObject>)>,
    /// The number of entries at which unused ones are next removed.
    limit: usize,
    /// The latest trees, each with the bytes of its text.
    latest: VecDeque<(usize, Arc<DynamicObject>)>,
    /// The sum of these bytes.
    bytes: usize,
}

impl Trees {
    /// Returns the tree of a text, which `make` makes unless it is there.
    pub(super) fn of(&self, text: &Arc<Text>, make: impl FnOnce() -> DynamicObject) -> Arc<DynamicObject> {
        self.get(text).unwrap_or_else(|| {
            let tree = Arc::new(make());
            self.put(text, &tree);
            tree
        })
    }

    fn get(&self, text: &Arc<Text>) -> Option<Arc<DynamicObject>> {
        let state = lock(&self.0);
        let (_, tree) = state.trees.get(&Arc::as_ptr(text).addr())?;
        tree.upgrade()
    }

    /// Remembers the tree of a text.
    pub(super) fn put(&self, text: &Arc<Text>, tree: &Arc<DynamicObject>) {
        let mut state = lock(&self.0);
        if state.trees.len() >= state.limit {
            state.trees.retain(|_, (_, tree)| tree.strong_count() > 0);
            state.limit = REMEMBERED.max(2 * state.trees.len());
        }
        let entry = (Arc::downgrade(text), Arc::downgrade(tree));
        state.trees.insert(Arc::as_ptr(text).addr(), entry);
        // A large object would push out all others.
        if text.bytes() > BYTES {
            return;
        }
        state.latest.push_back((text.bytes(), Arc::clone(tree)));
        state.bytes += text.bytes();
        while state.bytes > BYTES
            && let Some((bytes, _)) = state.latest.pop_front()
        {
            state.bytes -= bytes;
        }
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
    fn a_tree_is_made_once_for_looks_that_follow_each_other() {
        let trees = Trees::default();
        let (hot, object) = text(1000);
        let first = Arc::downgrade(&trees.of(&hot, || object));
        for _ in 0..100 {
            let (other, object) = text(1000);
            trees.of(&other, || object);
            let again = trees.of(&hot, || panic!("made again"));
            assert!(Weak::ptr_eq(&first, &Arc::downgrade(&again)));
        }
    }

    #[test]
    fn the_trees_are_bounded_however_many_objects_there_are() {
        let trees = Trees::default();
        let texts: Vec<_> = (0..1000).map(|number| text(100 * (number % 20))).collect();
        for (text, object) in &texts {
            trees.of(text, || object.clone());
            let state = lock(&trees.0);
            let bytes: usize = state.latest.iter().map(|(bytes, _)| bytes).sum();
            assert!(bytes <= BYTES && bytes == state.bytes);
            assert!(state.trees.len() <= state.limit && state.limit < texts.len());
        }
        let (last, _) = &texts[999];
        assert!(trees.get(last).is_some());
        for _ in 0..1000 {
            let (huge, object) = text(2 * BYTES);
            trees.of(&huge, || object);
            assert!(trees.get(&huge).is_none());
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
