//! Which plugins a controller accepts: pinned by digest, signed with a known key, or both.

use std::fmt;

use semver::Version;

use super::cosign::CosignSignature;
use super::statement::{self, Envelope, Statement};
use crate::Problem;
use operator_host_config::identity::Signer;
use operator_host_config::trust::Trust;
use operator_host_contract::{Description, Kind};
use operator_host_core::digest::Digest;

/// What a trusted key signed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Signed {
    /// The statement, whose digest matches the contents; `None`: cosign signed the contents, and nothing about them.
    pub statement: Option<Statement>,
    /// The key's name.
    pub key: String,
}

/// Checks whether a controller of this kind accepts these contents, before they are compiled or run.
/// Returns the signed statement if a signature is required.
///
/// # Errors
/// Returns an error with the reason when the contents are not accepted.
pub fn check(
    trust: &Trust,
    digest: Digest,
    parent: &Kind,
    signature: Option<&[u8]>,
) -> Result<Option<Signed>, Problem> {
    check_pin(trust, digest)?;
    let Some(keys) = &trust.keys else {
        return Ok(None);
    };
    if keys.is_empty() {
        return Err(
            "none of the keys in --signature-keys signs for this controller: add the controller to one of them".into(),
        );
    }
    let given = signature.ok_or(
        "it is not signed, and --signature-keys requires a signature: put the signature beside it as \
         `<plugin>.sig` (`operator-host sign` creates one), or push it to the registry (`operator-host push`)",
    )?;
    let signer = |signed_by: &dyn Fn(&Signer) -> bool| {
        let key = keys.iter().find(|key| signed_by(&key.signer));
        key.ok_or_else(|| {
            let names: Vec<_> = keys.iter().map(|key| key.name.as_str()).collect();
            Problem(format!(
                "no key that may sign for this controller ({}) made its signature: sign it with one of them",
                names.join(", ")
            ))
        })
    };
    if let Some(cosign) = CosignSignature::parse(given) {
        let key = signer(&|signer| cosign.is_signed_by(signer))?;
        let signed = cosign.plugin().map_err(|error| malformed(&error))?;
        same("digest", &signed, &digest)?;
        return Ok(Some(Signed {
            statement: None,
            key: key.name.clone(),
        }));
    }
    let envelope = Envelope::parse(given).map_err(|error| malformed(&error))?;
    let key = signer(&|signer| matches!(signer, Signer::Key(key) if envelope.is_signed_by(key)))?;
    let statement = envelope.statement().map_err(|error| malformed(&error))?;
    same("digest", &statement.digest, &digest)?;
    same("kind", &statement.parent, parent)?;
    Ok(Some(Signed {
        statement: Some(statement),
        key: key.name.clone(),
    }))
}

/// Checks whether these contents are the pinned ones, if any are.
///
/// # Errors
/// Returns an error with both digests when they are not.
pub fn check_pin(trust: &Trust, found: Digest) -> Result<(), Problem> {
    match trust.sha256 {
        Some(pinned) if pinned != found => Err(Problem(format!(
            "it is {found}, but the configuration pins {pinned}: deliver that version, or change the pin"
        ))),
        _ => Ok(()),
    }
}

/// Checks whether the version may replace the live one. A signed version must not be older: otherwise
/// anyone who can write to the plugin's folder could restore an old version with its old bugs. A version
/// pinned by digest may be older.
///
/// # Errors
/// Returns an error when it is older.
pub fn check_age(trust: &Trust, candidate: &Description, live: &Description) -> Result<(), Problem> {
    if trust.keys.is_none() || trust.sha256.is_some() {
        return Ok(());
    }
    // A version that was accepted before signatures were required may not be comparable.
    let (Ok(found), Ok(live)) = (Version::parse(&candidate.version), Version::parse(&live.version)) else {
        return Ok(());
    };
    if found.cmp_precedence(&live).is_lt() {
        return Err(Problem(format!(
            "its signed version {found} is older than the live version {live}: to go back, pin it"
        )));
    }
    Ok(())
}

impl Signed {
    /// Checks that the plugin's description matches the signed statement, and that its version can be compared.
    ///
    /// # Errors
    /// Returns an error when it does not match, or the version is not semantic.
    pub fn describes(&self, description: &Description) -> Result<(), Problem> {
        // The digest that cosign signed covers the description too. But nobody has checked its version: one that is not
        // semantic is neither older nor newer, and would let an old plugin take over again.
        let Some(statement) = &self.statement else {
            let version = statement::version(&description.version);
            return version.map(drop).map_err(|error| {
                Problem(format!(
                    "its version cannot be used: {error}; change the version that the plugin describes"
                ))
            });
        };
        let (version, contract) = (statement.version.to_string(), statement.contract.as_str());
        same("name", &statement.name, &description.name)?;
        same("version", &version, &description.version)?;
        same("contract", &contract, &description.contract.as_str())
    }
}

fn same<T: PartialEq + fmt::Display>(field: &'static str, stated: &T, found: &T) -> Result<(), Problem> {
    if stated == found {
        return Ok(());
    }
    Err(Problem(format!(
        "the signature is for {field} {stated}, but the plugin has {field} {found}: sign this plugin"
    )))
}

fn malformed(error: &Problem) -> Problem {
    Problem(format!(
        "its signature cannot be used: {error}; create it with `operator-host sign`"
    ))
}

#[cfg(test)]
pub(crate) mod tests;
