//! The plugin that a command line names.

use std::io::IsTerminal;
use std::path::Path;

use anyhow::Context;
use tracing_subscriber::EnvFilter;

use super::Failure;
use crate::plugin::{EngineOptions, Limits, LoadError, Plugin, Runtime};

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
    let bytes = tokio::fs::read(file)
        .await
        .with_context(|| format!("cannot read {}", file.display()));
    let bytes = bytes.map_err(Failure::Usage)?;
    let runtime = Runtime::new(EngineOptions {
        concurrency: 1,
        pooling: false,
    })?;
    Ok(runtime.load(bytes, limits).await)
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
