//! `operator-host run`.

use std::net::SocketAddr;
use std::path::PathBuf;
use std::sync::Arc;

use tokio::signal::unix::{SignalKind, signal};
use tokio_util::sync::CancellationToken;
use tracing::{info, warn};

use super::Failure;
use crate::cluster::client::Connection;
use crate::config::trust::Keys;
use crate::config::{Config, ConfigError, parse_size};
use crate::health::server;
use crate::leader;
use crate::memory::Memory;
use crate::operator::{self, Setup};
use crate::record::{Bounds, Keeper};
use crate::telemetry::Telemetry;
use crate::telemetry::log::{self, LogFormat};

/// The options of `run`.
#[derive(Debug, clap::Args)]
pub struct Args {
    /// The configuration file
    #[arg(long, short, env = "OPERATOR_HOST_CONFIG", value_name = "FILE")]
    config: PathBuf,
    /// Where to keep compiled plugins, so that the next start compiles nothing; left out: nowhere
    #[arg(long, env = "OPERATOR_HOST_CACHE_DIR", value_name = "FOLDER")]
    cache_dir: Option<PathBuf>,
    /// How much its folder may take, such as `1Gi`; what was not used for the longest time goes first. At most half of
    /// the volume
    #[arg(
        long,
        env = "OPERATOR_HOST_CACHE_SIZE",
        default_value = "1Gi",
        value_name = "SIZE",
        value_parser = size
    )]
    cache_size: u64,
    /// Keep every plugin call in this folder, for `replay`, without the values of Secrets; left out: none
    #[arg(long, env = "OPERATOR_HOST_RECORD", value_name = "FOLDER")]
    record: Option<PathBuf>,
    /// How many calls to keep; the oldest go first
    #[arg(
        long,
        env = "OPERATOR_HOST_RECORD_CALLS",
        default_value = "1000",
        value_name = "NUMBER"
    )]
    record_calls: usize,
    /// How much disk they may take in all, such as `256Mi`; the oldest go first
    #[arg(
        long,
        env = "OPERATOR_HOST_RECORD_SIZE",
        default_value = "256Mi",
        value_name = "SIZE",
        value_parser = size
    )]
    record_size: u64,
    /// Where to keep the last versions of each plugin, to go on with after a restart and to go back to; left out: in
    /// `versions` in the folder of --cache-dir, or nowhere
    #[arg(long, env = "OPERATOR_HOST_STATE_DIR", value_name = "FOLDER")]
    state_dir: Option<PathBuf>,
    /// How much memory this process may have, such as `512Mi`; left out: what its container or the machine has. Half of it
    /// is for plugin calls
    #[arg(long, env = "OPERATOR_HOST_MEMORY", value_name = "SIZE", value_parser = size)]
    memory: Option<u64>,
    /// The public keys whose signatures count, as YAML or as one key in PEM: only signed plugins are taken. Left out:
    /// signatures are not asked for
    #[arg(long, env = "OPERATOR_HOST_SIGNATURE_KEYS", value_name = "FILE")]
    signature_keys: Option<PathBuf>,
    /// The authorities of which one must have signed the certificate of whoever calls the webhook, PEM; left out: the
    /// webhook answers everybody
    #[arg(long, env = "OPERATOR_HOST_CLIENT_CA", value_name = "FILE")]
    client_ca: Option<PathBuf>,
    /// What to log where the configuration does not say it: a level, or targets with levels as in
    /// `info,operator_host=debug,plugin=trace`
    #[arg(
        long,
        env = "OPERATOR_HOST_LOG",
        default_value = "info",
        value_name = "FILTER"
    )]
    log: String,
    /// How to log; the default is `human` on a terminal and `json` elsewhere
    #[arg(long, env = "OPERATOR_HOST_LOG_FORMAT", value_name = "FORMAT")]
    log_format: Option<LogFormat>,
    /// Where to serve /livez, /readyz, /healthz and /metrics; port 0 takes a free one and logs it
    #[arg(
        long,
        env = "OPERATOR_HOST_HEALTH_ADDR",
        default_value = "0.0.0.0:8080",
        value_name = "ADDRESS"
    )]
    health_addr: SocketAddr,
}

/// Runs until SIGTERM or SIGINT.
///
/// # Errors
/// Wrong configuration, no cluster, no engine.
pub async fn run(args: Args) -> Result<(), Failure> {
    let usage = |error: ConfigError| Failure::Usage(error.into());
    let config = Config::load(&args.config).map_err(usage)?;
    let keys = args
        .signature_keys
        .as_deref()
        .map(Keys::load)
        .transpose()
        .map_err(usage)?;
    if let Some(file) = &args.signature_keys {
        config.check_place_of_keys(file).map_err(usage)?;
    }
    let config = config.trusting(keys.as_ref());
    let given = args
        .memory
        .map(|size| usize::try_from(size).unwrap_or(usize::MAX));
    let memory = Memory::of_process(given);
    let fits = memory.check(&config);
    fits.map_err(|reason| Failure::Usage(anyhow::anyhow!("{}: {reason}", args.config.display())))?;
    let telemetry = Telemetry::start().map_err(|error| Failure::Usage(error.into()))?;
    let level = log::start(
        &args.log,
        config.log.as_deref(),
        args.log_format,
        telemetry.spans(),
    )
    .map_err(|error| Failure::Usage(error.into()))?;
    telemetry.say();
    let mut instruments = telemetry.instruments();
    let keeper = match &args.record {
        Some(folder) => Some(Keeper::start(
            folder,
            Bounds {
                files: args.record_calls,
                bytes: args.record_size,
            },
        )?),
        None => None,
    };
    instruments.recorder = keeper.as_ref().map(Keeper::recorder);
    let stop = stop_on_signal()?;
    let identity = leader::identity();
    let agent = format!("operator-host/{} ({identity})", env!("CARGO_PKG_VERSION"));
    let connection = Arc::new(Connection::infer(Arc::clone(&instruments.metrics), &agent).await?);
    info!(
        version = env!("CARGO_PKG_VERSION"),
        controllers = config.controllers.len(),
        config = %args.config.display(),
        "operator-host starts"
    );
    memory.say();
    server::start(
        args.health_addr,
        Arc::clone(&instruments.health),
        telemetry.registry(),
    )
    .await?;
    if let Some(folder) = &args.cache_dir
        && let Err(error) = server::start_own(folder, Arc::clone(&instruments.health), telemetry.registry())
    {
        warn!(folder = %folder.display(), %error,
            "there is no socket for `operator-host plugins`: it shows no differences between versions");
    }
    let setup = Setup {
        file: args.config,
        keys: args.signature_keys,
        client_ca: args.client_ca,
        config,
        memory,
        cache_dir: args.cache_dir,
        cache_size: args.cache_size,
        state_dir: args.state_dir,
        level,
        identity,
    };
    operator::run(setup, connection, instruments, stop).await?;
    if let Some(keeper) = keeper {
        keeper.finish().await;
    }
    telemetry.shut_down().await;
    info!("operator-host has stopped");
    Ok(())
}

fn size(text: &str) -> Result<u64, String> {
    let size = parse_size(text).and_then(|size| u64::try_from(size).ok());
    size.ok_or_else(|| "expected bytes, such as `65536`, `512Ki` or `64Mi`".to_owned())
}

fn stop_on_signal() -> std::io::Result<CancellationToken> {
    let stop = CancellationToken::new();
    let (mut terminate, mut interrupt) = (signal(SignalKind::terminate())?, signal(SignalKind::interrupt())?);
    let on_signal = stop.clone();
    tokio::spawn(async move {
        tokio::select! { _ = terminate.recv() => {}, _ = interrupt.recv() => {} }
        on_signal.cancel();
        // Whoever asks twice does not want to wait.
        tokio::select! { _ = terminate.recv() => {}, _ = interrupt.recv() => {} }
        std::process::exit(1);
    });
    Ok(stop)
}
