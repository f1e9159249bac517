//! The composition root: client, plugins, controllers, and the end of them all.

use std::collections::HashSet;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use thiserror::Error;
use tokio::sync::watch;
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;
use tracing::{info, warn};

use crate::client::{ClientError, Connection};
use crate::config::leadership::Mode;
use crate::config::{Config, ControllerConfig};
use crate::controller::events::Events;
use crate::controller::kinds::Kinds;
use crate::controller::watches::{KeepPolicy, Watches};
use crate::leader::Leadership;
use crate::leader::term::Term;
use crate::metrics::ControllerMetrics;
use crate::plugin::registry::{Expected, Live, Slot};
use crate::plugin::{Cache, EngineError, EngineOptions, Limits, Runtime, reload};
use crate::supervisor::{Hands, Shared, supervise, watch_definitions};
use crate::telemetry::Instruments;

/// How long passes under way may take after the signal to stop. A pod has 30 seconds by default.
const DRAIN: Duration = Duration::from_secs(25);
/// How long Events that wait may take after that.
const FLUSH: Duration = Duration::from_secs(2);
/// The same while another replica waits for the leases.
const FLUSH_LEADING: Duration = Duration::from_millis(500);

/// The most plugin calls at a time in one process: each reserves address space.
const MAX_TURNS: u32 = 512;

/// Why the operator cannot start.
#[derive(Debug, Error)]
pub enum OperatorError {
    /// The WebAssembly engine does not start.
    #[error(transparent)]
    Engine(#[from] EngineError),
    /// The connection to the cluster cannot be used.
    #[error(transparent)]
    Client(#[from] ClientError),
}

/// Runs all controllers until `stop`, then waits for the passes under way. Compiled code is kept in `cache_dir`.
///
/// # Errors
/// When nothing could be started.
pub async fn run(
    config: Config,
    connection: Arc<Connection>,
    identity: &str,
    instruments: Instruments,
    cache_dir: Option<&Path>,
    stop: CancellationToken,
) -> Result<(), OperatorError> {
    let options = EngineOptions {
        concurrency: turns(&config),
        ..EngineOptions::default()
    };
    let runtime = Runtime::with_cache(options, cache_dir.and_then(open_cache))?;
    let client = connection.client()?;
    let kinds = Arc::new(Kinds::new(client.clone(), Arc::clone(&instruments.metrics)));
    let watches = Arc::new(Watches::new(
        client,
        Arc::clone(&kinds),
        keep_policy(&config),
        Arc::clone(&instruments.metrics),
    ));
    let instance = std::env::var("HOSTNAME").unwrap_or_else(|_| "operator-host".to_owned());
    let own = connection
        .writers(&Term::endless(), &config.leadership.timing)?
        .writer(None)?;
    let (events, writer) = Events::start(own, instance, Arc::clone(&instruments.metrics));
    let definitions = watch_definitions(&kinds, &watches);
    let (leadership, elections) = Leadership::start(
        &config.leadership,
        connection,
        identity,
        events.clone(),
        &instruments,
    )?;
    let shared = Shared {
        kinds,
        watches,
        events,
        instruments: instruments.clone(),
        namespaces: config.namespaces.into_iter().collect(),
    };
    let shares = config.leadership.mode != Mode::None;
    let tasks = TaskTracker::new();
    let mut slots = Vec::new();
    for controller in config.controllers {
        let controller = Arc::new(controller);
        let metrics = instruments.metrics.of(&controller.name, &controller.parent);
        let (slot, live) = slot(&runtime, &controller, metrics);
        instruments.health.expect(&controller.name, live.clone());
        slots.push(slot.traced(instruments.tracer.clone()));
        let writers = leadership.join(&controller.name)?;
        let hands = Hands {
            own: writers.writer(None)?,
            children: writers.writer(controller.service_account.as_ref())?,
        };
        tasks.spawn(supervise(shared.clone(), controller, live, hands, stop.clone()));
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
    if shares
        && tokio::time::timeout(FLUSH_LEADING, shared.events.flush())
            .await
            .is_err()
    {
        warn!("some Events were not written within {FLUSH_LEADING:?}");
    }
    leadership.release(elections).await;
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
        .map(|controller| controller.concurrency)
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

/// The compiled cache; without one that can be used the host starts as without any.
fn open_cache(folder: &Path) -> Option<Cache> {
    Cache::open(folder)
        .inspect_err(|error| warn!("no compiled code is kept: {error}"))
        .ok()
}
