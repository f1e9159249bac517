//! `operator-host sign`: signs plugins.

use std::path::{Path, PathBuf};

use anyhow::{Context, anyhow};

use super::plugin_file::Loaded;
use super::{Failure, plugin_file};
use operator_host_config::keys::SigningKey;
use operator_host_core::files;
use operator_host_delivery::pack::SIGNATURE_SUFFIX;
use operator_host_delivery::statement::{Envelope, SIGNATURE_LIMIT, Statement};
use operator_host_runtime::Plugin;

/// Bytes that a key's file may have.
const KEY_LIMIT: usize = 16 << 10;

/// The options of `sign`.
#[derive(Debug, clap::Args)]
pub struct Args {
    /// The plugins' WebAssembly files
    #[arg(required = true)]
    plugins: Vec<PathBuf>,
    /// The private key, as `openssl genpkey -algorithm ed25519` writes it
    #[arg(long, value_name = "FILE")]
    key: PathBuf,
}

/// Writes the signature of each plugin beside its file, as `<plugin>.sig`.
///
/// # Errors
/// When a file is not a plugin, its version cannot be compared, or the key is invalid.
pub async fn run(args: Args) -> Result<(), Failure> {
    let key = signing_key(&args.key)?;
    for file in &args.plugins {
        let Loaded { name, plugin, .. } = plugin_file::load(file).await?;
        let statement = statement(&plugin)?;
        let path = place(file, &name);
        std::fs::write(&path, statement.sign(&key))
            .with_context(|| format!("cannot write {}", path.display()))?;
        let (path, digest) = (path.display(), statement.digest);
        println!(
            "{path}: signed {} {}, {digest}",
            statement.name, statement.version
        );
    }
    Ok(())
}

fn statement(plugin: &Plugin) -> Result<Statement, Failure> {
    Statement::of(plugin.description(), *plugin.digest())
        .map_err(|reason| Failure::Usage(anyhow!("the plugin cannot be signed: its version {reason}")))
}

/// Reads a private key.
///
/// # Errors
/// When the file does not contain one.
pub fn signing_key(file: &Path) -> Result<SigningKey, Failure> {
    let place = file.display();
    let pem = files::read(file, KEY_LIMIT).with_context(|| format!("cannot read {place}"));
    let key = SigningKey::parse(&pem.map_err(Failure::Usage)?);
    key.ok_or_else(|| {
        Failure::Usage(anyhow!(
            "{place} is not a private ed25519 key in PEM: create one with `openssl genpkey -algorithm ed25519`"
        ))
    })
}

/// Signs a plugin with this key. Without one, reads the signature beside its file, if there is one.
///
/// # Errors
/// When the version cannot be signed, or the file is not a signature or signs another version.
pub fn signature(
    key: Option<&SigningKey>,
    file: &Path,
    Loaded { name, plugin, .. }: &Loaded,
) -> Result<Option<Vec<u8>>, Failure> {
    if let Some(key) = key {
        return Ok(Some(statement(plugin)?.sign(key)));
    }
    let (path, digest) = (place(file, name), plugin.digest());
    let wrong = |error: anyhow::Error| Failure::Usage(error.context(path.display().to_string()));
    let text = match files::read(&path, SIGNATURE_LIMIT) {
        Ok(text) => text,
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => return Ok(None),
        Err(error) => return Err(wrong(error.into())),
    };
    let statement = Envelope::parse(&text).and_then(|envelope| envelope.statement());
    let statement = statement.map_err(|error| wrong(error.into()))?;
    if statement.digest != *digest {
        return Err(wrong(anyhow!(
            "the signature is for {}, but the plugin is {digest}: sign the plugin again, or delete the signature",
            statement.digest
        )));
    }
    Ok(Some(text))
}

/// Returns the path of a plugin's signature. `name` is the plugin's name without the suffix of its compression.
pub fn place(file: &Path, name: &str) -> PathBuf {
    file.with_file_name(format!("{name}{SIGNATURE_SUFFIX}"))
}
