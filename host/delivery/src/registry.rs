//! Selects which version of a plugin is live. A reconcile uses one version until its end, whatever is
//! reloaded meanwhile.

mod held;
mod load;
mod plugin_file;
mod remote;

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use tokio::sync::watch;
use tracing::field::display;
use tracing::{debug, error, info, warn};

use self::held::Waiting;
use self::load::Refused;
pub use self::plugin_file::PluginFile;
use super::acceptance;
use super::candidate_check::{
    CandidateCheck, HeldBack, OrderKind, Orders, ProofResult, Recorded, UNMATCHED_PIN,
};
use super::history::{History, HistoryEntry, Why};
use super::kept::Versions;
use super::report::{CandidateVersion, KeptVersion, LiveVersion, PluginReport};
use super::source::Content;
use operator_host_config::location::Location;
use operator_host_config::trust::Trust;
use operator_host_contract::Kind;
use operator_host_core::digest::{Digest, Prefix};
use operator_host_core::text::shorten;
use operator_host_runtime::fair::Member;
use operator_host_runtime::{CodeOrigin, Limits, Plugin, Runtime};
use operator_host_telemetry::metrics::ControllerMetrics;
use operator_host_telemetry::trace::Tracer;

/// Maximum size in bytes of the reason why a file is refused.
const MAX_REASON: usize = 4 << 10;

/// The plugin that a controller calls.
#[derive(Clone)]
pub enum Live {
    /// The plugin is not loaded yet.
    Loading,
    /// This version is called.
    Plugin(Plugin),
    /// No version can be called.
    Failed(Unusable),
}

impl Live {
    /// Returns the version that is called; `None` when there is none.
    pub const fn plugin(&self) -> Option<&Plugin> {
        match self {
            Self::Plugin(plugin) => Some(plugin),
            Self::Loading | Self::Failed(_) => None,
        }
    }
}

/// Why no version of a plugin can be called.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Unusable {
    /// The reason and what to do.
    pub why: Arc<str>,
    /// The plugin is for another kind: perhaps the objects of the configured one are not this host's to touch.
    pub is_of_other_kind: bool,
}

impl<T: Into<Arc<str>>> From<T> for Unusable {
    fn from(why: T) -> Self {
        Self {
            why: why.into(),
            is_of_other_kind: false,
        }
    }
}

/// The requirements for a controller's plugin.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Expected {
    /// The controller's name.
    pub controller: String,
    /// The kind that the plugin must reconcile.
    pub parent: Kind,
    /// Whether the kind is only decorated, so that its objects get no finalizer.
    pub decorates: bool,
    /// Where the plugin comes from.
    pub location: Location,
    /// The caps on the file and on each call.
    pub limits: Limits,
    /// Whose plugins are accepted.
    pub trust: Trust,
    /// With whom the plugin takes turns to be loaded: all of one tenant together have as many as each other tenant.
    pub tenant: String,
}

/// How long an entry of the history waits to learn who gave an order. Later entries wait for it.
const WHO: Duration = Duration::from_secs(10);
/// When a file is loaded again that the host could not load for a reason of its own, such as no process to compile it.
const RETRY: Duration = Duration::from_secs(10);
/// When a file is loaded again that had changed before its turn came, unless the change is noticed earlier.
const OUTDATED: Duration = Duration::from_secs(2);

/// The slot of one controller's plugin. Only a version that is loaded, belongs to the controller and is
/// proved becomes live, and only the next version replaces it. Clones share the slot.
#[derive(Clone)]
pub struct Slot {
    runtime: Runtime,
    tenant: Arc<Member>,
    expected: Expected,
    metrics: ControllerMetrics,
    pub(crate) tracer: Tracer,
    live: Arc<watch::Sender<Live>>,
    pub(crate) proof: Arc<dyn CandidateCheck>,
    versions: Option<Arc<Versions>>,
    history: Arc<History>,
    waiting: Arc<Mutex<Option<Waiting>>>,
    /// As in the last orders.
    overtaken: Arc<AtomicU64>,
    report: Arc<watch::Sender<PluginReport>>,
}

impl Slot {
    /// Creates an empty slot, and the receiver that the controller reads. A version becomes live when it is proved.
    pub fn new(
        runtime: Runtime,
        expected: Expected,
        metrics: ControllerMetrics,
        proof: Arc<dyn CandidateCheck>,
    ) -> (Self, watch::Receiver<Live>) {
        let (live, receiver) = watch::channel(Live::Loading);
        let report = PluginReport {
            controller: expected.controller.clone(),
            file: expected.location.to_string(),
            ..PluginReport::default()
        };
        let slot = Self {
            tenant: runtime.tenant(&expected.tenant),
            runtime,
            expected,
            metrics,
            tracer: Tracer::default(),
            live: Arc::new(live),
            proof,
            versions: None,
            history: Arc::default(),
            waiting: Arc::default(),
            overtaken: Arc::default(),
            report: Arc::new(watch::Sender::new(report)),
        };
        (slot, receiver)
    }

    /// Returns the same slot with other requirements: the live version stays until another one meets them.
    pub fn expecting(&self, expected: Expected) -> Self {
        let file = expected.location.to_string();
        self.report.send_modify(|report| {
            report.file = file;
            // Asks the registry again, or another one.
            report.registry = None;
        });
        Self {
            tenant: self.runtime.tenant(&expected.tenant),
            expected,
            ..self.clone()
        }
    }

    /// Returns the same slot with a span for each reload.
    #[must_use]
    pub fn traced(self, tracer: Tracer) -> Self {
        Self { tracer, ..self }
    }

    /// Returns the same slot; the last versions are kept on disk.
    #[must_use]
    pub fn keeping(self, versions: Versions) -> Self {
        self.report.send_modify(|report| report.kept = versions.list());
        let versions = Arc::new(versions);
        Self {
            history: Arc::new(History::within(Arc::clone(&versions))),
            versions: Some(versions),
            ..self
        }
    }

    /// Returns the requirements for its plugin.
    pub fn expected(&self) -> &Expected {
        &self.expected
    }

    /// Returns the report about the plugin.
    pub fn report(&self) -> watch::Receiver<PluginReport> {
        self.report.subscribe()
    }

    /// Returns which versions were live.
    pub fn history(&self) -> Arc<History> {
        Arc::clone(&self.history)
    }

    /// Makes the last good version live, if it was kept.
    pub(crate) async fn restore(&self) {
        let kept = self.versions.as_ref().map(|versions| versions.list());
        let mut kept = kept.unwrap_or_default().into_iter();
        if kept.len() == 0 {
            return;
        }
        let recorded = self.proof.recorded().await;
        let last = match &recorded {
            // Another replica may have gone on to a version that was not kept here.
            Recorded::Version(digest) => kept.find(|kept| kept.digest == digest.to_string()),
            Recorded::Nothing | Recorded::Unknown(_) => kept.next(),
        };
        let Some(last) = last else { return };
        match self.kept(&last).await {
            Ok((plugin, _)) => {
                let because = Because::new(None, "it was the last good one before the restart");
                self.promote(plugin, None, because, &recorded, None).await;
            }
            Err(reason) => self.log_not_restored(&last, &reason),
        }
    }

    /// Takes the live version back when another one is recorded: another replica has led meanwhile.
    fn take_back_if_overtaken(&self) -> bool {
        let orders = self.proof.orders();
        let overtaken = orders.borrow().as_ref().map_or(0, |orders| orders.overtaken);
        let is_overtaken = self.overtaken.swap(overtaken, Ordering::Relaxed) < overtaken;
        if is_overtaken {
            self.live.send_replace(Live::Loading);
            self.report.send_modify(|report| report.live = None);
        }
        is_overtaken
    }

    /// Selects the live version from the file's contents, the kept versions and the current live version.
    /// Returns when to check again even if nothing changes. The future can be dropped at any time.
    pub async fn settle(&self, file: Option<&PluginFile>) -> Option<Duration> {
        if self.take_back_if_overtaken() && file.is_none() {
            let why = "another version was recorded as live meanwhile, and the plugin's file cannot be read";
            self.has_no_live_version(why.into());
        }
        if self.live_version().is_none() {
            self.restore().await;
        }
        let mut again = None;
        // Loaded first, because that takes the longest and needs no orders.
        let mut loaded = None;
        if let Some(file) = file.filter(|file| !self.is_live(file)) {
            match self.loaded(file).await {
                Ok(plugin) => loaded = Some((plugin, file)),
                Err(reason) if reason.is_outdated() => again = Some(OUTDATED),
                Err(reason) => {
                    self.fail(&reason.to_string(), Some(file.digest), reason.is_of_other_kind());
                    again = reason.is_of_host().then_some(RETRY);
                }
            }
        }
        let orders = self.known_orders().await;
        let pinned = orders.pin.as_ref().map(ToString::to_string);
        self.report.send_if_modified(|report| {
            let changed = report.pinned != pinned;
            report.pinned.clone_from(&pinned);
            changed
        });
        let is_missing = |pin: &Prefix| !self.digest().is_some_and(|live| pin.matches(&live));
        if !orders.pin.as_ref().is_some_and(is_missing) {
            self.report_pin(None);
        }
        match (&orders.pin, loaded) {
            (Some(pin), loaded) if !loaded.as_ref().is_some_and(|(_, file)| pin.matches(&file.digest)) => {
                // After a rollback the version in the file is no longer live: settle again, to report it.
                let loaded = loaded.map(|(plugin, _)| plugin);
                self.follow(pin, loaded).await.then_some(Duration::ZERO).or(again)
            }
            (_, Some((plugin, file))) => self.consider(plugin, file, &orders).await,
            (_, None) => {
                if file.is_some_and(|file| self.is_live(file)) {
                    self.file_is_live();
                }
                again
            }
        }
    }

    /// Makes a loaded version live when there is no reason against it. Returns when to check again.
    async fn consider(&self, plugin: Plugin, file: &PluginFile, orders: &Orders) -> Option<Duration> {
        let digest = Some(file.digest);
        if let Some(live) = self.live_version().filter(|_| orders.pin.is_none())
            && let Err(older) =
                acceptance::check_age(&self.expected.trust, plugin.description(), live.description())
        {
            let how = self.proof.how_to(OrderKind::Pin, digest.as_ref());
            self.fail(&format!("{older}: {how}"), digest, false);
            return None;
        }
        let recorded = self.proof.recorded().await;
        let because = match self.live_version() {
            Some(live) if live.digest() == plugin.digest() => Because::new(None, "its limits were changed"),
            None if recorded == Recorded::Nothing => Because::new(Why::First, "it was the first"),
            None if recorded == Recorded::Version(file.digest) => {
                Because::new(None, "it is the one that the cluster records as live")
            }
            _ if orders.forces(plugin.digest()) => {
                self.proof.install(&plugin).await;
                Because::new(Why::Forced, "promoted by force")
            }
            live => {
                self.report_proving(&plugin);
                let say = |text: &str| self.report_progress(text);
                match self.proof.prove(live.as_ref(), &plugin, &say).await {
                    ProofResult::Proved { on, diff } => Because {
                        diff,
                        ..Because::new(Why::Proved, format!("proved: {on}"))
                    },
                    ProofResult::NotCompared(why) => {
                        Because::new(Why::NotCompared, format!("not proved: {why}"))
                    }
                    ProofResult::HeldBack(held) => {
                        let again = self.hold_back(&plugin, (*held).clone());
                        if live.is_none() {
                            self.has_no_live_version(held.advice.into());
                        }
                        return Some(again);
                    }
                }
            }
        };
        let noticed = Some(file.noticed);
        self.promote(plugin, Some(file), because, &recorded, noticed)
            .await;
        None
    }

    /// Reports a problem with the file. The live version stays.
    pub fn fail(&self, reason: &str, digest: Option<Digest>, is_of_other_kind: bool) {
        let location = &self.expected.location;
        // The reason may list the imports of the file; the log, the conditions and the health port repeat it.
        let reason = shorten(reason, MAX_REASON);
        let message = format!("the plugin {} cannot be used: {reason}", location.name());
        self.forget_waiting();
        let refused = CandidateVersion::refused(digest.as_ref(), &message);
        self.report.send_modify(|report| report.candidate = Some(refused));
        self.metrics.reloaded("refused");
        let unusable = Unusable {
            is_of_other_kind,
            ..message.into()
        };
        self.complain(
            unusable,
            Some(location),
            digest,
            "the previous version stays live",
        );
    }

    /// Logs a problem. Where no version is live, it is why, which is published before it is logged, so that a log line and `/readyz`
    /// agree.
    fn complain(&self, problem: Unusable, file: Option<&Location>, digest: Option<Digest>, what_stays: &str) {
        let (controller, why) = (&self.expected.controller, Arc::clone(&problem.why));
        let (file, digest) = (file.map(display), digest.map(display));
        match self.digest() {
            Some(live) => warn!(controller, file, digest, %live, "{why}; {what_stays}"),
            None => {
                self.has_no_live_version(problem);
                error!(controller, file, digest, "{why}");
            }
        }
    }

    /// Returns to the pinned version, or reports that it is missing. Returns whether the live version
    /// changed.
    async fn follow(&self, pin: &Prefix, loaded: Option<Plugin>) -> bool {
        let live = self.live_version();
        if let Some(plugin) = &loaded {
            let message = format!("another version is pinned: {pin}");
            self.put_aside(plugin, &message);
        }
        if live.is_some_and(|live| pin.matches(live.digest())) {
            return false;
        }
        let kept = self.versions.as_ref().and_then(|versions| versions.find(pin));
        let problem = match kept {
            Some(kept) => match self.kept(&kept).await {
                Ok((plugin, kept)) => {
                    let over = self.proof.recorded().await;
                    let because = Because::new(Why::RolledBack, "rolled back to the pinned version");
                    self.promote(plugin, Some(&kept), because, &over, None).await;
                    return true;
                }
                Err(reason) => {
                    self.log_not_restored(&kept, &reason);
                    format!("it cannot be restored from the kept versions: {reason}")
                }
            },
            None => "it is neither in the plugin's file nor among the kept versions".to_owned(),
        };
        let how = self.proof.how_to(OrderKind::Pin, None);
        let message = format!(
            "the version {pin} is pinned, and {problem}; put it into the file, or remove the pin: {how}"
        );
        self.report_pin(Some(&message));
        self.complain(message.into(), None, None, "the live version stays");
        false
    }

    /// Reports that no version matches the pin, or that one does.
    fn report_pin(&self, problem: Option<&str>) {
        let is_new = self.report.send_if_modified(|report| {
            let is_new = report.pin_problem.as_deref() != problem;
            report.pin_problem = problem.map(str::to_owned);
            is_new
        });
        if !is_new {
            return;
        }
        let held = problem.map(|message| HeldBack::new(UNMATCHED_PIN, message.to_owned(), Vec::new()));
        self.proof.announce(held.as_ref());
    }

    /// Makes a version live. `noticed` is when its file was; `None`: it comes from the kept versions.
    async fn promote(
        &self,
        plugin: Plugin,
        file: Option<&PluginFile>,
        because: Because,
        over: &Recorded,
        noticed: Option<Instant>,
    ) {
        self.proof.accept(&plugin, over).await;
        let before = self.digest();
        let description = plugin.description();
        self.metrics.plugin_live(&plugin);
        self.metrics.reloaded("loaded");
        let kept = KeptVersion::of(&plugin);
        let mut live = LiveVersion {
            digest: kept.digest.clone(),
            name: description.name.clone(),
            version: kept.version.clone(),
            since: kept.since,
            because: because.words.clone(),
            diff: because.diff.clone(),
        };
        if because.why.is_none() {
            self.keep_reason(&mut live);
        }
        self.add_to_history(&plugin, before, &because);
        self.live.send_replace(Live::Plugin(plugin.clone()));
        let aside = noticed.is_none();
        self.report.send_modify(|report| {
            report.live = Some(live);
            if !aside {
                report.candidate = None;
            }
        });
        if !aside {
            self.forget_waiting();
        }
        info!(
            controller = self.expected.controller,
            plugin = description.name,
            version = description.version,
            digest = %plugin.digest(),
            before = before.map(display),
            form = plugin.form().as_str(),
            contract = %description.contract,
            bytes = plugin.size(),
            compiled = plugin.code_origin() == CodeOrigin::Compiled,
            compile_ms = millis(plugin.compile_time()),
            reload_ms = noticed.map(|noticed| millis(noticed.elapsed())),
            because = because.words,
            "plugin loaded"
        );
        if !because.diff.is_empty() {
            debug!(
                controller = self.expected.controller,
                diff = because.diff,
                "differences from the previous version"
            );
        }
        let (Some(versions), Some(file)) = (self.versions.clone(), file) else {
            return;
        };
        let turn = self.tenant.acquire(1).await;
        let read = file.read().await;
        let (digest, signature) = (file.digest, file.signature.clone());
        let written = tokio::task::spawn_blocking(move || {
            let kept = read.map_err(std::io::Error::other).and_then(|bytes| {
                let file = Content {
                    bytes,
                    digest,
                    signature,
                };
                versions.keep(kept, &file)
            });
            (kept, versions.list())
        })
        .await;
        drop(turn);
        match written {
            Ok((result, list)) => {
                if let Err(error) = result {
                    warn!(controller = self.expected.controller, %error,
                        "cannot keep this version of the plugin: a restart will not restore it");
                }
                self.report.send_modify(|report| report.kept = list);
            }
            Err(error) => {
                warn!(%error, "internal error: keeping a version of a plugin panicked; please report it");
            }
        }
    }

    /// Gives a version that was live before the time and the reason that it had then, as far as they are known.
    fn keep_reason(&self, live: &mut LiveVersion) {
        let before = self.report.borrow().live.clone();
        if let Some(before) = before.filter(|before| before.digest == live.digest) {
            *live = before;
        } else if let Some(entry) = self.history.entries().into_iter().next()
            && entry.digest == live.digest
        {
            (live.since, live.because, live.diff) = (entry.at, entry.because, entry.diff);
        }
    }

    /// Adds a version that becomes live to the history, in a task of its own: nothing waits for it.
    fn add_to_history(&self, plugin: &Plugin, before: Option<Digest>, because: &Because) {
        let Some(why) = because.why else { return };
        let digest = *plugin.digest();
        let before = before.filter(|before| *before != digest);
        let held_back = self.report.borrow().candidate.clone();
        // What the comparison showed, where an order overrules it.
        let found = held_back
            .filter(|candidate| why == Why::Forced && candidate.digest.as_ref() == Some(&digest.to_string()));
        let (mut because_of, mut diff) = (because.words.clone(), because.diff.clone());
        if let Some(found) = found {
            because_of = format!("{because_of}; {}", found.without_objects());
            diff = found.diff;
        }
        let mut entry = HistoryEntry {
            at: jiff::Timestamp::now(),
            version: plugin.description().version.clone(),
            digest: digest.to_string(),
            before: before.map(|before| before.to_string()),
            why,
            because: because_of,
            by: None,
            diff,
        };
        let order = match why {
            Why::Forced => Some(OrderKind::Promote),
            Why::RolledBack => Some(OrderKind::Pin),
            _ => None,
        };
        let proof = Arc::clone(&self.proof);
        let controller = self.expected.controller.clone();
        self.history.add_when_known(controller, async move {
            if let Some(order) = order {
                let by = tokio::time::timeout(WHO, proof.who(order, &digest)).await;
                entry.by = by.ok().flatten();
            }
            entry
        });
    }

    fn log_not_restored(&self, kept: &KeptVersion, reason: &Refused) {
        warn!(
            controller = self.expected.controller,
            digest = kept.digest,
            "a kept version of the plugin cannot be restored: {reason}"
        );
    }

    async fn known_orders(&self) -> Orders {
        match self.proof.orders().wait_for(Option::is_some).await {
            Ok(known) => known.clone().unwrap_or_default(),
            Err(_) => Orders::default(),
        }
    }

    /// Publishes why no version can be called, unless another task has made one live meanwhile.
    fn has_no_live_version(&self, reason: Unusable) {
        self.live.send_if_modified(|live| {
            let changes = match live {
                Live::Plugin(_) => false,
                Live::Loading => true,
                Live::Failed(before) => *before != reason,
            };
            if changes {
                *live = Live::Failed(reason);
            }
            changes
        });
    }

    /// Whether the file's contents are already live and the requirements are unchanged.
    fn is_live(&self, file: &PluginFile) -> bool {
        self.live_version().is_some_and(|live| {
            *live.digest() == file.digest
                && *live.limits() == self.expected.limits
                && self.trusts(file).is_ok()
        })
    }

    /// Returns the digest of the live version.
    fn digest(&self) -> Option<Digest> {
        self.live_version().map(|plugin| *plugin.digest())
    }

    fn live_version(&self) -> Option<Plugin> {
        self.live.borrow().plugin().cloned()
    }
}

/// Why a version becomes live.
struct Because {
    /// For the history; `None`: the version was live before.
    why: Option<Why>,
    /// The same for users.
    words: String,
    /// The changes to the previous version's answers, if they were compared.
    diff: String,
}

impl Because {
    fn new(why: impl Into<Option<Why>>, words: impl Into<String>) -> Self {
        Self {
            why: why.into(),
            words: words.into(),
            diff: String::new(),
        }
    }
}

fn millis(duration: std::time::Duration) -> u64 {
    u64::try_from(duration.as_millis()).unwrap_or(u64::MAX)
}
