//! Reloads each controller's plugin when its file changes.
//!
//! A thread watches the files' folders. A notification of the operating system about a folder is only a hint
//! to look at its files: ConfigMap mounts, editors and copies change files in different ways, and some
//! volumes send no notifications, so the thread also looks periodically without a hint. The decision is based
//! on the digest of a file that has settled. New contents are sent to one task per controller, so that a
//! plugin that takes long to compile does not block the others. The configuration file is watched in the same
//! way.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::io;
use std::os::unix::fs::MetadataExt as _;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::mpsc::{self, RecvTimeoutError};
use std::time::{Duration, Instant};

use notify::event::{AccessKind, AccessMode};
use notify::{EventKind, RecommendedWatcher, RecursiveMode, Watcher as _};
use tokio::sync::watch;
use tokio_util::sync::{CancellationToken, DropGuard};
use tracing::{debug, warn};

use super::Location;
use super::candidate_check::Orders;
use super::follow::Follower;
use super::registry::{PluginFile, Slot};
use super::source::{Look, WatchedFile};
use crate::oci::transport::Transports;
use operator_host_core::metrics::Metrics;

/// After a hint, wait until there was none for this time…
const QUIET: Duration = Duration::from_millis(50);
/// … but not longer than this.
const MAX_BURST: Duration = Duration::from_millis(500);
/// How often to look without a hint.
const POLL: Duration = Duration::from_secs(1);

/// The thread that watches files. It ends when this is dropped.
pub struct Files {
    messages: mpsc::Sender<Message>,
    next: AtomicU64,
    /// The connections to registries.
    transports: Arc<Transports>,
    /// Where the files of ConfigMaps are put that the host reads itself; see [`WatchedFile::mounted`].
    config_maps: PathBuf,
}

/// Watches a file until this is dropped.
pub struct Watched {
    messages: mpsc::Sender<Message>,
    number: u64,
}

/// Keeps a slot filled until this is dropped.
pub struct Filled {
    _watched: Option<Watched>,
    /// Stops the task at once, so that a plugin that is being loaded is discarded.
    _stop: DropGuard,
}

/// Called with each look that found something, and with the time of its hint.
type OnLook = Box<dyn FnMut(Look, Instant) + Send>;

enum Message {
    Hint,
    Watch(u64, Box<(WatchedFile, OnLook)>),
    Leave(u64),
    Stop,
}

/// Ends the process when its thread panics: a host that no longer sees files must be started again.
struct EndsTheProcess;

impl Drop for EndsTheProcess {
    fn drop(&mut self) {
        if std::thread::panicking() {
            std::process::abort();
        }
    }
}

impl Files {
    /// Starts the thread without any files. `config_maps` is the folder of the ConfigMaps that the host reads itself;
    /// `metrics` has the requests to registries.
    ///
    /// # Errors
    /// Returns an error when the thread cannot be started.
    pub fn start(config_maps: PathBuf, metrics: Arc<Metrics>) -> io::Result<Self> {
        Self::with(true, config_maps, metrics)
    }

    fn with(hints: bool, config_maps: PathBuf, metrics: Arc<Metrics>) -> io::Result<Self> {
        let (messages, receiver) = mpsc::channel();
        let scanner = Scanner {
            receiver,
            folders: Folders::new(hints.then(|| messages.clone())),
            files: BTreeMap::new(),
        };
        std::thread::Builder::new().name("files".into()).spawn(move || {
            let _ends = EndsTheProcess;
            scanner.run();
        })?;
        Ok(Self {
            messages,
            next: AtomicU64::new(0),
            transports: Arc::new(Transports::new(metrics)),
            config_maps,
        })
    }

    /// Keeps the slot filled from its file or registry until the returned value is dropped.
    #[must_use]
    pub fn fill(&self, slot: Arc<Slot>) -> Filled {
        let (contents, receiver) = watch::channel(None);
        let stop = CancellationToken::new();
        let restored = CancellationToken::new();
        let filling = fill(Arc::clone(&slot), receiver, stop.clone(), restored.clone());
        tokio::spawn(filling);
        let watched = match slot.expected().location.clone() {
            Location::File(file) => {
                let source = WatchedFile::new(file, slot.expected().limits.module);
                Some(self.fill_from_file(source, slot, contents))
            }
            Location::ConfigMap(key) => {
                let file = self.config_maps.join(key.folder()).join(&key.key);
                let source = WatchedFile::mounted(file, slot.expected().limits.module);
                Some(self.fill_from_file(source, slot, contents))
            }
            Location::Registry { reference, settings } => {
                let transports = Arc::clone(&self.transports);
                let follower = Follower {
                    slot,
                    reference,
                    settings,
                    transports,
                    contents,
                };
                let stopped = stop.clone();
                tokio::spawn(async move {
                    let following = async {
                        // Before, a registry that is away would look worse than it is.
                        restored.cancelled().await;
                        follower.run().await;
                    };
                    tokio::select! { () = stopped.cancelled() => {}, () = following => {} }
                });
                None
            }
        };
        Filled {
            _watched: watched,
            _stop: stop.drop_guard(),
        }
    }

    fn fill_from_file(
        &self,
        source: WatchedFile,
        slot: Arc<Slot>,
        contents: watch::Sender<Option<PluginFile>>,
    ) -> Watched {
        self.watch(source, move |look, noticed| match look {
            Look::New(content) => {
                contents.send_replace(Some(PluginFile {
                    bytes: content.bytes.into(),
                    digest: content.digest,
                    signature: content.signature,
                    noticed,
                }));
            }
            Look::Trouble(reason) => {
                // The last contents must not become live later, when its objects have changed.
                contents.send_replace(None);
                slot.fail(&reason, None);
            }
            Look::Same | Look::Unsettled(_) => {}
        })
    }

    /// Watches one file.
    pub fn watch(&self, source: WatchedFile, on_look: impl FnMut(Look, Instant) + Send + 'static) -> Watched {
        let number = self.next.fetch_add(1, Ordering::Relaxed);
        // The send fails only after the thread has ended.
        let _ = self
            .messages
            .send(Message::Watch(number, Box::new((source, Box::new(on_look)))));
        Watched {
            messages: self.messages.clone(),
            number,
        }
    }
}

impl Drop for Files {
    fn drop(&mut self) {
        let _ = self.messages.send(Message::Stop);
    }
}

impl Drop for Watched {
    fn drop(&mut self) {
        // The send fails when the thread has ended, and it dropped the file.
        let _ = self.messages.send(Message::Leave(self.number));
    }
}

/// Settles one controller's slot, with the newest state, whenever its file or its orders change.
async fn fill(
    slot: Arc<Slot>,
    mut contents: watch::Receiver<Option<PluginFile>>,
    stop: CancellationToken,
    restored: CancellationToken,
) {
    let mut orders = slot.orders();
    loop {
        let file = contents.borrow_and_update().clone();
        if let Some(orders) = &mut orders {
            orders.mark_unchanged();
        }
        let again = tokio::select! {
            biased;
            () = stop.cancelled() => return,
            // The running decision is outdated.
            Ok(()) = contents.changed() => continue,
            () = orders_changed(&mut orders) => continue,
            again = slot.settle(file.as_ref()) => again,
        };
        restored.cancel();
        let again = async {
            match again {
                Some(again) => tokio::time::sleep(again).await,
                None => std::future::pending().await,
            }
        };
        tokio::select! {
            () = stop.cancelled() => return,
            changed = contents.changed() => if changed.is_err() { return },
            () = orders_changed(&mut orders) => {}
            () = again => {}
        }
    }
}

/// Waits until the orders change. The first orders do not count as a change, because `settle` waits for them.
async fn orders_changed(orders: &mut Option<watch::Receiver<Option<Orders>>>) {
    let Some(orders) = orders else {
        return std::future::pending().await;
    };
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

/// The state of the thread.
struct Scanner {
    receiver: mpsc::Receiver<Message>,
    folders: Folders,
    files: BTreeMap<u64, (WatchedFile, OnLook)>,
}

impl Scanner {
    fn run(mut self) {
        let mut noticed = Instant::now();
        loop {
            // The folder is watched before it is looked at: a change in between creates a hint.
            self.folders
                .follow(self.files.values().map(|(source, _)| source.folder()));
            let mut wait = POLL;
            let mut unsettled = false;
            for (source, on_look) in self.files.values_mut() {
                match source.look() {
                    Look::Same => {}
                    Look::Unsettled(rest) => {
                        wait = wait.min(rest);
                        unsettled = true;
                    }
                    look => on_look(look, noticed),
                }
            }
            let message = self.receiver.recv_timeout(wait);
            if !unsettled {
                noticed = Instant::now();
            }
            let on = match message {
                Ok(Message::Hint) => self.until_quiet(),
                Ok(message) => self.take(message),
                Err(RecvTimeoutError::Timeout) => true,
                Err(RecvTimeoutError::Disconnected) => false,
            };
            if !on {
                return;
            }
        }
    }

    /// Waits until a burst of hints ends; returns whether to continue.
    fn until_quiet(&mut self) -> bool {
        let end = Instant::now() + MAX_BURST;
        loop {
            let rest = end.saturating_duration_since(Instant::now());
            match self.receiver.recv_timeout(QUIET.min(rest)) {
                Ok(message) => {
                    if !self.take(message) {
                        return false;
                    }
                }
                Err(RecvTimeoutError::Timeout) => return true,
                Err(RecvTimeoutError::Disconnected) => return false,
            }
        }
    }

    /// Handles a message; returns whether to continue.
    fn take(&mut self, message: Message) -> bool {
        match message {
            Message::Hint => {}
            Message::Watch(number, file) => {
                self.files.insert(number, *file);
            }
            Message::Leave(number) => {
                self.files.remove(&number);
            }
            Message::Stop => return false,
        }
        true
    }
}

/// The identity of the folder at a path: its device and inode.
type Identity = (u64, u64);

/// The folders of the files, watched while they exist.
struct Folders {
    watcher: Option<RecommendedWatcher>,
    watched: BTreeMap<PathBuf, Option<Identity>>,
}

impl Folders {
    fn new(hints: Option<mpsc::Sender<Message>>) -> Self {
        let watcher = hints.and_then(|sender| {
            let hint = move |event: notify::Result<notify::Event>| {
                if event.as_ref().map_or(true, is_change) {
                    // After the scanner has ended, it needs no hints.
                    let _ = sender.send(Message::Hint);
                }
            };
            notify::recommended_watcher(hint)
                .inspect_err(|error| {
                    warn!(%error, "no notifications of changed files: the host checks them every {POLL:?}");
                })
                .ok()
        });
        Self {
            watcher,
            watched: BTreeMap::new(),
        }
    }

    /// Watches the current folders at the paths; a folder may have been replaced or created.
    fn follow<'a>(&mut self, wanted: impl Iterator<Item = &'a Path>) {
        let Some(watcher) = &mut self.watcher else {
            return;
        };
        let wanted: BTreeSet<&Path> = wanted.collect();
        self.watched.retain(|path, watched| {
            let stays = wanted.contains(path.as_path());
            if !stays && watched.is_some() {
                let _ = watcher.unwatch(path);
            }
            stays
        });
        for path in wanted {
            if !self.watched.contains_key(path) {
                self.watched.insert(path.to_owned(), None);
            }
        }
        for (path, watched) in &mut self.watched {
            let now = identity(path);
            if *watched == now {
                continue;
            }
            if watched.take().is_some() {
                // Fails when the folder was deleted together with its watch.
                let _ = watcher.unwatch(path);
            }
            if now.is_some()
                && let Err(error) = watcher.watch(path, RecursiveMode::NonRecursive)
            {
                warn!(folder = %path.display(), %error,
                    "no notifications of changed files in this folder: the host checks it every {POLL:?}");
            } else {
                debug!(folder = %path.display(), there = now.is_some(), "watching a folder");
            }
            *watched = now;
        }
    }
}

fn identity(path: &Path) -> Option<Identity> {
    fs::metadata(path).ok().map(|folder| (folder.dev(), folder.ino()))
}

/// Whether an event is a change. Our own reads are not: they would create hints endlessly.
fn is_change(event: &notify::Event) -> bool {
    match event.kind {
        EventKind::Access(AccessKind::Close(AccessMode::Write)) => true,
        EventKind::Access(_) => false,
        _ => true,
    }
}

#[cfg(test)]
mod tests;
