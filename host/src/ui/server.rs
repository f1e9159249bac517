//! The HTTP server of the page.

use std::convert::Infallible;
use std::net::{IpAddr, SocketAddr};
use std::path::PathBuf;
use std::pin::Pin;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use futures::Stream;
use http_body_util::{Either, Full, StreamBody};
use hyper::body::{Frame, Incoming};
use hyper::header::{
    AUTHORIZATION, CACHE_CONTROL, CONNECTION as CONNECTION_HEADER, CONTENT_SECURITY_POLICY, CONTENT_TYPE,
    HOST, HeaderName, HeaderValue, LOCATION, REFERRER_POLICY, RETRY_AFTER, WWW_AUTHENTICATE,
    X_CONTENT_TYPE_OPTIONS,
};
use hyper::service::service_fn;
use hyper::{Method, Request, Response, StatusCode};
use hyper_util::rt::{TokioIo, TokioTimer};
use kube::Client;
use thiserror::Error;
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::Semaphore;
use tokio_rustls::TlsAcceptor;
use tracing::{debug, info, warn};

use super::Sources;
use super::access::{Access, Refusal};
use super::assets::asset;
use super::certificate::Certificate;
use super::looks::Looks;
use super::stream::events;
use super::view::View;
use operator_host_core::connections::{Connections, Seat};
use operator_host_instruments::journal::Journal;

/// How long a client may take to send the head of a request.
const HEAD: Duration = Duration::from_secs(10);
/// Maximum size of that head.
const MAX_HEAD: usize = 16 << 10;
/// How long a connection may last: longer than a stream, but a client that reads nothing does not stay for ever.
const CONNECTION: Duration = Duration::from_secs(600);
/// Maximum number of connections. A browser opens at most six. When there are more, those that were not let in yet make
/// room for the next.
const CONNECTIONS: usize = 64;
/// Maximum number of streams.
const STREAMS: usize = 16;

/// Nothing but the files of the page, and connections to this server.
const POLICY: &str = "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self'; connect-src 'self'; \
                      base-uri 'none'; form-action 'none'; frame-ancestors 'none'; require-trusted-types-for 'script'; \
                      trusted-types 'none'";

/// Why the page cannot be served.
#[derive(Debug, Error)]
pub enum ServerError {
    /// Others could reach the address, and there is no certificate.
    #[error(
        "cannot serve the page on {0} without TLS, because others can reach that address: use a loopback address with \
         --ui-addr, such as 127.0.0.1:8090, and forward its port, or give --ui-certificate and --ui-key"
    )]
    Open(SocketAddr),
    /// A certificate would not be used.
    #[error(
        "cannot serve the page on {0} with a certificate, because a loopback address is served without TLS and without a \
         login: leave out --ui-certificate and --ui-key, or choose another address with --ui-addr"
    )]
    Unused(SocketAddr),
    /// The certificate cannot be used.
    #[error("cannot serve the page: {0}; check --ui-certificate and --ui-key")]
    Certificate(String),
    /// The address cannot be used.
    #[error("cannot listen on {address} for the page: {error}; choose another with --ui-addr")]
    Listen {
        /// The configured address.
        address: SocketAddr,
        /// The error of the operating system.
        error: std::io::Error,
    },
}

type Events = Pin<Box<dyn Stream<Item = Result<Frame<Bytes>, Infallible>> + Send>>;
type Answer = Response<Either<Full<Bytes>, StreamBody<Events>>>;

/// Where the page is served.
#[derive(Clone, Debug)]
pub struct UiConfig {
    /// The address to listen on.
    pub address: SocketAddr,
    /// The files of the certificate chain and of its key, PEM. Required, unless it is a loopback address, which has none.
    pub certificate: Option<(PathBuf, PathBuf)>,
}

impl UiConfig {
    /// Reports whether the page is for everyone in this pod, which are also other containers.
    #[must_use]
    pub fn is_for_the_pod(&self) -> bool {
        self.address.ip().is_loopback() && std::env::var_os("KUBERNETES_SERVICE_HOST").is_some()
    }

    /// Returns the files of the certificate; `None` on a loopback address.
    fn files(self) -> Result<Option<(PathBuf, PathBuf)>, ServerError> {
        match (self.address.ip().is_loopback(), self.certificate) {
            (true, None) => Ok(None),
            (true, Some(_)) => Err(ServerError::Unused(self.address)),
            (false, None) => Err(ServerError::Open(self.address)),
            (false, Some(files)) => Ok(Some(files)),
        }
    }
}

/// Guards an address that others can reach.
struct Guard {
    access: Access,
    certificate: Certificate,
}

/// The state that all connections share.
struct Server {
    /// `None` on a loopback address.
    guard: Option<Guard>,
    looks: Arc<Looks>,
    streams: Arc<Semaphore>,
}

/// Listens, and serves the page until the process ends. The log contains the port, which matters when it was 0.
///
/// # Errors
/// When the address or the certificate cannot be used.
pub async fn start(config: UiConfig, client: Client, sources: Sources) -> Result<(), ServerError> {
    let address = config.address;
    // Whoever reaches a loopback address is on this machine.
    let guard = match config.files()? {
        None => None,
        Some(files) => Some(Guard {
            access: Access::new(client),
            certificate: Certificate::read(files).map_err(ServerError::Certificate)?,
        }),
    };
    let failed = |error| ServerError::Listen { address, error };
    let listener = TcpListener::bind(address).await.map_err(failed)?;
    let address = listener.local_addr().map_err(failed)?;
    let scheme = if guard.is_some() { "https" } else { "http" };
    info!(%address, "serving the page at {scheme}://{address}/ui/");
    let controllers = Arc::clone(&sources.controllers);
    tokio::spawn(Journal::keep_stepping(
        Arc::downgrade(&sources.journal),
        move |controller| controllers.backlog(controller),
    ));
    let server = Arc::new(Server {
        guard,
        looks: Arc::new(Looks::new(sources)),
        streams: Arc::new(Semaphore::new(STREAMS)),
    });
    let connections = Arc::new(Connections::new(CONNECTIONS, CONNECTIONS));
    tokio::spawn(async move {
        loop {
            let (stream, peer) = match listener.accept().await {
                Ok(accepted) => accepted,
                Err(error) => {
                    // For example, too many open files; other connections end meanwhile.
                    warn!(%error, "cannot accept a connection for the page");
                    tokio::time::sleep(Duration::from_millis(100)).await;
                    continue;
                }
            };
            let Some(seat) = connections.enter(peer.ip()) else {
                debug!(%peer, "too many connections for the page: closing this one");
                continue;
            };
            let (server, connections) = (Arc::clone(&server), Arc::clone(&connections));
            tokio::spawn(async move {
                tokio::select! {
                    () = server.accept(stream, &seat) => {}
                    () = tokio::time::sleep(CONNECTION) => debug!(%peer, "a connection for the page lasted too long"),
                    () = seat.taken.cancelled() => {
                        debug!(%peer, "too many connections for the page: closing this one, which was not let in yet");
                    }
                }
                connections.leave(&seat);
            });
        }
    });
    Ok(())
}

impl Server {
    async fn accept(&self, stream: TcpStream, seat: &Seat) {
        let Some(guard) = &self.guard else {
            return self.serve(stream, seat).await;
        };
        let tls = TlsAcceptor::from(guard.certificate.config().await);
        match tokio::time::timeout(HEAD, tls.accept(stream)).await {
            Ok(Ok(stream)) => self.serve(stream, seat).await,
            Ok(Err(error)) => debug!(%error, "the handshake of a connection for the page failed"),
            Err(_elapsed) => debug!("a connection for the page did not finish its handshake"),
        }
    }

    async fn serve(&self, stream: impl AsyncRead + AsyncWrite + Unpin, seat: &Seat) {
        let service = service_fn(|request| async move {
            let answer = match self.admit(&request).await {
                Ok(()) => {
                    seat.keep();
                    self.answer(&request).await
                }
                Err(mut refused) => {
                    // A refused caller does not keep a connection.
                    let headers = refused.headers_mut();
                    headers.insert(CONNECTION_HEADER, HeaderValue::from_static("close"));
                    *refused
                }
            };
            Ok::<_, Infallible>(answer)
        });
        let connection = hyper::server::conn::http1::Builder::new()
            .timer(TokioTimer::new())
            .header_read_timeout(HEAD)
            .max_buf_size(MAX_HEAD)
            .serve_connection(TokioIo::new(stream), service);
        if let Err(error) = connection.await {
            debug!(%error, "a connection for the page ended early");
        }
    }

    /// Decides whether a request is answered.
    async fn admit(&self, request: &Request<Incoming>) -> Result<(), Box<Answer>> {
        let refused = |status, words: &str| Err(Box::new(text(status, words)));
        if !matches!(*request.method(), Method::GET | Method::HEAD) {
            return refused(StatusCode::METHOD_NOT_ALLOWED, "only GET and HEAD");
        }
        if has_two_hosts(request) {
            return refused(
                StatusCode::BAD_REQUEST,
                "the request has more than one `Host` header",
            );
        }
        if let Some(guard) = &self.guard {
            let decision = guard.access.check(request.headers().get(AUTHORIZATION)).await;
            return decision.map_err(|refusal| Box::new(refuse(&refusal)));
        }
        if !is_this_machine(host_of(request)) {
            return refused(
                StatusCode::MISDIRECTED_REQUEST,
                "this page is served to localhost only: open it at http://localhost, with the same port",
            );
        }
        Ok(())
    }

    async fn answer(&self, request: &Request<Incoming>) -> Answer {
        let (path, query) = (request.uri().path(), request.uri().query().unwrap_or_default());
        if let Some(asset) = asset(path) {
            return respond(StatusCode::OK, asset.type_, asset.body.into());
        }
        match path {
            "/" | "/ui" => redirect(),
            "/ui/view" | "/ui/stream" if is_of_another_site(request) => {
                text(StatusCode::FORBIDDEN, "not for the pages of other sites")
            }
            "/ui/view" => self.view(query).await,
            "/ui/stream" => self.stream(query),
            _ => text(StatusCode::NOT_FOUND, "there is nothing here: try /ui/"),
        }
    }

    /// Answers with a view as it is now, or a moment ago.
    async fn view(&self, query: &str) -> Answer {
        let view = match View::parse(query) {
            Ok(view) => view,
            Err(error) => return text(StatusCode::BAD_REQUEST, &error),
        };
        match self.looks.look(&view).await {
            Ok(look) => {
                let status = if look.found {
                    StatusCode::OK
                } else {
                    StatusCode::NOT_FOUND
                };
                respond(
                    status,
                    "application/json",
                    Bytes::copy_from_slice(look.json.as_bytes()),
                )
            }
            Err(error) => text(StatusCode::INTERNAL_SERVER_ERROR, &error.to_string()),
        }
    }

    /// Answers with a view, again whenever it changes.
    fn stream(&self, query: &str) -> Answer {
        let view = match View::parse(query) {
            Ok(view) => view,
            Err(error) => return text(StatusCode::BAD_REQUEST, &error),
        };
        let Ok(turn) = Arc::clone(&self.streams).try_acquire_owned() else {
            let mut busy = text(
                StatusCode::SERVICE_UNAVAILABLE,
                &format!("{STREAMS} browsers look at this host already: close one of them"),
            );
            busy.headers_mut()
                .insert(RETRY_AFTER, HeaderValue::from_static("5"));
            return busy;
        };
        let events: Events = Box::pin(events(Arc::clone(&self.looks), view, turn));
        let mut response = Response::new(Either::Right(StreamBody::new(events)));
        protect(response.headers_mut(), "text/event-stream");
        response
    }
}

/// Returns the host that the client asked for, without its port.
fn host_of<T>(request: &Request<T>) -> Option<&str> {
    let host = match request.uri().host() {
        Some(host) => host,
        None => request.headers().get(HOST)?.to_str().ok()?,
    };
    Some(match host.rsplit_once(':') {
        Some((name, port)) if port.bytes().all(|byte| byte.is_ascii_digit()) => name,
        _ => host,
    })
}

/// Reports whether a client names two hosts: a proxy in front may have looked at the other one.
fn has_two_hosts<T>(request: &Request<T>) -> bool {
    request.headers().get_all(HOST).iter().count() > 1
}

/// Reports whether a name can only mean this machine. A browser sends the name that it looked up, and any site can have a
/// name that leads here.
fn is_this_machine(host: Option<&str>) -> bool {
    let Some(host) = host else { return false };
    let address = host
        .trim_start_matches('[')
        .trim_end_matches(']')
        .parse::<IpAddr>();
    host.eq_ignore_ascii_case("localhost") || address.is_ok_and(|address| address.is_loopback())
}

/// Reports whether a page of another site sent the request. Browsers say so.
fn is_of_another_site<T>(request: &Request<T>) -> bool {
    let site = request.headers().get("sec-fetch-site");
    site.is_some_and(|site| site != "same-origin" && site != "none")
}

fn refuse(refusal: &Refusal) -> Answer {
    let status = match refusal {
        Refusal::Unknown(_) => StatusCode::UNAUTHORIZED,
        Refusal::Forbidden(_) => StatusCode::FORBIDDEN,
        Refusal::Undecided => StatusCode::SERVICE_UNAVAILABLE,
    };
    let mut response = text(status, &refusal.to_string());
    if status == StatusCode::UNAUTHORIZED {
        // A browser then asks for a name and a password.
        let ask = HeaderValue::from_static("Basic realm=\"operator-host\", charset=\"UTF-8\"");
        response.headers_mut().insert(WWW_AUTHENTICATE, ask);
    }
    response
}

fn redirect() -> Answer {
    let mut response = text(StatusCode::PERMANENT_REDIRECT, "/ui/");
    response
        .headers_mut()
        .insert(LOCATION, HeaderValue::from_static("/ui/"));
    response
}

fn text(status: StatusCode, body: &str) -> Answer {
    respond(status, "text/plain; charset=utf-8", format!("{body}\n").into())
}

fn respond(status: StatusCode, type_: &'static str, body: Bytes) -> Answer {
    let mut response = Response::new(Either::Left(Full::from(body)));
    *response.status_mut() = status;
    protect(response.headers_mut(), type_);
    response
}

/// Adds the headers that every response has.
fn protect(headers: &mut hyper::HeaderMap, type_: &'static str) {
    let fixed = [
        (CONTENT_TYPE, type_),
        (CONTENT_SECURITY_POLICY, POLICY),
        (X_CONTENT_TYPE_OPTIONS, "nosniff"),
        (REFERRER_POLICY, "no-referrer"),
        (CACHE_CONTROL, "no-store"),
        (
            HeaderName::from_static("cross-origin-opener-policy"),
            "same-origin",
        ),
        (
            HeaderName::from_static("cross-origin-resource-policy"),
            "same-origin",
        ),
    ];
    for (name, value) in fixed {
        headers.insert(name, HeaderValue::from_static(value));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn request(host: Option<&str>) -> Request<()> {
        let request = Request::get("/ui/");
        let request = match host {
            Some(host) => request.header(HOST, host),
            None => request,
        };
        request.body(()).unwrap()
    }

    #[test]
    fn a_certificate_is_for_an_address_that_others_reach_and_for_no_other() {
        let files = |address: &str, is_given: bool| {
            let config = UiConfig {
                address: address.parse().unwrap(),
                certificate: is_given.then(|| ("tls.crt".into(), "tls.key".into())),
            };
            config.files().map(|files| files.is_some())
        };
        assert!(!files("127.0.0.1:1", false).unwrap());
        assert!(files("0.0.0.0:1", true).unwrap());
        assert!(matches!(files("0.0.0.0:1", false), Err(ServerError::Open(_))));
        let error = files("[::1]:1", true).unwrap_err().to_string();
        assert!(error.contains("leave out --ui-certificate"), "{error}");
    }

    #[test]
    fn only_names_of_this_machine_are_answered() {
        for host in [
            "localhost",
            "LocalHost:8090",
            "127.0.0.1:1",
            "127.9.9.9",
            "[::1]:8090",
            "[::1]",
        ] {
            assert!(is_this_machine(host_of(&request(Some(host)))), "{host}");
        }
        for host in [
            "evil.example.com:8090",
            "localhost.example.com",
            "127.0.0.1.example.com",
            "10.0.0.1",
            "0.0.0.0",
            "",
            ":8090",
            "[::2]",
        ] {
            assert!(!is_this_machine(host_of(&request(Some(host)))), "{host}");
        }
        assert!(!is_this_machine(host_of(&request(None))));
        // The target of a request to a proxy counts, not the header.
        let proxied = Request::get("http://evil.example.com/ui/").header(HOST, "localhost");
        assert!(!is_this_machine(host_of(&proxied.body(()).unwrap())));
        let two = Request::get("/ui/")
            .header(HOST, "localhost")
            .header(HOST, "evil");
        assert!(has_two_hosts(&two.body(()).unwrap()));
        assert!(!has_two_hosts(&request(Some("localhost"))));
    }

    #[test]
    fn pages_of_other_sites_are_refused() {
        let from = |site: &str| {
            let request = Request::get("/ui/stream").header("sec-fetch-site", site);
            is_of_another_site(&request.body(()).unwrap())
        };
        assert!(from("cross-site") && from("same-site"));
        assert!(!from("same-origin") && !from("none"));
        assert!(!is_of_another_site(&request(None)), "no browser");
    }
}
