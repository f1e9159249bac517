//! The command line. Every option can also be given as an environment variable.

pub mod check;
pub mod compile_plugin;
pub mod crd;
pub mod diff;
pub mod new;
pub mod pack;
pub mod plugins;
pub mod rbac;
pub mod render;
pub mod replay;
pub mod run;
pub mod schema;
pub mod sign;
pub mod uninstall;
pub mod verify;
pub mod webhook_manifests;

mod plugin_file;
mod rendering;
mod watch;

use clap::{Parser, Subcommand};

/// Every Kubernetes operator a team needs, in one process: reconcile logic in WebAssembly plugins.
#[derive(Debug, Parser)]
#[command(name = "operator-host", version, propagate_version = true)]
#[command(after_help = "Exit codes: 0 success, 1 failure, 2 wrong usage or configuration.")]
pub struct Cli {
    /// What to do.
    #[command(subcommand)]
    pub command: Command,
}

/// The subcommands.
#[derive(Debug, Subcommand)]
pub enum Command {
    /// Run the controllers that a configuration names, until SIGTERM or Ctrl-C
    Run(run::Args),
    /// Write a plugin to start from, in Rust, Go or C
    New(new::Args),
    /// Show which version of each plugin a running host uses, and which it holds back and why
    Plugins(plugins::Args),
    /// Print the CustomResourceDefinition of a plugin, made from its types
    Crd(crd::Args),
    /// Print the children and the status that a plugin makes of resources in files, without a cluster
    Render(render::Args),
    /// Say all that is wrong with a plugin
    Check(check::Args),
    /// Show what plugins would change in the cluster, by server-side dry-run
    Diff(diff::Args),
    /// Make recorded plugin calls again and print what differs
    Replay(replay::Args),
    /// Print ConfigMaps that hold plugins, compressed, split and signed where that is wanted
    Pack(pack::Args),
    /// Sign plugins, each with a statement of what it is
    Sign(sign::Args),
    /// Say who signed a plugin, and what as
    Verify(verify::Args),
    /// Print the least rights that a configuration and its plugins need, as Roles and bindings
    Rbac(rbac::Args),
    /// Take the host's finalizers off, so that nothing waits for it once it is gone
    Uninstall(uninstall::Args),
    /// Print the JSON Schema of what a WASI command reads or writes
    Schema(schema::Args),
    /// Print the manifest that makes the API server ask the host before it writes a resource
    WebhookManifests(webhook_manifests::Args),
    /// Compile the plugin on standard input; for the host's own use
    #[command(hide = true)]
    CompilePlugin(compile_plugin::Args),
}

/// How a command failed.
#[derive(Debug)]
pub enum Failure {
    /// The user gave something that cannot be used: exit code 2.
    Usage(anyhow::Error),
    /// Something went wrong: exit code 1.
    Other(anyhow::Error),
}

impl<E: Into<anyhow::Error>> From<E> for Failure {
    fn from(error: E) -> Self {
        Self::Other(error.into())
    }
}

impl Failure {
    /// The process's exit code.
    #[must_use]
    pub const fn exit_code(&self) -> u8 {
        match self {
            Self::Usage(_) => 2,
            Self::Other(_) => 1,
        }
    }
}

/// An error with its causes. A cause that is in the words already is not said again: many errors, of libraries too, both
/// show their cause and have it.
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
    fn each_cause_is_said_once() {
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
