//! The HTTP server of the health port.
//!
//! `/livez`, `/readyz` and `/healthz` (the same as `/livez`) answer `ok`, or 500 with the list of checks.
//! `?verbose` always lists the checks, `?exclude=name` excludes one, and `/livez/name` runs one. Source:
//! <https://kubernetes.io/docs/reference/using-api/health-checks/>.

use std::fmt::Write as _;
use std::net::SocketAddr;
use std::path::{Path as FilePath, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use axum::extract::connect_info::Connected;
use axum::extract::{ConnectInfo, Path, RawQuery, State};
use axum::middleware::map_response;
use axum::response::{IntoResponse, Response};
use axum::routing::get;
use axum::serve::IncomingStream;
use axum::{Extension, Json, Router};
use hyper::StatusCode;
use hyper::header::{CACHE_CONTROL, CONTENT_TYPE};
use prometheus::{Registry, TEXT_FORMAT, TextEncoder};
use thiserror::Error;
use tokio::net::{TcpListener, UnixListener};
use tokio_util::sync::CancellationToken;
use tracing::info;

use super::{Check, Health};
use crate::server::Server;
use operator_host_delivery::report::{PluginReport, hide};

/// Maximum size of the head of a request.
const HEAD: usize = 16 << 10;
/// Maximum number of connections. None of them keeps its place, so that answers which nobody reads keep no probe away.
const CONNECTIONS: usize = 64;
/// How long a connection lasts.
const LIFE: Duration = Duration::from_secs(60);

/// The address cannot be listened on.
#[derive(Debug, Error)]
#[error("cannot listen on {address} for health and metrics: {error}; choose another with --health-addr")]
pub struct ServerError {
    /// The configured address.
    address: SocketAddr,
    /// The error of the operating system.
    error: std::io::Error,
}

/// Starts to listen, and serves until the process ends. The log contains the port, which matters when it was
/// 0.
///
/// # Errors
/// Returns an error when the address cannot be listened on.
pub async fn start(address: SocketAddr, health: Arc<Health>, registry: Registry) -> Result<(), ServerError> {
    let failed = |error| ServerError { address, error };
    let listener = TcpListener::bind(address).await.map_err(failed)?;
    info!(address = %listener.local_addr().map_err(failed)?, "serving health and metrics");
    let server = Server {
        what: "health and metrics",
        router: router(health, registry).layer(Extension(ConnectInfo(IsOwn(false)))),
        connections: CONNECTIONS,
        head: HEAD,
        life: LIFE,
        tls: None,
        stop: CancellationToken::new(),
    };
    tokio::spawn(server.serve(listener));
    Ok(())
}

/// Returns the socket in the folder of `--cache-dir`, at which the host's own user can read the full reports.
pub fn socket(cache_dir: &FilePath) -> PathBuf {
    cache_dir.join("plugins.sock")
}

/// Also listens on [`socket`] until the process ends. It serves the full reports only to the user of this process. A
/// port, in contrast, can be reached by other containers in the same pod, which may forward the requests of others.
///
/// # Errors
/// Returns an error when the socket cannot be created.
pub fn start_own(cache_dir: &FilePath, health: Arc<Health>, registry: Registry) -> std::io::Result<()> {
    std::fs::create_dir_all(cache_dir)?;
    let path = socket(cache_dir);
    // Left by an earlier process.
    match std::fs::remove_file(&path) {
        Err(error) if error.kind() != std::io::ErrorKind::NotFound => return Err(error),
        _ => {}
    }
    let listener = UnixListener::bind(&path)?;
    let service = router(health, registry).into_make_service_with_connect_info::<IsOwn>();
    tokio::spawn(async move { axum::serve(listener, service).await });
    Ok(())
}

/// Whether the host's own user asks.
#[derive(Clone, Copy, Debug)]
struct IsOwn(bool);

impl Connected<IncomingStream<'_, UnixListener>> for IsOwn {
    fn connect_info(stream: IncomingStream<'_, UnixListener>) -> Self {
        let own = rustix::process::geteuid().as_raw();
        Self(stream.io().peer_cred().is_ok_and(|peer| peer.uid() == own))
    }
}

fn router(health: Arc<Health>, registry: Registry) -> Router {
    Router::new()
        .route("/metrics", get(async move || metrics(&registry)))
        .route("/plugins", get(plugins))
        .route("/plugins/{controller}/history", get(history))
        .route("/{endpoint}", get(all))
        .route("/{endpoint}/{*check}", get(one))
        .fallback(async || nothing_here())
        .with_state(health)
        .layer(map_response(uncached))
}

async fn uncached(response: Response) -> impl IntoResponse {
    ([(CACHE_CONTROL, "no-cache, private")], response)
}

fn nothing_here() -> Response {
    let words = "try /livez, /readyz, /healthz, /metrics, /plugins or /plugins/CONTROLLER/history\n";
    (StatusCode::NOT_FOUND, words).into_response()
}

fn checks(health: &Health, endpoint: &str) -> Option<Vec<Check>> {
    match endpoint {
        "livez" | "healthz" => Some(health.live()),
        "readyz" => Some(health.ready()),
        _ => None,
    }
}

async fn all(
    State(health): State<Arc<Health>>,
    Path(endpoint): Path<String>,
    RawQuery(query): RawQuery,
) -> Response {
    match checks(&health, &endpoint) {
        Some(checks) => list(&endpoint, &checks, &query.unwrap_or_default()).into_response(),
        None => nothing_here(),
    }
}

async fn one(State(health): State<Arc<Health>>, Path((endpoint, name)): Path<(String, String)>) -> Response {
    let Some(checks) = checks(&health, &endpoint) else {
        return nothing_here();
    };
    let check = checks.into_iter().find(|check| check.name == name);
    match check.map(|check| check.result) {
        None => (StatusCode::NOT_FOUND, format!("there is no check {name}\n")).into_response(),
        Some(Ok(_)) => "ok".into_response(),
        Some(Err(why)) => (StatusCode::INTERNAL_SERVER_ERROR, format!("failed: {why}\n")).into_response(),
    }
}

fn list(endpoint: &str, checks: &[Check], query: &str) -> (StatusCode, String) {
    let parameters = || {
        query
            .split('&')
            .map(|pair| pair.split_once('=').unwrap_or((pair, "")))
    };
    let excluded = |name: &str| parameters().any(|(key, value)| key == "exclude" && value == name);
    let mut body = String::new();
    let mut passed = true;
    for Check { name, result, counts } in checks {
        // Writing to a string cannot fail.
        let _ = match result {
            _ if excluded(name) => writeln!(body, "[+]{name} excluded: ok"),
            Ok(remark) if remark.is_empty() => writeln!(body, "[+]{name} ok"),
            Ok(remark) => writeln!(body, "[+]{name} ok: {remark}"),
            Err(why) if !counts => writeln!(body, "[-]{name} failed, the others are served: {why}"),
            Err(why) => {
                passed = false;
                writeln!(body, "[-]{name} failed: {why}")
            }
        };
    }
    if passed && !parameters().any(|(key, _)| key == "verbose") {
        return (StatusCode::OK, "ok".to_owned());
    }
    let (status, verdict) = match passed {
        true => (StatusCode::OK, "passed"),
        false => (StatusCode::INTERNAL_SERVER_ERROR, "failed"),
    };
    (status, format!("{body}{endpoint} check {verdict}\n"))
}

/// Answers `operator-host plugins`. Differences contain parts of children, and a port does not authenticate
/// its clients. So differences are only for the host's own user, at the socket.
async fn plugins(
    State(health): State<Arc<Health>>,
    ConnectInfo(IsOwn(is_own)): ConnectInfo<IsOwn>,
) -> Json<Vec<PluginReport>> {
    let mut reports = health.plugins();
    if !is_own {
        reports.iter_mut().for_each(PluginReport::hide_differences);
    }
    Json(reports)
}

/// Answers `operator-host plugins history`.
async fn history(
    State(health): State<Arc<Health>>,
    ConnectInfo(IsOwn(is_own)): ConnectInfo<IsOwn>,
    Path(controller): Path<String>,
) -> Response {
    let Some(mut history) = health.history_of(&controller) else {
        let words = format!("the host has no controller {controller:?}\n");
        return (StatusCode::NOT_FOUND, words).into_response();
    };
    if !is_own {
        history.iter_mut().for_each(|entry| hide(&mut entry.diff));
    }
    Json(history).into_response()
}

fn metrics(registry: &Registry) -> Response {
    match TextEncoder::new().encode_to_string(&registry.gather()) {
        Ok(text) => ([(CONTENT_TYPE, TEXT_FORMAT)], text).into_response(),
        Err(error) => (StatusCode::INTERNAL_SERVER_ERROR, format!("{error}\n")).into_response(),
    }
}

#[cfg(test)]
mod tests {
    use axum::body::{Body, to_bytes};
    use hyper::Request;
    use tower::ServiceExt;

    use super::*;

    fn checks() -> Vec<Check> {
        let check = |name: &str, result: Result<&str, &str>| {
            Check::new(name, result.map(str::to_owned).map_err(str::to_owned))
        };
        vec![
            check("ping", Ok("")),
            check("controller/a", Ok("waits")),
            check("plugin/a", Err("it is loading")),
        ]
    }

    #[test]
    fn a_failed_check_lists_them_all() {
        let (status, body) = list("readyz", &checks(), "");
        assert_eq!(status, StatusCode::INTERNAL_SERVER_ERROR);
        let expected =
            "[+]ping ok\n[+]controller/a ok: waits\n[-]plugin/a failed: it is loading\nreadyz check failed\n";
        assert_eq!(body, expected);
    }

    #[test]
    fn a_failure_that_is_not_the_whole_hosts_is_listed_and_does_not_count() {
        let mut checks = checks();
        checks[2].counts = false;
        assert_eq!(list("readyz", &checks, ""), (StatusCode::OK, "ok".to_owned()));
        let (status, body) = list("readyz", &checks, "verbose");
        assert_eq!(status, StatusCode::OK);
        let words = "[-]plugin/a failed, the others are served: it is loading\n";
        assert!(body.contains(words), "{body}");
        assert!(body.ends_with("readyz check passed\n"), "{body}");
    }

    #[test]
    fn an_excluded_check_does_not_count_and_verbose_lists_those_that_passed() {
        let ok = |text: &str| (StatusCode::OK, text.to_owned());
        assert_eq!(list("readyz", &checks(), "exclude=plugin/a"), ok("ok"));
        let listed = list("livez", &checks()[..1], "verbose");
        assert_eq!(listed, ok("[+]ping ok\nlivez check passed\n"));
    }

    /// Asks as the host's own user, or as another one. Returns the status and the body.
    async fn ask(health: Health, is_own: bool, path: &str) -> (StatusCode, String) {
        let router = router(Arc::new(health), Registry::new()).layer(Extension(ConnectInfo(IsOwn(is_own))));
        let request = Request::get(path).body(Body::empty()).unwrap();
        let response = router.oneshot(request).await.unwrap();
        assert_eq!(response.headers()[CACHE_CONTROL], "no-cache, private");
        let status = response.status();
        let body = to_bytes(response.into_body(), usize::MAX).await.unwrap();
        (status, String::from_utf8_lossy(&body).into_owned())
    }

    #[tokio::test]
    async fn differences_between_versions_are_for_the_hosts_own_user() {
        use operator_host_delivery::registry::Live;
        use operator_host_delivery::report::LiveVersion;
        for is_own in [true, false] {
            let health = Health::default();
            let report = PluginReport {
                live: Some(LiveVersion {
                    digest: "sha256:0".into(),
                    name: "a".into(),
                    version: "1".into(),
                    since: jiff::Timestamp::UNIX_EPOCH,
                    because: "proved".into(),
                    diff: "+a new secret of the trade".into(),
                }),
                ..PluginReport::default()
            };
            let (_plugin, live) = tokio::sync::watch::channel(Live::Loading);
            let (_sender, report) = tokio::sync::watch::channel(report);
            health.expect("a", live, report, Arc::default());
            let (_, text) = ask(health, is_own, "/plugins").await;
            assert_eq!(text.contains("of the trade"), is_own, "{text}");
            assert!(text.contains("proved"), "{text}");
        }
    }

    #[tokio::test]
    async fn one_check_can_be_asked_for() {
        for (paths, expected) in [
            ("/livez/ping /healthz /metrics /plugins", StatusCode::OK),
            (
                "/livez/nothing /plugins/a/history /nothing /nothing/ping /",
                StatusCode::NOT_FOUND,
            ),
        ] {
            for path in paths.split(' ') {
                assert_eq!(ask(Health::default(), true, path).await.0, expected, "{path}");
            }
        }
    }
}
