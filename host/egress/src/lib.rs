//! Carries out Externals: resources outside of the cluster that are objects in it.
//!
//! It runs as a process of its own, `operator-host egress`, the only one that connects to anything but the API server. In
//! reading order: `reconcile` knows the steps; `spec` is what an External says, `holders` which of two holds, `matches` whether
//! an answer is as wanted, `secrets` and `credentials` what is filled in, `status` what is told. `transport` sends one bounded
//! request, by `connector` to an `address` that is allowed. `file` has the endpoints, and `context` what all share.
//!
//! Invariants: nothing is sent that the file of endpoints does not allow; every request is preceded by a GET that showed that it
//! is needed, has a new version of a Secret, or undoes a deleted object; no text of an answer becomes part of a message, and no credential part of anything.

mod address;
mod connector;
mod context;
mod credentials;
mod file;
mod holders;
mod matches;
mod reconcile;
mod secrets;
mod spec;
mod status;
mod transport;

use std::collections::BTreeSet;
use std::net::IpAddr;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use tokio::net::lookup_host;
use tokio::time::{Instant, interval, sleep, timeout};
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;
use tracing::{Instrument as _, Span, error, info, info_span, warn};

use self::context::{Context, Lane, WORKERS};
use self::file::{File, Loaded};
use self::reconcile::reconcile;
use operator_host_cluster::cache::{CachePolicy, KeepPolicy, SharedCache, Subscriber, WatchState};
use operator_host_cluster::client::{ClientError, Connection, Pace};
use operator_host_cluster::discovery::{Discovery, ResolvedKind};
use operator_host_cluster::kind_reflectors::KindReflectors;
use operator_host_cluster::renewed::Renewed;
use operator_host_cluster::term::Term;
use operator_host_config::endpoints::EndpointsConfig;
use operator_host_config::external;
use operator_host_core::object::{NamespacedName, Provenance};
use operator_host_engine::work_queue::{Trigger, Work};
use operator_host_instruments::Instruments;
use operator_host_lease::Leadership;
use operator_host_telemetry::trace;

/// The name of the Events where the host has none.
const PROGRAM: &str = "operator-host-egress";
/// How often the file of endpoints is compared.
const COMPARE: Duration = Duration::from_secs(1);
/// How long to wait before the kind is looked for again.
const LOOK: Duration = Duration::from_secs(2);
/// How long looking up the API server's addresses may take.
const LOOK_UP: Duration = Duration::from_secs(5);
/// How long requests in progress may take after the signal to stop. A pod has 30 seconds by default.
const DRAIN: Duration = Duration::from_secs(25);
/// After which time an External whose reconcile panicked is next.
const PANICKED: Duration = Duration::from_secs(60);
/// The average and the burst of writes to the API server a second.
const WRITES: (u32, u32) = (200, 1000);

/// Carries out Externals until `stop`. `config` is what the file of endpoints says at the start, and `identity` unique.
///
/// # Errors
/// When the connection to the API server cannot be used, or a file that the file of endpoints names.
pub async fn run(
    file: PathBuf,
    config: &EndpointsConfig,
    identity: &str,
    connection: Arc<Connection>,
    instruments: Instruments,
    stop: CancellationToken,
) -> Result<(), EgressError> {
    let file = Renewed::new(File(file)).map_err(EgressError::File)?;
    let (client, watch_client) = (connection.client()?, connection.watch_client()?);
    let metrics = &instruments.metrics;
    let kinds = Arc::new(Discovery::new(watch_client.clone(), Arc::clone(metrics)));
    let watches = SharedCache::new(watch_client, Arc::clone(&kinds), Arc::clone(metrics));
    let all = CachePolicy {
        all: true,
        ..CachePolicy::default()
    };
    watches.keep(KeepPolicy::from([(external::kind(), all)]));
    let leadership = Leadership::start(&config.leadership, &connection, identity, PROGRAM, &instruments)?;
    let events = leadership.events().clone();
    let limits = Arc::new(leadership.factory().write_limits(Pace::new(WRITES.0, WRITES.1)));
    let writer = leadership.factory().writer(None)?.limited(&limits);
    let work = async {
        let (kind, externals) = found(&kinds, &watches, &config.namespaces).await;
        instruments.health.applied();
        let count = externals.names().len();
        info!(externals = count, "ready to carry out Externals");
        loop {
            let loaded = file.current();
            let reserved = reserved(&connection).await.into();
            let (kind, externals) = (Arc::clone(&kind), Arc::clone(&externals));
            let context = Context::new(externals, kind, &loaded, &reserved, &writer, &instruments);
            tokio::select! {
                () = writer.term.begun() => lead(Arc::new(context), &writer.term, &file, &loaded, &stop).await,
                () = changed(&file, &loaded) => {}
            }
            if stop.is_cancelled() {
                return;
            }
        }
    };
    tokio::select! {
        // `lead` ends by itself.
        () = work => {}
        () = connection.keep_asking(client) => {}
        () = async { stop.cancelled().await; sleep(DRAIN).await } => {}
    }
    instruments.health.stopping();
    leadership.release().await;
    let _ = timeout(Duration::from_secs(1), events.flush()).await;
    Ok(())
}

/// Why the process cannot start.
#[derive(Debug, thiserror::Error)]
pub enum EgressError {
    /// The API server cannot be used.
    #[error(transparent)]
    Client(#[from] ClientError),
    /// The file of endpoints, or one that it names, cannot be used.
    #[error("{0}")]
    File(String),
}

/// Waits until the kind is served and listed.
async fn found(
    kinds: &Discovery,
    watches: &SharedCache,
    namespaces: &BTreeSet<String>,
) -> (Arc<ResolvedKind>, Arc<KindReflectors>) {
    let mut said = false;
    let kind = loop {
        match kinds.resolve(&external::kind()).await {
            Ok(kind) => break kind,
            Err(_) if said => {}
            Err(error) => {
                warn!("{error}; install manifests/crds/externals.operator-host.dev.yaml; waiting for it");
            }
        }
        said = true;
        sleep(LOOK).await;
    };
    let watch = |namespace: Option<&str>| watches.watch(&external::kind(), namespace);
    let externals = match namespaces.is_empty() {
        true => KindReflectors::everywhere(watch(None)),
        false => {
            let each = namespaces.iter().map(|name| (name.clone(), watch(Some(name))));
            KindReflectors::by_namespace(each.collect())
        }
    };
    for watch in externals.all() {
        // The sender is in the watch, which logs why it fails.
        let _ = watch.state().wait_for(|state| *state == WatchState::Synced).await;
    }
    (kind, Arc::new(externals))
}

/// Returns the addresses of the API server.
async fn reserved(connection: &Connection) -> Vec<IpAddr> {
    let server = connection.server();
    let host = server.host().map(|host| host.trim_matches(['[', ']']).to_owned());
    let mut found = Vec::new();
    for host in host.into_iter().chain(std::env::var("KUBERNETES_SERVICE_HOST")) {
        if let Ok(Ok(addresses)) = timeout(LOOK_UP, lookup_host((host, 443))).await {
            found.extend(addresses.map(|address| address.ip()));
        }
    }
    found
}

/// Waits until the file says something else.
async fn changed(file: &Renewed<File>, loaded: &Arc<Loaded>) {
    let mut compare = interval(COMPARE);
    while Arc::ptr_eq(&file.current(), loaded) {
        compare.tick().await;
    }
}

/// Reconciles until the term ends, the file changes or `stop`; then waits for the requests in progress.
async fn lead(
    context: Arc<Context>,
    term: &Term,
    file: &Renewed<File>,
    loaded: &Arc<Loaded>,
    stop: &CancellationToken,
) {
    let stay = term.stay();
    let weak = Arc::downgrade(&context);
    let subscriber: Subscriber = Arc::new(move |_, change| {
        if let Some(context) = weak.upgrade() {
            context.changed(change);
        }
    });
    let watches = context.externals.all().into_iter();
    let subscriptions: Vec<_> = watches
        .map(|watch| watch.subscribe(Arc::clone(&subscriber)))
        .collect();
    context.enqueue_all();
    let workers = TaskTracker::new();
    for lane in context.lanes() {
        for _ in 0..WORKERS {
            workers.spawn(work(Arc::clone(&context), Arc::clone(lane)));
        }
    }
    workers.close();
    tokio::select! {
        () = term.ended() => {}
        () = changed(file, loaded) => {}
        () = stop.cancelled() => {}
    }
    context.lanes().for_each(|lane| lane.queue.close());
    workers.wait().await;
    drop(subscriptions);
    drop(stay);
}

/// Reconciles the Externals of one lane.
async fn work(context: Arc<Context>, lane: Arc<Lane>) {
    while let Some(work) = lane.queue.next().await {
        if let Some(after) = process(&context, &lane, &work).await {
            lane.queue.enqueue_at(&work.parent, Instant::now() + after);
        }
        lane.queue.done(&work.parent, |_| false);
    }
}

/// Reconciles an External; returns after which time it is next.
async fn process(context: &Arc<Context>, lane: &Arc<Lane>, work: &Work) -> Option<Duration> {
    // The External of this name may be another one by now: only its own lane has it, so that it never runs twice at a time.
    if let Some(external) = context.externals.get(&work.parent) {
        let own = context.lane(&work.parent, Some(&external));
        if !Arc::ptr_eq(own, lane) {
            own.queue.enqueue(&work.parent, Trigger::Related);
            return None;
        }
    }
    let (waited, started) = (work.since.elapsed(), Instant::now());
    let trigger = work.reasons.first().map_or("none", Trigger::as_str);
    let root = root_span(context, lane, &work.parent, trigger);
    let span = info_span!("reconcile", endpoint = lane.name, external = %work.parent);
    // Spawn a task, so that a panic ends this reconcile and not the worker.
    let (context, name) = (Arc::clone(context), work.parent.clone());
    let running = async move { trace::around(&root, reconcile(&context, &name)).await };
    let next = tokio::spawn(running.instrument(span)).await;
    let next = next.unwrap_or_else(|panic| {
        error!(external = %work.parent, %panic, "internal error: a reconcile panicked; please report it");
        Some(PANICKED)
    });
    lane.metrics.reconciled(trigger, waited, started.elapsed());
    next
}

/// Creates the root span of one reconcile. It is linked to the reconcile that wants the External.
fn root_span(context: &Context, lane: &Lane, name: &NamespacedName, trigger: &'static str) -> Span {
    let external = context.externals.get(name);
    let made = external.as_deref().and_then(Provenance::of);
    let cause = made.and_then(|made| trace::of_header(made.trace?));
    let (generation, uid) = made.and_then(|made| made.parent).unzip();
    context.instruments.tracer.root(cause, || {
        info_span!(
            target: trace::TARGET,
            parent: None,
            "reconcile",
            operator.endpoint = lane.name,
            operator.trigger = trigger,
            operator.plugin.digest = made.map(|made| made.digest),
            operator.parent.uid = uid,
            operator.parent.generation = generation,
            k8s.object.kind = external::KIND,
            k8s.object.name = name.name,
            k8s.namespace.name = name.namespace.as_deref(),
        )
    })
}
