//! Fields of a child that the host leaves as they are, such as the replicas of a Deployment with an autoscaler.
//!
//! A field that an apply no longer contains is reset to its default, unless another manager owns it. So an apply repeats
//! the current value of a left field as long as nobody but this controller owns it, and leaves it out afterwards.
//!
//! Source: Kubernetes, "Server-Side Apply", transferring ownership.

use k8s_openapi::apimachinery::pkg::apis::meta::v1::ManagedFieldsEntry;
use kube::core::DynamicObject;
use serde_json::{Value, json};

use operator_host_core::field_path::{self, Step, WrittenPath};
use operator_host_core::managed_fields::{below, fields, is_apply_of, owned_part};

/// Maximum number of left fields of a child.
const MAX_FIELDS: usize = 32;

/// A field that is left as it is.
#[derive(Clone, Debug, PartialEq)]
pub struct LeftField {
    /// The way to it, which ends with a field.
    path: WrittenPath,
    /// The value for an object that does not exist yet.
    initial: Option<Value>,
}

/// Takes the fields that the text of the annotation lists, such as `spec.replicas`, out of a body. `live` is the object as
/// it exists.
///
/// # Errors
/// When the text is not a list of fields that can be left, or a field is neither in the body nor in the object.
pub fn take(text: &str, body: &mut Value, live: Option<&DynamicObject>) -> Result<Vec<LeftField>, String> {
    let wrong = |text: &str| {
        format!(
            "{text:?} is not a field that can be left; list fields such as `spec.replicas`, `data[\"app.properties\"]` or \
             `spec.containers[name=app].resources`, separated by commas"
        )
    };
    let paths = field_path::parse(text).map_err(wrong)?;
    let count = paths.len();
    if count > MAX_FIELDS {
        return Err(format!("it lists {count} fields; the limit is {MAX_FIELDS}"));
    }
    let left = paths.into_iter().map(|path| {
        let text = path.to_string();
        if let Some(Step::Field(first)) = path.steps.first()
            && matches!(first.as_str(), "apiVersion" | "kind" | "metadata" | "status")
        {
            return Err(wrong(&text));
        }
        let initial = remove(body, &path.steps);
        if initial.is_none() && !may_appear(body, &path.steps, live) {
            return Err(format!(
                "the child has no field {text:?}: correct the path, or give the field its first value. A name that has \
                 dots is written as in `data[\"app.properties\"]`"
            ));
        }
        Ok(LeftField { path, initial })
    });
    left.collect()
}

/// Reports whether a field that the plugin gives no value can have one: it exists, or the API server may default it when it
/// creates the object.
fn may_appear(body: &Value, path: &[Step], live: Option<&DynamicObject>) -> bool {
    let (place, way) = match live {
        Some(live) => (&live.data, path),
        None => (body, &path[..path.len() - 1]),
    };
    let found = way.iter().try_fold(place, |place, step| step.find(place));
    found.is_some_and(|found| live.is_some() || found.is_object())
}

/// Adds the values for an object that does not exist yet.
pub fn add_initial(fields: &[LeftField], body: &mut Value) {
    for LeftField { path, initial } in fields {
        if let Some(initial) = initial {
            insert(body, &path.steps, initial.clone());
        }
    }
}

/// Adds the current values of what only this manager owns in the fields. `live` is the content of the object with these
/// `managed` fields.
pub fn add_owned(
    left: &[LeftField],
    live: &Value,
    managed: &[ManagedFieldsEntry],
    manager: &str,
    body: &mut Value,
) {
    for LeftField { path, .. } in left {
        let (ours, others): (Vec<_>, Vec<_>) = managed
            .iter()
            .filter_map(|entry| Some((entry, part(entry, &path.steps)?)))
            .partition(|(entry, _)| is_apply_of(entry, manager));
        let others: Vec<&Value> = others.into_iter().map(|(_, part)| part).collect();
        if let Some(value) = path.steps.iter().try_fold(live, |value, step| step.find(value))
            && let Some((_, ours)) = ours.first()
            && let Some(own) = owned_part(value, ours, &others)
        {
            insert(body, &path.steps, own);
        }
    }
}

/// Returns what an entry contains of a field.
fn part<'a>(entry: &'a ManagedFieldsEntry, path: &[Step]) -> Option<&'a Value> {
    path.iter().try_fold(fields(entry)?, |fields, step| match step {
        Step::Field(name) => fields.get(format!("f:{name}")),
        Step::Element(_) => below(fields).find_map(|(name, place)| {
            let keys = serde_json::from_str(name.strip_prefix("k:")?).ok()?;
            step.selects(&keys).then_some(place)
        }),
    })
}

fn remove(body: &mut Value, path: &[Step]) -> Option<Value> {
    let (last, way) = path.split_last()?;
    let parent = way.iter().try_fold(body, |place, step| step.find_mut(place))?;
    let Step::Field(last) = last else { return None };
    parent.as_object_mut()?.remove(last)
}

/// Sets a field, unless it is in an element that is not there.
fn insert(body: &mut Value, path: &[Step], value: Value) {
    let mut place = body;
    for step in path {
        if let (Step::Field(name), Value::Object(fields)) = (step, &mut *place) {
            fields.entry(name.as_str()).or_insert_with(|| json!({}));
        }
        match step.find_mut(place) {
            Some(next) => place = next,
            None => return,
        }
    }
    *place = value;
}

#[cfg(test)]
mod tests {
    use super::*;

    const US: &str = "operator-host/shop";

    fn deployment(owners: &[(&str, &str)]) -> DynamicObject {
        let entries: Vec<_> = owners
            .iter()
            .map(|(manager, operation)| {
                json!({
                    "manager": manager, "operation": operation, "fieldsType": "FieldsV1",
                    "fieldsV1": { "f:spec": { "f:replicas": {} } },
                })
            })
            .collect();
        serde_json::from_value(json!({
            "apiVersion": "apps/v1", "kind": "Deployment",
            "metadata": { "name": "a", "managedFields": entries },
            "spec": { "replicas": 6, "paused": false },
        }))
        .unwrap()
    }

    fn applied(owners: &[(&str, &str)]) -> Value {
        let mut body = json!({ "spec": { "replicas": 2, "paused": true } });
        let fields = take("spec.replicas", &mut body, None).unwrap();
        assert_eq!(body, json!({ "spec": { "paused": true } }));
        let live = deployment(owners);
        let managed = live.metadata.managed_fields.unwrap_or_default();
        add_owned(&fields, &live.data, &managed, US, &mut body);
        body
    }

    #[test]
    fn the_current_value_is_repeated_until_another_manager_owns_the_field() {
        let repeated = json!({ "spec": { "replicas": 6, "paused": true } });
        let left_out = json!({ "spec": { "paused": true } });
        assert_eq!(applied(&[(US, "Apply")]), repeated);
        let scaler = ("kube-controller-manager", "Update");
        assert_eq!(applied(&[(US, "Apply"), scaler]), left_out);
        assert_eq!(applied(&[scaler]), left_out);
        assert_eq!(applied(&[]), left_out, "a default, which nothing resets");
    }

    /// Regression: a key that somebody added to a left map made the host drop its own keys, and the server deleted them.
    #[test]
    fn of_a_map_only_the_keys_of_others_are_left_out() {
        let entry = |manager: &str, operation: &str, fields: Value| json!({ "manager": manager, "operation": operation, "fieldsType": "FieldsV1", "fieldsV1": fields });
        let ours = json!({ "f:data": { ".": {}, "f:a": {}, "f:b": {} }, "f:rules": {
            "k:{\"port\":80}": { ".": {}, "f:port": {}, "f:name": {}, "f:weight": {} },
        } });
        let theirs = json!({ "f:data": { "f:b": {}, "f:c": {} }, "f:rules": {
            "k:{\"port\":80}": { "f:weight": {} }, "k:{\"port\":81}": { ".": {}, "f:port": {} },
        } });
        let live: DynamicObject = serde_json::from_value(json!({
            "apiVersion": "v1", "kind": "ConfigMap",
            "metadata": { "name": "a", "managedFields": [entry(US, "Apply", ours), entry("user", "Update", theirs)] },
            "data": { "a": "1", "b": "user", "c": "3" },
            "rules": [{ "port": 80, "name": "web", "weight": 9 }, { "port": 81 }],
        }))
        .unwrap();
        let mut body = json!({ "data": { "a": "0", "b": "0" }, "rules": [] });
        let fields = take("data, rules", &mut body, None).unwrap();
        let managed = live.metadata.managed_fields.unwrap_or_default();
        add_owned(&fields, &live.data, &managed, US, &mut body);
        let expected = json!({ "data": { "a": "1" }, "rules": [{ "port": 80, "name": "web" }] });
        assert_eq!(body, expected);
    }

    #[test]
    fn a_field_in_an_element_is_left_by_its_keys() {
        let container = |cpu: Value| json!({ "spec": { "containers": [{ "name": "app", "resources": cpu }, { "name": "b" }] } });
        let mut body = container(json!({ "cpu": 1 }));
        let left = take("spec.containers[name=app].resources", &mut body, None).unwrap();
        assert_eq!(
            body,
            json!({ "spec": { "containers": [{ "name": "app" }, { "name": "b" }] } })
        );
        let mut new = body.clone();
        add_initial(&left, &mut new);
        assert_eq!(new, container(json!({ "cpu": 1 })));
        let entry = |manager: &str, operation: &str| {
            let element = json!({ "f:resources": { ".": {}, "f:cpu": {} } });
            let fields = json!({ "f:spec": { "f:containers": { r#"k:{"name":"app"}"#: element } } });
            json!({ "manager": manager, "operation": operation, "fieldsType": "FieldsV1", "fieldsV1": fields })
        };
        for (entries, expected) in [
            (json!([entry(US, "Apply")]), container(json!({ "cpu": 2 }))),
            (json!([entry(US, "Apply"), entry("user", "Update")]), body.clone()),
        ] {
            let managed: Vec<ManagedFieldsEntry> = serde_json::from_value(entries).unwrap();
            let mut applied = body.clone();
            add_owned(&left, &container(json!({ "cpu": 2 })), &managed, US, &mut applied);
            assert_eq!(applied, expected);
        }
        let error = take("spec.containers[name=c].image", &mut body, None).unwrap_err();
        assert!(error.contains("no field"), "{error}");
    }

    #[test]
    fn a_new_object_gets_the_values_of_the_plugin() {
        let whole = json!({ "spec": { "replicas": 2, "strategy": { "type": "Recreate" } } });
        let mut body = whole.clone();
        let fields = take("spec.replicas, spec.strategy.type, spec.paused", &mut body, None).unwrap();
        assert_eq!(body, json!({ "spec": { "strategy": {} } }));
        add_initial(&fields, &mut body);
        assert_eq!(body, whole);
    }

    /// Regression: the dots in the key were those of a path, which matched nothing, and the host reset the field.
    #[test]
    fn a_path_that_matches_nothing_is_refused() {
        let live: DynamicObject = serde_json::from_value(json!({
            "apiVersion": "v1", "kind": "ConfigMap", "metadata": { "name": "a" }, "data": { "live.only": "1" },
        }))
        .unwrap();
        let check = |text: &str, live: Option<&DynamicObject>| {
            let mut body = json!({ "data": { "app.properties": "a=1", "b": "2" } });
            take(text, &mut body, live).map(|_| body)
        };
        let rest = check("data[\"app.properties\"]", None).unwrap();
        assert_eq!(rest, json!({ "data": { "b": "2" } }));
        assert!(check("data[\"live.only\"]", Some(&live)).is_ok());
        for (text, live) in [
            ("data.app.properties", None),
            ("data.app.properties", Some(&live)),
            ("data.c", Some(&live)),
            ("date.b", None),
        ] {
            let error = check(text, live).unwrap_err();
            assert!(error.contains(&format!("no field {text:?}")), "{error}");
        }
    }

    #[test]
    fn only_fields_of_the_content_can_be_left() {
        for text in [
            "",
            "spec..replicas",
            "metadata.labels",
            "status",
            "kind",
            "spec.replicas,",
        ] {
            let error = take(text, &mut json!({}), None).unwrap_err();
            let words = "is not a field that can be left";
            assert!(error.contains(words), "{text:?}: {error}");
        }
        let many = vec!["spec.a"; MAX_FIELDS + 1].join(",");
        assert!(
            take(&many, &mut json!({"spec": {}}), None)
                .unwrap_err()
                .contains("the limit is 32")
        );
    }
}
