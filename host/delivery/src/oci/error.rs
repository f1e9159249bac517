//! Why a registry does not give or take an artifact.

use std::time::Duration;

use crate::Problem;

/// Why a registry does not give or take an artifact. The message is for users.
#[derive(Debug, thiserror::Error)]
#[error("{message}")]
pub struct RegistryError {
    message: String,
    pub(super) cause: Cause,
}

#[derive(Debug, PartialEq, Eq)]
pub(super) enum Cause {
    /// The registry does not have what was asked for.
    NotFound,
    Slow,
    /// It has too many requests, and asks to wait.
    Busy(Duration),
    Other,
}

impl From<String> for RegistryError {
    fn from(message: String) -> Self {
        Self::new(message, Cause::Other)
    }
}

impl From<Problem> for RegistryError {
    fn from(problem: Problem) -> Self {
        problem.0.into()
    }
}

impl RegistryError {
    pub(super) const fn new(message: String, cause: Cause) -> Self {
        Self { message, cause }
    }

    pub(crate) fn slow(host: &str, limit: Duration) -> Self {
        Self::new(format!("{host} did not answer within {limit:?}"), Cause::Slow)
    }

    /// Creates an error with the time that the registry asks to wait.
    pub(super) fn asks_to_wait(message: String, wait: Option<Duration>) -> Self {
        Self::new(message, wait.map_or(Cause::Other, Cause::Busy))
    }

    /// Returns the time that the registry asks to wait before the next request.
    pub(crate) const fn wait(&self) -> Option<Duration> {
        match self.cause {
            Cause::Busy(wait) => Some(wait),
            _ => None,
        }
    }
}

/// The error codes of registries. What a registry itself says about an error is not shown: it may quote the request, with
/// its credentials.
///
/// Source: <https://github.com/opencontainers/distribution-spec/blob/main/spec.md#error-codes>.
pub(super) const CODES: [&str; 15] = [
    "BLOB_UNKNOWN",
    "BLOB_UPLOAD_INVALID",
    "BLOB_UPLOAD_UNKNOWN",
    "DENIED",
    "DIGEST_INVALID",
    "MANIFEST_BLOB_UNKNOWN",
    "MANIFEST_INVALID",
    "MANIFEST_UNKNOWN",
    "NAME_INVALID",
    "NAME_UNKNOWN",
    "SIZE_INVALID",
    "TAG_INVALID",
    "TOOMANYREQUESTS",
    "UNAUTHORIZED",
    "UNSUPPORTED",
];
