//! Who holds what is outside: of several Externals for the same endpoint and path, the oldest.

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::sync::Mutex;

use kube::core::DynamicObject;

use operator_host_core::object::NamespacedName;
use operator_host_core::sync::lock;

/// The age of an External, and who it is. The smallest holds.
type Claim = (String, String, NamespacedName);

/// Who claims what. Those that only read claim nothing.
#[derive(Default)]
pub(crate) struct Holders(Mutex<State>);

#[derive(Default)]
struct State {
    claims: BTreeMap<String, BTreeSet<Claim>>,
    /// What each External claims.
    of: HashMap<NamespacedName, (String, Claim)>,
}

impl Holders {
    /// Takes the current state of an External that may use its endpoint; `None` when it is gone. Returns who holds next what
    /// it no longer claims.
    pub(crate) fn update(
        &self,
        name: &NamespacedName,
        external: Option<&DynamicObject>,
    ) -> Option<NamespacedName> {
        let mut state = lock(&self.0);
        let claim = external.and_then(|external| Some((identity(external)?, claim(name, external))));
        if state.of.get(name) == claim.as_ref() {
            return None;
        }
        let mut next = None;
        if let Some((identity, claim)) = state.of.remove(name)
            && let Some(claims) = state.claims.get_mut(&identity)
        {
            claims.remove(&claim);
            next = claims.first().map(|(_, _, name)| name.clone());
            if claims.is_empty() {
                state.claims.remove(&identity);
            }
        }
        if let Some((identity, claim)) = claim {
            state
                .claims
                .entry(identity.clone())
                .or_default()
                .insert(claim.clone());
            state.of.insert(name.clone(), (identity, claim));
        }
        next
    }

    /// Returns who holds what an External claims, unless it does so itself.
    pub(crate) fn other(&self, name: &NamespacedName) -> Option<NamespacedName> {
        let state = lock(&self.0);
        let (identity, _) = state.of.get(name)?;
        let (_, _, holder) = state.claims.get(identity)?.first()?;
        (holder != name).then(|| holder.clone())
    }
}

fn claim(name: &NamespacedName, external: &DynamicObject) -> Claim {
    let metadata = &external.metadata;
    // Two of the same second are ordered by their UIDs, for every replica alike.
    let created = metadata
        .creation_timestamp
        .as_ref()
        .map(|time| time.0.to_string());
    (
        created.unwrap_or_default(),
        metadata.uid.clone().unwrap_or_default(),
        name.clone(),
    )
}

/// Returns what an External claims: what it sets or unsets. Once it has an identity, a change of the spec claims nothing else.
fn identity(external: &DynamicObject) -> Option<String> {
    let spec = &external.data["spec"];
    let is_writer = !spec["set"].is_null() || !spec["unset"].is_null();
    let first = external.data["status"]["identity"].as_str().map(str::to_owned);
    let of = || {
        let path = spec["observe"]["path"].as_str()?;
        Some(super::spec::identity(spec["endpoint"].as_str()?, path))
    };
    first.or_else(of).filter(|_| is_writer)
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
        let name = |name: &str| NamespacedName {
            namespace: Some("shop".into()),
            name: name.into(),
        };
        let holders = Holders::default();
        holders.update(&name("young"), Some(&external(new, "a", "/a", true)));
        assert_eq!(holders.other(&name("young")), None);
        holders.update(&name("old"), Some(&external(old, "b", "/a", true)));
        holders.update(&name("reader"), Some(&external(old, "a", "/a", false)));
        holders.update(&name("elsewhere"), Some(&external(old, "a", "/b", true)));
        assert_eq!(holders.other(&name("young")), Some(name("old")));
        for other in ["old", "reader", "elsewhere"] {
            assert_eq!(holders.other(&name(other)), None, "{other}");
        }
        assert_eq!(holders.update(&name("old"), None), Some(name("young")));
        assert_eq!(holders.other(&name("young")), None);
        let mut moved = external(old, "c", "/elsewhere", true);
        holders.update(&name("moved"), Some(&moved));
        moved.data["status"] = json!({"identity": "dns /elsewhere"});
        moved.data["spec"]["observe"]["path"] = "/a".into();
        holders.update(&name("moved"), Some(&moved));
        assert_eq!(
            holders.other(&name("young")),
            None,
            "the path of another is not taken by an edit"
        );
        let twin = external(new, "0", "/a", true);
        holders.update(&name("twin"), Some(&twin));
        assert_eq!(
            holders.other(&name("young")),
            Some(name("twin")),
            "of one second, by the UID"
        );
        assert_eq!(
            holders.update(&name("twin"), Some(&twin)),
            None,
            "nothing has changed"
        );
    }
}
