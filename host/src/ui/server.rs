//! The HTTP server of the page.

use std::net::{IpAddr, SocketAddr};
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use axum::extract::{RawQuery, Request, State};
use axum::middleware::{Next, from_fn, from_fn_with_state, map_response};
use axum::response::{IntoResponse, Redirect, Response};
use axum::routing::get;
use axum::{Extension, Router};
use hyper::header::{
    AUTHORIZATION, CACHE_CONTROL, CONNECTION, CONTENT_SECURITY_POLICY, CONTENT_TYPE, HOST, REFERRER_POLICY,
    RETRY_AFTER, WWW_AUTHENTICATE, X_CONTENT_TYPE_OPTIONS,
};
use hyper::{Method, StatusCode};
use kube::Client;
use thiserror::Error;
use tokio::net::TcpListener;
use tokio::sync::{Semaphore, watch};
use tokio_util::sync::CancellationToken;
use tracing::info;

use super::Sources;
use super::access::{Access, Refusal};
use super::assets::ASSETS;
use super::looks::Looks;
use super::stream::stream;
use super::view::View;
use operator_host_core::server::{Caller, Server};
use operator_host_instruments::journal::Journal;
use operator_host_webhook::certificates::Certificates;

/// Maximum size of the head of a request.
const HEAD: usize = 16 << 10;
/// How long a connection may last: longer than a stream, but a client that reads nothing does not stay for ever.
const LIFE: Duration = Duration::from_secs(600);
/// Maximum number of connections. A browser opens at most six. Those that wait for their admission keep no place.
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

/// The state that all requests share.
struct Page {
    /// Decides who sees it; `None` on a loopback address.
    access: Option<Access>,
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
    let tls = match config.files()? {
        None => None,
        Some((chain, key)) => {
            let certificates = Certificates {
                what: "the page",
                client: "a browser",
                chain,
                key,
                client_ca: None,
            };
            let tls = certificates.load().map_err(ServerError::Certificate)?;
            let (current, following) = watch::channel(Some(tls));
            tokio::spawn(certificates.follow(current, |_| {}));
            Some(following)
        }
    };
    let failed = |error| ServerError::Listen { address, error };
    let listener = TcpListener::bind(address).await.map_err(failed)?;
    let address = listener.local_addr().map_err(failed)?;
    let scheme = if tls.is_some() { "https" } else { "http" };
    info!(%address, "serving the page at {scheme}://{address}/ui/");
    let controllers = Arc::clone(&sources.controllers);
    tokio::spawn(Journal::keep_stepping(
        Arc::downgrade(&sources.journal),
        move |controller| controllers.backlog(controller),
    ));
    let page = Page {
        access: tls.is_some().then(|| Access::new(client)),
        looks: Arc::new(Looks::new(sources)),
        streams: Arc::new(Semaphore::new(STREAMS)),
    };
    let server = Server {
        what: "the page",
        router: router(Arc::new(page)),
        connections: CONNECTIONS,
        head: HEAD,
        life: LIFE,
        tls,
        stop: CancellationToken::new(),
    };
    tokio::spawn(server.serve(listener));
    Ok(())
}

fn router(page: Arc<Page>) -> Router {
    let live = Router::new()
        .route("/ui/view", get(view))
        .route("/ui/stream", get(stream_view))
        .layer(from_fn(of_this_site));
    let redirect = || get(async || Redirect::permanent("/ui/"));
    let mut files = Router::new().route("/", redirect()).route("/ui", redirect());
    for (path, type_, body) in ASSETS {
        files = files.route(path, get(move || async move { ([(CONTENT_TYPE, type_)], body) }));
    }
    files
        .merge(live)
        .fallback((StatusCode::NOT_FOUND, "there is nothing here: try /ui/\n"))
        .layer(from_fn_with_state(Arc::clone(&page), admit))
        .layer(map_response(protected))
        .with_state(page)
}

/// Answers a request, or refuses it.
async fn admit(State(page): State<Arc<Page>>, request: Request, next: Next) -> Response {
    let (head, body) = request.into_parts();
    let head = hyper::Request::from_parts(head, ());
    if let Some(refused) = page.refuse(&head).await {
        // A refused caller does not keep a connection.
        return ([(CONNECTION, "close")], refused).into_response();
    }
    next.run(head.map(|()| body)).await
}

impl Page {
    /// Returns the answer to a request that is not let in.
    async fn refuse(&self, request: &hyper::Request<()>) -> Option<Response> {
        let refused = |status, words| Some((status, format!("{words}\n")).into_response());
        if !matches!(*request.method(), Method::GET | Method::HEAD) {
            return refused(StatusCode::METHOD_NOT_ALLOWED, "only GET and HEAD");
        }
        if has_two_hosts(request) {
            return refused(
                StatusCode::BAD_REQUEST,
                "the request has more than one `Host` header",
            );
        }
        if let Some(access) = &self.access {
            let decision = access.check(request.headers().get(AUTHORIZATION)).await;
            return decision.err().map(|refusal| refuse(&refusal));
        }
        if !is_this_machine(host_of(request)) {
            return refused(
                StatusCode::MISDIRECTED_REQUEST,
                "this page is served to localhost only: open it at http://localhost, with the same port",
            );
        }
        None
    }
}

/// Refuses the pages of other sites.
async fn of_this_site(request: Request, next: Next) -> Response {
    if is_of_another_site(&request) {
        return (StatusCode::FORBIDDEN, "not for the pages of other sites\n").into_response();
    }
    next.run(request).await
}

/// Answers with a view as it is now, or a moment ago.
async fn view(
    State(page): State<Arc<Page>>,
    Extension(caller): Extension<Caller>,
    RawQuery(query): RawQuery,
) -> Response {
    let _in_use = caller.keep_place();
    let view = match View::parse(&query.unwrap_or_default()) {
        Ok(view) => view,
        Err(error) => return (StatusCode::BAD_REQUEST, error + "\n").into_response(),
    };
    match page.looks.look(&view).await {
        Ok(look) => {
            let status = if look.found {
                StatusCode::OK
            } else {
                StatusCode::NOT_FOUND
            };
            (
                status,
                [(CONTENT_TYPE, "application/json")],
                look.json.to_string(),
            )
                .into_response()
        }
        Err(error) => (StatusCode::INTERNAL_SERVER_ERROR, format!("{error}\n")).into_response(),
    }
}

/// Answers with a view, again whenever it changes.
async fn stream_view(
    State(page): State<Arc<Page>>,
    Extension(caller): Extension<Caller>,
    RawQuery(query): RawQuery,
) -> Response {
    let view = match View::parse(&query.unwrap_or_default()) {
        Ok(view) => view,
        Err(error) => return (StatusCode::BAD_REQUEST, error + "\n").into_response(),
    };
    let Ok(turn) = Arc::clone(&page.streams).try_acquire_owned() else {
        let words = format!("{STREAMS} browsers look at this host already: close one of them\n");
        return (StatusCode::SERVICE_UNAVAILABLE, [(RETRY_AFTER, "5")], words).into_response();
    };
    stream(Arc::clone(&page.looks), view, (turn, caller.keep_place())).into_response()
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

fn refuse(refusal: &Refusal) -> Response {
    let words = format!("{refusal}\n");
    match refusal {
        // A browser then asks for a name and a password.
        Refusal::Unknown(_) => {
            let ask = "Basic realm=\"operator-host\", charset=\"UTF-8\"";
            (StatusCode::UNAUTHORIZED, [(WWW_AUTHENTICATE, ask)], words).into_response()
        }
        Refusal::Forbidden(_) => (StatusCode::FORBIDDEN, words).into_response(),
        Refusal::Undecided => (StatusCode::SERVICE_UNAVAILABLE, words).into_response(),
    }
}

/// Adds the headers that every response has.
async fn protected(response: Response) -> Response {
    let cross_origin = ["cross-origin-opener-policy", "cross-origin-resource-policy"];
    let headers = [
        (CONTENT_SECURITY_POLICY, POLICY),
        (X_CONTENT_TYPE_OPTIONS, "nosniff"),
        (REFERRER_POLICY, "no-referrer"),
        (CACHE_CONTROL, "no-store"),
    ];
    (headers, cross_origin.map(|name| (name, "same-origin")), response).into_response()
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
