//! The HTTP server of the page.

use std::net::{IpAddr, SocketAddr};
use std::sync::Arc;
use std::time::Duration;

use anyhow::{Context as _, anyhow};
use axum::Router;
use axum::extract::{RawQuery, Request, State};
use axum::middleware::{Next, from_fn, map_response};
use axum::response::{IntoResponse, Redirect, Response};
use axum::routing::get;
use hyper::header::{
    CACHE_CONTROL, CONNECTION, CONTENT_SECURITY_POLICY, CONTENT_TYPE, HOST, REFERRER_POLICY, RETRY_AFTER,
    X_CONTENT_TYPE_OPTIONS,
};
use hyper::{Method, StatusCode};
use tokio::net::TcpListener;
use tokio::sync::Semaphore;
use tokio_util::sync::CancellationToken;
use tracing::info;

use super::Sources;
use super::assets::ASSETS;
use super::stream::{Looks, stream};
use super::view::View;
use operator_host_instruments::journal::Journal;
use operator_host_instruments::server::Server;

/// Maximum size of the head of a request.
const HEAD: usize = 16 << 10;
/// How long a connection may last: longer than a stream, but a client that reads nothing does not stay for ever.
const LIFE: Duration = Duration::from_secs(600);
/// Maximum number of connections. A browser opens at most six.
const CONNECTIONS: usize = 64;
/// Maximum number of streams.
const STREAMS: usize = 16;

/// Nothing but the files of the page, and connections to this server.
const POLICY: &str = "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self'; connect-src 'self'; \
                      base-uri 'none'; form-action 'none'; frame-ancestors 'none'; require-trusted-types-for 'script'; \
                      trusted-types 'none'";

/// The state that all requests share.
struct Page {
    looks: Arc<Looks>,
    streams: Arc<Semaphore>,
}

/// Listens, and serves the page until the process ends. The log contains the port, which matters when it was 0.
///
/// # Errors
/// When the address is not a loopback address, or cannot be used.
pub async fn start(address: SocketAddr, sources: Sources) -> anyhow::Result<()> {
    if !address.ip().is_loopback() {
        return Err(anyhow!(
            "cannot serve the page on {address}, because others can reach that address: use a loopback address with --ui-addr, \
             such as 127.0.0.1:8090, and forward its port"
        ));
    }
    let failed = || format!("cannot listen on {address} for the page; choose another with --ui-addr");
    let listener = TcpListener::bind(address).await.with_context(failed)?;
    let address = listener.local_addr().with_context(failed)?;
    info!(%address, "serving the page at http://{address}/ui/");
    let (journal, controllers) = (Arc::downgrade(&sources.journal), Arc::clone(&sources.controllers));
    let backlog = move |name: &str| controllers.named(name).map_or(0, |it| it.queue.backlog().0);
    tokio::spawn(Journal::keep_stepping(journal, backlog));
    let page = Page {
        looks: Arc::new(Looks::new(sources)),
        streams: Arc::new(Semaphore::new(STREAMS)),
    };
    let server = Server {
        what: "the page",
        router: router(Arc::new(page)),
        connections: CONNECTIONS,
        head: HEAD,
        life: LIFE,
        tls: None,
        stop: CancellationToken::new(),
    };
    tokio::spawn(server.serve(listener));
    Ok(())
}

fn router(page: Arc<Page>) -> Router {
    let redirect = || get(async || Redirect::permanent("/ui/"));
    let mut files = Router::new().route("/", redirect()).route("/ui", redirect());
    for (path, type_, body) in ASSETS {
        files = files.route(path, get(move || async move { ([(CONTENT_TYPE, type_)], body) }));
    }
    files
        .route("/ui/view", get(view))
        .route("/ui/stream", get(stream_view))
        .fallback((StatusCode::NOT_FOUND, "there is nothing here: try /ui/\n"))
        .layer(from_fn(admit))
        .layer(map_response(protected))
        .with_state(page)
}

/// Answers a request, or refuses it.
async fn admit(request: Request, next: Next) -> Response {
    if let Some((status, words)) = refusal(&request) {
        // A refused caller does not keep a connection.
        return (status, [(CONNECTION, "close")], format!("{words}\n")).into_response();
    }
    next.run(request).await
}

/// Returns the answer to a request that is not let in.
fn refusal<T>(request: &hyper::Request<T>) -> Option<(StatusCode, &'static str)> {
    if !matches!(*request.method(), Method::GET | Method::HEAD) {
        return Some((StatusCode::METHOD_NOT_ALLOWED, "only GET and HEAD"));
    }
    let words = "this page is served to localhost only: open it at http://localhost, with the same port";
    (!is_this_machine(host_of(request))).then_some((StatusCode::MISDIRECTED_REQUEST, words))
}

/// A status, and what is wrong.
type Wrong = (StatusCode, String);

fn wanted(query: Option<String>) -> Result<View, Wrong> {
    View::parse(&query.unwrap_or_default()).map_err(|error| (StatusCode::BAD_REQUEST, error + "\n"))
}

/// Answers with a view as it is now, or a moment ago.
async fn view(State(page): State<Arc<Page>>, RawQuery(query): RawQuery) -> Result<Response, Wrong> {
    let looked = page.looks.look(&wanted(query)?).await;
    let (found, json) = looked.map_err(|error| (StatusCode::INTERNAL_SERVER_ERROR, format!("{error}\n")))?;
    let status = match found {
        true => StatusCode::OK,
        false => StatusCode::NOT_FOUND,
    };
    Ok((status, [(CONTENT_TYPE, "application/json")], json).into_response())
}

/// Answers with a view, again whenever it changes.
async fn stream_view(State(page): State<Arc<Page>>, RawQuery(query): RawQuery) -> Result<Response, Wrong> {
    let view = wanted(query)?;
    let Ok(turn) = Arc::clone(&page.streams).try_acquire_owned() else {
        let words = format!("{STREAMS} browsers look at this host already: close one of them\n");
        return Ok((StatusCode::SERVICE_UNAVAILABLE, [(RETRY_AFTER, "5")], words).into_response());
    };
    Ok(stream(Arc::clone(&page.looks), view, turn).into_response())
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

/// Reports whether a name can only mean this machine. A browser sends the name that it looked up, and any site can have a
/// name that leads here.
fn is_this_machine(host: Option<&str>) -> bool {
    let Some(host) = host else { return false };
    let address = host.trim_start_matches('[').trim_end_matches(']').parse();
    host.eq_ignore_ascii_case("localhost") || address.is_ok_and(|address: IpAddr| address.is_loopback())
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
    fn only_names_of_this_machine_are_answered() {
        for host in "localhost LocalHost:8090 127.0.0.1:1 127.9.9.9 [::1]:8090 [::1]".split(' ') {
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
    }
}
