//! Stores the last live versions on disk, to continue with after a restart and to roll back to.
//!
//! Each controller has one folder. It contains each version's file under its digest, and `record.json`, the
//! last version first. A file is used only if it matches its digest. This protects against damage, but not
//! against anyone who can write to the folder, who could replace the plugin's own file as well. Replicas may
//! share the folder: only one changes it at a time, and each write is complete or has no effect.

use std::fs::{self, OpenOptions};
use std::io::{self, Write as _};
use std::os::unix::fs::{DirBuilderExt as _, OpenOptionsExt as _};
use std::path::{Path, PathBuf};

use bytes::Bytes;
use rustix::fs::OFlags;
use serde::{Deserialize, Serialize};
use tracing::warn;

use super::candidate_check::Prefix;
use super::history::{HistoryEntry, IN_FILE, insert};
use super::report::KeptVersion;
use super::statement::SIGNATURE_LIMIT;
use operator_host_core::files::Folder;
use operator_host_runtime::Digest;

const RECORD: &str = "record.json";
const HISTORY: &str = "history.json";
/// What a history that cannot be parsed is renamed to.
const DAMAGED: &str = "history.damaged";
/// Suffix of signature files.
const SIGNATURE: &str = "sig";
/// Suffix of files that are being written.
const UNFINISHED: &str = "new";
/// The file that is locked while the folder changes.
const LOCK: &str = "lock";
/// Maximum size of the record and of the history in bytes.
const RECORD_LIMIT: usize = 1 << 20;

/// Why a kept version cannot be used.
#[derive(Debug, thiserror::Error)]
#[error("the kept version {} cannot be used: {problem}", path.display())]
pub struct KeptError {
    path: PathBuf,
    problem: String,
}

/// A version's file, and the signature that came with it.
#[derive(Clone, Debug)]
pub struct Kept {
    /// The contents of the file.
    pub bytes: Bytes,
    /// The signature, so that the version can be trusted after a restart too.
    pub signature: Option<Bytes>,
}

/// Maximum size of the versions of all controllers together, in bytes; limited to half of the volume.
#[derive(Clone, Copy, Debug)]
pub struct StateLimit(pub u64);

/// The versions of one controller's plugin.
#[derive(Debug)]
pub struct Versions {
    state: PathBuf,
    folder: PathBuf,
    count: usize,
    room: StateLimit,
}

#[derive(Default, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct Record {
    versions: Vec<KeptVersion>,
}

impl Versions {
    /// Opens the controller's own folder within `state`, and creates it if missing. Keeps at most `count` versions,
    /// and fewer when `room` is short: the last one if it fits, and earlier ones in half of the space that the other
    /// controllers leave.
    ///
    /// # Errors
    /// Returns an error when the folder cannot be created.
    pub fn open(state: &Path, controller: &str, count: usize, room: StateLimit) -> io::Result<Self> {
        let folder = state.join(controller);
        fs::DirBuilder::new()
            .recursive(true)
            .mode(0o700)
            .create(&folder)?;
        let versions = Self {
            state: state.to_owned(),
            folder,
            count,
            room,
        };
        // Otherwise another replica is writing one of them.
        if let Ok(lock) = versions.lock_file()
            && lock.try_lock().is_ok()
        {
            versions.remove_unfinished();
        }
        Ok(versions)
    }

    /// Returns all versions, last live first. A damaged record counts as empty and is logged.
    #[must_use]
    pub fn list(&self) -> Vec<KeptVersion> {
        self.record().unwrap_or_else(|error| {
            warn!(file = %self.folder.join(RECORD).display(), error,
                "the record of kept plugin versions cannot be read: the kept versions are ignored, and the record is recreated");
            Vec::new()
        })
    }

    fn record(&self) -> Result<Vec<KeptVersion>, String> {
        match self.read_file(RECORD.as_ref(), RECORD_LIMIT) {
            Ok(text) => serde_json::from_slice::<Record>(&text)
                .map(|record| record.versions)
                .map_err(|error| error.to_string()),
            Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(Vec::new()),
            Err(error) => Err(error.to_string()),
        }
    }

    /// Returns the last version that matches the pin.
    #[must_use]
    pub fn find(&self, pin: &Prefix) -> Option<KeptVersion> {
        self.list().into_iter().find(|kept| {
            Prefix::parse(&kept.digest).is_ok()
                && kept
                    .digest
                    .trim_start_matches("sha256:")
                    .starts_with(&pin.to_string())
        })
    }

    /// Reads the file of a version, if it matches its digest.
    ///
    /// # Errors
    /// Returns an error when the file is missing, too large or damaged.
    pub fn read(&self, kept: &KeptVersion, limit: usize) -> Result<Kept, KeptError> {
        let bytes = self.read_bytes(&kept.digest, limit)?;
        let path = self.file(&kept.digest);
        let signature = match self.read_file(&path.with_extension(SIGNATURE), SIGNATURE_LIMIT) {
            Ok(signature) => Some(signature),
            Err(error) if error.kind() == io::ErrorKind::NotFound => None,
            Err(error) => {
                let problem = format!("its signature cannot be read: {error}");
                return Err(KeptError { path, problem });
            }
        };
        Ok(Kept {
            bytes,
            signature: signature.map(Bytes::from),
        })
    }

    /// Reads the file of the version with this digest, without its signature, if it matches the digest.
    ///
    /// # Errors
    /// Returns an error when the file is missing, too large or damaged.
    pub(super) fn read_bytes(&self, digest: &str, limit: usize) -> Result<Bytes, KeptError> {
        let path = self.file(digest);
        let wrong = |problem: String| KeptError {
            path: path.clone(),
            problem,
        };
        let bytes = self
            .read_file(&path, limit)
            .map_err(|error| wrong(error.to_string()))?;
        let found = Digest::of(&bytes).to_string();
        if found != digest {
            return Err(wrong(format!("its digest is {found}: it is damaged")));
        }
        Ok(bytes.into())
    }

    /// Reports whether the file of a version is there. It may be damaged.
    pub(super) fn has(&self, digest: &Digest) -> bool {
        self.file(&digest.to_string()).is_file()
    }

    /// Stores a version as the first, and removes those over the count.
    ///
    /// # Errors
    /// Returns an error when it cannot be written; the versions stored before are still there.
    pub fn keep(&self, version: KeptVersion, file: &Kept) -> io::Result<()> {
        let _lock = self.lock()?;
        self.remove_unfinished();
        let (room, taken) = self.room();
        let free = room.saturating_sub(taken);
        let bytes = file.bytes.len() as u64;
        if bytes > free {
            let others = match taken {
                0 => String::new(),
                taken => format!(", of which those of other plugins take {taken}"),
            };
            let message = format!(
                "it has {bytes} bytes; kept versions may take {room} bytes, at most half of the volume{others}"
            );
            return Err(io::Error::new(io::ErrorKind::StorageFull, message));
        }
        let path = self.file(&version.digest);
        self.write(&path, &file.bytes)?;
        if let Some(signature) = &file.signature {
            self.write(&path.with_extension(SIGNATURE), signature)?;
        }
        let mut versions = self.list();
        versions.retain(|kept| kept.digest != version.digest);
        versions.insert(0, version);
        versions.truncate(self.count);
        self.fit(&mut versions, free);
        let text = serde_json::to_vec_pretty(&Record {
            versions: versions.clone(),
        })?;
        self.write(&self.folder.join(RECORD), &text)?;
        let wanted: Vec<PathBuf> = versions.iter().map(|kept| self.file(&kept.digest)).collect();
        for entry in fs::read_dir(&self.folder)?.flatten() {
            let path = entry.path();
            let ours = path
                .extension()
                .is_some_and(|extension| extension == "wasm" || extension == SIGNATURE);
            if ours && !wanted.contains(&path.with_extension("wasm")) {
                // A file that cannot be deleted is deleted the next time.
                let _ = fs::remove_file(path);
            }
        }
        Ok(())
    }

    /// Returns which versions became live, the newest first.
    ///
    /// # Errors
    /// Returns an error when the file cannot be read; `InvalidData` when it is damaged.
    pub(super) fn history(&self) -> io::Result<Vec<HistoryEntry>> {
        let path = self.folder.join(HISTORY);
        let failed = |kind, problem: &dyn std::fmt::Display| {
            io::Error::new(kind, format!("cannot read {}: {problem}", path.display()))
        };
        let text = match self.read_file(HISTORY.as_ref(), RECORD_LIMIT) {
            Ok(text) => text,
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(Vec::new()),
            Err(error) => return Err(failed(error.kind(), &error)),
        };
        let mut history: Vec<HistoryEntry> = serde_json::from_slice(&text)
            .map_err(|error| failed(io::ErrorKind::InvalidData, &format!("it is damaged: {error}")))?;
        history.sort_by_key(|entry| std::cmp::Reverse(entry.at));
        history.truncate(IN_FILE);
        Ok(history)
    }

    /// Adds an entry to the history, unless the entry beside it is about the same version. Returns the whole history.
    ///
    /// # Errors
    /// Returns an error when the file cannot be read or written. A damaged one is renamed, and a new one is started.
    pub(super) fn add_to_history(&self, entry: HistoryEntry) -> io::Result<Vec<HistoryEntry>> {
        let _lock = self.lock()?;
        let mut history = match self.history() {
            Err(error) if error.kind() == io::ErrorKind::InvalidData => {
                let damaged = self.folder.join(DAMAGED);
                warn!(%error, renamed_to = %damaged.display(), "starting a new history of the plugin's versions");
                fs::rename(self.folder.join(HISTORY), damaged)?;
                Vec::new()
            }
            read => read?,
        };
        if !insert(&mut history, entry, IN_FILE) {
            return Ok(history);
        }
        let mut text = serde_json::to_vec_pretty(&history)?;
        // Escapes may make the texts longer than they are in memory. A larger file could not be read again.
        while text.len() > RECORD_LIMIT && history.pop().is_some() {
            text = serde_json::to_vec_pretty(&history)?;
        }
        self.write(&self.folder.join(HISTORY), &text)?;
        Ok(history)
    }

    /// Locks the folder against other replicas and against other tasks in this one: each opens the file
    /// itself, and unlocks it by closing it.
    fn lock(&self) -> io::Result<fs::File> {
        let lock = self.lock_file()?;
        lock.lock()?;
        Ok(lock)
    }

    fn lock_file(&self) -> io::Result<fs::File> {
        let path = self.folder.join(LOCK);
        // Does not block on something other than a file.
        let flags = OFlags::NOFOLLOW | OFlags::NONBLOCK;
        let mut options = OpenOptions::new();
        options.write(true).create(true).truncate(false);
        let lock = options.custom_flags(flags.bits().cast_signed()).open(&path);
        lock.map_err(|error| {
            let message = format!("cannot open the lock {}: {error}", path.display());
            io::Error::new(error.kind(), message)
        })
    }

    /// Removes the files that a host left when it was killed while it wrote them. The folder is locked, so nobody is
    /// writing them.
    fn remove_unfinished(&self) {
        let entries = fs::read_dir(&self.folder).into_iter().flatten().flatten();
        for path in entries.map(|entry| entry.path()) {
            if path.extension().is_some_and(|extension| extension == UNFINISHED) {
                // A file that cannot be deleted is deleted the next time.
                let _ = fs::remove_file(path);
            }
        }
    }

    /// Reads a file of the folder. Links out of the folder are not followed, because this host did not store
    /// their target.
    fn read_file(&self, path: &Path, limit: usize) -> io::Result<Vec<u8>> {
        Folder::open(&self.folder)?.read(Path::new(path.file_name().unwrap_or_default()), limit)
    }

    /// Returns the bytes that all versions may take, and those that the versions of other controllers take.
    fn room(&self) -> (u64, u64) {
        let volume = rustix::fs::statvfs(&self.state)
            .map_or(u64::MAX, |volume| volume.f_blocks.saturating_mul(volume.f_frsize));
        let others = fs::read_dir(&self.state).into_iter().flatten().flatten();
        let others = others.map(|folder| folder.path());
        let taken: u64 = others
            .filter(|folder| *folder != self.folder)
            .map(|folder| size(&folder))
            .sum();
        (self.room.0.min(volume / 2), taken)
    }

    /// Keeps the first version, and as many others as fit beside it in half of the room, so that a controller
    /// with large versions does not take the space of the next one.
    fn fit(&self, versions: &mut Vec<KeptVersion>, free: u64) {
        let mut sum = 0;
        let fitting = versions.iter().take_while(|kept| {
            let first = sum == 0;
            sum += fs::metadata(self.file(&kept.digest)).map_or(0, |file| file.len());
            first || sum <= free / 2
        });
        let count = fitting.count();
        versions.truncate(count);
    }

    fn file(&self, digest: &str) -> PathBuf {
        self.folder
            .join(digest.replace([':', '/', '.'], "-"))
            .with_extension("wasm")
    }

    /// Writes a file atomically.
    fn write(&self, path: &Path, bytes: &[u8]) -> io::Result<()> {
        let new = path.with_extension(UNFINISHED);
        // Left by a host that was killed, or created by another user, such as a pipe or a link.
        let _ = fs::remove_file(&new);
        let written = || {
            let mut file = fs::File::create_new(&new)?;
            file.write_all(bytes)?;
            file.sync_all()?;
            fs::rename(&new, path)
        };
        written().inspect_err(|_| {
            let _ = fs::remove_file(&new);
        })
    }
}

/// Returns the size of the files in a folder, in bytes.
fn size(folder: &Path) -> u64 {
    let files = fs::read_dir(folder).into_iter().flatten().flatten();
    files.filter_map(|file| Some(file.metadata().ok()?.len())).sum()
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::symlink;
    use std::os::unix::net::UnixListener;
    use std::process::Command;
    use std::sync::mpsc;
    use std::time::Duration;

    use super::*;

    const ROOM: StateLimit = StateLimit(1 << 20);

    fn kept(bytes: &[u8]) -> KeptVersion {
        KeptVersion {
            digest: Digest::of(bytes).to_string(),
            version: "1".into(),
            since: jiff::Timestamp::UNIX_EPOCH,
        }
    }

    fn file(bytes: &[u8]) -> Kept {
        Kept {
            bytes: Bytes::copy_from_slice(bytes),
            signature: None,
        }
    }

    fn digests(versions: &Versions) -> Vec<String> {
        versions.list().into_iter().map(|kept| kept.digest).collect()
    }

    #[test]
    fn the_last_ones_are_kept_and_the_rest_goes() {
        let folder = tempfile::tempdir().unwrap();
        let versions = Versions::open(folder.path(), "a", 2, ROOM).unwrap();
        for bytes in [b"1", b"2", b"3"] {
            versions.keep(kept(bytes), &file(bytes)).unwrap();
        }
        assert_eq!(digests(&versions), [kept(b"3").digest, kept(b"2").digest]);
        assert_eq!(versions.read(&kept(b"2"), 10).unwrap().bytes.as_ref(), b"2");
        assert!(versions.read(&kept(b"1"), 10).is_err());
        assert_eq!(fs::read_dir(folder.path().join("a")).unwrap().count(), 4);
        // A version that becomes live again is the last again.
        versions.keep(kept(b"2"), &file(b"2")).unwrap();
        assert_eq!(digests(&versions), [kept(b"2").digest, kept(b"3").digest]);
        let pin = Prefix::parse(&kept(b"3").digest).unwrap();
        assert_eq!(versions.find(&pin), Some(kept(b"3")));
    }

    #[test]
    fn a_signature_is_kept_and_goes_with_its_version() {
        let folder = tempfile::tempdir().unwrap();
        let versions = Versions::open(folder.path(), "a", 1, ROOM).unwrap();
        let signed = Kept {
            signature: Some(Bytes::from_static(b"s")),
            ..file(b"1")
        };
        versions.keep(kept(b"1"), &signed).unwrap();
        assert_eq!(
            versions.read(&kept(b"1"), 10).unwrap().signature,
            signed.signature
        );
        versions.keep(kept(b"2"), &file(b"2")).unwrap();
        assert_eq!(versions.read(&kept(b"2"), 10).unwrap().signature, None);
        assert_eq!(fs::read_dir(folder.path().join("a")).unwrap().count(), 3);
    }

    #[test]
    fn replicas_that_share_the_folder_lose_nothing_that_the_record_names() {
        let folder = tempfile::tempdir().unwrap();
        let open = || Versions::open(folder.path(), "a", 2, ROOM).unwrap();
        std::thread::scope(|scope| {
            for replica in 0..2 {
                scope.spawn(move || {
                    let versions = open();
                    for number in 0..200 {
                        let bytes = format!("{replica} {number}");
                        versions
                            .keep(kept(bytes.as_bytes()), &file(bytes.as_bytes()))
                            .unwrap();
                    }
                });
            }
        });
        let versions = open();
        assert_eq!(versions.list().len(), 2);
        for version in versions.list() {
            versions.read(&version, 10).unwrap();
        }
        // The two versions, the record and the lock.
        assert_eq!(fs::read_dir(folder.path().join("a")).unwrap().count(), 4);
    }

    #[test]
    fn the_versions_of_all_controllers_fit_their_room() {
        let state = tempfile::tempdir().unwrap();
        let open = |name: &str| Versions::open(state.path(), name, 5, StateLimit(10_000)).unwrap();
        let large = |number: u8| vec![number; 2_000];
        let (a, b) = (open("a"), open("b"));
        for number in 0..5 {
            a.keep(kept(&large(number)), &file(&large(number))).unwrap();
        }
        // Two of them take no more than half of the room.
        assert_eq!(digests(&a), [kept(&large(4)).digest, kept(&large(3)).digest]);
        for number in 5..8 {
            b.keep(kept(&large(number)), &file(&large(number))).unwrap();
        }
        assert_eq!(digests(&b), [kept(&large(7)).digest]);
        // A version that does not fit changes nothing.
        let huge = vec![9; 8_000];
        let error = b.keep(kept(&huge), &file(&huge)).unwrap_err().to_string();
        assert!(
            error.contains("8000 bytes; kept versions may take 10000 bytes")
                && error.contains("those of other plugins take 4"),
            "{error}"
        );
        assert_eq!(digests(&b), [kept(&large(7)).digest]);
        assert!(size(&state.path().join("a")) + size(&state.path().join("b")) < 10_000);
    }

    #[test]
    fn without_other_plugins_the_room_itself_is_too_small() {
        let state = tempfile::tempdir().unwrap();
        let versions = Versions::open(state.path(), "a", 5, StateLimit(10)).unwrap();
        let error = versions.keep(kept(&[1; 11]), &file(&[1; 11])).unwrap_err();
        assert_eq!(
            error.to_string(),
            "it has 11 bytes; kept versions may take 10 bytes, at most half of the volume"
        );
    }

    #[test]
    fn files_that_a_killed_host_left_unfinished_are_removed() {
        let state = tempfile::tempdir().unwrap();
        let open = || Versions::open(state.path(), "a", 5, ROOM).unwrap();
        let left = state.path().join("a").join("sha256-0.new");
        let versions = open();
        fs::write(&left, "x").unwrap();
        let writing = versions.lock().unwrap();
        open();
        assert!(left.exists(), "another replica may be writing it");
        drop(writing);
        open();
        assert!(!left.exists());
        fs::write(&left, "x").unwrap();
        versions.keep(kept(b"1"), &file(b"1")).unwrap();
        assert!(!left.exists());
    }

    /// The kinds of entries that can be in a file's place, and the expected message.
    const STRANGE: [(&str, &str); 5] = [
        ("huge", "it is larger than"),
        ("pipe", "not a file"),
        ("link", "a link that leads out of its folder"),
        ("device", "a link that leads out of its folder"),
        ("socket", "No such device or address"),
    ];

    /// Creates the entry.
    fn stand(what: &str, path: &Path, outside: &Path) {
        let _ = fs::remove_file(path);
        match what {
            // Larger than any limit, without a byte on the disk.
            "huge" => fs::File::create(path).unwrap().set_len(1 << 40).unwrap(),
            "pipe" => assert!(Command::new("mkfifo").arg(path).status().unwrap().success()),
            "link" => symlink(outside, path).unwrap(),
            "device" => symlink("/dev/zero", path).unwrap(),
            _ => drop(UnixListener::bind(path).unwrap()),
        }
    }

    /// Returns the result; fails when it takes too long.
    fn in_time<T: Send + 'static>(work: impl FnOnce() -> T + Send + 'static) -> T {
        let (done, result) = mpsc::channel();
        std::thread::spawn(move || done.send(work()));
        result.recv_timeout(Duration::from_secs(10)).expect("it waits")
    }

    #[test]
    fn what_is_no_file_of_ours_is_refused_in_words_and_the_next_version_is_kept() {
        for (what, words) in STRANGE {
            let folder = tempfile::tempdir().unwrap();
            let outside = folder.path().join("outside");
            let open = || Versions::open(folder.path(), "a", 3, ROOM).unwrap();
            let versions = open();
            let signed = Kept {
                signature: Some(Bytes::from_static(b"s")),
                ..file(b"1")
            };
            versions.keep(kept(b"1"), &signed).unwrap();
            let own = folder.path().join("a");

            // The target of the link would be valid.
            fs::copy(versions.file(&kept(b"1").digest), &outside).unwrap();
            let signature = versions.file(&kept(b"1").digest).with_extension(SIGNATURE);
            for path in [&signature, &versions.file(&kept(b"1").digest)] {
                stand(what, path, &outside);
                let error = versions.read(&kept(b"1"), 10).unwrap_err().to_string();
                assert!(error.contains(words), "{what} at {}: {error}", path.display());
            }
            fs::copy(own.join(RECORD), &outside).unwrap();
            stand(what, &own.join(RECORD), &outside);
            let error = versions.record().unwrap_err();
            assert!(error.contains(words), "{what}: {error}");

            // Nothing is written through a link, and the entry in the way has been removed.
            let before = fs::read(&outside).unwrap();
            stand(what, &own.join(RECORD).with_extension("new"), &outside);
            let versions = open();
            in_time(move || versions.keep(kept(b"2"), &file(b"2"))).unwrap();
            assert_eq!(digests(&open()), [kept(b"2").digest], "{what}");
            assert!(
                fs::symlink_metadata(own.join(RECORD)).unwrap().is_file(),
                "{what}"
            );
            assert_eq!(fs::read(&outside).unwrap(), before, "{what}");
        }
    }

    #[test]
    fn a_lock_that_is_no_file_is_not_waited_for() {
        let folder = tempfile::tempdir().unwrap();
        let versions = Versions::open(folder.path(), "a", 3, ROOM).unwrap();
        for what in ["pipe", "link", "socket"] {
            stand(
                what,
                &folder.path().join("a").join(LOCK),
                &folder.path().join("outside"),
            );
            let versions = Versions::open(folder.path(), "a", 3, ROOM).unwrap();
            let error = in_time(move || versions.keep(kept(b"1"), &file(b"1"))).unwrap_err();
            assert!(error.to_string().contains("lock"), "{what}: {error}");
        }
        assert!(versions.list().is_empty());
        assert!(!folder.path().join("outside").exists());
    }

    #[test]
    fn what_is_damaged_is_not_used() {
        let folder = tempfile::tempdir().unwrap();
        let versions = Versions::open(folder.path(), "a", 2, ROOM).unwrap();
        versions.keep(kept(b"1"), &file(b"1")).unwrap();
        fs::write(versions.file(&kept(b"1").digest), "other").unwrap();
        let error = versions.read(&kept(b"1"), 10).unwrap_err().to_string();
        assert!(error.contains("damaged"), "{error}");
        fs::write(folder.path().join("a").join(RECORD), "{").unwrap();
        assert!(versions.list().is_empty());
        versions.keep(kept(b"2"), &file(b"2")).unwrap();
        assert_eq!(digests(&versions), [kept(b"2").digest]);
    }
}
