//! Starts and stops one controller as the kinds that it needs come and go.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use kube::Client;
use tokio::sync::watch;
use tokio_util::sync::CancellationToken;
use tracing::{info, warn};

use crate::cluster::cache::{Subscription, Watch, Watches};
use crate::cluster::client::Writer;
use crate::cluster::discovery::{KindError, Kinds, Resource};
use crate::cluster::event_recorder::Events;
use crate::cluster::namespaces::Namespaces;
use crate::config::ControllerConfig;
use crate::controller;
use crate::controller::scope;
use crate::health::Readiness;
use crate::leader::Leadership;
use crate::plugin::contract::Kind;
use crate::plugin::registry::Live;
use crate::reconcile::blocking_parents::BlockingParents;
use crate::reconcile::context::{Context, KindWatches, State};
use crate::reconcile::observer::Observer;
use crate::reconcile::provenance::Provenance;
use crate::rollout::Proving;
use crate::telemetry::Instruments;
use crate::webhook::Door;
use crate::work_queue::Queue;

/// The longest wait before discovery is asked again. A CustomResourceDefinition that comes wakes the wait; this
/// is for hosts that may not watch those.
const RETRY: Duration = Duration::from_secs(10);
/// The wait after a failed discovery.
const RETRY_AWAY: Duration = Duration::from_secs(1);
/// The first wait after a change of a definition, doubled each time: discovery follows it a moment later.
const SETTLE: Duration = Duration::from_millis(100);
/// Discovery has followed after this last wait.
const SETTLED: Duration = Duration::from_secs(3);

/// What all controllers share.
#[derive(Clone)]
pub struct Shared {
    /// The connection for reading.
    pub client: Client,
    /// Discovery.
    pub kinds: Arc<Kinds>,
    /// The watches.
    pub watches: Arc<Watches>,
    /// Where Events go.
    pub events: Events,
    /// Who writes.
    pub leadership: Leadership,
    /// Where resources are validated before they are written.
    pub door: Arc<Door>,
    /// Metrics, spans and health.
    pub instruments: Instruments,
    /// The namespaces to watch; empty: all of them. A change from some to all, or back, is none that a controller that
    /// runs can follow.
    pub watched: watch::Receiver<Arc<[String]>>,
    /// Which namespaces are being deleted.
    pub namespaces: Arc<Namespaces>,
    /// What proves which Secrets the host generated.
    pub provenance: Arc<Provenance>,
    /// The host's own namespace, when it runs in one.
    pub host_namespace: Option<Arc<str>>,
}

/// What a controller writes with.
#[derive(Clone)]
pub struct Writers {
    /// In the host's own name: status, finalizers, Events.
    pub own: Writer,
    /// In the name of the controller's ServiceAccount, or the host's own: children.
    pub children: Writer,
}

/// The resources that a controller needs, as the cluster serves them now.
#[derive(Clone, Debug, PartialEq)]
struct Resolved {
    parent: Arc<Resource>,
    others: BTreeMap<Kind, Arc<Resource>>,
}

/// Keeps one controller running while its kind is served, until told to stop.
pub async fn supervise(
    shared: Shared,
    config: Arc<ControllerConfig>,
    plugin: watch::Receiver<Live>,
    writers: Writers,
    proving: Arc<Proving>,
    stop: CancellationToken,
) {
    let mut changed = shared.kinds.subscribe();
    let mut said = None;
    let mut delay = SETTLE;
    while !stop.is_cancelled() {
        changed.mark_unchanged();
        match resolve(&shared.kinds, &config).await {
            Ok(resolved) => {
                said = None;
                delay = SETTLE;
                if !resolved.parent.has_status {
                    warn!(
                        controller = config.name,
                        "the CustomResourceDefinition of {} has no status subresource: no status is written; \
                         add `subresources: {{status: {{}}}}` to its version",
                        config.parent
                    );
                }
                let stop_one = stop.child_token();
                proving.starting(&resolved.parent);
                let mut watched = shared.watched.clone();
                let namespaces = Arc::clone(&watched.borrow_and_update());
                let context = context(
                    &shared,
                    &config,
                    &resolved,
                    &namespaces,
                    plugin.clone(),
                    writers.clone(),
                    proving.blocking_parents(),
                );
                let context = Arc::new(context);
                shared.door.open(&context);
                let running = {
                    let (proving, started) = (Arc::clone(&proving), Arc::clone(&context));
                    tokio::spawn(controller::run(
                        Arc::clone(&context),
                        move || proving.running(&started),
                        stop_one.clone(),
                    ))
                };
                let follow_namespaces = async {
                    while watched.changed().await.is_ok() {
                        let namespaces = Arc::clone(&watched.borrow_and_update());
                        scope::see(&context, &shared.watches, &namespaces).await;
                    }
                    // The sender goes with the process.
                    std::future::pending::<()>().await;
                };
                tokio::select! {
                    () = until_changed(&shared, &config, &resolved, &mut changed, &stop) => {}
                    () = follow_namespaces => {}
                }
                stop_one.cancel();
                if let Err(panic) = running.await {
                    warn!(controller = config.name, %panic, "the controller panicked: this is a bug of the host");
                }
                continue;
            }
            Err(KindError::Unknown(kind)) => {
                proving.without_definition();
                shared
                    .instruments
                    .health
                    .set(&config.name, Readiness::Waiting(kind.to_string()));
                let text = format!("waiting for the CustomResourceDefinition of {kind}");
                if said.as_ref() != Some(&text) {
                    info!(controller = config.name, "{text}");
                    said = Some(text);
                }
            }
            Err(error) => {
                let text = error.to_string();
                if said.as_ref() != Some(&text) {
                    warn!(controller = config.name, "{text}");
                    said = Some(text);
                }
                delay = delay.min(RETRY_AWAY);
            }
        }
        tokio::select! {
            _ = changed.changed() => delay = SETTLE,
            () = tokio::time::sleep(delay) => delay = (delay * 2).min(RETRY),
            () = stop.cancelled() => {}
        }
    }
}

/// Waits until the cluster serves the controller's kinds differently, or not at all.
async fn until_changed(
    shared: &Shared,
    config: &ControllerConfig,
    resolved: &Resolved,
    changed: &mut watch::Receiver<u64>,
    stop: &CancellationToken,
) {
    let kinds = || {
        std::iter::once(&config.parent)
            .chain(config.children.keys())
            .chain(&config.reads)
    };
    let changes = || shared.kinds.changes(kinds());
    // Of what `resolve` saw it is not known whether discovery was behind.
    let mut delay = SETTLE;
    loop {
        let seen = changes();
        tokio::select! {
            () = tokio::time::sleep(delay), if delay <= SETTLED => {}
            Ok(()) = changed.changed() => {
                if changes() != seen {
                    delay = SETTLE;
                }
                continue;
            }
            () = stop.cancelled() => return,
        }
        delay *= 2;
        // Those of the core and of `apps` do not change.
        for kind in kinds().filter(|kind| kind.group().contains('.')) {
            shared.kinds.forget(kind);
        }
        match resolve(&shared.kinds, config).await {
            Ok(now) if now == *resolved => {}
            Ok(_) => {
                info!(
                    controller = config.name,
                    "the kinds of this controller have changed: it starts anew"
                );
                return;
            }
            Err(KindError::Unknown(kind)) => {
                info!(
                    controller = config.name,
                    "{kind} is not served any more: the controller stops"
                );
                return;
            }
            // The server is away: what was known stays true until it says otherwise.
            Err(KindError::Discovery { .. }) => delay = RETRY_AWAY,
        }
    }
}

async fn resolve(kinds: &Kinds, config: &ControllerConfig) -> Result<Resolved, KindError> {
    let parent = kinds.resolve(&config.parent).await?;
    let mut others = BTreeMap::new();
    for kind in config.children.keys().chain(&config.reads) {
        match kinds.resolve(kind).await {
            Ok(resource) => {
                others.insert(kind.clone(), resource);
            }
            // The controller runs; what concerns that kind fails and says so.
            Err(KindError::Unknown(_)) => {}
            Err(error) => return Err(error),
        }
    }
    Ok(Resolved { parent, others })
}

fn context(
    shared: &Shared,
    config: &Arc<ControllerConfig>,
    resolved: &Resolved,
    namespaces: &[String],
    plugin: watch::Receiver<Live>,
    writers: Writers,
    blocking_parents: Arc<BlockingParents>,
) -> Context {
    let watches = |kind: &Kind, namespaced: bool, others: bool| {
        if namespaces.is_empty() || !namespaced {
            return KindWatches::everywhere(shared.watches.watch(kind, None));
        }
        let one = |namespace: &String| (namespace.clone(), shared.watches.watch(kind, Some(namespace)));
        KindWatches::by_namespace(match others {
            true => scope::with_others(namespaces, config).map(one).collect(),
            false => namespaces.iter().map(one).collect(),
        })
    };
    let others = |kind: &Kind| {
        let namespaced = resolved
            .others
            .get(kind)
            .is_none_or(|resource| resource.namespaced);
        (kind.clone(), watches(kind, namespaced, true))
    };
    let observer = Observer::new(config, &shared.instruments);
    let queue = Arc::<Queue>::default();
    let gauge = Arc::downgrade(&queue);
    observer
        .metrics
        .queue(move || gauge.upgrade().map(|queue| queue.backlog()));
    Context {
        events: shared.events.of(writers.own.clone()),
        client: shared.client.clone(),
        writer: writers.own,
        children_writer: writers.children,
        resource: Arc::clone(&resolved.parent),
        resources: resolved.others.clone(),
        parents: watches(&config.parent, resolved.parent.namespaced, false),
        children: config.children.keys().map(others).collect(),
        reads: config.reads.iter().map(others).collect(),
        plugin,
        observer,
        blocking_parents,
        namespaces: Arc::clone(&shared.namespaces),
        provenance: Arc::clone(&shared.provenance),
        host_namespace: shared.host_namespace.clone(),
        config: Arc::clone(config),
        queue,
        state: State::default(),
    }
}

/// Watches the CustomResourceDefinitions for as long as what it returns is held.
#[must_use]
pub fn watch_definitions(kinds: &Arc<Kinds>, watches: &Watches) -> (Arc<Watch>, Subscription) {
    let kind = Kind {
        api_version: "apiextensions.k8s.io/v1".into(),
        kind: "CustomResourceDefinition".into(),
    };
    let watch = watches.watch(&kind, None);
    let kinds = Arc::downgrade(kinds);
    let subscription = watch.subscribe(Arc::new(move |_, change| {
        let name = change
            .new
            .or(change.old)
            .and_then(|object| object.metadata.name.as_deref());
        // A definition's name is `plural.group`.
        if let (Some(kinds), Some((_, group))) = (kinds.upgrade(), name.and_then(|name| name.split_once('.')))
        {
            kinds.changed(group);
        }
    }));
    (watch, subscription)
}
