//! The bytes of a plugin's file: in memory while they are needed, and otherwise where they can be read again.
//!
//! Plugins are megabytes, and a live version does not need its file.

use std::fmt;
use std::io;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use bytes::Bytes;

use crate::digest::Digest;

/// The bytes of a plugin's file. Clones share them.
#[derive(Clone)]
pub struct PluginBytes(Arc<Mutex<Place>>);

/// Reads the bytes again. It may block.
type Source = Arc<dyn Fn() -> io::Result<Bytes> + Send + Sync>;

enum Place {
    Memory(Bytes),
    /// Elsewhere: they must match the digest.
    Released(Digest, Source),
}

impl PluginBytes {
    /// Returns the bytes, and holds them in memory from then on.
    ///
    /// # Errors
    /// When they were released, and the source does not give the same bytes again.
    pub async fn read(&self) -> io::Result<Bytes> {
        let (digest, source) = match &*self.place() {
            Place::Memory(bytes) => return Ok(bytes.clone()),
            Place::Released(digest, source) => (*digest, Arc::clone(source)),
        };
        let read = tokio::task::spawn_blocking(move || {
            let bytes = source()?;
            match Digest::of(&bytes) {
                found if found == digest => Ok(bytes),
                found => Err(io::Error::other(format!(
                    "the file has the digest {found}; expected {digest}"
                ))),
            }
        });
        // The source panicked, or the process is shutting down.
        let bytes = read.await.map_err(io::Error::other)??;
        *self.place() = Place::Memory(bytes.clone());
        Ok(bytes)
    }

    /// Drops the bytes from memory, for all clones. `source` reads them again when they are needed; it runs where it may
    /// block, and what it reads must match `digest`.
    pub fn release(&self, digest: Digest, source: impl Fn() -> io::Result<Bytes> + Send + Sync + 'static) {
        *self.place() = Place::Released(digest, Arc::new(source));
    }

    /// Reports whether the bytes are in memory. For tests.
    #[doc(hidden)]
    #[must_use]
    pub fn is_in_memory(&self) -> bool {
        matches!(&*self.place(), Place::Memory(_))
    }

    fn place(&self) -> MutexGuard<'_, Place> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl From<Bytes> for PluginBytes {
    fn from(bytes: Bytes) -> Self {
        Self(Arc::new(Mutex::new(Place::Memory(bytes))))
    }
}

impl From<Vec<u8>> for PluginBytes {
    fn from(bytes: Vec<u8>) -> Self {
        Bytes::from(bytes).into()
    }
}

impl fmt::Debug for PluginBytes {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &*self.place() {
            Place::Memory(bytes) => write!(f, "PluginBytes({} bytes)", bytes.len()),
            Place::Released(digest, _) => write!(f, "PluginBytes({digest})"),
        }
    }
}
