//! The composition root: client, plugins, controllers, and the end of them all.

use std::collections::HashSet;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use kube::Client;
use thiserror::Error;
use tokio::sync::watch;
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;
use tracing::{error, info, warn};

use crate::config::{Config, ControllerConfig};
use crate::controller::events::Events;
use crate::controller::kinds::Kinds;
use crate::controller::watches::{KeepPolicy, Watches};
use crate::plugin::registry::Live;
use crate::plugin::{EngineError, EngineOptions, Limits, LoadError, Plugin, Runtime};
use crate::supervisor::{Shared, supervise, watch_definitions};
use crate::telemetry::Instruments;

/// How long passes under way may take after the signal to stop. A pod has 30 seconds by default.
const DRAIN: Duration = Duration::from_secs(25);
/// How long Events that wait may take after that.
const FLUSH: Duration = Duration::from_secs(2);

/// Why the operator cannot start.
#[derive(Debug, Error)]
pub enum OperatorError {
    /// The WebAssembly engine does not start.
    #[error(transparent)]
    Engine(#[from] EngineError),
}

/// Runs all controllers until `stop`, then waits for the passes under way.
///
/// # Errors
/// When nothing could be started.
pub async fn run(
    config: Config,
    client: Client,
    instruments: Instruments,
    stop: CancellationToken,
) -> Result<(), OperatorError> {
    let runtime = Runtime::new(EngineOptions::default())?;
    let kinds = Arc::new(Kinds::new(client.clone(), Arc::clone(&instruments.metrics)));
    let watches = Arc::new(Watches::new(
        client.clone(),
        Arc::clone(&kinds),
        keep_policy(&config),
        Arc::clone(&instruments.metrics),
    ));
    let instance = std::env::var("HOSTNAME").unwrap_or_else(|_| "operator-host".to_owned());
    let (events, writer) = Events::start(client.clone(), instance, Arc::clone(&instruments.metrics));
    let definitions = watch_definitions(&kinds, &watches);
    let shared = Shared {
        client,
        kinds,
        watches,
        events,
        instruments: instruments.clone(),
        namespaces: config.namespaces.into_iter().collect(),
    };
    let tasks = TaskTracker::new();
    for controller in config.controllers {
        let controller = Arc::new(controller);
        let (sender, live) = watch::channel(Live::Loading);
        instruments.health.expect(&controller.name, live.clone());
        let (runtime, loaded) = (runtime.clone(), Arc::clone(&controller));
        let metrics = instruments.metrics.of(&controller.name, &controller.parent);
        tasks.spawn(async move {
            let live = load(&runtime, &loaded).await;
            match &live {
                Live::Plugin(plugin) => {
                    metrics.plugin_live(plugin);
                    metrics.reloaded("loaded");
                }
                Live::Loading | Live::Failed(_) => metrics.reloaded("refused"),
            }
            sender.send_replace(live);
        });
        tasks.spawn(supervise(shared.clone(), controller, live, stop.clone()));
    }
    tasks.close();
    stop.cancelled().await;
    instruments.health.stopping();
    info!("stopping: waiting for the passes under way");
    if tokio::time::timeout(DRAIN, tasks.wait()).await.is_err() {
        warn!(
            "some passes did not end within {DRAIN:?}: they are given up; what they left undone is done at the next start"
        );
    }
    drop(definitions);
    drop(shared);
    if tokio::time::timeout(FLUSH, writer).await.is_err() {
        warn!("some Events were not written within {FLUSH:?}");
    }
    Ok(())
}

fn keep_policy(config: &Config) -> KeepPolicy {
    let parents: HashSet<_> = config
        .controllers
        .iter()
        .map(|controller| controller.parent.clone())
        .collect();
    let reads = config
        .controllers
        .iter()
        .flat_map(|controller| controller.reads.iter().cloned());
    KeepPolicy {
        whole: parents.iter().cloned().chain(reads).collect(),
        parents,
    }
}

/// Why a plugin does not become live.
#[derive(Debug, Error)]
enum PluginError {
    #[error("cannot read it: {0}")]
    Read(#[from] std::io::Error),
    #[error(transparent)]
    Load(#[from] LoadError),
    #[error(
        "it reconciles {found}, but the controller {controller:?} is for {expected}: configure the plugin that belongs to it"
    )]
    OtherKind {
        controller: String,
        found: String,
        expected: String,
    },
}

async fn load(runtime: &Runtime, config: &ControllerConfig) -> Live {
    match try_load(runtime, config).await {
        Ok(plugin) => {
            let description = plugin.description();
            info!(
                controller = config.name,
                plugin = description.name,
                version = description.version,
                digest = %plugin.digest(),
                form = plugin.form().as_str(),
                bytes = plugin.size(),
                compile_ms = u64::try_from(plugin.compile_time().as_millis()).unwrap_or(u64::MAX),
                "plugin loaded"
            );
            Live::Plugin(plugin)
        }
        Err(reason) => {
            let file: PathBuf = config
                .plugin
                .file_name()
                .map_or_else(|| config.plugin.clone(), Into::into);
            let message = format!("the plugin {} cannot be used: {reason}", file.display());
            error!(controller = config.name, file = %config.plugin.display(), "{message}");
            Live::Failed(message.into())
        }
    }
}

async fn try_load(runtime: &Runtime, config: &ControllerConfig) -> Result<Plugin, PluginError> {
    let file = tokio::fs::read(&config.plugin).await?;
    let limits = Limits {
        memory: config.limits.memory,
        deadline: config.limits.deadline,
        response: config.limits.response,
        ..Limits::default()
    };
    let plugin = runtime.load(file, limits).await?;
    let found = &plugin.description().parent;
    if *found != config.parent {
        return Err(PluginError::OtherKind {
            controller: config.name.clone(),
            found: found.to_string(),
            expected: config.parent.to_string(),
        });
    }
    Ok(plugin)
}
