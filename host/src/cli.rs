//! The command line. Options that can also be given as environment variables name them in `--help`.
//!
//! Commands that start no controller are in `author`, but for these: `explain` contains a page of this package, `plugins` asks a
//! running host, `uninstall` is what the operator does for a Controller that is deleted, `completions` needs all commands, and
//! `compile-plugin` is a part of the process.

pub mod completions;
pub mod egress;
pub mod explain;
pub mod plugins;
pub mod run;
pub mod uninstall;

mod process;

use clap::{Parser, Subcommand};

use operator_host_author::{
    check, crd, diff, new, pack, push, rbac, render, replay, schema, sign, verify, webhook_manifests,
};

pub use operator_host_author::{Failure, words};

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
    /// Carry out Externals, which stand for what is outside of the cluster, until SIGTERM or Ctrl-C
    Egress(egress::Args),
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
    CompilePlugin {
        /// Memory limit in bytes
        memory: u64,
        /// CPU time limit in seconds
        seconds: u64,
        /// Process ID of the parent; this process exits when the parent does
        parent: u32,
    },
}
