//! Reads objects from JSON, and only what is kept of them: `managedFields`, which are often half of an object, of those
//! that a host applied, and of an object that is not kept whole no more than the metadata. The rest is skipped without
//! becoming a tree.
//!
//! A field that is nested too deep is left out, and [`TOO_DEEP_ANNOTATION`] says so. API servers take many more levels than
//! can be read here, and one such object must not make the list of all others unreadable.

use std::cell::Cell;
use std::fmt;

use k8s_openapi::apimachinery::pkg::apis::meta::v1::ManagedFieldsEntry;
use kube::core::{DynamicObject, ObjectMeta, TypeMeta};
use serde::Deserialize;
use serde::de::{
    DeserializeSeed, Deserializer, Error as _, IgnoredAny, IntoDeserializer as _, MapAccess, SeqAccess,
    Visitor,
};
use serde::forward_to_deserialize_any;
use serde_json::value::RawValue;
use serde_json::{Map, Number, Value};

use operator_host_core::object::{FIELD_MANAGER_PREFIX, MAX_DEPTH, TOO_DEEP_ANNOTATION};

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

/// A whole object in an answer, with its `managedFields`. All of these are left out when one is nested too deep.
#[derive(Clone)]
pub(crate) struct Shallow(pub(crate) DynamicObject);

impl<'de> Deserialize<'de> for Shallow {
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
        let mut data = Map::new();
        let mut too_deep = Vec::new();
        // What comes before the metadata is read; in the objects of an API server that is very little.
        let mut is_whole = true;
        while let Some(key) = map.next_key::<String>()? {
            match key.as_str() {
                "apiVersion" => api_version = map.next_value()?,
                "kind" => kind = map.next_value()?,
                "metadata" => {
                    let (metadata, managed) = map.next_value_seed(Metadata)?;
                    object.metadata = metadata;
                    is_whole = (self.is_whole)(&object);
                    let managed = managed.filter(|text| is_whole && (self.has_managed_fields)(text.get()));
                    if let Some(managed) = managed {
                        object.metadata.managed_fields =
                            managed_fields(&managed).map_err(A::Error::custom)?;
                    }
                }
                _ if is_whole => {
                    let is_too_deep = Cell::new(false);
                    let value = map.next_value_seed(Tree {
                        levels: MAX_DEPTH,
                        is_too_deep: &is_too_deep,
                    })?;
                    if is_too_deep.get() {
                        too_deep.push(key);
                    } else {
                        data.insert(key, value);
                    }
                }
                _ => drop(map.next_value::<IgnoredAny>()?),
            }
        }
        if is_whole {
            object.data = Value::Object(data);
        }
        mark(&mut object, &too_deep);
        object.types = api_version
            .zip(kind)
            .map(|(api_version, kind)| TypeMeta { api_version, kind });
        Ok(object)
    }
}

/// Says what was left out: the first of the fields, in this order. Drops an annotation of this name that a user has set.
fn mark(object: &mut DynamicObject, too_deep: &[String]) {
    let is_left_out = |field: &&str| too_deep.iter().any(|name| name == field);
    if !too_deep.is_empty() {
        let field = ["spec", "status"]
            .into_iter()
            .find(is_left_out)
            .unwrap_or("other");
        let annotations = object.metadata.annotations.get_or_insert_default();
        annotations.insert(TOO_DEEP_ANNOTATION.to_owned(), field.to_owned());
    } else if let Some(annotations) = &mut object.metadata.annotations {
        annotations.remove(TOO_DEEP_ANNOTATION);
    }
}

/// A value of at most so many levels; what is below them is null.
#[derive(Clone, Copy)]
struct Tree<'a> {
    levels: usize,
    is_too_deep: &'a Cell<bool>,
}

impl Tree<'_> {
    /// Returns what reads the values within; `None` when they are too deep.
    fn below(self) -> Option<Self> {
        let levels = self.levels.checked_sub(1);
        self.is_too_deep.set(self.is_too_deep.get() || levels.is_none());
        Some(Self {
            levels: levels?,
            ..self
        })
    }
}

impl<'de> DeserializeSeed<'de> for Tree<'_> {
    type Value = Value;

    fn deserialize<D: Deserializer<'de>>(self, deserializer: D) -> Result<Value, D::Error> {
        deserializer.deserialize_any(self)
    }
}

impl<'de> Visitor<'de> for Tree<'_> {
    type Value = Value;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a value")
    }

    fn visit_unit<E>(self) -> Result<Value, E> {
        Ok(Value::Null)
    }

    fn visit_bool<E>(self, value: bool) -> Result<Value, E> {
        Ok(value.into())
    }

    fn visit_i64<E>(self, value: i64) -> Result<Value, E> {
        Ok(value.into())
    }

    fn visit_u64<E>(self, value: u64) -> Result<Value, E> {
        Ok(value.into())
    }

    fn visit_f64<E>(self, value: f64) -> Result<Value, E> {
        Ok(Number::from_f64(value).map_or(Value::Null, Value::Number))
    }

    fn visit_str<E>(self, value: &str) -> Result<Value, E> {
        Ok(value.into())
    }

    fn visit_string<E>(self, value: String) -> Result<Value, E> {
        Ok(value.into())
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut items: A) -> Result<Value, A::Error> {
        let Some(below) = self.below() else {
            // Skipped without recursion, so at any depth.
            while items.next_element::<IgnoredAny>()?.is_some() {}
            return Ok(Value::Null);
        };
        let mut list = Vec::new();
        while let Some(item) = items.next_element_seed(below)? {
            list.push(item);
        }
        Ok(Value::Array(list))
    }

    fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<Value, A::Error> {
        let Some(below) = self.below() else {
            while map.next_entry::<IgnoredAny, IgnoredAny>()?.is_some() {}
            return Ok(Value::Null);
        };
        let mut object = Map::new();
        while let Some(key) = map.next_key()? {
            object.insert(key, map.next_value_seed(below)?);
        }
        Ok(Value::Object(object))
    }
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

fn managed_fields(text: &RawValue) -> serde_json::Result<Option<Vec<ManagedFieldsEntry>>> {
    match serde_json::from_str(text.get()) {
        // It has been skipped once, so the levels are too many, or a text or a number is none.
        Err(error) if error.is_syntax() => Ok(None),
        managed => managed,
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
    use operator_host_core::object::annotation;

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

    #[test]
    fn a_field_that_is_nested_too_deep_is_left_out_and_named() {
        let nested = |levels: usize| format!("{}1{}", "[".repeat(levels), "]".repeat(levels));
        let object = |spec: &str| {
            format!(
                r#"{{"metadata": {{"name": "a"}}, "spec": {spec}, "status": {{"a": {{"b": [null, true, -1, 1.5, "c"]}}}}}}"#
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
        let status = json!({"a": {"b": [null, true, -1, 1.5, "c"]}});
        let whole = in_a_list(&nested(MAX_DEPTH));
        assert_eq!(whole.data["spec"].to_string(), nested(MAX_DEPTH));
        assert_eq!(whole.metadata.annotations, None);
        let answer = |text: &str| serde_json::from_str::<Shallow>(text).unwrap().0;
        for levels in [MAX_DEPTH, MAX_DEPTH + 1, 9_000] {
            assert_eq!(answer(&object(&nested(levels))), in_a_list(&nested(levels)));
        }
        let forged = r#"{"metadata": {"annotations": {"operator-host.dev/too-deep": "spec"}}}"#;
        assert_eq!(annotation(&answer(forged), TOO_DEEP_ANNOTATION), None);
        let maps = format!("{}1{}", r#"{"a":"#.repeat(9_000), "}".repeat(9_000));
        for spec in [nested(MAX_DEPTH + 1), nested(9_000), maps] {
            let object = in_a_list(&spec);
            assert_eq!(object.data, json!({ "status": status }));
            assert_eq!(object.metadata.annotations.unwrap()[TOO_DEEP_ANNOTATION], "spec");
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
            let list: kube::core::ObjectList<Shallow> = serde_json::from_str(&text).unwrap();
            list.items[0].0.clone()
        };
        let deepest = read(MAX_DEPTH);
        assert!(deepest.data["spec"].is_object());
        assert_eq!(
            deepest.metadata.managed_fields.unwrap()[0].manager.as_deref(),
            Some("m")
        );
        let deeper = read(1_000);
        assert_eq!(annotation(&deeper, TOO_DEEP_ANNOTATION), Some("spec"));
        assert_eq!(deeper.metadata.managed_fields, None);
        let wrong = r#"{"metadata": {"managedFields": [1]}}"#;
        assert!(serde_json::from_str::<Shallow>(wrong).is_err());
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
