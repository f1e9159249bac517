//! On-disk cache of machine code, so that a start does not compile a plugin again.
//!
//! Machine code runs outside of every sandbox, so an entry must be exactly what this host wrote. Each entry
//! begins with an HMAC-SHA256 over its name and its contents, with a key that only this host's user can read.
//! The check runs over the same bytes in memory that are then loaded. The name contains what the code was
//! compiled from and for. An entry that fails the check, or that the engine rejects, is compiled again. See
//! `host/docs/decisions/compiled-cache.md` for what this protects against and what it does not.
//!
//! Behind the code is the description that the plugin has returned, so that a start need not even load the code.

mod folder;
mod stored;

use std::collections::hash_map::DefaultHasher;
use std::fs::{self, File};
use std::hash::{Hash as _, Hasher as _};
use std::io::{self, Write as _};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::SystemTime;

use aws_lc_rs::hmac;
use serde::{Deserialize, Serialize};
use tracing::{debug, warn};
use wasmtime::Engine;

use self::folder::Temporary;
pub(crate) use self::stored::Stored;
use crate::code::Code;
use crate::contract::Description;
use crate::form::Form;
use operator_host_core::digest::Digest;

/// Subfolder of the configured folder that contains this layout of entries only.
const FOLDER: &str = "compiled-v2";
const TAG_BYTES: usize = 32;
/// Suffix of an entry.
const CODE: &str = "code";
/// Maximum size of a description in bytes, as JSON.
const DESCRIPTION_BYTES: usize = 2 * crate::limits::DESCRIPTION;
/// The entries take at most 1/`VOLUME_SHARE` of the volume, since other programs usually share it.
const VOLUME_SHARE: u64 = 2;

/// Version of the encoder that turns modules into components. The engine's own hash does not include it. A
/// test compares it with the lock file.
pub(crate) const ENCODER: &str = "wit-component 0.254.2";

/// Why a folder cannot hold compiled code. The host then runs without a cache.
#[derive(Debug, thiserror::Error)]
pub enum CacheError {
    /// The operating system denied access.
    #[error("cannot use {} for compiled code: {source}", path.display())]
    Io {
        /// The folder or file.
        path: PathBuf,
        /// The error of the operating system.
        source: io::Error,
    },
    /// Other users could have written to it.
    #[error("{} {what}: compiled code is stored only where no other user can write", path.display())]
    Shared {
        /// The folder or file.
        path: PathBuf,
        /// What is wrong with it.
        what: &'static str,
    },
}

/// A folder with compiled code. Cheap to clone.
#[derive(Clone)]
pub struct Cache(Arc<Folder>);

struct Folder {
    path: PathBuf,
    key: hmac::Key,
    /// Maximum size of all entries together, in bytes.
    size: u64,
    opened: SystemTime,
    /// Whether these were already logged: entries cannot be written; there is not enough room for all entries
    /// in use.
    write_failure_logged: AtomicBool,
    too_small_logged: AtomicBool,
    next: AtomicU64,
}

/// What a plugin has said about itself, and what else is known of it without its code.
#[derive(Clone, Serialize, Deserialize)]
pub(crate) struct Described {
    pub(crate) form: Form,
    /// See [`crate::Plugin::refused_imports`].
    pub(crate) refused: Vec<String>,
    pub(crate) description: Description,
}

/// One file in the folder.
struct Entry {
    used: SystemTime,
    bytes: u64,
    path: PathBuf,
}

impl Cache {
    /// Opens a cache in its own subfolder of `folder`, and creates both folders if missing. The cache takes
    /// at most `size` bytes, and at most half of the volume.
    ///
    /// # Errors
    /// Returns an error when a folder cannot be created or read, or when other users could write to it.
    pub fn open(folder: &Path, size: u64) -> Result<Self, CacheError> {
        let path = folder.join(FOLDER);
        let key = folder::open(&path)?;
        Ok(Self(Arc::new(Folder {
            path,
            key: hmac::Key::new(hmac::HMAC_SHA256, &key),
            size,
            opened: SystemTime::now(),
            write_failure_logged: AtomicBool::new(false),
            too_small_logged: AtomicBool::new(false),
            next: AtomicU64::new(1),
        })))
    }

    /// Returns the entry with this name if it is valid, without holding its code in memory.
    pub(crate) fn get(&self, name: &str) -> Option<(Stored, Described)> {
        let file = self.file(name);
        match Stored::open(&file, name, self.bound(), self.key_of(&file)) {
            Ok(stored) => {
                touch(&file);
                Some(stored)
            }
            Err(error) if error.kind() == io::ErrorKind::NotFound => None,
            Err(error) => {
                self.discard(name, &error.to_string());
                None
            }
        }
    }

    /// Removes an entry that cannot be used.
    pub(crate) fn discard(&self, name: &str, reason: &str) {
        warn!(entry = name, %reason, "an entry of compiled code cannot be used and is removed; the next load compiles the plugin again");
        let _ = fs::remove_file(self.file(name));
    }

    /// Stores code and what its plugin says about itself under a name. If that fails, the host continues without the entry.
    pub(crate) fn put(&self, name: &str, code: &Code, described: &Described) {
        let file = &self.file(name);
        let content = stored::content(code, described);
        let bytes = (content.len() + TAG_BYTES) as u64;
        let mut written = self.make_room(bytes);
        if written.is_ok() {
            written = self.write(file, &content);
        }
        while written.as_ref().is_err_and(is_full) && self.evict_one() {
            written = self.write(file, &content);
        }
        match written {
            Ok(()) => debug!(entry = %file.display(), bytes, "compiled code stored"),
            Err(error) if self.0.write_failure_logged.swap(true, Ordering::Relaxed) => {
                debug!(entry = %file.display(), %error, "cannot store compiled code");
            }
            Err(error) => warn!(
                folder = %self.0.path.display(), %error,
                "cannot store compiled code: plugins run, but the next start compiles them again"
            ),
        }
    }

    /// Removes entries until there is room for `bytes` more bytes.
    fn make_room(&self, bytes: u64) -> io::Result<()> {
        let bound = self.bound();
        if bytes > bound {
            let message = format!("the code has {bytes} bytes; the limit of the cache is {bound}");
            return Err(io::Error::new(io::ErrorKind::FileTooLarge, message));
        }
        let entries = self.entries();
        let mut sum: u64 = entries.iter().map(|entry| entry.bytes).sum();
        for entry in entries {
            if sum + bytes <= bound {
                break;
            }
            sum -= entry.bytes;
            self.evict(&entry);
        }
        Ok(())
    }

    /// Returns the maximum size of all entries together, in bytes.
    fn bound(&self) -> u64 {
        let volume = rustix::fs::statvfs(&self.0.path)
            .map_or(u64::MAX, |volume| volume.f_blocks.saturating_mul(volume.f_frsize));
        self.0.size.min(volume / VOLUME_SHARE)
    }

    fn write(&self, file: &Path, content: &[u8]) -> io::Result<()> {
        let number = self.0.next.fetch_add(1, Ordering::Relaxed);
        let mut entry = Temporary::create(&self.0.path, number)?;
        entry
            .file
            .write_all(hmac::sign(&self.key_of(file), content).as_ref())?;
        entry.file.write_all(content)?;
        fs::rename(&entry.path, file)
    }

    /// Returns a separate key for each file name, so that an entry is valid under its own name only.
    fn key_of(&self, file: &Path) -> hmac::Key {
        let name = file.file_name().unwrap_or_default();
        hmac::Key::new(
            hmac::HMAC_SHA256,
            hmac::sign(&self.0.key, name.as_encoded_bytes()).as_ref(),
        )
    }

    fn file(&self, name: &str) -> PathBuf {
        self.0.path.join(format!("{name}.{CODE}"))
    }

    /// Returns the entries, least recently used first.
    fn entries(&self) -> Vec<Entry> {
        let Ok(folder) = fs::read_dir(&self.0.path) else {
            return Vec::new();
        };
        let paths = folder.filter_map(|entry| Some(entry.ok()?.path()));
        let mut entries: Vec<_> = paths
            .filter(|path| path.extension().is_some_and(|found| found == CODE))
            .filter_map(|path| {
                let found = fs::metadata(&path).ok()?;
                Some(Entry {
                    used: found.modified().ok()?,
                    bytes: found.len(),
                    path,
                })
            })
            .collect();
        entries.sort_by(|a, b| (a.used, &a.path).cmp(&(b.used, &b.path)));
        entries
    }

    /// Removes the least recently used entry; returns whether there was one.
    fn evict_one(&self) -> bool {
        self.entries().first().is_some_and(|entry| self.evict(entry))
    }

    fn evict(&self, entry: &Entry) -> bool {
        let used = entry.used >= self.0.opened;
        if used && !self.0.too_small_logged.swap(true, Ordering::Relaxed) {
            warn!(
                folder = %self.0.path.display(), bytes = self.bound(),
                "the cache is too small for the compiled code of all plugins: each start compiles some of them again; raise \
                 --cache-size, and the size of the volume with it"
            );
        }
        fs::remove_file(&entry.path).is_ok()
    }
}

/// Notes that an entry is used: the least recently used ones are removed first.
fn touch(file: &Path) {
    let now = fs::FileTimes::new().set_modified(SystemTime::now());
    let _ = File::options()
        .append(true)
        .open(file)
        .and_then(|entry| entry.set_times(now));
}

/// Whether the disk, or this user's quota on it, is full.
fn is_full(error: &io::Error) -> bool {
    matches!(
        error.kind(),
        io::ErrorKind::StorageFull | io::ErrorKind::QuotaExceeded
    )
}

/// Hashes everything other than the file that determines its machine code: the engine's version, its
/// settings, the processor features it compiles for, and the encoder of components.
pub(crate) fn compatibility(engine: &Engine) -> u64 {
    let mut hasher = DefaultHasher::new();
    engine.precompile_compatibility_hash().hash(&mut hasher);
    env!("CARGO_PKG_VERSION").hash(&mut hasher);
    ENCODER.hash(&mut hasher);
    crate::component::ADAPTER.hash(&mut hasher);
    hasher.finish()
}

/// Returns the name of the entry for a file.
pub(crate) fn name(compatibility: u64, file: &Digest) -> String {
    let digest = file.to_string().replace(':', "-");
    format!("{digest}-{compatibility:016x}")
}
