//! Starts and stops one controller as its kinds become served or are removed.

use std::collections::HashSet;
use std::sync::{Arc, Mutex, Weak};
use std::time::Duration;

use kube::Client;
use kube::core::DynamicObject;
use tokio::sync::watch;
use tokio_util::sync::CancellationToken;
use tracing::{info, warn};

use crate::controller::{self, scope};
use crate::ui::RunningControllers;
use operator_host_cluster::cache::{Reflector, SharedCache, Subscription, WatchState};
use operator_host_cluster::client::{Writer, WriterFactory};
use operator_host_cluster::discovery::{Changes, Discovery, KindError, Resolved};
use operator_host_cluster::event_recorder::Events;
use operator_host_cluster::kind_reflectors::KindReflectors;
use operator_host_cluster::namespaces::Namespaces;
use operator_host_config::ControllerConfig;
use operator_host_contract::Kind;
use operator_host_core::backoff::{at_least, jittered};
use operator_host_core::object::NotServed;
use operator_host_core::sync::lock;
use operator_host_delivery::registry::Live;
use operator_host_engine::reconcile::context::{Caches, Cluster, Context, ControllerState};
use operator_host_engine::reconcile::observer::Observer;
use operator_host_engine::reconcile::proof_key::ProofKey;
use operator_host_engine::work_queue::Queue;
use operator_host_instruments::Instruments;
use operator_host_instruments::health::Readiness;
use operator_host_rollout::Proving;
use operator_host_webhook::WebhookTargets;

/// The longest wait between discoveries. A new CustomResourceDefinition ends the wait; this timeout is for hosts that
/// may not watch definitions.
const RETRY: Duration = Duration::from_secs(10);
/// The wait after a failed discovery.
const RETRY_UNREACHABLE: Duration = Duration::from_secs(1);
/// The first wait after a definition changes, doubled each time: discovery reflects the change a moment later.
const SETTLE: Duration = Duration::from_millis(100);
/// After this wait, a kind without a definition no longer counts as one whose definition has just been deleted.
const DELETED: Duration = Duration::from_secs(1);
/// The last of these waits, after which discovery reflects the change.
const SETTLED: Duration = Duration::from_secs(3);
/// How often a host that may not watch definitions asks whether a kind has changed.
const UNWATCHED: Duration = Duration::from_secs(60);

/// The parts that all controllers share.
#[derive(Clone)]
pub struct Shared {
    /// The connection for reading.
    pub client: Client,
    /// Discovery.
    pub kinds: Arc<Discovery>,
    /// The shared watches.
    pub watches: Arc<SharedCache>,
    /// Records Events.
    pub events: Events,
    /// Makes the writers, which write only while this replica leads.
    pub writers: WriterFactory,
    /// The validating webhook.
    pub webhook_targets: Arc<WebhookTargets>,
    /// The controllers that the page shows.
    pub running: Arc<RunningControllers>,
    /// Metrics, spans and health.
    pub instruments: Instruments,
    /// The namespaces to watch; all namespaces when empty. A running controller cannot follow a change between some and
    /// all namespaces.
    pub watched: watch::Receiver<Arc<[String]>>,
    /// Which namespaces are being deleted.
    pub namespaces: Arc<Namespaces>,
    /// The proof of which Secrets the host generated.
    pub proof_key: Arc<ProofKey>,
    /// The host's own namespace, when it runs in one.
    pub host_namespace: Option<Arc<str>>,
}

/// The clients with which a controller writes.
#[derive(Clone)]
pub struct ControllerWriters {
    /// Writes status, finalizers and Events, with the host's own account.
    pub own: Writer,
    /// Writes children, with the controller's ServiceAccount or the host's own.
    pub children: Writer,
}

/// Runs one controller while its kind is served, until `stop`.
pub async fn supervise(
    shared: Shared,
    config: Arc<ControllerConfig>,
    plugin: watch::Receiver<Live>,
    writers: ControllerWriters,
    proving: Arc<Proving>,
    stop: CancellationToken,
) {
    for warning in config.warnings() {
        warn!("{warning}");
    }
    let mut changed = shared.kinds.subscribe();
    let mut last_logged = None;
    let mut delay = SETTLE;
    while !stop.is_cancelled() {
        changed.mark_unchanged();
        match shared.kinds.resolve_all(&config).await {
            Ok(resolved) => {
                last_logged = None;
                delay = SETTLE;
                if let Some(missing) = missing_in_status(&resolved).filter(|_| config.decorates.is_none()) {
                    warn!(
                        controller = config.name,
                        "the CustomResourceDefinition of {} {missing}", config.parent
                    );
                }
                let stop_one = stop.child_token();
                proving.starting(&resolved.parent);
                let mut watched = shared.watched.clone();
                let namespaces = Arc::clone(&watched.borrow_and_update());
                let (live, writers) = (plugin.clone(), writers.clone());
                let context = context(&shared, &config, &resolved, &namespaces, live, writers, &proving);
                let context = Arc::new(context);
                shared.running.open(&context);
                let (started, proves) = (Arc::clone(&context), Arc::clone(&proving));
                let running = tokio::spawn(controller::run(started, proves, stop_one.clone()));
                let follow_namespaces = async {
                    while watched.changed().await.is_ok() {
                        let namespaces = Arc::clone(&watched.borrow_and_update());
                        scope::set_namespaces(&context, &shared.watches, &namespaces).await;
                    }
                    // The sender lives as long as the process.
                    std::future::pending::<()>().await;
                };
                tokio::select! {
                    () = until_changed(&shared, &config, &resolved, &mut changed, &stop) => {}
                    () = follow_namespaces => {}
                }
                stop_one.cancel();
                if let Err(panic) = running.await {
                    warn!(controller = config.name, %panic, "internal error: the controller panicked; please report it");
                }
                continue;
            }
            Err(KindError::Unknown(NotServed { kind, versions })) => {
                proving.without_definition();
                let served = match versions.as_slice() {
                    [] => String::new(),
                    versions => format!("; the cluster serves {} as {}", kind.kind, versions.join(" and ")),
                };
                let what = format!("the CustomResourceDefinition of {kind}{served}");
                let waits = Readiness::Waiting(format!("waits for {what}"));
                shared.instruments.health.set(&config.id, waits);
                let text = format!("waiting for {what}");
                if last_logged.as_ref() != Some(&text) {
                    info!(controller = config.name, "{text}");
                    last_logged = Some(text);
                }
            }
            // For a moment, discovery still has the kind of a definition that was deleted.
            Err(KindError::NotDefined(_)) if delay < DELETED => {}
            Err(error) => {
                let text = error.to_string();
                if matches!(error, KindError::NotDefined(_)) {
                    let waits = Readiness::Waiting(text.clone());
                    shared.instruments.health.set(&config.id, waits);
                } else {
                    let asked = error.retry_after().map(at_least).unwrap_or_default();
                    delay = delay.min(RETRY_UNREACHABLE).max(asked);
                }
                if last_logged.as_ref() != Some(&text) {
                    warn!(controller = config.name, "{text}");
                    last_logged = Some(text);
                }
            }
        }
        tokio::select! {
            _ = changed.changed() => delay = SETTLE,
            () = tokio::time::sleep(delay) => delay = (delay * 2).min(RETRY),
            () = stop.cancelled() => {}
        }
    }
}

/// Waits until the cluster serves the controller's kinds differently, or no longer.
async fn until_changed(
    shared: &Shared,
    config: &ControllerConfig,
    resolved: &Resolved,
    changed: &mut watch::Receiver<Changes>,
    stop: &CancellationToken,
) {
    let kinds = || {
        std::iter::once(&config.parent)
            .chain(config.rules.children.keys())
            .chain(&config.reads)
    };
    let changes = || shared.kinds.changes(kinds());
    let mut others = config.rules.children.keys().chain(&config.reads);
    let is_incomplete = others.any(|kind| !resolved.others.contains_key(kind));
    // Discovery may have been stale when `resolve` ran.
    let mut delay = SETTLE;
    // What the API server has asked for in its last answer.
    let mut asked = Duration::ZERO;
    // Taken before the answer that may not have the next change yet.
    let mut seen = changes();
    loop {
        tokio::select! {
            // Kinds of an aggregated API server have no definition that could change.
            () = tokio::time::sleep(delay.max(asked)), if delay <= SETTLED || is_incomplete => {}
            Ok(()) = changed.changed() => {
                let now = changes();
                if now != seen {
                    (seen, delay) = (now, SETTLE);
                }
                continue;
            }
            () = stop.cancelled() => return,
        }
        asked = Duration::ZERO;
        // A result that another controller has just asked for serves this one, too.
        let outdated = delay / 4;
        delay = (delay * 2).min(RETRY);
        // The kinds of the core group and of groups such as `apps` do not change.
        for kind in kinds().filter(|kind| kind.group().contains('.')) {
            shared.kinds.forget_older(kind, outdated);
        }
        let unanswered = match shared.kinds.resolve_all(config).await {
            Ok(now) if !now.serves_the_same(resolved) => {
                info!(
                    controller = config.name,
                    "the kinds of this controller have changed: restarting the controller"
                );
                return;
            }
            Ok(now) => now.unanswered.into_values().next(),
            // Without a definition, discovery still has the kind for a moment; or another API server serves it now, which
            // `supervise` reports.
            Err(KindError::Unknown(NotServed { kind, .. }) | KindError::NotDefined(kind)) => {
                info!(
                    controller = config.name,
                    "{kind} is no longer served: stopping the controller"
                );
                return;
            }
            Err(error @ KindError::Discovery { .. }) => Some(error),
        };
        // Keep the last result.
        if let Some(error) = unanswered {
            delay = RETRY_UNREACHABLE;
            asked = error.retry_after().map(at_least).unwrap_or_default();
        }
    }
}

/// Returns what the definition lacks for the host's reports, and the consequence.
fn missing_in_status(resolved: &Resolved) -> Option<&'static str> {
    if !resolved.parent.has_status {
        return Some(
            "has no status subresource, so the host writes no status: add `subresources: {status: {}}` to its version",
        );
    }
    (!resolved.status.has_conditions()).then_some(
        "has no `conditions` in the schema of its status, so the host writes none and reports by Events only: add them",
    )
}

fn context(
    shared: &Shared,
    config: &Arc<ControllerConfig>,
    resolved: &Resolved,
    namespaces: &[String],
    plugin: watch::Receiver<Live>,
    writers: ControllerWriters,
    proving: &Proving,
) -> Context {
    let watches = |kind: &Kind, namespaced: bool, others: bool| {
        if namespaces.is_empty() || !namespaced {
            return KindReflectors::everywhere(shared.watches.watch(kind, None));
        }
        let one = |namespace: &String| (namespace.clone(), shared.watches.watch(kind, Some(namespace)));
        KindReflectors::by_namespace(match others {
            true => scope::with_others(namespaces, config).map(one).collect(),
            false => namespaces.iter().map(one).collect(),
        })
    };
    let others = |kind: &Kind, anywhere: bool| {
        let namespaced = resolved.others.get(kind).is_none_or(|it| it.namespaced);
        (kind.clone(), watches(kind, namespaced && !anywhere, true))
    };
    let anywhere = config.rules.other_names().is_none();
    // A parent in a namespace has no children in others.
    let children_anywhere = anywhere && !resolved.parent.namespaced;
    let observer = Observer::new(config, &shared.instruments);
    let queue = Queue::measured(config.concurrency, &observer.metrics);
    let children = config.rules.children.keys();
    let caches = Caches {
        parents: watches(&config.parent, resolved.parent.namespaced, false),
        children: children.map(|kind| others(kind, children_anywhere)).collect(),
        reads: config.reads.iter().map(|kind| others(kind, anywhere)).collect(),
        namespaces: Arc::clone(&shared.namespaces),
        config: Arc::clone(config),
    };
    Context {
        events: shared.events.of(&config.name, writers.own.clone()),
        cluster: Cluster {
            client: shared.client.clone(),
            writer: writers.own,
            children_writer: writers.children,
            kinds: Arc::clone(&shared.kinds),
            served: resolved.clone(),
        },
        caches,
        versions: proving.versions(plugin),
        observer,
        proof_key: Arc::clone(&shared.proof_key),
        host_namespace: shared.host_namespace.clone(),
        config: Arc::clone(config),
        queue,
        state: ControllerState::default(),
    }
}

/// Watches the CustomResourceDefinitions while the returned values are held.
#[must_use]
pub fn watch_definitions(
    kinds: &Arc<Discovery>,
    watches: &Arc<SharedCache>,
) -> (Arc<Reflector>, Subscription) {
    let kind = Kind::new("apiextensions.k8s.io/v1", "CustomResourceDefinition");
    // Definitions are large, and their schemas are not needed.
    let watch = watches.watch_metadata(&kind);
    tokio::spawn(ask_without_watch(Arc::downgrade(kinds), Arc::downgrade(&watch)));
    let kinds = Arc::downgrade(kinds);
    let watches = Arc::downgrade(watches);
    let pending = Arc::<Mutex<HashSet<String>>>::default();
    let subscription = watch.subscribe(Arc::new(move |_, change| {
        let name = change.object().and_then(|object| object.metadata.name.as_deref());
        // A definition's name is `plural.group`.
        let (Some(known), Some((_, group))) = (kinds.upgrade(), name.and_then(|name| name.split_once('.')))
        else {
            return;
        };
        known.changed(group);
        let generation = |object: &Arc<DynamicObject>| object.metadata.generation;
        let (before, after) = (change.before().map(generation), change.after().map(generation));
        let is_other_schema = before.is_some() && before != after;
        if is_other_schema && lock(&pending).insert(group.to_owned()) {
            let (kinds, watches) = (Weak::clone(&kinds), Weak::clone(&watches));
            let (pending, group) = (Arc::clone(&pending), group.to_owned());
            tokio::spawn(async move {
                settled(&kinds, &group).await;
                lock(&pending).remove(&group);
                if let Some(watches) = watches.upgrade() {
                    watches.list_again(&group);
                }
            });
        }
    }));
    (watch, subscription)
}

/// Waits until the definitions of a group have not changed for a while. The API server serves a new schema a moment
/// after the change.
async fn settled(kinds: &Weak<Discovery>, group: &str) {
    let changes = || kinds.upgrade().map(|kinds| kinds.changes_of(group));
    loop {
        let seen = changes();
        tokio::time::sleep(SETTLED + jittered(SETTLED, 1.0)).await;
        if changes() == seen {
            return;
        }
    }
}

/// Asks for the known kinds again while the host may not watch definitions. Ends with the watch.
async fn ask_without_watch(kinds: Weak<Discovery>, definitions: Weak<Reflector>) {
    loop {
        tokio::time::sleep(UNWATCHED).await;
        let (Some(kinds), Some(definitions)) = (kinds.upgrade(), definitions.upgrade()) else {
            return;
        };
        if matches!(definitions.state_now(), WatchState::Failing(_)) {
            kinds.ask_again().await;
        }
    }
}
