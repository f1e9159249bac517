//! `operator-host compile-plugin`: the process that the host starts for each plugin that it compiles.

use std::process::ExitCode;

use crate::plugin::{Limited, compile_plugin};

/// The arguments of `compile-plugin`, as `operator_host_runtime::Outside` gives them.
#[derive(Debug, clap::Args)]
pub struct Args {
    /// Bytes of memory that it may have
    memory: u64,
    /// Seconds of processor time that it may take
    seconds: u64,
    /// The process that it ends with
    parent: u32,
}

/// Compiles the plugin on standard input to machine code on standard output. Called while the process has one thread.
#[must_use]
pub fn run(args: &Args) -> ExitCode {
    compile_plugin(&Limited {
        memory: args.memory,
        seconds: args.seconds,
        parent: args.parent,
    })
}
