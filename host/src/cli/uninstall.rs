//! `operator-host uninstall`: removes the host's finalizers.

use std::path::PathBuf;
use std::process::ExitCode;
use std::sync::Arc;

use anyhow::anyhow;
use kube::ResourceExt as _;

use super::Failure;
use crate::uninstall::{Left, Uninstall};
use operator_host_cluster::client::{self, Writer};
use operator_host_cluster::discovery::Discovery;
use operator_host_config::{Config, ControllerConfig};
use operator_host_telemetry::metrics::Metrics;

/// The options of `uninstall`.
#[derive(Debug, clap::Args)]
#[command(after_help = "\
Stop the host first: a running host restores its finalizers. Requires the permissions to list and patch parents, to \
patch their status, to get the Lease unless `--force` is given and, with `ceilings`, to list and patch Controllers. Exit codes: 0 released, 1 something could not be released, 2 wrong usage or configuration.")]
pub struct Args {
    /// The configuration that the host ran with; the plugin files need not exist
    #[arg(long, short, env = "OPERATOR_HOST_CONFIG", value_name = "FILE")]
    config: PathBuf,
    /// The namespace that the host ran in, which contains its Lease
    #[arg(long, short, env = "OPERATOR_HOST_NAMESPACE", default_value = "operator-host")]
    namespace: String,
    /// Release the parents even if a Lease shows a running host
    #[arg(long)]
    force: bool,
    /// Print what would be released without changing anything
    #[arg(long)]
    dry_run: bool,
}

/// Releases every parent of every controller and reports what remains.
///
/// # Errors
/// When the configuration is invalid or the cluster cannot be reached.
pub async fn run(args: Args) -> Result<ExitCode, Failure> {
    let config = Config::load(&args.config).map_err(Failure::usage)?;
    let metrics = Arc::new(Metrics::unread());
    let client = client::connect(Arc::clone(&metrics)).await?;
    let uninstall = Uninstall {
        kinds: Discovery::new(client.clone(), metrics),
        writer: Writer::from(client.clone()),
        client,
        config: &config,
        dry_run: args.dry_run,
    };
    if !args.force {
        let holder = uninstall.held_by(&args.namespace).await?;
        if let Some(holder) = holder {
            let running = format!(
                "a running host would restore its finalizers: {holder}; stop it \
                 first (kubectl scale deployment operator-host -n {} --replicas=0), or pass --force",
                args.namespace
            );
            if !args.dry_run {
                return Err(Failure::Other(anyhow!(running)));
            }
            eprintln!("operator-host: warning: {running}");
        }
    }
    let [released, removed] = match args.dry_run {
        true => ["would be released", "would be removed"],
        false => ["released", "were removed"],
    };
    let mut code = ExitCode::SUCCESS;
    // The parents of Controllers of the cluster are released in the same way as those of the file.
    let objects = uninstall.objects().await.unwrap_or_else(|error| {
        eprintln!("operator-host: {error}");
        code = ExitCode::FAILURE;
        Vec::new()
    });
    let mut controllers = config.controllers.clone();
    let mut known = Vec::new();
    for object in objects {
        let name = object.name_any();
        let spec = object.data["spec"].as_object().cloned().unwrap_or_default();
        match config.object(&name, &object.uid().unwrap_or_default(), &spec) {
            Ok(read) => {
                controllers.extend(read.configs);
                known.push(object);
            }
            Err(error) => {
                eprintln!(
                    "operator-host: the Controller {name} cannot be read, so nothing of it is released: {error}"
                );
                code = ExitCode::FAILURE;
            }
        }
    }
    for controller in &controllers {
        let left = uninstall.controller(controller).await;
        print(controller, &left, released, removed);
        for error in &left.errors {
            eprintln!("operator-host: {error}");
            code = ExitCode::FAILURE;
            known.retain(|object| object.name_any() != controller.name);
        }
    }
    for object in known {
        let name = object.name_any();
        match uninstall.object(&object).await {
            Ok(_) => {
                println!(
                    "the Controller {name} {released}: delete it with kubectl, or keep it for the next host"
                );
            }
            Err(error) => {
                eprintln!("operator-host: {error}");
                code = ExitCode::FAILURE;
            }
        }
    }
    Ok(code)
}

fn print(controller: &ControllerConfig, left: &Left, released: &str, removed: &str) {
    let kind = &controller.parent;
    println!("{}:", controller.name);
    if !left.served {
        println!("  the cluster does not serve {kind}: nothing to release");
    }
    for held in &left.held {
        let goes = match held.terminating {
            true => ": it is being deleted and skips its cleanup",
            false => "",
        };
        println!("  {kind} {} {released}{goes}", held.name);
    }
    if left.served {
        println!(
            "  {} of {} parents {released}; the definition and all parents stay",
            left.held.len(),
            left.parents
        );
    }
    if left.reported > 0 {
        println!(
            "  the host's conditions {removed} from the status of {} parents",
            left.reported
        );
    }
}
