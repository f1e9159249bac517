//! Watches one file: whether its contents are new, and whether they are complete.
//!
//! A plugin's file may be packed: compressed, or split into parts from several ConfigMaps, which do not
//! change at the same time. So files that do not match are first treated as incomplete.

use std::ffi::OsString;
use std::fs::{self, Metadata};
use std::io;
use std::os::unix::fs::MetadataExt as _;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant, SystemTime};

use bytes::Bytes;

use super::pack::{Compression, INDEX_LIMIT, INDEX_SUFFIX, Index, PackError, SIGNATURE_SUFFIX};
use super::statement::SIGNATURE_LIMIT;
use operator_host_core::files::{self, Folder};
use operator_host_runtime::{Digest, LoadError};

/// A file written within this time may still be growing, and one that is missing may be about to be replaced.
pub(super) const SETTLE: Duration = Duration::from_millis(100);
/// How long files that do not match may stay so, because parts arrive with several ConfigMaps.
const PARTS_PATIENCE: Duration = Duration::from_secs(10);
/// A program that rewrites a file truncates it first, and may take a while before it writes the first bytes.
const EMPTY_PATIENCE: Duration = Duration::from_secs(2);
/// The file that says why a [mounted](WatchedFile::mounted) one is missing. No key of a ConfigMap begins with two dots.
pub const PROBLEM: &str = "..problem";
const PROBLEM_LIMIT: usize = 4 << 10;
/// How often to look meanwhile.
const GLANCE: Duration = Duration::from_millis(500);

/// The result of looking at the file.
#[derive(Debug, PartialEq)]
pub enum Look {
    /// No change.
    Same,
    /// The file is changing: look again after this time.
    Unsettled(Duration),
    /// New contents, or the known contents after trouble.
    New(Content),
    /// The file cannot be read; returned once per reason. The text contains the reason and what to do.
    Trouble(String),
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

/// Why a file is not read.
#[derive(Debug, thiserror::Error)]
enum SourceError {
    #[error("the file is not there: put it into {}", .0.display())]
    Missing(PathBuf),
    #[error("the file {} is a link that leads out of its folder {}, or an absolute link: put the file itself there", name(.0), .1.display())]
    Outside(PathBuf, PathBuf),
    #[error("{} is not a file", name(.0))]
    NotFile(PathBuf),
    #[error("cannot read it: {0}")]
    Io(io::Error),
    #[error("{0}")]
    Fault(String),
}

fn name(path: &Path) -> String {
    path.file_name().unwrap_or_default().display().to_string()
}

/// The attributes that change when a file changes.
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

/// A file that exists.
struct Found {
    stamp: Stamp,
    modified: Option<SystemTime>,
}

/// The files that make up a plugin, and what was found of each; `None`: it is missing.
#[derive(Default)]
struct Survey {
    files: Vec<(PathBuf, Option<Found>)>,
    form: Form,
    signature: Option<PathBuf>,
}

/// How the files form a plugin.
#[derive(Default)]
enum Form {
    /// The first is the complete plugin.
    Whole(Compression),
    /// The first is the index, the others are the parts.
    Parts(Index),
    /// They do not form a plugin.
    #[default]
    Nothing,
    /// They do not form a plugin, for this reason.
    Fault(NotAPlugin),
}

type Stamps = Vec<(PathBuf, Option<Stamp>)>;

impl Survey {
    fn stamps(&self) -> Stamps {
        let stamp = |(path, found): &(PathBuf, Option<Found>)| {
            (path.clone(), found.as_ref().map(|found| found.stamp))
        };
        self.files.iter().map(stamp).collect()
    }

    /// When the last of them was written.
    fn modified(&self) -> Option<SystemTime> {
        let found = self.files.iter().filter_map(|(_, found)| found.as_ref());
        found.filter_map(|found| found.modified).max()
    }
}

/// Why files that can be read do not form a plugin.
#[derive(Clone, Debug)]
struct NotAPlugin {
    text: String,
    /// How long other files may still be arriving.
    patience: Duration,
}

impl From<PackError> for NotAPlugin {
    fn from(error: PackError) -> Self {
        Self::whole(error.to_string())
    }
}

impl NotAPlugin {
    /// The files are complete.
    fn whole(text: String) -> Self {
        Self {
            text,
            patience: Duration::ZERO,
        }
    }

    /// The files may be parts of a plugin, of which others are missing.
    fn parts(text: String) -> Self {
        Self {
            text,
            patience: PARTS_PATIENCE,
        }
    }

    fn empty(path: &Path) -> Self {
        Self {
            text: format!("the file {} is empty: was it written completely?", name(path)),
            patience: EMPTY_PATIENCE,
        }
    }
}

/// The file of a plugin or of the configuration, and what is known about it.
pub struct WatchedFile {
    path: PathBuf,
    /// Whether it is a plugin, which may be packed and signed, and must be inside its folder.
    plugin: bool,
    /// Whether the host puts the files there itself, and so knows better why one is missing.
    mounted: bool,
    /// Maximum size in bytes, packed and unpacked.
    limit: usize,
    /// The state of the files when their contents were last read.
    read: Option<Stamps>,
    /// What was returned last: the contents, and the signature.
    given: Option<(Digest, Option<Bytes>)>,
    /// The state of the files at the last look, and since when.
    seen: Option<(Stamps, Instant)>,
    /// The problem found when they were read.
    fault: Option<(Stamps, NotAPlugin)>,
    trouble: Option<String>,
}

impl WatchedFile {
    /// Creates the state of a plugin's file, in any packed form, inside its folder and with at most `limit`
    /// bytes.
    pub fn new(path: PathBuf, limit: usize) -> Self {
        Self {
            path,
            plugin: true,
            mounted: false,
            limit,
            read: None,
            given: None,
            seen: None,
            fault: None,
            trouble: None,
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

    /// Creates the state of a file that is not packed, and that may be a link to anywhere.
    pub fn plain(path: PathBuf, limit: usize) -> Self {
        Self {
            plugin: false,
            ..Self::new(path, limit)
        }
    }

    /// Returns the folder that contains the file.
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
                // A change back to the contents that were read before is a change too.
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
        if self.mounted && !self.folder().is_dir() {
            return Ok(Look::Unsettled(SETTLE));
        }
        let survey = self.survey()?;
        let stamps = survey.stamps();
        if self.read.as_ref() == Some(&stamps) {
            return Ok(Look::Same);
        }
        let (wait, rest) = self.unsettled(&stamps, survey.modified());
        if !wait.is_zero() {
            return Ok(Look::Unsettled(wait));
        }
        let known = self.fault.take().filter(|(of, _)| *of == stamps);
        let content = match (known, survey.form) {
            (Some((_, fault)), _) | (None, Form::Fault(fault)) => Err(fault),
            (None, Form::Nothing) => return Err(self.missing()),
            (None, ref form) => match self.contents(&survey.files, form, survey.signature.as_deref()) {
                Err(error) => return Err(error),
                // The file was written while it was read, or other files exist by now.
                Ok(_) if self.survey()?.stamps() != stamps => return Ok(Look::Unsettled(SETTLE)),
                Ok(content) => content,
            },
        };
        match content {
            Ok(content) => {
                self.read = Some(stamps);
                let given = Some((content.digest, content.signature.clone()));
                // Returned again after trouble: a caller that was told of the trouble must learn that it has
                // ended.
                if std::mem::replace(&mut self.given, given.clone()) == given && self.trouble.is_none() {
                    return Ok(Look::Same);
                }
                Ok(Look::New(content))
            }
            Err(fault) => {
                let text = fault.text.clone();
                let patient = rest < fault.patience;
                self.fault = Some((stamps, fault));
                if patient {
                    return Ok(Look::Unsettled(GLANCE));
                }
                Err(SourceError::Fault(text))
            }
        }
    }

    fn missing(&self) -> SourceError {
        let problem = self.folder().join(PROBLEM);
        match files::read(&problem, PROBLEM_LIMIT).map(String::from_utf8) {
            Ok(Ok(problem)) if self.mounted => SourceError::Fault(problem),
            _ => SourceError::Missing(self.folder().to_owned()),
        }
    }

    /// Looks at the files that exist now.
    fn survey(&self) -> Result<Survey, SourceError> {
        // If the folder is swapped meanwhile, the file looks missing for a moment.
        let Some(folder) = found(Folder::open(self.folder()))? else {
            return Ok(Survey::default());
        };
        let mut survey = Survey::default();
        for (path, form) in self.forms() {
            if let Some(file) = self.find(&folder, &path)? {
                survey.files.push((path, Some(file)));
                // The compression of an index is known only when it is read.
                survey.form = form.map_or(Form::Nothing, Form::Whole);
            }
        }
        if survey.files.len() > 1 {
            let names: Vec<_> = survey.files.iter().map(|(path, _)| name(path)).collect();
            let text = format!("there are {}: remove all except one", names.join(" and "));
            survey.form = Form::Fault(NotAPlugin::parts(text));
            return Ok(survey);
        }
        if let (Form::Nothing, Some((path, Some(file)))) = (&survey.form, survey.files.first()) {
            survey.form = match self.index(path, file)? {
                Ok(index) => {
                    for part in &index.parts {
                        let path = self.folder().join(&part.file);
                        let file = self.find(&folder, &path)?;
                        survey.files.push((path, file));
                    }
                    Form::Parts(index)
                }
                Err(fault) => Form::Fault(fault),
            };
        }
        if self.plugin && !survey.files.is_empty() {
            let path = with_suffix(&self.path, SIGNATURE_SUFFIX);
            if let Some(file) = self.find(&folder, &path)? {
                survey.files.push((path.clone(), Some(file)));
                survey.signature = Some(path);
            }
        }
        Ok(survey)
    }

    /// Returns the candidate files and their compression; `None`: the index of a pack.
    fn forms(&self) -> Vec<(PathBuf, Option<Compression>)> {
        if self.plugin {
            forms(&self.path).collect()
        } else {
            vec![(self.path.clone(), Some(Compression::None))]
        }
    }

    /// Finds one file, if it exists and may be read.
    fn find(&self, folder: &Folder, path: &Path) -> Result<Option<Found>, SourceError> {
        let metadata = match self.plugin {
            true => folder.metadata(Path::new(&name(path))),
            false => fs::metadata(path),
        };
        let metadata = match metadata {
            Err(error) if error.kind() == io::ErrorKind::CrossesDevices => {
                return Err(SourceError::Outside(path.to_owned(), self.folder().to_owned()));
            }
            metadata => found(metadata)?,
        };
        let Some(metadata) = metadata else {
            return Ok(None);
        };
        if !metadata.is_file() {
            return Err(SourceError::NotFile(path.to_owned()));
        }
        Ok(Some(Found {
            stamp: Stamp::of(&metadata),
            modified: metadata.modified().ok(),
        }))
    }

    /// Reads a whole file. Returns `None` when it has more than `limit` bytes or is not the file that was
    /// found; the next look then finds a different file too.
    fn read(&self, path: &Path, file: &Found, limit: usize) -> Result<Option<Vec<u8>>, SourceError> {
        if file.stamp.size > limit as u64 {
            return Ok(None);
        }
        let open = || match self.plugin {
            true => Folder::open(self.folder())?.file(Path::new(&name(path))),
            false => files::open(path),
        };
        let Some(open) = found(open())? else {
            return Ok(None);
        };
        if Stamp::of(&open.metadata().map_err(SourceError::Io)?) != file.stamp {
            return Ok(None);
        }
        files::read_open(open, limit).map_err(SourceError::Io)
    }

    fn index(&self, path: &Path, file: &Found) -> Result<Result<Index, NotAPlugin>, SourceError> {
        let plugin = name(&self.path);
        let text = self.read(path, file, INDEX_LIMIT)?;
        if text.as_ref().is_some_and(Vec::is_empty) {
            return Ok(Err(NotAPlugin::empty(path)));
        }
        Ok(text
            .ok_or_else(|| PackError::Index(format!("{} has over {INDEX_LIMIT} bytes", name(path))))
            .and_then(|text| Index::read(&plugin, &text, self.limit))
            .map_err(NotAPlugin::from))
    }

    /// Reads the files and joins them.
    fn contents(
        &self,
        files: &[(PathBuf, Option<Found>)],
        form: &Form,
        signature: Option<&Path>,
    ) -> Result<Result<Content, NotAPlugin>, SourceError> {
        let Some(((path, first), rest)) = files.split_first() else {
            return Err(SourceError::Missing(self.folder().to_owned()));
        };
        let bytes = match (form, first) {
            (Form::Whole(compression), Some(file)) => self.whole(*compression, path, file)?,
            (Form::Parts(index), _) => self.joined(index, rest)?,
            _ => return Err(SourceError::Missing(self.folder().to_owned())),
        };
        let signature = files.iter().find(|(path, _)| Some(path.as_path()) == signature);
        let signature = match signature {
            Some((path, Some(file))) => match self.read(path, file, SIGNATURE_LIMIT)? {
                Some(signature) if signature.is_empty() => return Ok(Err(NotAPlugin::empty(path))),
                None => {
                    let text = format!("the signature {} has over {SIGNATURE_LIMIT} bytes", name(path));
                    return Ok(Err(NotAPlugin::whole(text)));
                }
                signature => signature,
            },
            _ => None,
        };
        Ok(bytes.map(|bytes| Content {
            digest: Digest::of(&bytes),
            bytes: bytes.into(),
            signature: signature.map(Bytes::from),
        }))
    }

    fn whole(
        &self,
        compression: Compression,
        path: &Path,
        file: &Found,
    ) -> Result<Result<Vec<u8>, NotAPlugin>, SourceError> {
        let Some(bytes) = self.read(path, file, self.limit)? else {
            let size = usize::try_from(file.stamp.size).unwrap_or(usize::MAX);
            let error = LoadError::too_large(size, self.limit);
            return Ok(Err(NotAPlugin::whole(error.to_string())));
        };
        if bytes.is_empty() {
            return Ok(Err(NotAPlugin::empty(path)));
        }
        if compression == Compression::None {
            return Ok(Ok(bytes));
        }
        Ok(compression.unpack(&bytes, self.limit).map_err(NotAPlugin::from))
    }

    fn joined(
        &self,
        index: &Index,
        files: &[(PathBuf, Option<Found>)],
    ) -> Result<Result<Vec<u8>, NotAPlugin>, SourceError> {
        let mut joined = Vec::new();
        for (part, (path, file)) in index.parts.iter().zip(files) {
            let Some(file) = file else {
                let text = format!(
                    "the part {} is missing: apply all of the plugin's ConfigMaps",
                    part.file
                );
                return Ok(Err(NotAPlugin::parts(text)));
            };
            let bytes = self.read(path, file, part.size)?;
            if bytes.as_deref().map(Digest::of) != Some(part.sha256) {
                let text = format!(
                    "the part {} is not the one in the index: is one of the plugin's ConfigMaps out of date?",
                    part.file
                );
                return Ok(Err(NotAPlugin::parts(text)));
            }
            joined.extend(bytes.unwrap_or_default());
        }
        Ok(index.join(&joined).map_err(NotAPlugin::from))
    }

    /// Returns how long to wait until the current state has lasted long enough: by the files' own time,
    /// because a file that was moved here was completed elsewhere, or by our clock, because theirs may be
    /// another clock's. Also returns for how long we have seen this state.
    fn unsettled(&mut self, stamps: &Stamps, modified: Option<SystemTime>) -> (Duration, Duration) {
        let now = Instant::now();
        let since = match &self.seen {
            Some((seen, since)) if seen == stamps => *since,
            _ => now,
        };
        self.seen = Some((stamps.clone(), since));
        let age = modified
            .and_then(|modified| SystemTime::now().duration_since(modified).ok())
            .unwrap_or_default();
        let rest = now - since;
        (SETTLE.saturating_sub(age.max(rest)), rest)
    }
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
#[must_use]
pub fn is_there(plugin: &Path) -> bool {
    forms(plugin).any(|(path, _)| path.is_file())
}

/// Reads the plugin with this name, in any form. Waits until it has settled.
///
/// # Errors
/// Returns why it cannot be read, and what to do.
pub fn read_at_rest(plugin: &Path, limit: usize) -> Result<Content, String> {
    let mut source = WatchedFile::new(plugin.to_owned(), limit);
    loop {
        match source.look() {
            Look::New(content) => return Ok(content),
            Look::Trouble(reason) => return Err(reason),
            Look::Unsettled(wait) => std::thread::sleep(wait),
            // Not returned before one of the first two.
            Look::Same => {}
        }
    }
}

fn with_suffix(path: &Path, suffix: &str) -> PathBuf {
    let mut path = OsString::from(path);
    path.push(suffix);
    path.into()
}

/// Maps a missing file to `None`.
fn found<T>(result: io::Result<T>) -> Result<Option<T>, SourceError> {
    match result {
        Ok(found) => Ok(Some(found)),
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(None),
        Err(error) => Err(SourceError::Io(error)),
    }
}

#[cfg(test)]
mod tests;
