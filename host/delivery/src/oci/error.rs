//! Why a registry does not give or take an artifact.

use std::time::Duration;

use crate::Problem;

/// Why a registry does not give or take an artifact. The message is for users.
#[derive(Debug, thiserror::Error)]
#[error("{message}")]
pub struct RegistryError {
    message: String,
    reason: Reason,
}

#[derive(Debug)]
enum Reason {
    NotFound,
    Slow,
    /// It has too many requests, and asks to wait.
    Busy(Duration),
    Other,
}

impl From<String> for RegistryError {
    fn from(message: String) -> Self {
        Self {
            message,
            reason: Reason::Other,
        }
    }
}

impl From<Problem> for RegistryError {
    fn from(problem: Problem) -> Self {
        problem.0.into()
    }
}

impl RegistryError {
    pub(super) fn not_found(message: String) -> Self {
        Self {
            message,
            reason: Reason::NotFound,
        }
    }

    pub(crate) fn slow(host: &str, limit: Duration) -> Self {
        Self {
            message: format!("{host} did not answer within {limit:?}"),
            reason: Reason::Slow,
        }
    }

    /// Creates an error with the time that the registry asks to wait.
    pub(super) fn asks_to_wait(message: String, wait: Option<Duration>) -> Self {
        Self {
            message,
            reason: wait.map_or(Reason::Other, Reason::Busy),
        }
    }

    /// Whether the registry does not have what was asked for.
    pub(super) const fn is_not_found(&self) -> bool {
        matches!(self.reason, Reason::NotFound)
    }

    pub(super) const fn is_slow(&self) -> bool {
        matches!(self.reason, Reason::Slow)
    }

    /// Returns the time that the registry asks to wait before the next request.
    pub(crate) const fn wait(&self) -> Option<Duration> {
        match self.reason {
            Reason::Busy(wait) => Some(wait),
            _ => None,
        }
    }
}

/// The error codes of registries, with what they mean in the words of the host. What a registry itself says about an error
/// is not shown: it may quote the request, with its credentials.
///
/// Source: <https://github.com/opencontainers/distribution-spec/blob/main/spec.md#error-codes>.
const CODES: [(&str, &str); 15] = [
    ("BLOB_UNKNOWN", "it does not have these contents"),
    ("BLOB_UPLOAD_INVALID", "it does not take this upload"),
    ("BLOB_UPLOAD_UNKNOWN", "it does not know this upload"),
    ("DENIED", "the credentials do not allow this"),
    ("DIGEST_INVALID", "the digest and the contents differ"),
    (
        "MANIFEST_BLOB_UNKNOWN",
        "it does not have what the manifest names",
    ),
    ("MANIFEST_INVALID", "it does not take this manifest"),
    ("MANIFEST_UNKNOWN", "the repository has no such tag or digest"),
    ("NAME_INVALID", "it does not allow this name of a repository"),
    ("NAME_UNKNOWN", "it has no such repository"),
    ("SIZE_INVALID", "the size and the contents differ"),
    ("TAG_INVALID", "it does not allow this tag"),
    ("TOOMANYREQUESTS", "it has too many requests"),
    ("UNAUTHORIZED", "it wants other credentials"),
    ("UNSUPPORTED", "it does not support this"),
];

/// Returns a code that registries use and what it means; `None` for any other text.
pub(super) fn known(code: &str) -> Option<(&'static str, &'static str)> {
    CODES.into_iter().find(|(known, _)| *known == code)
}
