//! Checks random plugin answers against a model of the policy: an answer is used completely or not at all, and
//! every accepted child is complete.

use proptest::prelude::*;

use super::*;

const OWN: &str = "default";

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum ChildKind {
    Pod,
    Claim,
    /// Not namespaced.
    Node,
    /// Not served by the cluster.
    Missing,
    /// Not in the configuration.
    ConfigMap,
}

impl ChildKind {
    fn kind(self) -> (&'static str, &'static str) {
        match self {
            Self::Pod => ("v1", "Pod"),
            Self::Claim => ("v1", "PersistentVolumeClaim"),
            Self::Node => ("v1", "Node"),
            Self::Missing => ("example.com/v1", "Missing"),
            Self::ConfigMap => ("v1", "ConfigMap"),
        }
    }

    fn may_be_made(self) -> bool {
        matches!(self, Self::Pod | Self::Claim)
    }
}

/// The existing object with a child's name.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Existing {
    Nothing,
    OfThisParent,
    OfItsPredecessor,
    OfAnother,
    Retained,
    RetainedByAnother,
    OfNobody,
}

#[derive(Clone, Debug)]
struct Child {
    kind: ChildKind,
    name: usize,
    namespace: Option<&'static str>,
    gives_owner: bool,
}

impl Child {
    fn value(&self) -> Value {
        let (api_version, kind) = self.kind.kind();
        let mut metadata = json!({ "name": format!("n{}", self.name), "uid": "x", "resourceVersion": "1" });
        if let Some(namespace) = self.namespace {
            metadata["namespace"] = namespace.into();
        }
        if self.gives_owner {
            metadata["ownerReferences"] = json!([]);
        }
        json!({ "apiVersion": api_version, "kind": kind, "metadata": metadata, "spec": { "x": 1 } })
    }

    /// The policy, restated independently.
    fn is_allowed(&self, existing: Existing) -> bool {
        let is_free = match existing {
            Existing::Nothing | Existing::OfThisParent => true,
            Existing::Retained => self.kind == ChildKind::Claim,
            _ => false,
        };
        self.kind.may_be_made() && self.namespace.is_none_or(|it| it == OWN) && !self.gives_owner && is_free
    }
}

fn child() -> impl Strategy<Value = Child> {
    let kind = prop_oneof![
        6 => Just(ChildKind::Pod),
        6 => Just(ChildKind::Claim),
        1 => Just(ChildKind::Node),
        1 => Just(ChildKind::Missing),
        1 => Just(ChildKind::ConfigMap),
    ];
    let namespace = prop_oneof![6 => Just(None), 3 => Just(Some(OWN)), 1 => Just(Some("spare"))];
    (kind, 0..6_usize, namespace, prop::bool::weighted(0.05)).prop_map(
        |(kind, name, namespace, gives_owner)| Child {
            kind,
            name,
            namespace,
            gives_owner,
        },
    )
}

fn existing() -> impl Strategy<Value = Existing> {
    prop_oneof![
        8 => Just(Existing::Nothing),
        6 => Just(Existing::OfThisParent),
        4 => Just(Existing::Retained),
        1 => Just(Existing::OfItsPredecessor),
        1 => Just(Existing::OfAnother),
        1 => Just(Existing::RetainedByAnother),
        1 => Just(Existing::OfNobody),
    ]
}

fn object(key: &ChildRef, existing: Existing) -> Option<Arc<DynamicObject>> {
    let owner = |name: &str, uid: &str| json!([{ "apiVersion": "example.com/v1", "kind": "Shop", "name": name, "uid": uid, "controller": true }]);
    let marks = |parent: &str| {
        (
            json!({ CONTROLLER_LABEL: "shop" }),
            json!({ PARENT_ANNOTATION: parent }),
        )
    };
    let ((labels, annotations), owners) = match existing {
        Existing::Nothing => return None,
        Existing::OfThisParent => (marks("default/a"), owner("a", "uid-a")),
        Existing::OfItsPredecessor => (marks("default/a"), owner("a", "uid-before")),
        Existing::OfAnother => (marks("default/b"), owner("b", "uid-b")),
        Existing::Retained => (marks("default/a"), json!([])),
        Existing::RetainedByAnother => (marks("default/b"), json!([])),
        Existing::OfNobody => ((json!({}), json!({})), json!([])),
    };
    let object = json!({
        "apiVersion": key.kind.api_version, "kind": key.kind.kind,
        "metadata": {
            "name": key.name.name, "namespace": key.name.namespace, "labels": labels, "annotations": annotations,
            "ownerReferences": owners,
        },
    });
    Some(Arc::new(serde_json::from_value(object).unwrap()))
}

fn planned(children: &[Child], existing: &[Existing]) -> Result<Plan, Vec<Refusal>> {
    let parent = json!({
        "apiVersion": "example.com/v1", "kind": "Shop",
        "metadata": { "name": "a", "namespace": OWN, "uid": "uid-a" },
    });
    let config = config();
    let policy = Policy {
        config: &config,
        parent: &serde_json::from_value(parent).unwrap(),
        digest: "sha256:d",
        plugin: "shop 1.0",
        namespaced: &namespaced,
        existing: &|key| {
            let number: usize = key.name.name[1..].parse().unwrap();
            object(key, existing[number])
        },
        proof: SecretProof::Key(None),
    };
    let children: Vec<_> = children.iter().map(Child::value).collect();
    plan(&policy, &children, &[], &[])
}

proptest! {
    #[test]
    fn an_answer_is_taken_whole_and_complete_or_not_at_all(
        children in prop::collection::vec(child(), 0..6),
        existing in prop::collection::vec(existing(), 6),
    ) {
        let mut names: Vec<_> = children.iter().map(|child| (child.kind, child.name)).collect();
        names.sort_unstable();
        names.dedup();
        let allowed = children.iter().all(|child| child.is_allowed(existing[child.name]));
        let allowed = allowed && names.len() == children.len();
        let plan = match planned(&children, &existing) {
            Ok(plan) => plan,
            Err(refusals) => {
                prop_assert!(!allowed, "{refusals:?}");
                prop_assert!(!refusals.is_empty());
                return Ok(());
            }
        };
        prop_assert!(allowed, "{plan:?}");
        prop_assert_eq!(plan.desired.len(), children.len());
        for child in &children {
            let desired: Vec<_> = plan
                .desired
                .iter()
                .filter(|desired| desired.key.kind.kind == child.kind.kind().1)
                .filter(|desired| desired.key.name.name == format!("n{}", child.name))
                .collect();
            prop_assert_eq!(desired.len(), 1);
            let metadata = &desired[0].body["metadata"];
            prop_assert_eq!(&metadata["namespace"], OWN);
            prop_assert_eq!(&metadata["labels"][CONTROLLER_LABEL], "shop");
            prop_assert_eq!(&metadata["annotations"][PARENT_ANNOTATION], "default/a");
            prop_assert!(metadata["uid"].is_null() && metadata["resourceVersion"].is_null());
            // A child that outlives its parent must not refer to it.
            let owner = &metadata["ownerReferences"][0]["uid"];
            match child.kind {
                ChildKind::Claim => prop_assert!(owner.is_null(), "{owner}"),
                _ => prop_assert_eq!(owner, "uid-a"),
            }
        }
        // Claims precede the pods that mount them.
        let kinds: Vec<_> = plan.desired.iter().map(|desired| desired.key.kind.kind.as_str()).collect();
        prop_assert!(kinds.is_sorted(), "{kinds:?}");
        // The order of an answer does not matter.
        let mut turned = children.clone();
        turned.reverse();
        prop_assert_eq!(planned(&turned, &existing).ok(), Some(plan));
    }
}
