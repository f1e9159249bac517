//! Machine code that stays on the disk until it is needed.

use std::fs::File;
use std::io;
use std::os::unix::fs::FileExt as _;
use std::path::Path;

use aws_lc_rs::constant_time::verify_slices_are_equal;
use aws_lc_rs::hmac;

use super::{TAG_BYTES, folder};
use crate::code::Code;

/// How much of an entry is in memory while it is checked.
const CHUNK: usize = 64 << 10;

/// A verified entry of the cache. Its file is held open: an entry that is evicted, or a folder that is removed, takes
/// nothing away from a running plugin.
pub(crate) struct Stored {
    /// Of the entry.
    name: Box<str>,
    file: File,
    /// Bytes of the file.
    size: u64,
    key: hmac::Key,
}

impl Stored {
    /// Opens an entry and checks it. Holds at most [`CHUNK`] bytes of it.
    ///
    /// # Errors
    /// Returns an error when it cannot be read, has more than `limit` bytes, or was not written by this host.
    pub(super) fn open(path: &Path, name: &str, limit: u64, key: hmac::Key) -> io::Result<Self> {
        let (file, size) = folder::open_entry(path, limit)?;
        let mut tag = [0; TAG_BYTES];
        file.read_exact_at(&mut tag, 0).map_err(|_| forged())?;
        let (mut hash, mut chunk) = (hmac::Context::with_key(&key), vec![0; CHUNK]);
        let mut at = TAG_BYTES as u64;
        while at < size {
            let wanted = usize::try_from(size - at).map_or(CHUNK, |rest| rest.min(CHUNK));
            file.read_exact_at(&mut chunk[..wanted], at)?;
            hash.update(&chunk[..wanted]);
            at += wanted as u64;
        }
        verify_slices_are_equal(hash.sign().as_ref(), &tag).map_err(|_| forged())?;
        Ok(Self {
            name: name.into(),
            file,
            size,
            key,
        })
    }

    /// Returns the name of the entry.
    pub(crate) fn name(&self) -> &str {
        &self.name
    }

    /// Reads the code into memory, and checks it there.
    ///
    /// # Errors
    /// Returns an error when it cannot be read, or has changed since it was opened.
    pub(crate) fn read(&self) -> io::Result<Code> {
        let mut tag = [0; TAG_BYTES];
        self.file.read_exact_at(&mut tag, 0)?;
        let size = usize::try_from(self.size).map_err(io::Error::other)? - TAG_BYTES;
        let mut code = vec![0; size];
        self.file.read_exact_at(&mut code, TAG_BYTES as u64)?;
        hmac::verify(&self.key, &code, &tag).map_err(|_| forged())?;
        Ok(Code::authentic(code))
    }
}

fn forged() -> io::Error {
    io::Error::other("this host did not write it")
}
