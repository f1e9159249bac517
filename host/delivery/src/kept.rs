//! Stores the last live versions on disk, to continue with after a restart and to roll back to.
//!
//! Each controller has one folder. It contains each version's file under its digest, and `record.json`, the
//! last version first. A file is used only if it matches its digest. This protects against damage, but not
//! against anyone who can write to the folder, who could replace the plugin's own file as well. Replicas may
//! share the folder: only one changes it at a time, and each write is complete or has no effect.

use std::fs;
use std::io::{self, Write as _};
use std::os::unix::fs::DirBuilderExt as _;
use std::path::{Path, PathBuf};
use std::str::FromStr as _;

use bytes::Bytes;
use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};
use tracing::warn;

use super::report::KeptVersion;
use super::source::Content;
use super::statement::SIGNATURE_LIMIT;
use crate::Problem;
use operator_host_core::digest::{Digest, Prefix};
use operator_host_core::files;

const RECORD: &str = "record.json";
const HISTORY: &str = "history.json";
/// Suffix of signature files.
const SIGNATURE: &str = "sig";
/// Suffix of files that are being written.
const UNFINISHED: &str = "new";
/// The file that is locked while the folder changes.
const LOCK: &str = "lock";
/// Maximum size of the record and of the history in bytes.
const RECORD_LIMIT: usize = 1 << 20;

/// The versions of one controller's plugin.
#[derive(Debug)]
pub struct Versions {
    state: PathBuf,
    folder: PathBuf,
    count: usize,
    /// Maximum size of the versions of all controllers together, in bytes.
    room: u64,
}

#[derive(Default, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct KeptVersions {
    versions: Vec<KeptVersion>,
}

impl Versions {
    /// Opens the controller's own folder within `state`, and creates it if missing. Keeps at most `count` versions, and
    /// fewer when the versions of all controllers together would have more than `room` bytes.
    ///
    /// # Errors
    /// Returns an error when the folder cannot be created.
    pub fn open(state: &Path, controller: &str, count: usize, room: u64) -> io::Result<Self> {
        let folder = state.join(controller);
        fs::DirBuilder::new()
            .recursive(true)
            .mode(0o700)
            .create(&folder)?;
        Ok(Self {
            state: state.to_owned(),
            folder,
            count,
            room,
        })
    }

    /// Returns all versions, last live first.
    pub fn list(&self) -> Vec<KeptVersion> {
        self.load::<KeptVersions>(RECORD).versions
    }

    /// Reads a document of the folder. What is missing or damaged counts as empty.
    fn load<T: DeserializeOwned + Default>(&self, name: &str) -> T {
        let path = self.folder.join(name);
        let read = match files::read(&path, RECORD_LIMIT) {
            Ok(text) => serde_json::from_slice(&text).map_err(io::Error::from),
            Err(error) if error.kind() == io::ErrorKind::NotFound => return T::default(),
            Err(error) => Err(error),
        };
        read.unwrap_or_else(|error| {
            warn!(file = %path.display(), %error,
                "what is kept about the versions of a plugin cannot be read: it is ignored, and replaced by the next version");
            T::default()
        })
    }

    /// Returns the last version that matches the pin.
    pub fn find(&self, pin: &Prefix) -> Option<KeptVersion> {
        let matches =
            |kept: &KeptVersion| Digest::from_str(&kept.digest).is_ok_and(|digest| pin.matches(&digest));
        self.list().into_iter().find(matches)
    }

    /// Reads the file of a version, if it matches its digest, and the signature that came with it, so that the version can be
    /// trusted after a restart too.
    ///
    /// # Errors
    /// Returns an error when the file is missing, too large or damaged.
    pub fn read(&self, kept: &KeptVersion, limit: usize) -> Result<Content, Problem> {
        let bytes = self.read_bytes(&kept.digest, limit)?;
        let path = self.file(&kept.digest);
        let signature = match files::read(&path.with_extension(SIGNATURE), SIGNATURE_LIMIT) {
            Ok(signature) => Some(signature),
            Err(error) if error.kind() == io::ErrorKind::NotFound => None,
            Err(error) => {
                let problem = format!("its signature cannot be read: {error}");
                return Err(unusable(&path, &problem));
            }
        };
        Ok(Content {
            digest: Digest::of(&bytes),
            bytes,
            signature: signature.map(Bytes::from),
        })
    }

    /// Reads the file of the version with this digest, without its signature, if it matches the digest.
    ///
    /// # Errors
    /// Returns an error when the file is missing, too large or damaged.
    pub(super) fn read_bytes(&self, digest: &str, limit: usize) -> Result<Bytes, Problem> {
        let path = self.file(digest);
        let wrong = |problem: String| unusable(&path, &problem);
        let bytes = files::read(&path, limit).map_err(|error| wrong(error.to_string()))?;
        let found = Digest::of(&bytes).to_string();
        if found != digest {
            return Err(wrong(format!("its digest is {found}: it is damaged")));
        }
        Ok(bytes.into())
    }

    /// Stores a version as the first, and removes those over the count.
    ///
    /// # Errors
    /// Returns an error when it cannot be written; the versions stored before are still there.
    pub fn keep(&self, version: KeptVersion, file: &Content) -> io::Result<()> {
        let _lock = self.lock()?;
        let others = self.size_of_others();
        let free = self.room.saturating_sub(others);
        let bytes = file.bytes.len() as u64;
        if bytes > free {
            let message = format!(
                "it has {bytes} bytes; kept versions may take {} bytes, of which those of other plugins take {others}",
                self.room
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
        let text = serde_json::to_vec_pretty(&KeptVersions {
            versions: versions.clone(),
        })?;
        self.write(&self.folder.join(RECORD), &text)?;
        let wanted: Vec<PathBuf> = versions.iter().map(|kept| self.file(&kept.digest)).collect();
        for entry in fs::read_dir(&self.folder)?.flatten() {
            let path = entry.path();
            let mut ours = ["wasm", SIGNATURE, UNFINISHED].into_iter();
            let is_ours = ours.any(|ours| path.extension().is_some_and(|extension| extension == ours));
            if is_ours && !wanted.contains(&path.with_extension("wasm")) {
                // A file that cannot be deleted is deleted the next time.
                let _ = fs::remove_file(path);
            }
        }
        Ok(())
    }

    /// Returns which versions became live, the newest first.
    pub(super) fn history<E: DeserializeOwned>(&self) -> Vec<E> {
        self.load(HISTORY)
    }

    /// Changes the history. Returns all of it.
    ///
    /// # Errors
    /// Returns an error when the file cannot be written.
    pub(super) fn change_history<E: DeserializeOwned + Serialize>(
        &self,
        change: impl FnOnce(&mut Vec<E>),
    ) -> io::Result<Vec<E>> {
        let _lock = self.lock()?;
        let mut history = self.history();
        change(&mut history);
        self.write(&self.folder.join(HISTORY), &serde_json::to_vec_pretty(&history)?)?;
        Ok(history)
    }

    /// Locks the folder against other replicas and against other tasks in this one: each opens the file
    /// itself, and unlocks it by closing it.
    fn lock(&self) -> io::Result<fs::File> {
        let lock = fs::File::options()
            .write(true)
            .create(true)
            .truncate(false)
            .open(self.folder.join(LOCK))?;
        lock.lock()?;
        Ok(lock)
    }

    /// Returns the bytes that the versions of other controllers take.
    fn size_of_others(&self) -> u64 {
        let others = fs::read_dir(&self.state).into_iter().flatten().flatten();
        let others = others.map(|folder| folder.path());
        let others = others.filter(|folder| *folder != self.folder);
        others.map(|folder| size(&folder)).sum()
    }

    /// Leaves out the earliest versions that do not fit.
    fn fit(&self, versions: &mut Vec<KeptVersion>, free: u64) {
        let mut sum = 0;
        let fitting = versions.iter().take_while(|kept| {
            sum += fs::metadata(self.file(&kept.digest)).map_or(0, |file| file.len());
            sum <= free
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
        let write = || {
            let mut file = fs::File::create(&new)?;
            file.write_all(bytes)?;
            file.sync_all()?;
            fs::rename(&new, path)
        };
        // A part of it must not fill the volume.
        write().inspect_err(|_| drop(fs::remove_file(&new)))
    }
}

fn unusable(path: &Path, problem: &str) -> Problem {
    let path = path.display();
    Problem(format!("the kept version {path} cannot be used: {problem}"))
}

/// Returns the size of the files in a folder, in bytes.
fn size(folder: &Path) -> u64 {
    let files = fs::read_dir(folder).into_iter().flatten().flatten();
    files.filter_map(|file| Some(file.metadata().ok()?.len())).sum()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::tests::assert_says;

    const ROOM: u64 = 1 << 20;

    fn kept(bytes: &[u8]) -> KeptVersion {
        KeptVersion {
            digest: Digest::of(bytes).to_string(),
            version: "1".into(),
            since: jiff::Timestamp::UNIX_EPOCH,
        }
    }

    fn file(bytes: &[u8]) -> Content {
        Content {
            digest: Digest::of(bytes),
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
        let signed = Content {
            signature: Some(Bytes::from_static(b"s")),
            ..file(b"1")
        };
        versions.keep(kept(b"1"), &signed).unwrap();
        let read = versions.read(&kept(b"1"), 10).unwrap();
        assert_eq!(read.signature, signed.signature);
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
                        let bytes = bytes.as_bytes();
                        versions.keep(kept(bytes), &file(bytes)).unwrap();
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
        let open = |name: &str| Versions::open(state.path(), name, 5, 10_000).unwrap();
        let large = |number: u8| vec![number; 4_000];
        let (a, b) = (open("a"), open("b"));
        // The earliest one is left out.
        for number in 0..3 {
            a.keep(kept(&large(number)), &file(&large(number))).unwrap();
        }
        assert_eq!(digests(&a), [kept(&large(2)).digest, kept(&large(1)).digest]);
        // A version that does not fit changes nothing.
        b.keep(kept(b"1"), &file(b"1")).unwrap();
        let error = b.keep(kept(&large(9)), &file(&large(9))).unwrap_err();
        let words = "4000 bytes; kept versions may take 10000 bytes … those of other plugins take 8";
        assert_says(error, words);
        assert_eq!(digests(&b), [kept(b"1").digest]);
    }

    #[test]
    fn files_that_a_killed_host_left_unfinished_are_removed() {
        let state = tempfile::tempdir().unwrap();
        let open = || Versions::open(state.path(), "a", 5, ROOM).unwrap();
        let left = state.path().join("a").join("sha256-0.new");
        let versions = open();
        fs::write(&left, "x").unwrap();
        versions.keep(kept(b"1"), &file(b"1")).unwrap();
        assert!(!left.exists());
    }

    #[test]
    fn what_is_damaged_is_not_used() {
        let folder = tempfile::tempdir().unwrap();
        let versions = Versions::open(folder.path(), "a", 2, ROOM).unwrap();
        versions.keep(kept(b"1"), &file(b"1")).unwrap();
        fs::write(versions.file(&kept(b"1").digest), "other").unwrap();
        assert_says(versions.read(&kept(b"1"), 10).unwrap_err(), "damaged");
        fs::write(folder.path().join("a").join(RECORD), "{").unwrap();
        assert!(versions.list().is_empty());
        versions.keep(kept(b"2"), &file(b"2")).unwrap();
        assert_eq!(digests(&versions), [kept(b"2").digest]);
    }
}
