//! Generates random objects, the changes that a server and other managers make to them, and manual edits.

use proptest::prelude::*;
use serde_json::{Map, json};

use super::*;

/// A desired state. No field is empty or zero, since a server may omit it, and no string is a quantity.
fn desired() -> impl Strategy<Value = Value> {
    let leaf = prop_oneof![
        "[g-h]{1,3}".prop_map(Value::from),
        (1..9_i64).prop_map(Value::from),
        Just(Value::from(true)),
    ];
    let value = leaf.prop_recursive(3, 20, 3, |inner| {
        let named = inner.clone();
        prop_oneof![
            prop::collection::btree_map("[a-c]", inner.clone(), 1..4).prop_map(|map| json!(map)),
            prop::collection::vec(inner, 1..4).prop_map(|list| {
                // Has no merge key.
                json!(
                    list.into_iter()
                        .map(|item| json!({ "item": item }))
                        .collect::<Vec<_>>()
                )
            }),
            prop::collection::btree_map("[x-z]", named, 1..4).prop_map(|map| {
                let elements = map
                    .into_iter()
                    .map(|(name, value)| json!({ "name": name, "value": value }));
                json!(elements.collect::<Vec<_>>())
            }),
        ]
    });
    prop::collection::btree_map("[a-c]", value, 1..4).prop_map(|map| json!({ "spec": map }))
}

/// An element of a merged list. Elements may have the same key, and one may have more fields than another.
fn element() -> impl Strategy<Value = Value> {
    let key = prop::sample::select(vec!["name", "port", "type", "divisor"]);
    let value = prop_oneof![
        prop::sample::select(vec!["", "a", "b", "1", "1000m"]).prop_map(Value::from),
        (0..3_i64).prop_map(Value::from),
        Just(Value::Null),
        Just(json!({ "a": 1 })),
    ];
    prop::collection::btree_map(key, value, 1..4).prop_map(|map| json!(map))
}

/// Takes for each desired element the first one that contains it, by comparing it with all.
fn compared_with_all(
    matcher: &Matcher,
    context: &FieldContext<'_>,
    live: &[Value],
    desired: &[Value],
) -> bool {
    let mut free: Vec<&Value> = live.iter().collect();
    desired.iter().all(|desired| {
        let at = free.iter().position(|live| matcher.value(context, live, desired));
        at.map(|at| free.remove(at)).is_some()
    })
}

fn stands(live: &Value, desired: &Value) -> bool {
    contains("apps", live, desired)
}

fn is_merged(list: &[Value]) -> bool {
    list.iter().all(|element| element.get("name").is_some())
}

/// The state that the server returns: with defaults in every object, and with others' elements in merged lists.
fn shown(value: &Value, defaults: bool) -> Value {
    match value {
        Value::Object(map) => {
            let mut map: Map<_, _> = map
                .iter()
                .map(|(key, value)| (key.clone(), shown(value, defaults)))
                .collect();
            if defaults {
                map.insert("defaulted".to_owned(), json!(7));
            }
            Value::Object(map)
        }
        Value::Array(list) => {
            let mut shown: Vec<_> = list.iter().map(|value| shown(value, defaults)).collect();
            if defaults && is_merged(list) {
                shown.insert(0, json!({ "name": "of-another" }));
            }
            Value::Array(shown)
        }
        leaf => leaf.clone(),
    }
}

/// Returns every variant of `value` with one difference: a changed leaf, or a missing field or element.
fn damaged(value: &Value) -> Vec<Value> {
    match value {
        Value::Object(map) => {
            let each = map.iter().flat_map(|(key, value)| {
                let with = |other: Value| {
                    let mut map = map.clone();
                    map.insert(key.clone(), other);
                    Value::Object(map)
                };
                let mut without = map.clone();
                without.remove(key);
                let mut all: Vec<_> = damaged(value).into_iter().map(with).collect();
                all.push(Value::Object(without));
                all
            });
            each.collect()
        }
        Value::Array(list) => {
            let each = list.iter().enumerate().flat_map(|(i, value)| {
                let with = |other: Value| {
                    let mut list = list.clone();
                    list[i] = other;
                    Value::Array(list)
                };
                let mut without = list.clone();
                without.remove(i);
                let mut all: Vec<_> = damaged(value).into_iter().map(with).collect();
                all.push(Value::Array(without));
                all
            });
            each.collect()
        }
        Value::Number(_) => vec![json!(1000)],
        Value::String(text) => vec![json!(format!("{text}-edited"))],
        _ => vec![json!("edited")],
    }
}

proptest! {
    #[test]
    fn keys_find_what_a_comparison_with_all_elements_finds(
        (live, desired) in prop::collection::vec(element(), 1..8).prop_flat_map(|live| {
            let some = prop::sample::subsequence(live.clone(), 1..=live.len()).prop_shuffle();
            let desired = prop_oneof![some, prop::collection::vec(element(), 1..4)];
            (Just(live), desired)
        }),
        within in prop::sample::select(vec!["ports", "limits"]),
        built_in in any::<bool>(),
    ) {
        let matcher = Matcher::new(built_in);
        let context = FieldContext::default().field(within);
        let expected = compared_with_all(&matcher, &context, &live, &desired);
        let mut free = FreeElements::of(&matcher, &live);
        let found = desired.iter().all(|desired| {
            let keys = matcher.exact_keys(&context, desired);
            free.take(&keys, |live| matcher.value(&context, live, desired))
        });
        prop_assert_eq!(found, expected);
    }

    #[test]
    fn what_the_server_and_others_add_is_no_drift(desired in desired(), defaults in any::<bool>()) {
        prop_assert!(stands(&shown(&desired, defaults), &desired));
    }

    #[test]
    fn every_single_change_of_a_field_of_ours_is_drift(desired in desired(), defaults in any::<bool>()) {
        for live in damaged(&desired) {
            let live = shown(&live, defaults);
            prop_assert!(!stands(&live, &desired), "{live} contains {desired}");
        }
    }
}
