//! Writes records to a folder that is bounded in number and size. Never delays a reconcile: when the queue is full,
//! calls are dropped and counted.

use std::collections::VecDeque;
use std::io::Write;
use std::os::unix::fs::{DirBuilderExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use jiff::Timestamp;
use kube::core::PartialObjectMeta;
use serde::Serialize;
use thiserror::Error;
use tokio::sync::{OwnedSemaphorePermit, Semaphore, mpsc, oneshot};
use tracing::{info, warn};

use super::{Record, Version, mask, output};
use operator_host_contract::Asked;
use operator_host_runtime::estimate::estimate;
use operator_host_runtime::{CallError, Plugin};
use operator_host_telemetry::metrics::ControllerMetrics;

/// The number of calls that may wait to be written.
const QUEUE: usize = 64;
/// Bytes per semaphore permit, since the number of permits is limited.
const UNIT: usize = 1 << 10;
/// How long to write the last calls when the process ends.
const FLUSH: Duration = Duration::from_secs(2);
/// The largest record is the folder's size limit divided by this.
const LARGEST_PART: u64 = 4;

/// The limits of the folder, whose oldest records are deleted first, and of the memory before it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Bounds {
    /// The number of files, of all controllers together.
    pub files: usize,
    /// The bytes of all files together.
    pub bytes: u64,
    /// The bytes of memory for calls that wait to be written. Larger calls are never recorded.
    pub waiting: usize,
}

/// Why calls cannot be recorded.
#[derive(Debug, Error)]
#[error("cannot record to {}: {error}", folder.display())]
pub struct KeepError {
    folder: PathBuf,
    error: std::io::Error,
}

/// Queues calls for the thread that writes. Cheap to clone. Call [`finish`](Recorder::finish), so that the last calls are
/// written too.
#[derive(Clone, Debug)]
pub struct Recorder {
    jobs: mpsc::Sender<Job>,
    waiting: Arc<Semaphore>,
}

#[derive(Debug)]
enum Job {
    Call(Box<Call>),
    End(oneshot::Sender<()>),
}

/// A call as a reconcile leaves it. Only the answer is copied, as JSON, which is smaller than its values.
#[derive(Debug)]
struct Call {
    controller: String,
    plugin: Version,
    asked: Asked,
    answer: String,
    metrics: ControllerMetrics,
    /// Its part of the memory, until it is written.
    _memory: OwnedSemaphorePermit,
}

impl Recorder {
    /// Opens a folder with the records of an earlier process, or creates it for this user only.
    ///
    /// # Errors
    /// When the folder cannot be created or read.
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
        let permits = (bounds.waiting / UNIT).min(Semaphore::MAX_PERMITS);
        Ok(Self {
            jobs: sender,
            waiting: Arc::new(Semaphore::new(permits)),
        })
    }

    /// Writes the queued calls, for two seconds at most.
    pub async fn finish(self) {
        let (done, wait) = oneshot::channel();
        let finish = async {
            if self.jobs.send(Job::End(done)).await.is_ok() {
                let _ = wait.await;
            }
        };
        if tokio::time::timeout(FLUSH, finish).await.is_err() {
            warn!("the last plugin calls were not recorded within {FLUSH:?}");
        }
    }

    /// Queues a call. Never waits: when the queue or its memory is full, the call is dropped and counted.
    pub fn call<T: Serialize>(
        &self,
        controller: &str,
        plugin: &Plugin,
        asked: Asked,
        outcome: &Result<T, CallError>,
        metrics: &ControllerMetrics,
    ) {
        let Ok(place) = self.jobs.try_reserve() else {
            return metrics.record_dropped();
        };
        let answer = output(asked.export(), outcome).to_string();
        let Some(memory) = self.memory_for(&asked, &answer) else {
            return metrics.record_dropped();
        };
        place.send(Job::Call(Box::new(Call {
            controller: controller.to_owned(),
            plugin: Version::of(plugin),
            asked,
            answer,
            metrics: metrics.clone(),
            _memory: memory,
        })));
    }

    /// Takes what a call occupies until it is written: the request, and the values of its answer.
    fn memory_for(&self, asked: &Asked, answer: &str) -> Option<OwnedSemaphorePermit> {
        let request = match asked {
            // The caches hold texts, so these trees may have no other owner by the time they are written.
            Asked::Reconcile(request) | Asked::Cleanup(request) => {
                estimate(&serde_json::to_string(request).ok()?).bytes
            }
            Asked::Convert(conversion) => conversion.objects.iter().map(|object| object.get().len()).sum(),
            Asked::Validate(parent, old) => {
                parent.get().len() + old.as_ref().map_or(0, |old| old.get().len())
            }
            Asked::Default(parent) => parent.get().len(),
            Asked::Describe => 0,
        };
        let units = u32::try_from((request + estimate(answer).bytes).div_ceil(UNIT)).ok()?;
        Arc::clone(&self.waiting).try_acquire_many_owned(units).ok()
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
                    warn!(
                        "a plugin call was not recorded, and the next ones may fail too without another warning: {error}"
                    );
                }
                failing = true;
            }
        }
    }
}

/// The folder, with the list of its records.
struct Shelf {
    folder: PathBuf,
    bounds: Bounds,
    /// The records with their sizes, oldest first.
    records: VecDeque<(PathBuf, u64)>,
    bytes: u64,
}

impl Shelf {
    /// Lists the existing records: one folder per controller, with names that begin with the time.
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
                "the record {name} has {size} bytes, over the limit of {largest}"
            )));
        }
        make(&folder)?;
        let file = folder.join(name);
        // Rename the finished file into place, so that readers of the folder see only complete records.
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

    /// Deletes the oldest records until the limits are met.
    fn tidy(&mut self) {
        while self.records.len() > self.bounds.files || self.bytes > self.bounds.bytes {
            let Some((file, size)) = self.records.pop_front() else {
                return;
            };
            self.bytes -= size;
            // Another process may have deleted it already.
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

/// Returns a name that sorts by time and identifies the call for people.
fn file_name(number: u64, call: &Call) -> String {
    let (namespace, name) = match &call.asked {
        Asked::Reconcile(request) | Asked::Cleanup(request) => {
            let parent = &request.parent.metadata;
            (parent.namespace.clone(), parent.name.clone())
        }
        Asked::Convert(conversion) => named(conversion.objects.first().map_or("", |object| object.get())),
        Asked::Validate(parent, _) | Asked::Default(parent) => named(parent.get()),
        Asked::Describe => (None, None),
    };
    let part = |text: Option<String>| {
        // Of an object that a caller of the webhook sent.
        let text = text.unwrap_or_default();
        let is_plain = |c: &char| c.is_ascii_alphanumeric() || "-.".contains(*c);
        text.chars().filter(is_plain).take(60).collect::<String>()
    };
    format!(
        "{}-{number:06}-{}-{}-{}.json",
        Timestamp::now().strftime("%Y%m%dT%H%M%S"),
        call.asked.export(),
        part(namespace),
        part(name),
    )
}

/// Returns the namespace and the name of an object.
fn named(object: &str) -> (Option<String>, Option<String>) {
    let Ok(object) = serde_json::from_str::<PartialObjectMeta>(object) else {
        return (None, None);
    };
    (object.metadata.namespace, object.metadata.name)
}

fn text(call: Call) -> std::io::Result<Vec<u8>> {
    let mut document = serde_json::to_value(Record {
        plugin: Some(call.plugin),
        input: call.asked.into(),
        output: serde_json::from_str(&call.answer)?,
    })?;
    mask(&mut document);
    let mut text = serde_json::to_vec_pretty(&document)?;
    text.push(b'\n');
    Ok(text)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Instruments;
    use operator_host_contract::{Kind, Response};
    use operator_host_runtime::{EngineOptions, Limits, Runtime};

    /// Regression: 64 answers of any size could wait, outside of all limits of memory.
    #[tokio::test]
    async fn calls_that_wait_to_be_written_have_limited_memory() {
        let runtime = Runtime::new(EngineOptions::default()).unwrap();
        let file = plugin_fixtures::Fixture::new(plugin_fixtures::cases::ANSWER)
            .build(plugin_fixtures::Form::Command);
        let plugin = runtime.load(file, Limits::default()).await.unwrap();
        let kind = Kind::new("fixtures.dev/v1", "Fixture");
        let metrics = Instruments::unread().metrics.of("shop", &kind);
        let (jobs, mut queue) = mpsc::channel(QUEUE);
        let recorder = Recorder {
            jobs,
            waiting: Arc::new(Semaphore::new(100)),
        };
        let queued = |bytes: usize| {
            let status = serde_json::json!({ "text": "x".repeat(bytes) });
            let response = Response {
                status: status.as_object().cloned(),
                ..Response::default()
            };
            let parent = serde_json::value::RawValue::from_string("{}".into()).unwrap();
            let asked = Asked::Default(parent.into());
            recorder.call("a", &plugin, asked, &Ok(response), &metrics);
            queue.len()
        };
        assert_eq!(queued(200 << 10), 0, "it alone is larger than the memory");
        assert_eq!(queued(60 << 10), 1);
        assert_eq!(queued(60 << 10), 1, "there is no memory for another");
        assert_eq!(queued(10 << 10), 2);
        while queue.try_recv().is_ok() {}
        let parent = serde_json::json!({ "metadata": {}, "spec": "x".repeat(200 << 10) });
        let request = serde_json::json!({ "parent": parent, "children": [], "related": [],
            "now": "2026-01-01T00:00:00Z" });
        let asked = Asked::Reconcile(serde_json::from_value(request).unwrap());
        recorder.call("a", &plugin, asked, &Ok(Response::default()), &metrics);
        assert_eq!(queue.len(), 0, "a request counts, too");
        assert_eq!(recorder.waiting.available_permits(), 100);
    }
}
