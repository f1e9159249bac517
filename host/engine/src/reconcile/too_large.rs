//! Children that are too large for one request: says which, since the objects may have been made by others.

use std::collections::BTreeMap;
use std::io;
use std::sync::Arc;

use kube::core::DynamicObject;

use super::error::ReconcileError;
use operator_host_core::object::ChildRef;
use operator_host_runtime::CallError;

/// How many of the largest children a message names.
const NAMED: usize = 3;

/// Adds to the error for a request of more than `limit` bytes what takes most of it, if it is the children.
pub(super) fn too_large(observed: &[Arc<DynamicObject>], limit: usize, error: CallError) -> ReconcileError {
    let mut sized: Vec<_> = observed.iter().map(|child| (size(child), child)).collect();
    let total: usize = sized.iter().map(|(size, _)| size).sum();
    let mut sizes: BTreeMap<_, (usize, usize)> = BTreeMap::new();
    for (size, child) in &sized {
        let (bytes, children) = sizes.entry(&child.metadata.namespace).or_default();
        *bytes += size;
        *children += 1;
    }
    let largest = sizes.into_iter().max_by_key(|(_, (bytes, _))| *bytes);
    let Some((namespace, (_, children))) = largest.filter(|_| total > limit / 2) else {
        return ReconcileError::Call(error);
    };
    let place = match namespace {
        Some(namespace) => format!("in the namespace {namespace}"),
        None => "without a namespace".to_owned(),
    };
    sized.retain(|(_, child)| child.metadata.namespace == *namespace);
    sized.sort_by_key(|(size, _)| std::cmp::Reverse(*size));
    let names: Vec<_> = sized
        .iter()
        .take(NAMED)
        .map(|(size, child)| format!("{} ({} KiB)", ChildRef::of(child), size.div_ceil(1 << 10)))
        .collect();
    ReconcileError::ChildrenTooLarge(format!(
        "{error}. {children} children {place} take most of it, such as {}: delete those that the plugin did not make",
        names.join(", ")
    ))
}

/// Returns the number of bytes of an object's JSON.
fn size(object: &DynamicObject) -> usize {
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

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    const LIMIT: usize = 10_000;

    fn config_map(namespace: &str, name: &str, bytes: usize) -> Arc<DynamicObject> {
        let object = json!({
            "apiVersion": "v1", "kind": "ConfigMap", "metadata": { "name": name, "namespace": namespace },
            "data": { "text": "x".repeat(bytes) },
        });
        Arc::new(serde_json::from_value(object).unwrap())
    }

    fn message(children: &[Arc<DynamicObject>]) -> String {
        let error = CallError::Request {
            limit: LIMIT,
            children: children.len(),
            related: 0,
        };
        too_large(children, LIMIT, error).to_string()
    }

    #[test]
    fn the_namespace_with_the_most_is_named_with_its_largest_children() {
        let mut children = Vec::new();
        for number in 0..9 {
            children.push(config_map("full", &format!("f{number}"), 900 + number));
            children.push(config_map("other", &format!("o{number}"), 100));
        }
        let message = message(&children);
        let words = "9 children in the namespace full take most of it, such as ConfigMap full/f8 (1 KiB), ConfigMap full/f7";
        assert!(message.contains(words), "{message}");
    }

    #[test]
    fn small_children_are_not_named() {
        let message = message(&[config_map("a", "c", 2_000)]);
        assert!(!message.contains("take most of it"), "{message}");
    }
}
