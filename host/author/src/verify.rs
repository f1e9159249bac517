//! `operator-host verify`: verifies a plugin's signature.

use std::path::PathBuf;

use anyhow::{Context, anyhow};

use super::plugin_file::Loaded;
use super::registry::{RegistryArgs, reference};
use super::{Failure, plugin_file, sign};
use operator_host_config::trust::{Keys, Trust};
use operator_host_core::files;
use operator_host_delivery::acceptance;
use operator_host_delivery::statement::SIGNATURE_LIMIT;
use operator_host_runtime::{Limits, Plugin};

/// The options of `verify`.
#[derive(Debug, clap::Args)]
#[command(after_help = "Exit codes: 0 a host would accept the plugin, 1 it would not, 2 wrong usage.")]
pub struct Args {
    /// The plugin's WebAssembly file, or its reference in a registry (`oci://…`)
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
    #[command(flatten)]
    registry: RegistryArgs,
}

/// Verifies the signature and prints the signer and the statement.
///
/// # Errors
/// When a host would not accept the plugin; the error contains the reason.
pub async fn run(args: Args) -> Result<(), Failure> {
    let keys = Keys::load(&args.keys).map_err(Failure::usage)?;
    let keys = match &args.controller {
        Some(controller) => keys.of(controller),
        None => keys.all(),
    };
    let trust = Trust {
        sha256: None,
        keys: Some(keys),
    };
    let (plugin, signatures) = load(&args).await?;
    let description = plugin.description();
    let check = |signature: Option<&[u8]>| {
        acceptance::check(&trust, *plugin.digest(), &description.parent, signature)
    };
    let of_plugin = || args.plugin.display().to_string();
    // As a host does: the first signature that is accepted, otherwise the reason why the first one is not.
    let mut checked = signatures.iter().map(|signature| check(Some(signature)));
    let signed = match checked.find(Result::is_ok) {
        Some(signed) => signed,
        None => check(signatures.first().map(Vec::as_slice)),
    };
    let signed = signed.with_context(of_plugin)?;
    let signed = signed.ok_or_else(|| anyhow!("no signature was required"))?;
    signed.describes(description).with_context(of_plugin)?;
    // What cosign signed describes itself.
    let by = match signed.statement {
        Some(_) => "",
        None => " with cosign",
    };
    println!(
        "{}: signed by {}{by} as {} {} for {}, contract {}, {}",
        args.plugin.display(),
        signed.key,
        description.name,
        description.version,
        description.parent,
        description.contract,
        plugin.digest(),
    );
    Ok(())
}

/// Reads or pulls the plugin and its signatures.
async fn load(args: &Args) -> Result<(Plugin, Vec<Vec<u8>>), Failure> {
    if let Some(reference) = reference(&args.plugin)? {
        let settings = args.registry.settings(&reference);
        let limits = Limits::default();
        let (bytes, signatures) = plugin_file::pull(&reference, &settings, limits.module, true).await?;
        let plugin = plugin_file::compile(bytes.to_vec(), limits, plugin_file::memory()).await?;
        let plugin = plugin.with_context(|| args.plugin.display().to_string())?;
        return Ok((plugin, signatures.iter().map(|it| it.to_vec()).collect()));
    }
    let Loaded { name, plugin, .. } = plugin_file::load(&args.plugin).await?;
    let path = args.signature.clone();
    let path = path.unwrap_or_else(|| sign::place(&args.plugin, &name));
    let signature =
        files::read(&path, SIGNATURE_LIMIT).with_context(|| format!("cannot read {}", path.display()))?;
    Ok((plugin, vec![signature]))
}
