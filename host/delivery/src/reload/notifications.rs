//! Hints of the kernel that files have changed.

use std::collections::HashMap;
use std::path::{Path, PathBuf};
use std::sync::{LazyLock, Mutex};

use notify::event::{AccessKind, AccessMode};
use notify::{Event, EventKind, RecommendedWatcher, RecursiveMode, Watcher};
use tokio::sync::watch;
use tracing::debug;

use operator_host_core::sync::lock;

/// The one watcher of the process: the kernel allows a user a hundred of them or so.
static WATCHER: LazyLock<Mutex<Option<RecommendedWatcher>>> = LazyLock::new(|| {
    let watcher = notify::recommended_watcher(|event: notify::Result<Event>| match event {
        Ok(event) if is_by_a_reader(event.kind) => {}
        Ok(event) if !event.paths.is_empty() => {
            let places = event.paths.iter().flat_map(|path| path.ancestors().take(2));
            places.for_each(changed);
        }
        // Some were lost.
        Ok(_) | Err(_) => lock(&FOLDERS).values().for_each(|folder| {
            folder.send_replace(());
        }),
    });
    Mutex::new(
        watcher
            .inspect_err(|error| debug!(%error, "there are no notifications of files"))
            .ok(),
    )
});
/// Who looks at each folder: a plugin that changes all the time wakes nobody else.
static FOLDERS: LazyLock<Mutex<HashMap<PathBuf, watch::Sender<()>>>> = LazyLock::new(Mutex::default);

/// Tells those who look at a folder that something in it has changed.
pub(super) fn changed(folder: &Path) {
    let place = std::path::absolute(folder).unwrap_or_else(|_| folder.to_owned());
    if let Some(folder) = lock(&FOLDERS).get(&place) {
        folder.send_replace(());
    }
}

fn is_by_a_reader(kind: EventKind) -> bool {
    kind.is_access() && kind != EventKind::Access(AccessKind::Close(AccessMode::Write))
}

/// Returns a receiver that changes when something may have changed in this folder. Some volumes send no notifications, and a
/// folder that is replaced sends none any more, so this is a hint only.
pub(super) fn of(folder: &Path) -> watch::Receiver<()> {
    let place = std::path::absolute(folder).unwrap_or_else(|_| folder.to_owned());
    let mut folders = lock(&FOLDERS);
    folders.retain(|_, changed| changed.receiver_count() > 0);
    let receiver = folders
        .entry(place)
        .or_insert_with(|| watch::Sender::new(()))
        .subscribe();
    drop(folders);
    let mut watcher = lock(&WATCHER);
    if let Some(watcher) = &mut *watcher
        && let Err(error) = watcher.watch(folder, RecursiveMode::NonRecursive)
    {
        debug!(%error, "no notifications of {}", folder.display());
    }
    receiver
}
