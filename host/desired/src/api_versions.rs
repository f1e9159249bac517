//! Chooses the version in which a plugin sees an object that is watched in several versions of its kind or in
//! several groups. Pure.

use std::collections::{HashMap, HashSet};
use std::sync::Arc;

use kube::core::DynamicObject;

use operator_host_contract::Kind;
use operator_host_core::object::{ChildRef, is_terminating};

/// The version in which a plugin's answer last named each object, by UID.
pub type Used = HashMap<String, Kind>;

/// Reports whether two of these kinds can refer to the same object. Kinds with different names never do.
pub fn overlap<'a>(kinds: impl IntoIterator<Item = &'a Kind>) -> bool {
    let mut names = HashSet::new();
    kinds.into_iter().any(|kind| !names.insert(kind.kind.as_str()))
}

/// Returns each object once, in the given order: in the version in which the plugin last named it, otherwise in the
/// first version that the plugin declares to make, otherwise in the first available one. A version in which the
/// object is known to be terminating takes precedence: the other caches have not received the deletion yet.
#[must_use]
pub fn once_each(objects: Vec<Arc<DynamicObject>>, used: &Used, makes: &[Kind]) -> Vec<Arc<DynamicObject>> {
    let rank = |object: &DynamicObject, uid: &str| {
        let kind = ChildRef::of(object).kind;
        let made = makes.iter().position(|made| *made == kind);
        (
            !is_terminating(object),
            used.get(uid) != Some(&kind),
            made.unwrap_or(usize::MAX),
        )
    };
    let mut best: HashMap<String, usize> = HashMap::new();
    for (index, object) in objects.iter().enumerate() {
        let uid = object.metadata.uid.clone().unwrap_or_default();
        match best.get(&uid) {
            Some(other) if rank(&objects[*other], &uid) <= rank(object, &uid) => {}
            _ => {
                best.insert(uid, index);
            }
        }
    }
    let shown: HashSet<usize> = best.into_values().collect();
    let mut index = 0..;
    let mut objects = objects;
    objects.retain(|_| index.next().is_some_and(|index| shown.contains(&index)));
    objects
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn kind(version: &str) -> Kind {
        Kind {
            api_version: format!("autoscaling/{version}"),
            kind: "HorizontalPodAutoscaler".into(),
        }
    }

    fn scaler(version: &str, uid: &str, going: bool) -> Arc<DynamicObject> {
        let object = json!({
            "apiVersion": format!("autoscaling/{version}"), "kind": "HorizontalPodAutoscaler",
            "metadata": {
                "name": uid, "uid": uid,
                "deletionTimestamp": going.then_some("2026-01-01T00:00:00Z"),
            },
        });
        Arc::new(serde_json::from_value(object).unwrap())
    }

    #[track_caller]
    fn shown(objects: &[Arc<DynamicObject>], used: Option<&str>, makes: &[&str], expected: &[(&str, &str)]) {
        let used: Used = used
            .map(|version| ("a".to_owned(), kind(version)))
            .into_iter()
            .collect();
        let makes: Vec<Kind> = makes.iter().map(|version| kind(version)).collect();
        let shown: Vec<_> = once_each(objects.to_vec(), &used, &makes)
            .iter()
            .map(|object| {
                (
                    ChildRef::of(object).kind.api_version,
                    object.metadata.uid.clone().unwrap(),
                )
            })
            .collect();
        let expected: Vec<_> = expected
            .iter()
            .map(|(version, uid)| (format!("autoscaling/{version}"), (*uid).to_owned()))
            .collect();
        assert_eq!(shown, expected);
    }

    #[test]
    fn an_object_is_shown_once_in_the_version_that_the_plugin_uses() {
        let all = [
            scaler("v1", "a", false),
            scaler("v1", "b", false),
            scaler("v2", "a", false),
            scaler("v2", "b", false),
        ];
        shown(&all, None, &[], &[("v1", "a"), ("v1", "b")]);
        shown(&all, None, &["v2"], &[("v2", "a"), ("v2", "b")]);
        shown(&all, None, &["v2", "v1"], &[("v2", "a"), ("v2", "b")]);
        shown(&all, Some("v1"), &["v2"], &[("v1", "a"), ("v2", "b")]);
        // An object that one cache has not received yet is shown in the other's version.
        shown(&all[..3], Some("v1"), &["v2"], &[("v1", "a"), ("v1", "b")]);
    }

    #[test]
    fn an_object_that_one_version_knows_to_be_going_is_shown_going() {
        let all = [scaler("v1", "a", false), scaler("v2", "a", true)];
        shown(&all, Some("v1"), &["v1"], &[("v2", "a")]);
    }

    #[test]
    fn kinds_of_one_name_overlap_whatever_their_group() {
        let ingress = |group: &str| Kind {
            api_version: group.into(),
            kind: "Ingress".into(),
        };
        assert!(overlap(&[kind("v1"), kind("v2")]));
        assert!(overlap(&[
            ingress("extensions/v1beta1"),
            ingress("networking.k8s.io/v1")
        ]));
        assert!(!overlap(&[kind("v1"), ingress("networking.k8s.io/v1")]));
    }
}
