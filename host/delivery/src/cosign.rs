//! Signatures that `cosign sign` made of a plugin in a registry.
//!
//! Cosign signs a payload that names the digest of the manifest, and the manifest names the digest of the plugin. The
//! host keeps all three in one document, so that it can verify the signature again after a restart without the registry.
//! Sources: <https://github.com/sigstore/cosign/blob/main/specs/SIGNATURE_SPEC.md>,
//! <https://github.com/sigstore/cosign/blob/main/specs/BUNDLE_SPEC.md>.

use k8s_openapi::ByteString;
use serde::{Deserialize, Serialize};
use serde_json::value::RawValue;

use super::identity::Signer;
use super::statement::{Envelope, SIGNATURE_LIMIT, STATEMENT_TYPE, StatementError};
use crate::oci::artifact;
use operator_host_core::json_text::unquoted;
use operator_host_runtime::Digest;

/// The type of a Sigstore bundle, in which newer versions of cosign put a signature.
pub const BUNDLE: &str = "application/vnd.dev.sigstore.bundle.v0.3+json";
/// What cosign calls the signature of an artifact: in a payload of its own, and in a bundle, which may also state something
/// else about the artifact.
const TYPE: &str = "cosign container image signature";
/// The same in a bundle.
pub const PREDICATE: &str = "https://sigstore.dev/cosign/sign/v1";

/// A signature, not verified.
#[derive(Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct CosignSignature {
    /// The manifest of the plugin.
    pub manifest: ByteString,
    /// What is signed, and the signature.
    #[serde(flatten)]
    pub form: Form,
}

/// The form of a signature.
#[derive(Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(untagged)]
pub enum Form {
    /// An in-toto Statement in a DSSE envelope. Comes first: a [`ByteString`] that is missing is read as an empty one.
    Bundle {
        /// The JSON of the bundle.
        bundle: String,
    },
    /// A payload of cosign's own.
    Simple {
        /// What is signed.
        payload: ByteString,
        /// The signature of the payload.
        signature: ByteString,
    },
}

#[derive(Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct Document {
    cosign: CosignSignature,
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct RawBundle {
    dsse_envelope: Box<RawValue>,
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct RawStatement {
    #[serde(rename = "_type")]
    type_: String,
    subject: Vec<Subject>,
    predicate_type: String,
}

#[derive(Deserialize)]
struct Subject {
    digest: Sha256,
}

#[derive(Deserialize)]
struct Sha256 {
    sha256: Option<Digest>,
}

#[derive(Deserialize)]
struct Payload {
    critical: Critical,
}

#[derive(Deserialize)]
struct Critical {
    #[serde(rename = "type")]
    type_: String,
    image: Image,
}

#[derive(Deserialize)]
#[serde(rename_all = "kebab-case")]
struct Image {
    docker_manifest_digest: Digest,
}

impl CosignSignature {
    /// Parses the document of [`CosignSignature::document`]. Returns `None` for any other text.
    #[must_use]
    pub fn parse(text: &[u8]) -> Option<Self> {
        let text = Some(text).filter(|text| text.len() <= SIGNATURE_LIMIT)?;
        serde_json::from_slice::<Document>(text)
            .ok()
            .map(|document| document.cosign)
    }

    /// Returns the document in which the host keeps the signature.
    #[must_use]
    pub fn document(self) -> Vec<u8> {
        // Bytes can always be written.
        serde_json::to_vec(&Document { cosign: self }).unwrap_or_default()
    }

    /// Whether it is a signature of this signer.
    #[must_use]
    pub fn is_signed_by(&self, signer: &Signer) -> bool {
        match (&self.form, signer) {
            (Form::Simple { payload, signature }, Signer::Key(key)) => key.verifies(&payload.0, &signature.0),
            (Form::Bundle { bundle }, Signer::Key(key)) => {
                envelope(bundle).is_ok_and(|envelope| envelope.is_signed_by(key))
            }
            (Form::Bundle { bundle }, Signer::Identity(identity)) => {
                identity.signed(bundle, &self.manifest.0)
            }
            (Form::Simple { .. }, Signer::Identity(_)) => false,
        }
    }

    /// Returns the digest of the plugin that it signs. It can be trusted only when it is signed with a trusted key.
    ///
    /// # Errors
    /// Returns an error when it signs something else than the manifest of a plugin.
    pub fn plugin(&self) -> Result<Digest, StatementError> {
        let wrong = |reason: String| StatementError::Statement(reason);
        let expect = |expected: &str, found: &str| match found == expected {
            true => Ok(()),
            false => Err(wrong(format!("it is {found:?}, expected {expected:?}"))),
        };
        let signed = match &self.form {
            Form::Simple { payload, .. } => {
                let payload = serde_json::from_slice(&payload.0);
                let Payload { critical } = payload.map_err(|error| wrong(error.to_string()))?;
                expect(TYPE, &critical.type_)?;
                vec![critical.image.docker_manifest_digest]
            }
            Form::Bundle { bundle } => {
                let envelope = envelope(bundle)?;
                let statement = serde_json::from_slice(envelope.payload());
                let statement: RawStatement = statement.map_err(|error| wrong(error.to_string()))?;
                expect(STATEMENT_TYPE, &statement.type_)?;
                expect(PREDICATE, &statement.predicate_type)?;
                let subjects = statement.subject.into_iter();
                subjects.filter_map(|subject| subject.digest.sha256).collect()
            }
        };
        let manifest = Digest::of(&self.manifest.0);
        if !signed.contains(&manifest) {
            let signed: Vec<_> = signed.iter().map(Digest::to_string).collect();
            return Err(wrong(format!(
                "it is for the manifest {}, but that of the plugin is {manifest}",
                signed.join(", ")
            )));
        }
        let layer = artifact::plugin_layer(&self.manifest.0, usize::MAX);
        layer
            .map(|layer| layer.digest)
            .map_err(|error| wrong(error.to_string()))
    }
}

/// Returns the envelope in a bundle.
fn envelope(bundle: &str) -> Result<Envelope, StatementError> {
    let raw: Result<RawBundle, _> = serde_json::from_str(bundle);
    let raw = raw.map_err(|error| StatementError::Envelope(unquoted(&error)))?;
    Envelope::parse(raw.dsse_envelope.get().as_bytes())
}

#[cfg(test)]
pub(super) mod tests {
    use aws_lc_rs::rand::SystemRandom;
    use aws_lc_rs::signature::{ECDSA_P256_SHA256_ASN1_SIGNING, EcdsaKeyPair, KeyPair as _};

    use super::*;
    use crate::keys::PublicKey;
    use crate::oci::artifact::Artifact;

    /// Returns a signature of a plugin, and the key that made it, as cosign creates them.
    pub(crate) fn signed(plugin: &[u8], type_: &str) -> (CosignSignature, Signer) {
        let manifest = Artifact::of_plugin(plugin.to_vec(), "echo", "1.4.0", None).manifest;
        let payload = serde_json::json!({
            "critical": {
                "identity": {"docker-reference": "r.example.com/team/echo"},
                "image": {"docker-manifest-digest": Digest::of(&manifest)},
                "type": type_,
            },
            "optional": null,
        });
        let payload = payload.to_string().into_bytes();
        let pair = EcdsaKeyPair::generate(&ECDSA_P256_SHA256_ASN1_SIGNING).unwrap();
        let signature = pair.sign(&SystemRandom::new(), &payload).unwrap();
        let point = pair.public_key().as_ref();
        let signed = CosignSignature {
            manifest: ByteString(manifest),
            form: Form::Simple {
                payload: ByteString(payload),
                signature: ByteString(signature.as_ref().to_vec()),
            },
        };
        (signed, Signer::Key(PublicKey::p256(point).unwrap()))
    }

    /// Returns a bundle about a manifest, and the key that signed it, as cosign creates them by default.
    pub(crate) fn bundled(manifest: &[u8], predicate: &str) -> (String, Signer) {
        let digest = Digest::of(manifest).to_string();
        let statement = serde_json::json!({
            "_type": STATEMENT_TYPE, "predicateType": predicate, "predicate": {},
            "subject": [{"name": "", "digest": {"sha256": digest.trim_start_matches("sha256:")}}],
        });
        let statement = statement.to_string().into_bytes();
        let pair = EcdsaKeyPair::generate(&ECDSA_P256_SHA256_ASN1_SIGNING).unwrap();
        let signed = crate::statement::encoding(&statement);
        let signature = pair.sign(&SystemRandom::new(), &signed).unwrap();
        let bundle = serde_json::json!({
            "mediaType": BUNDLE,
            "verificationMaterial": {"publicKey": {"hint": "a"}, "tlogEntries": []},
            "dsseEnvelope": {
                "payload": ByteString(statement), "payloadType": crate::statement::PAYLOAD_TYPE,
                "signatures": [{"sig": ByteString(signature.as_ref().to_vec())}],
            },
        });
        let point = pair.public_key().as_ref();
        (bundle.to_string(), Signer::Key(PublicKey::p256(point).unwrap()))
    }

    #[test]
    fn a_bundle_leads_to_the_plugin_unless_it_states_something_else() {
        let manifest = Artifact::of_plugin(b"plugin".to_vec(), "echo", "1.4.0", None).manifest;
        let of = |manifest: &[u8], bundle| CosignSignature {
            manifest: ByteString(manifest.to_vec()),
            form: Form::Bundle { bundle },
        };
        let (bundle, key) = bundled(&manifest, PREDICATE);
        let kept = CosignSignature::parse(&of(&manifest, bundle.clone()).document()).unwrap();
        assert!(kept.is_signed_by(&key) && !kept.is_signed_by(&signed(b"", TYPE).1));
        assert_eq!(kept.plugin(), Ok(Digest::of(b"plugin")));

        let other = Artifact::of_plugin(b"other".to_vec(), "echo", "1.4.0", None).manifest;
        let error = of(&other, bundle).plugin().unwrap_err().to_string();
        assert!(error.contains("it is for the manifest"), "{error}");
        // The same key may sign where it was built, or what it consists of.
        let (provenance, key) = bundled(&manifest, "https://slsa.dev/provenance/v1");
        let provenance = of(&manifest, provenance);
        assert!(provenance.is_signed_by(&key));
        let error = provenance.plugin().unwrap_err().to_string();
        assert!(error.contains("slsa.dev") && error.contains(PREDICATE), "{error}");
    }

    #[test]
    fn the_signature_leads_to_the_plugin_and_is_kept_as_one_document() {
        let (signature, key) = signed(b"plugin", TYPE);
        assert!(signature.is_signed_by(&key));
        assert_eq!(signature.plugin(), Ok(Digest::of(b"plugin")));
        let (other, other_key) = signed(b"plugin", TYPE);
        assert!(!other.is_signed_by(&key) && !signature.is_signed_by(&other_key));
        let kept = CosignSignature::parse(&signature.document()).unwrap();
        assert!(kept.is_signed_by(&key));
        assert_eq!(CosignSignature::parse(b"{\"payloadType\": 1}"), None);
    }

    #[test]
    fn another_manifest_and_another_kind_of_payload_are_refused() {
        let (mut signature, _) = signed(b"plugin", TYPE);
        let (other, _) = signed(b"other", TYPE);
        signature.manifest = other.manifest;
        let error = signature.plugin().unwrap_err().to_string();
        assert!(error.contains("it is for the manifest"), "{error}");
        let (signature, _) = signed(b"plugin", "something else");
        assert!(
            signature
                .plugin()
                .unwrap_err()
                .to_string()
                .contains("something else")
        );
        let (mut signature, _) = signed(b"plugin", TYPE);
        signature.form = Form::Simple {
            payload: ByteString(b"[]".to_vec()),
            signature: ByteString(Vec::new()),
        };
        assert!(signature.plugin().is_err());
    }
}
