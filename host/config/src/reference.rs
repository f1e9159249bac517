//! Names of artifacts in registries: `registry/repository:tag` and `registry/repository@sha256:…`.

use std::fmt;
use std::str::FromStr;

use operator_host_core::digest::Digest;

/// What a reference begins with in the configuration.
pub const SCHEME: &str = "oci://";
/// Characters of a repository's name, as in the distribution specification.
const MAX_REPOSITORY: usize = 255;
/// Characters of a tag, as in the distribution specification.
const MAX_TAG: usize = 128;

/// The name of an artifact in a registry.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Reference {
    /// The registry, as users write it: `host` or `host:port`.
    pub registry: String,
    /// The path within the registry.
    pub repository: String,
    /// Which manifest of the repository.
    pub version: Version,
}

/// Which manifest of a repository.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Version {
    /// The manifest that a tag names at the moment.
    Tag(String),
    /// The manifest with this digest, which never changes.
    Digest(Digest),
}

impl Reference {
    /// Returns the name of another manifest in the same repository.
    pub fn at(&self, digest: Digest) -> Self {
        Self {
            version: Version::Digest(digest),
            ..self.clone()
        }
    }

    /// Returns the tag, unless the reference names a digest.
    pub fn tag(&self) -> Option<&str> {
        match &self.version {
            Version::Tag(tag) => Some(tag),
            Version::Digest(_) => None,
        }
    }
}

/// Parses a reference, with or without `oci://`. With a tag and a digest, the digest decides.
impl FromStr for Reference {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let wrong = |why: &str| {
            format!(
                "{text:?} is not a reference to an artifact: {why}; expected `oci://registry/repository:tag` or \
                 `oci://registry/repository@sha256:…`"
            )
        };
        let rest = text.strip_prefix(SCHEME).unwrap_or(text);
        let (registry, Some(path)) = split(rest, '/') else {
            return Err(wrong("it has no repository"));
        };
        if !is_registry(registry) {
            return Err(wrong(&format!("{registry:?} is not a registry's host and port")));
        }
        let (path, digest) = split(path, '@');
        let (repository, tag) = split(path, ':');
        if !is_repository(repository) {
            return Err(wrong(&format!(
                "{repository:?} is not a repository: expected lower-case letters, digits, '.', '_', '-' and '/'"
            )));
        }
        if let Some(tag) = tag.filter(|tag| !is_tag(tag)) {
            return Err(wrong(&format!("{tag:?} is not a tag")));
        }
        let version = match (tag, digest) {
            (_, Some(digest)) => {
                let parsed = Some(digest).filter(|digest| digest.starts_with("sha256:"));
                let parsed = parsed.and_then(|digest| digest.parse().ok());
                Version::Digest(parsed.ok_or_else(|| wrong(&format!("{digest:?} is not a SHA-256 digest")))?)
            }
            (Some(tag), None) => Version::Tag(tag.to_owned()),
            (None, None) => return Err(wrong("it has neither a tag nor a digest")),
        };
        Ok(Self {
            registry: registry.to_owned(),
            repository: repository.to_owned(),
            version,
        })
    }
}

impl fmt::Display for Reference {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{SCHEME}{}/{}", self.registry, self.repository)?;
        match &self.version {
            Version::Tag(tag) => write!(f, ":{tag}"),
            Version::Digest(digest) => write!(f, "@{digest}"),
        }
    }
}

/// As the last part of the path of a request.
impl fmt::Display for Version {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Tag(tag) => f.write_str(tag),
            Self::Digest(digest) => digest.fmt(f),
        }
    }
}

/// Returns what is before a sign, and what is after it, if there is one.
pub(super) fn split(text: &str, sign: char) -> (&str, Option<&str>) {
    match text.split_once(sign) {
        Some((before, after)) => (before, Some(after)),
        None => (text, None),
    }
}

/// Whether the text is a host name, an IPv4 address or an IPv6 address in brackets, with or without a port.
pub fn is_registry(text: &str) -> bool {
    if let Some(rest) = text.strip_prefix('[') {
        let Some((address, port)) = rest.split_once(']') else {
            return false;
        };
        return address.parse::<std::net::Ipv6Addr>().is_ok()
            && (port.is_empty() || port.strip_prefix(':').is_some_and(is_port));
    }
    let (host, port) = split(text, ':');
    let is_label = |label: &str| {
        !label.is_empty()
            && label.chars().all(|c| c.is_ascii_alphanumeric() || c == '-')
            && !label.starts_with('-')
            && !label.ends_with('-')
    };
    host.len() <= 253 && host.split('.').all(is_label) && port.is_none_or(is_port)
}

fn is_port(text: &str) -> bool {
    text.bytes().all(|byte| byte.is_ascii_digit()) && text.parse::<u16>().is_ok_and(|port| port > 0)
}

/// Whether the text is the path of a repository.
pub fn is_repository(text: &str) -> bool {
    let is_part = |part: &str| {
        let ends = |c: Option<char>| c.is_some_and(|c| c.is_ascii_lowercase() || c.is_ascii_digit());
        let is_inner = |c: char| c.is_ascii_lowercase() || c.is_ascii_digit() || "._-".contains(c);
        ends(part.chars().next()) && ends(part.chars().last()) && part.chars().all(is_inner)
    };
    text.len() <= MAX_REPOSITORY && text.split('/').all(is_part)
}

fn is_tag(text: &str) -> bool {
    let is_inner = |c: char| c.is_ascii_alphanumeric() || "._-".contains(c);
    text.len() <= MAX_TAG && text.chars().all(is_inner) && !text.is_empty() && !text.starts_with(['.', '-'])
}

#[cfg(test)]
mod tests {
    use super::*;

    const DIGEST: &str = "sha256:3a6eb0790f39ac87c94f3856b2dd2c5d110e6811602261a9a923d3bb23adc8b7";

    #[test]
    fn a_reference_has_a_registry_a_repository_and_a_tag_or_a_digest() {
        for (text, registry, repository, version) in [
            ("oci://r.example.com/echo:1.4", "r.example.com", "echo", "1.4"),
            (
                "oci://localhost:5000/team/a/echo:latest",
                "localhost:5000",
                "team/a/echo",
                "latest",
            ),
            (
                "127.0.0.1:5000/team/echo:v1_2",
                "127.0.0.1:5000",
                "team/echo",
                "v1_2",
            ),
            ("oci://[::1]:5000/echo:1", "[::1]:5000", "echo", "1"),
        ] {
            let reference: Reference = text.parse().unwrap();
            assert_eq!(reference.registry, registry);
            assert_eq!(reference.repository, repository);
            assert_eq!(reference.version.to_string(), version);
            assert_eq!(reference.tag(), Some(version));
            assert_eq!(
                reference.to_string().trim_start_matches(SCHEME),
                text.trim_start_matches(SCHEME)
            );
        }
        for text in [
            format!("oci://r/echo@{DIGEST}"),
            format!("oci://r/echo:1.4@{DIGEST}"),
        ] {
            let reference: Reference = text.parse().unwrap();
            assert_eq!(reference.tag(), None);
            assert_eq!(reference.to_string(), format!("oci://r/echo@{DIGEST}"));
        }
    }

    #[test]
    fn what_could_lead_to_another_path_or_host_is_no_reference() {
        for text in [
            "oci://r/echo",
            "oci://r",
            "oci:///echo:1",
            "oci://user:password@r/echo:1",
            "oci://r:0/echo:1",
            "oci://r:99999/echo:1",
            "oci://r:+80/echo:1",
            "oci://r/../echo:1",
            "oci://r/a//echo:1",
            "oci://r/Echo:1",
            "oci://r/echo:1/2",
            "oci://r/echo:",
            "oci://r/echo:1?x=y",
            "oci://r/echo@sha512:00",
            "oci://r/echo@sha256:00",
            "oci://r/echo@3a6eb0790f39ac87c94f3856b2dd2c5d110e6811602261a9a923d3bb23adc8b7",
            "oci://-r/echo:1",
            "oci://[::1/echo:1",
            "https://r/echo:1",
        ] {
            let error = text.parse::<Reference>().unwrap_err();
            assert!(error.contains("oci://registry/repository"), "{text}: {error}");
        }
    }
}
