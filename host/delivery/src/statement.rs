//! The signed statement about a plugin, in an envelope with signatures.
//!
//! The statement is an in-toto Statement v1 and the envelope a DSSE envelope v1, so that other tools can
//! create and read both. Sources: <https://github.com/in-toto/attestation/blob/main/spec/v1/statement.md>,
//! <https://github.com/secure-systems-lab/dsse/blob/master/envelope.md>. Unknown fields are ignored, as both
//! documents require.

use k8s_openapi::ByteString;
use semver::Version;
use serde::Deserialize;
use serde_json::{Value, json};
use sigstore_verify::types::{Subject, intoto, pae};

use crate::Problem;
use crate::oci::artifact::shown;
use operator_host_config::keys::{PublicKey, SigningKey};
use operator_host_contract::{Description, Kind};
use operator_host_core::digest::Digest;
use operator_host_core::json_text::unquoted;
use operator_host_core::text::base64;

/// The type of the envelope's payload.
pub const PAYLOAD_TYPE: &str = "application/vnd.in-toto+json";
/// The type of a statement.
pub const STATEMENT_TYPE: &str = "https://in-toto.io/Statement/v1";
/// The type of the statement's predicate.
pub const PREDICATE_TYPE: &str = "https://operator-host.dev/plugin/v1";
/// Maximum size of a signature file in bytes.
pub const SIGNATURE_LIMIT: usize = 32 << 10;
/// Maximum number of signatures that are checked, because each costs one verification per key.
const MAX_SIGNATURES: usize = 16;

/// What a signature states about a plugin.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Statement {
    /// The plugin's name.
    pub name: String,
    /// The digest of its unpacked file.
    pub digest: Digest,
    /// The kind that it reconciles.
    pub parent: Kind,
    /// Its version.
    pub version: Version,
    /// The version of the contract that it is built for.
    pub contract: String,
}

/// Parses the version of a plugin, so that it can be compared with others.
///
/// # Errors
/// Returns an error when it is not a semantic version; the text contains the expected form.
pub fn version(text: &str) -> Result<Version, String> {
    Version::parse(text).map_err(|error| {
        format!("{text:?} is not a semantic version, such as `1.4.0` ({error}): signed versions are compared")
    })
}

impl Statement {
    /// Creates the statement about a loaded plugin.
    ///
    /// # Errors
    /// Returns an error when its version is not semantic.
    pub fn of(description: &Description, digest: Digest) -> Result<Self, String> {
        Ok(Self {
            name: description.name.clone(),
            digest,
            parent: description.parent.clone(),
            version: version(&description.version)?,
            contract: description.contract.to_string(),
        })
    }

    /// Returns the envelope with one signature: the contents of the file `<plugin>.sig`.
    pub fn sign(&self, key: &SigningKey) -> Vec<u8> {
        let payload = self.to_json().to_string().into_bytes();
        let signature = key.sign(&pae(PAYLOAD_TYPE, &payload));
        let envelope = json!({
            "payloadType": PAYLOAD_TYPE,
            "payload": ByteString(payload),
            "signatures": [{ "keyid": key.id(), "sig": ByteString(signature) }],
        });
        let mut text = envelope.to_string().into_bytes();
        text.push(b'\n');
        text
    }

    fn to_json(&self) -> Value {
        json!({
            "_type": STATEMENT_TYPE,
            "subject": [{ "name": self.name, "digest": { "sha256": self.digest.to_string().trim_start_matches("sha256:") } }],
            "predicateType": PREDICATE_TYPE,
            "predicate": {
                "parent": self.parent,
                "version": self.version.to_string(),
                "contract": self.contract,
            },
        })
    }

    fn parse(payload: &[u8]) -> Result<Self, String> {
        let raw = in_toto(payload, PREDICATE_TYPE)?;
        let [subject] = <[Subject; 1]>::try_from(raw.subject)
            .map_err(|subjects| format!("it has {} subjects, expected one", subjects.len()))?;
        let predicate: RawPredicate =
            serde_json::from_value(raw.predicate).map_err(|error| error.to_string())?;
        Ok(Self {
            digest: sha256(&subject).ok_or("its subject has no sha256")?,
            name: subject.name,
            parent: predicate.parent,
            version: version(&predicate.version)?,
            contract: predicate.contract,
        })
    }
}

/// Reads an in-toto statement with a predicate of this type.
pub(crate) fn in_toto(payload: &[u8], predicate: &str) -> Result<intoto::Statement, String> {
    let raw: intoto::Statement = serde_json::from_slice(payload).map_err(|error| error.to_string())?;
    for (found, expected) in [(&raw.type_, STATEMENT_TYPE), (&raw.predicate_type, predicate)] {
        if found != expected {
            return Err(format!("it is {found:?}, expected {expected}"));
        }
    }
    Ok(raw)
}

/// Returns the SHA-256 of what a statement is about.
pub(crate) fn sha256(subject: &Subject) -> Option<Digest> {
    subject.digest.sha256?.to_hex().parse().ok()
}

/// The contents of a signature file, not verified.
#[derive(Debug)]
pub struct Envelope {
    payload: Vec<u8>,
    signatures: Vec<Vec<u8>>,
}

impl Envelope {
    /// Parses a signature file.
    ///
    /// # Errors
    /// Returns an error when it is not a signature file, or has another payload type.
    pub fn parse(text: &[u8]) -> Result<Self, Problem> {
        let wrong = |why: String| Problem(format!("it is not a DSSE envelope: {why}"));
        if text.len() > SIGNATURE_LIMIT {
            return Err(Problem(format!("it has over {SIGNATURE_LIMIT} bytes")));
        }
        let raw: RawEnvelope = serde_json::from_slice(text).map_err(|error| wrong(unquoted(&error)))?;
        if raw.payload_type != PAYLOAD_TYPE {
            return Err(Problem(format!(
                "its payload is {}, expected {PAYLOAD_TYPE}",
                shown(&raw.payload_type)
            )));
        }
        let decoded =
            |text: &str, what: &str| base64(text).ok_or_else(|| wrong(format!("`{what}` is not base64")));
        let signatures = raw.signatures.iter().take(MAX_SIGNATURES);
        Ok(Self {
            payload: decoded(&raw.payload, "payload")?,
            signatures: signatures
                .map(|signature| decoded(&signature.sig, "sig"))
                .collect::<Result<_, _>>()?,
        })
    }

    /// Whether one of the signatures was created with this key.
    pub fn is_signed_by(&self, key: &PublicKey) -> bool {
        let signed = pae(PAYLOAD_TYPE, &self.payload);
        self.signatures
            .iter()
            .any(|signature| key.verifies(&signed, signature))
    }

    /// Returns what is signed.
    pub(crate) fn payload(&self) -> &[u8] {
        &self.payload
    }

    /// Returns the signed statement. It can be trusted only when it is signed with a trusted key.
    ///
    /// # Errors
    /// Returns an error when it is another type of statement.
    pub fn statement(&self) -> Result<Statement, Problem> {
        Statement::parse(&self.payload).map_err(|error| unusable(&error))
    }
}

/// Returns the error of what is signed and is not about a plugin.
pub(crate) fn unusable(error: &dyn std::fmt::Display) -> Problem {
    Problem(format!("its statement cannot be used: {error}"))
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct RawEnvelope {
    payload_type: String,
    payload: String,
    signatures: Vec<RawSignature>,
}

#[derive(Deserialize)]
struct RawSignature {
    sig: String,
}

#[derive(Deserialize)]
struct RawPredicate {
    parent: Kind,
    version: String,
    contract: String,
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::acceptance::tests::{PRIVATE, PUBLIC};
    use crate::tests::assert_says;

    fn statement() -> Statement {
        Statement {
            name: "echo".into(),
            digest: Digest::of(b"plugin"),
            parent: Kind::new("my-operator.dev/v1", "Echo"),
            version: Version::new(1, 4, 0),
            contract: "1.0.0".into(),
        }
    }

    fn signed() -> Value {
        let key = SigningKey::parse(PRIVATE.as_bytes()).unwrap();
        serde_json::from_slice(&statement().sign(&key)).unwrap()
    }

    fn parse(envelope: &Value) -> Result<Envelope, String> {
        Envelope::parse(envelope.to_string().as_bytes()).map_err(|error| error.to_string())
    }

    #[test]
    fn what_was_signed_is_read_as_it_was() {
        let envelope = parse(&signed()).unwrap();
        assert!(envelope.is_signed_by(&PublicKey::parse(PUBLIC).unwrap()));
        assert_eq!(envelope.statement().unwrap(), statement());
    }

    #[test]
    fn base64_of_either_alphabet_is_read() {
        for text in ["+/+/", "-_-_", "-_-\n_"] {
            assert_eq!(base64(text), Some(vec![0xfb, 0xff, 0xbf]), "{text}");
        }
        assert_eq!(base64("%%"), None);
    }

    #[test]
    fn every_change_of_what_is_signed_breaks_the_signature() {
        let key = PublicKey::parse(PUBLIC).unwrap();
        let mut envelope = signed();
        let other = Statement {
            version: Version::new(9, 0, 0),
            ..statement()
        };
        envelope["payload"] = json!(ByteString(other.to_json().to_string().into_bytes()));
        assert!(!parse(&envelope).unwrap().is_signed_by(&key));
        let mut envelope = signed();
        envelope["signatures"] = json!([]);
        assert!(!parse(&envelope).unwrap().is_signed_by(&key));
        // One invalid signature beside a valid one, as when two people sign.
        let mut envelope = signed();
        let valid = envelope["signatures"][0].take();
        envelope["signatures"] = json!([{"sig": "AAAA"}, valid]);
        assert!(parse(&envelope).unwrap().is_signed_by(&key));
    }

    #[test]
    fn what_is_no_envelope_or_of_something_else_is_named() {
        let with = |change: fn(&mut Value)| {
            let mut envelope = signed();
            change(&mut envelope);
            parse(&envelope).unwrap_err()
        };
        assert_says(Envelope::parse(&[0; 64]).unwrap_err(), "not a DSSE envelope");
        let large = Envelope::parse(&vec![b' '; SIGNATURE_LIMIT + 1]).unwrap_err();
        assert_says(large, "it has over 32768 bytes");
        assert!(with(|e| e["payloadType"] = json!("text/plain")).contains("text/plain"));
        // Nothing of it is signed: a registry may quote the credentials, at any length.
        for change in [
            (|e| e["payloadType"] = json!("Basic dGVhbQ")) as fn(&mut Value),
            |e| e["signatures"] = json!("Basic dGVhbQ"),
        ] {
            let error = with(change);
            assert!(!error.contains("dGVhbQ"), "{error}");
        }
        assert!(with(|e| e["payload"] = json!("?")).contains("`payload` is not base64"));
        assert!(with(|e| e["signatures"][0]["sig"] = json!("?")).contains("`sig` is not base64"));
    }

    #[test]
    fn another_kind_of_statement_is_refused() {
        let with = |change: fn(&mut Value)| {
            let mut statement = statement().to_json();
            change(&mut statement);
            Statement::parse(statement.to_string().as_bytes()).unwrap_err()
        };
        assert!(with(|s| s["_type"] = json!("v0")).contains(STATEMENT_TYPE));
        let provenance = with(|s| s["predicateType"] = json!("https://slsa.dev/provenance/v1"));
        assert_says(provenance, PREDICATE_TYPE);
        assert!(with(|s| s["subject"] = json!([])).contains("0 subjects"));
        assert!(with(|s| s["subject"][0]["digest"] = json!({"sha1": "00"})).contains("sha256"));
        assert!(with(|s| s["predicate"]["version"] = json!("latest")).contains("not a semantic version"));
        // More may be said.
        let mut known = statement().to_json();
        known["predicate"]["builder"] = json!("somebody");
        assert_eq!(Statement::parse(known.to_string().as_bytes()), Ok(statement()));
    }
}
