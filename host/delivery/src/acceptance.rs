//! Which plugins a controller accepts: pinned by digest, signed with a known key, or both.

use std::collections::BTreeSet;
use std::fmt;

use semver::Version;

use super::cosign::CosignSignature;
use super::identity::Signer;
use super::statement::{self, Envelope, Statement, StatementError};
use operator_host_contract::{Description, Kind};
use operator_host_runtime::Digest;

/// A trusted key, or who may sign without one.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Key {
    /// The name, for users.
    pub name: String,
    /// Whose signatures it stands for.
    pub signer: Signer,
    /// The controllers that it signs for; `None`: all.
    pub controllers: Option<BTreeSet<String>>,
}

impl Key {
    /// Whether its signatures are accepted for a controller.
    #[must_use]
    pub fn signs_for(&self, controller: &str) -> bool {
        self.controllers
            .as_ref()
            .is_none_or(|controllers| controllers.contains(controller))
    }
}

/// The requirements for accepting a plugin. The default requires nothing.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Trust {
    /// The only version that is accepted.
    pub sha256: Option<Digest>,
    /// One of these keys must have signed the plugin; an empty list accepts no plugin. `None`: no signature
    /// is required.
    pub keys: Option<Vec<Key>>,
}

/// What a trusted key signed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Signed {
    /// The statement, whose digest matches the contents; `None`: cosign signed the contents, and nothing about them.
    pub statement: Option<Statement>,
    /// The key's name.
    pub key: String,
}

/// Why a plugin is not accepted. The messages are for users.
#[derive(Debug, PartialEq, Eq, thiserror::Error)]
pub enum Untrusted {
    /// The digest differs from the pinned one.
    #[error("it is {found}, but the configuration pins {pinned}: deliver that version, or change the pin")]
    Pinned {
        /// The digest of the plugin.
        found: Digest,
        /// The pinned digest.
        pinned: Digest,
    },
    /// No key can sign for this controller.
    #[error(
        "none of the keys in --signature-keys signs for this controller: add the controller to one of them"
    )]
    NoKey,
    /// The plugin has no signature, but one is required.
    #[error(
        "it is not signed, and --signature-keys requires a signature: put the signature beside it as \
         `<plugin>.sig` (`operator-host sign` creates one), or push it to the registry (`operator-host push`)"
    )]
    Unsigned,
    /// The signature file is invalid.
    #[error("its signature cannot be used: {0}; create it with `operator-host sign`")]
    Malformed(String),
    /// No trusted key made the signature.
    #[error("no key that may sign for this controller ({keys}) made its signature: sign it with one of them")]
    Signature {
        /// The names of the keys.
        keys: String,
    },
    /// The signed statement describes another plugin.
    #[error("the signature is for {field} {stated}, but the plugin has {field} {found}: sign this plugin")]
    OtherStatement {
        /// The field that differs.
        field: &'static str,
        /// The signed value.
        stated: String,
        /// The plugin's value.
        found: String,
    },
    /// The version of a signed plugin cannot be compared with the live one.
    #[error("its version cannot be used: {0}; change the version that the plugin describes")]
    Version(String),
    /// The version is older than the live one.
    #[error(
        "its signed version {found} is older than the live version {live}: to go back, pin it \
         (annotation operator-host.dev/pin, or `sha256` in the configuration)"
    )]
    Older {
        /// The version of the plugin.
        found: Version,
        /// The live version.
        live: Version,
    },
}

impl Trust {
    /// Checks whether a controller of this kind accepts these contents, before they are compiled or run.
    /// Returns the signed statement if a signature is required.
    ///
    /// # Errors
    /// Returns an error with the reason when the contents are not accepted.
    pub fn check(
        &self,
        digest: Digest,
        parent: &Kind,
        signature: Option<&[u8]>,
    ) -> Result<Option<Signed>, Untrusted> {
        if let Some(pinned) = self.sha256
            && pinned != digest
        {
            return Err(Untrusted::Pinned {
                found: digest,
                pinned,
            });
        }
        let Some(keys) = &self.keys else {
            return Ok(None);
        };
        if keys.is_empty() {
            return Err(Untrusted::NoKey);
        }
        let given = signature.ok_or(Untrusted::Unsigned)?;
        let signer = |signed_by: &dyn Fn(&Signer) -> bool| {
            let key = keys.iter().find(|key| signed_by(&key.signer));
            key.ok_or_else(|| Untrusted::Signature {
                keys: keys
                    .iter()
                    .map(|key| key.name.as_str())
                    .collect::<Vec<_>>()
                    .join(", "),
            })
        };
        if let Some(cosign) = CosignSignature::parse(given) {
            let key = signer(&|signer| cosign.is_signed_by(signer))?;
            same("digest", &cosign.plugin()?, &digest)?;
            return Ok(Some(Signed {
                statement: None,
                key: key.name.clone(),
            }));
        }
        let envelope = Envelope::parse(given)?;
        let key = signer(&|signer| matches!(signer, Signer::Key(key) if envelope.is_signed_by(key)))?;
        let statement = envelope.statement()?;
        same("digest", &statement.digest, &digest)?;
        same("kind", &statement.parent, parent)?;
        Ok(Some(Signed {
            statement: Some(statement),
            key: key.name.clone(),
        }))
    }

    /// Checks whether the version may replace the live one. A signed version must not be older: otherwise
    /// anyone who can write to the plugin's folder could restore an old version with its old bugs. A version
    /// pinned by digest may be older.
    ///
    /// # Errors
    /// Returns an error when it is older.
    pub fn check_age(&self, candidate: &Description, live: &Description) -> Result<(), Untrusted> {
        if self.keys.is_none() || self.sha256.is_some() {
            return Ok(());
        }
        // A version that was accepted before signatures were required may not be comparable.
        let (Ok(found), Ok(live)) = (Version::parse(&candidate.version), Version::parse(&live.version))
        else {
            return Ok(());
        };
        if found.cmp_precedence(&live).is_lt() {
            return Err(Untrusted::Older { found, live });
        }
        Ok(())
    }
}

impl Signed {
    /// Checks that the plugin's description matches the signed statement, and that its version can be compared.
    ///
    /// # Errors
    /// Returns an error when it does not match, or the version is not semantic.
    pub fn describes(&self, description: &Description) -> Result<(), Untrusted> {
        // The digest that cosign signed covers the description too. But nobody has checked its version: one that is not
        // semantic is neither older nor newer, and would let an old plugin take over again.
        let Some(statement) = &self.statement else {
            let version = statement::version(&description.version);
            return version.map(drop).map_err(Untrusted::Version);
        };
        let version = statement.version.to_string();
        same("name", &statement.name, &description.name)?;
        same("version", &version, &description.version)?;
        same(
            "contract",
            &statement.contract.as_str(),
            &description.contract.as_str(),
        )
    }
}

fn same<T: PartialEq + fmt::Display>(field: &'static str, stated: &T, found: &T) -> Result<(), Untrusted> {
    if stated == found {
        return Ok(());
    }
    Err(Untrusted::OtherStatement {
        field,
        stated: stated.to_string(),
        found: found.to_string(),
    })
}

impl From<StatementError> for Untrusted {
    fn from(error: StatementError) -> Self {
        Self::Malformed(error.to_string())
    }
}

#[cfg(test)]
pub(crate) mod tests {
    use super::*;
    use crate::keys::{PublicKey, SigningKey};
    use crate::statement::version;
    use crate::testing::describing;

    /// Created with `openssl genpkey -algorithm ed25519`, for these tests only.
    pub(crate) const PRIVATE: &str = "-----BEGIN PRIVATE KEY-----\nMC4CAQAwBQYDK2VwBCIEILt4uGYZKBEtKWPqREJJza4LZAHpiLwCjYh+g9P860AS\n-----END PRIVATE KEY-----\n";
    pub(crate) const PUBLIC: &str = "-----BEGIN PUBLIC KEY-----\nMCowBQYDK2VwAyEALrXDLi9nRxGgSDM5coG4EylCc4GRo2n3Qz2x4CdaYxc=\n-----END PUBLIC KEY-----\n";
    const OTHER: &str = "MCowBQYDK2VwAyEArpxLG3KE2Y3OMrS798GZhadlZNfoKOkRgCwfH4Xfums=";

    pub(crate) fn key(name: &str, text: &str) -> Key {
        Key {
            name: name.into(),
            signer: Signer::Key(PublicKey::parse(text).unwrap()),
            controllers: None,
        }
    }

    fn trust(keys: &[(&str, &str)]) -> Trust {
        Trust {
            keys: Some(keys.iter().map(|(name, text)| key(name, text)).collect()),
            ..Trust::default()
        }
    }

    fn echo() -> Kind {
        Kind {
            api_version: "my-operator.dev/v1".into(),
            kind: "Echo".into(),
        }
    }

    fn description(version: &str) -> Description {
        describing("echo", version, echo())
    }

    /// Returns the description of a plugin that makes nothing.
    pub(crate) fn signature(description: &Description, digest: Digest) -> Vec<u8> {
        let key = SigningKey::parse(PRIVATE.as_bytes()).unwrap();
        Statement::of(description, digest).unwrap().sign(&key)
    }

    fn check(trust: &Trust, bytes: &[u8], signature: Option<&[u8]>) -> Result<Option<Signed>, String> {
        let checked = trust.check(Digest::of(bytes), &echo(), signature);
        checked.map_err(|error| error.to_string())
    }

    #[test]
    fn what_a_trusted_key_signed_is_accepted_with_the_name_of_the_key() {
        let trust = trust(&[("other", OTHER), ("release", PUBLIC)]);
        let signature = signature(&description("1.4.0"), Digest::of(b"plugin"));
        let signed = check(&trust, b"plugin", Some(&signature)).unwrap().unwrap();
        assert_eq!(
            (signed.key.as_str(), signed.statement.unwrap().version),
            ("release", version("1.4.0").unwrap())
        );
        assert_eq!(check(&Trust::default(), b"plugin", None), Ok(None));
    }

    #[test]
    fn another_key_other_contents_and_no_signature_are_refused() {
        let signature = signature(&description("1.4.0"), Digest::of(b"plugin"));
        let error = check(&trust(&[("other", OTHER)]), b"plugin", Some(&signature)).unwrap_err();
        assert!(
            error.contains("no key that may sign") && error.contains("(other)"),
            "{error}"
        );
        let own = trust(&[("release", PUBLIC)]);
        let error = check(&own, b"plug-in", Some(&signature)).unwrap_err();
        assert!(error.contains(&Digest::of(b"plug-in").to_string()), "{error}");
        assert!(check(&own, b"plugin", None).unwrap_err().contains("not signed"));
        let cut = check(&own, b"plugin", Some(&signature[..63])).unwrap_err();
        assert!(cut.contains("cannot be used"), "{cut}");
        let none = trust(&[]);
        assert!(
            check(&none, b"plugin", Some(&signature))
                .unwrap_err()
                .contains("none of the keys")
        );
    }

    #[test]
    fn what_is_signed_for_another_kind_is_refused() {
        let own = trust(&[("release", PUBLIC)]);
        let mut other = description("1.4.0");
        other.parent.kind = "Other".into();
        let signature = signature(&other, Digest::of(b"plugin"));
        let error = check(&own, b"plugin", Some(&signature)).unwrap_err();
        assert!(error.contains("for kind my-operator.dev/v1/Other"), "{error}");
    }

    #[test]
    fn a_plugin_with_another_name_version_or_contract_than_is_signed_is_refused() {
        let own = trust(&[("release", PUBLIC)]);
        let signature = signature(&description("1.4.0"), Digest::of(b"plugin"));
        let signed = check(&own, b"plugin", Some(&signature)).unwrap().unwrap();
        assert_eq!(signed.describes(&description("1.4.0")), Ok(()));
        let error = signed.describes(&description("1.5.0")).unwrap_err().to_string();
        assert!(
            error.contains("for version 1.4.0, but the plugin has version 1.5.0"),
            "{error}"
        );
        let other = Description {
            name: "other".into(),
            ..description("1.4.0")
        };
        assert!(signed.describes(&other).is_err());
    }

    #[test]
    fn an_older_signed_version_does_not_take_the_place_of_the_live_one() {
        let own = trust(&[("release", PUBLIC)]);
        let age = |trust: &Trust, candidate: &str, live: &str| {
            trust
                .check_age(&description(candidate), &description(live))
                .is_ok()
        };
        for (older, newer) in [
            ("1.9.0", "1.10.0"),
            ("1.0.0-rc.1", "1.0.0"),
            ("1.0.0-rc.2", "1.0.0-rc.10"),
        ] {
            assert!(!age(&own, older, newer), "{older} {newer}");
            assert!(age(&own, newer, older), "{older} {newer}");
            assert!(age(&Trust::default(), older, newer), "nothing is signed");
        }
        assert!(
            age(&own, "1.0.0+b", "1.0.0+c"),
            "builds of one version are as old as each other"
        );
        assert!(age(&own, "1.0.0", "before-signatures"));
        let pinned = Trust {
            sha256: Some(Digest::of(b"plugin")),
            ..own
        };
        assert!(age(&pinned, "1.0.0", "2.0.0"));
    }

    #[test]
    fn a_pin_takes_one_version_only_signed_or_not() {
        let mut trust = trust(&[("release", PUBLIC)]);
        trust.sha256 = Some(Digest::of(b"other"));
        let signature = signature(&description("1.4.0"), Digest::of(b"plugin"));
        let error = check(&trust, b"plugin", Some(&signature)).unwrap_err();
        assert!(error.contains("pins"), "{error}");
        trust.sha256 = Some(Digest::of(b"plugin"));
        assert!(check(&trust, b"plugin", Some(&signature)).is_ok());
        assert!(check(&trust, b"plugin", None).is_err());
    }

    #[test]
    fn what_cosign_signed_is_accepted_with_its_key_and_for_these_contents_only() {
        let (signature, signer) = crate::cosign::tests::signed(b"plugin", "cosign container image signature");
        let document = signature.document();
        let mut trust = trust(&[("release", PUBLIC)]);
        let error = check(&trust, b"plugin", Some(&document)).unwrap_err();
        assert!(error.contains("no key that may sign"), "{error}");
        trust.keys.as_mut().unwrap().push(Key {
            signer,
            ..key("cosign", PUBLIC)
        });
        let signed = check(&trust, b"plugin", Some(&document)).unwrap().unwrap();
        assert_eq!((signed.key.as_str(), &signed.statement), ("cosign", &None));
        assert_eq!(signed.describes(&description("1.4.0")), Ok(()));
        // Otherwise an old version could take over: it is neither older nor newer.
        for version in ["v1.4.0", "1.4", "2026-11-23", "latest", ""] {
            let error = signed.describes(&description(version)).unwrap_err().to_string();
            assert!(error.contains("is not a semantic version"), "{version}: {error}");
        }
        let error = check(&trust, b"plug-in", Some(&document)).unwrap_err();
        assert!(error.contains("the signature is for digest"), "{error}");
    }

    #[test]
    fn a_key_may_sign_for_some_controllers_only() {
        let limited = Key {
            controllers: Some(BTreeSet::from(["echo".to_owned()])),
            ..key("release", PUBLIC)
        };
        assert!(limited.signs_for("echo") && !limited.signs_for("mysql"));
        assert!(key("release", PUBLIC).signs_for("mysql"));
    }
}
