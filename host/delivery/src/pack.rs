//! The packed forms of a plugin for ConfigMaps: uncompressed, compressed, or compressed and split with an
//! index.
//!
//! The plugin with the file name `echo.wasm` can be `echo.wasm`, `echo.wasm.zst`, `echo.wasm.gz`, or the
//! parts listed in the index `echo.wasm.pack`. This module does not read files; it checks and joins bytes.

use std::io::{self, Read};

use serde::{Deserialize, Serialize};

use crate::Problem;
use operator_host_core::digest::Digest;
use operator_host_runtime::limits::MIB;

/// Suffix of an index's file name, after the plugin's name.
pub const INDEX_SUFFIX: &str = ".pack";
/// Suffix of a signature's file name, after the plugin's name.
pub const SIGNATURE_SUFFIX: &str = ".sig";
/// Maximum size of an index in bytes.
pub(super) const INDEX_LIMIT: usize = 64 << 10;
/// Maximum number of parts of a plugin.
pub const MAX_PARTS: usize = 64;
/// The newest version of the index format that this host supports.
const VERSION: u32 = 1;
/// Maximum memory for unpacking zstd, as a power of two in bytes: the requirement of level 22.
const ZSTD_WINDOW: u32 = 27;

/// The compression of a plugin's file.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Compression {
    /// Not compressed.
    None,
    /// Compressed with `zstd`.
    Zstd,
    /// Compressed with `gzip`.
    Gzip,
}

impl Compression {
    /// All compressions.
    pub const ALL: [Self; 3] = [Self::None, Self::Zstd, Self::Gzip];

    /// Returns the suffix of the file name, after the plugin's name.
    pub const fn suffix(self) -> &'static str {
        match self {
            Self::None => "",
            Self::Zstd => ".zst",
            Self::Gzip => ".gz",
        }
    }

    /// Determines the compression from the suffix of a file name.
    pub fn of(file: &std::path::Path) -> Self {
        let suffix = file.extension().and_then(std::ffi::OsStr::to_str);
        match suffix {
            Some("zst") => Self::Zstd,
            Some("gz") => Self::Gzip,
            _ => Self::None,
        }
    }

    /// Compresses the bytes at a high level.
    ///
    /// # Errors
    /// Returns an error when there is not enough memory.
    pub fn pack(self, bytes: &[u8]) -> io::Result<Vec<u8>> {
        match self {
            Self::None => Ok(bytes.to_vec()),
            Self::Zstd => zstd::encode_all(bytes, 19),
            Self::Gzip => {
                let encoder = flate2::read::GzEncoder::new(bytes, flate2::Compression::best());
                read(encoder, usize::MAX)
            }
        }
    }

    /// Unpacks at most `limit` bytes.
    ///
    /// # Errors
    /// Returns an error when the unpacked bytes exceed the limit, or when the bytes do not have this format.
    pub fn unpack(self, bytes: &[u8], limit: usize) -> Result<Vec<u8>, Problem> {
        let unpacked = match self {
            Self::None => Ok(bytes.get(..=limit).unwrap_or(bytes).to_vec()),
            Self::Zstd => zstd::Decoder::new(bytes).and_then(|mut decoder| {
                decoder.window_log_max(ZSTD_WINDOW)?;
                read(decoder, limit)
            }),
            Self::Gzip => read(flate2::read::MultiGzDecoder::new(bytes), limit),
        };
        let unpacked = unpacked.map_err(|error| {
            Problem(format!(
                "it cannot be unpacked as {self:?}: {error}; was it cut off?"
            ))
        })?;
        if unpacked.len() > limit {
            return Err(too_large(limit));
        }
        Ok(unpacked)
    }
}

/// Returns the error of a plugin that exceeds the limit; unpacking stops there.
fn too_large(limit: usize) -> Problem {
    Problem(format!(
        "it has more than {} MiB when it is unpacked, which is the limit",
        limit / MIB
    ))
}

/// Reads at most one byte more than the limit.
fn read(reader: impl Read, limit: usize) -> io::Result<Vec<u8>> {
    let mut bytes = Vec::new();
    let limit = u64::try_from(limit).unwrap_or(u64::MAX).saturating_add(1);
    reader.take(limit).read_to_end(&mut bytes)?;
    Ok(bytes)
}

/// The contents of the file `echo.wasm.pack`, as JSON.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct Index {
    /// The version of this format: 1.
    pub version: u32,
    /// The digest of the unpacked plugin.
    pub sha256: Digest,
    /// The size of the unpacked plugin in bytes.
    pub size: usize,
    /// The compression of the joined parts.
    pub compression: Compression,
    /// The parts in order.
    pub parts: Vec<Part>,
}

/// One part of a plugin: a file in the same folder as the index.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct Part {
    /// The file name.
    pub file: String,
    /// The digest of the file.
    pub sha256: Digest,
    /// The size of the file in bytes.
    pub size: usize,
}

impl Index {
    /// Splits a plugin into parts of at most `part` bytes; `name` is the plugin's file name.
    ///
    /// # Errors
    /// Returns an error when there is not enough memory.
    pub fn split(
        name: &str,
        bytes: &[u8],
        compression: Compression,
        part: usize,
    ) -> io::Result<(Self, Vec<Vec<u8>>)> {
        let packed = compression.pack(bytes)?;
        let contents: Vec<Vec<u8>> = packed.chunks(part.max(1)).map(<[u8]>::to_vec).collect();
        let one = |(number, content): (usize, &Vec<u8>)| Part {
            file: format!("{name}{}.{number}", compression.suffix()),
            sha256: Digest::of(content),
            size: content.len(),
        };
        let index = Self {
            version: VERSION,
            sha256: Digest::of(bytes),
            size: bytes.len(),
            compression,
            parts: contents.iter().enumerate().map(one).collect(),
        };
        Ok((index, contents))
    }

    /// Parses the index of the plugin `name`, whose unpacked size is limited to `limit` bytes. It can only
    /// name files in its own folder.
    ///
    /// # Errors
    /// Returns an error when the index is invalid, or when its plugin is too large.
    pub fn read(name: &str, text: &[u8], limit: usize) -> Result<Self, Problem> {
        let wrong = |what: String| {
            Problem(format!(
                "the index {INDEX_SUFFIX} cannot be read: {what}; create it with `operator-host pack`"
            ))
        };
        let index: Self = serde_json::from_slice(text).map_err(|error| wrong(error.to_string()))?;
        if index.version != VERSION {
            return Err(wrong(format!(
                "its version is {}; this host supports version {VERSION}",
                index.version
            )));
        }
        if index.parts.is_empty() || index.parts.len() > MAX_PARTS {
            return Err(wrong(format!(
                "it has {} parts; it must have 1 to {MAX_PARTS}",
                index.parts.len()
            )));
        }
        for (number, part) in index.parts.iter().enumerate() {
            let file = &part.file;
            let rest = file.strip_prefix(name);
            if rest.is_none_or(|rest| !rest.starts_with('.') || rest.contains('/')) {
                return Err(wrong(format!(
                    "the name of the part {file:?} must begin with \"{name}.\" and name a file in the folder of the index"
                )));
            }
            if index.parts[..number].iter().any(|other| other.file == *file) {
                return Err(wrong(format!("the part {file:?} is listed twice")));
            }
        }
        let mut parts = index.parts.iter();
        let packed = parts.try_fold(0_usize, |sum, part| sum.checked_add(part.size));
        if index.size > limit || packed.is_none_or(|packed| packed > limit) {
            return Err(too_large(limit));
        }
        Ok(index)
    }

    /// Returns the plugin from its joined parts; each part must have been checked against its own digest.
    ///
    /// # Errors
    /// Returns an error when the parts do not match the index.
    pub fn join(&self, joined: &[u8]) -> Result<Vec<u8>, Problem> {
        let bytes = self.compression.unpack(joined, self.size)?;
        let found = Digest::of(&bytes);
        if found != self.sha256 {
            return Err(Problem(format!(
                "the joined parts are {found}, but the index lists {}: pack the plugin again",
                self.sha256
            )));
        }
        Ok(bytes)
    }
}

#[cfg(test)]
pub(crate) mod tests;
