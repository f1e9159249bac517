//! Checks whether the CustomResourceDefinition that a new version contains fits the existing objects. Pure.
//!
//! For a controller whose definition somebody else installs. The definition that the new version was built for is compared
//! with the installed one: the scope must be the same; the kind's version must still be served; the versions in which
//! objects are stored must still exist; and every object that is valid under the installed schema must be valid
//! under the new one, so no field that it uses was removed, has another type, or violates a new rule. CEL rules are
//! not evaluated.

use std::collections::BTreeSet;
use std::sync::Arc;

use kube::core::DynamicObject;
use serde_json::Value;

use super::compare::MAX_BLAMED;
use operator_host_contract::Kind;
use operator_host_core::crd::definition;
use operator_host_core::object::NamespacedName;
use operator_host_delivery::candidate_check::Blamed;
use operator_host_schema::schema;

/// The contradictions that were found.
#[derive(Debug, Default, PartialEq)]
pub(super) struct Contradictions {
    /// In the definition itself.
    pub(super) definition: Vec<String>,
    /// In objects: the first few.
    pub(super) objects: Vec<Blamed>,
}

/// Compares the installed definition with the one that a version contains.
pub(super) fn contradictions(
    installed: &Value,
    carried: &Value,
    parent: &Kind,
    objects: &[Arc<DynamicObject>],
) -> Contradictions {
    let mut found = Contradictions::default();
    let scope = |crd: &Value| crd["spec"]["scope"].as_str().unwrap_or_default().to_owned();
    if scope(installed) != scope(carried) {
        found.definition.push(format!(
            "`spec.scope` is {} and the cluster's is {}",
            scope(carried),
            scope(installed)
        ));
    }
    let wanted = parent.api_version.rsplit('/').next().unwrap_or_default();
    if !definition::version(carried, wanted).is_some_and(definition::is_served) {
        found.definition.push(format!(
            "it does not serve the version {wanted}, which this controller reconciles"
        ));
    }
    for stored in definition::stored_versions(installed) {
        if definition::version(carried, stored).is_none() {
            found.definition.push(format!(
                "it lacks the version {stored:?}, in which objects are stored"
            ));
        }
    }
    let (Some(before), Some(after)) = (
        definition::schema(installed, parent),
        definition::schema(carried, parent),
    ) else {
        return found;
    };
    for object in objects {
        if found.objects.len() >= MAX_BLAMED {
            break;
        }
        // Serialization of a resource cannot fail.
        let value = serde_json::to_value(&**object).unwrap_or_default();
        let problems = |schema: &Value| -> BTreeSet<String> {
            let problems = schema::validate_resource(&value, schema);
            problems.iter().map(ToString::to_string).collect()
        };
        let new_problems: Vec<String> = problems(after).difference(&problems(before)).cloned().collect();
        if let Some(first) = new_problems.first() {
            found.objects.push(Blamed {
                object: NamespacedName::of(object).to_string(),
                message: format!("it does not fit the definition that this version carries: {first}"),
                diff: String::new(),
            });
        }
    }
    found
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn crd(type_: &str) -> Value {
        json!({
            "spec": {
                "scope": "Namespaced",
                "versions": [{
                    "name": "v1", "served": true, "storage": true,
                    "schema": {"openAPIV3Schema": {"type": "object", "properties": {"spec": {
                        "type": "object", "properties": {"replicas": {"type": type_}, "old": {"type": "string"}},
                    }}}},
                }],
            },
            "status": {"storedVersions": ["v1"]},
        })
    }

    fn found(carried: &Value, spec: &Value) -> Contradictions {
        let kind = Kind {
            api_version: "example.com/v1".into(),
            kind: "Shop".into(),
        };
        let object =
            json!({"apiVersion": "example.com/v1", "kind": "Shop", "metadata": {"name": "a"}, "spec": spec});
        let object = Arc::new(serde_json::from_value(object).unwrap());
        contradictions(&crd("integer"), carried, &kind, &[object])
    }

    #[test]
    fn what_no_object_uses_may_change() {
        let other = found(&crd("boolean"), &json!({"old": "x"}));
        assert_eq!(other, Contradictions::default());
        let mut less = crd("integer");
        let version = &mut less["spec"]["versions"][0]["schema"]["openAPIV3Schema"]["properties"]["spec"];
        version["properties"].as_object_mut().unwrap().remove("old");
        assert_eq!(found(&less, &json!({"replicas": 1})), Contradictions::default());
        assert_eq!(
            found(&less, &json!({"old": "x"})).objects.len(),
            1,
            "the field is used"
        );
    }

    #[test]
    fn another_type_of_a_field_in_use_is_reported_with_the_object() {
        let found = found(&crd("boolean"), &json!({"replicas": 1}));
        assert_eq!(found.objects[0].object, "a");
        assert!(found.objects[0].message.contains("replicas"), "{found:?}");
    }

    #[test]
    fn scope_and_versions_must_stay() {
        let mut other = crd("integer");
        other["spec"]["scope"] = "Cluster".into();
        other["spec"]["versions"][0]["name"] = "v2".into();
        let found = found(&other, &json!({}));
        assert_eq!(found.definition.len(), 3, "{found:?}");
    }
}
