//! The HTTP server of the health port.
//!
//! `/livez`, `/readyz` and `/healthz` (the same as `/livez`) answer `ok`, or 500 with the list of checks.
//! `?verbose` always lists the checks, `?exclude=name` excludes one, and `/livez/name` runs one. Source:
//! <https://kubernetes.io/docs/reference/using-api/health-checks/>.

use std::convert::Infallible;
use std::fmt::Write as _;
use std::net::SocketAddr;
use std::os::unix::fs::MetadataExt as _;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use http_body_util::Full;
use hyper::body::Incoming;
use hyper::header::{CACHE_CONTROL, CONTENT_TYPE};
use hyper::service::service_fn;
use hyper::{Method, Request, Response, StatusCode};
use hyper_util::rt::{TokioIo, TokioTimer};
use prometheus::{Encoder, Registry, TextEncoder};
use serde::Serialize;
use thiserror::Error;
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::{TcpListener, UnixListener};
use tracing::{debug, info, warn};

use super::{Check, Health};
use operator_host_core::connections::{Connections, share_of};
use operator_host_delivery::report::{PluginReport, hide};

/// How long a client may take to send the head of a request.
const HEAD: Duration = Duration::from_secs(10);
/// Maximum size of that head.
const MAX_HEAD: usize = 16 << 10;
/// Maximum number of connections. The oldest one makes room for the next.
const CONNECTIONS: usize = 64;
/// How many of them one address leaves to others, such as the kubelet.
const SHARE: usize = 8;

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
    let connections = Arc::new(Connections::new(CONNECTIONS, SHARE));
    tokio::spawn(async move {
        loop {
            let (stream, peer) = match listener.accept().await {
                Ok(accepted) => accepted,
                Err(error) => {
                    // For example, too many open files; other connections end meanwhile.
                    warn!(%error, "cannot accept a connection for health and metrics");
                    tokio::time::sleep(Duration::from_millis(100)).await;
                    continue;
                }
            };
            // No connection keeps its place, so that answers which nobody reads keep no probe away.
            let Some(seat) = connections.enter(share_of(peer.ip())) else {
                continue;
            };
            let (health, registry) = (Arc::clone(&health), registry.clone());
            let connections = Arc::clone(&connections);
            tokio::spawn(async move {
                tokio::select! {
                    () = serve(stream, health, registry, false) => {}
                    () = seat.taken.cancelled() => {
                        debug!(%peer, "too many connections for health and metrics: closing this one");
                    }
                }
                connections.leave(&seat);
            });
        }
    });
    Ok(())
}

/// Returns the socket in the folder of `--cache-dir`, at which the host's own user can read the full reports.
#[must_use]
pub fn socket(cache_dir: &Path) -> PathBuf {
    cache_dir.join("plugins.sock")
}

/// Also listens on [`socket`] until the process ends. It serves only the user of this process. A port, in
/// contrast, can be reached by other containers in the same pod, which may forward the requests of others.
///
/// # Errors
/// Returns an error when the socket cannot be created.
pub fn start_own(cache_dir: &Path, health: Arc<Health>, registry: Registry) -> std::io::Result<()> {
    std::fs::create_dir_all(cache_dir)?;
    let path = socket(cache_dir);
    // Left by an earlier process.
    match std::fs::remove_file(&path) {
        Err(error) if error.kind() != std::io::ErrorKind::NotFound => return Err(error),
        _ => {}
    }
    let listener = UnixListener::bind(&path)?;
    // A file created by this process belongs to the user that the process runs as.
    let own = std::fs::symlink_metadata(&path)?.uid();
    tokio::spawn(async move {
        loop {
            match listener.accept().await {
                Ok((stream, _)) => {
                    let peer = stream.peer_cred().map(|peer| peer.uid());
                    if peer.is_ok_and(|peer| peer == own) {
                        tokio::spawn(serve(stream, Arc::clone(&health), registry.clone(), true));
                    }
                }
                Err(error) => {
                    warn!(%error, "cannot accept a connection at the host's own socket");
                    tokio::time::sleep(Duration::from_millis(100)).await;
                }
            }
        }
    });
    Ok(())
}

async fn serve<S>(stream: S, health: Arc<Health>, registry: Registry, own: bool)
where
    S: AsyncRead + AsyncWrite + Unpin,
{
    let service = service_fn(|request: Request<Incoming>| {
        let response = answer(request.method(), request.uri(), &health, &registry, own);
        async move { Ok::<_, Infallible>(response) }
    });
    let connection = hyper::server::conn::http1::Builder::new()
        .timer(TokioTimer::new())
        .header_read_timeout(HEAD)
        .max_buf_size(MAX_HEAD)
        .serve_connection(TokioIo::new(stream), service);
    if let Err(error) = connection.await {
        debug!(%error, "a connection for health and metrics ended early");
    }
}

fn answer(
    method: &Method,
    uri: &hyper::Uri,
    health: &Health,
    registry: &Registry,
    own: bool,
) -> Response<Full<Bytes>> {
    if !matches!(*method, Method::GET | Method::HEAD) {
        return text(StatusCode::METHOD_NOT_ALLOWED, "only GET and HEAD\n".into());
    }
    let query = uri.query().unwrap_or_default();
    let path = uri.path().trim_start_matches('/').trim_end_matches('/');
    let (endpoint, one) = path
        .split_once('/')
        .map_or((path, None), |(endpoint, one)| (endpoint, Some(one)));
    let checks = match endpoint {
        "livez" | "healthz" => health.live(),
        "readyz" => health.ready(),
        "metrics" if one.is_none() => return metrics(registry),
        "plugins" => {
            return match one.map(|one| one.strip_suffix("/history")) {
                None => plugins(health, own),
                Some(Some(controller)) => history(health, controller, own),
                Some(None) => text(StatusCode::NOT_FOUND, "try /plugins/CONTROLLER/history\n".into()),
            };
        }
        _ => {
            return text(
                StatusCode::NOT_FOUND,
                "try /livez, /readyz, /healthz, /metrics or /plugins\n".into(),
            );
        }
    };
    let (status, body) = match one {
        None => list(endpoint, &checks, query),
        Some(name) => match checks.iter().find(|check| check.name == name) {
            None => (StatusCode::NOT_FOUND, format!("there is no check {name}\n")),
            Some(Check { result: Ok(_), .. }) => (StatusCode::OK, "ok".to_owned()),
            Some(Check { result: Err(why), .. }) => {
                (StatusCode::INTERNAL_SERVER_ERROR, format!("failed: {why}\n"))
            }
        },
    };
    text(status, body)
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
    let (status, verdict) = if passed {
        (StatusCode::OK, "passed")
    } else {
        (StatusCode::INTERNAL_SERVER_ERROR, "failed")
    };
    (status, format!("{body}{endpoint} check {verdict}\n"))
}

/// Answers `operator-host plugins`. Differences contain parts of children, and a port does not authenticate
/// its clients. So differences are only for the host's own user, at the socket.
fn plugins(health: &Health, own: bool) -> Response<Full<Bytes>> {
    let mut reports = health.plugins();
    if !own {
        reports.iter_mut().for_each(PluginReport::hide_differences);
    }
    json(&reports)
}

/// Answers `operator-host plugins history`.
fn history(health: &Health, controller: &str, own: bool) -> Response<Full<Bytes>> {
    let Some(mut history) = health.history_of(controller) else {
        return text(
            StatusCode::NOT_FOUND,
            format!("the host has no controller {controller:?}\n"),
        );
    };
    if !own {
        history.iter_mut().for_each(|entry| hide(&mut entry.diff));
    }
    json(&history)
}

fn json(value: &impl Serialize) -> Response<Full<Bytes>> {
    match serde_json::to_vec(value) {
        Ok(body) => respond(StatusCode::OK, "application/json", body),
        Err(error) => text(StatusCode::INTERNAL_SERVER_ERROR, format!("{error}\n")),
    }
}

fn metrics(registry: &Registry) -> Response<Full<Bytes>> {
    let (encoder, mut body) = (TextEncoder::new(), Vec::new());
    match encoder.encode(&registry.gather(), &mut body) {
        Ok(()) => respond(StatusCode::OK, encoder.format_type(), body),
        Err(error) => text(StatusCode::INTERNAL_SERVER_ERROR, format!("{error}\n")),
    }
}

fn text(status: StatusCode, body: String) -> Response<Full<Bytes>> {
    respond(status, "text/plain; charset=utf-8", body.into())
}

fn respond(status: StatusCode, type_: &str, body: Vec<u8>) -> Response<Full<Bytes>> {
    let mut response = Response::new(Full::from(body));
    *response.status_mut() = status;
    let headers = response.headers_mut();
    if let Ok(type_) = type_.parse() {
        headers.insert(CONTENT_TYPE, type_);
    }
    headers.insert(
        CACHE_CONTROL,
        hyper::header::HeaderValue::from_static("no-cache, private"),
    );
    response
}

#[cfg(test)]
mod tests {
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
        assert_eq!(
            body,
            "[+]ping ok\n[+]controller/a ok: waits\n[-]plugin/a failed: it is loading\nreadyz check failed\n"
        );
    }

    #[test]
    fn a_failure_that_is_not_the_whole_hosts_is_listed_and_does_not_count() {
        let mut checks = checks();
        checks[2].counts = false;
        assert_eq!(list("readyz", &checks, ""), (StatusCode::OK, "ok".to_owned()));
        let (status, body) = list("readyz", &checks, "verbose");
        assert_eq!(status, StatusCode::OK);
        assert!(
            body.contains("[-]plugin/a failed, the others are served: it is loading\n"),
            "{body}"
        );
        assert!(body.ends_with("readyz check passed\n"), "{body}");
    }

    #[test]
    fn an_excluded_check_does_not_count() {
        assert_eq!(
            list("readyz", &checks(), "exclude=plugin/a"),
            (StatusCode::OK, "ok".to_owned())
        );
    }

    #[test]
    fn verbose_lists_checks_that_passed() {
        let (status, body) = list("livez", &checks()[..1], "verbose");
        assert_eq!(
            (status, body.as_str()),
            (StatusCode::OK, "[+]ping ok\nlivez check passed\n")
        );
    }

    #[tokio::test]
    async fn differences_between_versions_are_for_the_hosts_own_user() {
        use http_body_util::BodyExt;
        use operator_host_delivery::report::LiveVersion;
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
        let (_sender, receiver) = tokio::sync::watch::channel(report);
        health.report("a", receiver);
        for own in [true, false] {
            let body = plugins(&health, own)
                .into_body()
                .collect()
                .await
                .unwrap()
                .to_bytes();
            let text = String::from_utf8_lossy(&body).into_owned();
            assert_eq!(text.contains("of the trade"), own, "{text}");
            assert!(text.contains("proved"), "{text}");
        }
    }

    #[test]
    fn one_check_can_be_asked_for() {
        let answer = |uri: &str| {
            answer(
                &Method::GET,
                &uri.parse().unwrap(),
                &Health::default(),
                &Registry::new(),
                true,
            )
            .status()
        };
        assert_eq!(answer("/livez/ping"), StatusCode::OK);
        assert_eq!(answer("/livez/nothing"), StatusCode::NOT_FOUND);
        assert_eq!(answer("/healthz"), StatusCode::OK);
        assert_eq!(answer("/metrics"), StatusCode::OK);
        assert_eq!(answer("/plugins"), StatusCode::OK);
        assert_eq!(answer("/"), StatusCode::NOT_FOUND);
    }
}
