//! Installs the CustomResourceDefinition that a controller's plugin contains, when the configuration says so and nothing is
//! lost by it.
//!
//! A new version of a plugin gets its definition before it becomes live ([`Installer::prepare`]), unless the installed one
//! suffices. Whatever else differs from the live version follows afterwards ([`Installer::follow`]): so a plugin that is
//! rolled back is live before its narrower definition is applied. Only the leader of the controller writes. A definition
//! is never deleted.

mod decide;
pub mod losses;
mod plan;
pub mod record;
mod requests;

use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use kube::Client;
use serde_json::Value;
use tokio::sync::{Notify, OwnedMutexGuard, watch};
use tokio_util::sync::CancellationToken;
use tracing::{info, warn};

use self::losses::Losses;
pub use self::plan::owning;
use self::requests::Requests;
use operator_host_cluster::api_error::{ApiError, Fault};
use operator_host_cluster::cache::Reflector;
use operator_host_cluster::client::Writer;
use operator_host_cluster::discovery::Discovery;
use operator_host_config::webhook::WebhookReach;
use operator_host_config::{ControllerConfig, DefinitionsMode};
use operator_host_core::object::{DEFINITION_VERSION_ANNOTATION, NamespacedName};
use operator_host_core::sync::lock;
use operator_host_delivery::candidate_check::{HeldBack, Orders};
use operator_host_delivery::changes::{send_if_new, sleep_or_never};
use operator_host_delivery::registry::Live;
use operator_host_runtime::Plugin;

/// The first wait before a definition that was not installed is tried again. It doubles each time.
const FIRST_RETRY: Duration = Duration::from_secs(5);
/// The longest of these waits.
const MAX_RETRY: Duration = Duration::from_secs(300);
/// How long a replica that does not lead waits for the one that does.
const LEADER: Duration = Duration::from_secs(20);
/// How long the definition stays that a candidate needs. It becomes live within seconds, unless something intervenes.
const CANDIDATE: Duration = Duration::from_secs(120);
/// How often a decision is made again when the definition changes meanwhile.
const ATTEMPTS: u32 = 5;

/// Why a definition was not installed.
#[derive(Clone, Debug, PartialEq, Eq)]
enum Refusal {
    /// Something would be lost.
    Loses(Losses),
    /// The installed one stays, for this reason.
    Stays(String),
    /// It cannot be installed now, for this reason.
    NotNow(String),
    /// Somebody changed it during the decision.
    Changed(String),
}

impl Refusal {
    fn message(&self) -> String {
        match self {
            Self::Loses(losses) => losses.first().unwrap_or_default(),
            Self::Stays(message) | Self::NotNow(message) | Self::Changed(message) => message.clone(),
        }
    }
}

impl From<ApiError> for Refusal {
    fn from(error: ApiError) -> Self {
        match error.is_lost_race() {
            true => Self::Changed(error.to_string()),
            false => Self::NotNow(error.to_string()),
        }
    }
}

/// An apply that is decided.
struct Write {
    body: Value,
    /// Whether fields of other managers are taken over.
    force: bool,
    /// Whether the definition exists.
    is_change: bool,
}

/// A candidate that is about to become live.
struct Pending {
    /// The definition that it contains.
    carried: Value,
    since: Instant,
}

impl Pending {
    /// Returns how long the definition must stay for it; `None` when it has not become live in time.
    fn remaining(&self) -> Option<Duration> {
        let left = CANDIDATE.checked_sub(self.since.elapsed());
        left.filter(|left| !left.is_zero())
    }
}

/// Installs the definition of one controller; see the module.
pub struct Installer {
    client: Client,
    kinds: Arc<Discovery>,
    /// Distinguishes this host from others in the cluster.
    installation: String,
    reach: Option<WebhookReach>,
    current: watch::Sender<Option<Current>>,
    /// Whether this term has decided about the definition of the live version.
    decided: watch::Sender<bool>,
    /// Where the cluster's definition differs from that of the live version, and why it stays.
    trouble: watch::Sender<Option<Arc<str>>>,
    /// The installed definition that was last seen to be a plugin's own: nobody has edited it.
    unedited: Mutex<Option<Value>>,
    /// The candidate whose definition is installed, until it is live.
    pending: Mutex<Option<Pending>>,
    changed: Notify,
    /// The name of the live version's definition.
    name: Mutex<String>,
    /// When the last change was applied. Locked while a decision is made.
    deciding: Arc<tokio::sync::Mutex<Option<Instant>>>,
}

#[derive(Clone)]
struct Current {
    config: Arc<ControllerConfig>,
    writer: Writer,
}

impl Current {
    fn installs(&self) -> bool {
        self.config.definitions == DefinitionsMode::Install
    }

    fn leads(&self) -> bool {
        self.writer.term.leads()
    }
}

impl Installer {
    /// Creates the installer of a controller. `installation` is the same for all replicas of a host.
    pub fn new(
        client: Client,
        kinds: Arc<Discovery>,
        installation: String,
        reach: Option<WebhookReach>,
    ) -> Self {
        Self {
            client,
            kinds,
            installation,
            reach,
            current: watch::Sender::default(),
            decided: watch::Sender::new(false),
            trouble: watch::Sender::default(),
            unedited: Mutex::default(),
            pending: Mutex::default(),
            changed: Notify::new(),
            name: Mutex::default(),
            deciding: Arc::default(),
        }
    }

    /// Applies a new configuration of the controller.
    pub fn configure(&self, config: Arc<ControllerConfig>, writer: Writer) {
        let current = Current { config, writer };
        self.decided.send_replace(!current.installs());
        self.current.send_replace(Some(current));
    }

    /// Returns where the cluster's definition differs from that of the live version, and why.
    pub fn trouble(&self) -> watch::Receiver<Option<Arc<str>>> {
        self.trouble.subscribe()
    }

    /// Waits until the leader has decided about the definition of the live version, so that its first reconciles find the
    /// fields that they write.
    pub async fn decided(&self) {
        let mut decided = self.decided.subscribe();
        // The sender lives as long as `self`.
        let _ = decided.wait_for(|decided| *decided).await;
    }

    /// Installs the definition of a version that is about to become live, unless the installed one suffices. A replica
    /// that does not lead waits for it.
    ///
    /// # Errors
    /// Why the version must not become live.
    pub async fn prepare(&self, candidate: &Plugin, is_pinned: bool) -> Result<(), Box<HeldBack>> {
        let Some(current) = self.current.borrow().clone().filter(Current::installs) else {
            return Ok(());
        };
        let Some(carried) = &candidate.description().definition() else {
            return Ok(());
        };
        let prepared = async {
            if !current.leads() {
                return self.wait_for_leader(candidate, carried).await;
            }
            until_unchanged(|| self.prepare_as_leader(&current, candidate, carried, is_pinned)).await
        };
        let prepared = prepared.await;
        prepared.map_err(|refusal| Box::new(held_back(plan::name(carried), refusal)))
    }

    async fn prepare_as_leader(
        &self,
        current: &Current,
        candidate: &Plugin,
        carried: &Value,
        is_pinned: bool,
    ) -> Result<(), Refusal> {
        is_of_this_kind(candidate, carried)?;
        let deciding = Arc::clone(&self.deciding).lock_owned().await;
        let requests = Requests::new(&self.client, plan::name(carried));
        let converts = candidate.description().converts();
        let Some(installed) = requests.read().await? else {
            // There is nothing to lose, and the live version's definition is about to be installed.
            return Ok(());
        };
        let suffices = plan::suffices(&installed, carried, converts)
            && installed["metadata"]["deletionTimestamp"].is_null();
        let step = self
            .step(current, candidate, carried, &installed, is_pinned)
            .await;
        let step = match step {
            // What is not needed waits until the candidate is live: the live version may need what is there. So does what
            // cannot be decided now.
            Ok(Some(_)) | Err(Refusal::Stays(_) | Refusal::NotNow(_)) if suffices => None,
            step => step?,
        };
        *lock(&self.pending) = Some(Pending {
            carried: carried.clone(),
            since: Instant::now(),
        });
        match step {
            None => {
                let served = requests.served(&installed, *deciding).await;
                served.map_err(Refusal::NotNow)
            }
            Some(write) => self.apply(current, &requests, write, deciding).await,
        }
    }

    /// Waits until the leader has installed a definition that suffices.
    async fn wait_for_leader(&self, candidate: &Plugin, carried: &Value) -> Result<(), Refusal> {
        let requests = Requests::new(&self.client, plan::name(carried));
        let wait = async {
            let mut poll = Duration::from_millis(100);
            loop {
                let installed = requests.read().await?;
                let converts = candidate.description().converts();
                if installed.is_none_or(|installed| plan::suffices(&installed, carried, converts)) {
                    return Ok(());
                }
                tokio::time::sleep(poll).await;
                poll = (poll * 2).min(Duration::from_secs(2));
            }
        };
        let why = "the replica that leads the controller has not installed it; that replica's log says why";
        let waited = tokio::time::timeout(LEADER, wait).await;
        waited.unwrap_or_else(|_| Err(Refusal::NotNow(why.to_owned())))
    }

    /// Keeps the definition up to date with the live version until `stop`.
    pub async fn follow(
        self: Arc<Self>,
        mut live: watch::Receiver<Live>,
        mut orders: watch::Receiver<Option<Orders>>,
        definitions: Arc<Reflector>,
        stop: CancellationToken,
    ) {
        let Some(current) = self.current.borrow().clone() else {
            return;
        };
        if !current.installs() {
            self.trouble.send_replace(None);
            return;
        }
        let weak = Arc::downgrade(&self);
        let _subscription = definitions.subscribe(Arc::new(move |_, change| {
            let name = change.object().map(|object| NamespacedName::of(object).name);
            if let Some(installer) = weak.upgrade()
                && name.is_some_and(|name| name == *lock(&installer.name))
            {
                installer.changed.notify_one();
            }
        }));
        let follow = async {
            let (mut tries, mut last) = (0, None);
            loop {
                let term = &current.writer.term;
                let state = live.borrow_and_update().clone();
                let plugin = state.plugin();
                let digest = plugin.map(|plugin| *plugin.digest());
                if last.is_some() && last != digest {
                    *lock(&self.pending) = None;
                }
                last = digest;
                let crd = plugin.and_then(|plugin| plugin.description().definition());
                *lock(&self.name) = crd.as_ref().map(plan::name).unwrap_or_default().to_owned();
                let ordered = orders.borrow_and_update().clone();
                let authority = self.authority().await;
                let leads = current.leads();
                let mut again = None;
                match plugin {
                    Some(plugin) if leads => {
                        let is_pinned = current.config.trust.sha256 == Some(*plugin.digest())
                            || ordered.is_some_and(|orders| orders.pins(plugin.digest()));
                        let decided =
                            until_unchanged(|| self.bring_up_to_date(&current, plugin, is_pinned)).await;
                        tries = if decided.is_ok() { 0 } else { tries + 1 };
                        if !matches!(decided, Ok(()) | Err(Refusal::Stays(_))) {
                            again = Some(MAX_RETRY.min(FIRST_RETRY * 2_u32.saturating_pow(tries - 1)));
                        }
                        self.report(plugin, decided.err().as_ref());
                        self.decided.send_replace(true);
                    }
                    _ => {
                        self.trouble.send_replace(None);
                        // A controller without a plugin has nothing to wait for.
                        self.decided
                            .send_replace(leads && matches!(state, Live::Failed(_)));
                    }
                }
                let candidate_ends = lock(&self.pending).as_ref().and_then(Pending::remaining);
                let other_term = async {
                    match leads {
                        true => term.ended().await,
                        false => term.begun().await,
                    }
                };
                // A change of the definition does not begin the examination again at once.
                let earliest = Instant::now() + again.map_or(Duration::ZERO, |pause| pause.min(FIRST_RETRY));
                let other_definition = async {
                    self.changed.notified().await;
                    tokio::time::sleep_until(earliest.into()).await;
                };
                tokio::select! {
                    () = other_definition => {}
                    changed = live.changed() => {
                        tries = 0;
                        if changed.is_err() { return }
                    }
                    Ok(()) = orders.changed() => {}
                    () = other_term => {}
                    () = sleep_or_never(again.or(candidate_ends)) => {}
                    () = self.other_authority(&authority) => {}
                }
            }
        };
        stop.run_until_cancelled(follow).await;
    }

    fn report(&self, plugin: &Plugin, refusal: Option<&Refusal>) {
        let trouble = refusal.map(|refusal| {
            let crd = plugin.description().definition();
            let text = format!(
                "the definition {} of version {} is not installed: {}",
                crd.as_ref().map(plan::name).unwrap_or_default(),
                plugin.description().version,
                refusal.message()
            );
            Arc::from(text)
        });
        send_if_new(&self.trouble, trouble);
    }

    /// Makes the definition that of the live version.
    async fn bring_up_to_date(
        &self,
        current: &Current,
        plugin: &Plugin,
        is_pinned: bool,
    ) -> Result<(), Refusal> {
        let Some(carried) = &plugin.description().definition() else {
            let why = "the plugin contains no CustomResourceDefinition";
            return Err(Refusal::Stays(why.to_owned()));
        };
        is_of_this_kind(plugin, carried)?;
        let deciding = Arc::clone(&self.deciding).lock_owned().await;
        {
            // A candidate needs the present definition.
            let mut pending = lock(&self.pending);
            let is_awaited = |pending: &Pending| pending.carried != *carried && pending.remaining().is_some();
            if pending.as_ref().is_some_and(is_awaited) && !is_pinned {
                return Ok(());
            }
            *pending = None;
        }
        let requests = Requests::new(&self.client, plan::name(carried));
        let Some(installed) = requests.read().await? else {
            let conversion = self.conversion(plugin, None).await?;
            let write = Write {
                body: plan::body(plugin.description(), carried, conversion),
                force: false,
                is_change: false,
            };
            return self.apply(current, &requests, write, deciding).await;
        };
        if plan::suffices(&installed, carried, plugin.description().converts()) {
            // Its resources need not wait for the examination.
            self.decided.send_replace(true);
        }
        match self.step(current, plugin, carried, &installed, is_pinned).await? {
            None => Ok(()),
            Some(write) => self.apply(current, &requests, write, deciding).await,
        }
    }

    /// Applies a definition, and waits until it is served.
    async fn apply(
        &self,
        current: &Current,
        requests: &Requests<'_>,
        write: Write,
        mut deciding: OwnedMutexGuard<Option<Instant>>,
    ) -> Result<(), Refusal> {
        let Write {
            body,
            force,
            is_change,
        } = write;
        let (client, writer, manager) = (self.client.clone(), current.writer.clone(), self.manager(current));
        let controller = current.config.name.clone();
        let name = requests.name.name.clone();
        // The change may end the decision that waits for this: it must be complete nevertheless.
        let applying = tokio::spawn(async move {
            let requests = Requests::new(&client, &name);
            let applied = requests.apply(&writer, &body, &manager, force).await?;
            info!(
                controller,
                definition = name,
                version = body["metadata"]["annotations"][DEFINITION_VERSION_ANNOTATION].as_str(),
                generation = applied["metadata"]["generation"].as_i64(),
                "definition installed"
            );
            *deciding = is_change.then(Instant::now);
            drop(deciding);
            Ok::<_, ApiError>(applied)
        });
        let applied = applying.await;
        let applied = applied.map_err(|panic| Refusal::NotNow(panic.to_string()))??;
        *lock(&self.unedited) = Some(applied["spec"].clone());
        let settle = is_change.then(Instant::now);
        requests.served(&applied, settle).await.map_err(Refusal::NotNow)?;
        // For a host that may not watch definitions.
        self.kinds.changed(current.config.parent.group());
        Ok(())
    }

    fn manager(&self, current: &Current) -> String {
        plan::manager(&current.config.name, &self.installation)
    }
}

/// Refuses a definition of a kind that the plugin does not reconcile.
fn is_of_this_kind(plugin: &Plugin, carried: &Value) -> Result<(), Refusal> {
    let why = plan::of_another_kind(carried, &plugin.description().parent);
    why.map_or(Ok(()), |why| Err(Refusal::Stays(why)))
}

/// Decides again while the definition changes meanwhile, a few times.
async fn until_unchanged<F: Future<Output = Result<(), Refusal>>>(
    decide: impl Fn() -> F,
) -> Result<(), Refusal> {
    for _ in 1..ATTEMPTS {
        match decide().await {
            Err(Refusal::Changed(_)) => {}
            decided => return decided,
        }
    }
    decide().await
}

/// Returns the words for a version that must wait for its definition.
fn held_back(name: &str, refusal: Refusal) -> HeldBack {
    let message = refusal.message();
    match refusal {
        Refusal::Loses(losses) => {
            let of_kind = losses.of_kind.first().map(|lost| format!(": {lost}"));
            let of_kind = of_kind.unwrap_or_default();
            let message = format!("its definition {name} would lose something{of_kind}");
            HeldBack::new("LossyDefinition", message, losses.of_objects)
        }
        Refusal::Stays(_) | Refusal::NotNow(_) | Refusal::Changed(_) => {
            let message = format!("its definition {name} cannot be installed: {message}");
            HeldBack::new("DefinitionNotInstalled", message, Vec::new())
        }
    }
}

/// Reads a definition from the cluster; `None` when it is not there, or the host is not allowed to.
pub async fn installed(client: &Client, name: &str, controller: &str) -> Result<Option<Value>, String> {
    match Requests::new(client, name).read().await {
        Err(error) if error.fault == Fault::Refused(403) => {
            warn!(
                controller,
                "the definition {name} may not be read, so the plugin's is not compared with it: give the host's role the \
                 verb list on customresourcedefinitions"
            );
            Ok(None)
        }
        found => found.map_err(|error| error.to_string()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_definition_stays_for_a_candidate_for_a_limited_time() {
        let remaining = |ago: Duration| {
            let since = Instant::now().checked_sub(ago).unwrap();
            let carried = Value::Null;
            Pending { carried, since }.remaining()
        };
        assert!(remaining(Duration::ZERO).is_some_and(|left| left <= CANDIDATE));
        assert_eq!(remaining(CANDIDATE), None);
        assert_eq!(remaining(CANDIDATE * 2), None);
    }
}
