//! Repeats work whenever a file changes.

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::time::Duration;

use anyhow::Context;
use notify::{RecursiveMode, Watcher};

use super::Failure;
use operator_host_runtime::Digest;

/// The time without changes after which a file counts as complete. Editors and compilers write in several steps.
const REST: Duration = Duration::from_millis(100);

/// Runs `work` now, and again whenever the content of one of the files changes.
///
/// # Errors
/// When the files cannot be watched. It does not return otherwise.
pub(crate) async fn whenever_changed(files: Vec<PathBuf>, work: impl AsyncFn()) -> Result<ExitCode, Failure> {
    let (changed, mut changes) = tokio::sync::mpsc::channel(1);
    let mut watcher = notify::recommended_watcher(move |event: notify::Result<notify::Event>| {
        // Ignore reads. One pending notification is enough.
        if event.is_ok_and(|event| !event.kind.is_access()) {
            let _ = changed.try_send(());
        }
    })
    .context("cannot watch files")?;
    // Watch the folders: a watch on a file does not follow its replacement.
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

/// Returns the digest of each file; `None` for a missing one.
fn contents(files: &[PathBuf]) -> Vec<Option<Digest>> {
    let digest = |file: &PathBuf| std::fs::read(file).ok().map(|bytes| Digest::of(&bytes));
    files.iter().map(digest).collect()
}
