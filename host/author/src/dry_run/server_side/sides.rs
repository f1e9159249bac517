//! Both sides of a child's difference, as it is and as it would be, reduced to what matters to people. The values of
//! Secrets are masked.

use kube::core::DynamicObject;
use serde_json::Value;

use operator_host_core::object::{APPLIED_ANNOTATION, ChildRef, PROVENANCE_ANNOTATION, secret};

/// One child that would change.
#[derive(Clone, Debug, PartialEq)]
pub struct Difference {
    /// The child's key.
    pub key: ChildRef,
    /// The object in the cluster; `None` when it would be created.
    pub before: Option<Value>,
    /// The object after the change; `None` when it would be deleted.
    pub after: Option<Value>,
}

impl Difference {
    /// Compares both sides; returns `None` when they are equal.
    pub fn between(
        key: &ChildRef,
        before: Option<&DynamicObject>,
        after: Option<&DynamicObject>,
    ) -> Option<Self> {
        let (mut before, mut after) = (before.map(plain), after.map(plain));
        if before == after {
            return None;
        }
        if secret::is_secret_kind(&key.kind) {
            mask(before.as_mut(), after.as_mut());
        }
        Some(Self {
            key: key.clone(),
            before,
            after,
        })
    }
}

/// Removes the fields that the API server maintains, and the host's own annotations.
fn plain(object: &DynamicObject) -> Value {
    // An object deserialized from JSON always serializes.
    let mut value = serde_json::to_value(object).unwrap_or_default();
    if let Some(map) = value.as_object_mut() {
        map.remove("status");
    }
    if let Some(metadata) = value["metadata"].as_object_mut() {
        for field in [
            "managedFields",
            "resourceVersion",
            "generation",
            "uid",
            "creationTimestamp",
            "selfLink",
        ] {
            metadata.remove(field);
        }
        if let Some(annotations) = metadata.get_mut("annotations").and_then(Value::as_object_mut) {
            let marks = [APPLIED_ANNOTATION, PROVENANCE_ANNOTATION];
            annotations.retain(|name, _| !marks.contains(&name.as_str()));
        }
    }
    value
}

/// Masks a Secret as `kubectl diff` does: a change of a value is visible, but not the value.
fn mask(before: Option<&mut Value>, after: Option<&mut Value>) {
    let mut none = (Value::Null, Value::Null);
    let (before, after) = (before.unwrap_or(&mut none.0), after.unwrap_or(&mut none.1));
    let (old, new) = (before.clone(), after.clone());
    let cover = |side: &mut Value, other: &Value, changed: &str| {
        if let Some(side) = side.as_object_mut() {
            secret::replace_values(side, |field, key, value| {
                let differs = secret::value_at(other, field, key).is_some_and(|other| other != value);
                if differs { changed } else { "***" }.into()
            });
        }
    };
    cover(before, &new, "*** (before)");
    cover(after, &old, "*** (after)");
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;
    use operator_host_contract::Kind;
    use operator_host_core::object::NamespacedName;

    fn secret(data: &Value) -> DynamicObject {
        serde_json::from_value(json!({
            "apiVersion": "v1", "kind": "Secret",
            "metadata": {
                "name": "s", "uid": "u", "resourceVersion": "7", "generation": 3,
                "annotations": {APPLIED_ANNOTATION: "x", PROVENANCE_ANNOTATION: "y", "a": "b"},
            },
            "data": data,
        }))
        .unwrap()
    }

    fn key() -> ChildRef {
        ChildRef {
            kind: Kind::new("v1", "Secret"),
            name: NamespacedName::parse("n/s"),
        }
    }

    #[test]
    fn a_secret_shows_which_values_change_and_none_of_them() {
        let (old, new) = (
            json!({"a": "QQ==", "b": "Qg==", "c": "Qw=="}),
            json!({"a": "QQ==", "b": "WA==", "d": "RA=="}),
        );
        let difference = Difference::between(&key(), Some(&secret(&old)), Some(&secret(&new))).unwrap();
        let expected = json!({"a": "***", "b": "*** (before)", "c": "***"});
        assert_eq!(difference.before.unwrap()["data"], expected);
        let after = difference.after.unwrap();
        assert_eq!(after["data"], json!({"a": "***", "b": "*** (after)", "d": "***"}));
        assert_eq!(after["metadata"], json!({"name": "s", "annotations": {"a": "b"}}));
    }

    #[test]
    fn a_value_that_no_secret_can_have_is_masked_too() {
        let (old, new) = (json!({"a": 1234}), json!("5678"));
        let difference = Difference::between(&key(), Some(&secret(&old)), Some(&secret(&new))).unwrap();
        assert_eq!(difference.before.unwrap()["data"], json!({"a": "***"}));
        assert_eq!(difference.after.unwrap()["data"], "*** (after)");
    }

    #[test]
    fn counters_and_the_marks_of_the_host_are_no_difference() {
        let one = secret(&json!({}));
        let mut other = one.clone();
        other.metadata.resource_version = Some("8".into());
        other
            .metadata
            .annotations
            .as_mut()
            .unwrap()
            .insert(PROVENANCE_ANNOTATION.into(), "z".into());
        assert_eq!(Difference::between(&key(), Some(&one), Some(&other)), None);
    }
}
