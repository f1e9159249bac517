//! The plugin that a command line names.

use std::io::IsTerminal;
use std::path::Path;

use anyhow::{Context, anyhow};
use tracing_subscriber::EnvFilter;

use super::Failure;
use crate::plugin::pack::Compression;
use crate::plugin::source;
use crate::plugin::{EngineOptions, Limits, LoadError, Plugin, Runtime};

/// Reads a plugin's file, which may be compressed: its name and its bytes without that.
///
/// # Errors
/// When there is no such file, or it cannot be unpacked.
pub(super) fn read(file: &Path) -> Result<(String, Vec<u8>), Failure> {
    let packed = std::fs::read(file).with_context(|| format!("cannot read {}", file.display()));
    let compression = Compression::of(file);
    let bytes = packed.and_then(|packed| {
        if compression == Compression::None {
            return Ok(packed);
        }
        let unpacked = compression.unpack(&packed, Limits::default().module);
        unpacked.with_context(|| file.display().to_string())
    });
    let name = file.file_name().unwrap_or_default().to_string_lossy();
    let name = name.strip_suffix(compression.suffix()).unwrap_or(&name);
    Ok((name.to_owned(), bytes.map_err(Failure::Usage)?))
}

/// Loads a plugin that a configuration names, in whatever form its file is.
///
/// # Errors
/// When it cannot be read or is no plugin.
pub(super) async fn load_configured(file: &Path) -> Result<Plugin, Failure> {
    let bytes = source::read_once(file, Limits::default().module).await;
    let bytes = bytes.map_err(|reason| Failure::Usage(anyhow!("{}: {reason}", file.display())))?;
    let loaded = runtime()?.load(bytes.to_vec(), Limits::default()).await;
    Ok(loaded.with_context(|| file.display().to_string())?)
}

fn runtime() -> Result<Runtime, Failure> {
    Ok(Runtime::new(EngineOptions {
        concurrency: 1,
        pooling: false,
    })?)
}

/// Reads and loads a plugin; the inner error is the file's fault.
///
/// # Errors
/// When there is no such file, or no engine.
pub(super) async fn load(file: &Path) -> Result<Result<Plugin, LoadError>, Failure> {
    load_with(file, Limits::default()).await
}

/// As [`load`], with the caps that a configuration gives.
///
/// # Errors
/// As [`load`].
pub(super) async fn load_with(file: &Path, limits: Limits) -> Result<Result<Plugin, LoadError>, Failure> {
    let (_, bytes) = read(file)?;
    Ok(runtime()?.load(bytes, limits).await)
}

/// Shows what plugins log, on standard error.
pub(super) fn show_log(level: &str) -> Result<(), Failure> {
    let filter = EnvFilter::try_new(format!("{}={level}", crate::plugin::LOG_TARGET))
        .map_err(|error| Failure::Usage(anyhow::anyhow!("--log {level:?}: {error}")))?;
    tracing_subscriber::fmt()
        .with_env_filter(filter)
        .with_writer(std::io::stderr)
        .without_time()
        .with_ansi(std::io::stderr().is_terminal() && colour())
        .init();
    Ok(())
}

/// Whether the user lets us use colour at all.
pub(super) fn colour() -> bool {
    std::env::var_os("NO_COLOR").is_none_or(|value| value.is_empty())
}
