//! Doing something again whenever a file is saved.

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::time::Duration;

use anyhow::Context;
use notify::{RecursiveMode, Watcher};

use super::Failure;
use crate::plugin::Digest;

/// An editor saves in steps, a compiler writes in pieces: a file has come to rest after such a silence.
const REST: Duration = Duration::from_millis(100);

/// Does `work` now, and again whenever the contents of one of the files have changed. Returns only when they cannot be
/// watched.
///
/// # Errors
/// When they cannot be watched.
pub(super) async fn whenever_changed(files: Vec<PathBuf>, work: impl AsyncFn()) -> Result<ExitCode, Failure> {
    let (changed, mut changes) = tokio::sync::mpsc::channel(1);
    let mut watcher = notify::recommended_watcher(move |event: notify::Result<notify::Event>| {
        // That a file was read is no news; one that waits to be told is as good as many.
        if event.is_ok_and(|event| !event.kind.is_access()) {
            let _ = changed.try_send(());
        }
    })
    .context("cannot watch files")?;
    // The folders, since a file that is replaced is another file.
    let folders: BTreeSet<&Path> = files.iter().map(|file| folder(file)).collect();
    for folder in folders {
        watcher
            .watch(folder, RecursiveMode::NonRecursive)
            .with_context(|| format!("cannot watch {}", folder.display()))?;
    }
    let mut seen = contents(&files);
    work().await;
    while changes.recv().await.is_some() {
        while let Ok(Some(())) = tokio::time::timeout(REST, changes.recv()).await {}
        let now = contents(&files);
        if now != seen {
            seen = now;
            eprintln!("operator-host: a file has changed");
            work().await;
        }
    }
    Ok(ExitCode::SUCCESS)
}

fn folder(file: &Path) -> &Path {
    let folder = file.parent().filter(|folder| !folder.as_os_str().is_empty());
    folder.unwrap_or(Path::new("."))
}

/// `None` for a file that is not there.
fn contents(files: &[PathBuf]) -> Vec<Option<Digest>> {
    let digest = |file: &PathBuf| std::fs::read(file).ok().map(|bytes| Digest::of(&bytes));
    files.iter().map(digest).collect()
}
