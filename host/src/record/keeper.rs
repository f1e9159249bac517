//! Writes records to a folder, bounded in number and size, and never in the way of a pass: what finds the queue full
//! is dropped and counted.

use std::collections::VecDeque;
use std::io::Write;
use std::os::unix::fs::{DirBuilderExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::time::Duration;

use jiff::Timestamp;
use thiserror::Error;
use tokio::sync::{mpsc, oneshot};
use tracing::{info, warn};

use super::{Answer, Record, Version, mask};
use crate::metrics::ControllerMetrics;
use crate::plugin::contract::{Export, Request};
use crate::plugin::{CallError, Plugin};

/// How many calls may wait to be written. The objects of their requests are shared with the caches.
const QUEUE: usize = 64;
/// How long the last of them may take when the process ends.
const FLUSH: Duration = Duration::from_secs(2);
/// A record may have this part of the whole folder's size.
const LARGEST_PART: u64 = 4;

/// How much the folder may hold; the oldest records go first.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Bounds {
    /// Files, of all controllers together.
    pub files: usize,
    /// Bytes, of all files together.
    pub bytes: u64,
}

/// Why nothing is recorded.
#[derive(Debug, Error)]
#[error("cannot record to {}: {error}", folder.display())]
pub struct KeepError {
    folder: PathBuf,
    error: std::io::Error,
}

/// The thread that writes. Ask it to [`finish`](Keeper::finish), so that the last calls are written too.
#[derive(Debug)]
pub struct Keeper {
    recorder: Recorder,
}

/// Where calls are handed over. Cheap to clone.
#[derive(Clone, Debug)]
pub struct Recorder(mpsc::Sender<Job>);

#[derive(Debug)]
enum Job {
    Call(Box<Call>),
    End(oneshot::Sender<()>),
}

/// A call as a pass leaves it: nothing is copied but the answer.
#[derive(Debug)]
struct Call {
    controller: String,
    plugin: Version,
    export: Export,
    request: Request,
    answer: Answer,
    metrics: ControllerMetrics,
}

impl Keeper {
    /// Takes up a folder with what an earlier process left there, or makes it, for this user alone.
    ///
    /// # Errors
    /// When it cannot be made or read.
    pub fn start(folder: &Path, bounds: Bounds) -> Result<Self, KeepError> {
        let failed = |error| KeepError {
            folder: folder.to_owned(),
            error,
        };
        make(folder).map_err(failed)?;
        let mut shelf = Shelf {
            folder: folder.to_owned(),
            bounds,
            records: VecDeque::new(),
            bytes: 0,
        };
        shelf.look().map_err(failed)?;
        shelf.tidy();
        let (sender, receiver) = mpsc::channel(QUEUE);
        std::thread::Builder::new()
            .name("recorder".into())
            .spawn(move || write_all(shelf, receiver))
            .map_err(failed)?;
        info!(folder = %folder.display(), "recording every plugin call");
        Ok(Self {
            recorder: Recorder(sender),
        })
    }

    /// A handle for those who call.
    #[must_use]
    pub fn recorder(&self) -> Recorder {
        self.recorder.clone()
    }

    /// Writes what waits, for two seconds at most.
    pub async fn finish(self) {
        let (done, wait) = oneshot::channel();
        let finish = async {
            if self.recorder.0.send(Job::End(done)).await.is_ok() {
                let _ = wait.await;
            }
        };
        if tokio::time::timeout(FLUSH, finish).await.is_err() {
            warn!("the last plugin calls were not recorded within {FLUSH:?}");
        }
    }
}

impl Recorder {
    /// Hands a call over. Never waits: with a full queue the call is dropped and counted.
    pub fn call<T: Clone + Into<Answer>>(
        &self,
        controller: &str,
        plugin: &Plugin,
        export: Export,
        request: Request,
        outcome: &Result<T, CallError>,
        metrics: &ControllerMetrics,
    ) {
        let Ok(place) = self.0.try_reserve() else {
            return metrics.record_dropped();
        };
        place.send(Job::Call(Box::new(Call {
            controller: controller.to_owned(),
            plugin: Version::of(plugin),
            export,
            request,
            answer: Answer::of(outcome),
            metrics: metrics.clone(),
        })));
    }
}

fn write_all(mut shelf: Shelf, mut jobs: mpsc::Receiver<Job>) {
    let mut number = 0_u64;
    let mut failing = false;
    while let Some(job) = jobs.blocking_recv() {
        let call = match job {
            Job::Call(call) => call,
            Job::End(done) => {
                let _ = done.send(());
                return;
            }
        };
        number += 1;
        let metrics = call.metrics.clone();
        match shelf.write(number, *call) {
            Ok(()) => failing = false,
            Err(error) => {
                metrics.record_dropped();
                if !failing {
                    warn!("a plugin call was not recorded, nor may the next be: {error}");
                }
                failing = true;
            }
        }
    }
}

/// The folder, and what is known to be in it.
struct Shelf {
    folder: PathBuf,
    bounds: Bounds,
    /// Oldest first.
    records: VecDeque<(PathBuf, u64)>,
    bytes: u64,
}

impl Shelf {
    /// Finds what is there: one folder a controller, names that begin with the time.
    fn look(&mut self) -> std::io::Result<()> {
        let mut found = Vec::new();
        for entry in std::fs::read_dir(&self.folder)? {
            let path = entry?.path();
            if !path.is_dir() {
                continue;
            }
            for entry in std::fs::read_dir(path)? {
                let entry = entry?;
                let path = entry.path();
                if path.extension().is_some_and(|extension| extension == "json") {
                    found.push((path, entry.metadata()?.len()));
                }
            }
        }
        found.sort_by(|(a, _), (b, _)| a.file_name().cmp(&b.file_name()));
        self.bytes = found.iter().map(|(_, size)| size).sum();
        self.records = found.into();
        Ok(())
    }

    fn write(&mut self, number: u64, call: Call) -> std::io::Result<()> {
        let name = file_name(number, &call);
        let folder = self.folder.join(&call.controller);
        let text = text(call)?;
        let size = text.len() as u64;
        let largest = self.bounds.bytes / LARGEST_PART;
        if size > largest {
            return Err(std::io::Error::other(format!(
                "the record {name} has {size} bytes; one may have {largest}"
            )));
        }
        make(&folder)?;
        let file = folder.join(name);
        // Whoever reads the folder meanwhile sees whole records.
        let unfinished = file.with_extension("unfinished");
        let written = std::fs::OpenOptions::new()
            .write(true)
            .create(true)
            .truncate(true)
            .mode(0o600)
            .open(&unfinished)
            .and_then(|mut file| file.write_all(&text))
            .and_then(|()| std::fs::rename(&unfinished, &file));
        if let Err(error) = written {
            let _ = std::fs::remove_file(&unfinished);
            return Err(error);
        }
        self.records.push_back((file, size));
        self.bytes += size;
        self.tidy();
        Ok(())
    }

    /// Deletes the oldest until the bounds hold.
    fn tidy(&mut self) {
        while self.records.len() > self.bounds.files || self.bytes > self.bounds.bytes {
            let Some((file, size)) = self.records.pop_front() else {
                return;
            };
            self.bytes -= size;
            // Somebody may have taken it away already.
            let _ = std::fs::remove_file(file);
        }
    }
}

fn make(folder: &Path) -> std::io::Result<()> {
    std::fs::DirBuilder::new()
        .recursive(true)
        .mode(0o700)
        .create(folder)
}

/// Sorts by time, and says for people what it is.
fn file_name(number: u64, call: &Call) -> String {
    let parent = &call.request.parent.metadata;
    let part = |text: &Option<String>| {
        text.as_deref()
            .unwrap_or_default()
            .chars()
            .take(60)
            .collect::<String>()
    };
    format!(
        "{}-{number:06}-{}-{}-{}.json",
        Timestamp::now().strftime("%Y%m%dT%H%M%S"),
        call.export,
        part(&parent.namespace),
        part(&parent.name),
    )
}

fn text(call: Call) -> std::io::Result<Vec<u8>> {
    let record = Record::new(call.plugin, call.export, call.request, call.answer);
    let mut document = serde_json::to_value(record)?;
    mask(&mut document);
    let mut text = serde_json::to_vec_pretty(&document)?;
    text.push(b'\n');
    Ok(text)
}
