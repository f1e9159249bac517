//! Keeps every controller's plugin what its file holds.
//!
//! A thread watches the files' folders. Whatever the operating system says of a folder is only a hint to look at
//! the files in it: ConfigMap mounts, editors and copies change files in different ways, and some volumes say
//! nothing at all, so it also looks from time to time without a hint. What counts is the digest of a file that has
//! come to rest. New contents go to a task a controller, so that a plugin that takes long to compile holds up no
//! other. The configuration's file is looked after in the same way.

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

use super::proof::Orders;
use super::registry::{Candidate, Slot};
use super::source::{Look, Source};

/// After a hint, wait until there was none for so long…
const QUIET: Duration = Duration::from_millis(50);
/// … but not longer than this.
const PATIENCE: Duration = Duration::from_millis(500);
/// How often to look without a hint.
const POLL: Duration = Duration::from_secs(1);

/// The thread that looks after files. It ends when this is dropped.
pub struct Files {
    messages: mpsc::Sender<Message>,
    next: AtomicU64,
}

/// A file that is looked after until this is dropped.
pub struct Watched {
    messages: mpsc::Sender<Message>,
    number: u64,
}

/// A slot that is kept filled until this is dropped.
pub struct Filled {
    _watched: Watched,
    /// At once, so that what is still being loaded comes to nothing.
    _stop: DropGuard,
}

/// Hears of each look that showed something, and when the hint for it came.
type Told = Box<dyn FnMut(Look, Instant) + Send>;

enum Message {
    Hint,
    Watch(u64, Box<(Source, Told)>),
    Leave(u64),
    Stop,
}

impl Files {
    /// Nothing is looked after yet.
    ///
    /// # Errors
    /// When there can be no thread for it.
    pub fn start() -> io::Result<Self> {
        Self::with(true)
    }

    fn with(hints: bool) -> io::Result<Self> {
        let (messages, receiver) = mpsc::channel();
        let scanner = Scanner {
            receiver,
            folders: Folders::new(hints.then(|| messages.clone())),
            files: BTreeMap::new(),
        };
        std::thread::Builder::new()
            .name("files".into())
            .spawn(move || scanner.run())?;
        Ok(Self {
            messages,
            next: AtomicU64::new(0),
        })
    }

    /// Keeps the slot filled from its file, until what it returns is dropped.
    #[must_use]
    pub fn fill(&self, slot: Arc<Slot>) -> Filled {
        let expected = slot.expected();
        let source = Source::new(expected.file.clone(), expected.limits.module);
        let (candidates, receiver) = watch::channel(None);
        let stop = CancellationToken::new();
        tokio::spawn(fill(Arc::clone(&slot), receiver, stop.clone()));
        let watched = self.watch(source, move |look, noticed| match look {
            Look::New(content) => {
                candidates.send_replace(Some(Candidate {
                    bytes: content.bytes,
                    digest: content.digest,
                    signature: content.signature,
                    noticed,
                }));
            }
            Look::Trouble(reason) => {
                // What is not there any more must not take over later, when its objects have changed.
                candidates.send_replace(None);
                slot.fail(&reason, None);
            }
            Look::Same | Look::Unsettled(_) => {}
        });
        Filled {
            _watched: watched,
            _stop: stop.drop_guard(),
        }
    }

    /// Looks after one file.
    pub(crate) fn watch(&self, source: Source, told: impl FnMut(Look, Instant) + Send + 'static) -> Watched {
        let number = self.next.fetch_add(1, Ordering::Relaxed);
        // The thread ends after this only.
        let _ = self
            .messages
            .send(Message::Watch(number, Box::new((source, Box::new(told)))));
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
        // It fails when the thread has ended, and the file with it.
        let _ = self.messages.send(Message::Leave(self.number));
    }
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

/// What the thread has.
struct Scanner {
    receiver: mpsc::Receiver<Message>,
    folders: Folders,
    files: BTreeMap<u64, (Source, Told)>,
}

impl Scanner {
    fn run(mut self) {
        let mut noticed = Instant::now();
        loop {
            // First watched, then looked at: what changes in between makes a hint.
            self.folders
                .follow(self.files.values().map(|(source, _)| source.folder()));
            let mut wait = POLL;
            let mut unsettled = false;
            for (source, told) in self.files.values_mut() {
                match source.look() {
                    Look::Same => {}
                    Look::Unsettled(rest) => {
                        wait = wait.min(rest);
                        unsettled = true;
                    }
                    look => told(look, noticed),
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

    /// Lets a burst of hints pass; whether to go on.
    fn until_quiet(&mut self) -> bool {
        let end = Instant::now() + PATIENCE;
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

    /// Does what a message says; whether to go on.
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

/// A folder that is at a path now: its device and inode.
type Identity = (u64, u64);

/// The folders that the files are in, watched for as long as they are there.
struct Folders {
    watcher: Option<RecommendedWatcher>,
    watched: BTreeMap<PathBuf, Option<Identity>>,
}

impl Folders {
    fn new(hints: Option<mpsc::Sender<Message>>) -> Self {
        let watcher = hints.and_then(|sender| {
            let hint = move |event: notify::Result<notify::Event>| {
                if event.as_ref().map_or(true, is_change) {
                    // After its end the scanner needs no hints.
                    let _ = sender.send(Message::Hint);
                }
            };
            notify::recommended_watcher(hint)
                .inspect_err(|error| {
                    warn!(%error, "no notifications of changed files: they are looked at every {POLL:?}");
                })
                .ok()
        });
        Self {
            watcher,
            watched: BTreeMap::new(),
        }
    }

    /// Watches what is now at the paths; a folder may have been replaced, or may have come.
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
                // It fails when the folder has gone and its watch with it.
                let _ = watcher.unwatch(path);
            }
            if now.is_some()
                && let Err(error) = watcher.watch(path, RecursiveMode::NonRecursive)
            {
                warn!(folder = %path.display(), %error,
                    "no notifications of changed files in this folder: it is looked at every {POLL:?}");
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
