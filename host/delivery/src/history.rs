//! Which versions of a plugin were live, when, why, and by whose order.
//!
//! With a folder for versions the history is also a file in it, and survives a restart. The file is read once at the start,
//! so that showing the history reads no file. Without a folder, the host remembers fewer entries.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use jiff::Timestamp;
use serde::{Deserialize, Serialize};
use tokio::task::JoinHandle;
use tracing::warn;

use super::kept::Versions;
use operator_host_core::object::shorten;

/// Number of entries in the file, and in memory.
pub(super) const IN_FILE: usize = 50;
const IN_MEMORY: usize = 10;
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
    /// There was nothing to compare it on, or no proof is configured.
    NotCompared,
    /// An order promoted it, whatever the comparison showed.
    Forced,
    /// An order pinned it, and it had been live before.
    RolledBack,
    /// A version of the host that is newer than this one knows why.
    #[serde(other)]
    Other,
}

impl Why {
    /// Returns it in words.
    #[must_use]
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::First => "the first",
            Self::Proved => "proved",
            Self::NotCompared => "not compared",
            Self::Forced => "promoted by force",
            Self::RolledBack => "rolled back",
            Self::Other => "see the details",
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

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

impl History {
    /// Creates the history in the folder of these versions, and reads it. A file that cannot be read is logged. Blocks.
    #[must_use]
    pub fn within(versions: Arc<Versions>) -> Self {
        let entries = versions.history().unwrap_or_else(|error| {
            warn!(%error, "the history of the plugin's versions is not shown");
            Vec::new()
        });
        Self {
            versions: Some(versions),
            entries: Mutex::new(entries),
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

    /// Adds an entry, unless the entry beside it is about the same version, as after a restart. Blocks.
    ///
    /// # Errors
    /// When the file cannot be read or written. The entry is then only in memory.
    pub fn add(&self, mut entry: HistoryEntry) -> std::io::Result<()> {
        entry.because = shorten(&entry.because, BECAUSE);
        entry.diff = shorten(&entry.diff, DIFF);
        let Some(versions) = &self.versions else {
            insert(&mut lock(&self.entries), entry, IN_MEMORY);
            return Ok(());
        };
        match versions.add_to_history(entry.clone()) {
            Ok(entries) => {
                *lock(&self.entries) = entries;
                Ok(())
            }
            Err(error) => {
                insert(&mut lock(&self.entries), entry, IN_FILE);
                Err(error)
            }
        }
    }

    /// Returns all entries, the newest first.
    #[must_use]
    pub fn entries(&self) -> Vec<HistoryEntry> {
        lock(&self.entries).clone()
    }
}

/// Inserts an entry by its time into a history whose newest entry is the first, and removes the oldest over the count.
/// Returns whether it is news: replicas that share a folder add the same version at about the same time.
pub(super) fn insert(history: &mut Vec<HistoryEntry>, entry: HistoryEntry, count: usize) -> bool {
    let place = history.partition_point(|other| other.at > entry.at);
    let older = history.get(place);
    let newer = place.checked_sub(1).and_then(|newer| history.get(newer));
    if older
        .into_iter()
        .chain(newer)
        .any(|other| other.digest == entry.digest)
    {
        return false;
    }
    history.insert(place, entry);
    history.truncate(count);
    true
}

#[cfg(test)]
mod tests {
    use std::path::Path;

    use super::super::kept::StateLimit;
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
        let versions = Versions::open(folder, "a", 2, StateLimit(1 << 20)).unwrap();
        History::within(Arc::new(versions))
    }

    fn versions(history: &History) -> Vec<String> {
        history.entries().into_iter().map(|entry| entry.version).collect()
    }

    #[test]
    fn a_history_in_a_folder_survives_and_stays_small() {
        let folder = tempfile::tempdir().unwrap();
        let open = || open(folder.path());
        for number in 0..IN_FILE + 10 {
            open().add(entry(number)).unwrap();
            // A restart, or another replica, is no news.
            open().add(entry(number)).unwrap();
        }
        let all = versions(&open());
        assert_eq!(all.len(), IN_FILE);
        assert_eq!(all[..2], [(IN_FILE + 9).to_string(), (IN_FILE + 8).to_string()]);
        let last = &open().entries()[0];
        assert!(last.because.len() <= BECAUSE && last.diff.len() <= DIFF);
        assert_eq!(last.by.as_deref(), Some("kubectl-annotate"));
        // A file that is damaged is no reason to stop, and is kept so that it can be examined.
        let file = folder.path().join("a/history.json");
        std::fs::write(&file, "{").unwrap();
        assert!(versions(&open()).is_empty());
        open().add(entry(1)).unwrap();
        assert_eq!(versions(&open()), ["1"]);
        let damaged = folder.path().join("a/history.damaged");
        assert_eq!(std::fs::read_to_string(damaged).unwrap(), "{");
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

    #[test]
    fn a_history_that_cannot_be_read_is_not_replaced() {
        let folder = tempfile::tempdir().unwrap();
        let open = || open(folder.path());
        open().add(entry(1)).unwrap();
        let file = folder.path().join("a/history.json");
        let away = folder.path().join("away");
        std::fs::rename(&file, &away).unwrap();
        std::fs::create_dir(&file).unwrap();
        let error = open().add(entry(2)).unwrap_err().to_string();
        assert!(error.contains("history.json"), "{error}");
        std::fs::remove_dir(&file).unwrap();
        std::fs::rename(&away, &file).unwrap();
        open().add(entry(3)).unwrap();
        assert_eq!(versions(&open()), ["3", "1"]);
    }

    #[test]
    fn entries_of_replicas_are_in_the_order_of_their_times() {
        let mut history = Vec::new();
        for (second, digest) in [(10, "a"), (30, "c"), (31, "c"), (20, "b"), (19, "b"), (29, "c")] {
            let mut entry = entry(second);
            entry.digest = digest.into();
            insert(&mut history, entry, 10);
        }
        let versions: Vec<_> = history.iter().map(|entry| entry.version.as_str()).collect();
        assert_eq!(versions, ["30", "20", "10"]);
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
        for number in [1, 1, 2, 1].into_iter().chain(3..3 + IN_MEMORY) {
            history.add(entry(number)).unwrap();
        }
        let all = versions(&history);
        assert_eq!((all.len(), all[0].as_str()), (IN_MEMORY, "12"));
    }

    #[test]
    fn an_entry_of_a_newer_host_can_be_read() {
        let text = r#"{"at": "2026-01-01T00:00:00Z", "version": "1", "digest": "d", "why": "later", "because": "b", "x": 1}"#;
        let entry: HistoryEntry = serde_json::from_str(text).unwrap();
        assert_eq!(entry.why, Why::Other);
    }
}
