//! The order in which the children of one parent are applied and deleted.
//!
//! A child lists what comes before it in the annotation [`AFTER_ANNOTATION`]: `Kind.group/name` for each, separated by
//! commas, with the namespace before the name if that is another one. The annotation is on the object in the cluster,
//! too, so the order of a deletion needs no answer of the plugin.

use std::collections::{HashMap, HashSet};
use std::fmt;
use std::sync::Arc;

use kube::core::DynamicObject;
use serde_json::Value;

use super::planned::Desired;
use super::readiness::unfinished;
use operator_host_contract::Kind;
use operator_host_core::object::{
    AFTER_ANNOTATION, APPLIED_ANNOTATION, ChildRef, Identity, NamespacedName, annotation, is_terminating,
};
use operator_host_core::text::shorten;

/// Maximum number of references in one annotation.
pub(super) const MAX_REFERENCES: usize = 64;
/// Maximum size of the annotation, in bytes: more than that many references can take.
const MAX_TEXT: usize = 64 << 10;

/// A reference in the annotation.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Reference {
    group: String,
    kind: String,
    namespace: Option<String>,
    name: String,
}

impl Reference {
    /// Returns the objects that it may mean in the annotation of `child`: without a namespace, one in the child's
    /// own, or a cluster-scoped one.
    pub(super) fn candidates(&self, child: &NamespacedName) -> Vec<Identity> {
        let namespaces = match (&self.namespace, &child.namespace) {
            (given @ Some(_), _) => vec![given.clone()],
            (None, own @ Some(_)) => vec![own.clone(), None],
            (None, None) => vec![None],
        };
        let identity = |namespace| Identity {
            group: self.group.clone(),
            kind: self.kind.clone(),
            name: NamespacedName::new(namespace, &*self.name),
        };
        namespaces.into_iter().map(identity).collect()
    }
}

impl fmt::Display for Reference {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.kind)?;
        if !self.group.is_empty() {
            write!(f, ".{}", self.group)?;
        }
        let mut parts = self.namespace.iter().chain([&self.name]);
        parts.try_for_each(|part| write!(f, "/{part}"))
    }
}

/// Parses the value of the annotation. The error says what is wrong with it, after "the annotation".
pub(super) fn parse(text: &str) -> Result<Vec<Reference>, String> {
    let reference = |part: &str| {
        let (kind, namespace, name) = match part.split('/').collect::<Vec<_>>()[..] {
            [kind, name] => (kind, None, name),
            [kind, namespace, name] if !namespace.is_empty() => (kind, Some(namespace), name),
            _ => return None,
        };
        let (kind, group) = kind.split_once('.').unwrap_or((kind, ""));
        (!kind.is_empty() && !name.is_empty()).then(|| Reference {
            group: group.to_owned(),
            kind: kind.to_owned(),
            namespace: namespace.map(str::to_owned),
            name: name.to_owned(),
        })
    };
    let parts = || text.split(',').map(str::trim).filter(|part| !part.is_empty());
    if text.len() > MAX_TEXT || parts().nth(MAX_REFERENCES).is_some() {
        return Err(format!("lists more than {MAX_REFERENCES} objects"));
    }
    let wrong = |part: &str| {
        let part = shorten(part, 100);
        format!("contains {part:?}; write `Kind.group/name`, for example `Job.batch/migrate`")
    };
    parts()
        .map(|part| reference(part).ok_or_else(|| wrong(part)))
        .collect()
}

/// Adds the children that come after one of these, directly or not.
pub(super) fn add_dependents(children: &[Value], keys: &[ChildRef], of: &mut HashSet<Identity>) {
    let before = children.iter().zip(keys).map(|(child, key)| {
        let text = child["metadata"]["annotations"][AFTER_ANNOTATION].as_str();
        // An annotation that cannot be read is refused.
        let references = text.and_then(|text| parse(text).ok()).unwrap_or_default();
        let candidates = references.iter().flat_map(|one| one.candidates(&key.name));
        candidates.collect::<Vec<_>>()
    });
    let before: Vec<_> = before.collect();
    loop {
        let after = keys.iter().zip(&before);
        let after = after.filter(|(_, before)| before.iter().any(|one| of.contains(one)));
        let after: Vec<_> = after.map(|(key, _)| key.identity()).collect();
        let known = of.len();
        of.extend(after);
        if of.len() == known {
            return;
        }
    }
}

/// Returns for each child how many others come before it, one after the other. The error has the members of a circle.
pub(super) fn depths(desired: &[Desired]) -> Result<Vec<usize>, Vec<ChildRef>> {
    let index: HashMap<_, usize> = desired.iter().map(|it| &it.key).zip(0..).collect();
    let before = |at: usize| {
        let keys: &[ChildRef] = &desired[at].after;
        keys.iter().filter_map(|key| index.get(key).copied())
    };
    let mut depths = vec![0; desired.len()];
    let mut missing: Vec<usize> = (0..desired.len()).map(|at| before(at).count()).collect();
    let mut after = vec![Vec::new(); desired.len()];
    for at in 0..desired.len() {
        before(at).for_each(|earlier| after[earlier].push(at));
    }
    let mut free: Vec<usize> = (0..desired.len()).filter(|at| missing[*at] == 0).collect();
    while let Some(at) = free.pop() {
        for &later in &after[at] {
            depths[later] = depths[later].max(depths[at] + 1);
            missing[later] -= 1;
            if missing[later] == 0 {
                free.push(later);
            }
        }
    }
    // What is left is in a circle, or waits for one.
    let Some(start) = missing.iter().position(|missing| *missing > 0) else {
        return Ok(depths);
    };
    let (mut at, mut members) = (start, Vec::new());
    while !members.contains(&at) {
        members.push(at);
        at = before(at).find(|earlier| missing[*earlier] > 0).unwrap_or(start);
    }
    let circle = members.into_iter().skip_while(|member| *member != at);
    Err(circle.map(|member| desired[member].key.clone()).collect())
}

/// What a child waits for.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Waiting {
    /// The kind of the child that it comes after.
    pub kind: Kind,
    /// The two children, and what is missing.
    pub why: String,
}

/// The state of the children of one parent, to tell which of them must wait.
pub struct Order<'a> {
    desired: HashMap<&'a ChildRef, &'a str>,
}

impl<'a> Order<'a> {
    /// Creates it from the children that the plugin wants.
    pub fn of(desired: &'a [Desired]) -> Self {
        let is_ordered = desired.iter().any(|desired| !desired.after.is_empty());
        let all = desired.iter().filter(|_| is_ordered);
        let desired = all.map(|it| (&it.key, it.fingerprint.as_str())).collect();
        Self { desired }
    }

    /// Returns what a child waits for before it may be created or changed; `None` when it may. `existing` returns an
    /// object as last seen, `has_status` whether a kind has a status.
    pub fn waits_for(
        &self,
        child: &Desired,
        existing: impl Fn(&ChildRef) -> Option<Arc<DynamicObject>>,
        has_status: impl Fn(&Kind) -> bool,
    ) -> Option<Waiting> {
        let is_changed_first = child.update.one.is_some_and(|turn| turn.last_first);
        child.after.iter().find_map(|key| {
            let why = match existing(key) {
                None => "it does not exist yet".to_owned(),
                Some(object) => {
                    let applied = annotation(&object, APPLIED_ANNOTATION);
                    let is_changed = self.desired.get(key).is_none_or(|wanted| applied == Some(wanted));
                    // Of children whose last one is changed first, those before it follow.
                    if is_changed || is_changed_first && key.kind == child.key.kind {
                        unfinished(&object, has_status(&key.kind))?
                    } else {
                        "it is not changed yet".to_owned()
                    }
                }
            };
            Some(Waiting {
                kind: key.kind.clone(),
                why: format!("{} waits for {key}: {why}", child.key),
            })
        })
    }
}

/// Objects that are all to be deleted, or are being deleted.
pub struct Deletion<'a> {
    objects: &'a [&'a DynamicObject],
    /// The positions of those that others come after.
    needed: HashSet<usize>,
    /// The positions of those that come after others.
    later: HashSet<usize>,
}

impl<'a> Deletion<'a> {
    /// Reads the order from the annotations of the objects. What cannot be parsed was not written by the host.
    pub fn of(objects: &'a [&'a DynamicObject]) -> Self {
        let (mut needed, mut later) = (HashSet::new(), HashSet::new());
        let annotations = objects.iter().map(|object| annotation(object, AFTER_ANNOTATION));
        if annotations.clone().any(|text| text.is_some()) {
            let identities = objects.iter().map(|object| ChildRef::of(object).identity());
            let index: HashMap<Identity, usize> = identities.zip(0..).collect();
            for (at, text) in annotations.enumerate() {
                let references = text.and_then(|text| parse(text).ok()).unwrap_or_default();
                let name = NamespacedName::of(objects[at]);
                for reference in references {
                    let candidates = reference.candidates(&name);
                    let found = candidates.iter().find_map(|it| index.get(it).copied());
                    if let Some(found) = found.filter(|found| *found != at) {
                        needed.insert(found);
                        later.insert(at);
                    }
                }
            }
        }
        Self {
            objects,
            needed,
            later,
        }
    }

    /// Reports whether some object comes after another one.
    pub fn is_ordered(&self) -> bool {
        !self.needed.is_empty()
    }

    /// Returns the objects that may be deleted now: those after which no other one comes. If there is none because they
    /// are in a circle, all may. Objects that are being deleted are never returned, but the others wait for them.
    ///
    /// With each object, returns whether something waits until it and its own dependents are gone.
    pub fn deletable(&self) -> Vec<(&'a DynamicObject, bool)> {
        let left = || {
            let all = self.objects.iter().copied().enumerate();
            all.filter(|(_, object)| !is_terminating(object))
        };
        let is_free = |at: usize| !self.needed.contains(&at);
        let is_stuck =
            !left().any(|(at, _)| is_free(at)) && !self.objects.iter().any(|object| is_terminating(object));
        left()
            .filter(|(at, _)| is_stuck || is_free(*at))
            .map(|(at, object)| (object, self.later.contains(&at)))
            .collect()
    }
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
        let deletable = Deletion::of(&objects).deletable().into_iter();
        deletable
            .map(|(object, _)| object.metadata.name.clone().unwrap())
            .collect()
    }

    #[test]
    fn a_reference_is_parsed_with_and_without_group_and_namespace() {
        let parsed = parse("Secret/a, StatefulSet.apps/db ,Job.batch/other/migrate,").unwrap();
        let texts: Vec<_> = parsed.iter().map(ToString::to_string).collect();
        let expected = ["Secret/a", "StatefulSet.apps/db", "Job.batch/other/migrate"];
        assert_eq!(texts, expected);
        for bad in ["db", "/db", "Secret/", "Secret//a", "a/b/c/d", "Secret/a,b"] {
            assert!(parse(bad).is_err(), "{bad}");
        }
        assert!(parse("Secret/a, b").unwrap_err().contains("contains \"b\";"));
        let many = vec!["Secret/a"; MAX_REFERENCES];
        assert_eq!(parse(&many.join(",")).unwrap().len(), MAX_REFERENCES);
        let error = parse(&[many.join(","), "Secret/b".into()].join(",")).unwrap_err();
        assert_eq!(error, "lists more than 64 objects");
        assert!(parse(&" ".repeat(MAX_TEXT + 1)).is_err());
    }

    #[test]
    fn a_reference_without_a_namespace_means_the_childs_own_or_a_cluster_scoped_object() {
        let child = NamespacedName::parse("a/web");
        let namespaces = |text: &str| -> Vec<Option<String>> {
            let candidates = parse(text).unwrap()[0].candidates(&child);
            candidates
                .into_iter()
                .map(|identity| identity.name.namespace)
                .collect()
        };
        assert_eq!(namespaces("Service/db"), [Some("a".to_owned()), None]);
        assert_eq!(namespaces("Service/b/db"), [Some("b".to_owned())]);
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

    #[test]
    fn only_what_comes_after_something_is_waited_for_with_its_dependents() {
        let db = object("StatefulSet", "db", "", false);
        let web = object("Deployment", "web", "StatefulSet.apps/db", false);
        let lone = object("Deployment", "lone", "StatefulSet.apps/other", false);
        let objects = [&db, &web, &lone];
        let deletable = Deletion::of(&objects).deletable().into_iter();
        let waited: Vec<_> = deletable
            .map(|(object, waited)| (object.metadata.name.as_deref(), waited))
            .collect();
        assert_eq!(waited, [(Some("web"), true), (Some("lone"), false)]);
    }
}
