//! The composition root: client, plugins, controllers, and the end of them all.

use std::collections::HashSet;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use kube::Client;
use thiserror::Error;
use tokio::sync::watch;
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;
use tracing::{info, warn};

use crate::config::{Config, ControllerConfig};
use crate::controller::events::Events;
use crate::controller::kinds::Kinds;
use crate::controller::proving::Proving;
use crate::controller::watches::{KeepPolicy, Watches};
use crate::metrics::ControllerMetrics;
use crate::plugin::registry::{Expected, Live, Slot};
use crate::plugin::versions::Versions;
use crate::plugin::{Cache, EngineError, EngineOptions, Limits, Runtime, reload};
use crate::supervisor::{Shared, supervise, watch_definitions};
use crate::telemetry::Instruments;

/// How long passes under way may take after the signal to stop. A pod has 30 seconds by default.
const DRAIN: Duration = Duration::from_secs(25);
/// How long Events that wait may take after that.
const FLUSH: Duration = Duration::from_secs(2);

/// The most plugin calls at a time in one process: each reserves address space.
const MAX_TURNS: u32 = 512;

/// Why the operator cannot start.
#[derive(Debug, Error)]
pub enum OperatorError {
    /// The WebAssembly engine does not start.
    #[error(transparent)]
    Engine(#[from] EngineError),
}

/// Where the host keeps what it would rather not make or lose again.
#[derive(Clone, Debug, Default)]
pub struct Folders {
    /// Compiled code.
    pub cache: Option<PathBuf>,
    /// The last versions of each plugin that were live; absent: in the cache's folder.
    pub state: Option<PathBuf>,
}

impl Folders {
    fn versions(&self) -> Option<PathBuf> {
        let beside = || self.cache.as_ref().map(|cache| cache.join("versions"));
        self.state.clone().or_else(beside)
    }
}

/// Runs all controllers until `stop`, then waits for the passes under way.
///
/// # Errors
/// When nothing could be started.
pub async fn run(
    config: Config,
    client: Client,
    instruments: Instruments,
    folders: Folders,
    stop: CancellationToken,
) -> Result<(), OperatorError> {
    let options = EngineOptions {
        concurrency: turns(&config),
        ..EngineOptions::default()
    };
    let runtime = Runtime::with_cache(options, folders.cache.as_deref().and_then(open_cache))?;
    let state_dir = folders.versions();
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
    let mut slots = Vec::new();
    for controller in config.controllers {
        let controller = Arc::new(controller);
        let metrics = instruments.metrics.of(&controller.name, &controller.parent);
        let (slot, live) = slot(&runtime, &controller, metrics);
        let proving = Proving::new(Arc::clone(&controller), shared.events.clone());
        let proving = Arc::new(proving);
        let slot = slot
            .traced(instruments.tracer.clone())
            .proved(Arc::clone(&proving) as _);
        let slot = match state_dir
            .as_deref()
            .and_then(|folder| open_versions(folder, &controller))
        {
            Some(versions) => slot.keeping(versions),
            None => slot,
        };
        instruments.health.expect(&controller.name, live.clone());
        instruments.health.report(&controller.name, slot.report());
        slots.push(slot);
        let listening = Arc::clone(&proving);
        let (definitions, stop_listening) = (Arc::clone(&definitions.0), stop.clone());
        tasks.spawn(async move { listening.listen(definitions, stop_listening).await });
        tasks.spawn(supervise(shared.clone(), controller, live, proving, stop.clone()));
    }
    tasks.spawn(reload::run(slots, stop.clone()));
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

/// As many calls at a time as all controllers together may make, so that none waits for the plugin of another.
fn turns(config: &Config) -> u32 {
    let wanted: usize = config
        .controllers
        .iter()
        // One more for the proof of a new version.
        .map(|controller| controller.concurrency + 1)
        .sum();
    u32::try_from(wanted).unwrap_or(u32::MAX).clamp(1, MAX_TURNS)
}

fn slot(
    runtime: &Runtime,
    config: &ControllerConfig,
    metrics: ControllerMetrics,
) -> (Slot, watch::Receiver<Live>) {
    let limits = Limits {
        memory: config.limits.memory,
        deadline: config.limits.deadline,
        response: config.limits.response,
        ..Limits::default()
    };
    let expected = Expected {
        controller: config.name.clone(),
        parent: config.parent.clone(),
        file: config.plugin.clone(),
        limits,
    };
    Slot::new(runtime.clone(), expected, metrics)
}

/// The versions kept; without a folder for them the host starts as without any.
fn open_versions(folder: &Path, config: &ControllerConfig) -> Option<Versions> {
    Versions::open(folder, &config.name, config.proving.keep)
        .inspect_err(|error| {
            warn!(controller = config.name, folder = %folder.display(), %error,
                "no versions of this plugin are kept: after a restart its file is taken as it is");
        })
        .ok()
}

/// The compiled cache; without one that can be used the host starts as without any.
fn open_cache(folder: &Path) -> Option<Cache> {
    Cache::open(folder)
        .inspect_err(|error| warn!("no compiled code is kept: {error}"))
        .ok()
}
