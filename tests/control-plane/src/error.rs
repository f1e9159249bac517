//! Errors of a control plane.

use std::{io, path::PathBuf, process::ExitStatus, time::Duration};

/// Why a control plane did not start, or an operation on it failed.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// `install.sh` could not provide the programs. Its messages are on stderr.
    #[error(
        "no control plane on this machine: {script} ended with {status}; its messages above say why. \
         Or set KUBEBUILDER_ASSETS to a folder with etcd and kube-apiserver"
    )]
    Install {
        /// The script.
        script: PathBuf,
        /// Its exit status.
        status: ExitStatus,
    },
    /// A program that the options need is missing.
    #[error("{name} is missing in {folder}: run tests/control-plane/install.sh, or fix KUBEBUILDER_ASSETS")]
    MissingBinary {
        /// The program.
        name: &'static str,
        /// Where it was expected.
        folder: PathBuf,
    },
    /// A component ended by itself.
    #[error("{component} ended with {status}; the end of its log {log}:\n{tail}")]
    Ended {
        /// The component.
        component: &'static str,
        /// Its exit status.
        status: ExitStatus,
        /// Its log.
        log: PathBuf,
        /// The last lines of the log.
        tail: String,
    },
    /// A component was not ready in time.
    #[error("{component} was not ready after {after:?} ({last}); the end of its log {log}:\n{tail}")]
    NotReady {
        /// The component.
        component: &'static str,
        /// How long it had.
        after: Duration,
        /// The result of the last check.
        last: String,
        /// Its log.
        log: PathBuf,
        /// The last lines of the log.
        tail: String,
    },
    /// An operation needs a component that was stopped or never started.
    #[error("{component} is not running in this control plane: {hint}")]
    NotRunning {
        /// The component.
        component: &'static str,
        /// What to do about it.
        hint: &'static str,
    },
    /// There is no free port below the ephemeral range.
    #[error("no free port on 127.0.0.1 between {from} and {to}")]
    NoPort {
        /// The first port tried.
        from: u16,
        /// The port after the last.
        to: u16,
    },
    /// A user that the options did not name.
    #[error("no user {0} in this control plane: name it with Options::with_user before the start")]
    UnknownUser(String),
    /// A file or a process could not be handled.
    #[error("cannot {what}")]
    Io {
        /// The operation, as an infinitive without `to`.
        what: String,
        /// The cause.
        source: io::Error,
    },
    /// A line of the audit log that is not an audit event.
    #[error("the audit log {log} has a line that is not an audit event")]
    Audit {
        /// The log.
        log: PathBuf,
        /// The cause.
        source: serde_json::Error,
    },
    /// A file that is not a valid manifest.
    #[error("{file} is not a manifest: {reason}")]
    Manifest {
        /// The file.
        file: PathBuf,
        /// What is wrong with it.
        reason: String,
    },
    /// The API server refused a manifest, or did not serve its kind in time.
    #[error("{object} was not installed: {message}")]
    Refused {
        /// `Kind/name`.
        object: String,
        /// The error of the API server.
        message: String,
    },
    /// Another process uses the data folder.
    #[error("{0} is used by another control plane: stop that one, or name another folder")]
    InUse(PathBuf),
    /// The kubeconfig cannot be used.
    #[error("the kubeconfig cannot be used")]
    Kubeconfig(#[from] kube::config::KubeconfigError),
    /// The API server refused a request or could not be reached.
    #[error("the API server did not answer as expected")]
    Api(#[from] kube::Error),
}

/// Adds the failed operation to an I/O error.
pub(crate) trait Context<T> {
    fn context(self, what: impl FnOnce() -> String) -> Result<T, Error>;
}

impl<T> Context<T> for io::Result<T> {
    fn context(self, what: impl FnOnce() -> String) -> Result<T, Error> {
        self.map_err(|source| Error::Io { what: what(), source })
    }
}
