//! The HTTPS server that the API server calls.

use std::convert::Infallible;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use http_body_util::BodyExt;
use hyper::body::Incoming;
use hyper::header::{CONNECTION, CONTENT_LENGTH, CONTENT_TYPE, HeaderValue, RETRY_AFTER};
use hyper::service::service_fn;
use hyper::{Method, Request, Response, StatusCode};
use hyper_util::rt::{TokioIo, TokioTimer};
use serde_json::{Value, json};
use thiserror::Error;
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::watch;
use tokio::time::Instant;
use tokio_rustls::TlsAcceptor;
use tokio_util::sync::CancellationToken;
use tracing::{debug, info, warn};

use super::answer::{Answer, overdue};
use super::bounds::{Admitted, BodyRoom, Bounds};
use super::certificates::Certificates;
use super::conversion_review::{self, ConversionReview};
use super::review::Review;
use super::{Decision, WORDS, WebhookTargets};
use operator_host_config::webhook::WebhookConfig;
use operator_host_core::connections::share_of;
use operator_host_core::metrics::Metrics;
use operator_host_core::object::shorten;
use operator_host_instruments::Instruments;

/// The path for reviews.
pub const PATH: &str = "/validate";
/// The path for conversions.
pub const CONVERT_PATH: &str = "/convert";
/// The path for defaults.
pub const DEFAULT_PATH: &str = "/default";
/// Timeout of a client's handshake, of each request's head, and of its body.
const CLIENT_TIMEOUT: Duration = Duration::from_secs(10);
/// The API server's own maximum timeout.
const MAX_TIMEOUT: Duration = Duration::from_secs(30);
/// The part of a request's time that remains for the answer when the search for a wrong object ends.
const ANSWER_PART: u32 = 20;
/// Time for a caller to read an answer and to send the next request.
const TAKING_TIMEOUT: Duration = MAX_TIMEOUT;
/// Maximum size of a request's head.
const MAX_HEAD: usize = 64 << 10;

/// Why the webhook cannot be served.
#[derive(Debug, Error)]
pub enum ServerError {
    /// The address cannot be used.
    #[error("cannot listen on {address} for the webhook: {error}; choose another as `webhook.address`")]
    Listen {
        /// The configured address.
        address: SocketAddr,
        /// The error of the system.
        error: std::io::Error,
    },
}

/// Listens, and answers requests as soon as the certificate's files are valid, until the process ends. After `stop`
/// each connection is for one request only, so that the API server connects to another replica as soon as the Service
/// no longer has this one. Callers can make the host hold `memory` bytes in total.
///
/// # Errors
/// When the address cannot be used.
pub async fn start(
    config: WebhookConfig,
    memory: usize,
    webhook_targets: Arc<WebhookTargets>,
    instruments: Instruments,
    stop: CancellationToken,
) -> Result<(), ServerError> {
    let address = config.address;
    let failed = |error| ServerError::Listen { address, error };
    let listener = TcpListener::bind(address).await.map_err(failed)?;
    info!(address = %listener.local_addr().map_err(failed)?, path = PATH, "serving the webhook");
    let provider = Arc::new(rustls::crypto::aws_lc_rs::default_provider());
    let certificates = Arc::new(Certificates::new(provider));
    let server = Arc::new(Server {
        webhook_targets,
        metrics: Arc::clone(&instruments.metrics),
        bounds: Arc::new(Bounds::new(memory)),
        certificates: Arc::clone(&certificates),
        verifies: config.client_ca.is_some(),
        stop,
    });
    if !server.verifies {
        info!(
            "the webhook answers every caller that reaches it; set --client-ca to require a client certificate"
        );
    }
    tokio::spawn(certificates.follow(config, instruments));
    tokio::spawn(async move {
        loop {
            match listener.accept().await {
                Ok((stream, peer)) => {
                    let peer = share_of(peer.ip());
                    match server.bounds.admit(peer) {
                        Some(admitted) => {
                            let server = Arc::clone(&server);
                            tokio::spawn(async move {
                                tokio::select! {
                                    () = server.serve(stream, &admitted) => {}
                                    () = admitted.taken() => {
                                        debug!(%peer, "too many connections for the webhook: closing this one, which has no request");
                                    }
                                }
                            });
                        }
                        None => debug!(%peer, "too many connections for the webhook: closing this one"),
                    }
                }
                Err(error) => {
                    // For example too many open files: wait until other connections have ended.
                    warn!(%error, "cannot accept a connection for the webhook");
                    tokio::time::sleep(Duration::from_millis(100)).await;
                }
            }
        }
    });
    Ok(())
}

/// What the API server asks.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Ask {
    Validate,
    Default,
    Convert,
}

/// The state that all connections share.
struct Server {
    webhook_targets: Arc<WebhookTargets>,
    metrics: Arc<Metrics>,
    bounds: Arc<Bounds>,
    certificates: Arc<Certificates>,
    /// Whether every caller but one of a conversion must show a verified certificate.
    verifies: bool,
    stop: CancellationToken,
}

impl Server {
    async fn serve(&self, stream: TcpStream, admitted: &Admitted) {
        let Some(tls) = self.certificates.current() else {
            return debug!("closing a connection for the webhook: there is no certificate");
        };
        let handshake = TlsAcceptor::from(tls).accept(stream);
        let stream = match tokio::time::timeout(CLIENT_TIMEOUT, handshake).await {
            Ok(Ok(stream)) => stream,
            Ok(Err(error)) => return debug!(%error, "the handshake of a connection for the webhook failed"),
            Err(_elapsed) => return debug!("a connection for the webhook did not finish its handshake"),
        };
        // The handshake has verified it.
        let shown = stream.get_ref().1.peer_certificates().is_some();
        let is_verified = self.verifies && shown;
        let (limit, following) = watch::channel(None);
        let limit = &limit;
        let service = service_fn(|request| async move {
            limit.send_replace(None);
            let in_use = admitted.in_use();
            let answer = self.answer(request, is_verified, admitted).await;
            limit.send_replace(Some(Instant::now() + TAKING_TIMEOUT));
            Ok::<_, Infallible>(answer.map(|body| body.during(in_use)))
        });
        // A graceful shutdown would close a new connection before its first request.
        let mut is_stopping = self.stop.is_cancelled();
        let connection = hyper::server::conn::http1::Builder::new()
            .timer(TokioTimer::new())
            .header_read_timeout(CLIENT_TIMEOUT)
            .max_buf_size(MAX_HEAD)
            .keep_alive(!is_stopping)
            .serve_connection(TokioIo::new(stream), service);
        let mut connection = std::pin::pin!(connection);
        let overdue = overdue(following);
        let mut overdue = std::pin::pin!(overdue);
        loop {
            tokio::select! {
                ended = connection.as_mut() => {
                    if let Err(error) = ended {
                        debug!(%error, "a connection for the webhook ended early");
                    }
                    return;
                }
                () = &mut overdue => return debug!("closing a connection for the webhook: its caller does not read the answer"),
                () = self.stop.cancelled(), if !is_stopping => {
                    is_stopping = true;
                    connection.as_mut().graceful_shutdown();
                }
            }
        }
    }

    async fn answer(
        &self,
        request: Request<Incoming>,
        is_verified: bool,
        caller: &Admitted,
    ) -> Response<Answer> {
        let ask = match request.uri().path() {
            PATH => Ask::Validate,
            DEFAULT_PATH => Ask::Default,
            CONVERT_PATH => Ask::Convert,
            _ => {
                let paths = format!("send reviews to {PATH}, {DEFAULT_PATH} or {CONVERT_PATH}");
                return plain(StatusCode::NOT_FOUND, &paths);
            }
        };
        if self.verifies && !is_verified && ask != Ask::Convert {
            return plain(
                StatusCode::FORBIDDEN,
                "show a certificate of the authority of --client-ca",
            );
        }
        if request.method() != Method::POST {
            return plain(StatusCode::METHOD_NOT_ALLOWED, "only POST");
        }
        let limit = timeout(request.uri().query().unwrap_or_default());
        let until = Instant::now() + limit;
        let answer = async {
            match ask {
                Ask::Convert => {
                    self.conversion(request, is_verified, caller, until - limit / ANSWER_PART)
                        .await
                }
                Ask::Validate | Ask::Default => self.review(request, ask, is_verified, caller).await,
            }
        };
        match tokio::time::timeout(limit, answer).await {
            Ok(response) => response,
            Err(_elapsed) => {
                match ask {
                    Ask::Convert => self.metrics.conversion("", "failed"),
                    Ask::Validate | Ask::Default => self.metrics.admission("", "failed"),
                }
                plain(
                    StatusCode::INTERNAL_SERVER_ERROR,
                    &format!("no decision within {limit:?}"),
                )
            }
        }
    }

    async fn review(
        &self,
        request: Request<Incoming>,
        ask: Ask,
        is_verified: bool,
        caller: &Admitted,
    ) -> Response<Answer> {
        let mut room = caller.review(length(&request)).await;
        let body = match body(request, caller.sizes().review, &mut room).await {
            Ok(body) => body,
            Err(response) => return response,
        };
        let review = match Review::parse(&body) {
            Ok(review) => review,
            Err(error) => {
                return plain(
                    StatusCode::BAD_REQUEST,
                    &format!("not an AdmissionReview: {error}"),
                );
            }
        };
        let (controller, decision) = self.webhook_targets.decide(&review, ask, caller).await;
        let result = match &decision {
            Ok(Decision::Allowed | Decision::Patched(_)) => "allowed",
            Ok(Decision::Denied(_)) => "denied",
            Err(_) => "failed",
        };
        self.metrics.admission(&controller, result);
        debug!(
            controller,
            name = shorten(&review.name, 253),
            namespace = shorten(&review.namespace, 63),
            result,
            "reviewed"
        );
        match decision {
            Ok(decision) => {
                let text = response(&review.uid, &decision).to_string();
                // A patch may be as large as the object.
                let held = matches!(decision, Decision::Patched(_)).then(|| room.held());
                let answer = Answer::new(vec![text.into()]).holding(held.into_iter().flatten());
                respond(StatusCode::OK, "application/json", answer)
            }
            Err(error) if is_verified => plain(StatusCode::INTERNAL_SERVER_ERROR, &error.detail),
            Err(error) => plain(StatusCode::INTERNAL_SERVER_ERROR, &error.public),
        }
    }

    async fn conversion(
        &self,
        request: Request<Incoming>,
        is_verified: bool,
        caller: &Admitted,
        until: Instant,
    ) -> Response<Answer> {
        let mut body_room = caller.conversion(length(&request)).await;
        let body = match body(request, caller.sizes().conversion, &mut body_room).await {
            Ok(body) => body,
            Err(response) => return response,
        };
        let review = match ConversionReview::parse(&body) {
            Ok(review) => review,
            Err(error) => {
                return plain(
                    StatusCode::BAD_REQUEST,
                    &format!("not a ConversionReview: {error}"),
                );
            }
        };
        let (controller, converted) = self
            .webhook_targets
            .convert(&review, body.len(), caller, until)
            .await;
        let result = if converted.is_ok() { "converted" } else { "failed" };
        self.metrics.conversion(&controller, result);
        debug!(
            controller,
            to = review.to,
            objects = review.objects.len(),
            result,
            "converted"
        );
        let (converted, room) = match converted {
            Ok((objects, room)) => (Ok(objects), room),
            Err(error) if error.try_again => {
                return again(if is_verified { &error.detail } else { &error.public });
            }
            Err(error) if is_verified => (Err(error.detail), None),
            Err(error) => (Err(error.public), None),
        };
        let pieces = conversion_review::response(&review.uid, converted);
        let answer = Answer::new(pieces);
        let held = room.map(|room| room.keep(answer.len())).unwrap_or_default();
        respond(
            StatusCode::OK,
            "application/json",
            answer.holding(held).holding(body_room.into_own()),
        )
    }
}

/// Reads a whole body of a limited size into its room.
async fn body(
    request: Request<Incoming>,
    limit: usize,
    room: &mut BodyRoom,
) -> Result<Vec<u8>, Response<Answer>> {
    let read = tokio::time::timeout(CLIENT_TIMEOUT, whole_body(request, limit, room)).await;
    match read {
        Ok(read) => read,
        Err(_elapsed) => Err(plain(
            StatusCode::REQUEST_TIMEOUT,
            "the body did not arrive in time",
        )),
    }
}

async fn whole_body(
    request: Request<Incoming>,
    limit: usize,
    room: &mut BodyRoom,
) -> Result<Vec<u8>, Response<Answer>> {
    let too_large = || {
        plain(
            StatusCode::PAYLOAD_TOO_LARGE,
            &format!("the limit for a review is {limit} bytes"),
        )
    };
    if length(&request).is_some_and(|length| length > limit) {
        return Err(too_large());
    }
    let mut incoming = request.into_body();
    let mut body = Vec::new();
    while let Some(frame) = incoming.frame().await {
        let frame = frame.map_err(|error| plain(StatusCode::BAD_REQUEST, &error.to_string()))?;
        let Ok(piece) = frame.into_data() else {
            continue;
        };
        if body.len() + piece.len() > limit {
            return Err(too_large());
        }
        if !room.arrive(piece.len()).await {
            return Err(plain(
                StatusCode::SERVICE_UNAVAILABLE,
                "too many concurrent reviews: try again",
            ));
        }
        body.extend_from_slice(&piece);
    }
    Ok(body)
}

/// Returns the AdmissionReview with the response.
pub(super) fn response(uid: &str, decision: &Decision) -> Value {
    let mut response = json!({ "uid": uid, "allowed": !matches!(decision, Decision::Denied(_)) });
    match decision {
        Decision::Allowed => {}
        Decision::Denied(message) => {
            response["status"] =
                json!({ "status": "Failure", "message": message, "reason": "Invalid", "code": 422 });
        }
        Decision::Patched(spec) => {
            // `add` replaces a spec that is there.
            let patch = format!(r#"[{{"op":"add","path":"/spec","value":{spec}}}]"#);
            response["patchType"] = "JSONPatch".into();
            // Serializes to base64.
            response["patch"] = json!(k8s_openapi::ByteString(patch.into_bytes()));
        }
    }
    json!({ "apiVersion": "admission.k8s.io/v1", "kind": "AdmissionReview", "response": response })
}

/// Returns the API server's timeout, which it sends as `timeout=10s`.
fn timeout(query: &str) -> Duration {
    let given = query.split('&').find_map(|pair| pair.strip_prefix("timeout="));
    let given = given.and_then(|text| text.parse::<jiff::SignedDuration>().ok());
    let given = given.and_then(|given| Duration::try_from(given).ok());
    given.unwrap_or(MAX_TIMEOUT).min(MAX_TIMEOUT)
}

/// Returns the size of a request's body, if the caller says it.
fn length(request: &Request<Incoming>) -> Option<usize> {
    let length = request.headers().get(CONTENT_LENGTH)?;
    length.to_str().ok()?.parse().ok()
}

/// Answers with a text. It is cut, since it may quote the request, and nothing else limits the memory of answers that
/// nobody reads.
fn plain(status: StatusCode, body: &str) -> Response<Answer> {
    let answer = Answer::new(vec![format!("{}\n", shorten(body, WORDS)).into()]);
    respond(status, "text/plain; charset=utf-8", answer)
}

/// Asks the API server to send a request again, with another connection. The API server reports the text if that does not
/// help, which it does not do with the text of a 503.
fn again(body: &str) -> Response<Answer> {
    let mut response = plain(StatusCode::INTERNAL_SERVER_ERROR, body);
    let headers = response.headers_mut();
    headers.insert(RETRY_AFTER, HeaderValue::from_static("1"));
    headers.insert(CONNECTION, HeaderValue::from_static("close"));
    response
}

fn respond(status: StatusCode, type_: &'static str, answer: Answer) -> Response<Answer> {
    let mut response = Response::new(answer);
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

    #[test]
    fn the_words_of_an_answer_are_few_whatever_they_quote() {
        for (words, expected) in [("no", 3), (&*"é".repeat(1 << 20), WORDS + 1)] {
            for answer in [plain(StatusCode::BAD_REQUEST, words), again(words)] {
                let length = answer.into_body().len();
                assert!(length <= expected && length + 2 > expected, "{length}");
            }
        }
    }
}
