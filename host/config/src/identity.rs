//! Signatures without a key, which Sigstore calls keyless: a certificate for some minutes names who signed, and a transparency
//! log shows that it was valid then. All of it is in the bundle, and is verified without the network.

use std::sync::Arc;

use sigstore_verify::trust_root::TrustedRoot;
use sigstore_verify::types::Bundle;
use sigstore_verify::{VerificationPolicy, verify};

use super::keys::PublicKey;

/// Whose signatures are accepted.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Signer {
    /// Whoever has the private half of a key.
    Key(PublicKey),
    /// Whom an issuer of identities knows by a name.
    Identity(Identity),
}

/// Who may sign without a key.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Identity {
    /// Who knows the signer, such as `https://token.actions.githubusercontent.com`.
    issuer: String,
    /// The e-mail address or the URI in the certificate; a `*` at its end stands for any rest.
    name: String,
    /// The authorities and logs to trust, as the JSON of a `trusted_root.json`.
    root: Arc<str>,
}

impl Identity {
    /// Creates an identity.
    ///
    /// # Errors
    /// Returns what is wrong with the root of trust.
    pub fn new(issuer: String, name: String, root: Arc<str>) -> Result<Self, String> {
        TrustedRoot::from_json(&root).map_err(|error| error.to_string())?;
        Ok(Self { issuer, name, root })
    }

    /// Whether the bundle is a signature of this identity for an artifact with these bytes.
    #[must_use]
    pub fn signed(&self, bundle: &str, artifact: &[u8]) -> bool {
        let policy = VerificationPolicy::any_identity().require_issuer(&*self.issuer);
        let verified = || {
            let bundle = Bundle::from_json(bundle).ok()?;
            let root = TrustedRoot::from_json(&self.root).ok()?;
            verify(artifact, &bundle, &policy, &root).ok()
        };
        // The policy has verified everything but the name.
        verified().is_some_and(|result| result.identity().is_some_and(|name| self.is(name.as_str())))
    }

    fn is(&self, name: &str) -> bool {
        match self.name.strip_suffix('*') {
            Some(start) => name.starts_with(start),
            None => name == self.name,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A package that its publisher signed in a workflow of GitHub with the public instance of Sigstore, from the tests of
    /// <https://github.com/sigstore/sigstore-rust>.
    const ARTIFACT: &[u8] = include_bytes!("identity/artifact.bin");
    const BUNDLE: &str = include_str!("identity/bundle.json");
    const ROOT: &str = include_str!("identity/trusted_root.json");
    const ISSUER: &str = "https://token.actions.githubusercontent.com";
    const NAME: &str =
        "https://github.com/prefix-dev/sigstore-example/.github/workflows/action.yaml@refs/heads/main";

    fn identity(issuer: &str, name: &str, root: &str) -> Identity {
        Identity::new(issuer.into(), name.into(), root.into()).unwrap()
    }

    #[test]
    fn a_signature_is_of_one_identity_for_one_artifact() {
        let signer = identity(ISSUER, NAME, ROOT);
        assert!(signer.signed(BUNDLE, ARTIFACT));
        assert!(!signer.signed(BUNDLE, b"another artifact"));
        let (branch, _) = NAME.rsplit_once('@').unwrap();
        assert!(identity(ISSUER, &format!("{branch}@*"), ROOT).signed(BUNDLE, ARTIFACT));
        for (issuer, name) in [
            ("https://accounts.google.com", NAME),
            (ISSUER, "https://github.com/somebody/else@*"),
            (ISSUER, branch),
            (ISSUER, ""),
        ] {
            assert!(
                !identity(issuer, name, ROOT).signed(BUNDLE, ARTIFACT),
                "{issuer} {name}"
            );
        }
    }

    #[test]
    fn another_root_of_trust_and_every_change_of_the_bundle_break_the_signature() {
        let other = include_str!("identity/other_root.json");
        assert!(!identity(ISSUER, NAME, other).signed(BUNDLE, ARTIFACT));
        assert!(Identity::new(ISSUER.into(), NAME.into(), "{}".into()).is_err());
        let signer = identity(ISSUER, NAME, ROOT);
        let bundle: serde_json::Value = serde_json::from_str(BUNDLE).unwrap();
        let places = "/verificationMaterial/tlogEntries /verificationMaterial/certificate \
            /dsseEnvelope/signatures";
        for place in places.split(' ') {
            let mut changed = bundle.clone();
            let part = changed.pointer_mut(place).unwrap();
            *part = if part.is_array() {
                serde_json::json!([])
            } else {
                serde_json::json!({})
            };
            assert!(!signer.signed(&changed.to_string(), ARTIFACT), "{place}");
        }
    }
}
