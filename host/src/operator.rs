//! Composes the process from client, plugins and controllers, and shuts it down.

mod agreement;
mod config_maps;
mod config_reload;
mod controllers;
mod objects;

use std::net::SocketAddr;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use kube::ResourceExt as _;
use tokio::sync::watch;
use tokio_util::sync::CancellationToken;
use tracing::{info, warn};

use self::config_maps::{ConfigMaps, RootFolder};
use self::config_reload::{Configurations, Follower};
use self::controllers::{Controllers, SlotParts};
use self::objects::admit::{LastAllowed, admit};
use self::objects::report::{Decided, Reporter};
use self::objects::{Objects, waiting};
use crate::supervisor::{Shared, watch_definitions};
use crate::telemetry::log::Level;
use crate::ui::{self, RunningControllers, Sources};
use operator_host_cluster::cache::SharedCache;
use operator_host_cluster::client::Connection;
use operator_host_cluster::discovery::Discovery;
use operator_host_config::leadership::LeadershipMode;
use operator_host_config::memory_limit::Memory;
use operator_host_config::{Config, parse_size};
use operator_host_delivery::reload::PluginSources;
use operator_host_engine::reconcile::proof_key::ProofKey;
use operator_host_instruments::Instruments;
use operator_host_instruments::health::Health;
use operator_host_lease::Leadership;
use operator_host_runtime::{Cache, Compiler, EngineOptions, Runtime, Subprocess};
use operator_host_webhook::WebhookTargets;

/// How long reconciles in progress may take after the signal to stop. A pod has 30 seconds by default.
const DRAIN: Duration = Duration::from_secs(25);
/// How long queued Events may take after that.
const FLUSH: Duration = Duration::from_secs(2);
/// The same while another replica waits for the Lease.
const FLUSH_LEADING: Duration = Duration::from_millis(500);
/// How long the webhook answers after the signal to stop: until then some node may not know that the Service no longer has this
/// replica. It is more than nodes usually take, and less than a pod has.
const FORGOTTEN: Duration = Duration::from_secs(5);

/// The most concurrent plugin calls in one process: each reserves address space, which costs nothing until it is used.
/// A controller makes at most `concurrency` calls. While their sum is below this number and the memory suffices, no
/// controller waits for another one's plugin, even if controllers are added later.
const MAX_TURNS: u32 = 512;

/// The first wait before a kind that is not served is looked for again, doubled each time up to the longest. A new definition ends
/// the wait; discovery reflects it a moment later.
const FIRST_LOOK: Duration = Duration::from_millis(100);
const LONGEST_LOOK: Duration = Duration::from_secs(10);

/// The divisor of the cache folder's size that gives the share of versions stored in it.
const VERSIONS_SHARE: u64 = 4;

/// The options of the command line that are used after the start, too.
#[derive(Debug, clap::Args)]
pub struct Options {
    /// The configuration file
    #[arg(long, short, env = "OPERATOR_HOST_CONFIG", value_name = "FILE")]
    pub config: PathBuf,
    /// Directory for the compiled-plugin cache, which spares the next start the compilation [default: no cache]
    #[arg(long, env = "OPERATOR_HOST_CACHE_DIR", value_name = "FOLDER")]
    pub cache_dir: Option<PathBuf>,
    /// Maximum size of the cache directory, such as `1Gi`, and never more than half of its volume. The least recently
    /// used plugins are deleted first
    #[arg(long, env = "OPERATOR_HOST_CACHE_SIZE")]
    #[arg(default_value = "1Gi", value_name = "SIZE", value_parser = size)]
    pub cache_size: u64,
    /// Directory for the last versions of each plugin, for a restart and for a rollback [default: `versions` in the
    /// directory of --cache-dir, or none]
    #[arg(long, env = "OPERATOR_HOST_STATE_DIR", value_name = "FOLDER")]
    pub state_dir: Option<PathBuf>,
    /// File with the trusted public keys, as YAML or as one key in PEM. With it, the host accepts only signed plugins
    /// [default: no signature required]
    #[arg(long, env = "OPERATOR_HOST_SIGNATURE_KEYS", value_name = "FILE")]
    pub signature_keys: Option<PathBuf>,
    /// PEM file with certificate authorities. With it, the webhook accepts only clients whose certificate is signed by
    /// one of them [default: accept every client]
    #[arg(long, env = "OPERATOR_HOST_CLIENT_CA", value_name = "FILE")]
    pub client_ca: Option<PathBuf>,
    /// Address of a page that shows what the host does: a loopback address, such as `127.0.0.1:8090`. With port 0, the host
    /// takes a free port and logs it [default: no page]
    #[arg(long, env = "OPERATOR_HOST_UI_ADDR", value_name = "ADDRESS")]
    pub ui_addr: Option<SocketAddr>,
}

/// Parses a number of bytes.
///
/// # Errors
/// What is expected.
pub fn size(text: &str) -> Result<u64, String> {
    let size = parse_size(text).and_then(|size| u64::try_from(size).ok());
    size.ok_or_else(|| "expected bytes, such as `65536`, `512Ki` or `64Mi`".to_owned())
}

/// What the process starts with.
pub struct Setup {
    /// The options.
    pub options: Options,
    /// The content of the configuration file, with the signature keys.
    pub config: Config,
    /// The memory of the process.
    pub memory: Memory,
    /// The bytes that compiling one plugin may take.
    pub compile_memory: usize,
    /// Changes the log filter.
    pub level: Level,
    /// The unique identity of this process.
    pub identity: String,
}

/// Runs the controllers of the configuration, and follows its changes, until `stop`; then waits for the reconciles in
/// progress.
///
/// # Errors
/// When the operator cannot start.
pub async fn run(
    setup: Setup,
    connection: Arc<Connection>,
    instruments: Instruments,
    stop: CancellationToken,
) -> anyhow::Result<()> {
    let (given, config, memory) = (setup.options, setup.config, setup.memory);
    let identity = setup.identity;
    let options = EngineOptions {
        concurrency: MAX_TURNS,
        memory: memory.calls(),
        files: memory.files(),
        ..EngineOptions::default()
    };
    let beside = given.cache_dir.as_deref().map(|folder| folder.join("versions"));
    let shared_folder = given.state_dir.is_none() && beside.is_some();
    let versions_size = given.cache_size / VERSIONS_SHARE;
    // The rest is for files that are being written.
    let cache_size = given.cache_size / 8 * if shared_folder { 5 } else { 7 };
    let folder = given.cache_dir.as_deref();
    let cache = folder.map(|folder| Cache::open(folder, cache_size)).transpose();
    // If it cannot be used, the host starts without one.
    let cache = cache.inspect_err(|error| warn!("the compiled-plugin cache is disabled: {error}"));
    let compiler = Compiler::Subprocess(Subprocess::this_program(setup.compile_memory));
    let runtime = Runtime::with(options, compiler, cache.unwrap_or_default())?;
    let writable = given.cache_dir.clone().unwrap_or_else(std::env::temp_dir);
    let config_maps_root = RootFolder::new(writable.join("config-maps"), identity.clone());
    let metrics = Arc::clone(&instruments.metrics);
    let sources = PluginSources::new(config_maps_root.path(), writable, Arc::clone(&metrics));
    let client = connection.client()?;
    let watch_client = connection.watch_client()?;
    let kinds = Arc::new(Discovery::new(watch_client.clone(), metrics.clone()));
    let watches = Arc::new(SharedCache::new(watch_client.clone(), kinds.clone(), metrics));
    let definitions = watch_definitions(&kinds, &watches);
    let election = &config.leadership;
    let leadership = Leadership::start(election, &connection, &identity, "operator-host", &instruments)?;
    let events = leadership.events().clone();
    let webhook_targets = Arc::<WebhookTargets>::default();
    if let Some(mut webhook) = config.webhook.clone() {
        webhook.client_ca = given.client_ca;
        let (memory, targets) = (memory.webhook(), Arc::clone(&webhook_targets));
        operator_host_webhook::start(webhook, memory, targets, instruments.clone(), stop.clone()).await?;
    }
    let running = Arc::<RunningControllers>::default();
    if let (Some(address), Some(journal)) = (given.ui_addr, &instruments.journal) {
        let sources = Sources {
            controllers: Arc::clone(&running),
            health: Arc::clone(&instruments.health),
            journal: Arc::clone(journal),
            identity: identity.clone(),
            lease: leadership.report(),
        };
        ui::start(address, sources).await?;
    }
    let configured = config.host_namespace.as_deref();
    let home = configured.unwrap_or(client.default_namespace());
    let config_maps = ConfigMaps::new(watch_client, home.to_owned(), config_maps_root);
    let host_namespace = configured.or(connection.pod_namespace());
    let installation = config.leadership.namespace.as_deref().or(host_namespace);
    let installation = installation.unwrap_or(client.default_namespace()).to_owned();
    let watched = watch::Sender::default();
    let shared = Shared {
        proof_key: Arc::new(ProofKey::new(client.clone(), home)),
        host_namespace: host_namespace.map(Arc::from),
        client: client.clone(),
        kinds,
        watches,
        events: events.clone(),
        writers: leadership.factory().clone(),
        webhook_targets,
        running,
        instruments: instruments.clone(),
        watched: watched.subscribe(),
        namespaces: Arc::default(),
    };
    let (decided, decisions) = watch::channel(Decided::default());
    let reporting = tokio::spawn(Reporter(shared.clone()).run(decisions));
    let follower = Follower {
        file: given.config,
        keys: given.signature_keys,
        memory,
        instruments: instruments.clone(),
    };
    let start = config.clone();
    let configurations = follower.start(config);
    let (watches, known) = (Arc::clone(&shared.watches), Arc::clone(&definitions.0));
    let of_cluster = OfCluster {
        objects: Objects::new(watches, known, installation.clone()),
        config_maps,
        kinds: Arc::clone(&shared.kinds),
        memory,
        decided,
    };
    let slot_parts = SlotParts {
        installation,
        reach: start.webhook.as_ref().and_then(|webhook| webhook.reach.clone()),
        runtime,
        sources,
        definitions: Arc::clone(&definitions.0),
        state: given.state_dir.or(beside),
        room: if shared_folder { versions_size } else { u64::MAX },
    };
    let mut controllers = Controllers::new(slot_parts, shared, watched, stop.clone());
    tokio::select! {
        () = stop.cancelled() => {}
        () = follow(&mut controllers, configurations, of_cluster, &setup.level, &start, &instruments.health) => {}
        () = connection.keep_asking(client) => {}
    }
    reporting.abort();
    let forgotten = tokio::time::Instant::now() + FORGOTTEN;
    instruments.health.stopping();
    info!("stopping: waiting for the reconciles in progress");
    if tokio::time::timeout(DRAIN, controllers.stopped()).await.is_err() {
        warn!(
            "some reconciles did not finish within {DRAIN:?} and are abandoned; the next start completes their work"
        );
    }
    drop(definitions);
    // Write the Events of this leader before another replica takes over.
    let alone = start.leadership.mode == LeadershipMode::None;
    if !alone && tokio::time::timeout(FLUSH_LEADING, events.flush()).await.is_err() {
        warn!("some Events were not written within {FLUSH_LEADING:?}");
    }
    leadership.release().await;
    if start.webhook.is_some() {
        tokio::time::sleep_until(forgotten).await;
    }
    // The plugins have answered until here.
    drop(controllers);
    if tokio::time::timeout(FLUSH, events.flush()).await.is_err() {
        warn!("some Events were not written within {FLUSH:?}");
    }
    Ok(())
}

/// The Controllers of the cluster and their plugins.
struct OfCluster {
    objects: Objects,
    config_maps: ConfigMaps,
    kinds: Arc<Discovery>,
    memory: Memory,
    decided: watch::Sender<Decided>,
}

/// Applies each new configuration, with the Controllers of the cluster, to the controllers. Never returns.
async fn follow(
    controllers: &mut Controllers,
    mut configurations: Configurations,
    mut of_cluster: OfCluster,
    level: &Level,
    start: &Config,
    health: &Health,
) {
    let mut applied = None;
    let mut last_allowed = LastAllowed::default();
    let mut definitions = of_cluster.kinds.subscribe();
    let mut look = FIRST_LOOK;
    loop {
        definitions.mark_unchanged();
        let mut config = Arc::unwrap_or_clone(configurations.current());
        config.is_at(&of_cluster.config_maps.home);
        if config.leadership != start.leadership
            || config.webhook != start.webhook
            || config.host_namespace != start.host_namespace
        {
            warn!(
                "changes to `leadership`, `lease`, `webhook` and `hostNamespace` take effect at the next start"
            );
        }
        level.configure(config.log.as_deref());
        let watch = of_cluster.objects.watch(&config);
        let listed = watch.clone().filter(|it| of_cluster.objects.are_listed(it));
        let is_listing = watch.is_some() && listed.is_none();
        let found = listed.as_deref().map(objects::all).unwrap_or_default();
        let records = of_cluster.objects.records();
        let mut admitted = admit(&config, &of_cluster.memory, &found, &records, &mut last_allowed);
        let runs = |controller: &_| controllers.runs(controller);
        let waiting = waiting::take_out(&of_cluster.kinds, &mut admitted.config, runs).await;
        let some_wait = !waiting.is_empty();
        let wanted = Arc::new(admitted.config);
        let kept = of_cluster.config_maps.keep(&wanted);
        if applied.as_ref() != Some(&wanted) {
            controllers.apply(&wanted).await;
            applied = Some(Arc::clone(&wanted));
        }
        let is_complete = of_cluster.objects.are_known(&config);
        if is_complete {
            health.applied();
        }
        if let Err(problem) = kept {
            controllers.lack_config_maps(&problem);
        }
        let generations = found.iter().map(|it| (it.name_any(), it.metadata.generation));
        of_cluster.decided.send_replace(Decided {
            watch: listed,
            generations: generations.collect(),
            refused: admitted.refused,
            records,
            waiting,
            config: Some(wanted),
        });
        tokio::select! {
            () = configurations.changed() => {}
            () = of_cluster.objects.changed() => {}
            () = of_cluster.objects.known(), if !is_complete => {}
            () = of_cluster.objects.listed(), if is_listing => {}
            Ok(()) = definitions.changed(), if some_wait => look = FIRST_LOOK,
            () = tokio::time::sleep(look), if some_wait => look = LONGEST_LOOK.min(look * 2),
        }
    }
}
