//! One bounded HTTP exchange with an endpoint: no redirect is followed, no compression is accepted, nothing that the server
//! says becomes part of an error.

use std::collections::{BTreeMap, HashMap};
use std::error::Error;
use std::io;
use std::net::IpAddr;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use bytes::Bytes;
use http_body_util::{BodyExt as _, Full};
use hyper::body::{Body as _, Incoming};
use hyper::header::{
    ACCEPT, ACCEPT_ENCODING, CONTENT_ENCODING, CONTENT_TYPE, ETAG, HeaderMap, HeaderName, HeaderValue,
    IF_NONE_MATCH, RETRY_AFTER, USER_AGENT,
};
use hyper::{Request, Response};
use hyper_util::client::legacy::{self, Client};
use hyper_util::rt::{TokioExecutor, TokioTimer};
use serde_json::Value;
use thiserror::Error as ThisError;
use tokio::sync::{OnceCell, Semaphore, SemaphorePermit};
use tokio::time::{Instant, timeout};

use super::connector::{Connector, connector};
use super::credentials::Credential;
use super::spec::MAX_DEPTH;
use operator_host_cluster::client::{Pace, is_deposed};
use operator_host_cluster::term::Term;
use operator_host_config::endpoints::{Endpoint, Method};
use operator_host_core::backoff::{MAX_RETRY_AFTER, at_least};
use operator_host_core::object::is_deeper;
use operator_host_core::sync::lock;
use operator_host_telemetry::http_client;
use operator_host_telemetry::http_client::Target;
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

/// Why there is no answer. Nothing in it is text of the server.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ThisError)]
pub(crate) enum Fault {
    #[error("its name cannot be resolved")]
    NoAddress,
    #[error(
        "its name leads to {0}, which is an address of this machine, the link, a cloud's metadata or the API server; if it is meant, \
         an administrator names it under `allowAddresses`"
    )]
    RefusedAddress(IpAddr),
    #[error("it cannot be reached: {0}")]
    NoConnection(io::ErrorKind),
    #[error(
        "TLS fails: its certificate is not of an authority that is trusted for this name, or it does not speak TLS"
    )]
    NoTls,
    #[error("no whole answer within {0:?}")]
    Slow(Duration),
    #[error("the connection broke, or the answer is no HTTP")]
    Broken,
    #[error("the answer has more than {0} bytes")]
    TooLarge(usize),
    #[error("the answer is compressed, although that was not asked for")]
    Compressed,
    #[error("the answer is not JSON, or is too deep")]
    NotJson,
    #[error("the answer has more than {MAX_VALUES} values")]
    TooManyValues,
    #[error("the body has more than {0} bytes")]
    BodyTooLarge(usize),
    #[error("it asks to wait")]
    Waits(Duration),
    #[error("this replica is no longer the leader, so it sends nothing")]
    Deposed,
}

impl Fault {
    /// Returns its class: `error.type` of the metric, and the reason of the condition.
    pub(crate) const fn class(self) -> &'static str {
        match self {
            Self::NoAddress => "NameNotFound",
            Self::RefusedAddress(_) => "AddressRefused",
            Self::NoConnection(_) | Self::NoTls => "NotReached",
            Self::Slow(_) => "TimedOut",
            Self::Broken => "ConnectionBroken",
            Self::TooLarge(_) | Self::Compressed | Self::NotJson | Self::TooManyValues => "UnusableAnswer",
            Self::BodyTooLarge(_) => "BodyTooLarge",
            Self::Waits(_) => "AsksToWait",
            Self::Deposed => "NotLeading",
        }
    }
}

/// What is sent.
#[derive(Clone)]
pub(crate) struct Call<'a> {
    pub(crate) method: Method,
    pub(crate) path: &'a str,
    pub(crate) headers: &'a BTreeMap<String, String>,
    pub(crate) body: Option<Vec<u8>>,
    /// The ETag of the answer that is known.
    pub(crate) known: Option<&'a str>,
    /// The `Idempotency-Key`.
    pub(crate) key: Option<String>,
}

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

type Shared = Arc<OnceCell<Result<Arc<Answer>, Fault>>>;

/// The way to one endpoint.
pub(crate) struct Transport {
    pub(crate) endpoint: Endpoint,
    client: Client<Connector, Full<Bytes>>,
    pace: Pace,
    term: Term,
    metrics: Arc<Metrics>,
    /// Until when the server asks not to be asked.
    waits: Mutex<Option<Instant>>,
    /// The GETs that are on their way.
    shared: Mutex<HashMap<String, Shared>>,
}

impl Transport {
    /// Creates the way to an endpoint; sends nothing.
    ///
    /// # Errors
    /// Why the authorities cannot be used.
    pub(crate) fn new(
        endpoint: &Endpoint,
        authority: Option<&[u8]>,
        reserved: &[IpAddr],
        term: &Term,
        metrics: &Arc<Metrics>,
    ) -> Result<Self, String> {
        let client = Client::builder(TokioExecutor::new())
            .pool_timer(TokioTimer::new())
            .pool_idle_timeout(IDLE)
            .http1_max_buf_size(MAX_HEAD)
            .build(connector(endpoint, authority, reserved, term)?);
        Ok(Self {
            pace: Pace::new(endpoint.qps, endpoint.qps),
            endpoint: endpoint.clone(),
            client,
            term: term.clone(),
            metrics: Arc::clone(metrics),
            waits: Mutex::default(),
            shared: Mutex::default(),
        })
    }

    /// Asks as others do who ask the same at this time: once.
    pub(crate) async fn ask_once(
        &self,
        call: Call<'_>,
        credential: Option<&Credential>,
    ) -> Result<Arc<Answer>, Fault> {
        let key = format!("{} {:?}", call.path, call.headers);
        let cell = Arc::clone(lock(&self.shared).entry(key.clone()).or_default());
        let answer = cell
            .get_or_init(async || self.send(call, credential).await.map(Arc::new))
            .await
            .clone();
        let mut shared = lock(&self.shared);
        if shared
            .get(&key)
            .is_some_and(|current| Arc::ptr_eq(current, &cell))
        {
            shared.remove(&key);
        }
        answer
    }

    /// Sends a request when the endpoint's rate allows it, and reads its whole answer.
    ///
    /// # Errors
    /// Why there is none. It may have been carried out nevertheless.
    pub(crate) async fn send(
        &self,
        call: Call<'_>,
        credential: Option<&Credential>,
    ) -> Result<Answer, Fault> {
        let limit = self.endpoint.max_body;
        if call.body.as_ref().is_some_and(|body| body.len() > limit) {
            return Err(Fault::BodyTooLarge(limit));
        }
        self.pace.wait().await;
        if let Some(until) = *lock(&self.waits)
            && until > Instant::now()
        {
            return Err(Fault::Waits(until - Instant::now()));
        }
        // Another replica may begin only when this request has ended.
        let time = self.endpoint.timeout;
        if self.term.allowance().is_none_or(|left| left < time) {
            return Err(Fault::Deposed);
        }
        let is_get = call.method == Method::Get;
        let request = self.request(call, credential).ok_or(Fault::Broken)?;
        let exchange = async {
            let (method, url) = (request.method().clone(), request.uri().clone());
            let target = Target {
                method: &method,
                url: &url,
                is_known: true,
            };
            let sent = async {
                self.client
                    .request(request)
                    .await
                    .map_err(|error| fault_of(&error))
            };
            let response = http_client::observe(&self.metrics, target, sent, |fault| fault.class()).await?;
            read(response, is_get, limit).await
        };
        let answer = timeout(time, exchange).await.unwrap_or(Err(Fault::Slow(time)));
        if let Ok(Answer { wait: Some(wait), .. }) = &answer {
            *lock(&self.waits) = Some(Instant::now() + *wait);
        }
        answer
    }

    fn request(&self, call: Call<'_>, credential: Option<&Credential>) -> Option<Request<Full<Bytes>>> {
        let url = &self.endpoint.url;
        let json = HeaderValue::from_static("application/json");
        let mut headers = HeaderMap::new();
        headers.insert(ACCEPT, json.clone());
        headers.insert(ACCEPT_ENCODING, HeaderValue::from_static("identity"));
        let agent = concat!("operator-host-egress/", env!("CARGO_PKG_VERSION"));
        headers.insert(USER_AGENT, HeaderValue::from_static(agent));
        if call.body.is_some() {
            headers.insert(CONTENT_TYPE, json);
        }
        for (name, value) in call.headers {
            let name = HeaderName::try_from(name.as_str()).ok()?;
            headers.insert(name, HeaderValue::try_from(value.as_str()).ok()?);
        }
        if let Some(known) = call.known {
            headers.insert(IF_NONE_MATCH, HeaderValue::try_from(known).ok()?);
        }
        if let Some(key) = call.key {
            headers.insert("idempotency-key", HeaderValue::try_from(key).ok()?);
        }
        if let Some(credential) = credential {
            headers.insert(credential.header.clone(), credential.value.clone());
        }
        // `url` ends without a slash, and the path begins with one and has passed `spec::path_problem`.
        let uri = format!("{url}{}", call.path);
        let mut request = Request::builder()
            .method(call.method.as_str())
            .uri(uri)
            .body(Full::from(call.body.unwrap_or_default()))
            .ok()?;
        *request.headers_mut() = headers;
        Some(request)
    }
}

async fn read(response: Response<Incoming>, is_get: bool, limit: usize) -> Result<Answer, Fault> {
    let (head, mut body) = response.into_parts();
    let text = |name: HeaderName| head.headers.get(name).and_then(|value| value.to_str().ok());
    if text(CONTENT_ENCODING).is_some_and(|encoding| !encoding.eq_ignore_ascii_case("identity")) {
        return Err(Fault::Compressed);
    }
    if body.size_hint().lower() > limit as u64 {
        return Err(Fault::TooLarge(limit));
    }
    let mut bytes = Vec::new();
    while let Some(frame) = body.frame().await {
        let Ok(data) = frame.map_err(|error| fault_of(&error))?.into_data() else {
            continue;
        };
        if bytes.len() + data.len() > limit {
            return Err(Fault::TooLarge(limit));
        }
        // Nobody reads what another answer says.
        if is_get && head.status.is_success() {
            bytes.extend_from_slice(&data);
        } else {
            bytes.resize(bytes.len() + data.len(), 0);
        }
    }
    let code = head.status.as_u16();
    let asked = text(RETRY_AFTER)
        .and_then(|text| text.parse().ok())
        .map(Duration::from_secs);
    let wait = match code {
        429 => Some(asked.unwrap_or(WAIT)),
        503 => asked,
        _ => None,
    };
    let (mut body, mut room) = (Value::Null, None);
    if !bytes.is_empty() && is_get && head.status.is_success() {
        let count = bytes.iter().filter(|byte| b",[{".contains(byte)).count();
        if count > MAX_VALUES {
            return Err(Fault::TooManyValues);
        }
        room = VALUES
            .acquire_many(u32::try_from(count).unwrap_or(u32::MAX))
            .await
            .ok();
        body = serde_json::from_slice(&bytes).map_err(|_| Fault::NotJson)?;
        if is_deeper(&body, MAX_DEPTH) {
            return Err(Fault::NotJson);
        }
    }
    Ok(Answer {
        code,
        etag: text(ETAG)
            .filter(|etag| etag.len() <= MAX_ETAG)
            .map(str::to_owned),
        wait: wait.map(|wait| at_least(wait.min(MAX_RETRY_AFTER))),
        body,
        _room: room,
    })
}

/// Says in words of this program what an error of hyper's is.
fn fault_of(error: &(dyn Error + 'static)) -> Fault {
    if is_deposed(error) {
        return Fault::Deposed;
    }
    let mut next = Some(error);
    while let Some(error) = next {
        if let Some(fault) = error.downcast_ref::<Fault>() {
            return *fault;
        }
        next = error.source();
    }
    match error.downcast_ref::<legacy::Error>() {
        Some(error) if error.is_connect() => Fault::NoTls,
        _ => Fault::Broken,
    }
}
