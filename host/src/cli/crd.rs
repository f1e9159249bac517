//! `operator-host crd`.

use std::path::PathBuf;

use anyhow::{Context, anyhow};

use super::Failure;
use crate::plugin::{EngineOptions, Limits, Runtime};

/// The options of `crd`.
#[derive(Debug, clap::Args)]
pub struct Args {
    /// The plugin's WebAssembly file
    plugin: PathBuf,
}

/// Prints the definition as YAML.
///
/// # Errors
/// When the file is no plugin, or a plugin without a definition.
pub async fn run(args: Args) -> Result<(), Failure> {
    let file = &args.plugin;
    let bytes = tokio::fs::read(file)
        .await
        .with_context(|| format!("cannot read {}", file.display()));
    let bytes = bytes.map_err(Failure::Usage)?;
    let runtime = Runtime::new(EngineOptions {
        concurrency: 1,
        pooling: false,
    })?;
    let plugin = runtime
        .load(bytes, Limits::default())
        .await
        .with_context(|| file.display().to_string())?;
    let crd = plugin.description().crd.as_ref().ok_or_else(|| {
        anyhow!(
            "{}: the plugin describes no CustomResourceDefinition",
            file.display()
        )
    })?;
    print!("{}", serde_saphyr::to_string(crd)?);
    Ok(())
}
