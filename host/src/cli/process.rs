//! What `run` and `egress` share: the options of a process that stays, and its start.

use std::net::SocketAddr;
use std::sync::Arc;

use tokio::signal::unix::{SignalKind, signal};
use tokio_util::sync::CancellationToken;

use super::Failure;
use crate::freed_memory;
use crate::telemetry::Telemetry;
use crate::telemetry::log::{self, Level, LogFormat};
use operator_host_cluster::client::Connection;
use operator_host_instruments::health::{Unreached, server};
use operator_host_lease as leader;

/// The options of such a process.
#[derive(Debug, clap::Args)]
pub(super) struct ProcessArgs {
    /// Log filter, unless the file sets one: a level, or targets with levels, such as
    /// `info,operator_host=debug,plugin=trace`
    #[arg(long, env = "OPERATOR_HOST_LOG")]
    #[arg(default_value = "info", value_name = "FILTER")]
    log: String,
    /// Log format [default: `human` on a terminal, `json` elsewhere]
    #[arg(long, env = "OPERATOR_HOST_LOG_FORMAT", value_name = "FORMAT")]
    log_format: Option<LogFormat>,
    /// Address of /livez, /readyz, /healthz and /metrics. With port 0, the process takes a free port and logs it
    #[arg(long, env = "OPERATOR_HOST_HEALTH_ADDR")]
    #[arg(default_value = "0.0.0.0:8080", value_name = "ADDRESS")]
    health_addr: SocketAddr,
}

/// A process with its log, its health port and its connection to the API server.
pub(super) struct Process {
    pub telemetry: Telemetry,
    /// Changes the log filter.
    pub level: Level,
    pub connection: Arc<Connection>,
    /// The unique identity of this process.
    pub identity: String,
    /// What SIGTERM or Ctrl-C cancels.
    pub stop: CancellationToken,
}

impl Process {
    /// Starts it. `log` is the filter that its file sets.
    pub(super) async fn start(program: &str, args: &ProcessArgs, log: Option<&str>) -> Result<Self, Failure> {
        let telemetry = Telemetry::start().map_err(Failure::Usage)?;
        let (spans, records) = (telemetry.spans(), telemetry.records());
        let level = log::start(&args.log, log, args.log_format, spans, records)
            .map_err(|error| Failure::Usage(anyhow::anyhow!("--log: {error}")))?;
        telemetry.log_exports();
        let stop = stop_on_signal()?;
        let identity = leader::identity();
        let agent = format!("{program}/{} ({identity})", env!("CARGO_PKG_VERSION"));
        let metrics = Arc::clone(&telemetry.instruments.metrics);
        let connection = Arc::new(Connection::infer(metrics, &agent).await?);
        let (reach, health) = (Arc::clone(&connection), &telemetry.instruments.health);
        health.ask_for_reach(move || {
            let unreached = reach.unreached()?;
            Some(Unreached {
                lasting: unreached.since.elapsed(),
                why: unreached.why,
                may_restart_help: !unreached.is_answered,
            })
        });
        tokio::spawn(freed_memory::keep_returning());
        server::start(args.health_addr, Arc::clone(health), telemetry.registry.clone()).await?;
        Ok(Self {
            telemetry,
            level,
            connection,
            identity,
            stop,
        })
    }
}

/// Returns what SIGTERM or Ctrl-C cancels. A second one ends the process.
fn stop_on_signal() -> std::io::Result<CancellationToken> {
    let stop = CancellationToken::new();
    let (mut terminate, mut interrupt) = (signal(SignalKind::terminate())?, signal(SignalKind::interrupt())?);
    let on_signal = stop.clone();
    tokio::spawn(async move {
        tokio::select! { _ = terminate.recv() => {}, _ = interrupt.recv() => {} }
        on_signal.cancel();
        // A second signal ends the process at once.
        tokio::select! { _ = terminate.recv() => {}, _ = interrupt.recv() => {} }
        std::process::exit(1);
    });
    Ok(stop)
}
