//! The running controllers. They follow the configuration: a controller whose configuration does not change keeps
//! running.

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::sync::Arc;

use tokio::sync::watch;
use tokio::task::JoinHandle;
use tokio_util::sync::{CancellationToken, DropGuard};
use tokio_util::task::TaskTracker;
use tracing::{error, info, warn};

use super::agreement;
use crate::supervisor::{ControllerWriters, Shared, supervise};
use operator_host_cluster::cache::{CachePolicy, KeepPolicy, Reflector};
use operator_host_cluster::client::{ClientError, Pace, Writer};
use operator_host_config::location::Location;
use operator_host_config::webhook::WebhookReach;
use operator_host_config::{Config, ControllerConfig, object};
use operator_host_delivery::candidate_check::CandidateCheck as _;
use operator_host_delivery::changes::send_if_new;
use operator_host_delivery::kept::Versions;
use operator_host_delivery::registry::{Expected, Live, Slot};
use operator_host_delivery::reload::{Filled, PluginSources};
use operator_host_rollout::Proving;
use operator_host_rollout::definitions::Installer;
use operator_host_rollout::definitions::record::LiveRecord;
use operator_host_runtime::Runtime;
use operator_host_runtime::fair::Fair;
use operator_host_webhook::PluginTarget;

/// The host's rights that the API server reviews at the same time.
const REVIEWS: usize = 4;

/// The running controllers and what they share.
pub(super) struct Controllers {
    slot_parts: SlotParts,
    shared: Shared,
    /// The currently configured namespaces.
    watched: watch::Sender<Arc<[String]>>,
    stop: CancellationToken,
    tasks: TaskTracker,
    running: BTreeMap<String, Running>,
    reviews: Fair,
}

/// The parts from which plugin slots are created.
pub(super) struct SlotParts {
    pub(super) runtime: Runtime,
    pub(super) sources: PluginSources,
    /// The CustomResourceDefinitions: users give orders by annotating them.
    pub(super) definitions: Arc<Reflector>,
    /// Distinguishes this host from others in the cluster.
    pub(super) installation: String,
    /// How the API server reaches the webhook.
    pub(super) reach: Option<WebhookReach>,
    /// The folder for the last versions of each plugin.
    pub(super) state: Option<PathBuf>,
    /// The space that all versions together may take.
    pub(super) room: u64,
}

/// One controller that runs or waits for its kind.
struct Running {
    config: Arc<ControllerConfig>,
    plugin: PluginSlot,
    stop: CancellationToken,
    task: JoinHandle<()>,
}

/// The plugin of one controller.
struct PluginSlot {
    slot: Arc<Slot>,
    live: watch::Receiver<Live>,
    proving: Arc<Proving>,
    /// Ends it, when dropped, that `proving` listens to users' orders.
    listening: DropGuard,
    /// Converts and defaults as long as there is the slot: the API server needs conversions before the kind can be
    /// listed, and while its controller is replaced or stops.
    target: Arc<PluginTarget>,
    _filled: Filled,
}

impl Controllers {
    /// Creates the set without a controller. `stop` stops all controllers.
    pub(super) fn new(
        slot_parts: SlotParts,
        shared: Shared,
        watched: watch::Sender<Arc<[String]>>,
        stop: CancellationToken,
    ) -> Self {
        Self {
            slot_parts,
            shared,
            watched,
            stop,
            tasks: TaskTracker::new(),
            running: BTreeMap::new(),
            reviews: Fair::new(REVIEWS, 1),
        }
    }

    /// Reports whether a controller of this name runs for the same kind, or waits for it.
    pub(super) fn runs(&self, controller: &ControllerConfig) -> bool {
        let running = self.running.get(&controller.id);
        running.is_some_and(|running| running.config.parent.is_version_of(&controller.parent))
    }

    /// Stops and starts the controllers that differ from this configuration.
    pub(super) async fn apply(&mut self, config: &Config) {
        let namespaces: Arc<[String]> = config.namespaces.iter().cloned().collect();
        // Between some and all namespaces every watch is replaced. Between some and others, running controllers follow.
        let other_watches = namespaces.is_empty() != self.watched.borrow().is_empty();
        let by_name = config.controllers.iter().map(|it| (&*it.id, it));
        let by_name: BTreeMap<&str, &ControllerConfig> = by_name.collect();
        let wanted = |name: &String| by_name.get(name.as_str()).copied();
        let is_outdated = |name: &String, running: &mut Running| {
            other_watches || wanted(name).is_none_or(|wanted| *wanted != *running.config)
        };
        let mut outdated: BTreeMap<_, _> = self.running.extract_if(.., is_outdated).collect();
        let (changed, removed): (Vec<_>, Vec<_>) =
            outdated.keys().cloned().partition(|name| wanted(name).is_some());
        let new = |controller: &&ControllerConfig| {
            !self.running.contains_key(&controller.id) && !outdated.contains_key(&controller.id)
        };
        let added = config.controllers.iter().filter(new);
        let added: Vec<_> = added.map(|controller| &*controller.id).collect();
        // Stop all of them before one starts: a kind may move from one controller to another.
        for running in outdated.values() {
            running.stop.cancel();
        }
        for running in outdated.values_mut() {
            // A panic was logged where it occurred.
            let _ = (&mut running.task).await;
        }
        for name in &removed {
            self.shared.instruments.health.forget(name);
            self.shared.instruments.metrics.forget(name);
            if let Some(journal) = &self.shared.instruments.journal {
                journal.forget(name);
            }
        }
        self.shared.watches.keep(keep_policy(config));
        // A host that may watch some namespaces only may not list them all.
        let all = namespaces.is_empty().then_some(&*self.shared.watches);
        self.shared.namespaces.watch(all);
        send_if_new(&self.watched, namespaces);
        for controller in &config.controllers {
            if !self.running.contains_key(&controller.id) {
                // Perhaps of another controller: it may have been renamed.
                let is_for = |it: &&Running| it.config.parent.is_version_of(&controller.parent);
                let fallback = outdated.values().find(is_for);
                let fallback = fallback.map(|running| running.plugin.target.converter());
                let before = outdated.remove(&controller.id);
                match self.start(Arc::new(controller.clone()), before, fallback) {
                    Ok(running) => {
                        self.running.insert(controller.id.clone(), running);
                    }
                    Err(error) => error!(controller = controller.id, "cannot start the controller: {error}"),
                }
            }
        }
        info!(
            added = added.join(", "),
            changed = changed.join(", "),
            removed = removed.join(", "),
            "configuration applied"
        );
    }

    /// Reports why no plugin of a ConfigMap can be loaded.
    pub(super) fn lack_config_maps(&self, problem: &str) {
        for running in self.running.values() {
            if matches!(running.config.plugin, Location::ConfigMap(_)) {
                running.plugin.slot.fail(problem, None, false);
            }
        }
    }

    /// Waits until all controllers have ended, after `stop`. Their plugins convert as long as `self` is held.
    pub(super) async fn stopped(&self) {
        self.tasks.close();
        self.tasks.wait().await;
    }

    fn start(
        &self,
        config: Arc<ControllerConfig>,
        before: Option<Running>,
        fallback: Option<watch::Receiver<Live>>,
    ) -> Result<Running, ClientError> {
        let factory = &self.shared.writers;
        let pace = Pace::new(config.writes.qps, config.writes.burst);
        let limits = Arc::new(factory.write_limits(pace));
        let own = factory.writer(None)?.limited(&limits);
        let children = match &config.service_account {
            None => own.clone(),
            account => factory.writer(account.as_ref())?.limited(&limits),
        };
        let plugin = self.plugin_slot(&config, &own, before, fallback);
        let (live, slot, health) = (plugin.live.clone(), &plugin.slot, &self.shared.instruments.health);
        health.expect(&config.id, live.clone(), slot.report(), slot.history());
        let proving = Arc::clone(&plugin.proving);
        let (installer, record) = (Arc::clone(&proving.installer), Arc::clone(&proving.record));
        let stop = self.stop.child_token();
        let writers = ControllerWriters { own, children };
        installer.configure(Arc::clone(&config), writers.own.clone());
        self.tasks.spawn(Arc::clone(&installer).follow(
            live.clone(),
            proving.orders(),
            Arc::clone(&self.slot_parts.definitions),
            stop.clone(),
        ));
        let compare = agreement::follow(
            Arc::clone(&config),
            live.clone(),
            self.shared.clone(),
            self.reviews.named(config.tenant()),
            Arc::clone(&self.slot_parts.definitions),
            [installer.trouble(), record.trouble()],
        );
        self.tasks.spawn(stop.clone().run_until_cancelled_owned(compare));
        let (shared, of) = (self.shared.clone(), Arc::clone(&config));
        let supervised = supervise(shared, of, live, writers, proving, stop.clone());
        let task = self.tasks.spawn(supervised);
        Ok(Running {
            config,
            plugin,
            stop,
            task,
        })
    }

    /// Returns the slot of a controller's plugin. The live version is kept as long as the controller is for the same
    /// kind. Until there is one, `fallback` converts.
    fn plugin_slot(
        &self,
        config: &Arc<ControllerConfig>,
        writer: &Writer,
        before: Option<Running>,
        fallback: Option<watch::Receiver<Live>>,
    ) -> PluginSlot {
        let expected = Expected {
            controller: config.id.clone(),
            parent: config.parent.clone(),
            decorates: config.decorates.is_some(),
            location: config.plugin.clone(),
            limits: config.limits,
            trust: config.trust.clone(),
            tenant: config.tenant().to_owned(),
        };
        let before = before.map(|running| running.plugin);
        let kind = |of: &Expected| (of.parent.clone(), of.decorates);
        let before = before.filter(|plugin| kind(plugin.slot.expected()) == kind(&expected));
        let (slot, live, proving, listening, target) = match before {
            Some(plugin) => {
                plugin.proving.configure(Arc::clone(config));
                plugin.proving.record.configure(config, writer.clone());
                if *plugin.slot.expected() == expected {
                    return plugin;
                }
                let slot = plugin.slot.expecting(expected);
                (slot, plugin.live, plugin.proving, plugin.listening, plugin.target)
            }
            None => {
                let (proving, listening) = self.listen(config, writer);
                let instruments = &self.shared.instruments;
                let metrics = instruments.metrics.of(&config.id, &config.parent);
                let proof = Arc::clone(&proving) as _;
                let (slot, live) = Slot::new(self.slot_parts.runtime.clone(), expected, metrics, proof);
                let mut slot = slot.traced(instruments.tracer.clone());
                if let Some(versions) = self.versions(config) {
                    slot = slot.keeping(versions);
                }
                let (own, next) = (live.clone(), proving.converter());
                let target = PluginTarget::new(config, own, fallback, next, instruments);
                let target = self.shared.webhook_targets.add_plugin(target);
                (slot, live, proving, listening, target)
            }
        };
        let slot = Arc::new(slot);
        PluginSlot {
            _filled: self.slot_parts.sources.fill(Arc::clone(&slot)),
            slot,
            live,
            proving,
            listening,
            target,
        }
    }

    /// Creates what proves new versions. It listens to users' orders about them until the guard is dropped.
    fn listen(&self, config: &Arc<ControllerConfig>, writer: &Writer) -> (Arc<Proving>, DropGuard) {
        let shared = &self.shared;
        let SlotParts {
            installation, reach, ..
        } = &self.slot_parts;
        let (client, kinds) = (shared.client.clone(), Arc::clone(&shared.kinds));
        let record = LiveRecord::new(client.clone(), installation, config, writer.clone());
        let installer = Installer::new(client, kinds, installation.clone(), reach.clone());
        let proving = Proving::new(Arc::clone(config), Arc::new(installer), Arc::new(record));
        let proving = Arc::new(proving);
        let stop = self.stop.child_token();
        let listener = Arc::clone(&proving);
        let (definitions, until) = (Arc::clone(&self.slot_parts.definitions), stop.clone());
        self.tasks
            .spawn(async move { listener.listen(definitions, until).await });
        (proving, stop.drop_guard())
    }

    /// Opens the stored versions. If their folder cannot be used, the controller starts without one.
    fn versions(&self, config: &ControllerConfig) -> Option<Versions> {
        let folder = self.slot_parts.state.as_deref()?;
        let versions = Versions::open(folder, &config.id, config.proving.keep, self.slot_parts.room);
        let versions = versions.inspect_err(|error| {
            warn!(controller = config.name, folder = %folder.display(), %error,
                "the versions of this plugin cannot be stored: after a restart the host uses its file without proving it");
        });
        versions.ok()
    }
}

fn keep_policy(config: &Config) -> KeepPolicy {
    let mut policy = KeepPolicy::new();
    if config.ceilings.is_some() {
        policy.entry(object::kind()).or_default().all = true;
    }
    for controller in &config.controllers {
        for kind in std::iter::once(&controller.parent).chain(&controller.reads) {
            policy.entry(kind.clone()).or_default().all = true;
        }
        for kind in controller.rules.children.keys() {
            let keep: &mut CachePolicy = policy.entry(kind.clone()).or_default();
            keep.owned_by.insert(controller.parent.clone());
        }
    }
    policy
}
