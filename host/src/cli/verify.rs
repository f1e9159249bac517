//! `operator-host verify`: verifies a plugin's signature.

use std::path::PathBuf;

use anyhow::{Context, anyhow};

use super::{Failure, plugin_file, sign};
use crate::config::trust::Keys;
use crate::files;
use crate::plugin::acceptance::Trust;
use crate::plugin::statement::SIGNATURE_LIMIT;

/// The options of `verify`.
#[derive(Debug, clap::Args)]
#[command(after_help = "Exit codes: 0 a host would accept the plugin, 1 it would not, 2 wrong usage.")]
pub struct Args {
    /// The plugin's WebAssembly file
    plugin: PathBuf,
    /// The public keys, in the format of `run --signature-keys`
    #[arg(long, env = "OPERATOR_HOST_SIGNATURE_KEYS", value_name = "FILE")]
    keys: PathBuf,
    /// Accept only the keys that sign for this controller
    #[arg(long, value_name = "NAME")]
    controller: Option<String>,
    /// The signature file [default: `<plugin>.sig` beside the plugin]
    #[arg(long, value_name = "FILE")]
    signature: Option<PathBuf>,
}

/// Verifies the signature and prints the signer and the statement.
///
/// # Errors
/// When a host would not accept the plugin; the error contains the reason.
pub async fn run(args: Args) -> Result<(), Failure> {
    let keys = Keys::load(&args.keys).map_err(|error| Failure::Usage(error.into()))?;
    let (name, _) = plugin_file::read(&args.plugin)?;
    let plugin = plugin_file::load(&args.plugin)
        .await?
        .with_context(|| args.plugin.display().to_string())?;
    let path = args.signature.unwrap_or_else(|| sign::place(&args.plugin, &name));
    let signature =
        files::read(&path, SIGNATURE_LIMIT).with_context(|| format!("cannot read {}", path.display()))?;
    let keys = match &args.controller {
        Some(controller) => keys.of(controller),
        None => keys.all(),
    };
    let trust = Trust {
        sha256: None,
        keys: Some(keys),
    };
    let description = plugin.description();
    let signed = trust
        .check(*plugin.digest(), &description.parent, Some(&signature))
        .with_context(|| args.plugin.display().to_string())?;
    let signed = signed.ok_or_else(|| anyhow!("no signature was required"))?;
    signed
        .describes(description)
        .with_context(|| args.plugin.display().to_string())?;
    let statement = &signed.statement;
    println!(
        "{}: signed by {} as {} {} for {}, contract {}, {}",
        args.plugin.display(),
        signed.key,
        statement.name,
        statement.version,
        statement.parent,
        statement.contract,
        statement.digest,
    );
    Ok(())
}
