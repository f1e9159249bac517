//! What the cache keeps of one object: its JSON as text, or only that its name is taken.
//!
//! A tree of JSON values takes five to ten times the memory of its text, and the text several times that of what sets it
//! apart from others. The cache therefore holds compressed text (`packed`), and makes a tree when somebody looks at an
//! object. Two states of an object differ only in their version if and only if their
//! texts are equal: a serializer writes the fields in the same order each time.

use std::borrow::Borrow;
use std::collections::BTreeMap;
use std::hash::{Hash, Hasher};
use std::num::NonZeroU64;
use std::ops::Deref;
use std::sync::{Arc, OnceLock};

use k8s_openapi::apimachinery::pkg::apis::meta::v1::{ManagedFieldsEntry, OwnerReference};
use kube::core::{DynamicObject, ObjectMeta, TypeMeta};
use serde::Deserialize;
use serde_json::Value;

use super::packed::{Packed, Samples};
use super::read::Head;
use operator_host_contract::Kind;
use operator_host_core::object::{NamespacedName, PARENT_ANNOTATION, annotation, controller_of};

/// What the cache keeps of one object, in one version.
#[derive(Clone, PartialEq)]
pub(super) enum Cached {
    /// Its JSON, or only its metadata.
    Text(Arc<Text>),
    /// That its name is taken.
    Taken(Taken),
}

/// An object as text.
#[derive(Clone, PartialEq)]
pub(super) struct Text {
    /// The resource version, which is not in the text.
    version: Option<Box<str>>,
    uid: Option<Box<str>>,
    pub(super) owner: Option<Owner>,
    /// The value of the parent annotation.
    pub(super) parent: Option<Box<str>>,
    /// The metadata without the resource version; everything except metadata and type, or `null` if that is not kept;
    /// and the managed fields if there are any.
    json: Packed,
    /// Where the metadata end.
    metadata: usize,
    /// Where the managed fields begin.
    managed: usize,
    /// Whether more than metadata is kept.
    is_whole: bool,
}

/// The managed fields of an object at one time. They are read when somebody looks at them.
pub struct Managed {
    kept: Option<Arc<Text>>,
    fields: OnceLock<Vec<ManagedFieldsEntry>>,
}

impl From<Vec<ManagedFieldsEntry>> for Managed {
    fn from(fields: Vec<ManagedFieldsEntry>) -> Self {
        Self {
            kept: None,
            fields: fields.into(),
        }
    }
}

impl Deref for Managed {
    type Target = [ManagedFieldsEntry];

    fn deref(&self) -> &Self::Target {
        let read = || self.kept.as_ref().map(|text| text.managed_fields());
        self.fields.get_or_init(|| read().unwrap_or_default())
    }
}

/// A taken name: all that the host must know of an object that has nothing to do with it. There may be very many.
#[derive(Clone, PartialEq, Eq)]
pub(super) struct Taken {
    uid: [u8; 16],
    version: NonZeroU64,
    pub(super) owner: Option<Owner>,
}

/// The controller owner of an object. Equal when the UID is. The dependents of one owner share it.
#[derive(Clone)]
pub(super) struct Owner(Arc<OwnerReference>);

impl Owner {
    /// Returns the controller owner, if there is one.
    pub(super) fn of(object: &DynamicObject) -> Option<Self> {
        let owner = controller_of(object)?;
        Some(Self(Arc::new(OwnerReference {
            block_owner_deletion: None,
            ..owner.clone()
        })))
    }

    pub(super) fn reference(&self) -> &OwnerReference {
        &self.0
    }
}

impl PartialEq for Owner {
    fn eq(&self, other: &Self) -> bool {
        self.0.uid == other.0.uid
    }
}

impl Eq for Owner {}

impl Hash for Owner {
    fn hash<H: Hasher>(&self, state: &mut H) {
        self.0.uid.hash(state);
    }
}

impl Borrow<str> for Owner {
    fn borrow(&self) -> &str {
        &self.0.uid
    }
}

impl Text {
    /// Converts an object with this owner, which has no managed fields but these. Leaves it as it is.
    pub(super) fn of(
        object: &mut DynamicObject,
        owner: Option<Owner>,
        managed_fields: &[ManagedFieldsEntry],
        samples: &Samples,
    ) -> Self {
        let version = object.metadata.resource_version.take();
        // Objects from the API server have string keys only, so they can be serialized.
        let mut json = serde_json::to_string(&object.metadata).unwrap_or_default();
        let metadata = json.len();
        json.push_str(&serde_json::to_string(&object.data).unwrap_or_default());
        let managed = json.len();
        if !managed_fields.is_empty() {
            json.push_str(&serde_json::to_string(managed_fields).unwrap_or_default());
        }
        object.metadata.resource_version.clone_from(&version);
        Self {
            version: version.map(Into::into),
            uid: object.metadata.uid.as_deref().map(Into::into),
            owner,
            parent: annotation(object, PARENT_ANNOTATION).map(Into::into),
            json: samples.pack(&json),
            metadata,
            managed,
            is_whole: !object.data.is_null(),
        }
    }

    /// Returns the object, with a type if there is one.
    #[allow(clippy::expect_used, reason = "`Text::of` wrote both parts")]
    pub(super) fn object(&self, types: Option<TypeMeta>) -> DynamicObject {
        let text = self.json.text();
        let (metadata, data) = text[..self.managed].split_at(self.metadata);
        let mut metadata: ObjectMeta = serde_json::from_slice(metadata).expect("metadata as JSON");
        metadata.resource_version = self.version.as_deref().map(str::to_owned);
        DynamicObject {
            types,
            metadata,
            data: serde_json::from_slice(data).expect("an object as JSON"),
        }
    }

    /// Returns the managed fields.
    pub(super) fn managed_fields(&self) -> Vec<ManagedFieldsEntry> {
        let text = self.json.text();
        serde_json::from_slice(&text[self.managed..]).unwrap_or_default()
    }

    /// Returns the labels.
    pub(super) fn labels(&self) -> BTreeMap<String, String> {
        #[derive(Default, Deserialize)]
        #[serde(default)]
        struct Labelled {
            labels: BTreeMap<String, String>,
        }
        let text = self.json.text();
        let labelled: Labelled = serde_json::from_slice(&text[..self.metadata]).unwrap_or_default();
        labelled.labels
    }

    /// Returns the bytes of its JSON.
    pub(super) const fn bytes(&self) -> usize {
        self.json.len()
    }
}

impl Taken {
    /// Returns the record of an object with this owner; `None` when a record cannot hold all that the host must know of
    /// it.
    pub(super) fn of(object: &DynamicObject, owner: Option<Owner>) -> Option<Self> {
        if object.metadata.deletion_timestamp.is_some() {
            return None;
        }
        Some(Self {
            uid: parse_uid(object.metadata.uid.as_deref()?)?,
            version: parse_version(object.metadata.resource_version.as_deref()?)?,
            owner,
        })
    }
}

impl Cached {
    pub(super) fn version(&self) -> Option<u128> {
        match self {
            Self::Text(text) => text.version.as_deref()?.parse().ok(),
            Self::Taken(taken) => Some(taken.version.get().into()),
        }
    }

    pub(super) fn owner(&self) -> Option<&Owner> {
        match self {
            Self::Text(text) => text.owner.as_ref(),
            Self::Taken(taken) => taken.owner.as_ref(),
        }
    }

    pub(super) fn managed(&self) -> Managed {
        let kept = match self {
            Self::Text(text) => Some(Arc::clone(text)),
            Self::Taken(_) => None,
        };
        let fields = OnceLock::new();
        Managed { kept, fields }
    }

    pub(super) fn has_uid(&self, uid: &str) -> bool {
        match self {
            Self::Text(text) => text.uid.as_deref() == Some(uid),
            Self::Taken(taken) => parse_uid(uid) == Some(taken.uid),
        }
    }

    /// Reports whether this is the whole object, in this state.
    pub(super) fn is_whole_at(&self, head: &Head) -> bool {
        match self {
            Self::Text(text) => {
                text.is_whole
                    && text.version.as_deref() == head.resource_version.as_deref()
                    && text.uid.as_deref() == head.uid.as_deref()
            }
            Self::Taken(_) => false,
        }
    }

    /// Reports whether both are equal, except for the version.
    pub(super) fn is_equal_but_for_version(&self, other: &Self) -> bool {
        match (self, other) {
            (Self::Text(a), Self::Text(b)) => a.json == b.json,
            (Self::Taken(a), Self::Taken(b)) => a.uid == b.uid && a.owner == b.owner,
            _ => false,
        }
    }

    /// Returns the object as far as it is kept.
    pub(super) fn object(&self, kind: &Kind, name: &NamespacedName) -> DynamicObject {
        let types = Some(TypeMeta {
            api_version: kind.api_version.clone(),
            kind: kind.kind.clone(),
        });
        match self {
            Self::Text(text) => text.object(types),
            Self::Taken(taken) => DynamicObject {
                types,
                metadata: ObjectMeta {
                    name: Some(name.name.clone()),
                    namespace: name.namespace.clone(),
                    uid: Some(uid_text(taken.uid)),
                    resource_version: Some(taken.version.to_string()),
                    owner_references: taken.owner.as_ref().map(|owner| vec![owner.reference().clone()]),
                    ..ObjectMeta::default()
                },
                data: Value::Null,
            },
        }
    }
}

/// Parses a UID in the form in which the API server writes it; `None` for any other.
fn parse_uid(uid: &str) -> Option<[u8; 16]> {
    if uid.len() != 36 {
        return None;
    }
    let digits: String = uid.chars().filter(|c| *c != '-').collect();
    let bytes = u128::from_str_radix(&digits, 16).ok()?.to_be_bytes();
    (uid_text(bytes) == uid).then_some(bytes)
}

fn uid_text(uid: [u8; 16]) -> String {
    let digits = format!("{:032x}", u128::from_be_bytes(uid));
    let parts = [
        &digits[..8],
        &digits[8..12],
        &digits[12..16],
        &digits[16..20],
        &digits[20..],
    ];
    parts.join("-")
}

/// Parses a version in the form in which the API server writes it; `None` for any other.
fn parse_version(version: &str) -> Option<NonZeroU64> {
    let number: NonZeroU64 = version.parse().ok()?;
    (number.to_string() == version).then_some(number)
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn pod() -> DynamicObject {
        serde_json::from_value(json!({
            "apiVersion": "v1", "kind": "Pod",
            "metadata": {
                "name": "a", "namespace": "n", "uid": "7f1b5a6e-8d0c-4f6e-9f1c-000000000042", "resourceVersion": "17",
                "labels": {"app": "a\"\u{0}ä"}, "creationTimestamp": "2026-01-01T00:00:00Z",
                "ownerReferences": [{
                    "apiVersion": "apps/v1", "kind": "ReplicaSet", "name": "set", "uid": "u-1", "controller": true,
                }],
            },
            "spec": {"ratio": 0.1, "count": -3, "text": "a\"\n\u{1F600}", "list": [null, {"a": []}]},
        }))
        .unwrap()
    }

    #[test]
    fn an_object_is_read_from_its_text_as_it_was() {
        let types = pod().types;
        let text = Text::of(&mut pod(), Owner::of(&pod()), &[], &Samples::of_the_first());
        assert_eq!(text.object(types.clone()), pod());
        let again = Text::of(&mut text.object(types), None, &[], &Samples::none());
        assert!(again.json == text.json);
        assert_eq!(Some(text.labels()), pod().metadata.labels);
        assert!(!String::from_utf8(text.json.text()).unwrap().contains("\"17\""));
    }

    /// A number that changes each time looks like drift, and is applied again in each reconcile.
    #[test]
    fn a_fraction_is_the_same_after_it_was_kept_as_text() {
        let mut bits = 1_u64;
        for _ in 0..10_000 {
            bits = bits
                .wrapping_mul(6_364_136_223_846_793_005)
                .wrapping_add(1_442_695_040_888_963_407);
            let number = f64::from_bits(bits);
            if !number.is_finite() {
                continue;
            }
            let mut object = pod();
            object.data["spec"] = json!({"ratio": number});
            let text = Text::of(&mut object, None, &[], &Samples::none());
            assert_eq!(text.object(object.types.clone()), object);
        }
    }

    #[test]
    fn a_taken_name_has_its_uid_its_version_and_its_owner() {
        let kept = Cached::Taken(Taken::of(&pod(), Owner::of(&pod())).unwrap());
        let kind = Kind::new("v1", "Pod");
        let object = kept.object(&kind, &NamespacedName::of(&pod()));
        let (was, is) = (pod(), object.clone());
        assert_eq!(is.types, was.types);
        assert_eq!(is.metadata.uid, was.metadata.uid);
        assert_eq!(is.metadata.resource_version, was.metadata.resource_version);
        assert_eq!(is.metadata.owner_references, was.metadata.owner_references);
        assert!(is.data.is_null() && is.metadata.labels.is_none());
        assert!(kept.has_uid("7f1b5a6e-8d0c-4f6e-9f1c-000000000042") && !kept.has_uid("7f1b5a6e"));
        assert!(std::mem::size_of::<Taken>() <= 40);
    }

    #[test]
    fn what_a_record_cannot_say_is_kept_as_text() {
        for (field, value) in [
            ("uid", json!("not-a-uuid")),
            ("uid", json!("7F1B5A6E-8d0c-4f6e-9f1c-000000000042")),
            ("resourceVersion", json!("017")),
            ("resourceVersion", json!("abc")),
            ("deletionTimestamp", json!("2026-01-01T00:00:00Z")),
        ] {
            let mut object = serde_json::to_value(pod()).unwrap();
            object["metadata"][field] = value;
            let object = serde_json::from_value(object).unwrap();
            assert!(Taken::of(&object, Owner::of(&object)).is_none(), "{field}");
        }
    }
}
