//! `operator-host run`.

use std::io::IsTerminal;
use std::path::PathBuf;

use clap::ValueEnum;
use tokio::signal::unix::{SignalKind, signal};
use tokio_util::sync::CancellationToken;
use tracing::info;
use tracing_subscriber::EnvFilter;

use super::Failure;
use crate::config::Config;
use crate::{client, operator};

/// The options of `run`.
#[derive(Debug, clap::Args)]
pub struct Args {
    /// The configuration file
    #[arg(long, short, env = "OPERATOR_HOST_CONFIG", value_name = "FILE")]
    config: PathBuf,
    /// What to log: a level, or targets with levels as in `info,operator_host=debug,plugin=trace`
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
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
enum LogFormat {
    /// For people
    Human,
    /// One JSON object a line
    Json,
}

/// Runs until SIGTERM or SIGINT.
///
/// # Errors
/// Wrong configuration, no cluster, no engine.
pub async fn run(args: Args) -> Result<(), Failure> {
    let config = Config::load(&args.config).map_err(|error| Failure::Usage(error.into()))?;
    start_log(&args)?;
    let stop = stop_on_signal()?;
    let client = client::connect().await?;
    info!(
        version = env!("CARGO_PKG_VERSION"),
        controllers = config.controllers.len(),
        config = %args.config.display(),
        "operator-host starts"
    );
    operator::run(config, client, stop).await?;
    info!("operator-host has stopped");
    Ok(())
}

fn start_log(args: &Args) -> Result<(), Failure> {
    // kube logs each try of a watch that is refused, and each watch that a server's end cuts off; this host says it
    // once, in its own words.
    let filter = EnvFilter::try_new(format!(
        "{},kube_runtime::watcher=error,kube_client::client=error",
        args.log
    ))
    .map_err(|error| Failure::Usage(anyhow::anyhow!("--log {:?}: {error}", args.log)))?;
    let terminal = std::io::stderr().is_terminal();
    let format = args.log_format.unwrap_or(if terminal {
        LogFormat::Human
    } else {
        LogFormat::Json
    });
    let log = tracing_subscriber::fmt()
        .with_env_filter(filter)
        .with_writer(std::io::stderr);
    match format {
        LogFormat::Human => log
            .with_ansi(terminal && std::env::var_os("NO_COLOR").is_none())
            .init(),
        LogFormat::Json => log.json().flatten_event(true).with_span_list(false).init(),
    }
    Ok(())
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
