//! Signatures that `cosign sign` made of a plugin in a registry.
//!
//! Cosign signs a payload that names the digest of the manifest, and the manifest names the digest of the plugin. The
//! host keeps all three in one document, so that it can verify the signature again after a restart without the registry.
//! Sources: <https://github.com/sigstore/cosign/blob/main/specs/SIGNATURE_SPEC.md>,
//! <https://github.com/sigstore/cosign/blob/main/specs/BUNDLE_SPEC.md>.

use k8s_openapi::ByteString;
use serde::{Deserialize, Serialize};
use serde_json::value::RawValue;

use super::statement::{Envelope, SIGNATURE_LIMIT, in_toto, sha256, unusable};
use crate::Problem;
use crate::oci::artifact;
use operator_host_config::identity::Signer;
use operator_host_core::digest::Digest;
use operator_host_core::json_text::unquoted;

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
    pub fn parse(text: &[u8]) -> Option<Self> {
        let text = Some(text).filter(|text| text.len() <= SIGNATURE_LIMIT)?;
        let document: Option<Document> = serde_json::from_slice(text).ok();
        document.map(|document| document.cosign)
    }

    /// Returns the document in which the host keeps the signature.
    pub fn document(self) -> Vec<u8> {
        // Bytes can always be written.
        serde_json::to_vec(&Document { cosign: self }).unwrap_or_default()
    }

    /// Whether it is a signature of this signer.
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
    pub fn plugin(&self) -> Result<Digest, Problem> {
        let wrong = |reason: String| unusable(&reason);
        let signed = match &self.form {
            Form::Simple { payload, .. } => {
                let payload = serde_json::from_slice(&payload.0);
                let Payload { critical } = payload.map_err(|error| wrong(error.to_string()))?;
                if critical.type_ != TYPE {
                    return Err(wrong(format!("it is {:?}, expected {TYPE:?}", critical.type_)));
                }
                vec![critical.image.docker_manifest_digest]
            }
            Form::Bundle { bundle } => {
                let envelope = envelope(bundle)?;
                let statement = in_toto(envelope.payload(), PREDICATE).map_err(wrong)?;
                statement.subject.iter().filter_map(sha256).collect()
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
        Ok(layer.map_err(|error| unusable(&error))?.digest)
    }
}

/// Returns the envelope in a bundle.
fn envelope(bundle: &str) -> Result<Envelope, Problem> {
    let raw: Result<RawBundle, _> = serde_json::from_str(bundle);
    let raw = raw.map_err(|error| Problem(format!("it is not a DSSE envelope: {}", unquoted(&error))))?;
    Envelope::parse(raw.dsse_envelope.get().as_bytes())
}

#[cfg(test)]
pub(super) mod tests;
