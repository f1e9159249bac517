//! The HTTPS server that the API server calls.

use std::convert::Infallible;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use http_body_util::{BodyExt, Full, Limited};
use hyper::body::Incoming;
use hyper::header::{CONTENT_TYPE, HeaderValue};
use hyper::service::service_fn;
use hyper::{Method, Request, Response, StatusCode};
use hyper_util::rt::{TokioIo, TokioTimer};
use kube::core::DynamicObject;
use kube::core::admission::{AdmissionRequest, AdmissionReview};
use rustls::ServerConfig;
use thiserror::Error;
use tokio::net::{TcpListener, TcpStream};
use tokio_rustls::TlsAcceptor;
use tracing::{debug, info, warn};

use super::certificates::Certificates;
use super::{Door, NoVerdict};
use crate::config::webhook::WebhookConfig;
use crate::metrics::Metrics;
use crate::telemetry::Instruments;

/// Where reviews are sent.
pub const PATH: &str = "/validate";
/// How long a client may take for its handshake and for each request's head.
const PATIENCE: Duration = Duration::from_secs(10);
/// The API server waits no longer by itself.
const MAX_TIMEOUT: Duration = Duration::from_secs(30);
/// Two versions of an object, each of which etcd limits to 1.5 MiB, as JSON.
const MAX_BODY: usize = 16 << 20;

/// The webhook cannot be served.
#[derive(Debug, Error)]
pub enum ServerError {
    /// The address cannot be listened to.
    #[error("cannot listen on {address} for the webhook: {error}; choose another as `webhook.address`")]
    Listen {
        /// As configured.
        address: SocketAddr,
        /// What the system said.
        error: std::io::Error,
    },
    /// TLS cannot be set up.
    #[error("cannot set up TLS for the webhook: {0}")]
    Tls(#[from] rustls::Error),
}

/// Listens from now on, and answers as soon as the certificate's files are right, until the process ends.
///
/// # Errors
/// When the address cannot be listened to.
pub async fn start(
    config: WebhookConfig,
    door: Arc<Door>,
    instruments: Instruments,
) -> Result<(), ServerError> {
    let address = config.address;
    let failed = |error| ServerError::Listen { address, error };
    let listener = TcpListener::bind(address).await.map_err(failed)?;
    info!(address = %listener.local_addr().map_err(failed)?, path = PATH, "serving the webhook");
    let provider = Arc::new(rustls::crypto::aws_lc_rs::default_provider());
    let certificates = Arc::new(Certificates::new(Arc::clone(&provider)));
    let mut tls = ServerConfig::builder_with_provider(provider)
        .with_safe_default_protocol_versions()?
        .with_no_client_auth()
        .with_cert_resolver(Arc::clone(&certificates) as _);
    tls.alpn_protocols = vec![b"http/1.1".to_vec()];
    let acceptor = TlsAcceptor::from(Arc::new(tls));
    let metrics = Arc::clone(&instruments.metrics);
    tokio::spawn(certificates.follow(config, instruments));
    tokio::spawn(async move {
        loop {
            match listener.accept().await {
                Ok((stream, _)) => {
                    tokio::spawn(serve(
                        stream,
                        acceptor.clone(),
                        Arc::clone(&door),
                        Arc::clone(&metrics),
                    ));
                }
                Err(error) => {
                    // Such as too many open files: others end meanwhile.
                    warn!(%error, "cannot take a connection for the webhook");
                    tokio::time::sleep(Duration::from_millis(100)).await;
                }
            }
        }
    });
    Ok(())
}

async fn serve(stream: TcpStream, acceptor: TlsAcceptor, door: Arc<Door>, metrics: Arc<Metrics>) {
    let stream = match tokio::time::timeout(PATIENCE, acceptor.accept(stream)).await {
        Ok(Ok(stream)) => stream,
        Ok(Err(error)) => return debug!(%error, "a connection for the webhook ended in its handshake"),
        Err(_elapsed) => return debug!("a connection for the webhook did not finish its handshake"),
    };
    let service = service_fn(|request| {
        let (door, metrics) = (&door, &metrics);
        async move { Ok::<_, Infallible>(answer(request, door, metrics).await) }
    });
    let connection = hyper::server::conn::http1::Builder::new()
        .timer(TokioTimer::new())
        .header_read_timeout(PATIENCE)
        .serve_connection(TokioIo::new(stream), service);
    if let Err(error) = connection.await {
        debug!(%error, "a connection for the webhook ended early");
    }
}

async fn answer(request: Request<Incoming>, door: &Door, metrics: &Metrics) -> Response<Full<Bytes>> {
    if request.uri().path() != PATH {
        return plain(StatusCode::NOT_FOUND, format!("reviews are taken at {PATH}\n"));
    }
    if request.method() != Method::POST {
        return plain(StatusCode::METHOD_NOT_ALLOWED, "only POST\n".to_owned());
    }
    let limit = timeout(request.uri().query().unwrap_or_default());
    match tokio::time::timeout(limit, review(request, door, metrics)).await {
        Ok(response) => response,
        Err(_elapsed) => {
            metrics.admission("", "failed");
            plain(
                StatusCode::INTERNAL_SERVER_ERROR,
                format!("no verdict within {limit:?}\n"),
            )
        }
    }
}

async fn review(request: Request<Incoming>, door: &Door, metrics: &Metrics) -> Response<Full<Bytes>> {
    let bad = |error: &dyn std::fmt::Display| {
        plain(
            StatusCode::BAD_REQUEST,
            format!("this is no AdmissionReview: {error}\n"),
        )
    };
    let body = match Limited::new(request.into_body(), MAX_BODY).collect().await {
        Ok(body) => body.to_bytes(),
        Err(error) => return bad(&error),
    };
    let review: AdmissionReview<DynamicObject> = match serde_json::from_slice(&body) {
        Ok(review) => review,
        Err(error) => return bad(&error),
    };
    let request: AdmissionRequest<DynamicObject> = match review.try_into() {
        Ok(request) => request,
        Err(error) => return bad(&error),
    };
    match door.verdict(&request).await {
        Ok((controller, response)) => {
            let result = if response.allowed { "allowed" } else { "denied" };
            metrics.admission(&controller, result);
            debug!(
                controller,
                name = request.name,
                namespace = request.namespace,
                result,
                "reviewed"
            );
            match serde_json::to_vec(&response.into_review()) {
                Ok(body) => respond(StatusCode::OK, "application/json", body),
                Err(error) => plain(StatusCode::INTERNAL_SERVER_ERROR, format!("{error}\n")),
            }
        }
        Err(NoVerdict { controller, message }) => {
            metrics.admission(controller.as_deref().unwrap_or_default(), "failed");
            debug!(controller, name = request.name, "no verdict: {message}");
            plain(StatusCode::INTERNAL_SERVER_ERROR, format!("{message}\n"))
        }
    }
}

/// How long the API server waits, as it says itself: `timeout=10s`.
fn timeout(query: &str) -> Duration {
    let given = query.split('&').find_map(|pair| pair.strip_prefix("timeout="));
    let given = given.and_then(|text| text.parse::<jiff::SignedDuration>().ok());
    let given = given.and_then(|given| Duration::try_from(given).ok());
    given.unwrap_or(MAX_TIMEOUT).min(MAX_TIMEOUT)
}

fn plain(status: StatusCode, body: String) -> Response<Full<Bytes>> {
    respond(status, "text/plain; charset=utf-8", body.into())
}

fn respond(status: StatusCode, type_: &'static str, body: Vec<u8>) -> Response<Full<Bytes>> {
    let mut response = Response::new(Full::from(body));
    *response.status_mut() = status;
    response
        .headers_mut()
        .insert(CONTENT_TYPE, HeaderValue::from_static(type_));
    response
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_time_is_what_the_api_server_gives() {
        assert_eq!(timeout("timeout=3s"), Duration::from_secs(3));
        assert_eq!(timeout("a=b&timeout=1m30s"), MAX_TIMEOUT);
        for bad in ["", "timeout=", "timeout=-3s", "timeout=soon"] {
            assert_eq!(timeout(bad), MAX_TIMEOUT, "{bad}");
        }
    }
}
