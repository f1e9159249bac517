//! The keys that sign plugins (ed25519) and verify signatures (also ECDSA with P-256, which cosign uses).

use std::fmt;

use aws_lc_rs::signature::{
    ECDSA_P256_SHA256_ASN1, ED25519, Ed25519KeyPair, KeyPair, UnparsedPublicKey, VerificationAlgorithm,
};
use k8s_openapi::ByteString;
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{PrivatePkcs8KeyDer, SubjectPublicKeyInfoDer};

use operator_host_runtime::Digest;

/// The prefix of the 32 bytes of an ed25519 key in its usual envelope (RFC 8410).
const ENVELOPE: [u8; 12] = [
    0x30, 0x2a, 0x30, 0x05, 0x06, 0x03, 0x2b, 0x65, 0x70, 0x03, 0x21, 0x00,
];
const KEY_BYTES: usize = 32;

/// The prefix of the point of a P-256 key in its usual envelope (RFC 5480), and the length of the point.
const P256_ENVELOPE: [u8; 26] = [
    0x30, 0x59, 0x30, 0x13, 0x06, 0x07, 0x2a, 0x86, 0x48, 0xce, 0x3d, 0x02, 0x01, 0x06, 0x08, 0x2a, 0x86,
    0x48, 0xce, 0x3d, 0x03, 0x01, 0x07, 0x03, 0x42, 0x00,
];
const P256_BYTES: usize = 65;

/// The public half of a key.
#[derive(Clone, Copy, PartialEq, Eq)]
pub struct PublicKey(Public);

#[derive(Clone, Copy, PartialEq, Eq)]
enum Public {
    Ed25519([u8; KEY_BYTES]),
    /// The uncompressed point.
    P256([u8; P256_BYTES]),
}

impl Public {
    fn bytes(&self) -> &[u8] {
        match self {
            Self::Ed25519(bytes) => bytes,
            Self::P256(bytes) => bytes,
        }
    }

    fn algorithm(&self) -> &'static dyn VerificationAlgorithm {
        match self {
            Self::Ed25519(_) => &ED25519,
            Self::P256(_) => &ECDSA_P256_SHA256_ASN1,
        }
    }
}

impl fmt::Debug for PublicKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "PublicKey({})", Digest::of(self.0.bytes()).short())
    }
}

impl PublicKey {
    /// Parses PEM as written by `openssl pkey -pubout` and `cosign public-key`, or the base64 of the key, with or
    /// without its envelope.
    #[must_use]
    pub fn parse(text: &str) -> Option<Self> {
        let bytes = if text.contains("-----BEGIN") {
            let der = SubjectPublicKeyInfoDer::from_pem_slice(text.as_bytes()).ok()?;
            der.as_ref().to_vec()
        } else {
            base64(text)?
        };
        if let Some(point) = bytes.strip_prefix(&P256_ENVELOPE) {
            return Self::p256(point);
        }
        let key = bytes.strip_prefix(&ENVELOPE).unwrap_or(&bytes);
        key.try_into().ok().map(|key| Self(Public::Ed25519(key)))
    }

    /// Takes the uncompressed point of a P-256 key.
    pub(super) fn p256(point: &[u8]) -> Option<Self> {
        point.try_into().ok().map(|point| Self(Public::P256(point)))
    }

    /// Whether this key signed these bytes.
    #[must_use]
    pub fn verifies(&self, bytes: &[u8], signature: &[u8]) -> bool {
        UnparsedPublicKey::new(self.0.algorithm(), self.0.bytes())
            .verify(bytes, signature)
            .is_ok()
    }
}

/// Signs plugins.
pub struct SigningKey(Ed25519KeyPair);

impl SigningKey {
    /// Parses PEM as written by `openssl genpkey -algorithm ed25519`.
    #[must_use]
    pub fn parse(pem: &[u8]) -> Option<Self> {
        let der = PrivatePkcs8KeyDer::from_pem_slice(pem).ok()?;
        Ed25519KeyPair::from_pkcs8_maybe_unchecked(der.secret_pkcs8_der())
            .ok()
            .map(Self)
    }

    /// Signs the bytes.
    #[must_use]
    pub fn sign(&self, bytes: &[u8]) -> Vec<u8> {
        self.0.sign(bytes).as_ref().to_vec()
    }

    /// Returns an ID of the key for users; no decision depends on it.
    #[must_use]
    pub fn id(&self) -> String {
        Digest::of(self.0.public_key().as_ref()).to_string()
    }
}

/// Decodes base64 in the standard or the URL alphabet, as DSSE allows both. Line breaks are ignored.
pub fn base64(text: &str) -> Option<Vec<u8>> {
    let text: String = text.split_whitespace().collect();
    let text = text.replace('-', "+").replace('_', "/");
    serde_json::from_value::<ByteString>(text.into())
        .ok()
        .map(|bytes| bytes.0)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::acceptance::tests::{PRIVATE, PUBLIC};

    #[test]
    fn a_key_is_read_in_every_usual_form() {
        let pem = PublicKey::parse(PUBLIC).unwrap();
        let body = PUBLIC.lines().nth(1).unwrap();
        assert_eq!(PublicKey::parse(body), Some(pem));
        let raw = serde_json::to_value(ByteString(pem.0.bytes().to_vec())).unwrap();
        assert_eq!(PublicKey::parse(raw.as_str().unwrap()), Some(pem));
        for wrong in ["", "AAAA", "not base64!", &body[..40], PRIVATE] {
            assert_eq!(PublicKey::parse(wrong), None, "{wrong}");
        }
    }

    #[test]
    fn a_key_of_cosign_is_read_and_verifies() {
        // Created with `openssl ecparam -name prime256v1 -genkey` and `openssl dgst -sha256 -sign`, for this test only.
        let key = "-----BEGIN PUBLIC KEY-----\nMFkwEwYHKoZIzj0CAQYIKoZIzj0DAQcDQgAEqG9/+syQygm41tb/pXrE+X1P15W6re4kDYF+Aes7cmC5ucf92WXsDwI/kph4Fuyav+USPzEAJoNU1we9TJccbQ==\n-----END PUBLIC KEY-----\n";
        let signature = base64("MEQCIFJ5i6Al7RcWNWN2a2fR5F6PPEbcEW5WTBz19tOFBlStAiA5/ySPCd9dbx4bAOWLfJF7lKPPI3tEVGsLOmiN6oXsJw==").unwrap();
        let key = PublicKey::parse(key).unwrap();
        assert!(key.verifies(b"payload", &signature));
        assert!(!key.verifies(b"payloaD", &signature));
        assert!(!PublicKey::parse(PUBLIC).unwrap().verifies(b"payload", &signature));
    }
}
