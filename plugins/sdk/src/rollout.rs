//! Pods whose specs change are replaced one at a time.

use serde_json::Value;

use crate::kinds::POD;
use crate::object::Object;
use crate::response::ObjectRef;

/// The annotation of a pod that says which spec it was made from.
pub const TEMPLATE_HASH: &str = "operator-host.dev/template-hash";

/// What becomes of a set of desired pods in this pass.
#[derive(Debug, PartialEq)]
pub struct Rollout {
    /// To give to [`Response::children`](crate::Response::children).
    pub apply: Vec<Value>,
    /// Pods of an earlier spec that wait for their turn: to [`Response::keep`](crate::Response::keep).
    pub keep: Vec<ObjectRef>,
    /// The pod that is being replaced in this pass.
    pub replaced: Option<String>,
    /// The names of all desired pods.
    pub names: Vec<String>,
    /// How many of them exist and were made from another spec, the replaced one among them.
    pub outdated: usize,
}

/// Decides which of the desired pods are applied, kept or, by being left out, deleted to be made anew.
///
/// Most of a pod's spec cannot change while it lives. Each pod carries a hash of the spec it was made from, in
/// the annotation [`TEMPLATE_HASH`]. A pod whose hash is another is replaced when all those of the present spec
/// are there and Ready: one at a time, those that are not Ready first, else the last first. A pod that has ended
/// (`Failed`, `Succeeded`) is replaced at once.
#[must_use]
pub fn rolling(desired: impl IntoIterator<Item = Value>, observed: &[Object]) -> Rollout {
    let mut rollout = Rollout { apply: Vec::new(), keep: Vec::new(), replaced: None, names: Vec::new(), outdated: 0 };
    let mut outdated: Vec<&Object> = Vec::new();
    let mut settled = true;
    for mut pod in desired {
        let hash = hash(&pod["spec"]);
        pod["metadata"]["annotations"][TEMPLATE_HASH] = Value::from(hash.as_str());
        let name = pod["metadata"]["name"].as_str().unwrap_or_default();
        rollout.names.push(name.to_owned());
        match observed.iter().find(|object| object.is(POD) && object.name() == name) {
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
        let next = outdated.iter().rposition(|pod| !pod.is_ready()).or(outdated.len().checked_sub(1));
        rollout.replaced = next.map(|next| outdated.remove(next).name().to_owned());
    }
    rollout.keep.extend(outdated.into_iter().map(ObjectRef::from));
    rollout
}

/// FNV-1a of the spec's text, whose maps are sorted by key.
fn hash(spec: &Value) -> String {
    let mut hash: u64 = 0xcbf2_9ce4_8422_2325;
    for byte in spec.to_string().bytes() {
        hash = (hash ^ u64::from(byte)).wrapping_mul(0x0100_0000_01b3);
    }
    format!("{hash:016x}")
}
