//! What kube-apiserver checks of a converted object, in `webhook_converter.go` of apiextensions-apiserver: kind, API
//! version, name, namespace and UID stay, and labels and annotations are valid. It ignores other changes of the
//! metadata. The host restores that metadata.

use std::collections::BTreeMap;

use serde::Serialize;
use serde_json::value::{RawValue, to_raw_value};

use operator_host_contract::Json;
use operator_host_core::json_text::{self, Members};
use operator_host_core::object::{MAX_DEPTH, unreadable};
use operator_host_core::text::shorten;
use operator_host_runtime::estimate::estimate;
use operator_host_schema::metadata::{check_annotations, check_label};

/// Longest name of an object in a message, in bytes, with its kind and its namespace.
const NAME: usize = 600;

/// What a conversion may change of the metadata.
const CHANGEABLE: [&str; 2] = ["labels", "annotations"];

/// An object to convert.
#[derive(Debug)]
pub struct Before<'a> {
    pub(super) text: &'a str,
    /// Its API version.
    pub api_version: String,
    /// Its kind.
    pub kind: String,
    pub(crate) members: Members<'a>,
    metadata: Members<'a>,
    name: String,
    namespace: String,
    uid: String,
}

impl<'a> Before<'a> {
    /// Reads what identifies an object.
    ///
    /// # Errors
    /// When it is not a Kubernetes object, or is nested deeper than the host reads.
    pub fn read(text: &'a str) -> Result<Self, String> {
        let members = json_text::members(text)?;
        let present = |name: &str| members.get(name).ok_or_else(|| format!("missing field `{name}`"));
        let metadata =
            json_text::members(present("metadata")?.get()).map_err(|error| format!("metadata: {error}"))?;
        let identity = |name: &str| string(metadata.get(name), &format!("metadata.{name}"));
        let object = Self {
            text,
            api_version: string(Some(present("apiVersion")?), "apiVersion")?,
            kind: string(Some(present("kind")?), "kind")?,
            name: identity("name")?,
            namespace: identity("namespace")?,
            uid: identity("uid")?,
            metadata,
            members,
        };
        // The metadata without the managed fields have few levels.
        let mut others = object.members.iter().filter(|(key, _)| *key != "metadata");
        match others.any(|(_, value)| estimate(value.get()).levels > MAX_DEPTH) {
            true => Err(unreadable(&shorten(&object.full_name(), NAME))),
            false => Ok(object),
        }
    }

    /// Returns the kind with the namespace and the name, for messages.
    pub(super) fn full_name(&self) -> String {
        let (kind, name) = (&self.kind, &self.name);
        match self.namespace.as_str() {
            "" => format!("{kind} {name}"),
            namespace => format!("{kind} {namespace}/{name}"),
        }
    }

    /// Returns the object without `metadata.managedFields`, which is often most of its text, and with another spec if
    /// there is one.
    pub fn for_plugin(&self, spec: Option<&RawValue>) -> Json {
        let mut metadata = self.metadata.clone();
        metadata.remove("managedFields");
        let mut members: Members<'_> = self.members.clone();
        members.extend(spec.map(|spec| ("spec".to_owned(), spec)));
        written(members, &metadata).into()
    }

    /// Checks a converted object, and returns it with the metadata that a conversion does not change.
    ///
    /// # Errors
    /// What is wrong with it.
    pub fn restore(&self, converted: &str, to: &str) -> Result<String, String> {
        let after = Before::read(converted)?;
        let same = [
            ("apiVersion", &*after.api_version, to),
            ("kind", &*after.kind, &*self.kind),
            ("metadata.name", &*after.name, &*self.name),
            ("metadata.namespace", &*after.namespace, &*self.namespace),
            ("metadata.uid", &*after.uid, &*self.uid),
        ];
        if let Some((field, found, expected)) = same.iter().find(|(_, found, expected)| found != expected) {
            return Err(format!(
                "`{field}` is {found:?}, expected {expected:?}; are the objects in the same order?"
            ));
        }
        let changed = |field| changed(field, self.metadata.get(field), after.metadata.get(field));
        for (key, value) in changed("labels")?.iter().flatten() {
            check_label(key, value)?;
        }
        changed("annotations")?
            .as_ref()
            .map_or(Ok(()), check_annotations)?;
        let mut metadata = self.metadata.clone();
        for field in CHANGEABLE {
            match after.metadata.get(field).filter(|value| value.get() != "null") {
                Some(value) => metadata.insert(field.to_owned(), value),
                None => metadata.remove(field),
            };
        }
        Ok(Box::<str>::from(written(after.members, &metadata)).into())
    }
}

/// Writes an object with other metadata.
fn written(members: Members<'_>, metadata: &Members<'_>) -> Box<RawValue> {
    let metadata = json(metadata);
    let mut members: Members<'_> = members;
    members.insert("metadata".to_owned(), &metadata);
    json(&members)
}

/// Writes a map of JSON values.
#[allow(clippy::expect_used, reason = "its keys are texts")]
pub(crate) fn json(map: &impl Serialize) -> Box<RawValue> {
    to_raw_value(map).expect("a map as JSON")
}

/// Reads a text, which is empty when it is absent.
fn string(value: Option<&&RawValue>, path: &str) -> Result<String, String> {
    value.map_or(Ok(String::new()), |value| {
        serde_json::from_str(value.get()).map_err(|error| format!("{path}: {error}"))
    })
}

type Texts = BTreeMap<String, String>;

/// Returns the new labels or annotations if they changed.
fn changed(
    field: &str,
    before: Option<&&RawValue>,
    after: Option<&&RawValue>,
) -> Result<Option<Texts>, String> {
    let (before, after) = (before.map(|text| text.get()), after.map(|text| text.get()));
    if before == after {
        return Ok(None);
    }
    let read = |text: Option<&str>| {
        let texts: Result<Option<Texts>, _> = serde_json::from_str(text.unwrap_or("null"));
        let texts = texts.map_err(|error| format!("metadata.{field}: {error}"));
        texts.map(Option::unwrap_or_default)
    };
    let after = read(after)?;
    // The API server has checked the earlier ones, maybe by older rules.
    Ok((read(before)? != after).then_some(after))
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;

    fn object(change: impl FnOnce(&mut Value)) -> String {
        let mut object = json!({
            "apiVersion": "a.dev/v1", "kind": "Thing", "spec": { "a": [1, "}"] },
            "metadata": {
                "name": "a", "namespace": "n", "uid": "u", "generation": 3, "labels": { "old Label": "!" },
                "managedFields": [{ "manager": "m" }], "finalizers": ["a/b"],
            },
        });
        change(&mut object);
        object.to_string()
    }

    fn restored(change: impl FnOnce(&mut Value)) -> Result<Value, String> {
        let text = object(|_| {});
        let converted = object(|object| {
            object["apiVersion"] = "a.dev/v2".into();
            object["spec"] = json!({ "b": 1 });
            change(object);
        });
        let restored = Before::read(&text).unwrap().restore(&converted, "a.dev/v2");
        restored.map(|text| serde_json::from_str(&text).unwrap())
    }

    #[test]
    fn a_plugin_sees_an_object_without_its_managed_fields() {
        let text = object(|_| {});
        let shown: Value = serde_json::from_str(Before::read(&text).unwrap().for_plugin(None).get()).unwrap();
        let mut expected: Value = serde_json::from_str(&text).unwrap();
        expected["metadata"]
            .as_object_mut()
            .unwrap()
            .remove("managedFields");
        assert_eq!(shown, expected);
    }

    #[test]
    fn a_conversion_changes_labels_and_annotations_and_no_other_metadata() {
        let after = restored(|object| {
            object["metadata"] = json!({
                "name": "a", "namespace": "n", "uid": "u", "labels": { "new": "1" },
                "annotations": { "Old.dev/Field": "any text!" }, "finalizers": [], "deletionTimestamp": "now",
            });
        });
        let after = after.unwrap();
        assert_eq!(after["spec"], json!({ "b": 1 }));
        assert_eq!(
            after["metadata"],
            json!({
                "name": "a", "namespace": "n", "uid": "u", "generation": 3, "labels": { "new": "1" },
                "annotations": { "Old.dev/Field": "any text!" }, "managedFields": [{ "manager": "m" }],
                "finalizers": ["a/b"],
            })
        );
        // What the API server took once is not checked again.
        let expected = json!({ "old Label": "!" });
        assert_eq!(restored(|_| {}).unwrap()["metadata"]["labels"], expected);
        let removed = restored(|object| object["metadata"]["labels"] = Value::Null).unwrap();
        assert_eq!(removed["metadata"].get("labels"), None);
    }

    #[test]
    fn what_the_api_server_would_refuse_is_named() {
        let long = "x".repeat(operator_host_schema::metadata::ANNOTATIONS);
        for (path, value, expected) in [
            (
                "/apiVersion",
                json!("a.dev/v3"),
                "`apiVersion` is \"a.dev/v3\", expected \"a.dev/v2\"",
            ),
            ("/kind", json!("Another"), "`kind` is \"Another\""),
            ("/metadata/name", json!("b"), "`metadata.name` is \"b\""),
            ("/metadata/namespace", json!(""), "`metadata.namespace` is \"\""),
            ("/metadata/uid", json!("v"), "`metadata.uid` is \"v\""),
            ("/metadata", json!("text"), "metadata: "),
            ("/metadata/labels", json!({ "a": 1 }), "metadata.labels: "),
            ("/metadata/labels", json!([]), "metadata.labels: "),
            (
                "/metadata/labels",
                json!({ "a": "b c" }),
                "metadata.labels[\"a\"] is \"b c\"",
            ),
            ("/metadata/labels", json!({ "-a": "" }), "the invalid key \"-a\""),
            (
                "/metadata/labels",
                json!({ "A.dev/a": "" }),
                "the invalid key \"A.dev/a\"",
            ),
            ("/metadata/labels", json!({ "a": long }), "a label's value"),
        ] {
            let error = restored(|object| *object.pointer_mut(path).unwrap() = value).unwrap_err();
            assert!(error.contains(expected), "{error}");
        }
        let error = restored(|object| object["metadata"]["annotations"] = json!({ "a": long })).unwrap_err();
        assert!(error.contains("the limit is 256 KiB"), "{error}");
        let text = object(|_| {});
        for strange in ["[]", "\"text\"", "[\"a.dev/v2\", \"Thing\", {}]"] {
            let error = Before::read(&text)
                .unwrap()
                .restore(strange, "a.dev/v2")
                .unwrap_err();
            assert_eq!(error, "it is not a JSON object");
        }
    }
}
