//! Detects drift between the applied and the current state of an object.

use std::cell::Cell;
use std::collections::{HashMap, VecDeque};

use serde_json::Value;

use super::field_path::{FieldPath, MERGE_KEYS};
use crate::object::is_built_in;

/// Maximum number of values that one comparison of two objects looks at. A plugin may give many elements of a list the
/// same key, in another order than the live ones. Then each is compared with each, without an await. Beyond the limit,
/// the objects count as different: an apply that changes nothing is harmless, and its result is remembered.
///
/// It is above what one comparison of the largest object takes: the API server stores at most 1.5 MiB, which is less
/// than 800,000 values, and an element of a list counts three times.
const MAX_COMPARISONS: usize = 4_000_000;

/// Reports whether the content `live` contains every field of the body `desired`, of an object of this API group,
/// with the same value. Type and metadata are not compared.
///
/// `live` may contain more fields: defaults, and those of other managers. Elements of a list with a merge key may
/// be at any position, since a webhook may add its own; every other list belongs to one manager as a whole and must
/// match exactly.
///
/// The API server normalizes its built-in kinds, and no others: it omits a field with its type's zero value unless
/// its default differs, and it rewrites a quantity of `1000m` to `1`. Neither is drift.
#[must_use]
pub fn contains(group: &str, live: &Value, desired: &Value) -> bool {
    let matcher = Matcher::new(is_built_in(group));
    let content = desired
        .as_object()
        .into_iter()
        .flatten()
        .filter(|(name, _)| !matches!(name.as_str(), "apiVersion" | "kind" | "metadata"));
    content
        .into_iter()
        .all(|(name, desired)| matcher.field(FieldContext::default(), name, live.get(name), desired))
}

/// Returns the path of the first field in which `live` does not contain `desired`; `None` when it contains all. See
/// [`contains`].
#[must_use]
pub fn first_difference(group: &str, live: &Value, desired: &Value) -> Option<FieldPath> {
    let matcher = Matcher::new(is_built_in(group));
    let desired = desired.as_object()?;
    let mut content = desired
        .iter()
        .filter(|(name, _)| !matches!(name.as_str(), "apiVersion" | "kind" | "metadata"));
    content.find_map(|(name, desired)| {
        matcher.difference(
            FieldContext::default(),
            name,
            live.get(name),
            desired,
            &FieldPath::default(),
        )
    })
}

/// The name of a field and of its parent field; list elements have none.
#[derive(Clone, Copy, Debug, Default)]
struct FieldContext<'a> {
    within: &'a str,
    name: &'a str,
}

impl<'a> FieldContext<'a> {
    fn field(&self, name: &'a str) -> Self {
        Self {
            within: self.name,
            name,
        }
    }

    /// Reports whether the API server replaces an empty text in this field by a default, which a plugin asks for with it.
    ///
    /// Source: the defaulting functions of `k8s.io/kubernetes/pkg/apis`.
    fn has_default(&self) -> bool {
        matches!(
            self.name,
            "schedulerName"
                | "restartPolicy"
                | "dnsPolicy"
                | "terminationMessagePath"
                | "terminationMessagePolicy"
                | "imagePullPolicy"
                | "protocol"
                | "scheme"
                | "sessionAffinity"
                | "type"
                | "volumeMode"
                | "podManagementPolicy"
                | "concurrencyPolicy"
        )
    }

    /// Reports whether the value of this field is a quantity.
    ///
    /// Source: the fields of type `resource.Quantity` in the OpenAPI description of Kubernetes.
    fn is_quantity(&self) -> bool {
        let in_map = matches!(
            self.within,
            "requests"
                | "limits"
                | "capacity"
                | "allocatable"
                | "hard"
                | "podFixed"
                | "default"
                | "defaultRequest"
                | "max"
                | "min"
                | "maxLimitRequestRatio"
        );
        in_map
            || matches!(
                (self.within, self.name),
                ("emptyDir", "sizeLimit")
                    | ("resourceFieldRef", "divisor")
                    | ("target", "averageValue" | "value")
                    | (_, "targetAverageValue" | "targetValue")
                    | ("", "capacity" | "maximumVolumeSize")
            )
    }
}

struct Matcher {
    built_in: bool,
    /// How many more values may be compared.
    left: Cell<usize>,
}

impl Matcher {
    fn new(built_in: bool) -> Self {
        Self {
            built_in,
            left: Cell::new(MAX_COMPARISONS),
        }
    }

    /// Counts comparisons; `false` when there were too many. Then every further value counts as different.
    fn count(&self, comparisons: usize) -> bool {
        let left = self.left.get().checked_sub(comparisons);
        self.left.set(left.unwrap_or(0));
        left.is_some()
    }

    fn field(&self, context: FieldContext<'_>, name: &str, live: Option<&Value>, desired: &Value) -> bool {
        match live {
            Some(live) => self.value(&context.field(name), live, desired),
            None => self.is_left_out(name, desired),
        }
    }

    fn value(&self, context: &FieldContext<'_>, live: &Value, desired: &Value) -> bool {
        // Every element of a list is looked at, even if the first ones differ: for its keys.
        let elements = |value: &Value| value.as_array().map_or(0, Vec::len);
        if !self.count(1 + elements(live) + elements(desired)) {
            return false;
        }
        match (live, desired) {
            (Value::Object(live), Value::Object(desired)) => desired
                .iter()
                .all(|(name, desired)| self.field(*context, name, live.get(name), desired)),
            (Value::Array(live), Value::Array(desired))
                if !desired.is_empty() && desired.iter().all(has_merge_key) =>
            {
                let mut free = FreeElements::of(self, live);
                desired.iter().all(|desired| {
                    let keys = self.exact_keys(context, desired);
                    free.take(&keys, |live| self.value(context, live, desired))
                })
            }
            (Value::Array(live), Value::Array(desired)) => {
                live.len() == desired.len()
                    && live
                        .iter()
                        .zip(desired)
                        .all(|(live, desired)| self.value(context, live, desired))
            }
            (Value::String(_), Value::String(desired))
                if self.built_in && desired.is_empty() && context.has_default() =>
            {
                true
            }
            (live, desired) => {
                live == desired || (self.built_in && context.is_quantity() && same_quantity(live, desired))
            }
        }
    }

    /// Returns the path of the first difference in a field of the object at `within`.
    fn difference(
        &self,
        context: FieldContext<'_>,
        name: &str,
        live: Option<&Value>,
        desired: &Value,
        within: &FieldPath,
    ) -> Option<FieldPath> {
        if self.field(context, name, live, desired) {
            return None;
        }
        // Only now: most fields do not differ.
        let path = within.clone().field(name);
        Some(match live {
            Some(live) => self.within(context.field(name), live, desired, path),
            None => path,
        })
    }

    /// Returns the path of the first difference between two values at `path` that are known to differ.
    fn within(&self, context: FieldContext<'_>, live: &Value, desired: &Value, path: FieldPath) -> FieldPath {
        let deeper = match (live, desired) {
            (Value::Object(live), Value::Object(desired)) => desired
                .iter()
                .find_map(|(name, desired)| self.difference(context, name, live.get(name), desired, &path)),
            (Value::Array(live), Value::Array(desired)) => {
                let by_key = by_key(live);
                let missing = desired
                    .iter()
                    .filter(|desired| has_merge_key(desired))
                    .find(|desired| {
                        let keys = self.exact_keys(&context, desired);
                        let is_match = |live: &Value| self.value(&context, live, desired);
                        !match rarest(&by_key, &keys) {
                            Some(key) => by_key
                                .get(key)
                                .into_iter()
                                .flatten()
                                .any(|at| is_match(&live[*at])),
                            None => live.iter().any(is_match),
                        }
                    });
                missing.map(|desired| {
                    let same = live.iter().find(|live| has_same_key(live, desired));
                    // The live element has defaults among its keys, such as the protocol of a port.
                    let path = path.clone().element(same.unwrap_or(desired));
                    match same {
                        Some(live) => self.within(context, live, desired, path),
                        None => path,
                    }
                })
            }
            _ => None,
        };
        deeper.unwrap_or(path)
    }

    /// Returns the merge keys of an element of the list in this field that an element must have with the same value to
    /// contain it.
    fn exact_keys<'v>(&self, context: &FieldContext<'_>, desired: &'v Value) -> Vec<Key<'v>> {
        let keys = MERGE_KEYS
            .iter()
            .filter_map(|key| Some((*key, desired.get(*key)?)));
        keys.filter(|(key, value)| {
            let may_differ = self.built_in && context.field(key).is_quantity();
            (value.is_string() || value.is_number()) && !self.is_left_out(key, value) && !may_differ
        })
        .collect()
    }

    /// Reports whether the API server omits a field with this value. It cannot where the default is a different
    /// value: then the field is present and compared.
    fn is_left_out(&self, name: &str, value: &Value) -> bool {
        if !self.count(1) {
            return false;
        }
        let zero = self.built_in && !NONE_IS_NOT_ZERO.contains(&name);
        match value {
            Value::Null => true,
            // It omits empty maps and lists for every kind.
            Value::Object(map) => {
                map.is_empty()
                    || self.built_in && map.iter().all(|(name, value)| self.is_left_out(name, value))
            }
            Value::Array(list) => list.is_empty(),
            Value::Bool(flag) => zero && !flag,
            Value::String(text) => zero && text.is_empty(),
            Value::Number(number) => zero && number.as_f64() == Some(0.0),
        }
    }
}

/// A merge key of a list's element and its value.
type Key<'v> = (&'static str, &'v Value);

/// The positions of a list's elements by their merge keys.
type Positions<'v> = HashMap<Key<'v>, VecDeque<usize>>;

fn by_key(live: &[Value]) -> Positions<'_> {
    let mut by_key = Positions::new();
    for (at, element) in live.iter().enumerate() {
        for key in MERGE_KEYS {
            if let Some(value) = element.get(key) {
                by_key.entry((key, value)).or_default().push_back(at);
            }
        }
    }
    by_key
}

/// Returns the key that the fewest elements have; `None` when there is no key.
fn rarest<'k, 'v>(by_key: &Positions<'v>, keys: &'k [Key<'v>]) -> Option<&'k Key<'v>> {
    keys.iter()
        .min_by_key(|key| by_key.get(key).map_or(0, VecDeque::len))
}

/// The elements of a list that no desired element has taken yet.
struct FreeElements<'v> {
    matcher: &'v Matcher,
    live: &'v [Value],
    is_taken: Vec<bool>,
    first: usize,
    /// Made when it is needed: most lists are in the desired order.
    by_key: Option<Positions<'v>>,
}

impl<'v> FreeElements<'v> {
    fn of(matcher: &'v Matcher, live: &'v [Value]) -> Self {
        Self {
            matcher,
            live,
            is_taken: vec![false; live.len()],
            first: 0,
            by_key: None,
        }
    }

    /// Takes the first free element that matches. Every match has these keys.
    fn take(&mut self, keys: &[Key<'v>], is_match: impl Fn(&Value) -> bool) -> bool {
        while self.is_taken.get(self.first) == Some(&true) {
            self.first += 1;
        }
        let has_keys = |live: &Value| keys.iter().all(|(key, value)| live.get(key) == Some(value));
        let at = match self.live.get(self.first) {
            Some(live) if has_keys(live) && is_match(live) => Some(self.first),
            _ => self.find(keys, is_match),
        };
        at.map(|at| self.is_taken[at] = true).is_some()
    }

    fn find(&mut self, keys: &[Key<'v>], is_match: impl Fn(&Value) -> bool) -> Option<usize> {
        let (matcher, live, is_taken) = (self.matcher, self.live, &self.is_taken);
        let is_free_match = |at: &usize| matcher.count(1) && !is_taken[*at] && is_match(&live[*at]);
        let by_key = self.by_key.get_or_insert_with(|| by_key(live));
        let Some(key) = rarest(by_key, keys) else {
            return (self.first..live.len()).find(is_free_match);
        };
        let positions = by_key.get_mut(key)?;
        let found = positions.iter().position(is_free_match)?;
        positions.remove(found)
    }
}

/// Fields whose zero value the API server keeps, because it differs from an absent value: without
/// `allowPrivilegeEscalation: false` a process may gain privileges. If one is missing, it was removed.
///
/// Source: the pointers in `k8s.io/api` whose comment gives `nil` a meaning of its own and that get no default.
const NONE_IS_NOT_ZERO: [&str; 16] = [
    "allowPrivilegeEscalation",
    "automountServiceAccountToken",
    "completions",
    "fsGroup",
    "hostUsers",
    "ingressClassName",
    "maxUnavailable",
    "minAvailable",
    "mode",
    "runAsGroup",
    "runAsUser",
    "sizeLimit",
    "startingDeadlineSeconds",
    "storageClassName",
    "tolerationSeconds",
    "ttlSecondsAfterFinished",
];

/// Reports whether an element of a list has one of the keys by which server-side apply merges lists of the built-in
/// kinds. The schema, which defines the merged lists, is not available here. If a list is wrongly taken for a
/// merged one, elements that others add to it are left alone.
fn has_merge_key(element: &Value) -> bool {
    element
        .as_object()
        .is_some_and(|element| MERGE_KEYS.iter().any(|key| element.contains_key(*key)))
}

/// Reports whether two elements of a merged list have the same key.
fn has_same_key(a: &Value, b: &Value) -> bool {
    let key = MERGE_KEYS.iter().find(|key| b.get(**key).is_some());
    key.is_some_and(|key| a.get(*key) == b.get(*key))
}

fn same_quantity(a: &Value, b: &Value) -> bool {
    matches!((quantity(a), quantity(b)), (Some(a), Some(b)) if (a - b).abs() <= 1e-12 * a.abs().max(b.abs()))
}

/// Parses a Kubernetes quantity; `None` when the value is not one.
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
    use serde_json::{Map, json};

    use super::*;

    #[test]
    fn an_explicit_zero_that_differs_from_the_default_is_drift() {
        let desired = json!({"spec": {"containers": [{
            "name": "a", "securityContext": {"allowPrivilegeEscalation": false},
        }]}});
        assert!(!contains(
            &json!({"spec": {"containers": [{"name": "a", "securityContext": {}}]}}),
            &desired
        ));
        assert!(!contains(
            &json!({"spec": {"containers": [{"name": "a"}]}}),
            &desired
        ));
        assert!(!contains(
            &json!({}),
            &json!({"automountServiceAccountToken": false})
        ));
    }

    /// Compares in a built-in group; tests about other groups call the function itself.
    fn contains(live: &Value, desired: &Value) -> bool {
        super::contains("apps", &json!({ "a": live }), &json!({ "a": desired }))
    }

    fn in_custom(live: &Value, desired: &Value) -> bool {
        super::contains("example.com", &json!({ "a": live }), &json!({ "a": desired }))
    }

    /// Regression: each caused a needless write after every start of the host.
    #[test]
    fn a_zero_value_that_the_server_leaves_out_is_no_drift() {
        let desired = json!({
            "spec": {
                "minReadySeconds": 0, "paused": false, "schedulerHint": "",
                "template": {"spec": {"hostNetwork": false, "securityContext": {"runAsUser": 0, "privileged": false}}},
            },
        });
        let live = json!({"spec": {"template": {"spec": {"securityContext": {"runAsUser": 0}}}}});
        assert!(contains(&live, &desired));
        // A pointer to zero is written, and so is a value that the default would replace.
        assert!(!contains(
            &json!({"spec": {"replicas": 1}}),
            &json!({"spec": {"replicas": 0}})
        ));
        assert!(!contains(
            &json!({"spec": {"enabled": true}}),
            &json!({"spec": {"enabled": false}})
        ));
        assert!(!contains(
            &json!({"spec": {"paused": true}}),
            &json!({"spec": {"paused": false}})
        ));
        // Missing nonzero values are drift.
        assert!(!contains(
            &json!({"spec": {}}),
            &json!({"spec": {"paused": true}})
        ));
        assert!(!contains(
            &json!({"spec": {}}),
            &json!({"spec": {"a": {"b": 0, "c": "x"}}})
        ));
    }

    /// Regression: such a field caused a needless write after every start of the host.
    #[test]
    fn an_empty_text_that_the_server_replaces_by_its_default_is_no_drift() {
        let pod =
            |scheduler: &str, path: &str| json!({ "spec": { "schedulerName": scheduler, "subPath": path } });
        assert!(contains(&pod("default-scheduler", ""), &pod("", "")));
        assert!(!contains(&pod("default-scheduler", ""), &pod("other", "")));
        assert!(!contains(&pod("", "x"), &pod("", "")));
    }

    #[test]
    fn a_custom_resource_keeps_its_zeros_so_one_that_is_missing_is_drift() {
        for zero in [json!(false), json!(0), json!("")] {
            assert!(!in_custom(&json!({"spec": {}}), &json!({"spec": {"x": zero}})));
            // The group of another project.
            let desired = json!({"spec": {"x": zero}});
            assert!(!super::contains(
                "gateway.networking.k8s.io",
                &json!({"spec": {}}),
                &desired
            ));
        }
        assert!(in_custom(
            &json!({"spec": {}}),
            &json!({"spec": {"x": null, "y": {}, "z": []}})
        ));
    }

    #[test]
    fn defaults_and_fields_of_others_are_no_drift() {
        let live =
            json!({"spec": {"replicas": 3, "paused": false, "template": {"a": 1, "b": 2}}, "status": {}});
        assert!(contains(
            &live,
            &json!({"spec": {"replicas": 3, "template": {"b": 2}}})
        ));
        assert!(contains(
            &live,
            &json!({"spec": {"replicas": 3, "selector": {}, "volumes": [], "x": null}})
        ));
    }

    #[test]
    fn a_changed_or_missing_field_is_drift() {
        let live = json!({"spec": {"replicas": 3}});
        assert!(!contains(&live, &json!({"spec": {"replicas": 4}})));
        assert!(!contains(&live, &json!({"spec": {"minReadySeconds": 1}})));
        assert!(!contains(&live, &json!({"spec": {"replicas": "three"}})));
    }

    #[test]
    fn a_sidecar_from_a_webhook_is_no_drift_but_a_missing_container_is() {
        let live = json!([{"name": "proxy", "image": "p"}, {"name": "app", "image": "a", "env": []}]);
        assert!(contains(&live, &json!([{"name": "app", "image": "a"}])));
        assert!(!contains(&live, &json!([{"name": "app", "image": "b"}])));
        assert!(!contains(
            &live,
            &json!([{"name": "app", "image": "a"}, {"name": "app", "image": "a"}])
        ));
    }

    /// Regression: an element that somebody added to an atomic list was not detected.
    #[test]
    fn a_list_without_merge_keys_must_stand_as_given() {
        let desired = json!([{"key": "a", "operator": "Exists"}, {"key": "b", "operator": "Exists"}]);
        let defaulted =
            json!([{"key": "a", "operator": "Exists", "x": 1}, {"key": "b", "operator": "Exists"}]);
        assert!(contains(&defaulted, &desired));
        assert!(!contains(&json!([desired[1], desired[0]]), &desired));
        assert!(!contains(
            &json!([desired[0], desired[1], {"key": "c"}]),
            &desired
        ));
        assert!(!contains(&json!([desired[0]]), &desired));
    }

    #[test]
    fn the_first_difference_is_the_field_that_was_changed() {
        let at = |live: Value, desired: Value| {
            first_difference("apps", &json!({ "spec": live }), &json!({ "spec": desired }))
                .map(|path| path.to_string())
        };
        let container = |image: &str| json!({ "template": { "containers": [{ "name": "proxy" }, { "name": "app", "image": image }] } });
        let wanted = json!({ "template": { "containers": [{ "name": "app", "image": "b" }] } });
        assert_eq!(at(container("b"), wanted.clone()), None);
        assert_eq!(
            at(container("a"), wanted.clone()).as_deref(),
            Some("spec.template.containers[name=app].image")
        );
        assert_eq!(
            at(json!({ "template": { "containers": [] } }), wanted).as_deref(),
            Some("spec.template.containers[name=app]")
        );
        assert_eq!(
            at(
                json!({ "replicas": 6 }),
                json!({ "paused": false, "replicas": 3 })
            )
            .as_deref(),
            Some("spec.replicas")
        );
        assert_eq!(
            at(json!({ "args": ["a"] }), json!({ "args": ["a", "b"] })).as_deref(),
            Some("spec.args")
        );
        assert_eq!(
            at(json!({}), json!({ "replicas": 3 })).as_deref(),
            Some("spec.replicas")
        );
    }

    /// Regression: elements were compared with each other in the square of their number, even in identical lists.
    #[test]
    fn the_elements_of_a_merged_list_are_compared_about_once_each_in_any_order() {
        const ELEMENTS: usize = 1000;
        let matcher = Matcher::new(true);
        let context = FieldContext::default();
        let element =
            |number: usize| json!({ "mountPath": format!("/{number}"), "name": "data", "size": number });
        let desired: Vec<_> = (0..ELEMENTS).map(element).collect();
        let reversed: Vec<_> = desired.iter().rev().cloned().collect();
        let mut interleaved: Vec<_> = desired.iter().cloned().step_by(2).collect();
        interleaved.extend(desired.iter().skip(1).step_by(2).cloned());
        let mut injected = desired.clone();
        injected.insert(0, json!({ "name": "of-another" }));
        for live in [desired.clone(), reversed, interleaved, injected] {
            let comparisons = Cell::new(0);
            let mut free = FreeElements::of(&matcher, &live);
            for desired in &desired {
                let keys = matcher.exact_keys(&context, desired);
                assert!(free.take(&keys, |live| {
                    comparisons.set(comparisons.get() + 1);
                    matcher.value(&context, live, desired)
                }));
            }
            assert_eq!(comparisons.get(), ELEMENTS);
        }
    }

    /// Regression: a plugin kept a thread of the host busy with such a list for tens of seconds.
    #[test]
    fn elements_with_the_same_key_are_not_compared_in_the_square_of_their_number() {
        let lists = |elements: usize| {
            let desired: Vec<_> = (0..elements)
                .map(|number| json!({ "name": "a", "value": number }))
                .collect();
            let reversed: Vec<_> = desired.iter().rev().cloned().collect();
            (json!(reversed), json!(desired))
        };
        let (live, desired) = lists(500);
        assert!(contains(&live, &desired));
        let (live, desired) = lists(30_000);
        let matcher = Matcher::new(true);
        assert!(!matcher.value(&FieldContext::default(), &live, &desired));
        assert_eq!(matcher.left.get(), 0);
        // The path of the difference is still found, without further comparisons.
        let path = matcher.within(FieldContext::default(), &live, &desired, FieldPath::default());
        assert_eq!(path.to_string(), "[name=a].name");
        // A list that large in the desired order is compared as a whole.
        assert!(contains(&desired, &desired));
    }

    /// Regression: the element was copied for each of its fields.
    #[test]
    fn the_difference_in_an_element_with_many_fields_is_found_soon() {
        let with = |last: usize| {
            let mut fields: Map<_, _> = (0..20_000)
                .map(|number| (format!("f{number}"), json!(number)))
                .collect();
            fields.insert("name".to_owned(), json!("a"));
            fields.insert("z".to_owned(), json!(last));
            json!({ "list": [fields] })
        };
        let path = first_difference("apps", &with(1), &with(2)).map(|path| path.to_string());
        assert_eq!(path.as_deref(), Some("list[name=a].z"));
    }

    #[test]
    fn plain_lists_must_stand_as_given() {
        assert!(contains(&json!(["a", "b"]), &json!(["a", "b"])));
        assert!(!contains(&json!(["b", "a"]), &json!(["a", "b"])));
        assert!(!contains(&json!(["a", "b", "c"]), &json!(["a", "b"])));
    }

    #[test]
    fn quantities_are_compared_by_value_where_they_stand() {
        let with = |value: Value| json!({"resources": {"limits": {"cpu": value}}});
        for (live, desired) in [
            ("1", json!("1000m")),
            ("1", json!(1)),
            ("1Gi", json!("1024Mi")),
            ("500m", json!("0.5")),
        ] {
            assert!(contains(&with(live.into()), &with(desired)));
        }
        assert!(!contains(&with("1Gi".into()), &with("1G".into())));
        assert!(!contains(&with("inf".into()), &with("infinity".into())));
        assert!(!contains(&with("8.0".into()), &with("8.0.1".into())));
        for (place, field) in [
            ("emptyDir", "sizeLimit"),
            ("resourceFieldRef", "divisor"),
            ("target", "averageValue"),
            ("hard", "pods"),
        ] {
            let with = |value: &str| json!({"a": [{place: {field: value}}]});
            assert!(contains(&with("1"), &with("1000m")), "{place}.{field}");
        }
        assert!(super::contains(
            "storage.k8s.io",
            &json!({"capacity": "1Gi"}),
            &json!({"capacity": "1024Mi"})
        ));
    }

    /// Regression: an edit of "1.10" to "1.1" was not detected.
    #[test]
    fn texts_that_look_like_quantities_are_texts_everywhere_else() {
        for (live, desired) in [
            (
                json!({"data": {"version": "1.1"}}),
                json!({"data": {"version": "1.10"}}),
            ),
            (
                json!({"env": [{"name": "V", "value": "1.1"}]}),
                json!({"env": [{"name": "V", "value": "1.10"}]}),
            ),
            (
                json!({"template": {"metadata": {"labels": {"v": "1"}}}}),
                json!({"template": {"metadata": {"labels": {"v": "1.0"}}}}),
            ),
            (json!({"spec": {"port": "1k"}}), json!({"spec": {"port": "1000"}})),
        ] {
            assert!(!contains(&live, &desired), "{desired}");
        }
        // The server stores a custom resource's strings unchanged.
        let with = |value: &str| json!({"resources": {"limits": {"cpu": value}}});
        assert!(!in_custom(&with("1"), &with("1000m")));
    }
}
