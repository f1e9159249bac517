//! One bounded HTTP exchange with an endpoint: no redirect is followed, no compression is accepted, nothing that the server
//! says becomes part of an error.

use std::collections::HashMap;
use std::error::Error;
use std::net::IpAddr;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use bytes::Bytes;
use http_body_util::{BodyExt as _, Full, LengthLimitError, Limited};
use hyper::body::{Body as _, Incoming};
use hyper::header::{CONTENT_ENCODING, ETAG, HeaderName, HeaderValue};
use hyper::{Method, Response};
use hyper_util::client::legacy::{self, Client};
use hyper_util::rt::{TokioExecutor, TokioTimer};
use rustls::ClientConfig;
use serde_json::Value;
use tokio::sync::{OnceCell, Semaphore, SemaphorePermit};
use tokio::time::{Instant, timeout};

use super::connector::{Connector, connector};
use super::credentials::{Credential, Kept};
use super::spec::{MAX_DEPTH, Request};
use super::status::Stop;
use operator_host_cluster::client::{Pace, is_deposed};
use operator_host_cluster::term::Term;
use operator_host_config::endpoints::Endpoint;
use operator_host_core::backoff::at_least;
use operator_host_core::object::is_deeper;
use operator_host_core::sync::lock;
use operator_host_telemetry::http_client::{self, Target, asks_to_wait};
use operator_host_telemetry::metrics::Metrics;

/// How long an unused connection is kept.
const IDLE: Duration = Duration::from_secs(30);
/// The most bytes of an answer's head.
const MAX_HEAD: usize = 64 << 10;
/// The most values in an answer: in memory, each takes up to thirty times its text.
const MAX_VALUES: usize = 100_000;
/// The most values of all answers together that are in memory: further ones wait.
static VALUES: Semaphore = Semaphore::const_new(4 * MAX_VALUES);
/// The longest ETag that is remembered.
const MAX_ETAG: usize = 128;
/// The wait after a 429 that names none.
const WAIT: Duration = Duration::from_secs(5);

/// The user agent.
const AGENT: &str = concat!("operator-host-egress/", env!("CARGO_PKG_VERSION"));

/// What is sent, as a whole but for the credentials.
pub(crate) type Message = hyper::Request<Full<Bytes>>;

/// What came back.
#[derive(Debug)]
pub(crate) struct Answer {
    pub(crate) code: u16,
    pub(crate) etag: Option<String>,
    /// How long the server asks to wait.
    pub(crate) wait: Option<Duration>,
    /// The body of a successful GET.
    pub(crate) body: Value,
    /// For its values, until it is dropped.
    _room: Option<SemaphorePermit<'static>>,
}

/// An answer, or why there is none.
pub(crate) type Answered = Result<Arc<Answer>, Stop>;

/// The way to one endpoint.
pub(crate) struct Transport {
    pub(crate) endpoint: Arc<Endpoint>,
    pub(crate) credential: Kept,
    client: Client<Connector, Full<Bytes>>,
    pace: Pace,
    term: Term,
    metrics: Arc<Metrics>,
    /// Until when the server asks not to be asked.
    waits: Mutex<Option<Instant>>,
    /// The GETs that are on their way.
    shared: Mutex<HashMap<String, Arc<OnceCell<Answered>>>>,
}

impl Transport {
    /// Creates the way to an endpoint; sends nothing.
    pub(crate) fn new(
        endpoint: &Arc<Endpoint>,
        tls: &ClientConfig,
        reserved: &Arc<[IpAddr]>,
        term: &Term,
        metrics: &Arc<Metrics>,
    ) -> Self {
        let client = Client::builder(TokioExecutor::new())
            .pool_timer(TokioTimer::new())
            .pool_idle_timeout(IDLE)
            .http1_max_buf_size(MAX_HEAD)
            .build(connector(endpoint, tls.clone(), reserved, term));
        Self {
            endpoint: Arc::clone(endpoint),
            credential: Kept::default(),
            client,
            pace: Pace::new(endpoint.qps, endpoint.qps),
            term: term.clone(),
            metrics: Arc::clone(metrics),
            waits: Mutex::default(),
            shared: Mutex::default(),
        }
    }

    /// Makes what is sent, with one more header.
    pub(crate) fn message(
        &self,
        of: &Request,
        body: Option<Vec<u8>>,
        more: Option<(&str, &str)>,
    ) -> Result<Message, Stop> {
        let json = body.is_some().then_some(("content-type", "application/json"));
        let own = of.headers.iter();
        let own = own.map(|(name, value)| (name.as_str(), value.as_str()));
        // `url` ends without a slash, and the path begins with one and has passed `spec::path_problem`.
        let message = hyper::Request::builder()
            .method(of.method.as_str())
            .uri(format!("{}{}", self.endpoint.url, of.path))
            .header("accept", "application/json")
            .header("accept-encoding", "identity")
            .header("user-agent", AGENT)
            .body(Full::from(body.unwrap_or_default()));
        let mut message = message.map_err(|_| broken())?;
        for (name, value) in json.into_iter().chain(own).chain(more) {
            let name = HeaderName::try_from(name).map_err(|_| broken())?;
            let value = HeaderValue::try_from(value).map_err(|_| broken())?;
            message.headers_mut().insert(name, value);
        }
        Ok(message)
    }

    /// Asks as others do who ask the same at this time: once.
    pub(crate) async fn ask_once(&self, message: Message, credential: Option<&Credential>) -> Answered {
        let key = format!("{} {:?}", message.uri(), message.headers());
        let cell = Arc::clone(lock(&self.shared).entry(key).or_default());
        let answer = cell.get_or_init(|| self.send(message, credential));
        let answer = answer.await.clone();
        lock(&self.shared).retain(|_, current| !Arc::ptr_eq(current, &cell));
        answer
    }

    /// Sends a message when the endpoint's rate allows it, and reads the whole answer. Where there is none, it may have been carried
    /// out nevertheless.
    pub(crate) async fn send(&self, mut message: Message, credential: Option<&Credential>) -> Answered {
        let (limit, time) = (self.endpoint.max_body, self.endpoint.timeout);
        if message.body().size_hint().lower() > limit as u64 {
            return Err(Stop::body_too_large(limit));
        }
        if let Some(Credential { header, value, .. }) = credential {
            message.headers_mut().insert(header.clone(), value.clone());
        }
        self.pace.wait().await;
        let now = Instant::now();
        if let Some(until) = lock(&self.waits).filter(|until| *until > now) {
            return Err(Stop::waits(until - now));
        }
        // Another replica may begin only when this request has ended.
        if self.term.allowance().is_none_or(|left| left < time) {
            return Err(Stop::deposed());
        }
        let (target, is_get) = (Target::of(&message, true), message.method() == Method::GET);
        let exchange = async {
            let sent = async {
                let sent = self.client.request(message).await;
                sent.map_err(|error| in_own_words(&error))
            };
            let response = http_client::observe(&self.metrics, target, sent, |stop| stop.reason).await?;
            read(response, is_get, limit).await
        };
        let too_slow = |_| Stop::failed("TimedOut", format!("no whole answer within {time:?}"));
        let answer = timeout(time, exchange).await.map_err(too_slow)??;
        if let Some(wait) = answer.wait {
            *lock(&self.waits) = Some(Instant::now() + wait);
        }
        Ok(Arc::new(answer))
    }
}

async fn read(response: Response<Incoming>, is_get: bool, limit: usize) -> Result<Answer, Stop> {
    let wait = asks_to_wait(&response, WAIT).map(at_least);
    let (head, body) = response.into_parts();
    let text = |name: HeaderName| head.headers.get(name).and_then(|value| value.to_str().ok());
    if text(CONTENT_ENCODING).is_some_and(|encoding| !encoding.eq_ignore_ascii_case("identity")) {
        return Err(unusable("is compressed, although that was not asked for"));
    }
    let too_large = || unusable(&format!("has more than {limit} bytes"));
    if body.size_hint().lower() > limit as u64 {
        return Err(too_large());
    }
    let bytes = Limited::new(body, limit).collect().await;
    let bytes = bytes.map_err(|error| match error.is::<LengthLimitError>() {
        true => too_large(),
        false => in_own_words(&*error),
    })?;
    let bytes = bytes.to_bytes();
    let (mut body, mut room) = (Value::Null, None);
    // Nobody reads what another answer says.
    if !bytes.is_empty() && is_get && head.status.is_success() {
        let count = bytes.iter().filter(|byte| b",[{".contains(byte)).count();
        if count > MAX_VALUES {
            return Err(unusable(&format!("has more than {MAX_VALUES} values")));
        }
        room = VALUES.acquire_many(count as u32).await.ok();
        let parsed = serde_json::from_slice(&bytes).ok();
        let parsed = parsed.filter(|body| !is_deeper(body, MAX_DEPTH));
        body = parsed.ok_or_else(|| unusable("is not JSON, or is too deep"))?;
    }
    let etag = text(ETAG).filter(|etag| etag.len() <= MAX_ETAG);
    Ok(Answer {
        code: head.status.as_u16(),
        etag: etag.map(str::to_owned),
        wait,
        body,
        _room: room,
    })
}

fn unusable(why: &str) -> Stop {
    Stop::failed("UnusableAnswer", format!("the answer {why}"))
}

fn broken() -> Stop {
    let why = "the connection broke, or the answer is no HTTP";
    Stop::failed("ConnectionBroken", why)
}

/// Says in words of this program what an error of hyper's is.
fn in_own_words(error: &(dyn Error + 'static)) -> Stop {
    let mut causes = std::iter::successors(Some(error), |&error| error.source());
    if is_deposed(error) {
        Stop::deposed()
    } else if let Some(own) = causes.find_map(|cause| cause.downcast_ref::<Stop>()) {
        own.clone()
    } else if error.downcast_ref().is_some_and(legacy::Error::is_connect) {
        let why = "TLS fails: its certificate is not of an authority that is trusted for this name, or it does not speak TLS";
        Stop::failed("NotReached", why)
    } else {
        broken()
    }
}
