//! The program behind `make run`: a cluster, the host, and a view of what they do.
//!
//! In order: a control plane (or the current kubeconfig's cluster), the definitions, the watches, the host, the
//! samples; then lines as things change, until Ctrl-C, SIGTERM or the end of the host. Everything that was started
//! is stopped, the host first.

mod definitions;
mod deploy;
mod hints;
mod host;
mod plugin_changes;
mod screen;
mod view;
mod webhook;

use std::{path::PathBuf, process::ExitCode, time::Duration};

use anyhow::Context;
use clap::{Parser, ValueEnum};
use control_plane::{ControlPlane, Options, manifests};
use kube::Client;
use tokio::signal::unix::{SignalKind, signal};

use host::{Host, HostLog};
use screen::Screen;
use webhook::{Certificate, Webhook};

/// Runs a local cluster with the host in it, and shows what happens there.
#[derive(Debug, Parser)]
struct Arguments {
    /// The host's program
    #[arg(long, value_name = "FILE")]
    host: PathBuf,
    /// The host's configuration
    #[arg(long, value_name = "FILE", required_unless_present = "deploy")]
    config: Option<PathBuf>,
    /// A kustomization to apply; the host runs outside of the cluster as its Deployment specifies, with the token
    /// of its ServiceAccount
    #[arg(long, value_name = "FOLDER", conflicts_with = "config")]
    deploy: Option<PathBuf>,
    /// CustomResourceDefinitions to install before the host starts
    #[arg(long, value_name = "PATH")]
    crds: PathBuf,
    /// Resources to create once the host runs
    #[arg(long, value_name = "PATH")]
    samples: Option<PathBuf>,
    /// The cluster: a new one, or the one of the current kubeconfig
    #[arg(long, env = "CLUSTER", default_value = "local")]
    cluster: Cluster,
    /// Folder for the local cluster's data and all logs [default: a temporary folder]
    #[arg(long, value_name = "FOLDER")]
    data: Option<PathBuf>,
    /// Which lines of the host's log to show; its file contains all of them
    #[arg(long, env = "HOST_LOG", default_value = "warn")]
    host_log: HostLog,
}

#[derive(Clone, Copy, Debug, PartialEq, ValueEnum)]
enum Cluster {
    /// etcd, kube-apiserver and kube-controller-manager on this machine
    Local,
    /// The cluster that `kubectl` uses
    Current,
}

#[tokio::main]
async fn main() -> ExitCode {
    let arguments = Arguments::parse();
    let screen = Screen::new();
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
    match run(&arguments, &screen, interrupted).await {
        Ok(code) => code,
        Err(error) => {
            screen.error(&format!("{error:#}"));
            ExitCode::FAILURE
        }
    }
}

async fn run(
    arguments: &Arguments,
    screen: &Screen,
    interrupted: impl Future<Output = ()>,
) -> anyhow::Result<ExitCode> {
    let mut interrupted = std::pin::pin!(interrupted);
    let host_program = arguments.host.canonicalize();
    let host_program =
        host_program.with_context(|| format!("no host at {}: cargo build", arguments.host.display()))?;
    if let Some(config) = &arguments.config {
        std::fs::metadata(config).with_context(|| format!("no configuration at {}", config.display()))?;
    }
    let samples = arguments.samples.as_deref();
    let files = Files {
        definitions: manifests::read(&arguments.crds)?,
        samples: samples.map_or(Ok(Vec::new()), manifests::read)?,
    };

    let started = tokio::select! {
        started = Running::start(arguments, screen) => started?,
        () = &mut interrupted => return Ok(interrupted_code()),
    };
    let Running {
        mut plane,
        client,
        kubeconfig,
        logs,
        _temporary,
    } = started;

    let installed = async {
        match &mut plane {
            Some(plane) => plane.install(&arguments.crds).await?,
            None => manifests::apply(&client, &files.definitions).await?,
        }
        anyhow::Ok(())
    };
    tokio::select! {
        installed = installed => installed?,
        () = &mut interrupted => return Ok(interrupted_code()),
    }
    screen.step(&format!(
        "{} installed",
        counted(files.definitions.len(), "definition")
    ));
    let deployed = async {
        match (&arguments.deploy, &plane) {
            (Some(folder), Some(plane)) => deploy::deploy(folder, plane, &logs, screen).await,
            (Some(_), None) => anyhow::bail!("this mode makes its own cluster: leave CLUSTER out"),
            (None, _) => Ok(deploy::Identity {
                kubeconfig: kubeconfig.clone(),
                ..deploy::Identity::default()
            }),
        }
    };
    let identity = tokio::select! {
        identity = deployed => identity?,
        () = &mut interrupted => return Ok(interrupted_code()),
    };
    let certificate = match (&arguments.config, &plane) {
        // The API servers of another cluster cannot reach this machine.
        (Some(config), Some(_)) => Certificate::create(config).await?,
        _ => None,
    };
    let config = arguments.config.clone();
    let config = config.or_else(|| Some(arguments.deploy.as_ref()?.join("config/config.yaml")));
    let config = config.map_or_else(String::new, |file| {
        std::fs::read_to_string(file).unwrap_or_default()
    });
    let view = view::start(
        &client,
        &files.definitions,
        &view::children(&config),
        screen.clone(),
    )
    .await;
    let mut host = Host::start(
        &host_program,
        arguments,
        identity.kubeconfig.as_deref(),
        &identity.environment,
        &logs,
        screen,
    )?;
    screen.step(&format!(
        "operator-host runs as process {}; see it at {}",
        host.id(),
        host.page()
    ));

    let webhook = certificate.map(|certificate| Webhook::new(certificate, &host, &arguments.crds));
    let webhook = webhook.as_ref();
    let code = tokio::select! {
        never = definitions::follow(&arguments.crds, files.definitions.clone(), &client, webhook, screen) => match never {},
        code = play(&mut host, &client, webhook, &files, kubeconfig.as_deref(), arguments.deploy.is_some(), screen) => code,
        () = &mut interrupted => {
            screen.step("Stopping; a second Ctrl-C does not hurry it");
            match host.stop().await {
                Some(status) if status.success() => screen.step("operator-host stopped"),
                Some(status) => screen.error(&format!("operator-host ended with {status}, see {}", host.log().display())),
                None => screen.error("operator-host did not end"),
            }
            ExitCode::SUCCESS
        }
    };
    view.abort();
    if let (Some(user), Some(plane)) = (&identity.user, &plane) {
        deploy::report_forbidden(user, plane, screen)?;
    }
    if let Some(plane) = plane {
        plane.shutdown().await;
        screen.step("The cluster is stopped");
    }
    Ok(code)
}

/// Creates the samples, prints suggestions, and returns when the host ends.
async fn play(
    host: &mut Host,
    client: &Client,
    webhook: Option<&Webhook>,
    files: &Files,
    kubeconfig: Option<&std::path::Path>,
    deployed: bool,
    screen: &Screen,
) -> ExitCode {
    let (program, address) = (host.program().to_owned(), host.address());
    let created = async {
        if let Some(webhook) = webhook {
            match webhook.install(client).await {
                Ok(()) => screen.step(
                    "Webhooks installed: the host validates resources, sets defaults and converts versions",
                ),
                Err(error) => screen.error(&format!("there are no webhooks: {error:#}")),
            }
        }
        match webhook::apply_when_decided(client, &files.samples).await {
            Ok(()) => screen.step(&format!("{} created", counted(files.samples.len(), "sample"))),
            // The cluster is still useful without this sample.
            Err(error) => screen.error(&format!("a sample is missing: {error}")),
        }
        hints::print(
            screen,
            kubeconfig,
            &files.samples,
            &files.definitions,
            webhook.is_some(),
        );
        // A deployed host reads its plugins from ConfigMaps, not from the build folder.
        if !deployed {
            hints::print_plugins(screen, &program, &address, &files.samples);
        }
        hints::print_end(screen);
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
    screen.error(&format!(
        "operator-host ended by itself: {}",
        ended.map_or_else(|| "its status is unknown".to_owned(), |status| status.to_string())
    ));
    screen.error(&host.last_words());
    ExitCode::FAILURE
}

/// What is installed in the cluster.
struct Files {
    definitions: Vec<kube::api::DynamicObject>,
    samples: Vec<kube::api::DynamicObject>,
}

/// The parts that run before the host does.
struct Running {
    plane: Option<ControlPlane>,
    client: Client,
    /// `None`: the one that this process itself would use.
    kubeconfig: Option<PathBuf>,
    logs: PathBuf,
    _temporary: Option<tempfile::TempDir>,
}

impl Running {
    async fn start(arguments: &Arguments, screen: &Screen) -> anyhow::Result<Self> {
        if let Some(data) = &arguments.data {
            forget(data)?;
        }
        if arguments.cluster == Cluster::Current {
            let temporary = arguments.data.is_none().then(tempfile::tempdir).transpose()?;
            let logs = match (&arguments.data, &temporary) {
                (Some(data), _) => data.clone(),
                (None, Some(temporary)) => temporary.path().to_owned(),
                (None, None) => std::env::temp_dir(),
            };
            let config = kube::Config::infer()
                .await
                .context("no current cluster: is KUBECONFIG set?")?;
            screen.step(&format!("Using the current cluster, {}", config.cluster_url));
            let client = control_plane::connect(&config)?;
            let version = client.apiserver_version().await;
            let version = version.with_context(|| format!("{} does not answer", config.cluster_url))?;
            screen.step(&format!("It is Kubernetes {}", version.git_version));
            return Ok(Self {
                plane: None,
                client,
                kubeconfig: None,
                logs,
                _temporary: temporary,
            });
        }
        let started = std::time::Instant::now();
        let plane = ControlPlane::start(Options {
            data_dir: arguments.data.clone(),
            audit: arguments.deploy.is_some(),
            ..Options::default()
        })
        .await?;
        let client = plane.client().await?;
        let version = client.apiserver_version().await?.git_version;
        screen.step(&format!(
            "Kubernetes {version} is ready at {} after {:.1} s (pods and volumes are played by a stand-in)",
            plane.url(),
            started.elapsed().as_secs_f64()
        ));
        let (kubeconfig, logs) = (Some(plane.kubeconfig()), plane.data_dir().to_owned());
        Ok(Self {
            plane: Some(plane),
            client,
            kubeconfig,
            logs,
            _temporary: None,
        })
    }
}

/// Removes what an earlier run left in `data`, and no other files there.
fn forget(data: &std::path::Path) -> anyhow::Result<()> {
    std::fs::create_dir_all(data).with_context(|| format!("cannot create {}", data.display()))?;
    let lock = std::fs::File::create(data.join("lock"))?;
    lock.try_lock()
        .map_err(|_| control_plane::Error::InUse(data.to_owned()))?;
    for name in [
        "etcd",
        "etcd.log",
        "kube-apiserver.log",
        "kube-controller-manager.log",
        "operator-host.log",
        "audit.log",
        "deployed",
        "webhook",
        host::VERSIONS,
    ] {
        let path = data.join(name);
        let removed = if path.is_dir() {
            std::fs::remove_dir_all(&path)
        } else {
            std::fs::remove_file(&path)
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

fn interrupted_code() -> ExitCode {
    ExitCode::from(130)
}

fn counted(count: usize, noun: &str) -> String {
    format!("{count} {noun}{}", if count == 1 { "" } else { "s" })
}

/// How long the host may take to drain.
const DRAIN: Duration = Duration::from_secs(30);
