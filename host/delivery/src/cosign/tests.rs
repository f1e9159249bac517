use aws_lc_rs::rand::SystemRandom;
use aws_lc_rs::signature::{ECDSA_P256_SHA256_ASN1_SIGNING, EcdsaKeyPair, KeyPair as _};
use sigstore_verify::types::pae;

use super::*;
use crate::oci::artifact::Artifact;
use crate::tests::assert_says;
use operator_host_config::keys::PublicKey;

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
    (signed, Signer::Key(PublicKey::of(point).unwrap()))
}

/// Returns a bundle about a manifest, and the key that signed it, as cosign creates them by default.
pub(crate) fn bundled(manifest: &[u8], predicate: &str) -> (String, Signer) {
    let digest = Digest::of(manifest).to_string();
    let statement = serde_json::json!({
        "_type": crate::statement::STATEMENT_TYPE, "predicateType": predicate, "predicate": {},
        "subject": [{"name": "", "digest": {"sha256": digest.trim_start_matches("sha256:")}}],
    });
    let statement = statement.to_string().into_bytes();
    let pair = EcdsaKeyPair::generate(&ECDSA_P256_SHA256_ASN1_SIGNING).unwrap();
    let signed = pae(crate::statement::PAYLOAD_TYPE, &statement);
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
    (bundle.to_string(), Signer::Key(PublicKey::of(point).unwrap()))
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
    let error = of(&other, bundle).plugin().unwrap_err();
    assert_says(error, "it is for the manifest");
    // The same key may sign where it was built, or what it consists of.
    let (provenance, key) = bundled(&manifest, "https://slsa.dev/provenance/v1");
    let provenance = of(&manifest, provenance);
    assert!(provenance.is_signed_by(&key));
    let words = format!("slsa.dev … {PREDICATE}");
    assert_says(provenance.plugin().unwrap_err(), &words);
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
    assert_says(signature.plugin().unwrap_err(), "it is for the manifest");
    let (signature, _) = signed(b"plugin", "something else");
    assert_says(signature.plugin().unwrap_err(), "something else");
    let (mut signature, _) = signed(b"plugin", TYPE);
    signature.form = Form::Simple {
        payload: ByteString(b"[]".to_vec()),
        signature: ByteString(Vec::new()),
    };
    assert!(signature.plugin().is_err());
}
