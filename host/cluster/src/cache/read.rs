//! Reads from JSON only the parts of an object that the cache keeps. `managedFields`, which are often half of an
//! object, are kept only if a host applied the object. Of an object that is not kept whole, only the metadata are read.
//! The rest is skipped without becoming a tree.
//!
//! Of an object that is nested deeper than [`MAX_DEPTH`], only the metadata are read, too: API servers accept many more
//! levels, and one such object must not make the whole list unreadable.

use std::collections::BTreeMap;

use k8s_openapi::apimachinery::pkg::apis::meta::v1::ManagedFieldsEntry;
use kube::core::{DynamicObject, ObjectMeta, TypeMeta};
use serde::Deserialize;
use serde::de::value::MapDeserializer;
use serde::de::{Deserializer, Error as _};
use serde_json::value::RawValue;
use serde_json::{Map, Value};

use operator_host_core::object::{FIELD_MANAGER_PREFIX, MAX_DEPTH, is_deeper};

/// The fields of an object, as texts.
type Fields<'a> = BTreeMap<String, &'a RawValue>;

/// Reads an object as the caches have it. `is_whole` decides by the metadata whether the rest is read; otherwise it is null.
///
/// # Errors
/// When it is no object, or its metadata are not metadata.
pub(super) fn object(
    text: &RawValue,
    is_whole: impl Fn(&DynamicObject) -> bool,
) -> serde_json::Result<DynamicObject> {
    read(text, is_whole, |managed| managed.contains(FIELD_MANAGER_PREFIX))
}

/// A whole object in an answer, with its `managedFields`.
#[derive(Clone)]
pub(crate) struct Whole(pub(crate) DynamicObject);

impl<'de> Deserialize<'de> for Whole {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let text = Box::<RawValue>::deserialize(deserializer)?;
        read(&text, |_| true, |_| true)
            .map(Self)
            .map_err(D::Error::custom)
    }
}

/// An object in an event of a watch. Only its head is read at once: most events repeat what this host has written itself.
#[derive(Clone)]
pub(super) struct Watched {
    pub(super) head: Head,
    pub(super) text: Box<RawValue>,
}

/// What identifies a state of an object.
#[derive(Clone, Default, Deserialize)]
#[serde(default, rename_all = "camelCase")]
pub(super) struct Head {
    pub(super) name: Option<String>,
    pub(super) namespace: Option<String>,
    pub(super) uid: Option<String>,
    pub(super) resource_version: Option<String>,
}

impl<'de> Deserialize<'de> for Watched {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        #[derive(Default, Deserialize)]
        #[serde(default)]
        struct Headed {
            metadata: Head,
        }
        let text = Box::<RawValue>::deserialize(deserializer)?;
        let headed: Headed = serde_json::from_str(text.get()).map_err(D::Error::custom)?;
        Ok(Self {
            head: headed.metadata,
            text,
        })
    }
}

/// Reads an object, and its managed fields if their text is wanted.
fn read(
    text: &RawValue,
    is_whole: impl Fn(&DynamicObject) -> bool,
    has_managed_fields: impl Fn(&str) -> bool,
) -> serde_json::Result<DynamicObject> {
    let mut fields: Fields<'_> = serde_json::from_str(text.get())?;
    let mut name = |key: &str| -> serde_json::Result<Option<String>> {
        let text = fields.remove(key);
        text.map(|text| serde_json::from_str(text.get()))
            .transpose()
            .map(Option::flatten)
    };
    let types = name("apiVersion")?.zip(name("kind")?);
    let mut metadata: Fields<'_> = match fields.remove("metadata") {
        Some(text) => serde_json::from_str(text.get())?,
        None => Fields::default(),
    };
    let managed = metadata.remove("managedFields");
    let mut object = DynamicObject {
        types: types.map(|(api_version, kind)| TypeMeta { api_version, kind }),
        metadata: ObjectMeta::deserialize(MapDeserializer::<_, serde_json::Error>::new(
            metadata.into_iter(),
        ))?,
        data: Value::Null,
    };
    let managed = managed.filter(|text| has_managed_fields(text.get()));
    let managed = managed.map(|text| serde_json::from_str::<Option<Vec<ManagedFieldsEntry>>>(text.get()));
    let is_readable = managed.as_ref().is_none_or(Result::is_ok);
    // They tell which controller made the object, so they are read before the decision.
    object.metadata.managed_fields = managed.and_then(Result::ok).flatten();
    if is_readable
        && is_whole(&object)
        && let Some(data) = fields
            .into_iter()
            .map(|(key, text)| Some((key, readable(text)?)))
            .collect::<Option<Map<_, _>>>()
    {
        object.data = Value::Object(data);
    } else {
        object.metadata.managed_fields = None;
    }
    Ok(object)
}

/// Returns a field, unless it is nested too deep. Its end was found without recursion, so at any depth.
fn readable(field: &RawValue) -> Option<Value> {
    let value = serde_json::from_str(field.get()).ok()?;
    (!is_deeper(&value, MAX_DEPTH)).then_some(value)
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn read(object: &Value, is_whole: bool) -> serde_json::Result<DynamicObject> {
        let text = serde_json::value::to_raw_value(object)?;
        super::object(&text, |_| is_whole)
    }

    #[test]
    fn everything_but_the_managed_fields_of_others_is_read() {
        let mut object = json!({
            "apiVersion": "v1",
            "kind": "Pod",
            "metadata": {
                "name": "a",
                "namespace": "b",
                "managedFields": [{"manager": "m", "fieldsV1": {"f:spec": {}}}],
                "labels": {"managedFields": "a label"},
                "ownerReferences": [{"apiVersion": "v1", "kind": "Pod", "name": "c", "uid": "d", "controller": true}],
            },
            "spec": {"managedFields": [1]},
        });
        let whole = read(&object, true).unwrap();
        object["metadata"]
            .as_object_mut()
            .unwrap()
            .remove("managedFields");
        let expected: DynamicObject = serde_json::from_value(object.clone()).unwrap();
        assert_eq!(whole, expected);
        let metadata_only = read(&object, false).unwrap();
        assert_eq!(
            (metadata_only.metadata, metadata_only.data),
            (expected.metadata, Value::Null)
        );
        let managed = json!([{"manager": "m"}, {"manager": "operator-host/a", "operation": "Apply"}]);
        object["metadata"]["managedFields"] = managed.clone();
        let child = read(&object, true).unwrap();
        assert_eq!(json!(child.metadata.managed_fields), managed);
        assert_eq!(read(&object, false).unwrap().metadata.managed_fields, None);
    }

    fn lists(levels: usize) -> String {
        format!("{}1{}", "[".repeat(levels), "]".repeat(levels))
    }

    #[test]
    fn of_an_object_that_is_nested_too_deep_only_the_metadata_are_read() {
        let object = |spec: &str| {
            format!(
                r#"{{"kind": "A", "metadata": {{"name": "a"}}, "spec": {spec}, "status": {{"b": [null, 1.5]}}}}"#
            )
        };
        let in_a_list = |spec: &str| {
            let text = format!(r#"{{"metadata": {{}}, "items": [{0}, {0}]}}"#, object(spec));
            let mut objects = Vec::new();
            let page = super::super::page::Page::new(text.into()).unwrap();
            page.for_each(|_| true, |object| objects.push(object)).unwrap();
            assert_eq!(objects.len(), 2);
            objects.remove(1)
        };
        let answer = |spec: &str| serde_json::from_str::<Whole>(&object(spec)).unwrap().0;
        let whole = in_a_list(&lists(MAX_DEPTH));
        assert_eq!(whole.data["spec"].to_string(), lists(MAX_DEPTH));
        assert_eq!(whole.data["status"], json!({"b": [null, 1.5]}));
        assert_eq!(answer(&lists(MAX_DEPTH)), whole);
        let maps = format!("{}1{}", r#"{"a":"#.repeat(9_000), "}".repeat(9_000));
        for spec in [lists(MAX_DEPTH + 1), lists(128), lists(9_000), maps] {
            let object = in_a_list(&spec);
            assert_eq!(
                (object.metadata.name.as_deref(), &object.data),
                (Some("a"), &Value::Null)
            );
            assert_eq!(answer(&spec), object);
        }
    }

    #[test]
    fn an_answer_has_the_managed_fields_of_all_that_is_read() {
        let maps = |levels: usize, prefix: &str| {
            let within = format!(r#"{{"{prefix}a":"#).repeat(levels - 1);
            format!("{within}{{}}{}", "}".repeat(levels - 1))
        };
        let read = |levels: usize| {
            let text = format!(
                r#"{{"items": [{{
                    "metadata": {{"name": "a", "managedFields": [{{"manager": "m", "fieldsV1": {{"f:spec": {}}}}}]}},
                    "spec": {}}}]}}"#,
                maps(levels + 1, "f:"),
                maps(levels, "")
            );
            let list: kube::core::ObjectList<Whole> = serde_json::from_str(&text).unwrap();
            list.items[0].0.clone()
        };
        let deepest = read(MAX_DEPTH);
        assert!(deepest.data["spec"].is_object());
        let managed = deepest.metadata.managed_fields.unwrap();
        assert_eq!(managed[0].manager.as_deref(), Some("m"));
        let deeper = read(1_000);
        assert_eq!((deeper.data, deeper.metadata.managed_fields), (Value::Null, None));
    }

    #[test]
    fn metadata_that_are_not_metadata_are_refused() {
        for metadata in [
            json!(null),
            json!([]),
            json!("name"),
            json!({"labels": 1}),
            json!({"name": {}}),
        ] {
            assert!(
                read(&json!({ "metadata": metadata }), true).is_err(),
                "{metadata}"
            );
        }
    }
}
