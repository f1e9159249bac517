use std::collections::BTreeMap;

use proptest::prelude::*;
use serde_json::json;

use super::*;
use operator_host_desired::selectors::selects;

/// What is asked of the index, in random order.
#[derive(Clone, Debug)]
enum Op {
    Set(NamespacedName, Vec<Need>),
    Forget(NamespacedName),
    RetainNamespace(&'static str),
    ForgetAll,
}

/// The needs of each parent, without an index.
type Model = BTreeMap<NamespacedName, Vec<Need>>;

fn parent() -> impl Strategy<Value = NamespacedName> {
    (prop::option::of("[xy]"), "[pqr]").prop_map(|(namespace, name)| NamespacedName { namespace, name })
}

fn need() -> impl Strategy<Value = Need> {
    let selector = prop::sample::select(vec![
        "",
        "a=1",
        "a==1,b!=2",
        "b=2,a=1",
        "a in (1,2)",
        "!a",
        "b",
        "a=2",
        " a=1",
        "=broken",
    ]);
    let kind = prop::sample::select(vec!["ConfigMap", "Node"]);
    (
        kind,
        prop::option::of("[xy*]"),
        prop::option::of("[mn]"),
        prop::option::of(selector),
    )
        .prop_map(|(kind, namespace, name, selector)| Need {
            id: "id".to_owned(),
            api_version: "v1".to_owned(),
            kind: kind.to_owned(),
            namespace,
            name,
            namespace_selector: None,
            names: Vec::new(),
            label_selector: selector.map(str::to_owned),
        })
}

fn op() -> impl Strategy<Value = Op> {
    prop_oneof![
        6 => (parent(), prop::collection::vec(need(), 0..4)).prop_map(|(parent, needs)| Op::Set(parent, needs)),
        1 => parent().prop_map(Op::Forget),
        1 => prop::sample::select(vec!["x", "y"]).prop_map(Op::RetainNamespace),
        1 => Just(Op::ForgetAll),
    ]
}

fn object() -> impl Strategy<Value = (Kind, DynamicObject)> {
    let labels = prop::collection::btree_map("[ab]", "[12]", 0..3);
    (prop::option::of("[xyz]"), "[mno]", labels).prop_map(|(namespace, name, labels)| {
        let kind = if namespace.is_some() { "ConfigMap" } else { "Node" };
        (
            self::kind(kind),
            of_kind(kind, namespace.as_deref(), &name, &labels),
        )
    })
}

fn kind(kind: &str) -> Kind {
    Kind::new("v1", kind)
}

fn of_kind(
    kind: &str,
    namespace: Option<&str>,
    name: &str,
    labels: &BTreeMap<String, String>,
) -> DynamicObject {
    let object = json!({
        "apiVersion": "v1", "kind": kind, "metadata": { "name": name, "namespace": namespace, "labels": labels },
    });
    serde_json::from_value(object).unwrap()
}

fn act(op: Op, needs: &Needs, model: &mut Model) {
    match op {
        Op::Set(parent, wanted) => {
            needs.set(&parent, &wanted);
            model.insert(parent, wanted);
        }
        Op::Forget(parent) => {
            needs.forget(&parent);
            model.remove(&parent);
        }
        Op::RetainNamespace(namespace) => {
            let is_kept =
                |parent: &NamespacedName| parent.namespace.as_deref().is_none_or(|it| it == namespace);
            needs.retain(is_kept);
            model.retain(|parent, _| is_kept(parent));
        }
        Op::ForgetAll => {
            needs.retain(|_| false);
            model.clear();
        }
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(1000))]

    #[test]
    fn the_index_finds_the_parents_that_a_walk_over_all_needs_finds(
        ops in prop::collection::vec(op(), 1..30),
        objects in prop::collection::vec(object(), 1..10),
    ) {
        let (needs, mut model) = (Needs::default(), Model::new());
        for op in ops {
            act(op, &needs, &mut model);
            for (kind, object) in &objects {
                let walked: BTreeSet<_> = model
                    .iter()
                    .filter(|(parent, wanted)| wanted.iter().any(|need| selects(need, parent, kind, object)))
                    .map(|(parent, _)| parent.clone())
                    .collect();
                prop_assert!(walked.is_empty() || needs.has_kind(kind));
                prop_assert_eq!(needs.parents_in_need_of(kind, object), walked);
            }
            for (parent, wanted) in &model {
                prop_assert_eq!(&needs.of(parent), wanted);
            }
        }
        needs.retain(|_| false);
        let index = lock(&needs.0);
        prop_assert!(index.by_parent.is_empty() && index.by_kind.is_empty());
    }
}
