//! Whose plugins a controller takes: pinned by digest, signed by a known key, or both.

use std::fmt;

use aws_lc_rs::signature::{ED25519, Ed25519KeyPair, UnparsedPublicKey};
use k8s_openapi::ByteString;
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{PrivatePkcs8KeyDer, SubjectPublicKeyInfoDer};

use super::Digest;

/// What stands before the 32 bytes of an ed25519 key in its usual envelope (RFC 8410).
const ENVELOPE: [u8; 12] = [
    0x30, 0x2a, 0x30, 0x05, 0x06, 0x03, 0x2b, 0x65, 0x70, 0x03, 0x21, 0x00,
];
const KEY_BYTES: usize = 32;
const SIGNATURE_BYTES: usize = 64;

/// The public half of an ed25519 key.
#[derive(Clone, Copy, PartialEq, Eq)]
pub struct PublicKey([u8; KEY_BYTES]);

impl fmt::Debug for PublicKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "PublicKey({})", Digest::of(&self.0).short())
    }
}

/// What a plugin must show to be taken. The default asks for nothing.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Trust {
    /// The only version that is taken.
    pub sha256: Option<Digest>,
    /// One of these must have signed it; none: no signature is asked for.
    pub keys: Vec<PublicKey>,
}

/// Why a plugin is not taken. The messages are for people.
#[derive(Debug, PartialEq, Eq, thiserror::Error)]
pub enum Untrusted {
    /// Another version than the one that is pinned.
    #[error("it is {found}, but the configuration pins {pinned}: deliver that version, or change the pin")]
    Pinned {
        /// What it is.
        found: Digest,
        /// What is pinned.
        pinned: Digest,
    },
    /// A signature is asked for.
    #[error(
        "it is not signed, and the configuration asks for a signature: put the signature beside it as \
         `<plugin>.sig` (`operator-host pack --sign-key` makes one)"
    )]
    Unsigned,
    /// The signature is none.
    #[error("its signature has {0} bytes and is none of ed25519: 64 bytes are expected, or their base64")]
    Malformed(usize),
    /// Of other contents or by somebody else.
    #[error(
        "its signature is by none of the configured keys, or of another version: sign {found} with one of them"
    )]
    Signature {
        /// What it is.
        found: Digest,
    },
}

impl Trust {
    /// Whether these contents are to be taken.
    ///
    /// # Errors
    /// When they are not, and why.
    pub fn check(&self, bytes: &[u8], digest: Digest, signature: Option<&[u8]>) -> Result<(), Untrusted> {
        if let Some(pinned) = self.sha256
            && pinned != digest
        {
            return Err(Untrusted::Pinned {
                found: digest,
                pinned,
            });
        }
        if self.keys.is_empty() {
            return Ok(());
        }
        let given = signature.ok_or(Untrusted::Unsigned)?;
        let signature = whole(given).ok_or(Untrusted::Malformed(given.len()))?;
        let signed = |key: &PublicKey| {
            UnparsedPublicKey::new(&ED25519, key.0)
                .verify(bytes, &signature)
                .is_ok()
        };
        if !self.keys.iter().any(signed) {
            return Err(Untrusted::Signature { found: digest });
        }
        Ok(())
    }
}

/// A signature as `openssl` writes it, or the base64 of that.
fn whole(given: &[u8]) -> Option<Vec<u8>> {
    if given.len() == SIGNATURE_BYTES {
        return Some(given.to_owned());
    }
    let text = std::str::from_utf8(given).ok()?;
    base64(text).filter(|bytes| bytes.len() == SIGNATURE_BYTES)
}

/// Line breaks are let pass.
fn base64(text: &str) -> Option<Vec<u8>> {
    let text: String = text.split_whitespace().collect();
    serde_json::from_value::<ByteString>(text.into())
        .ok()
        .map(|bytes| bytes.0)
}

impl PublicKey {
    /// From PEM as `openssl pkey -pubout` writes it, or from the base64 of the key, with or without its envelope.
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
}

/// Signs plugins.
pub struct SigningKey(Ed25519KeyPair);

impl SigningKey {
    /// From PEM as `openssl genpkey -algorithm ed25519` writes it.
    #[must_use]
    pub fn parse(pem: &[u8]) -> Option<Self> {
        let der = PrivatePkcs8KeyDer::from_pem_slice(pem).ok()?;
        Ed25519KeyPair::from_pkcs8_maybe_unchecked(der.secret_pkcs8_der())
            .ok()
            .map(Self)
    }

    /// The signature of a plugin's unpacked bytes.
    #[must_use]
    pub fn sign(&self, bytes: &[u8]) -> Vec<u8> {
        self.0.sign(bytes).as_ref().to_vec()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Made with `openssl genpkey -algorithm ed25519`, for these tests only.
    const PRIVATE: &str = "-----BEGIN PRIVATE KEY-----\nMC4CAQAwBQYDK2VwBCIEILt4uGYZKBEtKWPqREJJza4LZAHpiLwCjYh+g9P860AS\n-----END PRIVATE KEY-----\n";
    const PUBLIC: &str = "-----BEGIN PUBLIC KEY-----\nMCowBQYDK2VwAyEALrXDLi9nRxGgSDM5coG4EylCc4GRo2n3Qz2x4CdaYxc=\n-----END PUBLIC KEY-----\n";
    const OTHER: &str = "MCowBQYDK2VwAyEArpxLG3KE2Y3OMrS798GZhadlZNfoKOkRgCwfH4Xfums=";
    /// Of `plugin`, made with `openssl pkeyutl -sign -rawin`.
    const SIGNATURE: &str =
        "wZ3dgYRqmr9SoPFznn9ARYbj3z7UhbTh70y917e01YVF283qo7siZUAiQjMiXmyk5kv4dPB1ceVCLNptOSugBg==";

    fn trust(keys: &[&str]) -> Trust {
        Trust {
            keys: keys.iter().map(|key| PublicKey::parse(key).unwrap()).collect(),
            ..Trust::default()
        }
    }

    fn check(trust: &Trust, bytes: &[u8], signature: Option<&[u8]>) -> Result<(), String> {
        let checked = trust.check(bytes, Digest::of(bytes), signature);
        checked.map_err(|error| error.to_string())
    }

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

    #[test]
    fn what_openssl_signed_is_taken_and_what_we_sign_is_the_same() {
        let signature = base64(SIGNATURE).unwrap();
        let trust = trust(&[OTHER, PUBLIC]);
        assert_eq!(check(&trust, b"plugin", Some(&signature)), Ok(()));
        assert_eq!(check(&trust, b"plugin", Some(SIGNATURE.as_bytes())), Ok(()));
        let ours = SigningKey::parse(PRIVATE.as_bytes()).unwrap().sign(b"plugin");
        assert_eq!(ours, signature, "ed25519 is deterministic");
    }

    #[test]
    fn another_key_another_version_and_no_signature_are_refused() {
        let signature = base64(SIGNATURE).unwrap();
        let own = trust(&[PUBLIC]);
        for (trust, bytes) in [(&trust(&[OTHER]), b"plugin".as_slice()), (&own, b"plug-in")] {
            let error = check(trust, bytes, Some(&signature)).unwrap_err();
            assert!(error.contains("by none of the configured keys"), "{error}");
            assert!(error.contains(&Digest::of(bytes).to_string()), "{error}");
        }
        assert!(check(&own, b"plugin", None).unwrap_err().contains("not signed"));
        let cut = check(&own, b"plugin", Some(&signature[..63])).unwrap_err();
        assert!(cut.contains("63 bytes"), "{cut}");
        assert_eq!(check(&Trust::default(), b"plugin", None), Ok(()));
    }

    #[test]
    fn a_pin_takes_one_version_only_signed_or_not() {
        let mut trust = trust(&[PUBLIC]);
        trust.sha256 = Some(Digest::of(b"other"));
        let signature = base64(SIGNATURE).unwrap();
        let error = check(&trust, b"plugin", Some(&signature)).unwrap_err();
        assert!(error.contains("pins"), "{error}");
        trust.sha256 = Some(Digest::of(b"plugin"));
        assert_eq!(check(&trust, b"plugin", Some(&signature)), Ok(()));
        assert!(check(&trust, b"plugin", None).is_err());
    }
}
