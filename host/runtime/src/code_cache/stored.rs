//! Machine code that stays on the disk until it is needed.
//!
//! An entry is a file: the authentication code of the rest, the machine code, what the plugin said about itself as JSON,
//! and the bytes of that in four bytes.

use std::fs::File;
use std::io;
use std::os::unix::fs::FileExt as _;
use std::path::Path;

use aws_lc_rs::constant_time::verify_slices_are_equal;
use aws_lc_rs::hmac;

use super::{DESCRIPTION_BYTES, Described, TAG_BYTES, folder};
use crate::code::Code;

/// How much of the code is in memory while it is checked.
const CHUNK: usize = 64 << 10;
/// Bytes of the length at the end.
const LENGTH_BYTES: usize = size_of::<u32>();

/// Returns the contents of an entry behind its authentication code.
pub(super) fn content(code: &Code, described: &Described) -> Vec<u8> {
    // A description contains nothing that JSON cannot represent, and is far smaller than 4 GiB.
    let described = serde_json::to_vec(described).unwrap_or_default();
    let length = u32::try_from(described.len()).unwrap_or(u32::MAX);
    [code.bytes(), &described, &length.to_le_bytes()].concat()
}

/// A verified entry of the cache. Its file is held open: an entry that is evicted, or a folder that is removed, takes
/// nothing away from a running plugin.
pub(crate) struct Stored {
    /// Of the entry.
    name: Box<str>,
    file: File,
    /// Bytes of the code, and of what follows it.
    code: usize,
    rest: usize,
    key: hmac::Key,
}

impl Stored {
    /// Opens an entry and checks it. Holds at most [`CHUNK`] bytes of its code.
    ///
    /// # Errors
    /// Returns an error when it cannot be read, has more than `limit` bytes, or was not written by this host.
    pub(super) fn open(path: &Path, name: &str, limit: u64, key: hmac::Key) -> io::Result<(Self, Described)> {
        let (file, size) = folder::open_entry(path, limit)?;
        let size = usize::try_from(size).map_err(io::Error::other)?;
        let mut length = [0; LENGTH_BYTES];
        let end = size.checked_sub(LENGTH_BYTES).ok_or_else(forged)?;
        file.read_exact_at(&mut length, end as u64)?;
        let described = u32::from_le_bytes(length) as usize;
        let rest = described.saturating_add(LENGTH_BYTES);
        let code = size
            .checked_sub(TAG_BYTES)
            .and_then(|size| size.checked_sub(rest));
        let code = code
            .filter(|_| described <= DESCRIPTION_BYTES)
            .ok_or_else(forged)?;

        let (mut tag, mut chunk) = ([0; TAG_BYTES], vec![0; CHUNK.max(rest)]);
        file.read_exact_at(&mut tag, 0)?;
        let mut hash = hmac::Context::with_key(&key);
        let mut add = |at: usize, bytes: usize| {
            file.read_exact_at(&mut chunk[..bytes], (TAG_BYTES + at) as u64)?;
            hash.update(&chunk[..bytes]);
            Ok::<_, io::Error>(())
        };
        for at in (0..code).step_by(CHUNK) {
            add(at, CHUNK.min(code - at))?;
        }
        add(code, rest)?;
        verify_slices_are_equal(hash.sign().as_ref(), &tag).map_err(|_| forged())?;
        let described = serde_json::from_slice(&chunk[..described])?;
        let stored = Self {
            name: name.into(),
            file,
            code,
            rest,
            key,
        };
        Ok((stored, described))
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
        let mut code = vec![0; self.code + self.rest];
        self.file.read_exact_at(&mut code, TAG_BYTES as u64)?;
        hmac::verify(&self.key, &code, &tag).map_err(|_| forged())?;
        code.truncate(self.code);
        Ok(Code::authentic(code))
    }
}

fn forged() -> io::Error {
    io::Error::other("this host did not write it")
}
