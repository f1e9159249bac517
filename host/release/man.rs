//! Writes the manual pages of all commands into a folder: `cargo run --example man -- FOLDER`.
//!
//! It is no part of the program, which is smaller without it. The pages follow from the definition of the command line.

use std::path::{Path, PathBuf};

use clap::CommandFactory;
use clap_mangen::Man;
use operator_host::cli::Cli;

fn main() -> std::io::Result<()> {
    let folder = std::env::args_os().nth(1).map(PathBuf::from);
    let Some(folder) = folder else {
        return Err(std::io::Error::other("usage: man FOLDER"));
    };
    write_all(&folder)
}

/// Writes all pages into a folder.
pub(crate) fn write_all(folder: &Path) -> std::io::Result<()> {
    std::fs::create_dir_all(folder)?;
    let mut command = Cli::command().disable_help_subcommand(true);
    command.build();
    write(folder, &command, "operator-host".to_owned())
}

/// Writes the page of a command and those of its subcommands.
fn write(folder: &Path, command: &clap::Command, name: String) -> std::io::Result<()> {
    // The library takes names that live as long as the program.
    let name: &'static str = name.leak();
    let page = Man::new(command.clone().name(name).display_name(name))
        .title(name.to_uppercase())
        .manual("operator-host")
        .source(concat!("operator-host ", env!("CARGO_PKG_VERSION")));
    let mut text = Vec::new();
    page.render(&mut text)?;
    std::fs::write(folder.join(format!("{name}.1")), text)?;
    for subcommand in command.get_subcommands().filter(|it| !it.is_hide_set()) {
        write(folder, subcommand, format!("{name}-{}", subcommand.get_name()))?;
    }
    Ok(())
}
