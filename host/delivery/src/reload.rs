//! Reloads each controller's plugin when its file changes.
//!
//! ConfigMap mounts, editors and copies change files in different ways, and some volumes send no notifications. So a task
//! for each file looks at it every second, and when something may have changed; see [`WatchedFile`]. New contents are sent
//! to one task per controller, so that a plugin that takes long to compile does not block the others. The configuration file
//! is watched in the same way.

mod notifications;

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use tokio::sync::watch;
use tokio_util::sync::CancellationToken;
use tokio_util::task::AbortOnDropHandle;

use super::candidate_check::Orders;
use super::follow::Follower;
use super::registry::{PluginFile, Slot};
use super::source::{Look, SETTLE, WatchedFile};
use crate::changes::sleep_or_never;
use crate::oci::transport::Transports;
use operator_host_config::location::Location;
use operator_host_runtime::fair::{Fair, Member};
use operator_host_telemetry::metrics::Metrics;

/// How often to look without a notification.
const POLL: Duration = Duration::from_secs(1);
/// Plugins that are looked at, at the same time: each look has a thread, and there may be hundreds of plugins.
const LOOKS: usize = 2;
/// Plugins that are pulled at the same time. Each is in memory until it is whole.
const PULLS: usize = 4;

/// Where the plugins come from that the host fetches itself.
pub struct PluginSources {
    /// The connections to registries.
    transports: Arc<Transports>,
    /// Where the files of ConfigMaps are put that the host reads itself; see [`WatchedFile::mounted`].
    config_maps: PathBuf,
    /// Where plugins are put that were pulled.
    pulled: PathBuf,
    /// Tenants take turns.
    looks: Fair,
    pulls: Fair,
}

/// Keeps a slot filled until this is dropped. A plugin that is being loaded then is discarded.
pub struct Filled {
    _looking: AbortOnDropHandle<()>,
    _filling: AbortOnDropHandle<()>,
}

impl PluginSources {
    /// `config_maps` is the folder of the ConfigMaps that the host reads itself, and `pulled` that of plugins from registries;
    /// `metrics` has the requests to registries.
    pub fn new(config_maps: PathBuf, pulled: PathBuf, metrics: Arc<Metrics>) -> Self {
        Self {
            transports: Arc::new(Transports::new(metrics)),
            config_maps,
            pulled,
            looks: Fair::new(LOOKS, 1),
            pulls: Fair::new(PULLS, 1),
        }
    }

    /// Keeps the slot filled from its file or registry until the returned value is dropped.
    #[must_use]
    pub fn fill(&self, slot: Arc<Slot>) -> Filled {
        let (contents, receiver) = watch::channel(None);
        let restored = CancellationToken::new();
        let filling = fill(Arc::clone(&slot), receiver, restored.clone());
        let filling = AbortOnDropHandle::new(tokio::spawn(filling));
        let looking = match slot.expected().location.clone() {
            Location::File(file) => {
                let source = WatchedFile::new(file, slot.expected().limits.module);
                self.fill_from_file(source, slot, contents)
            }
            Location::ConfigMap(key) => {
                let file = self.config_maps.join(key.folder()).join(&key.key);
                let source = WatchedFile::mounted(file, slot.expected().limits.module);
                self.fill_from_file(source, slot, contents)
            }
            Location::Registry { reference, settings } => {
                let transports = Arc::clone(&self.transports);
                let follower = Follower {
                    turns: self.pulls.named(&slot.expected().tenant),
                    folder: self.pulled.clone(),
                    slot,
                    reference,
                    settings,
                    transports,
                    contents,
                };
                AbortOnDropHandle::new(tokio::spawn(async move {
                    // Before, a registry that is away would look worse than it is.
                    restored.cancelled().await;
                    follower.run().await;
                }))
            }
        };
        Filled {
            _looking: looking,
            _filling: filling,
        }
    }

    fn fill_from_file(
        &self,
        source: WatchedFile,
        slot: Arc<Slot>,
        contents: watch::Sender<Option<PluginFile>>,
    ) -> AbortOnDropHandle<()> {
        let turns = self.looks.named(&slot.expected().tenant);
        let path = source.path().to_owned();
        watch_file(source, Some(turns), move |look| match look {
            Look::New(found) => {
                contents.send_replace(Some(PluginFile::found(path.clone(), found)));
            }
            Look::Trouble(reason) => {
                // The last contents must not become live later, when its objects have changed.
                contents.send_replace(None);
                slot.fail(&reason, None, false);
            }
            Look::Same | Look::Unsettled => {}
        })
    }
}

/// Says that files in a folder have changed. Who writes them there knows it at once, and also where there is no notification,
/// as of a folder that is new.
pub fn changed(folder: &Path) {
    notifications::changed(folder);
}

/// Calls `on_look` with what is found at a file, first now and then whenever it changes, until the returned value is dropped.
/// Each look waits for one of the `turns`, if there are any.
pub fn watch_file(
    mut source: WatchedFile,
    turns: Option<Arc<Member>>,
    mut on_look: impl FnMut(Look) + Send + 'static,
) -> AbortOnDropHandle<()> {
    let looking = async move {
        let mut changed = notifications::of(source.folder());
        loop {
            changed.mark_unchanged();
            let turn = match &turns {
                Some(turns) => Some(turns.acquire(1).await),
                None => None,
            };
            let look = tokio::task::spawn_blocking(move || (source.look(), source)).await;
            let look = match look {
                Ok((look, same)) => {
                    source = same;
                    look
                }
                // A host that no longer sees files must be started again.
                Err(error) if error.is_panic() => std::process::abort(),
                Err(_stopping) => return,
            };
            drop(turn);
            let is_settled = look != Look::Unsettled;
            on_look(look);
            tokio::select! {
                () = tokio::time::sleep(if is_settled { POLL } else { SETTLE }) => {}
                // A writer goes on for a while, and another file may change all the time.
                Ok(()) = changed.changed(), if is_settled => tokio::time::sleep(SETTLE).await,
            }
        }
    };
    AbortOnDropHandle::new(tokio::spawn(looking))
}

/// Settles one controller's slot, with the newest state, whenever its file or its orders change.
async fn fill(
    slot: Arc<Slot>,
    mut contents: watch::Receiver<Option<PluginFile>>,
    restored: CancellationToken,
) {
    let mut orders = slot.proof.orders();
    loop {
        let file = contents.borrow_and_update().clone();
        orders.mark_unchanged();
        let again = tokio::select! {
            biased;
            // The running decision is outdated.
            Ok(()) = contents.changed() => continue,
            () = orders_changed(&mut orders) => continue,
            again = slot.settle(file.as_ref()) => again,
        };
        restored.cancel();
        tokio::select! {
            changed = contents.changed() => if changed.is_err() { return },
            () = orders_changed(&mut orders) => {}
            () = sleep_or_never(again) => {}
        }
    }
}

/// Waits until the orders change. The first orders do not count as a change, because `settle` waits for them.
async fn orders_changed(orders: &mut watch::Receiver<Option<Orders>>) {
    loop {
        let known = orders.borrow().is_some();
        if orders.changed().await.is_err() {
            return std::future::pending().await;
        }
        if known {
            return;
        }
    }
}

#[cfg(test)]
mod tests;
