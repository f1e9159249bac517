//! What stands between a candidate that is loaded and its being live.
//!
//! This module knows no objects: who proves is [`crate::rollout`], and the [`super::registry::Slot`] does
//! as it is told.

use tokio::sync::watch;

use super::{Digest, Plugin};

/// The beginning of a digest, as people give it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Prefix(String);

/// Fewer digits could mean two versions.
const MIN_DIGITS: usize = 8;

impl Prefix {
    /// Reads `sha256:` and hexadecimal digits, or the digits alone.
    ///
    /// # Errors
    /// What is wrong, for people.
    pub fn parse(text: &str) -> Result<Self, String> {
        let digits = text.trim().trim_start_matches("sha256:").to_ascii_lowercase();
        if (MIN_DIGITS..=64).contains(&digits.len()) && digits.bytes().all(|b| b.is_ascii_hexdigit()) {
            return Ok(Self(digits));
        }
        Err(format!(
            "{text:?} is not the beginning of a digest: expected from {MIN_DIGITS} to 64 hexadecimal digits"
        ))
    }

    /// Whether a digest begins so.
    #[must_use]
    pub fn matches(&self, digest: &Digest) -> bool {
        digest
            .to_string()
            .trim_start_matches("sha256:")
            .starts_with(&self.0)
    }
}

impl std::fmt::Display for Prefix {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(&self.0)
    }
}

/// What the people who run the cluster want of one controller's plugin.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Orders {
    /// These versions take over whatever a proof shows.
    pub promote: Vec<Prefix>,
    /// No other version than this may be live.
    pub pin: Option<Prefix>,
}

impl Orders {
    pub(super) fn forces(&self, digest: &Digest) -> bool {
        self.promote.iter().any(|prefix| prefix.matches(digest))
    }
}

/// Why a candidate does not take over.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct HeldBack {
    /// CamelCase, for machines.
    pub reason: &'static str,
    /// What would happen, to what, and what to do next: for who runs the host, since it names objects of anybody.
    pub message: String,
    /// Which version it is and what to do next, without a word about any object.
    pub advice: String,
    /// The first differences between the two versions' answers; bounded, possibly empty. Of anybody's objects, too.
    pub diff: String,
    /// The first objects on which it was seen.
    pub objects: Vec<Blamed>,
}

/// One object because of which a candidate is held back.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Blamed {
    /// `namespace/name` or `name`.
    pub object: String,
    /// What the candidate does to it.
    pub message: String,
    /// What differs between the two versions' answers about it; bounded, possibly empty.
    pub diff: String,
}

/// What came of a proof.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Verdict {
    /// The candidate may take over.
    Proved {
        /// What it was tried on, and what came of it.
        on: String,
        /// The first differences between the two versions' answers; bounded, often empty.
        diff: String,
    },
    /// It may not.
    HeldBack(Box<HeldBack>),
}

impl Verdict {
    /// Nothing was compared.
    #[must_use]
    pub fn unneeded(why: &str) -> Self {
        Self::Proved {
            on: why.to_owned(),
            diff: String::new(),
        }
    }
}

/// Proves candidates of one controller.
#[async_trait::async_trait]
pub trait Proof: Send + Sync {
    /// What people want; `None` until that is known.
    fn orders(&self) -> watch::Receiver<Option<Orders>>;

    /// Compares a candidate with the live version. Waits until there is something to compare them on. Dropping the
    /// future ends the proof.
    async fn prove(&self, live: &Plugin, candidate: &Plugin) -> Verdict;

    /// Says it to whom it concerns; `None`: nothing is held back any more.
    fn announce(&self, held: Option<&HeldBack>);
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_prefix_is_enough_of_a_digest_to_mean_one() {
        let digest = Digest::of(b"");
        assert!(Prefix::parse("sha256:E3B0C442").unwrap().matches(&digest));
        assert!(Prefix::parse(&digest.to_string()).unwrap().matches(&digest));
        assert!(!Prefix::parse("e3b0c443").unwrap().matches(&digest));
        for bad in ["", "e3b0c44", "sha256:xyzxyzxyz", "latest-version"] {
            assert!(Prefix::parse(bad).is_err(), "{bad}");
        }
    }
}
