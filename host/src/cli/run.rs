//! The command `operator-host run`.

use std::path::PathBuf;
use std::sync::Arc;

use tracing::{info, warn};

use super::Failure;
use super::process::{Process, ProcessArgs};
use crate::operator::{self, Options, Setup, size};
use operator_host_config::Config;
use operator_host_config::memory_limit::Memory;
use operator_host_config::trust::Keys;
use operator_host_instruments::health::server;
use operator_host_instruments::record::{Bounds, Recorder};
use operator_host_runtime::compile_memory;

/// The options of `run`.
#[derive(Debug, clap::Args)]
pub struct Args {
    #[command(flatten)]
    options: Options,
    /// Record every plugin call in this directory for `replay`, without the values of Secrets [default: no records]
    #[arg(long, env = "OPERATOR_HOST_RECORD", value_name = "FOLDER")]
    record: Option<PathBuf>,
    /// Maximum number of recorded calls. The oldest are deleted first
    #[arg(long, env = "OPERATOR_HOST_RECORD_CALLS")]
    #[arg(default_value = "1000", value_name = "NUMBER")]
    record_calls: usize,
    /// Maximum size of all recorded calls, such as `256Mi`. The oldest are deleted first
    #[arg(long, env = "OPERATOR_HOST_RECORD_SIZE")]
    #[arg(default_value = "256Mi", value_name = "SIZE", value_parser = size)]
    record_size: u64,
    /// Memory of this process, such as `512Mi`. Half of it is for plugin calls [default: the memory of the container or
    /// of the machine]
    #[arg(long, env = "OPERATOR_HOST_MEMORY", value_name = "SIZE", value_parser = size)]
    memory: Option<u64>,
    /// Memory for compiling one plugin, such as `512Mi`; two are compiled at a time [default: a third of the memory, at
    /// most `1Gi`]
    #[arg(long, env = "OPERATOR_HOST_COMPILE_MEMORY", value_name = "SIZE", value_parser = size)]
    compile_memory: Option<u64>,
    #[command(flatten)]
    process: ProcessArgs,
}

/// Runs the operator until SIGTERM or SIGINT.
///
/// # Errors
/// When the configuration is invalid, the cluster cannot be reached, or the WebAssembly engine does not start.
pub async fn run(args: Args) -> Result<(), Failure> {
    let options = args.options;
    let config = Config::load(&options.config).map_err(Failure::usage)?;
    let keys = options.signature_keys.as_deref().map(Keys::load).transpose();
    let keys = keys.map_err(Failure::usage)?;
    if let Some(file) = &options.signature_keys {
        config.check_place_of_keys(file).map_err(Failure::usage)?;
    }
    let config = config.trusting(keys.as_ref());
    let bytes = |size| usize::try_from(size).unwrap_or(usize::MAX);
    let memory = Memory::of_process(args.memory.map(bytes));
    let compile_memory = args
        .compile_memory
        .map_or_else(|| compile_memory(memory.process), bytes);
    let fits = memory.check(&config);
    fits.map_err(|reason| Failure::Usage(anyhow::anyhow!("{}: {reason}", options.config.display())))?;
    let process = Process::start("operator-host", &args.process, config.log.as_deref()).await?;
    let telemetry = process.telemetry;
    info!(
        version = env!("CARGO_PKG_VERSION"),
        controllers = config.controllers.len(),
        config = %options.config.display(),
        "starting operator-host"
    );
    memory.log_limits();
    let mut instruments = telemetry.instruments.clone();
    let bounds = Bounds {
        files: args.record_calls,
        bytes: args.record_size,
        waiting: memory.records(),
    };
    let recorder = args.record.map(|folder| Recorder::start(&folder, bounds));
    let recorder = recorder.transpose()?;
    instruments.recorder.clone_from(&recorder);
    instruments.journal = options.ui_addr.map(|_| Arc::default());
    if let Some(folder) = &options.cache_dir
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
        options,
        config,
        memory,
        compile_memory,
        level: process.level,
        identity: process.identity,
    };
    operator::run(setup, process.connection, instruments, process.stop).await?;
    if let Some(recorder) = recorder {
        recorder.finish().await;
    }
    telemetry.shut_down().await;
    info!("operator-host stopped");
    Ok(())
}
