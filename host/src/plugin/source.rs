//! One file: whether there is something new in it, and whether it is all there yet.
//!
//! A plugin's file may be packed: compressed, or in parts that several ConfigMaps bring, which do not change at the same
//! time. So what does not fit together is at first only not all there yet.

use std::ffi::OsString;
use std::fs::{self, Metadata};
use std::io;
use std::os::unix::fs::MetadataExt as _;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant, SystemTime};

use bytes::Bytes;

use super::pack::{Compression, INDEX_LIMIT, INDEX_SUFFIX, Index, PackError, SIGNATURE_SUFFIX};
use super::statement::SIGNATURE_LIMIT;
use super::{Digest, LoadError};
use crate::files::{self, Folder};

/// A file that was written to in this time may still be growing, and one that is missing may be about to be
/// replaced.
pub(super) const SETTLE: Duration = Duration::from_millis(100);
/// What does not fit together may be about to: parts come with several ConfigMaps.
const PARTS_PATIENCE: Duration = Duration::from_secs(10);
/// Whoever writes a file anew empties it first, and may take a while until the first bytes come.
const EMPTY_PATIENCE: Duration = Duration::from_secs(2);
/// How often to look meanwhile.
const GLANCE: Duration = Duration::from_millis(500);

/// What a look at the file showed.
#[derive(Debug, PartialEq)]
pub(crate) enum Look {
    /// Nothing new.
    Same,
    /// Something is going on: look again after this time.
    Unsettled(Duration),
    /// New contents, or the same as ever after trouble.
    New(Content),
    /// It cannot be read; said once for each reason. The text says why and what to do.
    Trouble(String),
}

/// What is in a file, unpacked.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Content {
    pub(crate) bytes: Bytes,
    pub(crate) digest: Digest,
    /// What is in the file beside it that has a signature's name.
    pub(crate) signature: Option<Bytes>,
}

/// Why a file is not read.
#[derive(Debug, thiserror::Error)]
enum SourceError {
    #[error("the file is not there: put it into {}", .0.display())]
    Missing(PathBuf),
    #[error("the file {} is a link to outside of its folder {}, or an absolute one: put the file itself there", name(.0), .1.display())]
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

/// A file that is there.
struct Found {
    stamp: Stamp,
    modified: Option<SystemTime>,
}

/// The files that make one, and what is found of each; none: it is missing.
#[derive(Default)]
struct Survey {
    files: Vec<(PathBuf, Option<Found>)>,
    form: Form,
    signature: Option<PathBuf>,
}

/// What the files are to each other.
#[derive(Default)]
enum Form {
    /// The first is the whole.
    Whole(Compression),
    /// The first is the index, the next ones are the parts.
    Parts(Index),
    /// They do not make one.
    #[default]
    Nothing,
    /// Why not.
    Fault(Fault),
}

type Stamps = Vec<(PathBuf, Option<Stamp>)>;

impl Survey {
    fn stamps(&self) -> Stamps {
        let stamp = |(path, found): &(PathBuf, Option<Found>)| {
            (path.clone(), found.as_ref().map(|found| found.stamp))
        };
        self.files.iter().map(stamp).collect()
    }

    /// When the last of them was written to.
    fn modified(&self) -> Option<SystemTime> {
        let found = self.files.iter().filter_map(|(_, found)| found.as_ref());
        found.filter_map(|found| found.modified).max()
    }
}

/// Why the files do not make one, though each can be read.
#[derive(Clone, Debug)]
struct Fault {
    text: String,
    /// How long more may be on the way.
    patience: Duration,
}

impl From<PackError> for Fault {
    fn from(error: PackError) -> Self {
        Self::whole(error.to_string())
    }
}

impl Fault {
    /// Of what is all there.
    fn whole(text: String) -> Self {
        Self {
            text,
            patience: Duration::ZERO,
        }
    }

    /// Of what may be in parts.
    fn parts(text: String) -> Self {
        Self {
            text,
            patience: PARTS_PATIENCE,
        }
    }

    fn empty(path: &Path) -> Self {
        Self {
            text: format!("the file {} is empty: was it written to its end?", name(path)),
            patience: EMPTY_PATIENCE,
        }
    }
}

/// A plugin's file, or the configuration's, and what is known of it.
pub(crate) struct Source {
    path: PathBuf,
    /// A plugin may be packed and signed, and must be inside of its folder.
    plugin: bool,
    /// Bytes that it may have, packed and unpacked.
    limit: usize,
    /// As the files were when their contents were last read.
    read: Option<Stamps>,
    /// What was last given out: the contents, and the signature.
    given: Option<(Digest, Option<Bytes>)>,
    /// As they were at the last look, and since when.
    seen: Option<(Stamps, Instant)>,
    /// What was wrong with them when they were read.
    fault: Option<(Stamps, Fault)>,
    trouble: Option<String>,
}

impl Source {
    /// A plugin's file, in whatever form, inside of its folder and with at most `limit` bytes.
    pub(crate) fn new(path: PathBuf, limit: usize) -> Self {
        Self {
            path,
            plugin: true,
            limit,
            read: None,
            given: None,
            seen: None,
            fault: None,
            trouble: None,
        }
    }

    /// A file as it is, which may be a link to anywhere.
    pub(crate) fn plain(path: PathBuf, limit: usize) -> Self {
        Self {
            plugin: false,
            ..Self::new(path, limit)
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
            (None, Form::Nothing) => return Err(SourceError::Missing(self.folder().to_owned())),
            (None, ref form) => match self.contents(&survey.files, form, survey.signature.as_deref()) {
                Err(error) => return Err(error),
                // Written to while it was read, or other files by now.
                Ok(_) if self.survey()?.stamps() != stamps => return Ok(Look::Unsettled(SETTLE)),
                Ok(content) => content,
            },
        };
        match content {
            Ok(content) => {
                self.read = Some(stamps);
                let given = Some((content.digest, content.signature.clone()));
                // After trouble it is told again: whoever was told of that must hear that it is over.
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

    /// What is there now.
    fn survey(&self) -> Result<Survey, SourceError> {
        // A folder that is swapped meanwhile makes the file look missing for a moment.
        let Some(folder) = found(Folder::open(self.folder()))? else {
            return Ok(Survey::default());
        };
        let mut survey = Survey::default();
        for (path, form) in self.forms() {
            if let Some(file) = self.find(&folder, &path)? {
                survey.files.push((path, Some(file)));
                // Of an index the form is known when it is read.
                survey.form = form.map_or(Form::Nothing, Form::Whole);
            }
        }
        if survey.files.len() > 1 {
            let names: Vec<_> = survey.files.iter().map(|(path, _)| name(path)).collect();
            let text = format!("there are {}: leave one of them", names.join(" and "));
            survey.form = Form::Fault(Fault::parts(text));
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

    /// The files that can be it, and what each would be; `None`: the index of a pack.
    fn forms(&self) -> Vec<(PathBuf, Option<Compression>)> {
        if self.plugin {
            forms(&self.path).collect()
        } else {
            vec![(self.path.clone(), Some(Compression::None))]
        }
    }

    /// One file, when it is there and may be read.
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

    /// All of a file, unless it has more than `limit` bytes or is not the one that was found: then what is found next is
    /// another, too.
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

    fn index(&self, path: &Path, file: &Found) -> Result<Result<Index, Fault>, SourceError> {
        let plugin = name(&self.path);
        let text = self.read(path, file, INDEX_LIMIT)?;
        if text.as_ref().is_some_and(Vec::is_empty) {
            return Ok(Err(Fault::empty(path)));
        }
        Ok(text
            .ok_or_else(|| PackError::Index(format!("{} has over {INDEX_LIMIT} bytes", name(path))))
            .and_then(|text| Index::read(&plugin, &text, self.limit))
            .map_err(Fault::from))
    }

    /// Reads the files and puts them together.
    fn contents(
        &self,
        files: &[(PathBuf, Option<Found>)],
        form: &Form,
        signature: Option<&Path>,
    ) -> Result<Result<Content, Fault>, SourceError> {
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
                Some(signature) if signature.is_empty() => return Ok(Err(Fault::empty(path))),
                None => {
                    let text = format!("the signature {} has over {SIGNATURE_LIMIT} bytes", name(path));
                    return Ok(Err(Fault::whole(text)));
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
    ) -> Result<Result<Vec<u8>, Fault>, SourceError> {
        let Some(bytes) = self.read(path, file, self.limit)? else {
            let error = LoadError::TooLarge {
                size: usize::try_from(file.stamp.size).unwrap_or(usize::MAX),
                limit: self.limit,
            };
            return Ok(Err(Fault::whole(error.to_string())));
        };
        if bytes.is_empty() {
            return Ok(Err(Fault::empty(path)));
        }
        if compression == Compression::None {
            return Ok(Ok(bytes));
        }
        Ok(compression.unpack(&bytes, self.limit).map_err(Fault::from))
    }

    fn joined(
        &self,
        index: &Index,
        files: &[(PathBuf, Option<Found>)],
    ) -> Result<Result<Vec<u8>, Fault>, SourceError> {
        let mut joined = Vec::new();
        for (part, (path, file)) in index.parts.iter().zip(files) {
            let Some(file) = file else {
                let text = format!("the part {} is not there: apply all of its ConfigMaps", part.file);
                return Ok(Err(Fault::parts(text)));
            };
            let bytes = self.read(path, file, part.size)?;
            if bytes.as_deref().map(Digest::of) != Some(part.sha256) {
                let text = format!(
                    "the part {} is not the one that the index names: is one of its ConfigMaps older than another?",
                    part.file
                );
                return Ok(Err(Fault::parts(text)));
            }
            joined.extend(bytes.unwrap_or_default());
        }
        Ok(index.join(&joined).map_err(Fault::from))
    }

    /// How long to wait until what is seen has been so for a while: by the files' own time, since a file that is
    /// moved here was finished elsewhere, or by ours, since theirs may be another clock's. And for how long we have seen
    /// it so.
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

/// The files that can be the plugin of this name, and how each would be compressed; `None`: the index of a pack.
fn forms(plugin: &Path) -> impl Iterator<Item = (PathBuf, Option<Compression>)> {
    let whole = Compression::ALL
        .into_iter()
        .map(|compression| (with_suffix(plugin, compression.suffix()), Some(compression)));
    whole.chain(std::iter::once((with_suffix(plugin, INDEX_SUFFIX), None)))
}

/// Whether there is a file that could be this plugin, in whatever form.
#[must_use]
pub(crate) fn is_there(plugin: &Path) -> bool {
    forms(plugin).any(|(path, _)| path.is_file())
}

/// The plugin of this name, in whatever form it is there. Waits until it has come to rest.
///
/// # Errors
/// Why it cannot be read, and what to do.
pub(crate) fn read_at_rest(plugin: &Path, limit: usize) -> Result<Content, String> {
    let mut source = Source::new(plugin.to_owned(), limit);
    loop {
        match source.look() {
            Look::New(content) => return Ok(content),
            Look::Trouble(reason) => return Err(reason),
            Look::Unsettled(wait) => std::thread::sleep(wait),
            // Not before one of the first two.
            Look::Same => {}
        }
    }
}

fn with_suffix(path: &Path, suffix: &str) -> PathBuf {
    let mut path = OsString::from(path);
    path.push(suffix);
    path.into()
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
