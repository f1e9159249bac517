//! The ed25519 keys that sign plugins and verify signatures.

use std::fmt;

use aws_lc_rs::signature::{ED25519, Ed25519KeyPair, KeyPair, UnparsedPublicKey};
use k8s_openapi::ByteString;
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{PrivatePkcs8KeyDer, SubjectPublicKeyInfoDer};

use super::Digest;

/// The prefix of the 32 bytes of an ed25519 key in its usual envelope (RFC 8410).
const ENVELOPE: [u8; 12] = [
    0x30, 0x2a, 0x30, 0x05, 0x06, 0x03, 0x2b, 0x65, 0x70, 0x03, 0x21, 0x00,
];
const KEY_BYTES: usize = 32;

/// The public half of an ed25519 key.
#[derive(Clone, Copy, PartialEq, Eq)]
pub struct PublicKey([u8; KEY_BYTES]);

impl fmt::Debug for PublicKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "PublicKey({})", Digest::of(&self.0).short())
    }
}

impl PublicKey {
    /// Parses PEM as written by `openssl pkey -pubout`, or the base64 of the key, with or without its
    /// envelope.
    #[must_use]
    pub fn parse(text: &str) -> Option<Self> {
        let bytes = if text.contains("-----BEGIN") {
            let der = SubjectPublicKeyInfoDer::from_pem_slice(text.as_bytes()).ok()?;
            der.as_ref().to_vec()
        } else {
            base64(text)?
        };
        let key = bytes.strip_prefix(&ENVELOPE).unwrap_or(&bytes);
        key.try_into().ok().map(Self)
    }

    /// Whether this key signed these bytes.
    #[must_use]
    pub fn verifies(&self, bytes: &[u8], signature: &[u8]) -> bool {
        UnparsedPublicKey::new(&ED25519, self.0)
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
pub(crate) fn base64(text: &str) -> Option<Vec<u8>> {
    let text: String = text.split_whitespace().collect();
    let text = text.replace('-', "+").replace('_', "/");
    serde_json::from_value::<ByteString>(text.into())
        .ok()
        .map(|bytes| bytes.0)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::plugin::acceptance::tests::{PRIVATE, PUBLIC};

    #[test]
    fn a_key_is_read_in_every_usual_form() {
        let pem = PublicKey::parse(PUBLIC).unwrap();
        let body = PUBLIC.lines().nth(1).unwrap();
        assert_eq!(PublicKey::parse(body), Some(pem));
        let raw = serde_json::to_value(ByteString(pem.0.to_vec())).unwrap();
        assert_eq!(PublicKey::parse(raw.as_str().unwrap()), Some(pem));
        for wrong in ["", "AAAA", "not base64!", &body[..40], PRIVATE] {
            assert_eq!(PublicKey::parse(wrong), None, "{wrong}");
        }
    }
}
