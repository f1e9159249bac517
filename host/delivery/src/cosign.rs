//! Signatures that `cosign sign --key` made of a plugin in a registry.
//!
//! Cosign signs a payload that names the digest of the manifest, and the manifest names the digest of the plugin. The
//! host keeps all three in one document, so that it can verify the signature again after a restart without the registry.
//! Source: <https://github.com/sigstore/cosign/blob/main/specs/SIGNATURE_SPEC.md>.

use k8s_openapi::ByteString;
use serde::{Deserialize, Serialize};

use super::keys::PublicKey;
use super::statement::{SIGNATURE_LIMIT, StatementError};
use crate::oci::artifact;
use operator_host_runtime::Digest;

/// What cosign calls the signature of an artifact.
const TYPE: &str = "cosign container image signature";

/// A signature, not verified.
#[derive(Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct CosignSignature {
    /// The manifest of the plugin.
    pub manifest: ByteString,
    /// What is signed.
    pub payload: ByteString,
    /// The signature of the payload.
    pub signature: ByteString,
}

#[derive(Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct Document {
    cosign: CosignSignature,
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

    /// Whether it was created with this key.
    #[must_use]
    pub fn is_signed_by(&self, key: &PublicKey) -> bool {
        key.verifies(&self.payload.0, &self.signature.0)
    }

    /// Returns the digest of the plugin that it signs. It can be trusted only when it is signed with a trusted key.
    ///
    /// # Errors
    /// Returns an error when it signs something else than the manifest of a plugin.
    pub fn plugin(&self) -> Result<Digest, StatementError> {
        let wrong = |reason: String| StatementError::Statement(reason);
        let payload: Payload =
            serde_json::from_slice(&self.payload.0).map_err(|error| wrong(error.to_string()))?;
        let Critical { type_, image } = payload.critical;
        if type_ != TYPE {
            return Err(wrong(format!("it is {type_:?}, expected {TYPE:?}")));
        }
        let manifest = Digest::of(&self.manifest.0);
        if image.docker_manifest_digest != manifest {
            return Err(wrong(format!(
                "it is for the manifest {}, but that of the plugin is {manifest}",
                image.docker_manifest_digest
            )));
        }
        let layer = artifact::plugin_layer(&self.manifest.0, usize::MAX);
        layer
            .map(|layer| layer.digest)
            .map_err(|error| wrong(error.to_string()))
    }
}

#[cfg(test)]
pub(super) mod tests {
    use aws_lc_rs::rand::SystemRandom;
    use aws_lc_rs::signature::{ECDSA_P256_SHA256_ASN1_SIGNING, EcdsaKeyPair, KeyPair as _};

    use super::*;
    use crate::oci::artifact::Artifact;

    /// Returns a signature of a plugin, and the key that made it, as cosign creates them.
    pub(crate) fn signed(plugin: &[u8], type_: &str) -> (CosignSignature, PublicKey) {
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
            payload: ByteString(payload),
            signature: ByteString(signature.as_ref().to_vec()),
        };
        (signed, PublicKey::p256(point).unwrap())
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
        signature.payload = ByteString(b"[]".to_vec());
        assert!(signature.plugin().is_err());
    }
}
