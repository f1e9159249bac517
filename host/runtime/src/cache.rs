//! Machine code kept on disk, so that a start compiles nothing that was compiled before.
//!
//! Machine code runs outside of every sandbox, so an entry must be what this host wrote, to the last byte. Each
//! entry begins with an HMAC-SHA256 over its name and its code, with a key that only this host's user can read; the
//! check runs over the very bytes in memory that are then loaded. The name says what the code was made from and
//! for. An entry that fails the check, or that the engine does not take, is made anew. See ARCHITECTURE.md for what
//! this protects against, and what not.

use std::collections::hash_map::DefaultHasher;
use std::fs::{self, File, OpenOptions};
use std::hash::{Hash as _, Hasher as _};
use std::io::{self, Read as _, Write as _};
use std::os::unix::fs::{DirBuilderExt as _, MetadataExt as _, OpenOptionsExt as _};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::SystemTime;

use aws_lc_rs::hmac;
use tracing::{debug, warn};
use wasmtime::Engine;

use crate::digest::Digest;

/// Within the folder that is configured: what belongs to this layout of entries, and to nobody else.
const FOLDER: &str = "compiled-v1";
const KEY: &str = "key";
const KEY_BYTES: usize = 32;
const TAG_BYTES: usize = 32;
/// The suffix of entries.
const SUFFIX: &str = "code";
/// So many entries are kept; those go first that were not used for the longest time.
const ENTRIES: usize = 64;

/// Why a folder cannot hold compiled code. The host works without.
#[derive(Debug, thiserror::Error)]
pub enum CacheError {
    /// The operating system does not let us.
    #[error("cannot use {} for compiled code: {source}", path.display())]
    Io {
        /// The folder or file.
        path: PathBuf,
        /// What the operating system said.
        source: io::Error,
    },
    /// Others could have put something there.
    #[error("{} {what}: compiled code is kept only where nobody else can write", path.display())]
    Shared {
        /// The folder or file.
        path: PathBuf,
        /// What is wrong with it.
        what: &'static str,
    },
}

/// How a type of wasmtime is made of the bytes that its `serialize` gave.
pub(crate) type Deserialize<T> = unsafe fn(&Engine, Vec<u8>) -> wasmtime::Result<T>;

/// A folder of compiled code. Cheap to clone.
#[derive(Clone)]
pub struct Cache(Arc<Folder>);

struct Folder {
    path: PathBuf,
    key: hmac::Key,
    /// Whether it was said that entries cannot be written.
    said: AtomicBool,
    next: AtomicU64,
}

impl Cache {
    /// Uses a folder of its own within `folder`; makes both when they are not there.
    ///
    /// # Errors
    /// When it cannot be made or read, or when others could write to it.
    pub fn open(folder: &Path) -> Result<Self, CacheError> {
        let path = folder.join(FOLDER);
        let at = |path: &Path| {
            let path = path.to_owned();
            move |source| CacheError::Io { path, source }
        };
        fs::create_dir_all(folder).map_err(at(folder))?;
        match fs::DirBuilder::new().mode(0o700).create(&path) {
            Err(error) if error.kind() != io::ErrorKind::AlreadyExists => return Err(at(&path)(error)),
            _ => {}
        }
        // What this process makes belongs to the user that it runs as, which is whom the folder must belong to.
        let probe = Temporary::create(&path, 0).map_err(at(&path))?;
        let user = probe.file.metadata().map_err(at(&path))?.uid();
        drop(probe);
        private(
            &path,
            &fs::symlink_metadata(&path).map_err(at(&path))?,
            user,
            true,
        )?;
        let file = path.join(KEY);
        let key = match read_key(&file, user)? {
            Some(key) => key,
            None => make_key(&path, &file, user)?,
        };
        Ok(Self(Arc::new(Folder {
            path,
            key: hmac::Key::new(hmac::HMAC_SHA256, &key),
            said: AtomicBool::new(false),
            next: AtomicU64::new(1),
        })))
    }

    /// The code made of `source`, when it is there and good.
    pub(crate) fn get<T>(&self, engine: &Engine, name: &str, deserialize: Deserialize<T>) -> Option<T> {
        let file = self.file(name);
        let content = fs::read(&file).ok()?;
        let restored = self
            .authentic(name, content)
            .ok_or_else(|| "it is not what this host wrote".to_owned())
            .and_then(|code| restore(engine, code, deserialize).map_err(|error| format!("{error:#}")));
        match restored {
            Ok(restored) => {
                // The ones that are not used go first.
                let now = fs::FileTimes::new().set_modified(SystemTime::now());
                let _ = File::options()
                    .append(true)
                    .open(&file)
                    .and_then(|entry| entry.set_times(now));
                Some(restored)
            }
            Err(reason) => {
                warn!(entry = name, %reason, "a file of compiled code cannot be used and is made anew");
                let _ = fs::remove_file(&file);
                None
            }
        }
    }

    /// Keeps code under a name. Where that is not possible the host goes on without.
    pub(crate) fn put(&self, name: &str, code: &[u8]) {
        let mut written = self.write(name, code);
        while written.as_ref().is_err_and(is_full) && self.evict(1) > 0 {
            written = self.write(name, code);
        }
        match written {
            Ok(()) => debug!(entry = name, bytes = code.len(), "compiled code kept"),
            Err(error) if self.0.said.swap(true, Ordering::Relaxed) => {
                debug!(entry = name, %error, "cannot keep compiled code");
            }
            Err(error) => warn!(
                folder = %self.0.path.display(), %error,
                "cannot keep compiled code: plugins run, but the next start compiles them again"
            ),
        }
        let surplus = self.entries().len().saturating_sub(ENTRIES);
        self.evict(surplus);
    }

    fn write(&self, name: &str, code: &[u8]) -> io::Result<()> {
        let number = self.0.next.fetch_add(1, Ordering::Relaxed);
        let mut entry = Temporary::create(&self.0.path, number)?;
        entry
            .file
            .write_all(hmac::sign(&self.key_of(name), code).as_ref())?;
        entry.file.write_all(code)?;
        fs::rename(&entry.path, self.file(name))
    }

    /// The code in an entry, when this host wrote it under this name.
    fn authentic(&self, name: &str, mut content: Vec<u8>) -> Option<Authentic> {
        let (tag, code) = content.split_at_checked(TAG_BYTES)?;
        hmac::verify(&self.key_of(name), code, tag).ok()?;
        content.drain(..TAG_BYTES);
        Some(Authentic(content))
    }

    /// A key for each name, so that an entry is good under its own name only.
    fn key_of(&self, name: &str) -> hmac::Key {
        hmac::Key::new(
            hmac::HMAC_SHA256,
            hmac::sign(&self.0.key, name.as_bytes()).as_ref(),
        )
    }

    fn file(&self, name: &str) -> PathBuf {
        self.0.path.join(format!("{name}.{SUFFIX}"))
    }

    /// All entries, those first that were not used for the longest time.
    fn entries(&self) -> Vec<PathBuf> {
        let Ok(folder) = fs::read_dir(&self.0.path) else {
            return Vec::new();
        };
        let mut entries: Vec<_> = folder
            .filter_map(|entry| Some(entry.ok()?.path()))
            .filter(|path| path.extension().is_some_and(|suffix| suffix == SUFFIX))
            .filter_map(|path| Some((fs::metadata(&path).ok()?.modified().ok()?, path)))
            .collect();
        entries.sort();
        entries.into_iter().map(|(_, path)| path).collect()
    }

    /// Takes out so many entries; how many it did.
    fn evict(&self, count: usize) -> usize {
        let oldest = self.entries().into_iter().take(count);
        oldest.filter(|path| fs::remove_file(path).is_ok()).count()
    }
}

/// Whether the disk, or this user's share of it, has no room.
fn is_full(error: &io::Error) -> bool {
    matches!(
        error.kind(),
        io::ErrorKind::StorageFull | io::ErrorKind::QuotaExceeded
    )
}

/// The name of the code that this engine makes of these bytes. The engine's hash covers its version, its settings
/// and the features of the processor that it compiles for.
pub(crate) fn name(engine: &Engine, source: &[u8], form: &str) -> String {
    let mut hasher = DefaultHasher::new();
    engine.precompile_compatibility_hash().hash(&mut hasher);
    let digest = Digest::of(source).to_string().replace(':', "-");
    format!("{digest}-{:016x}-{form}", hasher.finish())
}

/// Bytes that [`Cache::authentic`] has checked.
struct Authentic(Vec<u8>);

/// The one place where machine code is loaded that this process did not make.
#[allow(unsafe_code, reason = "see SAFETY")]
fn restore<T>(engine: &Engine, code: Authentic, deserialize: Deserialize<T>) -> wasmtime::Result<T> {
    // SAFETY: wasmtime asks that the bytes come from its own `serialize`, unchanged. They do: `Authentic` is made by
    // `Cache::authentic` alone, which checks an HMAC of exactly these bytes, in memory that nobody else writes to,
    // with a key that only this host's user can read; and `Cache::put`, the only maker of such HMACs, is given what
    // `serialize` returned. That they fit this engine and this processor wasmtime checks by itself.
    unsafe { deserialize(engine, code.0) }
}

fn private(path: &Path, found: &fs::Metadata, user: u32, folder: bool) -> Result<(), CacheError> {
    let what = if folder != found.is_dir() || folder == found.is_file() {
        "is a link, or not what is expected there"
    } else if found.uid() != user {
        "belongs to another user"
    } else if found.mode() & 0o077 != 0 {
        "is open to other users"
    } else {
        return Ok(());
    };
    Err(CacheError::Shared {
        path: path.to_owned(),
        what,
    })
}

/// The key, unless there is none or it is damaged.
fn read_key(path: &Path, user: u32) -> Result<Option<[u8; KEY_BYTES]>, CacheError> {
    let at = |source| CacheError::Io {
        path: path.to_owned(),
        source,
    };
    match fs::symlink_metadata(path) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(None),
        found => private(path, &found.map_err(at)?, user, false)?,
    }
    let file = File::open(path).map_err(at)?;
    private(path, &file.metadata().map_err(at)?, user, false)?;
    let mut key = Vec::new();
    file.take(KEY_BYTES as u64 + 1)
        .read_to_end(&mut key)
        .map_err(at)?;
    Ok(key.try_into().ok())
}

fn make_key(folder: &Path, path: &Path, user: u32) -> Result<[u8; KEY_BYTES], CacheError> {
    let at = |source| CacheError::Io {
        path: path.to_owned(),
        source,
    };
    let mut key = [0; KEY_BYTES];
    getrandom::fill(&mut key).map_err(|error| at(io::Error::other(error.to_string())))?;
    let mut new = Temporary::create(folder, 0).map_err(at)?;
    new.file.write_all(&key).map_err(at)?;
    match fs::hard_link(&new.path, path) {
        Ok(()) => Ok(key),
        // Another host was faster, or what is there is damaged: entries made with it are lost anyway.
        Err(error) if error.kind() == io::ErrorKind::AlreadyExists => match read_key(path, user)? {
            Some(key) => Ok(key),
            None => fs::rename(&new.path, path).map(|()| key).map_err(at),
        },
        Err(error) => Err(at(error)),
    }
}

/// A file that goes when it is dropped, unless it was renamed.
struct Temporary {
    path: PathBuf,
    file: File,
}

impl Temporary {
    fn create(folder: &Path, number: u64) -> io::Result<Self> {
        let path = folder.join(format!(".new-{}-{number}", std::process::id()));
        // Of a process that had this number before, in another container, and was killed.
        let _ = fs::remove_file(&path);
        let file = OpenOptions::new()
            .write(true)
            .create_new(true)
            .mode(0o600)
            .open(&path)?;
        Ok(Self { path, file })
    }
}

impl Drop for Temporary {
    fn drop(&mut self) {
        let _ = fs::remove_file(&self.path);
    }
}
