//! The commands for the authors of plugins and for those who deploy them: a project, a loop without a cluster, and what is
//! printed, packed, signed and pushed. None of them runs a controller.

pub mod check;
pub mod crd;
pub mod diff;
pub mod dry_run;
pub mod new;
pub mod output;
pub mod pack;
pub mod permissions;
pub mod plugin_file;
pub mod push;
pub mod rbac;
pub mod registry;
pub mod render;
pub mod replay;
pub mod schema;
pub mod sign;
pub mod verify;
pub mod webhook_manifests;

mod inputs;
mod reach;
mod rendering;

/// Why a command failed.
#[derive(Debug)]
pub enum Failure {
    /// The arguments or the configuration are invalid: exit code 2.
    Usage(anyhow::Error),
    /// Any other failure: exit code 1.
    Other(anyhow::Error),
}

impl<E: Into<anyhow::Error>> From<E> for Failure {
    fn from(error: E) -> Self {
        Self::Other(error.into())
    }
}

impl Failure {
    /// Returns that of an invalid argument or configuration.
    pub fn usage(error: impl Into<anyhow::Error>) -> Self {
        Self::Usage(error.into())
    }

    /// Returns the same with exit code 2, for commands whose exit code 1 means that something differs.
    #[must_use]
    pub fn into_trouble(self) -> Self {
        match self {
            Self::Usage(error) | Self::Other(error) => Self::Usage(error),
        }
    }

    /// Returns the process's exit code.
    pub const fn exit_code(&self) -> u8 {
        match self {
            Self::Usage(_) => 2,
            Self::Other(_) => 1,
        }
    }
}

/// Formats an error with its causes. Omits a cause that the text already contains: many errors, those of libraries too,
/// print their cause and also return it as `source`.
pub fn words(error: &anyhow::Error) -> String {
    let mut text = error.to_string();
    for cause in error.chain().skip(1).map(ToString::to_string) {
        if !text.contains(&cause) {
            text = format!("{text}: {cause}");
        }
    }
    text
}

#[cfg(test)]
mod tests {
    use anyhow::Context as _;

    use super::*;

    #[test]
    fn each_cause_is_printed_once() {
        let io = || std::io::Error::from_raw_os_error(2);
        #[derive(Debug, thiserror::Error)]
        #[error("cannot listen to a signal: {0}")]
        struct Twice(#[source] std::io::Error);
        let twice = Twice(io());
        let error = anyhow::Error::from(twice).context("outer");
        let expected = "outer: cannot listen to a signal: No such file or directory (os error 2)";
        assert_eq!(words(&error), expected);
        let plain = Err::<(), _>(io()).context("cannot read x").unwrap_err();
        let expected = "cannot read x: No such file or directory (os error 2)";
        assert_eq!(words(&plain), expected);
    }
}
