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
    #[error("its signed version {found} is older than the live version {live}: to go back, pin it")]
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
pub(crate) mod tests;
