//! The order in which the children of one parent are applied and deleted.
//!
//! A child lists what comes before it in the annotation [`AFTER_ANNOTATION`]: `Kind.group/name` for each, separated by
//! commas, with the namespace before the name if that is another one. The annotation is on the object in the cluster,
//! too, so the order of a deletion needs no answer of the plugin.

use std::collections::HashSet;
use std::fmt;
use std::sync::Arc;

use kube::core::DynamicObject;

use super::plan::Desired;
use super::readiness::unfinished;
use crate::object::{AFTER_ANNOTATION, ChildRef, Identity, NamespacedName, annotation, is_terminating};

/// A reference in the annotation.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Reference {
    group: String,
    kind: String,
    namespace: Option<String>,
    name: String,
}

impl Reference {
    /// Reports whether it means this object, if it is in the annotation of `child`.
    pub(super) fn means(&self, child: &NamespacedName, object: &Identity) -> bool {
        let same_namespace = match (&self.namespace, &object.name.namespace) {
            (given @ Some(_), namespace) => given == namespace,
            (None, None) => true,
            (None, namespace @ Some(_)) => *namespace == child.namespace,
        };
        same_namespace
            && self.group == object.group
            && self.kind == object.kind
            && self.name == object.name.name
    }
}

impl fmt::Display for Reference {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.kind)?;
        if !self.group.is_empty() {
            write!(f, ".{}", self.group)?;
        }
        let namespace = self.namespace.iter();
        namespace
            .chain([&self.name])
            .try_for_each(|part| write!(f, "/{part}"))
    }
}

/// Parses the value of the annotation.
///
/// # Errors
/// The first part that is no reference.
pub(super) fn parse(text: &str) -> Result<Vec<Reference>, String> {
    let reference = |part: &str| {
        let mut fields = part.trim().split('/');
        let (kind, group) = fields
            .next()
            .map(|kind| kind.split_once('.').unwrap_or((kind, "")))?;
        let (first, second, end) = (fields.next()?, fields.next(), fields.next());
        let (namespace, name) = second.map_or((None, first), |name| (Some(first.to_owned()), name));
        let is_whole =
            !kind.is_empty() && !name.is_empty() && namespace.as_deref() != Some("") && end.is_none();
        is_whole.then(|| Reference {
            group: group.to_owned(),
            kind: kind.to_owned(),
            namespace,
            name: name.to_owned(),
        })
    };
    let parts = text.split(',').filter(|part| !part.trim().is_empty());
    parts
        .map(|part| reference(part).ok_or_else(|| part.trim().to_owned()))
        .collect()
}

/// Returns the first circle among the children, as a list of its members; `None` when there is none.
pub(super) fn circle(desired: &[Desired]) -> Option<Vec<ChildRef>> {
    // Remove what waits for nothing else, until nothing is left or only circles and what waits for them are.
    let mut left: Vec<&Desired> = desired
        .iter()
        .filter(|desired| !desired.after.is_empty())
        .collect();
    loop {
        let keys: HashSet<&ChildRef> = left.iter().map(|desired| &desired.key).collect();
        left.retain(|desired| desired.after.iter().any(|key| keys.contains(key)));
        if left.len() == keys.len() {
            break;
        }
    }
    let mut members: Vec<ChildRef> = vec![left.first()?.key.clone()];
    loop {
        let last = members.last()?;
        let waiting = left.iter().find(|desired| desired.key == *last)?;
        let next = waiting
            .after
            .iter()
            .find(|key| left.iter().any(|desired| desired.key == **key))?;
        if let Some(start) = members.iter().position(|member| member == next) {
            return Some(members.split_off(start));
        }
        members.push(next.clone());
    }
}

/// Returns what a child waits for before it may be created or changed, and why; `None` when it may. `existing` returns
/// an object as last seen.
#[must_use]
pub fn waits_for(
    desired: &Desired,
    existing: impl Fn(&ChildRef) -> Option<Arc<DynamicObject>>,
) -> Option<String> {
    desired.after.iter().find_map(|key| {
        let why = match existing(key) {
            None => "it does not exist yet".to_owned(),
            Some(object) => unfinished(&object)?,
        };
        Some(format!("{} waits for {key}: {why}", desired.key))
    })
}

/// Reports whether some object comes after another one of these.
#[must_use]
pub fn is_ordered(objects: &[&DynamicObject]) -> bool {
    objects.iter().any(|object| is_needed(object, objects))
}

/// Returns which of these objects, which are all to be deleted, may be deleted now: those after which no other one comes.
/// If there is none because they are in a circle, all may. Objects that are being deleted are never returned, but the
/// others wait for them.
#[must_use]
pub fn deletable<'a>(objects: &[&'a DynamicObject]) -> Vec<&'a DynamicObject> {
    let left = || objects.iter().copied().filter(|object| !is_terminating(object));
    let free: Vec<_> = left().filter(|object| !is_needed(object, objects)).collect();
    let is_stuck = free.is_empty() && !objects.iter().any(|object| is_terminating(object));
    if is_stuck { left().collect() } else { free }
}

/// Reports whether another object comes after this one.
fn is_needed(object: &DynamicObject, all: &[&DynamicObject]) -> bool {
    let identity = ChildRef::of(object).identity();
    all.iter()
        .filter(|other| other.metadata.uid != object.metadata.uid)
        .any(|other| {
            // What cannot be parsed was not written by the host.
            let references = annotation(other, AFTER_ANNOTATION).map(parse);
            let references = references.and_then(Result::ok).unwrap_or_default();
            let name = NamespacedName::of(other);
            references
                .iter()
                .any(|reference| reference.means(&name, &identity))
        })
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn object(kind: &str, name: &str, after: &str, terminating: bool) -> DynamicObject {
        serde_json::from_value(json!({
            "apiVersion": "apps/v1", "kind": kind,
            "metadata": {
                "name": name, "namespace": "a", "uid": format!("{kind}-{name}"),
                "annotations": { AFTER_ANNOTATION: after },
                "deletionTimestamp": terminating.then_some("2026-01-01T00:00:00Z"),
            },
        }))
        .unwrap()
    }

    fn names(objects: &[DynamicObject]) -> Vec<String> {
        let objects: Vec<_> = objects.iter().collect();
        let deletable = deletable(&objects).into_iter();
        deletable
            .map(|object| object.metadata.name.clone().unwrap())
            .collect()
    }

    #[test]
    fn a_reference_is_parsed_with_and_without_group_and_namespace() {
        let parsed = parse("Secret/a, StatefulSet.apps/db ,Job.batch/other/migrate,").unwrap();
        let texts: Vec<_> = parsed.iter().map(ToString::to_string).collect();
        assert_eq!(
            texts,
            ["Secret/a", "StatefulSet.apps/db", "Job.batch/other/migrate"]
        );
        for bad in ["db", "/db", "Secret/", "Secret//a", "a/b/c/d", "Secret/a,b"] {
            assert!(parse(bad).is_err(), "{bad}");
        }
        assert_eq!(parse("Secret/a, b").unwrap_err(), "b");
    }

    #[test]
    fn a_reference_without_a_namespace_means_the_childs_own_or_a_cluster_scoped_object() {
        let reference = &parse("Service/db").unwrap()[0];
        let service = |namespace: Option<&str>| Identity {
            group: String::new(),
            kind: "Service".into(),
            name: NamespacedName {
                namespace: namespace.map(str::to_owned),
                name: "db".into(),
            },
        };
        let child = NamespacedName::parse("a/web");
        assert!(reference.means(&child, &service(Some("a"))));
        assert!(reference.means(&child, &service(None)));
        assert!(!reference.means(&child, &service(Some("b"))));
        let elsewhere = &parse("Service/b/db").unwrap()[0];
        assert!(elsewhere.means(&child, &service(Some("b"))));
        assert!(!elsewhere.means(&child, &service(Some("a"))));
    }

    #[test]
    fn what_comes_last_is_deleted_first() {
        let db = object("StatefulSet", "db", "", false);
        let web = object("Deployment", "web", "StatefulSet.apps/db", false);
        let other = object("Deployment", "other", "", false);
        assert_eq!(names(&[db.clone(), web, other.clone()]), ["web", "other"]);
        let going = object("Deployment", "web", "StatefulSet.apps/db", true);
        assert_eq!(names(&[db.clone(), going, other]), ["other"]);
        assert_eq!(names(&[db]), ["db"]);
    }

    #[test]
    fn a_circle_of_forged_annotations_keeps_nothing_from_being_deleted() {
        let one = object("Deployment", "one", "Deployment.apps/two", false);
        let two = object("Deployment", "two", "Deployment.apps/one", false);
        assert_eq!(names(&[one.clone(), two.clone()]), ["one", "two"]);
        let itself = object("Deployment", "itself", "Deployment.apps/itself, what?", false);
        assert_eq!(names(&[itself]), ["itself"]);
    }
}
