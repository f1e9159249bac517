//! The command line. Options that can also be given as environment variables name them in `--help`.

pub mod check;
pub mod compile_plugin;
pub mod completions;
pub mod crd;
pub mod diff;
pub mod explain;
pub mod new;
pub mod pack;
pub mod plugins;
pub mod push;
pub mod rbac;
pub mod registry;
pub mod render;
pub mod replay;
pub mod run;
pub mod schema;
pub mod sign;
pub mod uninstall;
pub mod verify;
pub mod webhook_manifests;

mod conversion;
mod plugin_file;
mod reach;
mod rendering;
mod watch;

use clap::{Parser, Subcommand};

/// Kubernetes operators in one process, with reconcile logic in WebAssembly plugins.
#[derive(Debug, Parser)]
#[command(name = "operator-host", version, propagate_version = true)]
#[command(after_help = "Exit codes: 0 success, 1 failure, 2 wrong usage or configuration.")]
pub struct Cli {
    /// The command to run.
    #[command(subcommand)]
    pub command: Command,
}

/// The subcommands.
#[derive(Debug, Subcommand)]
pub enum Command {
    /// Run the controllers of a configuration until SIGTERM or Ctrl-C
    Run(run::Args),
    /// Create a plugin project in Rust, Go, C, JavaScript, TypeScript, Python, Zig or AssemblyScript
    New(new::Args),
    /// Show the live version of each plugin in a running host, and the versions held back, with the reasons
    Plugins(plugins::Args),
    /// Print the CustomResourceDefinition that a plugin describes
    Crd(crd::Args),
    /// Print the children and the status that a plugin produces for resources in files, without a cluster
    Render(render::Args),
    /// Validate a plugin and report every problem
    Check(check::Args),
    /// Show what plugins would change in the cluster, by server-side dry-run
    Diff(diff::Args),
    /// Explain the state of a resource: its conditions, children and Events, and what to do next
    Explain(explain::Args),
    /// Repeat recorded plugin calls and print the differences
    Replay(replay::Args),
    /// Print ConfigMaps that hold plugins; compress, split and sign the plugins if necessary
    Pack(pack::Args),
    /// Push a plugin, with its signature, to a registry
    Push(push::Args),
    /// Sign plugins, each with a statement of its identity
    Sign(sign::Args),
    /// Verify the signature of a plugin in a file or a registry, and print the signer and the signed statement
    Verify(verify::Args),
    /// Print the minimal RBAC permissions that a configuration and its plugins need
    Rbac(rbac::Args),
    /// Remove the host's finalizers, so that parents can be deleted after the host is removed
    Uninstall(uninstall::Args),
    /// Print the JSON Schema of the documents that a WASI command reads and writes
    Schema(schema::Args),
    /// Print the webhook configurations that send resources to the host, and the definitions of the kinds that it converts
    WebhookManifests(webhook_manifests::Args),
    /// Print the completions for a shell
    Completions(completions::Args),
    /// Compile the plugin on standard input (internal)
    #[command(hide = true)]
    CompilePlugin(compile_plugin::Args),
}

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
    /// Returns the process's exit code.
    #[must_use]
    pub const fn exit_code(&self) -> u8 {
        match self {
            Self::Usage(_) => 2,
            Self::Other(_) => 1,
        }
    }
}

/// Formats an error with its causes. Omits a cause that the text already contains: many errors, those of libraries too,
/// print their cause and also return it as `source`.
#[must_use]
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
        let twice = crate::telemetry::log::LogError::Signal(io());
        let error = anyhow::Error::from(twice).context("outer");
        assert_eq!(
            words(&error),
            "outer: cannot listen to SIGUSR1: No such file or directory (os error 2)"
        );
        let plain = Err::<(), _>(io()).context("cannot read x").unwrap_err();
        assert_eq!(
            words(&plain),
            "cannot read x: No such file or directory (os error 2)"
        );
    }
}
