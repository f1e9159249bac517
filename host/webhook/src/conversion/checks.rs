//! What kube-apiserver checks of a converted object, in `webhook_converter.go` of apiextensions-apiserver: kind, API
//! version, name, namespace and UID stay, and labels and annotations are valid. It ignores other changes of the
//! metadata. The host restores that metadata.

use std::collections::BTreeMap;

use serde::Deserialize;
use serde_json::value::RawValue;

use operator_host_core::json_text::{ObjectText, levels, members};
use operator_host_core::object::{MAX_DEPTH, shorten, unreadable};
use operator_host_schema::metadata::{check_annotations, check_label};

/// Longest name of an object in a message, in bytes, with its kind and its namespace.
const NAME: usize = 600;

/// An object to convert.
#[derive(Debug)]
pub struct Before<'a> {
    pub(super) text: &'a str,
    /// Its API version.
    pub api_version: String,
    /// Its kind.
    pub kind: String,
    metadata: &'a str,
    identity: Identity<'a>,
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct Head<'a> {
    api_version: String,
    kind: String,
    #[serde(borrow)]
    metadata: &'a RawValue,
}

#[derive(Debug, Deserialize)]
struct Identity<'a> {
    #[serde(default)]
    name: String,
    #[serde(default)]
    namespace: String,
    #[serde(default)]
    uid: String,
    #[serde(borrow)]
    labels: Option<&'a RawValue>,
    #[serde(borrow)]
    annotations: Option<&'a RawValue>,
}

type Texts = BTreeMap<String, String>;

impl<'a> Before<'a> {
    /// Reads what identifies an object.
    ///
    /// # Errors
    /// When it is not a Kubernetes object, or is nested deeper than the host reads.
    pub fn read(text: &'a str) -> Result<Self, String> {
        // Serde also reads the fields of a record from an array.
        let is_object = |text: &str| text.trim_start().starts_with('{');
        if !is_object(text) {
            return Err("it is not a JSON object".to_owned());
        }
        let head: Head<'a> = serde_json::from_str(text).map_err(|error| error.to_string())?;
        let metadata = head.metadata.get();
        if !is_object(metadata) {
            return Err("metadata: it is not a JSON object".to_owned());
        }
        let identity = serde_json::from_str(metadata).map_err(|error| format!("metadata: {error}"))?;
        let object = Self {
            text,
            api_version: head.api_version,
            kind: head.kind,
            metadata,
            identity,
        };
        // The metadata without the managed fields have few levels.
        let mut fields = members(text).filter(|(key, _)| key != "metadata");
        match fields.any(|(_, value)| levels(value) > MAX_DEPTH) {
            true => Err(unreadable(&shorten(&object.full_name(), NAME))),
            false => Ok(object),
        }
    }

    /// Returns the kind with the namespace and the name, for messages.
    pub(super) fn full_name(&self) -> String {
        let Identity { name, namespace, .. } = &self.identity;
        match namespace.as_str() {
            "" => format!("{} {name}", self.kind),
            namespace => format!("{} {namespace}/{name}", self.kind),
        }
    }

    /// Returns the object without `metadata.managedFields`, which is often most of its text, and with another spec if
    /// there is one.
    pub fn for_plugin(&self, spec: Option<&str>) -> String {
        let managed = |key: &str| key == "managedFields";
        let mut metadata = ObjectText::with_capacity(self.metadata.len());
        for (key, value) in members(self.metadata).filter(|(key, _)| !managed(key)) {
            metadata.add(&key, value);
        }
        let metadata = metadata.end();
        let mut object = ObjectText::with_capacity(self.text.len() + spec.map_or(0, str::len));
        for (key, value) in members(self.text).filter(|(key, _)| spec.is_none() || key != "spec") {
            object.add(&key, if key == "metadata" { &metadata } else { value });
        }
        if let Some(spec) = spec {
            object.add("spec", spec);
        }
        object.end()
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
            ("metadata.name", &*after.identity.name, &*self.identity.name),
            (
                "metadata.namespace",
                &*after.identity.namespace,
                &*self.identity.namespace,
            ),
            ("metadata.uid", &*after.identity.uid, &*self.identity.uid),
        ];
        if let Some((field, found, expected)) = same.iter().find(|(_, found, expected)| found != expected) {
            return Err(format!(
                "`{field}` is {found:?}, expected {expected:?}; are the objects in the same order?"
            ));
        }
        let labels = changed("labels", self.identity.labels, after.identity.labels)?;
        labels
            .iter()
            .flatten()
            .try_for_each(|(key, value)| check_label(key, value))?;
        let annotations = changed(
            "annotations",
            self.identity.annotations,
            after.identity.annotations,
        )?;
        annotations.as_ref().map_or(Ok(()), check_annotations)?;

        let mut metadata = ObjectText::with_capacity(self.metadata.len());
        let texts = |key: &str| matches!(key, "labels" | "annotations");
        for (key, value) in members(self.metadata).filter(|(key, _)| !texts(key)) {
            metadata.add(&key, value);
        }
        let now = [
            ("labels", after.identity.labels),
            ("annotations", after.identity.annotations),
        ];
        for (key, value) in now {
            if let Some(value) = value.filter(|value| value.get() != "null") {
                metadata.add(key, value.get());
            }
        }
        let metadata = metadata.end();
        let mut object = ObjectText::with_capacity(converted.len() + metadata.len());
        for (key, value) in members(converted) {
            object.add(&key, if key == "metadata" { &metadata } else { value });
        }
        Ok(object.end())
    }
}

/// Returns the new labels or annotations if they changed.
fn changed(
    field: &str,
    before: Option<&RawValue>,
    after: Option<&RawValue>,
) -> Result<Option<Texts>, String> {
    if before.map(RawValue::get) == after.map(RawValue::get) {
        return Ok(None);
    }
    let read = |text: Option<&RawValue>| -> Result<Texts, String> {
        let read = |text: &RawValue| serde_json::from_str::<Option<Texts>>(text.get());
        let texts = text.map(read).transpose();
        texts
            .map(|texts| texts.flatten().unwrap_or_default())
            .map_err(|error| format!("metadata.{field}: {error}"))
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
        let shown: Value = serde_json::from_str(&Before::read(&text).unwrap().for_plugin(None)).unwrap();
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
        assert_eq!(
            restored(|_| {}).unwrap()["metadata"]["labels"],
            json!({ "old Label": "!" })
        );
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
