//! Repeats work whenever a file changes.

use std::path::PathBuf;
use std::process::ExitCode;
use std::time::Duration;

use operator_host_runtime::Digest;

/// How often to look. A file that is the same twice is complete: editors and compilers write in several steps.
const LOOK: Duration = Duration::from_millis(200);

/// Runs `work` now, and again whenever the content of one of the files changes. It does not return.
pub(crate) async fn whenever_changed(files: Vec<PathBuf>, work: impl AsyncFn()) -> ExitCode {
    let mut seen = contents(&files);
    work().await;
    let mut last = seen.clone();
    loop {
        tokio::time::sleep(LOOK).await;
        let now = contents(&files);
        if now == last && now != seen {
            seen = now;
            eprintln!("operator-host: a file has changed");
            work().await;
        } else {
            last = now;
        }
    }
}

/// Returns the digest of each file; `None` for a missing one.
fn contents(files: &[PathBuf]) -> Vec<Option<Digest>> {
    let digest = |file: &PathBuf| std::fs::read(file).ok().map(|bytes| Digest::of(&bytes));
    files.iter().map(digest).collect()
}
