//! Watches one file: whether its contents are new, and whether they are complete.
//!
//! A plugin's file may be packed: compressed, or split into parts from several ConfigMaps, which do not
//! change at the same time. So files that do not match are first treated as incomplete.

use std::collections::BTreeMap;
use std::ffi::OsString;
use std::fs;
use std::io;
use std::os::unix::fs::MetadataExt as _;
use std::path::{Path, PathBuf};
use std::sync::Mutex;
use std::time::{Duration, Instant, SystemTime};

use bytes::Bytes;

use super::pack::{Compression, INDEX_LIMIT, INDEX_SUFFIX, Index, SIGNATURE_SUFFIX};
use super::statement::SIGNATURE_LIMIT;
use crate::Problem;
use operator_host_core::digest::Digest;
use operator_host_core::files;
use operator_host_core::sync::lock;

/// A file that was written within this time may still be growing, and one that is missing may be about to be replaced.
pub(super) const SETTLE: Duration = Duration::from_millis(100);
/// How long files that do not match, or are empty, may stay so: parts arrive with several ConfigMaps, and a program that
/// rewrites a file truncates it first.
const PATIENCE: Duration = Duration::from_secs(10);
/// The file that says why a [mounted](WatchedFile::mounted) one is missing. No key of a ConfigMap begins with two dots.
pub const PROBLEM: &str = "..problem";
const PROBLEM_LIMIT: usize = 4 << 10;
/// Held while a packed plugin is unpacked to find its digest: 2 KB can become the whole limit, and there may be many of them.
static UNPACKING: Mutex<()> = Mutex::new(());

/// The result of looking at the file.
#[derive(Debug, PartialEq)]
pub enum Look {
    /// No change.
    Same,
    /// The file is changing: look again soon.
    Unsettled,
    /// New contents, or the known contents after trouble.
    New(Found),
    /// The file cannot be read; returned once per reason. The text contains the reason and what to do.
    Trouble(String),
}

/// What was found in a file.
#[derive(Clone, Debug, PartialEq)]
pub struct Found {
    /// The SHA-256 of the unpacked contents.
    pub digest: Digest,
    /// Their size in bytes.
    pub size: usize,
    /// The contents of the signature file in the same folder.
    pub signature: Option<Bytes>,
    /// The contents; `None` of a plugin, which is [read again](read_now) when it is loaded: many may wait for that.
    pub bytes: Option<Bytes>,
}

/// The unpacked contents of a file.
#[derive(Clone, Debug, PartialEq)]
pub struct Content {
    /// The contents.
    pub bytes: Bytes,
    /// The SHA-256 of the contents.
    pub digest: Digest,
    /// The contents of the signature file in the same folder.
    pub signature: Option<Bytes>,
}

/// What changes when a file changes: its inode, size, and times of modification and change. Zeros for what cannot be read.
type Stamp = (u64, u64, (i64, i64), (i64, i64));

/// The files that a plugin may consist of, in the order of their names.
type Stamps = BTreeMap<PathBuf, Stamp>;

/// Why the files are not a plugin, and whether other files may still be arriving.
enum Fault {
    Complete(String),
    Incomplete(String),
    /// Reading failed: it may succeed next time although the files are the same.
    Passing(String),
}

impl From<Problem> for Fault {
    fn from(error: Problem) -> Self {
        Self::Complete(error.to_string())
    }
}

impl Fault {
    fn text(self) -> String {
        let (Self::Complete(text) | Self::Incomplete(text) | Self::Passing(text)) = self;
        text
    }
}

/// The file of a plugin or of the configuration, and what is known about it.
#[derive(Default)]
pub struct WatchedFile {
    path: PathBuf,
    /// Whether it is a plugin, which may be packed and signed.
    plugin: bool,
    /// Whether the host puts the files there itself, and so knows better why one is missing.
    mounted: bool,
    /// Maximum size in bytes, packed and unpacked.
    limit: usize,
    /// The files at the last look, and since when they are so.
    seen: Option<(Stamps, Instant)>,
    /// Since when they have been changing.
    changing: Option<Instant>,
    /// The files about which everything was said.
    told: Option<Stamps>,
    /// Whether they are read again all the same, because that failed.
    is_passing: bool,
    /// What was returned last: the digest, and the signature.
    given: Option<(Digest, Option<Bytes>)>,
    trouble: Option<String>,
}

impl WatchedFile {
    /// Creates the state of a plugin's file, in any packed form and with at most `limit` bytes.
    pub fn new(path: PathBuf, limit: usize) -> Self {
        Self {
            path,
            plugin: true,
            limit,
            ..Self::default()
        }
    }

    /// Creates the state of a plugin's file that the host puts there itself. Without the folder it is too early to look. A file
    /// that is missing is explained by [`PROBLEM`] beside it.
    pub fn mounted(path: PathBuf, limit: usize) -> Self {
        Self {
            mounted: true,
            ..Self::new(path, limit)
        }
    }

    /// Creates the state of a file that is not packed.
    pub fn plain(path: PathBuf, limit: usize) -> Self {
        Self {
            plugin: false,
            ..Self::new(path, limit)
        }
    }

    /// Returns the path without the suffix of a packed form.
    pub(super) fn path(&self) -> &Path {
        &self.path
    }

    /// Returns the folder that contains the file.
    pub(super) fn folder(&self) -> &Path {
        match self.path.parent() {
            Some(folder) if folder != Path::new("") => folder,
            _ => Path::new("."),
        }
    }

    /// Looks at the files, and reads them when they have not changed for [`SETTLE`], by their own time or by ours.
    pub(super) fn look(&mut self) -> Look {
        if self.mounted && !self.folder().is_dir() {
            return Look::Same;
        }
        let files = self.files();
        let now = Instant::now();
        let since = match &self.seen {
            Some((seen, since)) if *seen == files => *since,
            _ => now,
        };
        self.seen = Some((files.clone(), since));
        if self.told.as_ref() == Some(&files) && !self.is_passing {
            return Look::Same;
        }
        let lasted = now - since;
        if lasted < SETTLE && !is_old(&files) {
            return self.unsettled(now);
        }
        let content = self.found(&files);
        if self.files() != files {
            return self.unsettled(now);
        }
        self.changing = None;
        match content {
            Err(Fault::Incomplete(_)) if lasted < PATIENCE => Look::Same,
            Err(fault) => {
                (self.told, self.is_passing) = (Some(files), matches!(fault, Fault::Passing(_)));
                self.trouble(fault.text()).unwrap_or(Look::Same)
            }
            Ok(found) => {
                (self.told, self.is_passing) = (Some(files), false);
                // Returned again after trouble: a caller that was told of the trouble must learn that it has ended.
                let after_trouble = self.trouble.take().is_some();
                let given = Some((found.digest, found.signature.clone()));
                if std::mem::replace(&mut self.given, given.clone()) == given && !after_trouble {
                    return Look::Same;
                }
                Look::New(found)
            }
        }
    }

    /// Files that change all the time are never used, which is reported.
    fn unsettled(&mut self, now: Instant) -> Look {
        let changing = *self.changing.get_or_insert(now);
        if now - changing < PATIENCE {
            return Look::Unsettled;
        }
        let name = name(&self.path);
        let text = format!("the file {name} keeps changing: it is used once it stays the same");
        self.trouble(text).unwrap_or(Look::Unsettled)
    }

    /// Returns trouble that was not returned last.
    fn trouble(&mut self, text: String) -> Option<Look> {
        let is_known = self.trouble.replace(text.clone()).as_ref() == Some(&text);
        (!is_known).then_some(Look::Trouble(text))
    }

    /// Returns the files that exist now: the file itself, and all others that may belong to a plugin of its name.
    fn files(&self) -> Stamps {
        let stamp = |path: PathBuf| {
            let metadata = match fs::metadata(&path) {
                Ok(metadata) => metadata,
                Err(error) if error.kind() == io::ErrorKind::NotFound => return None,
                Err(_) => return Some((path, Stamp::default())),
            };
            let stamp = (
                metadata.ino(),
                metadata.size(),
                (metadata.mtime(), metadata.mtime_nsec()),
                (metadata.ctime(), metadata.ctime_nsec()),
            );
            Some((path, stamp))
        };
        if !self.plugin {
            return stamp(self.path.clone()).into_iter().collect();
        }
        let own = name(&self.path);
        let mut named: Vec<_> = forms(&self.path).map(|(path, _)| name(&path)).collect();
        named.push(format!("{own}{SIGNATURE_SUFFIX}"));
        // Parts are numbered. What others keep beside a plugin, such as a log, says nothing about it.
        let is_part = |found: &str| {
            let rest = found.strip_prefix(&own).and_then(|rest| rest.rsplit_once('.'));
            rest.is_some_and(|(_, number)| !number.is_empty() && number.bytes().all(|b| b.is_ascii_digit()))
        };
        let is_own = |found: &String| named.contains(found) || is_part(found);
        let entries = fs::read_dir(self.folder()).into_iter().flatten().flatten();
        let names = entries.map(|entry| entry.file_name().to_string_lossy().into_owned());
        names
            .filter(is_own)
            .filter_map(|name| stamp(self.path.with_file_name(name)))
            .collect()
    }

    /// Reads the files. Those of a plugin are not kept in memory.
    fn found(&self, files: &Stamps) -> Result<Found, Fault> {
        // A file that is not packed may be on a volume that hangs, for which no other waits.
        let is_packed = self.plugin && !files.contains_key(&self.path);
        let _unpacking = is_packed.then(|| lock(&UNPACKING));
        let content = self.content(files)?;
        Ok(Found {
            digest: content.digest,
            size: content.bytes.len(),
            signature: content.signature,
            bytes: Some(content.bytes).filter(|_| !self.plugin),
        })
    }

    /// Reads the files and joins them.
    fn content(&self, files: &Stamps) -> Result<Content, Fault> {
        if !self.plugin {
            let bytes = self.read(&self.path, self.limit)?;
            return Ok(content(bytes, None));
        }
        let mut found: Vec<_> = forms(&self.path)
            .filter(|(path, _)| files.contains_key(path))
            .collect();
        let bytes = match found.pop() {
            None => return Err(self.missing()),
            Some((path, Some(compression))) if found.is_empty() => {
                let bytes = self.read(&path, self.limit)?;
                match compression {
                    Compression::None => bytes,
                    packed => packed.unpack(&bytes, self.limit)?,
                }
            }
            Some((index, None)) if found.is_empty() => self.joined(&index)?,
            Some(last) => {
                found.push(last);
                let names: Vec<_> = found.iter().map(|(path, _)| name(path)).collect();
                let text = format!("there are {}: remove all except one", names.join(" and "));
                return Err(Fault::Incomplete(text));
            }
        };
        let signature = with_suffix(&self.path, SIGNATURE_SUFFIX);
        let signature = match files.contains_key(&signature) {
            true => Some(self.read(&signature, SIGNATURE_LIMIT)?.into()),
            false => None,
        };
        Ok(content(bytes, signature))
    }

    fn missing(&self) -> Fault {
        let problem = self.folder().join(PROBLEM);
        let text = match files::read(&problem, PROBLEM_LIMIT).map(String::from_utf8) {
            Ok(Ok(problem)) if self.mounted => problem,
            _ => match fs::read_dir(self.folder()) {
                Err(error) if error.kind() != io::ErrorKind::NotFound => {
                    format!("cannot list {}: {error}", self.folder().display())
                }
                _ => format!("the file is not there: put it into {}", self.folder().display()),
            },
        };
        // What explains it may change.
        Fault::Passing(text)
    }

    fn read(&self, path: &Path, limit: usize) -> Result<Vec<u8>, Fault> {
        match files::read(path, limit) {
            Ok(bytes) if bytes.is_empty() => {
                let text = format!("the file {} is empty: was it written completely?", name(path));
                Err(Fault::Incomplete(text))
            }
            Ok(bytes) => Ok(bytes),
            Err(error) if error.kind() == io::ErrorKind::NotFound => Err(self.missing()),
            Err(error) => Err(Fault::Passing(format!("cannot read {}: {error}", name(path)))),
        }
    }

    /// Reads the parts that an index lists, and joins them.
    fn joined(&self, index: &Path) -> Result<Vec<u8>, Fault> {
        let index = Index::read(&name(&self.path), &self.read(index, INDEX_LIMIT)?, self.limit)?;
        let mut joined = Vec::new();
        for part in &index.parts {
            let file = &part.file;
            let bytes = match files::read(&self.folder().join(file), part.size) {
                Err(error) if error.kind() == io::ErrorKind::NotFound => {
                    let text = format!("the part {file} is missing: apply all of the plugin's ConfigMaps");
                    return Err(Fault::Incomplete(text));
                }
                // One of another size is another one.
                read => read.unwrap_or_default(),
            };
            if Digest::of(&bytes) != part.sha256 {
                let text = format!(
                    "the part {file} is not the one in the index: is one of the plugin's ConfigMaps out of date?"
                );
                return Err(Fault::Incomplete(text));
            }
            joined.extend(bytes);
        }
        Ok(index.join(&joined)?)
    }
}

fn content(bytes: Vec<u8>, signature: Option<Bytes>) -> Content {
    Content {
        digest: Digest::of(&bytes),
        bytes: bytes.into(),
        signature,
    }
}

/// Whether the files were written long enough ago, by their own time: one that was moved here was completed elsewhere.
fn is_old(files: &Stamps) -> bool {
    let now = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH);
    let age = |(seconds, nanos): (i64, i64)| {
        let modified = Duration::new(u64::try_from(seconds).ok()?, u32::try_from(nanos).ok()?);
        now.as_ref().ok()?.checked_sub(modified)
    };
    let mut ages = files.values().map(|(_, _, modified, _)| age(*modified));
    !files.is_empty() && ages.all(|age| age.is_some_and(|age| age >= SETTLE))
}

fn name(path: &Path) -> String {
    path.file_name().unwrap_or_default().display().to_string()
}

/// Returns the files that can be the plugin with this name, and their compression; `None`: the index of a
/// pack.
fn forms(plugin: &Path) -> impl Iterator<Item = (PathBuf, Option<Compression>)> {
    let whole = Compression::ALL
        .into_iter()
        .map(|compression| (with_suffix(plugin, compression.suffix()), Some(compression)));
    whole.chain(std::iter::once((with_suffix(plugin, INDEX_SUFFIX), None)))
}

/// Whether a file exists that could be this plugin, in any form.
pub fn is_there(plugin: &Path) -> bool {
    forms(plugin).any(|(path, _)| path.is_file())
}

/// Reads the plugin with this name, in any form, as it is now.
///
/// # Errors
/// Returns why it cannot be read, and what to do.
pub fn read_now(plugin: &Path, limit: usize) -> Result<Content, String> {
    let source = WatchedFile::new(plugin.to_owned(), limit);
    source.content(&source.files()).map_err(Fault::text)
}

fn with_suffix(path: &Path, suffix: &str) -> PathBuf {
    let mut path = OsString::from(path);
    path.push(suffix);
    path.into()
}

#[cfg(test)]
mod tests;
