//! Which Secrets the host generated for a parent: a record on the parent itself. It outlives the Secrets, the host and the
//! host's key. A value that is lost is not drawn again unless a user orders it: what uses the old value, such as a
//! database, would not know the new one.

use std::collections::{BTreeMap, BTreeSet};

use kube::ResourceExt;
use kube::core::DynamicObject;
use serde::{Deserialize, Serialize};

use super::planned::DesiredSecret;
use operator_host_contract::GeneratedSecret;
use operator_host_core::object::{BESIDE_ANNOTATION, annotation, group_of, kind_for_kubectl};

/// Annotation of a parent: the record, as JSON.
pub const RECORD_ANNOTATION: &str = "operator-host.dev/generated-secrets";
/// Annotation of a parent, from a user: what is to be drawn again, separated by commas: the UID of a lost Secret, `UID/key`
/// for a lost key, or the name of a Secret of an earlier parent. So an order does not hold for the next loss.
pub const AGAIN_ANNOTATION: &str = "operator-host.dev/generate-again";

/// The Secrets that were generated for one parent.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct GeneratedSecrets {
    /// The UID of the parent: a copy of the annotation says nothing about another one.
    uid: String,
    /// By the names of the Secrets.
    secrets: BTreeMap<String, Entry>,
}

#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
struct Entry {
    uid: String,
    keys: BTreeSet<String>,
}

impl GeneratedSecrets {
    /// Returns the record of a parent; an empty one if it has none.
    pub fn of(parent: &DynamicObject) -> Self {
        let uid = parent.uid().unwrap_or_default();
        let record = annotation(parent, RECORD_ANNOTATION).and_then(|text| serde_json::from_str(text).ok());
        let record = record.filter(|record: &Self| record.uid == uid);
        record.unwrap_or_else(|| Self {
            uid,
            ..Self::default()
        })
    }

    /// Reports whether this very Secret was generated.
    pub fn has(&self, secret: &DynamicObject) -> bool {
        let entry = self.secrets.get(&secret.name_any());
        entry.is_some_and(|entry| secret.metadata.uid.as_ref() == Some(&entry.uid))
    }

    /// Adds a Secret that is complete and has this UID.
    pub fn add(&mut self, wanted: &DesiredSecret, uid: &str) {
        let entry = self.secrets.entry(wanted.key.name.name.clone()).or_default();
        uid.clone_into(&mut entry.uid);
        let keys = wanted.secret.entries.iter().map(|entry| entry.key.clone());
        entry.keys.extend(keys);
    }

    /// Forgets all Secrets but these.
    pub fn keep_only(&mut self, wanted: &[GeneratedSecret]) {
        let is_wanted = |name: &String| wanted.iter().any(|secret| secret.name == *name);
        self.secrets.retain(|name, _| is_wanted(name));
    }

    /// Returns the annotation's value; `None` for an empty record.
    pub fn text(&self) -> Option<String> {
        // It has string keys only, so serialization never fails.
        (!self.secrets.is_empty()).then(|| serde_json::to_string(self).unwrap_or_default())
    }

    /// Returns what is lost of a Secret, in words, and how an order names it. `beside`: a retained child shows that it was
    /// generated.
    fn loss(
        &self,
        wanted: &GeneratedSecret,
        existing: Option<&DynamicObject>,
        beside: bool,
    ) -> Option<(String, String)> {
        match (self.secrets.get(&wanted.name), existing) {
            (Some(entry), None) => Some(("it is gone".to_owned(), entry.uid.clone())),
            (None, None) if beside => {
                let what = "it is gone, while a child that was retained from then is still there";
                Some((what.to_owned(), wanted.name.clone()))
            }
            (Some(entry), Some(existing)) => {
                // Without the values, the keys are not known either.
                let data = (!existing.data.is_null()).then(|| &existing.data["data"])?;
                let mut keys = wanted.entries.iter().map(|entry| &entry.key);
                let lost = keys.find(|key| entry.keys.contains(*key) && data.get(key.as_str()).is_none())?;
                let order = format!("{}/{lost}", existing.uid().unwrap_or_default());
                Some((format!("its key {lost:?} is gone"), order))
            }
            (None, _) => None,
        }
    }
}

/// Returns why a Secret must not be generated: it was, and its values are lost. `None` where nothing is lost, or the parent
/// orders new values.
pub fn lost(
    parent: &DynamicObject,
    wanted: &GeneratedSecret,
    existing: Option<&DynamicObject>,
    beside: bool,
) -> Option<String> {
    let (what, order) = GeneratedSecrets::of(parent).loss(wanted, existing, beside)?;
    if names(parent, AGAIN_ANNOTATION).any(|name| name == order) {
        return None;
    }
    let types = parent.types.clone().unwrap_or_default();
    let kind = kind_for_kubectl(group_of(&types.api_version), &types.kind);
    Some(format!(
        "the host generated it before, and {what}. New values are not drawn, because what uses the old ones, such as a \
         database, would not know them: restore it from a backup; or, to get new values and set them there, kubectl \
         annotate --overwrite -n {} {kind} {} {AGAIN_ANNOTATION}={order}",
        parent.namespace().unwrap_or_default(),
        parent.name_any(),
    ))
}

/// Reports whether a retained child names this Secret.
pub fn is_beside(child: &DynamicObject, secret: &str) -> bool {
    names(child, BESIDE_ANNOTATION).any(|name| name == secret)
}

pub(super) fn names<'a>(object: &'a DynamicObject, key: &str) -> impl Iterator<Item = &'a str> {
    let text = annotation(object, key).unwrap_or_default();
    text.split(',').map(str::trim)
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;
    use operator_host_contract::GeneratedValue;

    fn object(uid: &str, name: &str, annotations: &Value, data: &Value) -> DynamicObject {
        serde_json::from_value(json!({
            "apiVersion": "a.dev/v1", "kind": "Shop", "data": data,
            "metadata": { "name": name, "namespace": "n", "uid": uid, "annotations": annotations },
        }))
        .unwrap()
    }

    fn wanted(keys: &[&str]) -> GeneratedSecret {
        let value = |key: &&str| GeneratedValue {
            key: (*key).to_owned(),
            length: 8,
            alphabet: None,
        };
        GeneratedSecret {
            name: "s".into(),
            entries: keys.iter().map(value).collect(),
        }
    }

    fn record(uid: &str) -> String {
        json!({ "uid": uid, "secrets": { "s": { "uid": "old", "keys": ["password"] } } }).to_string()
    }

    #[test]
    fn what_was_generated_and_is_lost_is_not_drawn_again_without_an_order() {
        let parent = |uid: &str, again: &str| {
            let annotations = json!({ RECORD_ANNOTATION: record("p"), AGAIN_ANNOTATION: again });
            object(uid, "shop", &annotations, &json!(null))
        };
        let whole = object("new", "s", &json!({}), &json!({ "password": "", "other": "" }));
        let part = object("new", "s", &json!({}), &json!({ "other": "" }));
        let lost = |parent: &DynamicObject, keys: &[&str], existing: Option<&DynamicObject>, beside| {
            super::lost(parent, &wanted(keys), existing, beside).is_some()
        };
        let own = parent("p", "");
        assert!(lost(&own, &["password"], None, false));
        assert!(lost(&own, &["password"], Some(&part), false));
        assert!(!lost(&own, &["password"], Some(&whole), false), "restored");
        assert!(
            !lost(&own, &["password", "pin"], Some(&whole), false),
            "a further key"
        );
        assert!(!lost(&parent("p", "x, old"), &["password"], None, false));
        assert!(
            lost(&parent("p", "s"), &["password"], None, false),
            "an order names the UID"
        );
        assert!(!lost(
            &parent("p", "new/password"),
            &["password"],
            Some(&part),
            false
        ));
        assert!(
            lost(&parent("p", "old"), &["password"], Some(&part), false),
            "of the whole Secret"
        );
        let copy = parent("copy", "");
        assert!(!lost(&copy, &["password"], None, false));
        assert!(
            lost(&copy, &["password"], None, true),
            "what is retained shows it"
        );
        assert!(!lost(&parent("copy", "s"), &["password"], None, true));
        assert!(!lost(&copy, &["password"], Some(&part), true), "it is there");
    }

    #[test]
    fn a_record_proves_one_secret_and_is_of_one_parent() {
        let of = |uid: &str| {
            GeneratedSecrets::of(&object(
                uid,
                "shop",
                &json!({ RECORD_ANNOTATION: record("p") }),
                &json!(null),
            ))
        };
        let secret = |uid: &str, name: &str| object(uid, name, &json!({}), &json!(null));
        assert!(of("p").has(&secret("old", "s")));
        assert!(!of("p").has(&secret("new", "s")));
        assert!(!of("p").has(&secret("old", "t")));
        assert!(!of("copy").has(&secret("old", "s")));
        assert_eq!(
            of("p").text(),
            Some(record("p")).map(|text| {
                serde_json::to_string(&serde_json::from_str::<GeneratedSecrets>(&text).unwrap()).unwrap()
            })
        );
        assert_eq!(of("copy").text(), None);
    }
}
