//! `operator-host crd`: prints a plugin's CustomResourceDefinition.

use std::path::PathBuf;

use anyhow::{Context, anyhow};

use super::{Failure, plugin_file};

/// The options of `crd`.
#[derive(Debug, clap::Args)]
pub struct Args {
    /// The plugin's WebAssembly file
    plugin: PathBuf,
}

/// Prints the definition as YAML.
///
/// # Errors
/// When the file is not a plugin, or the plugin contains no definition.
pub async fn run(args: Args) -> Result<(), Failure> {
    let file = &args.plugin;
    let plugin = plugin_file::load(file)
        .await?
        .with_context(|| file.display().to_string())?;
    let crd = plugin.description().crd.as_ref().ok_or_else(|| {
        anyhow!(
            "{}: the plugin contains no CustomResourceDefinition",
            file.display()
        )
    })?;
    print!("{}", serde_saphyr::to_string(crd)?);
    Ok(())
}
