//! The command `operator-host egress`.

use std::net::SocketAddr;
use std::path::PathBuf;
use std::sync::Arc;

use tracing::info;

use super::{Failure, stop_on_signal};
use crate::telemetry::Telemetry;
use crate::telemetry::log::{self, LogFormat};
use operator_host_cluster::client::Connection;
use operator_host_config::endpoints::EndpointsConfig;
use operator_host_egress::{EgressError, Setup};
use operator_host_instruments::health::server;
use operator_host_lease as leader;

/// The options of `egress`.
#[derive(Debug, clap::Args)]
pub struct Args {
    /// The file of endpoints
    #[arg(long, short, env = "OPERATOR_HOST_ENDPOINTS", value_name = "FILE")]
    endpoints: PathBuf,
    /// Log filter, unless the file sets one: a level, or targets with levels
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
    /// Address of /livez, /readyz, /healthz and /metrics. With port 0, the process takes a free port and logs it
    #[arg(
        long,
        env = "OPERATOR_HOST_HEALTH_ADDR",
        default_value = "0.0.0.0:8080",
        value_name = "ADDRESS"
    )]
    health_addr: SocketAddr,
}

/// Carries out Externals until SIGTERM or SIGINT.
///
/// # Errors
/// When the file of endpoints is invalid, or the cluster cannot be reached.
pub async fn run(args: Args) -> Result<(), Failure> {
    let config = EndpointsConfig::load(&args.endpoints).map_err(Failure::usage)?;
    let telemetry = Telemetry::start().map_err(Failure::Usage)?;
    log::start(
        &args.log,
        config.log.as_deref(),
        args.log_format,
        telemetry.spans(),
        telemetry.records(),
    )
    .map_err(|error| Failure::Usage(anyhow::anyhow!("--log: {error}")))?;
    telemetry.log_exports();
    let instruments = telemetry.instruments.clone();
    let stop = stop_on_signal()?;
    let identity = leader::identity();
    let agent = format!("operator-host-egress/{} ({identity})", env!("CARGO_PKG_VERSION"));
    let connection = Arc::new(Connection::infer(Arc::clone(&instruments.metrics), &agent).await?);
    info!(
        version = env!("CARGO_PKG_VERSION"),
        endpoints = config.endpoints.len(),
        file = %args.endpoints.display(),
        "starting operator-host egress"
    );
    server::start(
        args.health_addr,
        Arc::clone(&instruments.health),
        telemetry.registry.clone(),
    )
    .await?;
    let setup = Setup {
        file: args.endpoints,
        config,
        identity,
    };
    let ran = operator_host_egress::run(setup, connection, instruments, stop).await;
    ran.map_err(|error| match error {
        EgressError::File(_) => Failure::usage(error),
        EgressError::Client(error) => error.into(),
    })?;
    telemetry.shut_down().await;
    info!("operator-host egress stopped");
    Ok(())
}
