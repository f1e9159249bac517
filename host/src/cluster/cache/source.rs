//! The requests behind a watch: the pages of a list, and the changes after it. Each is bounded in time, so that none
//! waits for ever on a connection that is open and silent.

use std::pin::Pin;
use std::time::Duration;

use futures::{Stream, StreamExt, TryStreamExt};
use kube::Api;
use kube::api::{ListParams, WatchParams};
use kube::core::metadata::PartialObjectMeta;
use kube::core::{DynamicObject, ObjectList, Status, WatchEvent};
use tokio::time::{Instant, timeout, timeout_at};

use crate::cluster::client::chain;
use crate::cluster::refusal::{asked_delay, unknown_to_the_server};
use crate::work_queue::backoff::jittered;

/// How many objects are asked for at a time.
const PAGE: u32 = 500;

/// What of the objects is asked for.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(super) enum Form {
    /// All of it.
    Whole,
    /// Their metadata.
    Metadata,
}

/// How long requests may take.
#[derive(Clone, Copy, Debug)]
pub(super) struct Limits {
    /// One page of a list. The API server gives up after a minute itself.
    pub(super) page: Duration,
    /// The answer that a watch has begun.
    pub(super) start: Duration,
    /// A watch, which the API server is asked to end after about this time; the next goes on where it was.
    pub(super) watch: Duration,
    /// How much later than asked a watch may end. One that does not end hangs.
    pub(super) late: Duration,
    /// How long a watch may bring nothing before the next one takes its place, since nothing may come through. A current
    /// API server sends a bookmark a minute, so that this ends no watch that works; an old one sends none of a kind that
    /// does not change.
    pub(super) silent: Duration,
}

impl Default for Limits {
    fn default() -> Self {
        Self {
            page: Duration::from_secs(60),
            start: Duration::from_secs(30),
            watch: Duration::from_secs(290),
            late: Duration::from_secs(15),
            silent: Duration::from_secs(90),
        }
    }
}

/// Why a request brought nothing.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Trouble {
    /// The API server does not remember what the watch has seen last: only a list says what is there.
    Outdated,
    /// It refuses for good, until somebody does something: what to do.
    Refused(String),
    /// It does not serve the kind.
    NotServed,
    /// It passes by itself.
    Passing {
        /// What happened.
        message: String,
        /// How long the API server wants to be left alone.
        retry_after: Option<Duration>,
        /// Whether asking again for what comes after the last change could help.
        resumable: bool,
    },
}

impl Trouble {
    fn passing(message: String) -> Self {
        Self::Passing {
            message,
            retry_after: None,
            resumable: true,
        }
    }

    pub(super) fn of_status(status: &Status) -> Self {
        let said = status.message.trim_end_matches('.');
        let passing = |resumable| Self::Passing {
            message: format!("the API server answers {}: {said}", status.code),
            retry_after: asked_delay(status),
            resumable,
        };
        match status.code {
            401 => Self::Refused(unknown_to_the_server(said)),
            403 => Self::Refused(format!(
                "{said}; give the host's role the verbs list and watch on it"
            )),
            404 => Self::NotServed,
            410 => Self::Outdated,
            // The store is an older one than what we have seen: it was restored from a backup.
            504 if said.contains("Too large resource version") => Self::Outdated,
            408 | 429 | 500..=599 => passing(true),
            _ => passing(false),
        }
    }

    fn of(error: &kube::Error) -> Self {
        match error {
            kube::Error::Api(status) => Self::of_status(status),
            kube::Error::SerdeError(error) => Self::Passing {
                message: format!("cannot read what the API server sends: {error}"),
                retry_after: None,
                resumable: false,
            },
            other => Self::passing(format!("the API server cannot be reached: {}", chain(other))),
        }
    }
}

/// Where the objects of one watch come from.
pub(super) struct Source {
    pub(super) api: Api<DynamicObject>,
    pub(super) form: Form,
    pub(super) limits: Limits,
}

impl Source {
    /// One page of the list; `token` is what the page before said.
    pub(super) async fn page(&self, token: Option<&str>) -> Result<ObjectList<DynamicObject>, Trouble> {
        let mut params = ListParams::default().limit(PAGE);
        params.continue_token = token.map(str::to_owned);
        let request = async {
            match self.form {
                Form::Whole => self.api.list(&params).await,
                Form::Metadata => {
                    let list = self.api.list_metadata(&params).await?;
                    Ok(ObjectList {
                        types: list.types,
                        metadata: list.metadata,
                        items: list.items.into_iter().map(metadata_only).collect(),
                    })
                }
            }
        };
        match timeout(self.limits.page, request).await {
            Ok(answer) => answer.map_err(|error| Trouble::of(&error)),
            Err(_elapsed) => Err(Trouble::passing(format!(
                "no answer from the API server within {:?}",
                self.limits.page
            ))),
        }
    }

    /// What changes after a resource version, from the moment on at which the API server has taken the watch.
    pub(super) async fn changes(&self, version: &str) -> Result<Changes, Trouble> {
        // Those that began together do not all end together.
        let asked = jittered(self.limits.watch, 0.2);
        let seconds = u32::try_from(asked.as_secs()).unwrap_or(u32::MAX).max(1);
        let params = WatchParams::default().timeout(seconds);
        let ends = Instant::now() + asked + self.limits.late;
        let request = async {
            let stream: Pin<Box<dyn Stream<Item = _> + Send>> = match self.form {
                Form::Whole => self.api.watch(&params, version).await?.boxed(),
                Form::Metadata => {
                    let events = self.api.watch_metadata(&params, version).await?;
                    events.map_ok(event_of_metadata).boxed()
                }
            };
            Ok(Changes {
                stream,
                ends,
                silent: self.limits.silent,
            })
        };
        match timeout(self.limits.start, request).await {
            Ok(answer) => answer.map_err(|error: kube::Error| Trouble::of(&error)),
            Err(_elapsed) => Err(Trouble::passing(format!(
                "the API server did not begin a watch within {:?}",
                self.limits.start
            ))),
        }
    }
}

/// A watch that runs.
pub(super) struct Changes {
    stream: Pin<Box<dyn Stream<Item = kube::Result<WatchEvent<DynamicObject>>> + Send>>,
    ends: Instant,
    silent: Duration,
}

impl Changes {
    /// The next change; `None` at the end, and when it has been silent for too long. Nothing is lost when this is dropped half-way.
    pub(super) async fn next(&mut self) -> Option<Result<WatchEvent<DynamicObject>, Trouble>> {
        let silent = Instant::now() + self.silent;
        match timeout_at(self.ends.min(silent), self.stream.next()).await {
            Ok(Some(Err(error))) => Some(Err(Trouble::of(&error))),
            Ok(Some(Ok(event))) => Some(Ok(event)),
            Ok(None) => None,
            // Nothing is wrong where there is nothing to say: the next watch goes on from here.
            Err(_elapsed) if silent < self.ends => None,
            Err(_elapsed) => Some(Err(Trouble::passing(
                "a watch did not end when it should have".to_owned(),
            ))),
        }
    }
}

fn metadata_only(object: PartialObjectMeta<DynamicObject>) -> DynamicObject {
    DynamicObject {
        // It says that it is metadata; the watch knows of what.
        types: None,
        metadata: object.metadata,
        data: serde_json::Value::Null,
    }
}

fn event_of_metadata(event: WatchEvent<PartialObjectMeta<DynamicObject>>) -> WatchEvent<DynamicObject> {
    match event {
        WatchEvent::Added(object) => WatchEvent::Added(metadata_only(object)),
        WatchEvent::Modified(object) => WatchEvent::Modified(metadata_only(object)),
        WatchEvent::Deleted(object) => WatchEvent::Deleted(metadata_only(object)),
        WatchEvent::Bookmark(bookmark) => WatchEvent::Bookmark(bookmark),
        WatchEvent::Error(status) => WatchEvent::Error(status),
    }
}
