//! `operator-host push`: pushes a plugin with its signature to a registry.

use std::path::PathBuf;

use anyhow::anyhow;

use super::plugin_file::Loaded;
use super::registry::{RegistryArgs, parse};
use super::{Failure, plugin_file, sign};
use operator_host_core::digest::Digest;
use operator_host_delivery::oci::artifact::{Artifact, Interfaces};
use operator_host_delivery::oci::push;
use operator_host_runtime::interfaces;

/// The options of `push`.
#[derive(Debug, clap::Args)]
pub struct Args {
    /// The plugin's WebAssembly file
    plugin: PathBuf,
    /// Where to push it: registry/repository:tag
    reference: String,
    /// Sign the plugin with this private key, as `openssl genpkey -algorithm ed25519` writes it. Without it, a
    /// signature that `sign` wrote beside the plugin's file is pushed unchanged
    #[arg(long, value_name = "FILE")]
    sign_key: Option<PathBuf>,
    #[command(flatten)]
    registry: RegistryArgs,
}

/// Pushes the plugin and prints its reference by digest.
///
/// # Errors
/// When the file is not a plugin, the key is invalid, or the registry does not take it.
pub async fn run(args: Args) -> Result<(), Failure> {
    let reference = parse(&args.reference)?;
    if reference.tag().is_none() {
        return Err(Failure::Usage(anyhow!(
            "{reference} has a digest: push to a tag, and this command prints the digest"
        )));
    }
    let key = args.sign_key.as_deref().map(sign::signing_key).transpose()?;
    let loaded = plugin_file::load(&args.plugin).await?;
    let signature = sign::signature(key.as_ref(), &args.plugin, &loaded)?;
    let signed = match signature {
        Some(_) => "with its signature",
        None => "without a signature",
    };
    let Loaded { bytes, plugin, .. } = loaded;
    let description = plugin.description();
    let component = interfaces(&bytes).map(|(imports, exports)| Interfaces { exports, imports });
    let artifact = Artifact::of_plugin(bytes, &description.name, &description.version, component.as_ref());
    let settings = args.registry.settings(&reference);
    let manifest: Digest = push::push(&reference, settings, artifact, signature).await?;
    eprintln!(
        "pushed {} {} to {reference}, {signed}",
        description.name, description.version
    );
    println!("{}", reference.at(manifest));
    Ok(())
}
