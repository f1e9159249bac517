//! One plugin's file: whether there is something new in it, and whether it is all there yet.

use std::fs::{self, File, Metadata};
use std::io::{self, Read as _};
use std::os::unix::fs::MetadataExt as _;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant, SystemTime};

use bytes::Bytes;

use super::LoadError;
use super::digest::Digest;

/// A file that was written to in this time may still be growing, and one that is missing may be about to be
/// replaced.
pub(super) const SETTLE: Duration = Duration::from_millis(100);

/// What a look at the file showed.
#[derive(Debug, PartialEq)]
pub(crate) enum Look {
    /// Nothing new.
    Same,
    /// Something is going on: look again after this time.
    Unsettled(Duration),
    /// New contents, or the same as ever after trouble.
    New(Bytes, Digest),
    /// It cannot be read; said once for each reason. The text says why and what to do.
    Trouble(String),
}

/// Why a file is not read.
#[derive(Debug, thiserror::Error)]
enum SourceError {
    #[error("the file is not there: put it into {}", .0.display())]
    Missing(PathBuf),
    #[error("the file is a link to outside of its folder {}: put the file itself there", .0.display())]
    Outside(PathBuf),
    #[error("it is not a file")]
    NotFile,
    #[error(transparent)]
    TooLarge(LoadError),
    #[error("cannot read it: {0}")]
    Io(io::Error),
}

/// What changes when a file changes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Stamp {
    device: u64,
    inode: u64,
    size: u64,
    modified: (i64, i64),
    changed: (i64, i64),
}

impl Stamp {
    fn of(metadata: &Metadata) -> Self {
        Self {
            device: metadata.dev(),
            inode: metadata.ino(),
            size: metadata.size(),
            modified: (metadata.mtime(), metadata.mtime_nsec()),
            changed: (metadata.ctime(), metadata.ctime_nsec()),
        }
    }
}

/// A plugin's file, or the configuration's, and what is known of it.
pub(crate) struct Source {
    path: PathBuf,
    /// Whether it may be a link to outside of its folder.
    anywhere: bool,
    /// Bytes that it may have.
    limit: usize,
    /// As it was when its contents were last read.
    read: Option<Stamp>,
    /// What was last given out.
    given: Option<Digest>,
    /// As it was at the last look, and since when; `None` for a file that is missing.
    seen: Option<(Option<Stamp>, Instant)>,
    trouble: Option<String>,
}

impl Source {
    /// A file that must be inside of its folder and have at most `limit` bytes.
    pub(crate) fn new(path: PathBuf, limit: usize) -> Self {
        Self {
            path,
            anywhere: false,
            limit,
            read: None,
            given: None,
            seen: None,
            trouble: None,
        }
    }

    /// The same, and it may be a link to anywhere.
    pub(crate) fn anywhere(self) -> Self {
        Self {
            anywhere: true,
            ..self
        }
    }

    /// The folder that the file is in.
    pub(super) fn folder(&self) -> &Path {
        match self.path.parent() {
            Some(folder) if folder != Path::new("") => folder,
            _ => Path::new("."),
        }
    }

    pub(super) fn look(&mut self) -> Look {
        match self.try_look() {
            Ok(look @ Look::Unsettled(_)) => look,
            Ok(look) => {
                self.trouble = None;
                look
            }
            Err(error) => {
                // A change back to what was read before is a change as well.
                self.read = None;
                let reason = error.to_string();
                if self.trouble.as_ref() == Some(&reason) {
                    return Look::Same;
                }
                self.trouble = Some(reason.clone());
                Look::Trouble(reason)
            }
        }
    }

    fn try_look(&mut self) -> Result<Look, SourceError> {
        // A folder that is swapped meanwhile makes the file look missing for a moment.
        let Some(path) = found(self.path.canonicalize())? else {
            return self.missing();
        };
        let Some(folder) = found(self.folder().canonicalize())? else {
            return self.missing();
        };
        if !self.anywhere && !path.starts_with(&folder) {
            return Err(SourceError::Outside(self.folder().to_owned()));
        }
        let Some(metadata) = found(fs::metadata(&path))? else {
            return self.missing();
        };
        // Before it is opened: to open a pipe waits for its other end.
        if !metadata.is_file() {
            return Err(SourceError::NotFile);
        }
        let stamp = Stamp::of(&metadata);
        if self.read == Some(stamp) {
            return Ok(Look::Same);
        }
        let wait = self.unsettled(Some(stamp), metadata.modified().ok());
        if !wait.is_zero() {
            return Ok(Look::Unsettled(wait));
        }
        if metadata.len() > self.limit as u64 {
            return Err(SourceError::TooLarge(LoadError::TooLarge {
                size: usize::try_from(metadata.len()).unwrap_or(usize::MAX),
                limit: self.limit,
            }));
        }
        let Some(mut file) = found(File::open(&path))? else {
            return self.missing();
        };
        let mut bytes = Vec::new();
        file.by_ref()
            .take(self.limit as u64 + 1)
            .read_to_end(&mut bytes)
            .map_err(SourceError::Io)?;
        // Written to while it was read, or another file by now.
        if Stamp::of(&file.metadata().map_err(SourceError::Io)?) != stamp || bytes.len() as u64 != stamp.size
        {
            return Ok(Look::Unsettled(SETTLE));
        }
        self.read = Some(stamp);
        let digest = Digest::of(&bytes);
        // After trouble it is told again: whoever was told of that must hear that it is over.
        if self.given.replace(digest) == Some(digest) && self.trouble.is_none() {
            return Ok(Look::Same);
        }
        Ok(Look::New(bytes.into(), digest))
    }

    fn missing(&mut self) -> Result<Look, SourceError> {
        let wait = self.unsettled(None, None);
        if wait.is_zero() {
            return Err(SourceError::Missing(self.folder().to_owned()));
        }
        Ok(Look::Unsettled(wait))
    }

    /// How long to wait until what is seen has been so for a while: by the file's own time, since a file that is
    /// moved here was finished elsewhere, or by ours, since the file's may be another clock's.
    fn unsettled(&mut self, stamp: Option<Stamp>, modified: Option<SystemTime>) -> Duration {
        let now = Instant::now();
        let since = match self.seen {
            Some((seen, since)) if seen == stamp => since,
            _ => now,
        };
        self.seen = Some((stamp, since));
        let age = modified
            .and_then(|modified| SystemTime::now().duration_since(modified).ok())
            .unwrap_or_default();
        SETTLE.saturating_sub(age.max(now - since))
    }
}

/// `None` for what is not there.
fn found<T>(result: io::Result<T>) -> Result<Option<T>, SourceError> {
    match result {
        Ok(found) => Ok(Some(found)),
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(None),
        Err(error) => Err(SourceError::Io(error)),
    }
}

#[cfg(test)]
mod tests;
