//! The identity of a plugin.

use std::fmt;
use std::hash::{BuildHasher as _, BuildHasherDefault, DefaultHasher, Hash};
use std::str::FromStr;

use serde::{Deserialize, Deserializer, Serialize, Serializer, de};
use sha2::{Digest as _, Sha256};

/// The SHA-256 of a plugin's file. Displays as `sha256:` and 64 hexadecimal digits.
#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Digest([u8; 32]);

impl Digest {
    /// Computes the digest of a file's contents.
    pub fn of(bytes: &[u8]) -> Self {
        Self(Sha256::digest(bytes).into())
    }

    /// Returns the first 12 hexadecimal digits, for display.
    pub fn short(&self) -> String {
        hex(&self.0[..6])
    }
}

/// Parses 64 hexadecimal digits, optionally prefixed with `sha256:`.
impl FromStr for Digest {
    type Err = ();

    fn from_str(text: &str) -> Result<Self, ()> {
        let hex = text.strip_prefix("sha256:").unwrap_or(text).as_bytes();
        if hex.len() != 64 {
            return Err(());
        }
        let digit = |byte: u8| char::from(byte).to_digit(16).ok_or(());
        let mut bytes = [0; 32];
        for (byte, pair) in bytes.iter_mut().zip(hex.chunks(2)) {
            *byte = u8::try_from(digit(pair[0])? << 4 | digit(pair[1])?).map_err(|_| ())?;
        }
        Ok(Self(bytes))
    }
}

impl Serialize for Digest {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_str(self)
    }
}

impl<'de> Deserialize<'de> for Digest {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let text = String::deserialize(deserializer)?;
        let wrong = || format!("{text:?} is not a SHA-256 digest: expected 64 hexadecimal digits");
        text.parse().map_err(|()| de::Error::custom(wrong()))
    }
}

impl fmt::Display for Digest {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "sha256:{}", hex(&self.0))
    }
}

impl fmt::Debug for Digest {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

/// Returns bytes as hexadecimal digits.
pub fn hex(bytes: &[u8]) -> String {
    let digits = bytes.iter().flat_map(|byte| [byte >> 4, byte & 15]);
    digits
        .map(|digit| char::from(b"0123456789abcdef"[usize::from(digit)]))
        .collect()
}

/// Returns a hash for comparisons within this process.
pub fn hash_of(value: impl Hash) -> u64 {
    BuildHasherDefault::<DefaultHasher>::default().hash_one(value)
}

/// The beginning of a digest, as users specify it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Prefix(String);

/// Fewer digits could match two versions.
const MIN_DIGITS: usize = 8;

impl Prefix {
    /// Parses hexadecimal digits, optionally prefixed with `sha256:`.
    ///
    /// # Errors
    /// Returns the problem as a message for users.
    pub fn parse(text: &str) -> Result<Self, String> {
        let digits = text.trim().trim_start_matches("sha256:").to_ascii_lowercase();
        if (MIN_DIGITS..=64).contains(&digits.len()) && digits.bytes().all(|b| b.is_ascii_hexdigit()) {
            return Ok(Self(digits));
        }
        Err(format!(
            "{text:?} is not the beginning of a digest: expected from {MIN_DIGITS} to 64 hexadecimal digits"
        ))
    }

    /// Whether a digest begins with this prefix.
    pub fn matches(&self, digest: &Digest) -> bool {
        hex(&digest.0).starts_with(&self.0)
    }
}

impl fmt::Display for Prefix {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_digest_reads_as_container_registries_write_it() {
        let digest = Digest::of(b"");
        let expected = "sha256:e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855";
        assert_eq!(digest.to_string(), expected);
        assert_eq!(digest.short(), "e3b0c44298fc");
        assert_eq!(digest.to_string().parse(), Ok(digest));
        assert_eq!(digest.to_string()[7..].to_uppercase().parse(), Ok(digest));
        for wrong in ["", "sha256:", "e3b0c44298fc", &"x".repeat(64), &"é".repeat(32)] {
            assert_eq!(wrong.parse::<Digest>(), Err(()), "{wrong}");
        }
    }

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
