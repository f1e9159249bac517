//! The contents of a file that could become live. They are in memory while they are loaded or stored, not while they wait for
//! that: 2 KB of a ConfigMap can become 32 MB.

use std::fs::{self, File};
use std::io::{self, Write as _};
use std::os::unix::fs::FileExt as _;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Instant;

use bytes::Bytes;
use thiserror::Error;
use tracing::debug;

use crate::kept::Versions;
use crate::source::{Content, Found, read_now};
use operator_host_core::digest::Digest;

/// The contents of a file that could become the live version.
#[derive(Clone)]
pub struct PluginFile {
    source: Source,
    /// The digest of the contents.
    pub digest: Digest,
    /// Their size in bytes.
    pub size: usize,
    /// The signature that was in the same folder.
    pub signature: Option<Bytes>,
    /// When the change was noticed.
    pub noticed: Instant,
}

/// Why the contents cannot be read again.
#[derive(Debug, Error)]
pub(crate) enum ReadError {
    #[error(transparent)]
    Io(#[from] io::Error),
    /// The next look finds the others.
    #[error("it has changed meanwhile")]
    Changed,
}

/// Where the contents are.
#[derive(Clone)]
enum Source {
    /// In a file that is watched, in any packed form.
    Watched(PathBuf),
    /// Among the kept versions.
    Kept(Arc<Versions>),
    /// In a file without a name, which ends with the last clone.
    Nameless(Arc<File>),
    Memory(Bytes),
}

impl PluginFile {
    /// Creates a file that was noticed now and stays in memory.
    pub fn new(bytes: Bytes, digest: Digest, signature: Option<Bytes>) -> Self {
        let size = bytes.len();
        Self::of(Source::Memory(bytes), digest, size, signature)
    }

    /// Creates what was found at a path.
    pub(crate) fn found(path: PathBuf, found: Found) -> Self {
        Self::of(Source::Watched(path), found.digest, found.size, found.signature)
    }

    /// Creates a version that is kept.
    pub(super) fn kept(versions: Arc<Versions>, content: Content) -> Self {
        let size = content.bytes.len();
        Self::of(Source::Kept(versions), content.digest, size, content.signature)
    }

    /// Creates a file that was pulled, in a file without a name in this folder; in memory where nothing can be written. Blocks.
    pub(crate) fn pulled(folder: &Path, bytes: Bytes, digest: Digest, signature: Option<Bytes>) -> Self {
        let size = bytes.len();
        let source = match nameless(folder, &bytes) {
            Ok(file) => Source::Nameless(Arc::new(file)),
            Err(error) => {
                debug!(%error, "a plugin that was pulled stays in memory: nothing can be written in {}", folder.display());
                Source::Memory(bytes)
            }
        };
        Self::of(source, digest, size, signature)
    }

    /// Returns the same file with another signature, that was noticed now.
    pub(crate) fn signed(&self, signature: Option<Bytes>) -> Self {
        Self::of(self.source.clone(), self.digest, self.size, signature)
    }

    fn of(source: Source, digest: Digest, size: usize, signature: Option<Bytes>) -> Self {
        Self {
            source,
            digest,
            size,
            signature,
            noticed: Instant::now(),
        }
    }

    /// Reads the contents.
    ///
    /// # Errors
    /// When they cannot be read, or have changed meanwhile.
    pub(crate) async fn read(&self) -> Result<Bytes, ReadError> {
        if let Source::Memory(bytes) = &self.source {
            return Ok(bytes.clone());
        }
        let file = self.clone();
        tokio::task::spawn_blocking(move || file.read_now())
            .await
            .map_err(io::Error::other)?
    }

    fn read_now(&self) -> Result<Bytes, ReadError> {
        let bytes = match &self.source {
            Source::Memory(bytes) => bytes.clone(),
            Source::Kept(versions) => {
                let read = versions.read_bytes(&self.digest.to_string(), self.size);
                return Ok(read.map_err(io::Error::other)?);
            }
            Source::Watched(path) => read_now(path, self.size).map_err(io::Error::other)?.bytes,
            Source::Nameless(file) => {
                let mut bytes = vec![0; self.size];
                file.read_exact_at(&mut bytes, 0)?;
                bytes.into()
            }
        };
        match Digest::of(&bytes) == self.digest {
            true => Ok(bytes),
            false => Err(ReadError::Changed),
        }
    }

    /// Reports whether its contents are in memory.
    #[cfg(test)]
    pub(crate) fn is_in_memory(&self) -> bool {
        matches!(self.source, Source::Memory(_))
    }
}

/// Writes a file that has no name any more.
fn nameless(folder: &Path, bytes: &[u8]) -> io::Result<File> {
    static NUMBER: AtomicU64 = AtomicU64::new(0);
    let number = NUMBER.fetch_add(1, Ordering::Relaxed);
    let path = folder.join(format!("pulled-{}-{number}", std::process::id()));
    let mut file = File::options()
        .read(true)
        .write(true)
        .create_new(true)
        .open(&path)?;
    fs::remove_file(&path)?;
    file.write_all(bytes)?;
    Ok(file)
}
