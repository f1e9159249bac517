//! Replaces pods whose specs have changed, one at a time.

use serde_json::Value;

use crate::kinds::POD;
use crate::object::Object;
use crate::response::ObjectRef;

/// The annotation of a pod with the hash of the spec that it was created from.
pub const TEMPLATE_HASH: &str = "operator-host.dev/template-hash";

/// The changes to a set of desired pods in this reconcile.
#[derive(Debug, PartialEq)]
pub struct Rollout {
    /// The pods to pass to [`Response::children`](crate::Response::children).
    pub apply: Vec<Value>,
    /// Pods of an earlier spec that wait for their turn, to pass to [`Response::keep`](crate::Response::keep).
    pub keep: Vec<ObjectRef>,
    /// The pod that is being replaced in this reconcile.
    pub replaced: Option<String>,
    /// The names of all desired pods.
    pub names: Vec<String>,
    /// How many of them exist with another spec, including the one being replaced.
    pub outdated: usize,
}

/// Decides which of the desired pods are applied, kept or, by omission, deleted and then recreated.
///
/// Most of a pod's spec is immutable. Each pod carries a hash of the spec that it was created from in the
/// annotation [`TEMPLATE_HASH`]. A pod with another hash is replaced once all pods of the current spec exist and
/// are Ready: one at a time, first those that are not Ready, then the last. A pod that has ended (`Failed`,
/// `Succeeded`) is replaced at once.
#[must_use]
pub fn rolling(desired: impl IntoIterator<Item = Value>, observed: &[Object]) -> Rollout {
    let mut rollout = Rollout {
        apply: Vec::new(),
        keep: Vec::new(),
        replaced: None,
        names: Vec::new(),
        outdated: 0,
    };
    let mut outdated: Vec<&Object> = Vec::new();
    let mut settled = true;
    for mut pod in desired {
        let hash = hash(&pod["spec"]);
        pod["metadata"]["annotations"][TEMPLATE_HASH] = Value::from(hash.as_str());
        let name = pod["metadata"]["name"].as_str().unwrap_or_default();
        rollout.names.push(name.to_owned());
        // A pod without one is in its parent's namespace, and so are all observed objects then.
        let namespace = pod["metadata"]["namespace"].as_str();
        let is_this = |object: &&Object| {
            object.is(POD)
                && object.name() == name
                && (namespace.is_none() || object.namespace() == namespace)
        };
        match observed.iter().find(is_this) {
            Some(existing) if existing.is_terminating() => {
                rollout.keep.push(existing.into());
                settled = false;
            }
            Some(existing) if existing.is_finished_pod() => settled = false,
            Some(existing) if existing.annotation(TEMPLATE_HASH) != Some(&hash) => outdated.push(existing),
            existing => {
                settled &= existing.is_some_and(Object::is_ready);
                rollout.apply.push(pod);
            }
        }
    }
    rollout.outdated = outdated.len();
    if settled {
        let next = outdated
            .iter()
            .rposition(|pod| !pod.is_ready_pod())
            .or(outdated.len().checked_sub(1));
        rollout.replaced = next.map(|next| outdated.remove(next).name().to_owned());
    }
    rollout.keep.extend(outdated.into_iter().map(ObjectRef::from));
    rollout
}

/// Returns the FNV-1a hash of the spec's text, whose maps are sorted by key.
fn hash(spec: &Value) -> String {
    let mut hash: u64 = 0xcbf2_9ce4_8422_2325;
    for byte in spec.to_string().bytes() {
        hash = (hash ^ u64::from(byte)).wrapping_mul(0x0100_0000_01b3);
    }
    format!("{hash:016x}")
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn desired(image: &str) -> Vec<Value> {
        let pods = ["a", "b", "c"];
        pods.map(|name| json!({ "metadata": { "name": name }, "spec": { "image": image } }))
            .to_vec()
    }

    fn observed(name: &str, image: &str, ready: bool) -> Object {
        Object::from(json!({
            "apiVersion": "v1",
            "kind": "Pod",
            "metadata": { "name": name, "annotations": { TEMPLATE_HASH: hash(&json!({ "image": image })) } },
            "status": { "conditions": [{ "type": "Ready", "status": if ready { "True" } else { "False" } }] },
        }))
    }

    fn replaced(observed: &[Object]) -> Option<String> {
        rolling(desired("new"), observed).replaced
    }

    #[test]
    fn the_last_goes_first_when_all_are_ready() {
        let pods = ["a", "b", "c"].map(|name| observed(name, "old", true));
        assert_eq!(replaced(&pods).as_deref(), Some("c"));
    }

    #[test]
    fn one_that_is_not_ready_goes_before_those_that_are() {
        let pods = [
            observed("a", "old", true),
            observed("b", "old", false),
            observed("c", "old", true),
        ];
        assert_eq!(replaced(&pods).as_deref(), Some("b"));
    }

    #[test]
    fn the_next_waits_until_the_last_is_ready() {
        let pods = [
            observed("a", "old", true),
            observed("b", "old", true),
            observed("c", "new", false),
        ];
        assert_eq!(replaced(&pods), None);
        assert_eq!(replaced(&pods[..2]), None, "c is not there yet");
    }

    #[test]
    fn every_pod_is_applied_kept_or_replaced() {
        let pods = [
            observed("a", "old", true),
            observed("b", "old", true),
            observed("c", "new", true),
        ];
        let rollout = rolling(desired("new"), &pods);
        assert_eq!(rollout.replaced.as_deref(), Some("b"));
        assert_eq!(rollout.keep, [ObjectRef::from(&pods[0])]);
        assert_eq!(rollout.apply.len(), 1);
        assert_eq!(rollout.outdated, 2);
    }

    #[test]
    fn nothing_happens_to_pods_of_the_present_spec() {
        let pods = ["a", "b", "c"].map(|name| observed(name, "new", true));
        let rollout = rolling(desired("new"), &pods);
        assert_eq!(
            (rollout.apply.len(), rollout.keep.len(), rollout.replaced),
            (3, 0, None)
        );
    }
}
