//! Plugins as files that change: detects when they appear, change or disappear, in folders, packs and registries, checks
//! their signatures, and selects the version that is live. [The runtime](operator_host_runtime) compiles and calls them.

pub mod acceptance;
pub mod candidate_check;
pub mod changes;
pub mod cosign;
pub mod history;
pub mod kept;
pub mod oci;
pub mod pack;
pub mod registry;
pub mod reload;
pub mod report;
pub mod source;
pub mod statement;
#[cfg(any(test, feature = "testing"))]
pub mod testing;

mod follow;

/// Why a plugin, or what comes with it, is not accepted. The message is for users.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{0}")]
pub struct Problem(String);

impl From<String> for Problem {
    fn from(message: String) -> Self {
        Self(message)
    }
}

impl From<&str> for Problem {
    fn from(message: &str) -> Self {
        Self(message.to_owned())
    }
}

#[cfg(test)]
mod tests;
