//! Reads from JSON only the parts of an object that the cache keeps. `managedFields`, which are often half of an
//! object, are kept only if a host applied the object. Of an object that is not kept whole, only the metadata are read.
//! The rest is skipped without becoming a tree.
//!
//! Of an object that is nested deeper than [`MAX_DEPTH`], only the metadata are read, too: API servers accept many more
//! levels, and one such object must not make the whole list unreadable.

use std::fmt;

use kube::core::{DynamicObject, ObjectMeta, TypeMeta};
use serde::Deserialize;
use serde::de::{DeserializeSeed, Deserializer, IgnoredAny, IntoDeserializer as _, MapAccess, Visitor};
use serde::forward_to_deserialize_any;
use serde_json::value::RawValue;
use serde_json::{Map, Value};

use operator_host_core::object::{FIELD_MANAGER_PREFIX, MAX_DEPTH, is_deeper};

/// An object as the caches have it. The function decides by the metadata whether the rest is read; otherwise it is null.
pub(super) struct Item<'a, W>(pub(super) &'a W);

impl<'de, W: Fn(&DynamicObject) -> bool> DeserializeSeed<'de> for Item<'_, W> {
    type Value = DynamicObject;

    fn deserialize<D: Deserializer<'de>>(self, deserializer: D) -> Result<DynamicObject, D::Error> {
        deserializer.deserialize_map(Fields {
            is_whole: self.0,
            has_managed_fields: &|managed| managed.contains(FIELD_MANAGER_PREFIX),
        })
    }
}

/// A whole object in an answer, with its `managedFields`.
#[derive(Clone)]
pub(crate) struct Whole(pub(crate) DynamicObject);

impl<'de> Deserialize<'de> for Whole {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let fields = Fields {
            is_whole: &|_: &DynamicObject| true,
            has_managed_fields: &|_| true,
        };
        deserializer.deserialize_map(fields).map(Self)
    }
}

/// The fields of an object.
struct Fields<'a, W> {
    is_whole: &'a W,
    /// Whether its managed fields, of which this is the text, are read.
    has_managed_fields: &'a dyn Fn(&str) -> bool,
}

impl<'de, W: Fn(&DynamicObject) -> bool> Visitor<'de> for Fields<'_, W> {
    type Value = DynamicObject;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("an object")
    }

    fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<DynamicObject, A::Error> {
        let (mut api_version, mut kind) = (None::<String>, None::<String>);
        let mut object = DynamicObject {
            types: None,
            metadata: ObjectMeta::default(),
            data: Value::Null,
        };
        let mut data = Some(Map::new());
        while let Some(key) = map.next_key::<String>()? {
            match key.as_str() {
                "apiVersion" => api_version = map.next_value()?,
                "kind" => kind = map.next_value()?,
                "metadata" => {
                    let (metadata, managed) = map.next_value_seed(Metadata)?;
                    object.metadata = metadata;
                    // What comes before the metadata is read; in the objects of an API server that is very little.
                    data = data.filter(|_| (self.is_whole)(&object));
                    let managed =
                        managed.filter(|text| data.is_some() && (self.has_managed_fields)(text.get()));
                    match managed.map(|text| serde_json::from_str(text.get())).transpose() {
                        Ok(managed) => object.metadata.managed_fields = managed,
                        Err(_) => data = None,
                    }
                }
                _ => match &mut data {
                    Some(fields) => match readable(map.next_value()?) {
                        Some(value) => drop(fields.insert(key, value)),
                        None => data = None,
                    },
                    None => drop(map.next_value::<IgnoredAny>()?),
                },
            }
        }
        match data {
            Some(data) => object.data = Value::Object(data),
            None => object.metadata.managed_fields = None,
        }
        object.types = api_version
            .zip(kind)
            .map(|(api_version, kind)| TypeMeta { api_version, kind });
        Ok(object)
    }
}

/// Returns a field, unless it is nested too deep. Its end was found without recursion, so at any depth.
fn readable(field: &RawValue) -> Option<Value> {
    let value = serde_json::from_str(field.get()).ok()?;
    (!is_deeper(&value, MAX_DEPTH)).then_some(value)
}

/// Metadata without `managedFields`, and the text of these.
struct Metadata;

impl<'de> DeserializeSeed<'de> for Metadata {
    type Value = (ObjectMeta, Option<Box<RawValue>>);

    fn deserialize<D: Deserializer<'de>>(self, deserializer: D) -> Result<Self::Value, D::Error> {
        deserializer.deserialize_map(self)
    }
}

impl<'de> Visitor<'de> for Metadata {
    type Value = (ObjectMeta, Option<Box<RawValue>>);

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("metadata")
    }

    fn visit_map<A: MapAccess<'de>>(self, map: A) -> Result<Self::Value, A::Error> {
        let mut text = None;
        let metadata = ObjectMeta::deserialize(WithoutManagedFields { map, text: &mut text })?;
        Ok((metadata, text))
    }
}

/// The fields of metadata but for one, of which only the text is kept.
struct WithoutManagedFields<'a, A> {
    map: A,
    text: &'a mut Option<Box<RawValue>>,
}

impl<'de, A: MapAccess<'de>> Deserializer<'de> for WithoutManagedFields<'_, A> {
    type Error = A::Error;

    fn deserialize_any<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value, A::Error> {
        visitor.visit_map(self)
    }

    forward_to_deserialize_any! {
        bool i8 i16 i32 i64 i128 u8 u16 u32 u64 u128 f32 f64 char str string bytes byte_buf option unit unit_struct
        newtype_struct seq tuple tuple_struct map struct enum identifier ignored_any
    }
}

impl<'de, A: MapAccess<'de>> MapAccess<'de> for WithoutManagedFields<'_, A> {
    type Error = A::Error;

    fn next_key_seed<K: DeserializeSeed<'de>>(&mut self, seed: K) -> Result<Option<K::Value>, A::Error> {
        while let Some(key) = self.map.next_key::<String>()? {
            if key != "managedFields" {
                return seed.deserialize(key.into_deserializer()).map(Some);
            }
            *self.text = Some(self.map.next_value()?);
        }
        Ok(None)
    }

    fn next_value_seed<V: DeserializeSeed<'de>>(&mut self, seed: V) -> Result<V::Value, A::Error> {
        self.map.next_value_seed(seed)
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn read(object: &Value, is_whole: bool) -> serde_json::Result<DynamicObject> {
        let text = object.to_string();
        Item(&|_: &DynamicObject| is_whole).deserialize(&mut serde_json::Deserializer::from_str(&text))
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
