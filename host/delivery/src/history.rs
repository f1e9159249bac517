//! Which versions of a plugin were live, when, why, and by whose order.
//!
//! With a folder for versions the history is also a file in it, and survives a restart. The file is read once at the start,
//! so that showing the history reads no file. Without a folder, the host remembers fewer entries.

use std::sync::{Arc, Mutex};

use jiff::Timestamp;
use serde::{Deserialize, Serialize};
use tokio::task::JoinHandle;
use tracing::warn;

use super::kept::Versions;
use operator_host_core::sync::lock;
use operator_host_core::text::shorten;

/// Number of entries. Their file can be read again, even if JSON takes six bytes for each of their texts'.
const ENTRIES: usize = 30;
/// Bytes of the texts of an entry.
const BECAUSE: usize = 1024;
const DIFF: usize = 4096;

/// A version that became live.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct HistoryEntry {
    /// When it became live.
    pub at: Timestamp,
    /// The plugin's own version.
    pub version: String,
    /// The digest of its file.
    pub digest: String,
    /// The digest of the version that was live before.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub before: Option<String>,
    /// Why it became live.
    pub why: Why,
    /// The same in words, for users.
    pub because: String,
    /// Who ordered it: the field manager of the annotation, or the configuration.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub by: Option<String>,
    /// The first differences to the answers of the version before, if they were compared.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub diff: String,
}

/// Why a version became live.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub enum Why {
    /// No version was live before it.
    First,
    /// It was compared with the version before, and did no worse.
    Proved,
    /// There was nothing to compare it on.
    NotCompared,
    /// An order promoted it, whatever the comparison showed.
    Forced,
    /// An order pinned it, and it had been live before.
    RolledBack,
}

impl Why {
    /// Returns it in words.
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::First => "the first",
            Self::Proved => "proved",
            Self::NotCompared => "not compared",
            Self::Forced => "promoted by force",
            Self::RolledBack => "rolled back",
        }
    }
}

/// The history of one controller's plugin.
#[derive(Debug, Default)]
pub struct History {
    versions: Option<Arc<Versions>>,
    /// The newest first.
    entries: Mutex<Vec<HistoryEntry>>,
    /// Ends when the last entry has been added.
    last: Mutex<Option<JoinHandle<()>>>,
}

impl History {
    /// Creates the history in the folder of these versions, and reads it. Blocks.
    pub fn within(versions: Arc<Versions>) -> Self {
        Self {
            entries: Mutex::new(versions.history()),
            versions: Some(versions),
            last: Mutex::default(),
        }
    }

    /// Adds an entry in a task of its own, after the entries before it, however long those take to be known.
    pub(super) fn add_when_known(
        self: &Arc<Self>,
        controller: String,
        entry: impl Future<Output = HistoryEntry> + Send + 'static,
    ) {
        let history = Arc::clone(self);
        let mut last = lock(&self.last);
        let before = last.take();
        *last = Some(tokio::spawn(async move {
            let entry = entry.await;
            if let Some(before) = before {
                // If it panicked, its entry is missing, and this one is still added.
                let _ = before.await;
            }
            let added = tokio::task::spawn_blocking(move || history.add(entry)).await;
            if let Ok(Err(error)) = added {
                warn!(controller, %error, "cannot add this version to the history of the plugin");
            }
        }));
    }

    /// Adds an entry, unless the last one is about the same version, as after a restart or by another replica. Blocks.
    ///
    /// # Errors
    /// When the file cannot be written. The entry is then only in memory.
    pub fn add(&self, mut entry: HistoryEntry) -> std::io::Result<()> {
        entry.because = shorten(&entry.because, BECAUSE);
        entry.diff = shorten(&entry.diff, DIFF);
        let insert = |entries: &mut Vec<HistoryEntry>| {
            if entries.first().is_none_or(|last| last.digest != entry.digest) {
                entries.insert(0, entry.clone());
                entries.truncate(ENTRIES);
            }
        };
        let Some(versions) = &self.versions else {
            insert(&mut lock(&self.entries));
            return Ok(());
        };
        match versions.change_history(insert) {
            Ok(entries) => *lock(&self.entries) = entries,
            Err(error) => {
                insert(&mut lock(&self.entries));
                return Err(error);
            }
        }
        Ok(())
    }

    /// Returns all entries, the newest first.
    pub fn entries(&self) -> Vec<HistoryEntry> {
        lock(&self.entries).clone()
    }
}

#[cfg(test)]
mod tests {
    use std::path::Path;

    use super::*;

    fn entry(version: usize) -> HistoryEntry {
        HistoryEntry {
            at: Timestamp::from_second(i64::try_from(version).unwrap()).unwrap(),
            version: version.to_string(),
            digest: format!("sha256:{version:064}"),
            before: None,
            why: Why::Forced,
            because: "x".repeat(BECAUSE * 2),
            by: Some("kubectl-annotate".into()),
            diff: "y".repeat(DIFF * 2),
        }
    }

    fn open(folder: &Path) -> History {
        let versions = Versions::open(folder, "a", 2, 1 << 20).unwrap();
        History::within(Arc::new(versions))
    }

    fn versions(history: &History) -> Vec<String> {
        history.entries().into_iter().map(|entry| entry.version).collect()
    }

    #[test]
    fn a_history_in_a_folder_survives_and_stays_small() {
        let folder = tempfile::tempdir().unwrap();
        let open = || open(folder.path());
        for number in 0..ENTRIES + 10 {
            open().add(entry(number)).unwrap();
            // A restart, or another replica, is no news.
            open().add(entry(number)).unwrap();
        }
        let all = versions(&open());
        assert_eq!(all.len(), ENTRIES);
        assert_eq!(all[..2], [(ENTRIES + 9).to_string(), (ENTRIES + 8).to_string()]);
        let last = &open().entries()[0];
        assert!(last.because.len() <= BECAUSE && last.diff.len() <= DIFF);
        assert_eq!(last.by.as_deref(), Some("kubectl-annotate"));
        // A file that is damaged is no reason to stop.
        let file = folder.path().join("a/history.json");
        std::fs::write(&file, "{").unwrap();
        assert!(versions(&open()).is_empty());
        open().add(entry(1)).unwrap();
        assert_eq!(versions(&open()), ["1"]);
    }

    #[test]
    fn a_history_is_shown_from_memory() {
        let folder = tempfile::tempdir().unwrap();
        let history = open(folder.path());
        history.add(entry(1)).unwrap();
        std::fs::remove_dir_all(folder.path().join("a")).unwrap();
        assert_eq!(versions(&history), ["1"]);
        // What cannot be written is shown all the same.
        history.add(entry(2)).unwrap_err();
        assert_eq!(versions(&history), ["2", "1"]);
    }

    #[tokio::test]
    async fn an_entry_that_is_known_late_is_not_overtaken() {
        let history = Arc::<History>::default();
        let (known, wait) = tokio::sync::oneshot::channel();
        let of = |second: usize, digest: &str| HistoryEntry {
            digest: digest.into(),
            ..entry(second)
        };
        let (first, second, third) = (of(1, "a"), of(2, "b"), of(3, "a"));
        history.add_when_known("a".into(), async { first });
        history.add_when_known("a".into(), async {
            wait.await.unwrap();
            second
        });
        history.add_when_known("a".into(), async { third });
        tokio::task::yield_now().await;
        known.send(()).unwrap();
        let last = lock(&history.last).take().unwrap();
        last.await.unwrap();
        assert_eq!(versions(&history), ["3", "2", "1"]);
    }

    #[test]
    fn a_history_without_a_folder_has_the_last_entries() {
        let history = History::default();
        for number in [1, 1, 2, 1].into_iter().chain(3..3 + ENTRIES) {
            history.add(entry(number)).unwrap();
        }
        let all = versions(&history);
        assert_eq!((all.len(), all[0].as_str()), (ENTRIES, "32"));
    }
}
