//! A folder that only this host's user can access, and the key in it.

use std::fs::{self, File, OpenOptions};
use std::io::{self, Read as _, Write as _};
use std::os::unix::fs::{DirBuilderExt as _, MetadataExt as _, OpenOptionsExt as _};
use std::path::{Path, PathBuf};

use rustix::fs::OFlags;

use super::CacheError;

const KEY: &str = "key";
const KEY_BYTES: usize = 32;

/// Opens the folder `path` and returns the key in it; creates both if missing.
///
/// # Errors
/// Returns an error when the folder cannot be created or read, or when other users could write to it.
pub(super) fn open(path: &Path) -> Result<[u8; KEY_BYTES], CacheError> {
    let at = |path: &Path| {
        let path = path.to_owned();
        move |source| CacheError::Io { path, source }
    };
    if let Some(parent) = path.parent() {
        fs::create_dir_all(parent).map_err(at(parent))?;
    }
    match fs::DirBuilder::new().mode(0o700).create(path) {
        Err(error) if error.kind() != io::ErrorKind::AlreadyExists => return Err(at(path)(error)),
        _ => {}
    }
    // A file created by this process belongs to the user the process runs as; the folder must belong to the
    // same user.
    let probe = Temporary::create(path, 0).map_err(at(path))?;
    let user = probe.file.metadata().map_err(at(path))?.uid();
    drop(probe);
    private(path, &fs::symlink_metadata(path).map_err(at(path))?, user, true)?;
    let file = path.join(KEY);
    match read_key(&file, user)? {
        Some(key) => Ok(key),
        None => make_key(path, &file, user),
    }
}

fn private(path: &Path, found: &fs::Metadata, user: u32, folder: bool) -> Result<(), CacheError> {
    let what = if folder != found.is_dir() || folder == found.is_file() {
        "is a link, or of an unexpected file type"
    } else if found.uid() != user {
        "belongs to another user"
    } else if found.mode() & 0o077 != 0 {
        "is accessible to other users"
    } else {
        return Ok(());
    };
    Err(CacheError::Shared {
        path: path.to_owned(),
        what,
    })
}

/// Reads the key; returns `None` when it is missing or damaged.
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
        // Another host was faster, or the existing key is damaged: the entries made with it are lost in any
        // case.
        Err(error) if error.kind() == io::ErrorKind::AlreadyExists => match read_key(path, user)? {
            Some(key) => Ok(key),
            None => fs::rename(&new.path, path).map(|()| key).map_err(at),
        },
        Err(error) => Err(at(error)),
    }
}

/// Opens a file that a host wrote, and returns its size in bytes. Does not open or block on anything other than a file,
/// such as a pipe or a link.
///
/// # Errors
/// Returns an error when it cannot be opened, is not a file, or has more than `limit` bytes.
pub(super) fn open_entry(path: &Path, limit: u64) -> io::Result<(File, u64)> {
    let flags = OFlags::NOFOLLOW | OFlags::NONBLOCK;
    let mut options = OpenOptions::new();
    options.read(true).custom_flags(flags.bits().cast_signed());
    let file = options.open(path)?;
    let found = file.metadata()?;
    if !found.is_file() {
        return Err(io::Error::other("it is not a file"));
    }
    if found.len() > limit {
        return Err(io::Error::other(format!("it has over {limit} bytes")));
    }
    Ok((file, found.len()))
}

/// A file that is deleted on drop unless it was renamed.
pub(super) struct Temporary {
    pub(super) path: PathBuf,
    pub(super) file: File,
}

impl Temporary {
    pub(super) fn create(folder: &Path, number: u64) -> io::Result<Self> {
        let path = folder.join(format!(".new-{}-{number}", std::process::id()));
        // Left by a process that had the same ID in another container and was killed.
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
