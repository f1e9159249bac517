//! The keys that sign plugins (ed25519) and verify signatures (also ECDSA with P-256, which cosign uses).

use std::fmt;

use aws_lc_rs::signature::{
    ECDSA_P256_SHA256_ASN1, ED25519, Ed25519KeyPair, KeyPair, ParsedPublicKey, VerificationAlgorithm,
};
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{PrivatePkcs8KeyDer, SubjectPublicKeyInfoDer};

use operator_host_core::digest::Digest;
use operator_host_core::text::base64;

/// The algorithms whose signatures are verified. The form of a key says which one is its own.
const ALGORITHMS: [&dyn VerificationAlgorithm; 2] = [&ED25519, &ECDSA_P256_SHA256_ASN1];

/// The public half of a key: its bytes, or its usual envelope (RFC 5280).
#[derive(Clone, PartialEq, Eq)]
pub struct PublicKey(Vec<u8>);

impl fmt::Debug for PublicKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "PublicKey({})", Digest::of(&self.0).short())
    }
}

impl PublicKey {
    /// Parses PEM as written by `openssl pkey -pubout` and `cosign public-key`, or the base64 of the key, with or
    /// without its envelope.
    pub fn parse(text: &str) -> Option<Self> {
        if text.contains("-----BEGIN") {
            let der = SubjectPublicKeyInfoDer::from_pem_slice(text.as_bytes()).ok()?;
            return Self::of(der.as_ref());
        }
        Self::of(&base64(text)?)
    }

    /// Takes the bytes of a key, with or without its envelope.
    /// `None` when they are no key.
    pub fn of(bytes: &[u8]) -> Option<Self> {
        let is_key = |algorithm| ParsedPublicKey::new(algorithm, bytes).is_ok();
        ALGORITHMS.into_iter().any(is_key).then(|| Self(bytes.to_vec()))
    }

    /// Whether this key signed these bytes.
    #[must_use]
    pub fn verifies(&self, bytes: &[u8], signature: &[u8]) -> bool {
        let mut keys = ALGORITHMS
            .iter()
            .filter_map(|algorithm| ParsedPublicKey::new(*algorithm, &self.0).ok());
        keys.any(|key| key.verify_sig(bytes, signature).is_ok())
    }
}

/// Signs plugins.
pub struct SigningKey(Ed25519KeyPair);

impl SigningKey {
    /// Parses PEM as written by `openssl genpkey -algorithm ed25519`.
    pub fn parse(pem: &[u8]) -> Option<Self> {
        let der = PrivatePkcs8KeyDer::from_pem_slice(pem).ok()?;
        let pair = Ed25519KeyPair::from_pkcs8_maybe_unchecked(der.secret_pkcs8_der());
        pair.ok().map(Self)
    }

    /// Signs the bytes.
    pub fn sign(&self, bytes: &[u8]) -> Vec<u8> {
        self.0.sign(bytes).as_ref().to_vec()
    }

    /// Returns an ID of the key for users; no decision depends on it.
    pub fn id(&self) -> String {
        Digest::of(self.0.public_key().as_ref()).to_string()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Created with `openssl genpkey -algorithm ed25519`, for these tests only.
    const PRIVATE: &str = "-----BEGIN PRIVATE KEY-----\nMC4CAQAwBQYDK2VwBCIEILt4uGYZKBEtKWPqREJJza4LZAHpiLwCjYh+g9P860AS\n-----END PRIVATE KEY-----\n";
    const PUBLIC: &str = "-----BEGIN PUBLIC KEY-----\nMCowBQYDK2VwAyEALrXDLi9nRxGgSDM5coG4EylCc4GRo2n3Qz2x4CdaYxc=\n-----END PUBLIC KEY-----\n";

    #[test]
    fn a_key_is_read_in_every_usual_form() {
        let signature = SigningKey::parse(PRIVATE.as_bytes()).unwrap().sign(b"x");
        let body = PUBLIC.lines().nth(1).unwrap();
        // The envelope has 12 bytes, which are 16 characters.
        let raw = &body[16..];
        for form in [PUBLIC, body, raw] {
            assert!(
                PublicKey::parse(form).unwrap().verifies(b"x", &signature),
                "{form}"
            );
        }
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
