//! Proves that this host generated a Secret. Anyone who may create a Secret can write its labels and annotations,
//! and a password that somebody else chose must never be treated as the host's own.
//!
//! A generated Secret carries an HMAC of its name, its parent's kind and name, and the parent's UID. The key is in
//! a Secret in the host's own namespace, which is created when it is missing and shared by all replicas. So a proof
//! stays valid after a restart, a failover, and when a parent is recreated for retained data. The values are not
//! part of the proof: anyone who may update the Secret may change them.
//!
//! The [record](super::generated) on the parent is a second proof, which does not need the key: who may change the parent
//! may accept any Secret.

use aws_lc_rs::constant_time::verify_slices_are_equal;
use aws_lc_rs::hmac;
use kube::core::DynamicObject;

use super::generated::{GeneratedSecrets, names};
use operator_host_contract::Kind;
use operator_host_core::digest::hex;
use operator_host_core::object::{GENERATED_LABEL, NamespacedName, PARENT_ANNOTATION, annotation, label};

/// Annotation of a generated Secret: its proof.
pub const PROOF_ANNOTATION: &str = "operator-host.dev/generated-proof";
/// Annotation of a parent: comma-separated UIDs of Secrets that carry the label of a generated Secret without a
/// proof, and whose values are to be used anyway.
pub const ACCEPT_ANNOTATION: &str = "operator-host.dev/accept-secrets";
/// The name of the Secret that contains the key.
pub const KEY_SECRET: &str = "operator-host-provenance";
/// The version of the proof's format.
const VERSION: &str = "v1";

/// The key that all hosts of a cluster share.
pub struct Key(hmac::Key);

impl Key {
    /// Creates a key from its bytes.
    pub fn new(bytes: &[u8]) -> Self {
        Self(hmac::Key::new(hmac::HMAC_SHA256, bytes))
    }

    /// Returns the proof that a Secret was generated for a parent of this kind.
    pub fn prove(&self, kind: &Kind, parent: &DynamicObject, secret: &NamespacedName) -> String {
        let uid = parent.metadata.uid.as_deref().unwrap_or_default();
        self.proof(kind, &NamespacedName::of(parent).to_string(), uid, secret)
    }

    fn proof(&self, kind: &Kind, parent: &str, uid: &str, secret: &NamespacedName) -> String {
        let tag = hmac::sign(&self.0, &claim(kind, parent, uid, secret));
        format!("{VERSION}.{uid}.{}", hex(tag.as_ref()))
    }

    fn verifies(&self, kind: &Kind, parent: &str, secret: &DynamicObject) -> bool {
        let given = annotation(secret, PROOF_ANNOTATION).unwrap_or_default();
        let uid = given.split('.').nth(1).unwrap_or_default();
        let proof = self.proof(kind, parent, uid, &NamespacedName::of(secret));
        verify_slices_are_equal(proof.as_bytes(), given.as_bytes()).is_ok()
    }
}

/// Returns the signed message. Each part is preceded by its length, so that no two claims have the same text. The
/// version of the parent's kind is not part of it, since it may change.
fn claim(kind: &Kind, parent: &str, uid: &str, secret: &NamespacedName) -> Vec<u8> {
    let secret = secret.to_string();
    let parts = [
        "operator-host generated",
        VERSION,
        kind.group(),
        &kind.kind,
        parent,
        uid,
        &secret,
    ];
    let mut text = Vec::new();
    for part in parts {
        text.extend(u64::try_from(part.len()).unwrap_or(u64::MAX).to_be_bytes());
        text.extend(part.as_bytes());
    }
    text
}

/// How to verify that a Secret was generated.
#[derive(Clone, Copy)]
pub enum SecretProof<'a> {
    /// By the host's key, or the record on the parent.
    Key(Option<&'a Key>),
    /// By the label alone: where there is no cluster, or no permission to read the key, and nothing is written.
    Label,
}

impl SecretProof<'_> {
    /// Reports whether a host generated this Secret for this parent.
    pub fn holds(&self, kind: &Kind, parent: &DynamicObject, secret: &DynamicObject) -> bool {
        if label(secret, GENERATED_LABEL).is_none() {
            return false;
        }
        match self {
            Self::Key(_) => self.has_key_of(kind, parent, secret) || GeneratedSecrets::of(parent).has(secret),
            Self::Label => true,
        }
    }

    /// Reports whether the proof on the Secret itself is by this key.
    pub fn has_key_of(&self, kind: &Kind, parent: &DynamicObject, secret: &DynamicObject) -> bool {
        let Self::Key(Some(key)) = self else {
            return false;
        };
        let parent = NamespacedName::of(parent).to_string();
        annotation(secret, PARENT_ANNOTATION) == Some(&parent) && key.verifies(kind, &parent, secret)
    }
}

/// Reports whether a parent's annotation accepts a Secret without a proof. It names the UID, so a new Secret of the
/// same name is not accepted.
pub fn is_accepted(parent: &DynamicObject, secret: &DynamicObject) -> bool {
    let uid = secret.metadata.uid.as_deref();
    uid.is_some_and(|uid| names(parent, ACCEPT_ANNOTATION).any(|accepted| accepted == uid))
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use serde_json::json;

    use super::*;

    fn kind(api_version: &str) -> Kind {
        Kind::new(api_version, "Shop")
    }

    fn parent(namespace: &str, name: &str, uid: &str) -> DynamicObject {
        serde_json::from_value(json!({
            "apiVersion": "example.com/v1", "kind": "Shop",
            "metadata": {"name": name, "namespace": namespace, "uid": uid},
        }))
        .unwrap()
    }

    fn secret(namespace: &str, name: &str, parent: &str, proof: &str) -> DynamicObject {
        serde_json::from_value(json!({
            "apiVersion": "v1", "kind": "Secret",
            "metadata": {
                "name": name, "namespace": namespace, "uid": "s", "labels": {GENERATED_LABEL: "true"},
                "annotations": {PARENT_ANNOTATION: parent, PROOF_ANNOTATION: proof},
            },
        }))
        .unwrap()
    }

    #[test]
    fn a_proof_holds_for_one_secret_of_one_parent_and_under_one_key() {
        let (key, other) = (Key::new(&[1; 32]), Key::new(&[2; 32]));
        let (v1, v2) = (kind("example.com/v1"), kind("example.com/v2"));
        let db = parent("shop", "db", "u1");
        let proof = key.prove(&v1, &db, &NamespacedName::parse("shop/db-root"));
        let holds = |key: &Key, kind: &Kind, parent: &DynamicObject, secret: &DynamicObject| {
            SecretProof::Key(Some(key)).holds(kind, parent, secret)
        };
        let own = secret("shop", "db-root", "shop/db", &proof);
        assert!(holds(&key, &v1, &db, &own));
        assert!(holds(&key, &v2, &db, &own), "another version of the kind");
        let again = parent("shop", "db", "u2");
        assert!(holds(&key, &v1, &again, &own), "a parent that was recreated");
        assert!(!holds(&other, &v1, &db, &own), "another host's key");
        assert!(!SecretProof::Key(None).holds(&v1, &db, &own), "no key");
        assert!(!holds(&key, &kind("example.org/v1"), &db, &own), "another kind");
        let web = parent("shop", "web", "u1");
        assert!(!holds(&key, &v1, &web, &own), "another parent");
        for forged in [
            secret("shop", "web-root", "shop/db", &proof),
            secret("tenant", "db-root", "shop/db", &proof),
            secret("shop", "db-root", "shop/db", &proof.replace("u1", "u2")),
            secret("shop", "db-root", "shop/db", "v1.u1."),
            secret("shop", "db-root", "shop/db", "v1.u1.é"),
            secret("shop", "db-root", "shop/db", ""),
            secret("shop", "db-root", "shop/web", &proof),
        ] {
            assert!(!holds(&key, &v1, &db, &forged), "{:?}", forged.metadata);
        }
        let mut unlabelled = own.clone();
        unlabelled.metadata.labels = None;
        assert!(!holds(&key, &v1, &db, &unlabelled));
    }

    #[test]
    fn a_parent_accepts_secrets_by_their_uid_and_none_by_name() {
        let mut db = parent("shop", "db", "u");
        let planted = secret("shop", "db-root", "shop/db", "");
        let mut accepts = |text: &str| {
            let annotations = BTreeMap::from([(ACCEPT_ANNOTATION.to_owned(), text.to_owned())]);
            db.metadata.annotations = Some(annotations);
            is_accepted(&db, &planted)
        };
        assert!(accepts("s") && accepts("x, s"));
        for other in ["", "db-root", "ss", "*"] {
            assert!(!accepts(other), "{other}");
        }
    }
}
