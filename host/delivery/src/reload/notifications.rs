//! Hints of the kernel that files have changed.

use std::path::Path;
use std::sync::{LazyLock, Mutex};

use notify::event::{AccessKind, AccessMode};
use notify::{Event, EventKind, RecommendedWatcher, RecursiveMode, Watcher};
use tokio::sync::watch;
use tracing::debug;

use operator_host_core::sync::lock;

/// The one watcher of the process: the kernel allows a user a hundred of them or so.
static WATCHER: LazyLock<Mutex<Option<RecommendedWatcher>>> = LazyLock::new(|| {
    let watcher = notify::recommended_watcher(|event: notify::Result<Event>| {
        if !event.is_ok_and(|event| is_by_a_reader(event.kind)) {
            CHANGED.send_replace(());
        }
    });
    Mutex::new(
        watcher
            .inspect_err(|error| debug!(%error, "there are no notifications of files"))
            .ok(),
    )
});
static CHANGED: LazyLock<watch::Sender<()>> = LazyLock::new(|| watch::Sender::new(()));

fn is_by_a_reader(kind: EventKind) -> bool {
    kind.is_access() && kind != EventKind::Access(AccessKind::Close(AccessMode::Write))
}

/// Returns a receiver that changes when something may have changed in this folder, or in another one. Some volumes send no
/// notifications, and a folder that is replaced sends none any more, so this is a hint only.
pub(super) fn of(folder: &Path) -> watch::Receiver<()> {
    let receiver = CHANGED.subscribe();
    let mut watcher = lock(&WATCHER);
    if let Some(watcher) = &mut *watcher
        && let Err(error) = watcher.watch(folder, RecursiveMode::NonRecursive)
    {
        debug!(%error, "no notifications of {}", folder.display());
    }
    receiver
}
