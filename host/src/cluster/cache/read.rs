//! Reads objects from JSON, and only what is kept of them: without `managedFields`, which are often half of an object, and
//! of an object that is not kept whole no more than the metadata. The rest is skipped without becoming a tree.

use std::fmt;

use kube::core::{DynamicObject, ObjectMeta, TypeMeta};
use serde::Deserialize;
use serde::de::{DeserializeSeed, Deserializer, IgnoredAny, IntoDeserializer as _, MapAccess, Visitor};
use serde::forward_to_deserialize_any;
use serde_json::{Map, Value};

/// An object. The function decides by the metadata whether the rest is read; otherwise it is null.
pub(super) struct Item<'a, W>(pub(super) &'a W);

impl<'de, W: Fn(&DynamicObject) -> bool> DeserializeSeed<'de> for Item<'_, W> {
    type Value = DynamicObject;

    fn deserialize<D: Deserializer<'de>>(self, deserializer: D) -> Result<DynamicObject, D::Error> {
        deserializer.deserialize_map(self)
    }
}

impl<'de, W: Fn(&DynamicObject) -> bool> Visitor<'de> for Item<'_, W> {
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
        let mut data = Map::new();
        // What comes before the metadata is read; in the objects of an API server that is very little.
        let mut is_whole = true;
        while let Some(key) = map.next_key::<String>()? {
            match key.as_str() {
                "apiVersion" => api_version = map.next_value()?,
                "kind" => kind = map.next_value()?,
                "metadata" => {
                    object.metadata = map.next_value_seed(Metadata)?;
                    is_whole = (self.0)(&object);
                }
                _ if is_whole => drop(data.insert(key, map.next_value()?)),
                _ => drop(map.next_value::<IgnoredAny>()?),
            }
        }
        if is_whole {
            object.data = Value::Object(data);
        }
        object.types = api_version
            .zip(kind)
            .map(|(api_version, kind)| TypeMeta { api_version, kind });
        Ok(object)
    }
}

/// Metadata without `managedFields`.
struct Metadata;

impl<'de> DeserializeSeed<'de> for Metadata {
    type Value = ObjectMeta;

    fn deserialize<D: Deserializer<'de>>(self, deserializer: D) -> Result<ObjectMeta, D::Error> {
        deserializer.deserialize_map(self)
    }
}

impl<'de> Visitor<'de> for Metadata {
    type Value = ObjectMeta;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("metadata")
    }

    fn visit_map<A: MapAccess<'de>>(self, map: A) -> Result<ObjectMeta, A::Error> {
        ObjectMeta::deserialize(WithoutManagedFields(map))
    }
}

/// The fields of metadata but for one.
struct WithoutManagedFields<A>(A);

impl<'de, A: MapAccess<'de>> Deserializer<'de> for WithoutManagedFields<A> {
    type Error = A::Error;

    fn deserialize_any<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value, A::Error> {
        visitor.visit_map(self)
    }

    forward_to_deserialize_any! {
        bool i8 i16 i32 i64 i128 u8 u16 u32 u64 u128 f32 f64 char str string bytes byte_buf option unit unit_struct
        newtype_struct seq tuple tuple_struct map struct enum identifier ignored_any
    }
}

impl<'de, A: MapAccess<'de>> MapAccess<'de> for WithoutManagedFields<A> {
    type Error = A::Error;

    fn next_key_seed<K: DeserializeSeed<'de>>(&mut self, seed: K) -> Result<Option<K::Value>, A::Error> {
        while let Some(key) = self.0.next_key::<String>()? {
            if key != "managedFields" {
                return seed.deserialize(key.into_deserializer()).map(Some);
            }
            self.0.next_value::<IgnoredAny>()?;
        }
        Ok(None)
    }

    fn next_value_seed<V: DeserializeSeed<'de>>(&mut self, seed: V) -> Result<V::Value, A::Error> {
        self.0.next_value_seed(seed)
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
    fn everything_but_the_managed_fields_is_read() {
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
