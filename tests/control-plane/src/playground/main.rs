//! The program behind `make run`: a cluster, the host, and a view of what they do.
//!
//! In order: a control plane, the definitions, the watches, the host, the samples; then lines as things change, until
//! Ctrl-C, SIGTERM or the end of the host. Everything that was started is stopped, the host first.

mod definitions;
mod host;
mod outside;
mod view;
mod webhook;

use std::{path::PathBuf, process::ExitCode, time::Duration};

use anyhow::Context;
use clap::Parser;
use control_plane::{ControlPlane, Options, manifests};
use kube::{Client, api::DynamicObject};
use tokio::signal::unix::{SignalKind, signal};

use host::Host;
use outside::Outside;
use webhook::{Certificate, Webhook};

/// Runs a local cluster with the host in it, and shows what happens there.
#[derive(Debug, Parser)]
struct Arguments {
    /// The host's program
    #[arg(long, value_name = "FILE")]
    host: PathBuf,
    /// The host's configuration
    #[arg(long, value_name = "FILE")]
    config: PathBuf,
    /// The file of endpoints: when it names none, the servers of the samples run, where they are installed
    #[arg(long, value_name = "FILE", requires = "outside")]
    endpoints: Option<PathBuf>,
    /// Folder with the samples that need a server outside of the cluster
    #[arg(long, value_name = "FOLDER")]
    outside: Option<PathBuf>,
    /// CustomResourceDefinitions to install before the host starts
    #[arg(long, value_name = "PATH")]
    crds: PathBuf,
    /// Resources to create once the host runs
    #[arg(long, value_name = "PATH")]
    samples: PathBuf,
    /// Folder for the cluster's data and all logs
    #[arg(long, value_name = "FOLDER")]
    data: PathBuf,
}

/// How long the host may take to drain.
const DRAIN: Duration = Duration::from_secs(30);

/// Prints an action of this program.
fn step(text: &str) {
    println!("==> {text}");
}

/// Prints an error.
fn complain(text: &str) {
    println!("error: {text}");
}

#[tokio::main]
async fn main() -> ExitCode {
    let arguments = Arguments::parse();
    let interrupted = async {
        match (signal(SignalKind::interrupt()), signal(SignalKind::terminate())) {
            (Ok(mut interrupt), Ok(mut terminate)) => {
                tokio::select! { _ = interrupt.recv() => {}, _ = terminate.recv() => {} }
            }
            // Without handlers the signals end this process, and its children with it.
            _ => std::future::pending().await,
        }
    };
    // Everything that `run` holds when a signal arrives is stopped when it is dropped, except for a running host:
    // then `run` itself waits for the signal.
    match run(&arguments, interrupted).await {
        Ok(code) => code,
        Err(error) => {
            complain(&format!("{error:#}"));
            ExitCode::FAILURE
        }
    }
}

async fn run(arguments: &Arguments, interrupted: impl Future<Output = ()>) -> anyhow::Result<ExitCode> {
    let mut interrupted = std::pin::pin!(interrupted);
    let host = arguments.host.canonicalize();
    let host = host.with_context(|| format!("no host at {}: cargo build", arguments.host.display()))?;
    let config = std::fs::read_to_string(&arguments.config)
        .with_context(|| format!("no configuration at {}", arguments.config.display()))?;
    let definitions = manifests::read(&arguments.crds)?;
    let mut samples = manifests::read(&arguments.samples)?;
    let (plane, client) = tokio::select! {
        started = start(arguments) => started?,
        () = &mut interrupted => return Ok(ExitCode::from(130)),
    };
    let certificate = Certificate::create(&arguments.config).await?;
    let view = view::start(&client, &definitions, &view::children(&config)).await;
    let mut outside = match (&arguments.endpoints, &arguments.outside) {
        (Some(endpoints), Some(folder)) => Outside::start(&host, endpoints, folder, &plane)?,
        _ => Outside::default(),
    };
    samples.append(&mut outside.objects);
    let mut host = Host::start(&host, &arguments.config, &plane.kubeconfig(), plane.data_dir())?;
    step(&format!(
        "operator-host runs as process {}; see it at {}; its log is {}",
        host.id(),
        host.page(),
        host.log().display()
    ));
    let webhook = certificate.map(|certificate| Webhook::new(certificate, &host, &arguments.crds));
    let webhook = webhook.as_ref();
    let code = tokio::select! {
        never = definitions::follow(&arguments.crds, definitions, &client, webhook) => match never {},
        code = play(&mut host, &client, webhook, &samples, &mut outside, &plane) => code,
        () = &mut interrupted => {
            step("Stopping; a second Ctrl-C does not hurry it");
            match host.stop().await {
                Some(status) if status.success() => step("operator-host stopped"),
                Some(status) => complain(&format!("operator-host ended with {status}, see {}", host.log().display())),
                None => complain("operator-host did not end"),
            }
            ExitCode::SUCCESS
        }
    };
    view.abort();
    drop(outside);
    plane.shutdown().await;
    step("The cluster is stopped");
    Ok(code)
}

/// Starts the cluster, and installs the definitions.
async fn start(arguments: &Arguments) -> anyhow::Result<(ControlPlane, Client)> {
    forget(&arguments.data)?;
    let mut plane = ControlPlane::start(Options {
        data_dir: Some(arguments.data.clone()),
        ..Options::default()
    })
    .await?;
    let client = plane.client().await?;
    step(&format!(
        "Kubernetes {} is ready at {} (pods and volumes are played by a stand-in)",
        client.apiserver_version().await?.git_version,
        plane.url(),
    ));
    plane.install(&arguments.crds).await?;
    step(&format!("{} installed", arguments.crds.display()));
    Ok((plane, client))
}

/// Creates the samples, says what to try, and returns when the host ends.
async fn play(
    host: &mut Host,
    client: &Client,
    webhook: Option<&Webhook>,
    samples: &[DynamicObject],
    outside: &mut Outside,
    plane: &ControlPlane,
) -> ExitCode {
    let (program, address) = (host.program().display().to_string(), host.address());
    let created = async {
        if let Some(webhook) = webhook {
            match webhook.install(client).await {
                Ok(()) => {
                    step(
                        "Webhooks installed: the host validates resources, sets defaults and converts versions",
                    );
                }
                Err(error) => complain(&format!("there are no webhooks: {error:#}")),
            }
        }
        match webhook::apply_when_decided(client, samples).await {
            Ok(()) => step("The samples are created"),
            // The cluster is still useful without this sample.
            Err(error) => complain(&format!("a sample is missing: {error}")),
        }
        outside.check();
        println!();
        println!(
            "In another terminal:\n    export KUBECONFIG={}",
            plane.kubeconfig().display()
        );
        println!("    {program} plugins --address {address}");
        println!(
            "host/docs/local-cluster.md says what to try next. Ctrl-C stops everything that was started here.\n"
        );
    };
    let ended = {
        let ended = host.ended();
        let mut ended = std::pin::pin!(ended);
        tokio::select! {
            // The host's end is more informative than a sample that was refused because of it.
            biased;
            status = &mut ended => status,
            () = created => ended.await,
        }
    };
    complain(&format!(
        "operator-host ended by itself: {}",
        ended.map_or_else(|| "its status is unknown".to_owned(), |status| status.to_string())
    ));
    complain(&host.last_words());
    ExitCode::FAILURE
}

/// Removes what an earlier run left in `data`, and no other files there.
fn forget(data: &std::path::Path) -> anyhow::Result<()> {
    std::fs::create_dir_all(data).with_context(|| format!("cannot create {}", data.display()))?;
    let lock = std::fs::File::create(data.join("lock"))?;
    lock.try_lock().map_err(|_| {
        anyhow::anyhow!(
            "{} is used by another control plane: stop that one, or name another folder",
            data.display()
        )
    })?;
    for name in [
        "etcd",
        "etcd.log",
        "kube-apiserver.log",
        "kube-controller-manager.log",
        "operator-host.log",
        "egress.log",
        host::VERSIONS,
        outside::FOLDER,
    ] {
        let path = data.join(name);
        let removed = match path.is_dir() {
            true => std::fs::remove_dir_all(&path),
            false => std::fs::remove_file(&path),
        };
        match removed {
            Err(error) if error.kind() != std::io::ErrorKind::NotFound => {
                return Err(error).with_context(|| format!("cannot remove {}", path.display()));
            }
            _ => {}
        }
    }
    Ok(())
}
