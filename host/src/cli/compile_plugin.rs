//! `operator-host compile-plugin`: the process that the host starts for each plugin to compile.

use std::process::ExitCode;

use operator_host_runtime::{Limited, compile_plugin};

/// The arguments of `compile-plugin`, as `operator_host_runtime::Subprocess` passes them.
#[derive(Debug, clap::Args)]
pub struct Args {
    /// Memory limit in bytes
    memory: u64,
    /// CPU time limit in seconds
    seconds: u64,
    /// Process ID of the parent; this process exits when the parent does
    parent: u32,
}

/// Compiles the plugin on standard input to machine code on standard output. Call it while the process has one thread.
pub fn run(args: &Args) -> ExitCode {
    compile_plugin(&Limited {
        memory: args.memory,
        seconds: args.seconds,
        parent: args.parent,
    })
}
