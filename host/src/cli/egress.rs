//! The command `operator-host egress`.

use std::path::PathBuf;

use tracing::info;

use super::Failure;
use super::process::{Process, ProcessArgs};
use operator_host_config::endpoints::EndpointsConfig;
use operator_host_egress::EgressError;

/// The options of `egress`.
#[derive(Debug, clap::Args)]
pub struct Args {
    /// The file of endpoints
    #[arg(long, short, env = "OPERATOR_HOST_ENDPOINTS", value_name = "FILE")]
    endpoints: PathBuf,
    #[command(flatten)]
    process: ProcessArgs,
}

/// Carries out Externals until SIGTERM or SIGINT.
///
/// # Errors
/// When the file of endpoints is invalid, or the cluster cannot be reached.
pub async fn run(args: Args) -> Result<(), Failure> {
    let config = EndpointsConfig::load(&args.endpoints).map_err(Failure::usage)?;
    let log = config.log.as_deref();
    let process = Process::start("operator-host-egress", &args.process, log).await?;
    let telemetry = process.telemetry;
    info!(
        version = env!("CARGO_PKG_VERSION"),
        endpoints = config.endpoints.len(),
        file = %args.endpoints.display(),
        "starting operator-host egress"
    );
    let (file, instruments) = (args.endpoints, telemetry.instruments.clone());
    let ran = operator_host_egress::run(
        file,
        &config,
        &process.identity,
        process.connection,
        instruments,
        process.stop,
    )
    .await;
    ran.map_err(|error| match error {
        EgressError::File(_) => Failure::usage(error),
        EgressError::Client(error) => error.into(),
    })?;
    telemetry.shut_down().await;
    info!("operator-host egress stopped");
    Ok(())
}
