//! Keeps every controller's plugin what its file holds.
//!
//! A thread watches the plugins' folders. Whatever the operating system says of a folder is only a hint to look at
//! the files in it: ConfigMap mounts, editors and copies change files in different ways, and some volumes say
//! nothing at all, so it also looks from time to time without a hint. What counts is the digest of a file that has
//! come to rest. New contents go to a task a controller, so that a plugin that takes long to compile holds up no
//! other.

use std::collections::BTreeMap;
use std::fs;
use std::io;
use std::os::unix::fs::MetadataExt as _;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::mpsc::{self, RecvTimeoutError};
use std::time::{Duration, Instant};

use notify::event::{AccessKind, AccessMode};
use notify::{EventKind, RecommendedWatcher, RecursiveMode, Watcher as _};
use tokio::sync::watch;
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;
use tracing::{debug, error, info, warn};

use super::proof::Orders;
use super::registry::{Candidate, Slot};
use super::source::{Look, Source};

/// After a hint, wait until there was none for so long…
const QUIET: Duration = Duration::from_millis(50);
/// … but not longer than this.
const PATIENCE: Duration = Duration::from_millis(500);
/// How often to look without a hint.
const POLL: Duration = Duration::from_secs(1);

/// Fills the slots from their files, and keeps them so until `stop`.
pub async fn run(slots: Vec<Slot>, stop: CancellationToken) {
    let tasks = TaskTracker::new();
    let mut sources = Vec::new();
    let mut places = Vec::new();
    for slot in slots {
        let expected = slot.expected();
        sources.push(Source::new(expected.file.clone(), expected.limits.module));
        let slot = Arc::new(slot);
        let (sender, candidates) = watch::channel(None);
        tasks.spawn(fill(Arc::clone(&slot), candidates, stop.clone()));
        places.push((slot, sender));
    }
    tasks.close();
    let told = move |index: usize, look: Look, noticed: Instant| {
        let Some((slot, sender)) = places.get(index) else {
            return;
        };
        match look {
            Look::New(bytes, digest) => {
                sender.send_replace(Some(Candidate {
                    bytes,
                    digest,
                    noticed,
                }));
            }
            Look::Trouble(reason) => slot.fail(&reason, None),
            Look::Recovered => {
                let expected = slot.expected();
                info!(controller = expected.controller, file = %expected.file.display(),
                    "the plugin's file is there again, as it was");
            }
            Look::Same | Look::Unsettled(_) => {}
        }
    };
    match Scanner::start(sources, true, told) {
        Ok(_scanner) => stop.cancelled().await,
        Err(error) => {
            error!(%error, "cannot start the thread that looks after the plugins: none is loaded");
            stop.cancelled().await;
        }
    }
    tasks.wait().await;
}

/// Settles one controller's slot whenever its file or what people want of it has changed, always on the newest.
async fn fill(slot: Arc<Slot>, mut candidates: watch::Receiver<Option<Candidate>>, stop: CancellationToken) {
    let mut orders = slot.orders();
    tokio::select! {
        () = stop.cancelled() => return,
        () = slot.restore() => {}
    }
    loop {
        let candidate = candidates.borrow_and_update().clone();
        if let Some(orders) = &mut orders {
            orders.mark_unchanged();
        }
        let again = tokio::select! {
            biased;
            () = stop.cancelled() => return,
            // Whatever it would have been, it is outdated.
            Ok(()) = candidates.changed() => continue,
            () = reconsidered(&mut orders) => continue,
            again = slot.settle(candidate.as_ref()) => again,
        };
        let again = async {
            match again {
                Some(again) => tokio::time::sleep(again).await,
                None => std::future::pending().await,
            }
        };
        tokio::select! {
            () = stop.cancelled() => return,
            changed = candidates.changed() => if changed.is_err() { return },
            () = reconsidered(&mut orders) => {}
            () = again => {}
        }
    }
}

/// People want something else than before. That it becomes known what they want is no change: who settles waits for it.
async fn reconsidered(orders: &mut Option<watch::Receiver<Option<Orders>>>) {
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

enum Message {
    Hint,
    Stop,
}

/// The thread that looks at the files. It ends when this is dropped.
struct Scanner(mpsc::Sender<Message>);

impl Scanner {
    /// `told` hears of each look that showed something, with the source's index and when the hint came.
    fn start(
        sources: Vec<Source>,
        hints: bool,
        mut told: impl FnMut(usize, Look, Instant) + Send + 'static,
    ) -> io::Result<Self> {
        let (sender, receiver) = mpsc::channel();
        let mut folders = Folders::new(&sources, hints.then(|| sender.clone()));
        let scan = move || {
            let mut sources = sources;
            let mut noticed = Instant::now();
            loop {
                // First watched, then looked at: what changes in between makes a hint.
                folders.follow();
                let mut wait = POLL;
                let mut unsettled = false;
                for (index, source) in sources.iter_mut().enumerate() {
                    match source.look() {
                        Look::Same => {}
                        Look::Unsettled(rest) => {
                            wait = wait.min(rest);
                            unsettled = true;
                        }
                        look => told(index, look, noticed),
                    }
                }
                match receiver.recv_timeout(wait) {
                    Ok(Message::Hint) => {
                        if !unsettled {
                            noticed = Instant::now();
                        }
                        if !until_quiet(&receiver) {
                            return;
                        }
                    }
                    Err(RecvTimeoutError::Timeout) if unsettled => {}
                    Err(RecvTimeoutError::Timeout) => noticed = Instant::now(),
                    Ok(Message::Stop) | Err(RecvTimeoutError::Disconnected) => return,
                }
            }
        };
        std::thread::Builder::new()
            .name("plugin-files".into())
            .spawn(scan)?;
        Ok(Self(sender))
    }
}

impl Drop for Scanner {
    fn drop(&mut self) {
        let _ = self.0.send(Message::Stop);
    }
}

/// Lets a burst of hints pass; whether to go on.
fn until_quiet(receiver: &mpsc::Receiver<Message>) -> bool {
    let end = Instant::now() + PATIENCE;
    loop {
        match receiver.recv_timeout(QUIET.min(end.saturating_duration_since(Instant::now()))) {
            Ok(Message::Hint) => {}
            Err(RecvTimeoutError::Timeout) => return true,
            Ok(Message::Stop) | Err(RecvTimeoutError::Disconnected) => return false,
        }
    }
}

/// A folder that is at a path now: its device and inode.
type Identity = (u64, u64);

/// The folders that the files are in, watched for as long as they are there.
struct Folders {
    watcher: Option<RecommendedWatcher>,
    watched: BTreeMap<PathBuf, Option<Identity>>,
}

impl Folders {
    fn new(sources: &[Source], hints: Option<mpsc::Sender<Message>>) -> Self {
        let watcher = hints.and_then(|sender| {
            let hint = move |event: notify::Result<notify::Event>| {
                if event.as_ref().map_or(true, is_change) {
                    // After its end the scanner needs no hints.
                    let _ = sender.send(Message::Hint);
                }
            };
            notify::recommended_watcher(hint)
                .inspect_err(|error| {
                    warn!(%error, "no notifications of changed plugins: their files are looked at every {POLL:?}");
                })
                .ok()
        });
        Self {
            watcher,
            watched: sources
                .iter()
                .map(|source| (source.folder().to_owned(), None))
                .collect(),
        }
    }

    /// Watches what is now at the paths; a folder may have been replaced, or may have come.
    fn follow(&mut self) {
        let Some(watcher) = &mut self.watcher else {
            return;
        };
        for (path, watched) in &mut self.watched {
            let now = identity(path);
            if *watched == now {
                continue;
            }
            if watched.take().is_some() {
                // It fails when the folder has gone and its watch with it.
                let _ = watcher.unwatch(path);
            }
            if now.is_some()
                && let Err(error) = watcher.watch(path, RecursiveMode::NonRecursive)
            {
                warn!(folder = %path.display(), %error,
                    "no notifications of changed plugins in this folder: it is looked at every {POLL:?}");
            } else {
                debug!(folder = %path.display(), there = now.is_some(), "watching a folder of plugins");
            }
            *watched = now;
        }
    }
}

fn identity(path: &Path) -> Option<Identity> {
    fs::metadata(path).ok().map(|folder| (folder.dev(), folder.ino()))
}

/// Our own reading is no change, and would be a hint without end.
fn is_change(event: &notify::Event) -> bool {
    match event.kind {
        EventKind::Access(AccessKind::Close(AccessMode::Write)) => true,
        EventKind::Access(_) => false,
        _ => true,
    }
}

#[cfg(test)]
mod tests;
