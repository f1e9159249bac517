//! A proxy between a client and the API server that injects faults on demand: refusals, silence, cut connections,
//! lost responses.
//!
//! It speaks plain HTTP on a port of 127.0.0.1 and forwards every request unchanged, with the client's own token. A
//! proxy serves one client (or a few that get the same faults); the tests bypass it.

use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use futures::Stream;
use http::{Method, Request, Response, header};
use http_body_util::{BodyExt, Full, StreamBody, combinators::UnsyncBoxBody};
use hyper::body::{Bytes, Frame, Incoming};
use hyper::server::conn::http1;
use hyper::service::service_fn;
use hyper_util::rt::TokioIo;
use kube::Client;
use kube::client::Body;
use kube::config::AuthInfo;
use serde_json::{Value, json};
use tempfile::TempDir;
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::watch;
use tokio::task::JoinHandle;

use crate::client;
use anyhow::Context as _;

/// How long a request may be waited for.
const LIMIT: Duration = Duration::from_secs(120);

/// How requests are handled.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub enum Mode {
    /// They are forwarded.
    #[default]
    Pass,
    /// They are forwarded after this delay.
    Delay(Duration),
    /// They are answered with this HTTP status and never reach the API server; running watches are ended, so that
    /// they have to be requested again. `retry_after`, in seconds, becomes the header of that name.
    Refuse {
        /// For example 429 or 503.
        status: u16,
        /// The `Retry-After` header.
        retry_after: Option<u32>,
    },
    /// They wait until the mode changes, and responses in progress pause: silence, on open connections.
    Stall,
    /// All connections are closed, including new ones.
    Cut,
    /// Writes reach the API server, and their connection is closed instead of a response. Reads are forwarded.
    DropAnswers,
}

impl Mode {
    /// Refuses requests with this status, without a time after which to try again.
    #[must_use]
    pub const fn refuse(status: u16) -> Self {
        Self::Refuse {
            status,
            retry_after: None,
        }
    }
}

/// The mode, and the requests that it applies to.
#[derive(Clone, Debug, Default)]
struct Setting {
    mode: Mode,
    /// Only requests whose path and query contain this; the others pass.
    only: Option<String>,
}

impl Setting {
    fn over(&self, uri: &str) -> Mode {
        match &self.only {
            Some(part) if !uri.contains(part.as_str()) => Mode::Pass,
            _ => self.mode.clone(),
        }
    }
}

/// A received request.
#[derive(Clone, Debug)]
pub struct Seen {
    /// For example `GET`.
    pub method: String,
    /// Path and query.
    pub uri: String,
    /// When it was received.
    pub at: Instant,
    /// The status with which the proxy refused it; `None` if it was forwarded, or was to be.
    pub refused: Option<u16>,
}

impl Seen {
    /// Reports whether it is a watch.
    #[must_use]
    pub fn is_watch(&self) -> bool {
        self.method == "GET" && self.uri.contains("watch=true")
    }

    /// Reports whether it lists all objects of a kind; only such requests have a limit.
    #[must_use]
    pub fn is_list(&self) -> bool {
        self.method == "GET" && !self.is_watch() && self.uri.contains("limit=")
    }

    /// Reports whether it is a write.
    #[must_use]
    pub fn is_write(&self) -> bool {
        self.method != "GET"
    }
}

/// The proxy; see the module. It ends with its connections when it is dropped.
pub struct Proxy {
    setting: watch::Sender<Setting>,
    seen: watch::Sender<Vec<Seen>>,
    folder: TempDir,
    task: JoinHandle<()>,
}

impl Drop for Proxy {
    fn drop(&mut self) {
        self.setting.send_replace(Setting {
            mode: Mode::Cut,
            only: None,
        });
        self.task.abort();
    }
}

impl Proxy {
    /// Starts a proxy for the cluster of a kubeconfig. It does not change the user.
    pub async fn start(upstream: &Path) -> anyhow::Result<Self> {
        let mut config = client::config_of(upstream).await?;
        // Each request contains its own credentials.
        config.auth_info = AuthInfo::default();
        let client = client::connect(&config)?;
        let listener = TcpListener::bind("127.0.0.1:0")
            .await
            .with_context(|| "listen on 127.0.0.1".to_owned())?;
        let address = listener
            .local_addr()
            .with_context(|| "find the port of the proxy".to_owned())?;
        let folder = tempfile::tempdir().with_context(|| "create a folder".to_owned())?;
        write_kubeconfig(
            upstream,
            &format!("http://{address}"),
            &folder.path().join("kubeconfig"),
        )?;
        let (setting, seen) = (watch::Sender::default(), watch::Sender::default());
        let way = Way {
            client,
            setting: setting.subscribe(),
            seen: seen.clone(),
        };
        let task = tokio::spawn(accept(listener, way));
        Ok(Self {
            setting,
            seen,
            folder,
            task,
        })
    }

    /// Returns the kubeconfig that uses the proxy.
    #[must_use]
    pub fn kubeconfig(&self) -> PathBuf {
        self.folder.path().join("kubeconfig")
    }

    /// Sets the mode for all requests.
    pub fn set_mode(&self, mode: Mode) {
        self.setting.send_replace(Setting { mode, only: None });
    }

    /// Sets the mode for the requests whose path and query contain `part`; the others pass.
    pub fn set_mode_of(&self, part: &str, mode: Mode) {
        self.setting.send_replace(Setting {
            mode,
            only: Some(part.to_owned()),
        });
    }

    /// Waits until a request like this has been received since the last [`Proxy::take_seen`].
    ///
    /// # Panics
    /// When none is received within two minutes.
    pub async fn until_seen(&self, is_like_this: impl Fn(&Seen) -> bool) {
        let mut seen = self.seen.subscribe();
        let is_there = seen.wait_for(|seen| seen.iter().any(&is_like_this));
        let in_time = tokio::time::timeout(LIMIT, is_there).await.is_ok();
        assert!(
            in_time,
            "no such request within {LIMIT:?}, but {:?}",
            self.seen.borrow()
        );
    }

    /// Returns the requests received since the last call, in order.
    #[must_use]
    pub fn take_seen(&self) -> Vec<Seen> {
        self.seen.send_replace(Vec::new())
    }
}

/// Writes the same kubeconfig with another address, and without its TLS settings.
fn write_kubeconfig(upstream: &Path, server: &str, to: &Path) -> anyhow::Result<()> {
    let text = std::fs::read_to_string(upstream).with_context(|| format!("read {}", upstream.display()))?;
    // Edit the YAML itself, since kube's type does not serialize tokens.
    let mut kubeconfig: Value = serde_saphyr::from_str(&text).context("a kubeconfig")?;
    let clusters = kubeconfig["clusters"].as_array_mut();
    for cluster in clusters.context("the kubeconfig names no clusters")? {
        cluster["cluster"] = json!({ "server": server });
    }
    // JSON is YAML.
    std::fs::write(to, kubeconfig.to_string()).with_context(|| format!("write {}", to.display()))
}

/// The state of a connection.
#[derive(Clone)]
struct Way {
    client: Client,
    setting: watch::Receiver<Setting>,
    seen: watch::Sender<Vec<Seen>>,
}

/// Why a connection is closed early.
#[derive(Debug, thiserror::Error)]
#[error("the proxy cuts this connection")]
struct Cut;

type BoxError = Box<dyn std::error::Error + Send + Sync>;
type Answer = Response<UnsyncBoxBody<Bytes, BoxError>>;

async fn accept(listener: TcpListener, way: Way) {
    loop {
        match listener.accept().await {
            Ok((stream, _)) => {
                tokio::spawn(serve(stream, way.clone()));
            }
            // At worst there are too many open files, which is temporary.
            Err(_) => tokio::time::sleep(Duration::from_millis(10)).await,
        }
    }
}

async fn serve(stream: TcpStream, way: Way) {
    let mut setting = way.setting.clone();
    let _ = stream.set_nodelay(true);
    let service = service_fn(|request| answer(request, way.clone()));
    let connection = http1::Builder::new().serve_connection(TokioIo::new(stream), service);
    let cut = setting.wait_for(|setting| setting.mode == Mode::Cut && setting.only.is_none());
    tokio::select! {
        _ = connection => {}
        _ = cut => {}
    }
}

async fn answer(request: Request<Incoming>, mut way: Way) -> Result<Answer, BoxError> {
    let uri = request.uri().to_string();
    let reads = request.method() == Method::GET;
    let mut seen = Seen {
        method: request.method().to_string(),
        uri: uri.clone(),
        at: Instant::now(),
        refused: None,
    };
    // Read the whole body first: a request that its client abandons is never forwarded.
    let (parts, body) = request.into_parts();
    let body = body.collect().await?.to_bytes();
    let mut drops = false;
    let mode = way.setting.borrow_and_update().over(&uri);
    if let Mode::Refuse { status, .. } = mode {
        seen.refused = Some(status);
    }
    way.seen.send_modify(|all| all.push(seen));
    match mode {
        Mode::Pass => {}
        Mode::Delay(delay) => tokio::time::sleep(delay).await,
        Mode::Refuse { status, retry_after } => return refusal(status, retry_after),
        Mode::Stall => {
            let until = uri.clone();
            way.setting
                .wait_for(|setting| setting.over(&until) != Mode::Stall)
                .await?;
        }
        Mode::Cut => return Err(Cut.into()),
        Mode::DropAnswers => drops = !reads,
    }
    let mut request = Request::from_parts(parts, Body::from(body.to_vec()));
    request.headers_mut().remove(header::HOST);
    let response = way.client.send(request).await?;
    if drops {
        return Err(Cut.into());
    }
    Ok(response.map(|body| StreamBody::new(flow(body, way.setting, uri)).boxed_unsync()))
}

/// Returns the response of an overloaded API server, or, for 404, of one that does not serve the kind yet.
fn refusal(status: u16, retry_after: Option<u32>) -> Result<Answer, BoxError> {
    let mut response = Response::builder()
        .status(status)
        .header(header::CONTENT_TYPE, "text/plain; charset=utf-8");
    if let Some(seconds) = retry_after {
        response = response.header(header::RETRY_AFTER, seconds);
    }
    let text = match status {
        404 => "404 page not found\n",
        _ => "Too many requests, please try again later.\n",
    };
    let text = Full::new(Bytes::from_static(text.as_bytes()));
    Ok(response.body(text.map_err(|never| match never {}).boxed_unsync())?)
}

/// Returns the response's body, as far as the mode lets it through.
fn flow(
    body: Body,
    setting: watch::Receiver<Setting>,
    uri: String,
) -> impl Stream<Item = Result<Frame<Bytes>, BoxError>> + Send {
    let watches = uri.contains("watch=true");
    futures::stream::unfold(
        (body, setting, uri),
        move |(mut body, mut setting, uri)| async move {
            loop {
                let mode = setting.borrow_and_update().over(&uri);
                match mode {
                    Mode::Cut => return Some((Err(Cut.into()), (body, setting, uri))),
                    Mode::Refuse { .. } if watches => return None,
                    Mode::Stall => {
                        setting.changed().await.ok()?;
                        continue;
                    }
                    _ => {}
                }
                tokio::select! {
                    frame = body.frame() => {
                        let frame = frame?.map_err(Into::into);
                        return Some((frame, (body, setting, uri)));
                    }
                    changed = setting.changed() => changed.ok()?,
                }
            }
        },
    )
}
