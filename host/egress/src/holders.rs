//! Who holds what is outside: of several Externals for the same endpoint and path, the oldest.

use std::collections::{BTreeMap, HashMap};
use std::sync::{Arc, Mutex};

use kube::core::DynamicObject;

use super::spec::identity;
use operator_host_core::object::NamespacedName;
use operator_host_core::sync::lock;

/// What an External claims, since when it exists, and its UID: two of the same second are ordered by that, for every replica
/// alike. Of those with the same identity, the first holds.
type Claim = [String; 3];

/// Who claims what. Those that only read claim nothing.
#[derive(Default)]
pub(crate) struct Holders(Mutex<State>);

#[derive(Default)]
struct State {
    claims: BTreeMap<Claim, NamespacedName>,
    /// What each External claims.
    of: HashMap<NamespacedName, Claim>,
}

impl State {
    /// Returns who holds what a claim is about.
    fn holder(&self, [identity, ..]: &Claim) -> Option<&NamespacedName> {
        let least = [identity.clone(), String::new(), String::new()];
        let (first, holder) = self.claims.range(least..).next()?;
        (first[0] == *identity).then_some(holder)
    }
}

impl Holders {
    /// Takes the current state of an External that may use its endpoint; `None` when it is gone. Returns who holds next what
    /// it no longer claims. Of two updates at a time, the later one reads the later state.
    pub(crate) fn update(
        &self,
        name: &NamespacedName,
        current: impl FnOnce() -> Option<Arc<DynamicObject>>,
    ) -> Option<NamespacedName> {
        let mut state = lock(&self.0);
        let claim = current().as_deref().and_then(claim);
        if state.of.get(name) == claim.as_ref() {
            return None;
        }
        let next = state.of.remove(name).and_then(|old| {
            state.claims.remove(&old);
            state.holder(&old).cloned()
        });
        if let Some(claim) = claim {
            state.claims.insert(claim.clone(), name.clone());
            state.of.insert(name.clone(), claim);
        }
        next
    }

    /// Returns who holds what an External claims, unless it does so itself.
    pub(crate) fn other(&self, name: &NamespacedName) -> Option<NamespacedName> {
        let state = lock(&self.0);
        let holder = state.holder(state.of.get(name)?)?;
        (holder != name).then(|| holder.clone())
    }
}

/// Returns what an External claims: what it sets or unsets. Once it has an identity, a change of the spec claims nothing else.
fn claim(external: &DynamicObject) -> Option<Claim> {
    let (metadata, spec) = (&external.metadata, &external.data["spec"]);
    if spec["set"].is_null() && spec["unset"].is_null() {
        return None;
    }
    let identity = match external.data["status"]["identity"].as_str() {
        Some(first) => first.to_owned(),
        None => identity(spec["endpoint"].as_str()?, spec["observe"]["path"].as_str()?),
    };
    let created = metadata.creation_timestamp.as_ref();
    let created = created.map(|time| time.0.to_string());
    let uid = metadata.uid.clone();
    Some([identity, created.unwrap_or_default(), uid.unwrap_or_default()])
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn external(created: &str, uid: &str, path: &str, sets: bool) -> DynamicObject {
        let mut spec = json!({"endpoint": "dns", "observe": {"path": path}});
        if sets {
            spec["set"] = json!({});
        }
        let metadata = json!({"name": uid, "creationTimestamp": created, "uid": uid});
        serde_json::from_value(json!({"metadata": metadata, "spec": spec})).unwrap()
    }

    #[test]
    fn the_oldest_that_writes_holds_and_the_next_one_after_it() {
        let (old, new) = ("2026-01-01T00:00:00Z", "2026-01-01T00:00:01Z");
        let name = |name: &str| NamespacedName::new(Some("shop".into()), name);
        let holders = Holders::default();
        let update = |it: &str, external: Option<&DynamicObject>| {
            holders.update(&name(it), || external.cloned().map(Arc::new))
        };
        update("young", Some(&external(new, "a", "/a", true)));
        assert_eq!(holders.other(&name("young")), None);
        update("old", Some(&external(old, "b", "/a", true)));
        update("reader", Some(&external(old, "a", "/a", false)));
        update("elsewhere", Some(&external(old, "a", "/b", true)));
        assert_eq!(holders.other(&name("young")), Some(name("old")));
        for other in ["old", "reader", "elsewhere"] {
            assert_eq!(holders.other(&name(other)), None, "{other}");
        }
        assert_eq!(update("old", None), Some(name("young")));
        assert_eq!(holders.other(&name("young")), None);
        let mut moved = external(old, "c", "/elsewhere", true);
        update("moved", Some(&moved));
        moved.data["status"] = json!({"identity": "dns /elsewhere"});
        moved.data["spec"]["observe"]["path"] = "/a".into();
        update("moved", Some(&moved));
        // The path of another is not taken by an edit.
        assert_eq!(holders.other(&name("young")), None);
        let twin = external(new, "0", "/a", true);
        update("twin", Some(&twin));
        // Of one second, by the UID.
        assert_eq!(holders.other(&name("young")), Some(name("twin")));
        // Nothing has changed.
        assert_eq!(update("twin", Some(&twin)), None);
    }
}
