//! Which versions of a plugin were live, when, why, and by whose order.
//!
//! With a folder for versions the history is a file in it, and survives a restart. Without one, the host remembers the
//! last few entries.

use std::collections::VecDeque;
use std::sync::{Arc, Mutex, PoisonError};

use jiff::Timestamp;
use serde::{Deserialize, Serialize};

use super::kept::Versions;
use crate::object::shorten;

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
    recent: Mutex<VecDeque<HistoryEntry>>,
}

impl History {
    /// Creates the history in the folder of these versions.
    #[must_use]
    pub fn within(versions: Arc<Versions>) -> Self {
        Self {
            versions: Some(versions),
            recent: Mutex::default(),
        }
    }

    /// Adds an entry, unless the last one is about the same version, as after a restart. Blocks.
    ///
    /// # Errors
    /// When the file cannot be written.
    pub fn add(&self, mut entry: HistoryEntry) -> std::io::Result<()> {
        entry.because = shorten(&entry.because, BECAUSE);
        entry.diff = shorten(&entry.diff, DIFF);
        if let Some(versions) = &self.versions {
            return versions.add_to_history(entry);
        }
        let mut recent = self.recent.lock().unwrap_or_else(PoisonError::into_inner);
        if is_news(recent.make_contiguous(), &entry) {
            recent.push_front(entry);
        }
        recent.truncate(IN_MEMORY);
        Ok(())
    }

    /// Returns all entries, the newest first. Blocks.
    #[must_use]
    pub fn entries(&self) -> Vec<HistoryEntry> {
        match &self.versions {
            Some(versions) => versions.history(),
            None => {
                let recent = self.recent.lock().unwrap_or_else(PoisonError::into_inner);
                recent.iter().cloned().collect()
            }
        }
    }
}

/// Reports whether an entry is news to a history whose newest entry is the first.
pub(super) fn is_news(history: &[HistoryEntry], entry: &HistoryEntry) -> bool {
    history.first().is_none_or(|last| last.digest != entry.digest)
}

#[cfg(test)]
mod tests {
    use super::super::kept::Room;
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

    fn versions(history: &History) -> Vec<String> {
        history.entries().into_iter().map(|entry| entry.version).collect()
    }

    #[test]
    fn a_history_in_a_folder_survives_and_stays_small() {
        let folder = tempfile::tempdir().unwrap();
        let open = || {
            let versions = Versions::open(folder.path(), "a", &[], 2, Room(1 << 20)).unwrap();
            History::within(Arc::new(versions))
        };
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
        // A file that is damaged is no reason to stop.
        std::fs::write(folder.path().join("a/history.json"), "{").unwrap();
        assert!(versions(&open()).is_empty());
        open().add(entry(1)).unwrap();
        assert_eq!(versions(&open()), ["1"]);
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
