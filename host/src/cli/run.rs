//! The command `operator-host run`.

use std::net::SocketAddr;
use std::path::PathBuf;
use std::sync::Arc;

use tracing::{info, warn};

use super::{Failure, stop_on_signal};
use crate::operator::{self, Setup};
use crate::telemetry::Telemetry;
use crate::telemetry::log::{self, LogFormat};
use operator_host_cluster::client::Connection;
use operator_host_config::memory_limit::Memory;
use operator_host_config::trust::Keys;
use operator_host_config::{Config, parse_size};
use operator_host_instruments::health::server;
use operator_host_instruments::record::{Bounds, Recorder};
use operator_host_lease as leader;
use operator_host_runtime::compile_memory;

/// The options of `run`.
#[derive(Debug, clap::Args)]
pub struct Args {
    /// The configuration file
    #[arg(long, short, env = "OPERATOR_HOST_CONFIG", value_name = "FILE")]
    config: PathBuf,
    /// Directory for the compiled-plugin cache, which spares the next start the compilation [default: no cache]
    #[arg(long, env = "OPERATOR_HOST_CACHE_DIR", value_name = "FOLDER")]
    cache_dir: Option<PathBuf>,
    /// Maximum size of the cache directory, such as `1Gi`, and never more than half of its volume. The least recently
    /// used plugins are deleted first
    #[arg(
        long,
        env = "OPERATOR_HOST_CACHE_SIZE",
        default_value = "1Gi",
        value_name = "SIZE",
        value_parser = size
    )]
    cache_size: u64,
    /// Record every plugin call in this directory for `replay`, without the values of Secrets [default: no records]
    #[arg(long, env = "OPERATOR_HOST_RECORD", value_name = "FOLDER")]
    record: Option<PathBuf>,
    /// Maximum number of recorded calls. The oldest are deleted first
    #[arg(
        long,
        env = "OPERATOR_HOST_RECORD_CALLS",
        default_value = "1000",
        value_name = "NUMBER"
    )]
    record_calls: usize,
    /// Maximum size of all recorded calls, such as `256Mi`. The oldest are deleted first
    #[arg(
        long,
        env = "OPERATOR_HOST_RECORD_SIZE",
        default_value = "256Mi",
        value_name = "SIZE",
        value_parser = size
    )]
    record_size: u64,
    /// Directory for the last versions of each plugin, for a restart and for a rollback [default: `versions` in the
    /// directory of --cache-dir, or none]
    #[arg(long, env = "OPERATOR_HOST_STATE_DIR", value_name = "FOLDER")]
    state_dir: Option<PathBuf>,
    /// Memory of this process, such as `512Mi`. Half of it is for plugin calls [default: the memory of the container or
    /// of the machine]
    #[arg(long, env = "OPERATOR_HOST_MEMORY", value_name = "SIZE", value_parser = size)]
    memory: Option<u64>,
    /// Memory for compiling one plugin, such as `512Mi`; two are compiled at a time [default: a third of the memory, at
    /// most `1Gi`]
    #[arg(long, env = "OPERATOR_HOST_COMPILE_MEMORY", value_name = "SIZE", value_parser = size)]
    compile_memory: Option<u64>,
    /// File with the trusted public keys, as YAML or as one key in PEM. With it, the host accepts only signed plugins
    /// [default: no signature required]
    #[arg(long, env = "OPERATOR_HOST_SIGNATURE_KEYS", value_name = "FILE")]
    signature_keys: Option<PathBuf>,
    /// PEM file with certificate authorities. With it, the webhook accepts only clients whose certificate is signed by
    /// one of them [default: accept every client]
    #[arg(long, env = "OPERATOR_HOST_CLIENT_CA", value_name = "FILE")]
    client_ca: Option<PathBuf>,
    /// Log filter, unless the configuration sets one: a level, or targets with levels, such as
    /// `info,operator_host=debug,plugin=trace`
    #[arg(
        long,
        env = "OPERATOR_HOST_LOG",
        default_value = "info",
        value_name = "FILTER"
    )]
    log: String,
    /// Log format [default: `human` on a terminal, `json` elsewhere]
    #[arg(long, env = "OPERATOR_HOST_LOG_FORMAT", value_name = "FORMAT")]
    log_format: Option<LogFormat>,
    /// Address of /livez, /readyz, /healthz and /metrics. With port 0, the host takes a free port and logs it
    #[arg(
        long,
        env = "OPERATOR_HOST_HEALTH_ADDR",
        default_value = "0.0.0.0:8080",
        value_name = "ADDRESS"
    )]
    health_addr: SocketAddr,
    /// Address of a page that shows what the host does: a loopback address, such as `127.0.0.1:8090`. With port 0, the host
    /// takes a free port and logs it [default: no page]
    #[arg(long, env = "OPERATOR_HOST_UI_ADDR", value_name = "ADDRESS")]
    ui_addr: Option<SocketAddr>,
}

/// Runs the operator until SIGTERM or SIGINT.
///
/// # Errors
/// When the configuration is invalid, the cluster cannot be reached, or the WebAssembly engine does not start.
pub async fn run(args: Args) -> Result<(), Failure> {
    let config = Config::load(&args.config).map_err(Failure::usage)?;
    let keys = args
        .signature_keys
        .as_deref()
        .map(Keys::load)
        .transpose()
        .map_err(Failure::usage)?;
    if let Some(file) = &args.signature_keys {
        config.check_place_of_keys(file).map_err(Failure::usage)?;
    }
    let config = config.trusting(keys.as_ref());
    let bytes = |size| usize::try_from(size).unwrap_or(usize::MAX);
    let memory = Memory::of_process(args.memory.map(bytes));
    let compile_memory = args
        .compile_memory
        .map_or_else(|| compile_memory(memory.process), bytes);
    let fits = memory.check(&config);
    fits.map_err(|reason| Failure::Usage(anyhow::anyhow!("{}: {reason}", args.config.display())))?;
    let telemetry = Telemetry::start().map_err(Failure::Usage)?;
    let level = log::start(
        &args.log,
        config.log.as_deref(),
        args.log_format,
        telemetry.spans(),
        telemetry.records(),
    )
    .map_err(|error| Failure::Usage(anyhow::anyhow!("--log: {error}")))?;
    telemetry.log_exports();
    let mut instruments = telemetry.instruments.clone();
    instruments.recorder = match &args.record {
        Some(folder) => Some(Recorder::start(
            folder,
            Bounds {
                files: args.record_calls,
                bytes: args.record_size,
                waiting: memory.records(),
            },
        )?),
        None => None,
    };
    let recorder = instruments.recorder.clone();
    instruments.journal = args.ui_addr.map(|_| Arc::default());
    let stop = stop_on_signal()?;
    let identity = leader::identity();
    let agent = format!("operator-host/{} ({identity})", env!("CARGO_PKG_VERSION"));
    let connection = Arc::new(Connection::infer(Arc::clone(&instruments.metrics), &agent).await?);
    info!(
        version = env!("CARGO_PKG_VERSION"),
        controllers = config.controllers.len(),
        config = %args.config.display(),
        "starting operator-host"
    );
    memory.log_limits();
    server::start(
        args.health_addr,
        Arc::clone(&instruments.health),
        telemetry.registry.clone(),
    )
    .await?;
    if let Some(folder) = &args.cache_dir
        && let Err(error) = server::start_own(
            folder,
            Arc::clone(&instruments.health),
            telemetry.registry.clone(),
        )
    {
        warn!(folder = %folder.display(), %error,
            "cannot open the socket for `operator-host plugins`: that command will not show differences between versions");
    }
    let setup = Setup {
        file: args.config,
        keys: args.signature_keys,
        client_ca: args.client_ca,
        config,
        memory,
        compile_memory,
        cache_dir: args.cache_dir,
        cache_size: args.cache_size,
        state_dir: args.state_dir,
        level,
        identity,
        ui: args.ui_addr,
    };
    operator::run(setup, connection, instruments, stop).await?;
    if let Some(recorder) = recorder {
        recorder.finish().await;
    }
    telemetry.shut_down().await;
    info!("operator-host stopped");
    Ok(())
}

fn size(text: &str) -> Result<u64, String> {
    let size = parse_size(text).and_then(|size| u64::try_from(size).ok());
    size.ok_or_else(|| "expected bytes, such as `65536`, `512Ki` or `64Mi`".to_owned())
}
