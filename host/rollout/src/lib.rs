//! Proves a new version of a plugin before it takes over: calls it for the live objects with their real requests
//! and compares its answers with those of the live version. Nothing is written.
//!
//! Each controller has one [`Proving`] for as long as it is configured. The supervisor reports to it whether the
//! controller runs, the plugin's slot asks it for a proof, and reconciles read from its [`ParentConditions`]
//! whether their parent holds a version back.

pub mod definitions;
pub mod orders;
pub mod stages;

mod answer;
mod compare;
mod objects;
mod shadow;

use std::collections::BTreeMap;
use std::convert::Infallible;
use std::sync::{Arc, Mutex, Weak};
use std::time::{Duration, Instant};

use kube::core::DynamicObject;
use serde_json::Value;
use tokio::sync::{Notify, watch};
use tokio_util::sync::CancellationToken;
use tracing::{debug, warn};

use self::answer::SecretValues;
use self::compare::{Findings, MAX_BLAMED, find};
use self::definitions::record::LiveRecord;
use self::definitions::{Installer, installed, losses};
use self::objects::{Question, dropped, worse};
use self::shadow::{Known, Snapshot};
use operator_host_cluster::cache::{Reflector, WatchState};
use operator_host_cluster::discovery::ResolvedKind;
use operator_host_config::{ControllerConfig, DefinitionsMode, ProvingMode};
use operator_host_contract::{EventType, Kind};
use operator_host_core::clock;
use operator_host_core::crd::definition;
use operator_host_core::digest::{Digest, Prefix};
use operator_host_core::object::{
    NamespacedName, PIN_ANNOTATION, PROMOTE_ANNOTATION, annotation, fingerprint, is_unreadable,
};
use operator_host_core::sync::lock;
use operator_host_delivery::candidate_check::{
    Blamed, CandidateCheck, HeldBack, OrderKind, Orders, Progress, ProofResult, Recorded, UNMATCHED_PIN,
};
use operator_host_delivery::registry::Live;
use operator_host_desired::conditions::Reason;
use operator_host_engine::reconcile::canary::{Canary, Versions};
use operator_host_engine::reconcile::context::Context;
use operator_host_engine::reconcile::parent_conditions::ParentConditions;
use operator_host_engine::work_queue::Trigger;
use operator_host_runtime::{Plugin, RandomSource};

/// Time limit of a proof. Objects that were not examined by then are skipped.
const BUDGET: Duration = Duration::from_secs(30);
/// How long a version waits for the first lists before the log says so.
const HINT: Duration = Duration::from_secs(30);
/// The wait before a record that cannot be read is read again.
const AGAIN: Duration = Duration::from_secs(2);
/// The reason of the Events.
const EVENT: &str = "PluginHeldBack";

/// Where the objects are to prove a version on.
#[derive(Clone, Default)]
struct Objects {
    /// The name of the kind's definition; `None` when the cluster does not serve the kind, so that there are no objects.
    definition: Option<String>,
    /// The controller once its first lists are complete.
    running: Weak<Context>,
}

/// Proves new plugin versions of one controller; see the module.
pub struct Proving {
    config: watch::Sender<Arc<ControllerConfig>>,
    /// `None` until it is known whether the cluster serves the kind.
    objects: watch::Sender<Option<Objects>>,
    orders: watch::Sender<Option<Orders>>,
    blocking_parents: Arc<ParentConditions>,
    /// A proved version that some parents have already.
    canary: watch::Sender<Option<Canary>>,
    /// What was held back before the controller ran. Its parents have no condition about it yet.
    untold: Mutex<Option<HeldBack>>,
    /// Installs the definition of the kind.
    pub installer: Arc<Installer>,
    /// Which version is live, on the definition.
    pub record: Arc<LiveRecord>,
    /// The last candidate that was proved and converts its kind.
    converter: watch::Sender<Option<Plugin>>,
}

impl Proving {
    /// Creates the state of a controller that does not run yet.
    pub fn new(config: Arc<ControllerConfig>, installer: Arc<Installer>, record: Arc<LiveRecord>) -> Self {
        Self {
            config: watch::Sender::new(config),
            objects: watch::Sender::default(),
            orders: watch::Sender::default(),
            blocking_parents: Arc::default(),
            canary: watch::Sender::default(),
            untold: Mutex::default(),
            installer,
            record,
            converter: watch::Sender::default(),
        }
    }

    /// Returns the last candidate that was proved and converts its kind. Its definition may be installed before it is
    /// live.
    pub fn converter(&self) -> watch::Receiver<Option<Plugin>> {
        self.converter.subscribe()
    }

    /// Applies a new configuration of the controller. A version that is held back is proved again.
    pub fn configure(&self, config: Arc<ControllerConfig>) {
        self.config.send_replace(config);
    }

    fn config(&self) -> Arc<ControllerConfig> {
        Arc::clone(&self.config.borrow())
    }

    /// Records that the controller is about to run.
    pub fn starting(&self, parent: &ResolvedKind) {
        self.objects.send_replace(Some(Objects {
            definition: Some(parent.definition_name()),
            ..Objects::default()
        }));
    }

    /// Records that the cluster does not serve the kind.
    pub fn without_definition(&self) {
        self.objects.send_replace(Some(Objects::default()));
    }

    /// Records that the first lists are complete.
    pub fn running(&self, context: &Arc<Context>) {
        self.objects.send_modify(|objects| {
            objects.get_or_insert_default().running = Arc::downgrade(context);
        });
        // What was announced before the parents were known, for example a pin that matches nothing.
        let untold = lock(&self.untold).take();
        if let Some(held) = &untold {
            self.announce(Some(held));
        }
    }

    /// Returns what the reconciles must know: the live version, the proved one that some parents have already, and which
    /// parents hold a version back.
    pub fn versions(&self, live: watch::Receiver<Live>) -> Versions {
        Versions {
            live,
            canary: self.canary.subscribe(),
            blocking_parents: Arc::clone(&self.blocking_parents),
        }
    }

    /// Gives a proved version to some parents first, if stages are configured. Without a live version there is nothing to
    /// return to.
    async fn staged_well(
        &self,
        live: Option<&Plugin>,
        candidate: &Plugin,
        say: Progress<'_>,
    ) -> Result<(), Box<HeldBack>> {
        // Without a definition there are no objects. A controller that starts has them soon.
        if self.config().proving.stages.is_empty() || self.context().await.is_none() {
            return Ok(());
        }
        match live {
            Some(_) => stages::run(self, candidate, say).await,
            None => Err(stages::nothing_to_return_to()),
        }
    }

    /// Follows the promote and pin annotations of the definition until `stop` is cancelled.
    pub async fn listen(&self, definitions: Arc<Reflector>, stop: CancellationToken) {
        let changed = Arc::new(Notify::new());
        let hint = Arc::clone(&changed);
        let _subscription = definitions.subscribe(Arc::new(move |_, _| hint.notify_one()));
        let mut state = definitions.state();
        let mut objects = self.objects.subscribe();
        let mut config = self.config.subscribe();
        let mut overtaken = self.record.overtaken();
        let mut last_logged = None;
        loop {
            let configured = config.has_changed().unwrap_or(false);
            config.mark_unchanged();
            overtaken.mark_unchanged();
            let objects_now = objects.borrow_and_update().clone();
            let name_now = objects_now.map(|it| it.definition);
            let state_now = state.borrow_and_update().clone();
            let known = match (name_now, state_now) {
                (None, _) => None,
                (Some(None), _) => {
                    self.record.observe(Recorded::Nothing);
                    Some(self.ordered(None, &mut last_logged))
                }
                // The record is on the Controller, which nobody else writes. It gives the orders, too.
                (Some(Some(name)), _) if self.config().decorates.is_some() => {
                    let read = async {
                        loop {
                            match self.record.read(&name).await {
                                Ok(recorded) => break recorded,
                                Err(error) => debug!("cannot read the recorded version: {error}"),
                            }
                            tokio::time::sleep(AGAIN).await;
                        }
                    };
                    let Some(recorded) = stop.run_until_cancelled(read).await else {
                        return;
                    };
                    self.record.observe(recorded);
                    Some(self.ordered(None, &mut last_logged))
                }
                (Some(Some(_)), WatchState::Starting) => None,
                // Without permission to read definitions, their annotations have no effect.
                (Some(Some(name)), state @ (WatchState::Synced | WatchState::Failing(_))) => {
                    let definition = definitions.get(&NamespacedName::parse(&name));
                    let recorded = match (&definition, state) {
                        (None, WatchState::Failing(_)) => {
                            let read = stop.run_until_cancelled(self.record.read(&name)).await;
                            let Some(read) = read else { return };
                            read.unwrap_or_else(Recorded::Unknown)
                        }
                        (None, _) => Recorded::Nothing,
                        (Some(definition), _) => self.record.of(|name| annotation(definition, name)),
                    };
                    self.record.observe(recorded);
                    Some(self.ordered(definition.as_deref(), &mut last_logged))
                }
            };
            self.orders.send_if_modified(|orders| {
                // The known annotations stay valid while the watch restarts.
                let is_changed = known.is_some() && (configured || *orders != known);
                if is_changed {
                    orders.clone_from(&known);
                }
                is_changed
            });
            tokio::select! {
                () = changed.notified() => {}
                Ok(()) = state.changed() => {}
                Ok(()) = objects.changed() => {}
                Ok(()) = config.changed() => config.mark_changed(),
                Ok(()) = overtaken.changed() => {}
                () = stop.cancelled() => return,
            }
        }
    }

    fn ordered(&self, definition: Option<&DynamicObject>, last_logged: &mut Option<String>) -> Orders {
        let config = self.config();
        // A Controller gives the orders itself.
        let annotated = definition.filter(|_| !config.is_object());
        let mut wrong = None;
        let mut read = |name: &str| {
            let text = annotated.and_then(|definition| annotation(definition, name))?;
            Prefix::parse(text)
                .inspect_err(|error| wrong = Some(format!("the annotation {name} is ignored: {error}")))
                .ok()
        };
        let (promote, pin) = (read(PROMOTE_ANNOTATION), read(PIN_ANNOTATION));
        if let Some(wrong) = &wrong
            && last_logged.as_ref() != Some(wrong)
        {
            warn!(controller = self.config().name, "{wrong}");
        }
        *last_logged = wrong;
        Orders {
            promote: [promote, config.proving.promote.clone()]
                .into_iter()
                .flatten()
                .collect(),
            pin: pin.or_else(|| config.proving.pin.clone()),
            definition: definition.and_then(|definition| definition.metadata.generation),
            overtaken: *self.record.overtaken().borrow(),
        }
    }

    /// Installs the definition of a version that may become live. From then on it converts for this host.
    async fn make_way(&self, candidate: &Plugin) -> Result<(), Box<HeldBack>> {
        if self.config().definitions == DefinitionsMode::Install && candidate.description().converts() {
            self.converter.send_replace(Some(candidate.clone()));
        }
        let orders = self.orders.borrow().clone();
        let is_pinned = orders.is_some_and(|orders| orders.pins(candidate.digest()));
        self.installer.prepare(candidate, is_pinned).await
    }

    /// Returns the controller if it runs now.
    fn running_context(&self) -> Option<Arc<Context>> {
        self.objects.borrow().as_ref()?.running.upgrade()
    }

    /// Returns the name of the kind's definition, if the cluster serves the kind.
    fn definition(&self) -> Option<String> {
        self.objects.borrow().as_ref()?.definition.clone()
    }

    /// Returns the running controller; `None` when there is none and there are no objects for it.
    async fn context(&self) -> Option<Arc<Context>> {
        let mut objects = self.objects.subscribe();
        loop {
            if let Some(objects) = &*objects.borrow_and_update() {
                objects.definition.as_ref()?;
                if let Some(context) = objects.running.upgrade() {
                    return Some(context);
                }
            }
            objects.changed().await.ok()?;
        }
    }

    async fn compared(&self, live: Option<&Plugin>, candidate: &Plugin) -> ProofResult {
        if self.config().proving.mode == ProvingMode::Off {
            return ProofResult::NotCompared("proving is off".to_owned());
        }
        let hint = async {
            tokio::time::sleep(HINT).await;
            let promote = self.how_to(OrderKind::Promote, Some(candidate.digest()));
            warn!(
                controller = self.config().name,
                digest = %candidate.digest(),
                "a new version of the plugin is proved after the first lists of its controller, which are not complete; if they \
                 fail because no live version converts the resources, promote it: {promote}"
            );
            std::future::pending::<Infallible>().await
        };
        let context = tokio::select! {
            context = self.context() => context,
            never = hint => match never {},
        };
        let Some(context) = context else {
            return ProofResult::NotCompared("no object of this kind exists".to_owned());
        };
        let start = Instant::now();
        let result = compare(&context, live, candidate).await;
        debug!(
            controller = self.config().name,
            took_us = start.elapsed().as_micros(),
            verdict = ?result,
            "proof done"
        );
        result
    }

    /// Returns what to do about a version that is held back.
    fn advice(&self, live: Option<&Plugin>, candidate: &Plugin) -> String {
        let promote = self.how_to(OrderKind::Promote, Some(candidate.digest()));
        if live.is_some() {
            return format!("fix the plugin, or promote this version anyway: {promote}");
        }
        let known = self.record.known();
        let (missing, back) = match &*known.borrow() {
            Some(Recorded::Version(version)) => (
                format!(
                    "the version {} that was live is neither in the plugin's file nor among the kept versions",
                    version.short()
                ),
                "put that version back into the plugin's file, fix the plugin",
            ),
            Some(Recorded::Unknown(why)) => (
                format!("which version was live is not known, because {why}"),
                "fix the plugin",
            ),
            Some(Recorded::Nothing) | None => ("no version is live".to_owned(), "fix the plugin"),
        };
        format!("{missing}, so nothing is changed; {back}, or promote this version anyway: {promote}")
    }
}

#[async_trait::async_trait]
impl CandidateCheck for Proving {
    fn orders(&self) -> watch::Receiver<Option<Orders>> {
        self.orders.subscribe()
    }

    async fn recorded(&self) -> Recorded {
        let mut known = self.record.known();
        let known = known.wait_for(Option::is_some).await;
        known.ok().and_then(|known| known.clone()).unwrap_or_default()
    }

    async fn accept(&self, version: &Plugin, over: &Recorded) {
        self.record.accept(version, over).await;
    }

    async fn prove(&self, live: Option<&Plugin>, candidate: &Plugin, say: Progress<'_>) -> ProofResult {
        // It has become live. A later live version does not need its help.
        self.converter.send_if_modified(|converter| {
            converter
                .take_if(|converter| live.is_some_and(|live| converter.digest() == live.digest()))
                .is_some()
        });
        let proved = async {
            let compared = self.compared(live, candidate).await;
            if let ProofResult::HeldBack(held) = compared {
                return Err(held);
            }
            self.make_way(candidate).await?;
            self.staged_well(live, candidate, say).await?;
            Ok(compared)
        };
        match proved.await {
            Ok(proved) => proved,
            Err(mut held) => {
                self.canary.send_if_modified(|canary| canary.take().is_some());
                let version = &candidate.description().version;
                let (digest, advice) = (candidate.digest().short(), self.advice(live, candidate));
                let version = format!("version {version} ({digest}) is held back");
                held.message = format!("{version}: {}; {advice}", held.message);
                held.summary = format!("{version}: {}; {advice}", held.summary);
                held.advice = match live {
                    Some(_) => format!("{version}; {advice}"),
                    None => format!("{version} ({}); {advice}", held.reason),
                };
                ProofResult::HeldBack(held)
            }
        }
    }

    fn withdraw(&self) {
        let was_given = self.canary.send_if_modified(|canary| canary.take().is_some());
        if was_given {
            // If it comes back, it begins with the first stage.
            let record = Arc::clone(&self.record);
            tokio::spawn(async move { record.write_stage(None).await });
        }
    }

    async fn install(&self, candidate: &Plugin) {
        if let Err(held) = self.make_way(candidate).await {
            warn!(controller = self.config().name, "{}", held.message);
        }
    }

    async fn who(&self, order: OrderKind, digest: &Digest) -> Option<String> {
        let config = self.config();
        let configured = config.proving.promote.iter().any(|prefix| prefix.matches(digest));
        if order == OrderKind::Promote && configured && !config.is_object() {
            return Some("the configuration".to_owned());
        }
        let definition = self.definition()?;
        let client = self.running_context()?.cluster.client.clone();
        orders::who(&client, &config, &definition, order).await
    }

    fn how_to(&self, order: OrderKind, digest: Option<&Digest>) -> String {
        let definition = self.definition();
        let digest = digest.map(Digest::short);
        orders::command(&self.config(), definition.as_deref(), order, digest.as_deref())
    }

    fn announce(&self, held: Option<&HeldBack>) {
        // Locked before it looks whether the parents are known: `running` says that first, and then takes what is left here.
        let mut untold = lock(&self.untold);
        let context = self.running_context();
        *untold = held.filter(|_| context.is_none()).cloned();
        drop(untold);
        let mut now: BTreeMap<NamespacedName, Reason> = BTreeMap::new();
        if let Some(held) = held {
            now.extend(held.objects.iter().take(MAX_BLAMED).map(|blamed| {
                // A reader of one parent's Events learns only about that parent.
                let text = format!("{}: {}\n{}", blamed.message, held.advice, blamed.diff);
                let reason = Reason::new(held.reason, text.trim_end());
                (NamespacedName::parse(&blamed.object), reason)
            }));
        }
        // No parent causes a pin that matches nothing, so the first ones show it.
        if let (Some(held), Some(context)) = (held.filter(|held| held.reason == UNMATCHED_PIN), &context) {
            let first = sample(context).into_iter().take(MAX_BLAMED);
            now.extend(first.map(|name| (name, Reason::new(held.reason, held.message.as_str()))));
        }
        let before = self.blocking_parents.replace(now.clone());
        // Enqueue each of them, so that their conditions are updated.
        let Some(context) = context else { return };
        for name in before.keys().chain(now.keys()) {
            context.queue.enqueue(name, Trigger::Resync);
        }
        for (name, reason) in &now {
            if let Some(parent) = context.caches.parent(name) {
                context.publish(&parent, EventType::Warning, EVENT, &reason.message);
            }
        }
    }
}

fn held(reason: &'static str, message: String, objects: Vec<Blamed>) -> ProofResult {
    ProofResult::HeldBack(Box::new(HeldBack::new(reason, message, objects)))
}

fn not_proved(message: String) -> ProofResult {
    held("NotProved", message, Vec::new())
}

async fn compare(context: &Context, live: Option<&Plugin>, candidate: &Plugin) -> ProofResult {
    let config = &context.config;
    let mut names = sample(context);
    // If the list of parents failed, none of them in the sample does not mean that there are none.
    let mut failure = context.caches.parents_failure();
    // Skip parents whose watch fails, and those that cannot be read: they are not reconciled either.
    names.retain(|name| {
        let parent = context.caches.parent(name);
        let found = parent.as_ref().and_then(|parent| context.watch_failure(parent));
        let is_read = parent.is_none_or(|parent| !is_unreadable(&parent));
        let is_shown = found.is_none() && is_read;
        failure = failure.take().or(found);
        is_shown
    });
    if let Some(failure) = failure.filter(|_| names.is_empty()) {
        return not_proved(format!("it cannot be proved now: {failure}"));
    }
    let parents: Vec<_> = names.iter().take(config.proving.objects).collect();
    // A problem that no single object has is reported on the first ones.
    let all = |message: &str| -> Vec<Blamed> {
        let first = parents.iter().take(MAX_BLAMED);
        first.map(|name| Blamed::new(name, message)).collect()
    };
    // Without a live version there is nothing to compare with. What an answer has of other kinds is refused below.
    let beyond = live.map_or_else(Vec::new, |live| beyond(config, live, candidate));
    if !beyond.is_empty() {
        let (name, beyond) = (&config.name, beyond.join(" or "));
        let message = format!("the configuration of the controller {name:?} does not allow it {beyond}");
        return held("NotAllowed", message.clone(), all(&message));
    }
    if let Some(version) = live.and_then(|live| dropped(live, candidate).into_iter().next()) {
        let message = format!("it does not convert {version}, which the live version converts");
        return held("Incompatible", message.clone(), all(&message));
    }
    for (question, reason, what, wrong) in [
        (
            Question::Conversion,
            "LossyConversion",
            "its conversions",
            "its conversion loses something of some objects",
        ),
        (
            Question::Defaults,
            "UnstableDefaults",
            "its defaults",
            "its defaults for some objects fail, or change when it is asked again",
        ),
    ] {
        let worse = match worse(question, context, live, candidate, &names).await {
            Ok(worse) => worse,
            Err(error) => return not_proved(format!("{what} cannot be proved now: {error}")),
        };
        if !worse.is_empty() {
            return held(reason, wrong.to_owned(), worse);
        }
    }
    if let Some(carried) = &candidate.description().crd
        && live.and_then(|live| live.description().crd.as_ref()) != Some(carried)
        && config.definitions == DefinitionsMode::Check
    {
        let objects = parents.iter().filter_map(|name| context.caches.parent(name));
        let objects: Vec<_> = objects.collect();
        let name = context.cluster.served.parent.definition_name();
        match installed(&context.cluster.client, &name, &config.name).await {
            Ok(None) => {}
            Ok(Some(installed)) => {
                let (carried, parent) = (carried.value(), config.parent.clone());
                let of_kind = losses::of_kind(&installed, &carried, parent.version());
                if let Some(first) = of_kind.first() {
                    let what = "its CustomResourceDefinition conflicts with the one in the cluster";
                    let message = format!("{what}: {first}");
                    return held("Incompatible", message.clone(), all(&message));
                }
                let work = move || unfit(&installed, &carried, &parent, &objects);
                let unfit = match off_the_serving_threads(work).await {
                    Ok(unfit) => unfit,
                    Err(error) => return not_proved(error),
                };
                if !unfit.is_empty() {
                    let message = "existing objects do not fit its CustomResourceDefinition";
                    return held("Incompatible", message.to_owned(), unfit);
                }
            }
            Err(error) => {
                let message = format!("its definition cannot be compared with the cluster's now: {error}");
                return not_proved(message);
            }
        }
    }
    let known = match Known::read(context).await {
        Ok(known) => Arc::new(known),
        Err(error) => return not_proved(format!("the definitions cannot be read now: {error}")),
    };
    let mut findings = Findings::of(names.len(), live.is_none());
    let start = Instant::now();
    for name in parents {
        if findings.is_settled() || start.elapsed() > BUDGET {
            break;
        }
        if let Some(parent) = context.caches.parent(name)
            && let Err(error) = context.load_proof_key(&parent, None).await
        {
            return not_proved(format!("it cannot be proved now: {error}"));
        }
        let Some(snapshot) = Snapshot::of(context, name, clock::now()) else {
            continue;
        };
        let mut values = SecretValues::default();
        let mut evaluate = async |plugin: &Plugin, random| {
            let plugin = plugin.proving(random);
            snapshot.evaluate(context, &plugin, &mut values, &known).await
        };
        let was = match live {
            Some(live) => Some(evaluate(live, RandomSource::First).await),
            None => snapshot.failure(),
        };
        let first = evaluate(candidate, RandomSource::First).await;
        let second = match &first {
            Ok(_) => Some(evaluate(candidate, RandomSource::Second).await),
            Err(_) => None,
        };
        let (name, children) = (name.clone(), snapshot.deletable(context));
        let work = move || {
            findings.add(&name, children, find(was, first, second));
            findings
        };
        findings = match off_the_serving_threads(work).await {
            Ok(findings) => findings,
            Err(error) => return not_proved(error),
        };
    }
    findings.decide(config.proving.max_deletions)
}

/// Returns the first objects that would lose something, or become invalid, by the definition that a version carries.
fn unfit(installed: &Value, carried: &Value, parent: &Kind, objects: &[Arc<DynamicObject>]) -> Vec<Blamed> {
    let schema = |crd| definition::schema(crd, parent);
    let Some((before, after)) = schema(installed).zip(schema(carried)) else {
        return Vec::new();
    };
    let unfit = objects.iter().filter_map(|object| {
        // Serialization of a resource cannot fail.
        let value = serde_json::to_value(&**object).unwrap_or_default();
        let lost = losses::objection(&value, before, after)?;
        let message = format!("it does not fit the definition that this version carries: {lost}");
        Some(Blamed::new(&NamespacedName::of(object), message))
    });
    unfit.take(MAX_BLAMED).collect()
}

/// Runs work whose time grows with the size of answers and objects, so that it blocks no serving thread.
async fn off_the_serving_threads<T: Send + 'static>(
    work: impl FnOnce() -> T + Send + 'static,
) -> Result<T, String> {
    let done = tokio::task::spawn_blocking(work).await;
    done.map_err(|error| format!("it cannot be proved now: {error}"))
}

/// Returns all parents in a stable order that does not depend on their names, so that the first of them are a fair
/// sample.
fn sample(context: &Context) -> Vec<NamespacedName> {
    let mut names = context.caches.parent_names();
    names.sort_by_cached_key(|name| fingerprint(&name.to_string()));
    names
}

/// Returns the kinds that the candidate declares, the live version does not, and the configuration does not allow.
fn beyond(config: &ControllerConfig, live: &Plugin, candidate: &Plugin) -> Vec<String> {
    let (before, after) = (live.description(), candidate.description());
    let children = &config.rules.children;
    let makes = after.makes.iter().filter(|kind| !before.makes.contains(kind));
    let makes = makes.filter(|kind| !children.contains_key(kind));
    let reads = after.reads.iter().filter(|kind| !before.reads.contains(kind));
    let reads = reads.filter(|kind| !config.reads.contains(kind));
    let all = makes
        .map(|kind| ("create", kind))
        .chain(reads.map(|kind| ("read", kind)));
    all.map(|(verb, kind)| format!("to {verb} objects of the kind {kind}"))
        .collect()
}
