//! `operator-host completions`: prints the completions of commands and options for a shell.

use std::io::Write;

use clap::{Command, CommandFactory};
use clap_complete::Shell;

use super::{Cli, Failure};

/// The options of `completions`.
#[derive(Debug, clap::Args)]
#[command(
    after_help = "For the current shell: `source <(operator-host completions bash)`.\n\
                        Exit codes: 0 printed, 1 it could not be printed, 2 wrong usage."
)]
pub struct Args {
    /// The shell
    shell: Shell,
}

/// Prints the completions.
///
/// # Errors
/// When standard output cannot be written.
pub fn run(args: &Args) -> Result<(), Failure> {
    let all = Cli::command();
    // The library also completes what is hidden.
    let mut command = Command::new("operator-host")
        .version(env!("CARGO_PKG_VERSION"))
        .propagate_version(true)
        .subcommands(all.get_subcommands().filter(|it| !it.is_hide_set()).cloned());
    // In memory first: the library panics when it cannot write.
    let mut text = Vec::new();
    clap_complete::generate(args.shell, &mut command, "operator-host", &mut text);
    std::io::stdout().write_all(&text)?;
    Ok(())
}
