use std::sync::Mutex;

use kube::core::DynamicObject;
use proptest::prelude::*;
use serde_json::json;

use super::*;
use operator_host_cluster::cache::CachePolicy;
use operator_host_cluster::cache::testing::{delete, put, watch_of};
use operator_host_config::testing::config;
use operator_host_core::object::{CONTROLLER_LABEL, PARENT_ANNOTATION};

/// A state of a pod: the kind of its owner, whether that is its controller, its label, its parent annotation, and content.
type State = (
    Option<(&'static str, &'static str)>,
    bool,
    Option<&'static str>,
    Option<&'static str>,
    u8,
);

fn state() -> impl Strategy<Value = State> {
    let owners = vec![
        ("example.com/v1", "Shop"),
        ("example.com/v2", "Shop"),
        ("example.com/v1", "Cart"),
        ("example.org/v1", "Shop"),
        ("v1", "Node"),
    ];
    let labels = vec!["shop", "carts", "of-another"];
    (
        prop::option::of(prop::sample::select(owners)),
        any::<bool>(),
        prop::option::of(prop::sample::select(labels)),
        prop::option::of(prop::sample::select(vec!["x/a", "y/a", "a"])),
        0..2_u8,
    )
}

fn pod(version: usize, generation: usize, state: &State) -> DynamicObject {
    let (owner, is_controller, label, parent, content) = state;
    let owners = owner.map(|(api_version, kind)| {
        json!([{ "apiVersion": api_version, "kind": kind, "name": "a", "uid": uid(api_version, kind), "controller": is_controller }])
    });
    let labels = label.map(|label| json!({ CONTROLLER_LABEL: label }));
    let annotations = parent.map(|parent| json!({ PARENT_ANNOTATION: parent }));
    let pod = json!({
        "apiVersion": "v1", "kind": "Pod",
        "metadata": {
            "name": "p", "namespace": "x", "uid": format!("00000000-0000-4000-8000-{generation:012}"),
            "resourceVersion": version.to_string(), "ownerReferences": owners, "labels": labels,
            "annotations": annotations,
        },
        "spec": { "content": content },
    });
    serde_json::from_value(pod).unwrap()
}

/// The same in every version of the kind.
fn uid(api_version: &str, kind: &str) -> String {
    let (group, _) = api_version.split_once('/').unwrap_or_default();
    format!("{kind}.{group}")
}

fn configs() -> Vec<ControllerConfig> {
    let of = |name: &str, parent: &str| {
        let mut config = config();
        config.name = name.to_owned();
        config.parent.api_version = "example.com/v1".to_owned();
        config.parent.kind = parent.to_owned();
        config
    };
    vec![of("shop", "Shop"), of("carts", "Cart"), of("nodes", "Node")]
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(500))]

    /// Each controller would find the parent of a child in any change of any object.
    #[test]
    fn a_controller_hears_of_every_change_that_concerns_a_parent_of_it(
        states in prop::collection::vec(prop::option::of(state()), 1..12),
        all in any::<bool>(),
    ) {
        let runtime = tokio::runtime::Builder::new_current_thread().build().unwrap();
        let _entered = runtime.enter();
        let kind = Kind::new("v1", "Pod");
        let watch = watch_of(kind, CachePolicy { all, ..CachePolicy::default() });
        let configs = Arc::new(configs());
        let (concerned, called) = (Arc::<Mutex<BTreeSet<String>>>::default(), Arc::<Mutex<Vec<String>>>::default());
        let _all = watch.subscribe({
            let (configs, concerned) = (Arc::clone(&configs), Arc::clone(&concerned));
            Arc::new(move |_, change| {
                let is_concerned = |config: &&ControllerConfig| {
                    change.both().any(|object| parent_of(config.scope(), true, object).is_some())
                };
                let names = configs.iter().filter(is_concerned).map(|config| config.name.clone());
                concerned.lock().unwrap().extend(names);
            })
        });
        let _each: Vec<_> = configs
            .iter()
            .map(|config| {
                let (name, called) = (config.name.clone(), Arc::clone(&called));
                let subscriber = Arc::new(move |_: &Kind, _: &Change<'_>| called.lock().unwrap().push(name.clone()));
                watch.subscribe_to(interests_in_children(config), subscriber)
            })
            .collect();
        let (mut generation, mut last) = (0, None);
        for (version, state) in states.into_iter().enumerate() {
            match (state, last) {
                (Some(state), _) => {
                    put(&watch, pod(version + 1, generation, &state));
                    last = Some(state);
                }
                (None, Some(state)) => {
                    delete(&watch, pod(version + 1, generation, &state));
                    (generation, last) = (generation + 1, None);
                }
                (None, None) => {}
            }
            let (concerned, called) = (
                std::mem::take(&mut *concerned.lock().unwrap()),
                std::mem::take(&mut *called.lock().unwrap()),
            );
            let each: BTreeSet<_> = called.iter().cloned().collect();
            prop_assert_eq!(each.len(), called.len(), "called twice: {:?}", called);
            prop_assert!(concerned.is_subset(&each), "{:?} of {:?}", each, concerned);
        }
    }
}
