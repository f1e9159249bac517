//! Whether what is there still says what was applied.

use serde_json::Value;

/// Whether every field of `desired` is in `live` with the same value.
///
/// `live` may have more: defaults, and what others own. Objects in a list that have a merge key are looked for in any
/// place, since a webhook may put its own beside ours; all other lists belong to one manager as a whole and must
/// stand as given. Quantities are compared by value, because the API server writes `1000m` as `1`.
#[must_use]
pub fn says(live: &Value, desired: &Value) -> bool {
    match (live, desired) {
        (Value::Object(live), Value::Object(desired)) => desired.iter().all(|(key, desired)| {
            match live.get(key) {
                Some(live) => says(live, desired),
                // The API server drops empty maps and lists.
                None => is_empty(desired),
            }
        }),
        (Value::Array(live), Value::Array(desired))
            if !desired.is_empty() && desired.iter().all(has_merge_key) =>
        {
            let mut free: Vec<&Value> = live.iter().collect();
            desired.iter().all(|desired| {
                let place = free.iter().position(|live| says(live, desired));
                place.map(|place| free.swap_remove(place)).is_some()
            })
        }
        (Value::Array(live), Value::Array(desired)) => {
            live.len() == desired.len()
                && live
                    .iter()
                    .zip(desired)
                    .all(|(live, desired)| says(live, desired))
        }
        (live, desired) => live == desired || same_quantity(live, desired),
    }
}

/// Whether an element of a list has one of the keys by which server-side apply merges lists of the built-in kinds:
/// the schema says which lists are merged, and is not at hand here. Taking a list for a merged one costs that
/// what somebody else adds to it is left alone.
///
/// Source: `x-kubernetes-list-map-keys` in the OpenAPI description of Kubernetes.
fn has_merge_key(element: &Value) -> bool {
    const MERGE_KEYS: [&str; 10] = [
        "name",
        "containerPort",
        "mountPath",
        "devicePath",
        "ip",
        "port",
        "topologyKey",
        "type",
        "uid",
        "resourceName",
    ];
    element
        .as_object()
        .is_some_and(|element| MERGE_KEYS.iter().any(|key| element.contains_key(*key)))
}

fn is_empty(value: &Value) -> bool {
    match value {
        Value::Null => true,
        Value::Object(map) => map.is_empty(),
        Value::Array(list) => list.is_empty(),
        _ => false,
    }
}

fn same_quantity(a: &Value, b: &Value) -> bool {
    matches!((quantity(a), quantity(b)), (Some(a), Some(b)) if (a - b).abs() <= 1e-12 * a.abs().max(b.abs()))
}

/// The value of a Kubernetes quantity; `None` when it is none.
///
/// Source: the grammar in `k8s.io/apimachinery/pkg/api/resource`.
fn quantity(value: &Value) -> Option<f64> {
    let text = match value {
        Value::String(text) => text.as_str(),
        Value::Number(number) => return number.as_f64(),
        _ => return None,
    };
    let split = text.rfind(|c: char| c.is_ascii_digit() || c == '.')? + 1;
    let (number, suffix) = text.split_at(split);
    let scale = match suffix {
        "" => 1.0,
        "n" => 1e-9,
        "u" => 1e-6,
        "m" => 1e-3,
        "k" => 1e3,
        "M" => 1e6,
        "G" => 1e9,
        "T" => 1e12,
        "P" => 1e15,
        "E" => 1e18,
        "Ki" => 1024.0,
        "Mi" => 1024.0 * 1024.0,
        "Gi" => 1024.0 * 1024.0 * 1024.0,
        "Ti" => 1024.0 * 1024.0 * 1024.0 * 1024.0,
        "Pi" => 1024.0 * 1024.0 * 1024.0 * 1024.0 * 1024.0,
        "Ei" => 1024.0 * 1024.0 * 1024.0 * 1024.0 * 1024.0 * 1024.0,
        _ => return None,
    };
    let plain = number.starts_with(|c: char| c.is_ascii_digit() || matches!(c, '.' | '+' | '-'));
    number
        .parse::<f64>()
        .ok()
        .filter(|n| plain && n.is_finite())
        .map(|n| n * scale)
}

#[cfg(test)]
mod model;
#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn defaults_and_fields_of_others_are_no_drift() {
        let live =
            json!({"spec": {"replicas": 3, "paused": false, "template": {"a": 1, "b": 2}}, "status": {}});
        assert!(says(
            &live,
            &json!({"spec": {"replicas": 3, "template": {"b": 2}}})
        ));
        assert!(says(
            &live,
            &json!({"spec": {"replicas": 3, "selector": {}, "volumes": [], "x": null}})
        ));
    }

    #[test]
    fn a_changed_or_missing_field_is_drift() {
        let live = json!({"spec": {"replicas": 3}});
        assert!(!says(&live, &json!({"spec": {"replicas": 4}})));
        assert!(!says(&live, &json!({"spec": {"minReadySeconds": 1}})));
        assert!(!says(&live, &json!({"spec": {"replicas": "three"}})));
    }

    #[test]
    fn a_sidecar_from_a_webhook_is_no_drift_but_a_missing_container_is() {
        let live = json!([{"name": "proxy", "image": "p"}, {"name": "app", "image": "a", "env": []}]);
        assert!(says(&live, &json!([{"name": "app", "image": "a"}])));
        assert!(!says(&live, &json!([{"name": "app", "image": "b"}])));
        assert!(!says(
            &live,
            &json!([{"name": "app", "image": "a"}, {"name": "app", "image": "a"}])
        ));
    }

    /// Regression: an element that somebody added to an atomic list was not seen.
    #[test]
    fn a_list_without_merge_keys_must_stand_as_given() {
        let desired = json!([{"key": "a", "operator": "Exists"}, {"key": "b", "operator": "Exists"}]);
        let defaulted =
            json!([{"key": "a", "operator": "Exists", "x": 1}, {"key": "b", "operator": "Exists"}]);
        assert!(says(&defaulted, &desired));
        assert!(!says(&json!([desired[1], desired[0]]), &desired));
        assert!(!says(&json!([desired[0], desired[1], {"key": "c"}]), &desired));
        assert!(!says(&json!([desired[0]]), &desired));
    }

    #[test]
    fn plain_lists_must_stand_as_given() {
        assert!(says(&json!(["a", "b"]), &json!(["a", "b"])));
        assert!(!says(&json!(["b", "a"]), &json!(["a", "b"])));
        assert!(!says(&json!(["a", "b", "c"]), &json!(["a", "b"])));
    }

    #[test]
    fn quantities_are_compared_by_value_and_other_texts_are_not() {
        assert!(says(&json!("1"), &json!("1000m")));
        assert!(says(&json!("1"), &json!(1)));
        assert!(says(&json!("1Gi"), &json!("1024Mi")));
        assert!(says(&json!("500m"), &json!("0.5")));
        assert!(!says(&json!("1Gi"), &json!("1G")));
        assert!(!says(&json!("inf"), &json!("infinity")));
        assert!(!says(&json!("8.0"), &json!("8.0.1")));
    }
}
