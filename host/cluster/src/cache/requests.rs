//! The requests behind a watch: list pages and the changes that follow. Each has a time limit, so that none waits
//! forever on an open but silent connection.

use std::io;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

use futures::io::{AsyncRead, AsyncReadExt as _};
use futures::stream::{BoxStream, StreamExt as _};
use kube::Api;
use kube::api::{ListParams, WatchEvent, WatchParams};
use kube::core::{DynamicObject, ObjectList, PartialObjectMeta, Request, Status};
use tokio::time::{Instant, timeout, timeout_at};

use super::page::Page;
use super::read::Watched;
use crate::client::chain;
use crate::refusal::{asked_delay, unknown_to_the_server};
use operator_host_core::backoff::jittered;

/// Page size of a list. A page is in memory as text.
const PAGE: u32 = 250;
/// Largest page in bytes. A larger one is requested again with fewer objects.
const LARGEST_PAGE: usize = 32 << 20;

/// How much of each object is requested.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(super) enum Form {
    /// The full objects.
    Whole,
    /// Only their metadata.
    Metadata,
}

/// Time limits of requests.
#[derive(Clone, Copy, Debug)]
pub(super) struct Limits {
    /// For one page of a list. The API server itself gives up after a minute.
    pub(super) page: Duration,
    /// For the response headers of a watch.
    pub(super) start: Duration,
    /// For a whole watch. The API server is asked to end it after about this time; the next watch resumes from
    /// there.
    pub(super) watch: Duration,
    /// How much later than requested a watch may end. One that has not ended by then hangs.
    pub(super) late: Duration,
    /// How long a watch may be silent before it is replaced, since its connection may be dead. A current API server
    /// sends a bookmark every minute, so this ends no working watch; an old API server sends none for a kind that
    /// does not change.
    pub(super) silent: Duration,
    /// A watch that has run this long counts as healthy, even if it delivered nothing.
    pub(super) healthy: Duration,
    /// How long a kind that was listed before may be missing, from the first response that says so. An API server that
    /// has just started does not serve the kinds of definitions yet.
    pub(super) unserved: Duration,
}

impl Default for Limits {
    fn default() -> Self {
        Self {
            page: Duration::from_secs(60),
            start: Duration::from_secs(30),
            watch: Duration::from_secs(290),
            late: Duration::from_secs(15),
            silent: Duration::from_secs(90),
            healthy: Duration::from_secs(5),
            unserved: Duration::from_secs(10),
        }
    }
}

/// Why a request failed.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Trouble {
    /// The API server no longer has the last seen version; a new list is needed.
    Outdated,
    /// A permanent refusal that somebody must fix; the text describes how.
    Refused(String),
    /// The API server does not serve the kind.
    NotServed,
    /// A transient error.
    Passing {
        /// The error.
        message: String,
        /// The delay that the API server asked for.
        retry_after: Option<Duration>,
        /// Whether asking for the changes after the last one could succeed.
        resumable: bool,
    },
}

impl Trouble {
    pub(super) fn of_status(status: &Status) -> Self {
        let message = status.message.trim_end_matches('.');
        let passing = |resumable| Self::Passing {
            message: format!("the API server answers {}: {message}", status.code),
            retry_after: asked_delay(status),
            resumable,
        };
        match status.code {
            401 => Self::Refused(unknown_to_the_server(message)),
            403 => Self::Refused(format!(
                "{message}; give the host's role the verbs list and watch on it"
            )),
            404 => Self::NotServed,
            410 => Self::Outdated,
            // The store is older than the last seen version.
            504 if message.contains("Too large resource version") => Self::Outdated,
            500 if message.contains("required revision is a future revision") => Self::Outdated,
            408 | 429 | 500..=599 => passing(true),
            _ => passing(false),
        }
    }

    /// Returns a trouble after which the API server asks for no delay, such as no answer or a broken connection.
    pub(super) fn passing(message: impl Into<String>, resumable: bool) -> Self {
        Self::Passing {
            message: message.into(),
            retry_after: None,
            resumable,
        }
    }

    /// Returns the trouble with an answer that cannot be read.
    pub(super) fn unreadable(error: &serde_json::Error) -> Self {
        Self::passing(format!("cannot read what the API server sends: {error}"), false)
    }

    fn of(error: &kube::Error) -> Self {
        match error {
            kube::Error::Api(status) => Self::of_status(status),
            kube::Error::SerdeError(error) => Self::unreadable(error),
            other => unreachable(other),
        }
    }
}

/// The source of one watch's objects.
pub(super) struct WatchSource {
    api: Api<DynamicObject>,
    form: Form,
    pub(super) limits: Limits,
    /// How many objects a page may have: fewer than [`PAGE`] as soon as a page was too large.
    page_size: AtomicU32,
}

impl WatchSource {
    pub(super) fn new(api: Api<DynamicObject>, form: Form, limits: Limits) -> Self {
        Self {
            api,
            form,
            limits,
            page_size: AtomicU32::new(PAGE),
        }
    }

    /// Fetches one page of the list; `token` is the continue token of the previous page.
    pub(super) async fn page(&self, token: Option<&str>) -> Result<Page, Trouble> {
        loop {
            let size = self.page_size.load(Ordering::Relaxed);
            let request = self.page_of(size, token);
            let answer = timeout(self.limits.page, request).await;
            match answer.map_err(|_elapsed| unanswered(self.limits.page))?? {
                Some(page) => return Ok(page),
                None if size > 1 => self.page_size.store(size.div_ceil(4), Ordering::Relaxed),
                None => return Err(too_large()),
            }
        }
    }

    /// Fetches a page of at most `size` objects; `None` when it is too large.
    async fn page_of(&self, size: u32, token: Option<&str>) -> Result<Option<Page>, Trouble> {
        let mut params = ListParams::default().limit(size);
        params.continue_token = token.map(str::to_owned);
        let request = Request::new(self.api.resource_url());
        let request = match self.form {
            Form::Whole => request.list(&params),
            Form::Metadata => request.list_metadata(&params),
        };
        let request = request.map_err(|error| Trouble::of(&kube::Error::BuildRequest(error)))?;
        let body = self.api.clone().into_client().request_stream(request).await;
        let body = body.map_err(|error| Trouble::of(&error))?;
        match at_most(body, LARGEST_PAGE).await {
            Ok(Some(text)) => Page::new(text)
                .map(Some)
                .map_err(|error| Trouble::unreadable(&error)),
            Ok(None) => Ok(None),
            Err(error) => Err(unreachable(&error)),
        }
    }

    /// Returns the current resource version of the API server. It is read from etcd.
    pub(super) async fn newest(&self) -> Result<Option<u128>, Trouble> {
        let request = Request::new(self.api.resource_url()).list_metadata(&ListParams::default().limit(1));
        let request = request.map_err(|error| Trouble::of(&kube::Error::BuildRequest(error)))?;
        let client = self.api.clone().into_client();
        let list = client.request::<ObjectList<PartialObjectMeta>>(request);
        let list = timeout(self.limits.page, list).await;
        let list = list.map_err(|_elapsed| unanswered(self.limits.page))?;
        let version = list
            .map_err(|error| Trouble::of(&error))?
            .metadata
            .resource_version;
        Ok(version.and_then(|version| version.parse().ok()))
    }

    /// Starts a watch after a resource version; returns once the API server has accepted it.
    pub(super) async fn changes(&self, version: &str) -> Result<Changes, Trouble> {
        // Jitter, so that watches that began together do not end together.
        let asked = jittered(self.limits.watch, 0.2);
        let seconds = u32::try_from(asked.as_secs()).unwrap_or(u32::MAX).max(1);
        let params = WatchParams::default().timeout(seconds);
        let due = Instant::now() + asked;
        let request = Request::new(self.api.resource_url());
        let request = match self.form {
            Form::Whole => request.watch(&params, version),
            Form::Metadata => request.watch_metadata(&params, version),
        };
        let request = request.map_err(|error| Trouble::of(&kube::Error::BuildRequest(error)))?;
        let client = self.api.clone().into_client();
        match timeout(self.limits.start, client.request_events(request)).await {
            Ok(Ok(events)) => Ok(Changes {
                events: events.boxed(),
                due,
                ends: due + self.limits.late,
                silent: self.limits.silent,
            }),
            Ok(Err(error)) => Err(Trouble::of(&error)),
            Err(_elapsed) => Err(Trouble::passing(
                format!(
                    "the API server did not begin a watch within {:?}",
                    self.limits.start
                ),
                true,
            )),
        }
    }
}

/// Reads a body; `None` when it has more than `limit` bytes.
async fn at_most(body: impl AsyncRead, limit: usize) -> io::Result<Option<Vec<u8>>> {
    let mut text = Vec::new();
    let mut body = std::pin::pin!(body.take(limit as u64 + 1));
    body.read_to_end(&mut text).await?;
    Ok(Some(text).filter(|text| text.len() <= limit))
}

fn unanswered(limit: Duration) -> Trouble {
    Trouble::passing(format!("no answer from the API server within {limit:?}"), true)
}

fn unreachable(error: &(dyn std::error::Error + 'static)) -> Trouble {
    let message = format!("the API server cannot be reached: {}", chain(error));
    Trouble::passing(message, true)
}

fn too_large() -> Trouble {
    let limit = LARGEST_PAGE >> 20;
    let message = format!("a page with one object from the API server is larger than {limit} MiB");
    Trouble::passing(message, false)
}

/// A running watch.
pub(super) struct Changes {
    events: BoxStream<'static, kube::Result<WatchEvent<Watched>>>,
    due: Instant,
    ends: Instant,
    silent: Duration,
}

impl Changes {
    /// Reports whether the API server was asked to end the watch by now.
    pub(super) fn is_due(&self) -> bool {
        Instant::now() >= self.due
    }

    /// Returns the next event; `None` at the end or after a long silence. Cancel-safe: dropping the future loses no event.
    pub(super) async fn next(&mut self) -> Option<Result<WatchEvent<Watched>, Trouble>> {
        let silent = Instant::now() + self.silent;
        match timeout_at(self.ends.min(silent), self.events.next()).await {
            Ok(event) => event.map(|event| event.map_err(|error| Trouble::of(&error))),
            // Silence is not an error: the next watch resumes from here.
            Err(_elapsed) if silent < self.ends => None,
            Err(_elapsed) => Some(Err(Trouble::passing(
                "a watch did not end when it should have",
                true,
            ))),
        }
    }
}

/// Returns the resource version up to which an event leads.
pub(super) fn version(event: &WatchEvent<Watched>) -> Option<&str> {
    let version = match event {
        WatchEvent::Added(object) | WatchEvent::Modified(object) | WatchEvent::Deleted(object) => {
            object.head.resource_version.as_deref()
        }
        WatchEvent::Bookmark(bookmark) => Some(bookmark.metadata.resource_version.as_str()),
        WatchEvent::Error(_) => None,
    };
    version.filter(|version| !version.is_empty())
}
