//! How a plugin is packed for ConfigMaps: as it is, compressed, or compressed and split with an index.
//!
//! The plugin of the file `echo.wasm` can be `echo.wasm`, `echo.wasm.zst`, `echo.wasm.gz`, or the parts that the index
//! `echo.wasm.pack` lists. Nothing here reads files: whoever has the bytes can check and join them.

use std::io::{self, Read};

use serde::{Deserialize, Serialize};

use super::Digest;
use super::limits::MIB;

/// What is behind the plugin's name in the name of its index.
pub const INDEX_SUFFIX: &str = ".pack";
/// What is behind the plugin's name in the name of its signature.
pub const SIGNATURE_SUFFIX: &str = ".sig";
/// Bytes that an index may have.
pub(super) const INDEX_LIMIT: usize = 64 << 10;
/// So many parts make one plugin at most.
pub const MAX_PARTS: usize = 64;
/// The newest form of the index that this host knows.
const VERSION: u32 = 1;
/// As a power of two, the bytes that unpacking zstd may keep in memory: what level 22 needs.
const ZSTD_WINDOW: u32 = 27;

/// How the bytes of a plugin are compressed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Compression {
    /// Not at all.
    None,
    /// As by `zstd`.
    Zstd,
    /// As by `gzip`.
    Gzip,
}

/// Why packed bytes are no plugin. The messages are for people.
#[derive(Debug, PartialEq, Eq, thiserror::Error)]
pub enum PackError {
    /// Over the limit when it is unpacked; it is not unpacked further than that.
    #[error("unpacked it has over {} MiB, which is the limit", .0 / MIB)]
    TooLarge(usize),
    /// Not what its name says.
    #[error("it cannot be unpacked as {}: {reason}; was it cut off?", form.name())]
    Unpack {
        /// As what.
        form: Compression,
        /// What is wrong.
        reason: String,
    },
    /// The index is not one.
    #[error("the index {INDEX_SUFFIX} cannot be read: {0}; make it with `operator-host pack`")]
    Index(String),
    /// All is there, and is not what the index says.
    #[error("put together it is {found}, but the index says {expected}: pack the plugin again")]
    Digest {
        /// What it is.
        found: Digest,
        /// What the index says.
        expected: Digest,
    },
}

impl Compression {
    /// All of them.
    pub const ALL: [Self; 3] = [Self::None, Self::Zstd, Self::Gzip];

    /// What is behind the plugin's name in the name of its file.
    #[must_use]
    pub const fn suffix(self) -> &'static str {
        match self {
            Self::None => "",
            Self::Zstd => ".zst",
            Self::Gzip => ".gz",
        }
    }

    /// By the suffix of a file's name.
    #[must_use]
    pub fn of(file: &std::path::Path) -> Self {
        let suffix = file.extension().and_then(std::ffi::OsStr::to_str);
        match suffix {
            Some("zst") => Self::Zstd,
            Some("gz") => Self::Gzip,
            _ => Self::None,
        }
    }

    const fn name(self) -> &'static str {
        match self {
            Self::None => "it is",
            Self::Zstd => "zstd",
            Self::Gzip => "gzip",
        }
    }

    /// Makes the bytes as small as this can.
    ///
    /// # Errors
    /// When there is no memory for it.
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

    /// The bytes that were packed: at most `limit` of them.
    ///
    /// # Errors
    /// When they are more, or not packed so.
    pub fn unpack(self, bytes: &[u8], limit: usize) -> Result<Vec<u8>, PackError> {
        let unpacked = match self {
            Self::None => Ok(bytes.get(..=limit).unwrap_or(bytes).to_vec()),
            Self::Zstd => zstd::Decoder::new(bytes).and_then(|mut decoder| {
                decoder.window_log_max(ZSTD_WINDOW)?;
                read(decoder, limit)
            }),
            Self::Gzip => read(flate2::read::MultiGzDecoder::new(bytes), limit),
        };
        let unpacked = unpacked.map_err(|error| PackError::Unpack {
            form: self,
            reason: error.to_string(),
        })?;
        if unpacked.len() > limit {
            return Err(PackError::TooLarge(limit));
        }
        Ok(unpacked)
    }
}

/// Reads one byte more than the limit at most.
fn read(reader: impl Read, limit: usize) -> io::Result<Vec<u8>> {
    let mut bytes = Vec::new();
    let limit = u64::try_from(limit).unwrap_or(u64::MAX).saturating_add(1);
    reader.take(limit).read_to_end(&mut bytes)?;
    Ok(bytes)
}

/// What the file `echo.wasm.pack` says, as JSON.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct Index {
    /// Of this form: 1.
    pub version: u32,
    /// Of the plugin, unpacked.
    pub sha256: Digest,
    /// Bytes of the plugin, unpacked.
    pub size: usize,
    /// How the parts, joined, are compressed.
    pub compression: Compression,
    /// In their order.
    pub parts: Vec<Part>,
}

/// One part of a plugin: a file beside the index.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct Part {
    /// Its name.
    pub file: String,
    /// Of its bytes.
    pub sha256: Digest,
    /// Its bytes.
    pub size: usize,
}

impl Index {
    /// Splits a plugin into parts of at most `part` bytes; `name` is the plugin's file.
    ///
    /// # Errors
    /// When there is no memory for it.
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

    /// Reads the index of the plugin `name`, which may have `limit` bytes. It can name files beside it only.
    ///
    /// # Errors
    /// When it is not one, or of a plugin that is too large.
    pub fn read(name: &str, text: &[u8], limit: usize) -> Result<Self, PackError> {
        let wrong = |what: String| PackError::Index(what);
        let index: Self = serde_json::from_slice(text).map_err(|error| wrong(error.to_string()))?;
        if index.version != VERSION {
            return Err(wrong(format!(
                "it is of version {}, and this host knows {VERSION}",
                index.version
            )));
        }
        if index.parts.is_empty() || index.parts.len() > MAX_PARTS {
            return Err(wrong(format!(
                "it has {} parts; 1 to {MAX_PARTS} are possible",
                index.parts.len()
            )));
        }
        for (number, part) in index.parts.iter().enumerate() {
            let own = part
                .file
                .strip_prefix(name)
                .is_some_and(|rest| rest.starts_with('.'));
            if !own || part.file.contains('/') {
                return Err(wrong(format!(
                    "the name of the part {:?} must begin with \"{name}.\" and be of a file beside the index",
                    part.file
                )));
            }
            if index.parts[..number].iter().any(|other| other.file == part.file) {
                return Err(wrong(format!("the part {:?} is listed twice", part.file)));
            }
        }
        let packed = index
            .parts
            .iter()
            .try_fold(0_usize, |sum, part| sum.checked_add(part.size));
        if index.size > limit || packed.is_none_or(|packed| packed > limit) {
            return Err(PackError::TooLarge(limit));
        }
        Ok(index)
    }

    /// The plugin, of its parts joined; each must have been checked against its own digest.
    ///
    /// # Errors
    /// When they do not make what the index says.
    pub fn join(&self, joined: &[u8]) -> Result<Vec<u8>, PackError> {
        let bytes = self.compression.unpack(joined, self.size)?;
        let found = Digest::of(&bytes);
        if found != self.sha256 {
            return Err(PackError::Digest {
                found,
                expected: self.sha256,
            });
        }
        Ok(bytes)
    }
}

#[cfg(test)]
pub(crate) mod tests {
    use super::*;

    const NAME: &str = "p.wasm";

    /// What does not compress.
    pub(crate) fn noise(len: usize) -> Vec<u8> {
        let mut state = 1_u64;
        let mut next = || {
            state ^= state << 13;
            state ^= state >> 7;
            state ^= state << 17;
            state.to_le_bytes()[0]
        };
        (0..len).map(|_| next()).collect()
    }

    #[test]
    fn what_was_packed_is_unpacked_as_it_was() {
        let bytes = noise(10_000);
        for compression in Compression::ALL {
            let packed = compression.pack(&bytes).unwrap();
            assert_eq!(compression.unpack(&packed, 10_000).unwrap(), bytes);
            let file = format!("a/{NAME}{}", compression.suffix());
            assert_eq!(Compression::of(file.as_ref()), compression);
        }
    }

    #[test]
    fn a_bomb_is_not_unpacked_further_than_the_limit() {
        let bomb = vec![0; 64 << 20];
        for compression in [Compression::Zstd, Compression::Gzip] {
            let packed = compression.pack(&bomb).unwrap();
            assert!(packed.len() < 100_000);
            assert_eq!(
                compression.unpack(&packed, 1 << 20),
                Err(PackError::TooLarge(1 << 20))
            );
            let unpacked = read(
                flate2::read::MultiGzDecoder::new(&Compression::Gzip.pack(&bomb).unwrap()[..]),
                1 << 20,
            );
            assert_eq!(
                unpacked.unwrap().len(),
                (1 << 20) + 1,
                "and a byte to notice it by"
            );
        }
    }

    #[test]
    fn what_is_cut_off_or_something_else_is_refused_in_words() {
        for compression in [Compression::Zstd, Compression::Gzip] {
            let packed = compression.pack(&noise(10_000)).unwrap();
            for bytes in [&packed[..packed.len() / 2], b"nothing of the kind".as_slice()] {
                let error = compression.unpack(bytes, 10_000).unwrap_err().to_string();
                assert!(error.contains(compression.name()), "{error}");
            }
        }
    }

    fn index() -> (Index, Vec<Vec<u8>>) {
        Index::split(NAME, &noise(2500), Compression::Zstd, 1000).unwrap()
    }

    fn refusal(index: &Index) -> String {
        let text = serde_json::to_vec(index).unwrap();
        Index::read(NAME, &text, 10_000).unwrap_err().to_string()
    }

    #[test]
    fn a_plugin_is_split_and_joined() {
        let (index, parts) = index();
        let files: Vec<_> = index.parts.iter().map(|part| part.file.as_str()).collect();
        assert_eq!(files, ["p.wasm.zst.0", "p.wasm.zst.1", "p.wasm.zst.2"]);
        let text = serde_json::to_vec(&index).unwrap();
        assert_eq!(Index::read(NAME, &text, 3000).unwrap(), index);
        assert_eq!(index.join(&parts.concat()).unwrap(), noise(2500));
    }

    #[test]
    fn an_index_that_asks_for_too_much_or_for_files_of_others_is_refused() {
        let (good, _) = index();
        let text = serde_json::to_vec(&good).unwrap();
        assert_eq!(Index::read(NAME, &text, 2499), Err(PackError::TooLarge(2499)));
        assert!(Index::read(NAME, b"{}", 2500).is_err());
        let with = |change: fn(&mut Index)| {
            let mut index = good.clone();
            change(&mut index);
            refusal(&index)
        };
        let twice = with(|index| index.parts[1].file = index.parts[0].file.clone());
        assert!(twice.contains("listed twice"), "{twice}");
        for file in ["q.wasm.0", "p.wasm./../../etc/passwd", "/etc/passwd", "p.wasm"] {
            let mut index = good.clone();
            index.parts[0].file = file.to_owned();
            let error = refusal(&index);
            assert!(error.contains("must begin with \"p.wasm.\""), "{error}");
        }
        assert!(with(|index| index.parts.clear()).contains("0 parts"));
        assert!(with(|index| index.version = 2).contains("version 2"));
        assert!(with(|index| index.parts[0].size = usize::MAX).contains("the limit"));
    }

    #[test]
    fn parts_that_make_something_else_are_refused_with_both_digests() {
        let (mut index, parts) = index();
        index.sha256 = Digest::of(b"something else");
        let error = index.join(&parts.concat()).unwrap_err().to_string();
        assert!(error.contains(&Digest::of(&noise(2500)).to_string()), "{error}");
        assert!(error.contains(&index.sha256.to_string()), "{error}");
    }
}
