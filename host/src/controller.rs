//! Runs one controller: enqueues parents when the cluster changes, and reconciles the queued parents.

pub mod scope;

use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::Duration;

use futures::future::select_all;
use kube::core::DynamicObject;
use tokio::sync::watch::Receiver;
use tokio::time::{Instant, interval, interval_at};
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;
use tracing::field::Empty;
use tracing::{Instrument, Span, debug, error, info, info_span, warn};

use operator_host_cluster::cache::{Change, Interest, Reflector, Subscriber, WatchState};
use operator_host_cluster::kind_reflectors::KindReflectors;
use operator_host_cluster::namespaces::NamespaceChange;
use operator_host_cluster::turn::Turn;
use operator_host_config::ControllerConfig;
use operator_host_contract::Kind;
use operator_host_core::backoff;
use operator_host_core::object::{ChildRef, NamespacedName, is_terminating, version};
use operator_host_delivery::registry::Live;
use operator_host_desired::ownership::{owns, parent_by_owner, parent_of, reaches};
use operator_host_engine::reconcile::context::Context;
use operator_host_engine::reconcile::needs::is_readable;
use operator_host_engine::reconcile::{Action, initial_condition, reconcile, unwatched};
use operator_host_engine::work_queue::{Trigger, Work};
use operator_host_instruments::health::Pulse;
use operator_host_rollout::definitions::record::LiveRecord;
use operator_host_rollout::{Proving, stages};
use operator_host_telemetry::trace;

/// The most reconciles that wait for the API server beside those of the workers: as many as a controller may have writes.
const MOST_ASIDE: usize = 64;
/// The most reasons for one reconcile that the log shows.
const SHOWN: usize = 32;

/// Runs one controller until `stop`, then waits for the running reconciles. While another replica leads, the controller
/// only keeps its caches up to date.
pub async fn run(context: Arc<Context>, proving: Arc<Proving>, stop: CancellationToken) {
    tokio::select! {
        () = work_until(&context, &proving, &stop) => {}
        never = initial_condition::follow(&context) => match never {},
    }
}

async fn work_until(context: &Arc<Context>, proving: &Proving, stop: &CancellationToken) {
    // Ignore changes until this replica leads: `lead` then enqueues every parent, and the caches contain the changes.
    context.queue.close();
    subscribe(context);
    let mut plugin = context.versions.live.clone();
    let ready = async {
        // Wait for complete caches: an object that the first list does not contain yet would look missing.
        scope::wait_for_lists(&context.caches.watches()).await;
        // A version may have to be proved on these objects before it is live.
        proving.running(context);
        // An error means that the sender is dropped, so there is nothing to wait for.
        let _ = plugin.wait_for(|live| !matches!(live, Live::Loading)).await;
    };
    tokio::select! {
        () = ready => {}
        () = report_lists(context) => {}
        () = stay_alive([&context.observer.enqueuing, &context.observer.working]) => {}
        () = stop.cancelled() => return,
    }
    context.observer.started();
    let term = &context.cluster.writer.term;
    let say_started =
        || info!(controller = context.config.name, parent = %context.config.parent, "controller started");
    if term.is_elected() {
        say_started();
    }
    let work = async {
        // Without elections, it reconciles from then on.
        let mut is_first = !term.is_elected();
        while !stop.is_cancelled() {
            tokio::select! {
                () = stand_by(context, proving, &plugin) => {}
                () = stop.cancelled() => break,
            }
            if std::mem::take(&mut is_first) {
                say_started();
            }
            let stay = term.stay();
            lead(context, plugin.clone(), &proving.record, stop).await;
            proving.record.stand_by();
            drop(stay);
        }
    };
    work.await;
    context.state.subscriptions.send_replace(Vec::new());
    info!(controller = context.config.name, "controller stopped");
}

/// Reports why the first lists fail. Never returns.
async fn report_lists(context: &Context) {
    let watches = context.caches.watches().into_iter();
    let mut errors: Vec<_> = watches.map(|watch| watch.list_error()).collect();
    while !errors.is_empty() {
        let seen = errors.iter_mut().map(|error| error.borrow_and_update().clone());
        let seen: Vec<_> = seen.collect();
        context.observer.starting(seen.into_iter().flatten().next());
        let (changed, index, _) = select_all(errors.iter_mut().map(|error| Box::pin(error.changed()))).await;
        if changed.is_err() {
            // Its namespace is no longer watched.
            drop(errors.swap_remove(index));
        }
    }
    std::future::pending::<()>().await;
}

/// Reports loops as alive while there is nothing for them to do. Never returns.
async fn stay_alive<const N: usize>(loops: [&Pulse; N]) {
    let period = loops.iter().map(|pulse| pulse.period()).min();
    let mut beat = interval(period.unwrap_or(Duration::MAX));
    loop {
        beat.tick().await;
        loops.iter().for_each(|pulse| pulse.beat());
    }
}

/// Waits until the term begins, its definition is decided about, and the live version may write.
async fn stand_by(context: &Context, proving: &Proving, plugin: &Receiver<Live>) {
    let begun = async {
        context.cluster.writer.term.begun().await;
        proving.installer.decided().await;
        let (record, definition) = (&proving.record, context.cluster.served.parent.definition_name());
        record.confirm(&definition, plugin.clone()).await;
        stages::resume(context, record).await;
    };
    tokio::select! {
        () = begun => {}
        () = stay_alive([&context.observer.enqueuing, &context.observer.working]) => {}
    }
}

/// Reconciles parents until the term ends or `stop`, then waits for the running reconciles.
async fn lead(context: &Arc<Context>, plugin: Receiver<Live>, record: &LiveRecord, stop: &CancellationToken) {
    // Another replica may have led meanwhile.
    context.state.forget_all();
    context.queue.open();
    hold_many(context);
    enqueue_all(context, &Trigger::Resync);
    enqueue_deleted(context);
    let workers = TaskTracker::new();
    for _ in 0..context.config.concurrency {
        workers.spawn(work(Arc::clone(context), workers.clone()));
    }
    workers.close();
    tokio::select! {
        () = keep_enqueueing(context, plugin.clone()) => {}
        () = record.keep(plugin.clone()) => {}
        () = unwatched::follow(context, plugin) => {}
        () = context.cluster.writer.term.ended() => {}
        () = stop.cancelled() => {}
    }
    context.queue.close();
    // A plugin may have minutes for its calls. Its workers must go on, as long as they do something.
    tokio::select! {
        () = workers.wait() => {}
        () = stay_alive([&context.observer.enqueuing]) => {}
    }
    // What this replica knows is outdated from now on, and no longer counts in its metrics.
    context.state.forget_all();
}

fn enqueue_all(context: &Context, reason: &Trigger) {
    enqueue_within(context, None, reason);
}

/// Enqueues deleted parents that still have children, and those that are not decorated any more.
fn enqueue_deleted(context: &Context) {
    for parent in parents_with_children(context).union(&context.caches.with_fields()) {
        if !context.caches.has_parent(parent) {
            context.queue.enqueue(parent, Trigger::Resync);
        }
    }
}

/// Keeps the children and the fields of what is not decorated any more if that is a larger part than a new version of the plugin may delete: the
/// selector may be wrong. A single object that has lost its label is none.
fn hold_many(context: &Context) {
    let with_fields = context.caches.with_fields();
    // The kind's objects may own what other controllers have made.
    let is_decorated = |name: &NamespacedName, object: &Arc<DynamicObject>| {
        let children = context.owned(object);
        let mut children = children.iter();
        with_fields.contains(name) || children.any(|child| owns(context.config.scope(), object, child))
    };
    let (mut lost, mut kept) = (BTreeSet::new(), 0);
    for name in parents_with_children(context).union(&with_fields) {
        if let Some(object) = context.caches.unselected(name) {
            if is_decorated(name, &object) {
                lost.insert(name.clone());
            }
        } else if let Some(object) = context.caches.parent(name) {
            kept += usize::from(is_decorated(name, &object));
        }
    }
    let most = context.config.proving.max_deletions;
    let are_many = lost.len() > 1 && lost.len() * 100 > (lost.len() + kept) * usize::from(most);
    if are_many {
        warn!(
            controller = context.config.name,
            objects = lost.len(),
            "the selector leaves out so many objects that their children and fields stay (`proving.maxDeletions`)"
        );
    }
    context.state.hold(if are_many { lost } else { BTreeSet::new() });
}

fn parents_with_children(context: &Context) -> BTreeSet<NamespacedName> {
    let (config, namespaced) = (&context.config, context.cluster.served.parent.namespaced);
    let watches = context.caches.children.values().flat_map(KindReflectors::all);
    // Retained children have no owner reference, and need no deletion.
    let parents = watches
        .flat_map(|watch| watch.owners())
        .flat_map(|(owner, children)| {
            let parent =
                |child: Option<String>| parent_by_owner(config.scope(), namespaced, &owner, child.as_deref());
            children.into_iter().filter_map(parent).collect::<Vec<_>>()
        });
    parents.collect()
}

/// Enqueues the parents in one namespace or in all. Also enqueues every cluster-scoped parent, since a change in any
/// namespace may affect it.
fn enqueue_within(context: &Context, namespace: Option<&str>, reason: &Trigger) {
    for name in context.caches.parent_names() {
        if namespace.is_none() || name.namespace.is_none() || name.namespace.as_deref() == namespace {
            context.queue.enqueue(&name, reason.clone());
        }
    }
}

/// Enqueues every parent on each resync and each new plugin version, and the parents in a namespace when a watch there
/// fails or recovers.
///
/// `plugin` must already have observed the version that the first reconciles use; only later versions enqueue every
/// parent.
async fn keep_enqueueing(context: &Context, mut plugin: Receiver<Live>) {
    let pulse = &context.observer.enqueuing;
    let mut beat = interval(pulse.period());
    let period = context.config.resync;
    let mut resync = interval_at(Instant::now() + period, period);
    let mut subscribed = context.state.subscriptions.subscribe();
    let mut states = states(context);
    let mut canary = context.versions.canary.clone();
    loop {
        let state_changed = async {
            let changes = states.iter_mut().map(|(_, state)| Box::pin(state.changed()));
            let (_, index, _) = select_all(changes).await;
            index
        };
        pulse.beat();
        let reason = tokio::select! {
            _ = beat.tick() => continue,
            _ = resync.tick() => {
                enqueue_deleted(context);
                Trigger::Resync
            }
            Ok(()) = plugin.changed() => Trigger::Reload,
            Ok(()) = canary.changed() => Trigger::Reload,
            index = state_changed => {
                let (namespace, _) = &states[index];
                // Parents of every namespace read from the other namespaces.
                let namespace = namespace.as_deref();
                let namespace = namespace.filter(|it| !context.config.rules.other_namespaces.contains(it));
                enqueue_within(context, namespace, &Trigger::Resync);
                continue;
            }
            // The watched namespaces have changed.
            Ok(()) = subscribed.changed() => {
                states = self::states(context);
                continue;
            }
        };
        enqueue_all(context, &reason);
    }
}

/// Returns receivers of the next state of every watch, with its namespace. At least one is returned: that of the
/// parents.
fn states(context: &Context) -> Vec<(Option<String>, Receiver<WatchState>)> {
    let watches = context.caches.watches().into_iter();
    let states = watches.map(|watch| {
        let mut state = watch.state();
        state.mark_unchanged();
        (watch.namespace().map(str::to_owned), state)
    });
    states.collect()
}

async fn work(context: Arc<Context>, reconciles: TaskTracker) {
    let pulse = &context.observer.working;
    let mut beat = interval(pulse.period());
    loop {
        pulse.beat();
        let work = tokio::select! {
            _ = beat.tick() => continue,
            work = context.queue.next() => work,
        };
        let Some(work) = work else { return };
        let parent = work.parent.clone();
        let turn = Turn::default();
        let mut reconcile = Box::pin(process(Arc::clone(&context), work, turn.clone()));
        tokio::select! {
            () = &mut reconcile => {}
            () = turn.given_up(), if context.queue.aside() < MOST_ASIDE => {
                context.queue.set_aside(&parent);
                reconciles.spawn(reconcile);
            }
        }
    }
}

/// Reconciles a parent that a worker has taken from the queue, and says when it is next.
async fn process(context: Arc<Context>, work: Work, turn: Turn) {
    let (parent, reasons, waited) = (work.parent, work.reasons, work.since.elapsed());
    if reasons.contains(&Trigger::Resync) {
        context.state.try_unkept_again(&parent);
    }
    let first = reasons.first().map_or("none", Trigger::as_str);
    let observer = &context.observer;
    let started = Instant::now();
    let root = root_span(&context, &parent, &reasons, waited);
    let span = info_span!(
        "reconcile",
        controller = context.config.name,
        parent = %parent,
        trigger = first,
        waited_us = u64::try_from(waited.as_micros()).unwrap_or(u64::MAX),
    );
    let shown = &reasons[..reasons.len().min(SHOWN)];
    debug!(controller = context.config.name, %parent, reasons = ?shown, count = reasons.len(), "reconcile started");
    // Spawn a task, so that a panic ends this reconcile and not the worker.
    let running = {
        let (context, parent) = (Arc::clone(&context), parent.clone());
        let root = root.clone();
        let reconcile = async move { trace::around(&root, reconcile(&context, &parent, &root)).await };
        tokio::spawn(turn.run(reconcile).instrument(span))
    };
    let next = match running.await {
        Ok(next) => next,
        Err(panic) => {
            error!(controller = context.config.name, %parent, %panic, "internal error: a reconcile panicked; please report it");
            observer.fails(&parent, "panic", &panic, &root);
            context.state.memory_of(&parent, |memory| {
                memory.failure.count = memory.failure.count.saturating_add(1);
            });
            Action::Backoff
        }
    };
    observer.reconciled(&parent, first, waited, started.elapsed(), &root);
    let retry = |least: Duration, most: Duration| {
        let failures = context.state.memory_of(&parent, |memory| memory.failure.count);
        let delay = backoff::delay(&context.config.backoff, failures);
        let at = Instant::now() + delay.min(most).max(least);
        // What others wait for comes before a write that may not be answered again.
        match context.state.is_silent(&parent) {
            true => context.queue.retry_at(&parent, at),
            false => context.queue.enqueue_at(&parent, at),
        }
    };
    debug!(controller = context.config.name, %parent, ?next, "reconcile done");
    match next {
        Action::OnChange => {}
        Action::After(delay) => context.queue.enqueue_at(&parent, Instant::now() + delay),
        Action::Backoff => retry(Duration::ZERO, Duration::MAX),
        Action::BackoffAtMost(most) => retry(Duration::ZERO, most),
        Action::BackoffAtLeast(least) => retry(least, Duration::MAX),
    }
    // Taken before the parent can be given to another worker, whose writes they must not include.
    let own = context.state.take_own_writes(&parent);
    context.queue.done(&parent, |reason| own.explain(reason));
}

/// Creates the root span of one reconcile. It links to its cause: the reload of the plugin, or the previous reconcile,
/// which set the timer or wrote the child.
fn root_span(context: &Context, parent: &NamespacedName, reasons: &[Trigger], waited: Duration) -> Span {
    let tracer = &context.observer.tracer;
    let is_reload = reasons.contains(&Trigger::Reload);
    let reload = is_reload.then(|| tracer.last_reload(&context.config.id));
    let is_own = |it: &Trigger| matches!(it, Trigger::Timer | Trigger::Retry | Trigger::Child { .. });
    let follows = reasons.iter().any(is_own);
    let cause = follows.then(|| context.state.memory_of(parent, |memory| memory.last_span.clone()));
    let cause = reload.flatten().or(cause.flatten());
    let config = &context.config;
    let span = tracer.root(cause, || {
        info_span!(
            target: trace::TARGET,
            parent: None,
            "reconcile",
            operator.controller = config.name,
            operator.trigger = reasons.first().map_or("none", Trigger::as_str),
            operator.triggers = i64::try_from(reasons.len()).unwrap_or(i64::MAX),
            operator.queue_ms = waited.as_secs_f64() * 1e3,
            k8s.object.api_version = config.parent.api_version,
            k8s.object.kind = config.parent.kind,
            k8s.object.name = parent.name,
            k8s.namespace.name = parent.namespace.as_deref(),
            k8s.object.uid = Empty,
            k8s.object.generation = Empty,
        )
    });
    if let Some(identity) = trace::identity(&span) {
        context
            .state
            .memory_of(parent, |memory| memory.last_span = Some(identity));
    }
    span
}

type Reaction = fn(&Context, &Kind, &Change<'_>);

/// Subscribes to the watches, so that changes in the cluster enqueue parents.
fn subscribe(context: &Arc<Context>) {
    let mut subscriptions = Vec::new();
    // A weak reference avoids a cycle: the context owns the watches, and they own the subscribers.
    let weak = Arc::downgrade(context);
    let of = |watches: &KindReflectors, interests: &[Interest<'static>], react: Reaction| {
        let weak = weak.clone();
        let subscriber: Subscriber = Arc::new(move |kind, change| {
            if let Some(context) = weak.upgrade().filter(|_| !change.is_same()) {
                react(&context, kind, change);
            }
        });
        let subscribe = |watch: &Arc<Reflector>| watch.subscribe_to(interests.to_vec(), subscriber.clone());
        watches.all().iter().map(subscribe).collect::<Vec<_>>()
    };
    let all = [Interest::All];
    subscriptions.extend(of(&context.caches.parents, &all, parent_changed));
    let of_children = interests_in_children(&context.config);
    for watches in context.caches.children.values() {
        subscriptions.extend(of(watches, &of_children, child_changed));
    }
    for watches in context.caches.reads.values() {
        subscriptions.extend(of(watches, &all, related_changed));
    }
    subscriptions.extend(context.caches.namespaces.on_change({
        let weak = weak.clone();
        move |namespace, change| {
            if let Some(context) = weak.upgrade() {
                namespace_changed(&context, namespace, change);
            }
        }
    }));
    // Drop the previous subscriptions only now, so that no change is missed.
    context.state.subscriptions.send_replace(subscriptions);
}

/// Returns the objects that may have a parent of this controller, as [`parent_of`] finds it.
fn interests_in_children(config: &ControllerConfig) -> Vec<Interest<'static>> {
    let owned = Interest::OwnedBy {
        group: config.parent.group().to_owned().into(),
        kind: config.parent.kind.clone().into(),
    };
    vec![Interest::Labeled(config.name.clone().into()), owned]
}

fn parent_changed(context: &Context, _: &Kind, change: &Change<'_>) {
    let Some(object) = change.object() else {
        return;
    };
    if let Some(decorates) = &context.config.decorates
        && (!change.both().any(|object| context.caches.selects(object))
            || !decorates.watch_status && is_of_status_only(change))
    {
        return;
    }
    if let Some(new) = change.after().filter(|_| change.is_new())
        && let Some(namespace) = new.metadata.namespace.as_deref()
    {
        context.caches.namespaces.object_created(namespace);
    }
    let reason = Trigger::Parent {
        version: own_write_version(change),
    };
    context.queue.enqueue(&NamespacedName::of(object), reason);
}

/// Reports whether an object differs in nothing but its status. Many kinds of Kubernetes have no generation that would tell.
fn is_of_status_only(change: &Change<'_>) -> bool {
    let without_status = |object: &Arc<DynamicObject>| {
        let mut object = DynamicObject::clone(object);
        (object.metadata.managed_fields, object.metadata.resource_version) = (None, None);
        if let Some(fields) = object.data.as_object_mut() {
            fields.remove("status");
        }
        object
    };
    let (before, after) = (change.before(), change.after());
    before.is_some() && before.map(without_status) == after.map(without_status)
}

fn child_changed(context: &Context, kind: &Kind, change: &Change<'_>) {
    let Some(object) = change.object() else {
        return;
    };
    let (kind, name) = (kind.clone(), NamespacedName::of(object));
    let child = ChildRef { kind, name };
    let reason = Trigger::Child {
        child: child.clone(),
        version: own_write_version(change),
    };
    // A child that loses its label or its owner affects its former parent.
    let (scope, namespaced) = (context.config.scope(), context.cluster.served.parent.namespaced);
    let parents = change
        .both()
        .filter_map(|object| parent_of(scope, namespaced, object));
    let mut parents: Vec<NamespacedName> = parents.collect();
    parents.dedup();
    for parent in parents {
        if change.after().is_none() {
            context.state.forget_written(&parent, &child);
            // The child may be deleted because its parent is.
            context.doubt(&parent);
            context.note_removal(&parent, &child, object);
        }
        context.queue.enqueue(&parent, reason.clone());
    }
}

fn namespace_changed(context: &Context, namespace: &str, change: NamespaceChange) {
    match change {
        // No parent in that namespace waits for it, but cluster-scoped ones may.
        NamespaceChange::Usable => {
            if !context.cluster.served.parent.namespaced
                && reaches(context.config.scope(), None, Some(namespace))
            {
                enqueue_all(context, &Trigger::Related);
            }
            enqueue_by_namespace_labels(context);
        }
        NamespaceChange::Relabeled => enqueue_by_namespace_labels(context),
        // Enqueue the parents that wait for their cleanup: their plugin does not know yet that the namespace is
        // deleted.
        NamespaceChange::Terminating => {
            let watch = context.caches.parents.of(Some(namespace));
            let watch = watch.filter(|_| context.cluster.served.parent.namespaced);
            let is_there = |parent: &NamespacedName| parent.namespace.as_deref() == Some(namespace);
            let parent = |name: &NamespacedName| context.caches.parent(name);
            for name in watch.iter().flat_map(|watch| watch.names()).filter(is_there) {
                if parent(&name).is_some_and(|parent| is_terminating(&parent)) {
                    context.queue.enqueue(&name, Trigger::Related);
                }
            }
        }
    }
}

/// Enqueues the parents whose plugin reads from namespaces with certain labels.
fn enqueue_by_namespace_labels(context: &Context) {
    for parent in context.state.needs.parents_by_namespace_labels() {
        context.queue.enqueue(&parent, Trigger::Related);
    }
}

fn related_changed(context: &Context, kind: &Kind, change: &Change<'_>) {
    if !context.state.needs.has_kind(kind) {
        return;
    }
    for object in change.both() {
        let namespace = object.metadata.namespace.as_deref();
        let may_read = |parent: &NamespacedName| {
            let scope = context.config.scope();
            let home = scope.home(&parent.name, parent.namespace.as_deref());
            is_readable(&context.config, home, namespace)
        };
        let parents = context.state.needs.parents_in_need_of(kind, object);
        for parent in parents.into_iter().filter(may_read) {
            context.queue.enqueue(&parent, Trigger::Related);
        }
    }
}

/// Returns the version by which the host recognizes its own write. A change without a newer version is none: the object
/// has a new default value.
fn own_write_version(change: &Change<'_>) -> Option<u128> {
    let new = version(change.after()?)?;
    let is_newer = change.is_new() || change.old_version().is_some_and(|old| old < new);
    is_newer.then_some(new)
}

#[cfg(test)]
mod tests;
