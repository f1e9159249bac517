//! The HTTPS server that the API server calls.

use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use axum::body::{Body, HttpBody};
use axum::extract::{RawQuery, State};
use axum::response::{IntoResponse, Response};
use axum::routing::post;
use axum::{Extension, Router};
use bytes::Bytes;
use futures::stream;
use http_body_util::{BodyExt, LengthLimitError, Limited};
use hyper::StatusCode;
use hyper::header::{CONNECTION, CONTENT_LENGTH, CONTENT_TYPE, RETRY_AFTER};
use serde_json::{Value, json};
use thiserror::Error;
use tokio::net::TcpListener;
use tokio::sync::watch;
use tokio::time::{Instant, timeout};
use tokio_util::sync::CancellationToken;
use tracing::{debug, info};

use super::bounds::{Asker, Part, Rooms};
use super::conversion_review::{self, ConversionReview};
use super::review::Review;
use super::{Decision, NoDecision, WORDS, WebhookTargets, certificates};
use operator_host_config::webhook::WebhookConfig;
use operator_host_core::text::shorten;
use operator_host_instruments::Instruments;
use operator_host_instruments::server::Caller;
use operator_host_telemetry::metrics::Metrics;

/// The path for reviews.
pub const PATH: &str = "/validate";
/// The path for conversions.
pub const CONVERT_PATH: &str = "/convert";
/// The path for defaults.
pub const DEFAULT_PATH: &str = "/default";
/// Timeout of the body of a request.
const BODY_TIMEOUT: Duration = Duration::from_secs(10);
/// The API server's own maximum timeout.
const MAX_TIMEOUT: Duration = Duration::from_secs(30);
/// The part of a request's time that remains for the answer when the search for a wrong object ends.
const ANSWER_PART: u32 = 20;
/// Maximum number of connections: an API server opens one per waiting review.
const CONNECTIONS: usize = 256;
/// How long a connection lasts, and with it the part of a caller that does not read its answer.
const LIFE: Duration = Duration::from_secs(60);
/// Maximum size of a request's head.
const HEAD: usize = 64 << 10;

/// The webhook's address cannot be used.
#[derive(Debug, Error)]
#[error("cannot listen on {address} for the webhook: {error}; choose another as `webhook.address`")]
pub struct ServerError {
    address: SocketAddr,
    error: std::io::Error,
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
    let failed = |error| ServerError { address, error };
    let listener = TcpListener::bind(address).await.map_err(failed)?;
    info!(address = %listener.local_addr().map_err(failed)?, path = PATH, "serving the webhook");
    let webhook = Arc::new(Webhook {
        webhook_targets,
        metrics: Arc::clone(&instruments.metrics),
        rooms: Rooms::new(memory),
        verifies: config.client_ca.is_some(),
    });
    if !webhook.verifies {
        info!(
            "the webhook answers every caller that reaches it; set --client-ca to require a client certificate"
        );
    }
    let current = watch::Sender::default();
    let server = operator_host_instruments::server::Server {
        what: "the webhook",
        router: router(webhook),
        connections: CONNECTIONS,
        head: HEAD,
        life: LIFE,
        tls: Some(current.subscribe()),
        stop,
    };
    let Instruments { metrics, health, .. } = instruments;
    tokio::spawn(certificates::follow(config, current, move |state| {
        metrics.set_webhook(state.is_ok());
        health.webhook(state.clone().unwrap_or_else(Some).unwrap_or_default());
    }));
    tokio::spawn(server.serve(listener));
    Ok(())
}

/// What the API server asks.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Ask {
    Validate,
    Default,
    Convert,
}

/// The state that all requests share.
struct Webhook {
    webhook_targets: Arc<WebhookTargets>,
    metrics: Arc<Metrics>,
    rooms: Rooms,
    /// Whether every caller but one of a conversion must show a verified certificate.
    verifies: bool,
}

fn router(webhook: Arc<Webhook>) -> Router {
    let ask = |ask| {
        post(
            async move |State(webhook): State<Arc<Webhook>>,
                        Extension(caller): Extension<Caller>,
                        RawQuery(query): RawQuery,
                        body: Body| webhook.answer(ask, &caller, query, body).await,
        )
    };
    let paths = format!("send reviews to {PATH}, {DEFAULT_PATH} or {CONVERT_PATH}\n");
    Router::new()
        .route(PATH, ask(Ask::Validate))
        .route(DEFAULT_PATH, ask(Ask::Default))
        .route(CONVERT_PATH, ask(Ask::Convert))
        .fallback((StatusCode::NOT_FOUND, paths))
        .with_state(webhook)
}

impl Webhook {
    async fn answer(&self, ask: Ask, caller: &Caller, query: Option<String>, body: Body) -> Response {
        let _in_use = caller.keep_place();
        if self.verifies && !caller.is_verified && ask != Ask::Convert {
            let words = "show a certificate of the authority of --client-ca";
            return plain(StatusCode::FORBIDDEN, words);
        }
        let limit = time_limit(&query.unwrap_or_default());
        let until = Instant::now() + limit;
        let answer = async {
            match ask {
                Ask::Convert => self.convert(body, caller, until - limit / ANSWER_PART).await,
                Ask::Validate | Ask::Default => self.review(body, ask, caller).await,
            }
        };
        match timeout(limit, answer).await {
            Ok(Ok(response) | Err(response)) => response,
            Err(_elapsed) => {
                match ask {
                    Ask::Convert => self.metrics.conversion("", "failed"),
                    Ask::Validate | Ask::Default => self.metrics.admission("", "failed"),
                }
                let words = format!("no decision within {limit:?}");
                plain(StatusCode::INTERNAL_SERVER_ERROR, &words)
            }
        }
    }

    async fn review(&self, body: Body, ask: Ask, caller: &Caller) -> Result<Response, Response> {
        let asker = self.asker(caller);
        let (body, part) = read(body, asker, self.rooms.sizes.review).await?;
        let review = Review::parse(&body).map_err(|error| no_review("an AdmissionReview", &error))?;
        let (controller, decision) = self.webhook_targets.decide(&review, ask, asker).await;
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
        let decision =
            decision.map_err(|error| plain(StatusCode::INTERNAL_SERVER_ERROR, words(&error, caller)))?;
        let text = response(&review.uid, &decision).to_string();
        Ok(respond(vec![text.into()], vec![part]))
    }

    async fn convert(&self, body: Body, caller: &Caller, until: Instant) -> Result<Response, Response> {
        let asker = self.asker(caller);
        let (body, part) = read(body, asker, self.rooms.sizes.conversion).await?;
        let review = ConversionReview::parse(&body);
        let review = review.map_err(|error| no_review("a ConversionReview", &error))?;
        let targets = &self.webhook_targets;
        let (controller, converted) = targets.convert(&review, body.len(), asker, until).await;
        let result = if converted.is_ok() { "converted" } else { "failed" };
        self.metrics.conversion(&controller, result);
        debug!(
            controller,
            to = review.to,
            objects = review.objects.len(),
            result,
            "converted"
        );
        let mut parts = vec![part];
        let converted = match converted {
            Ok((objects, part)) => {
                parts.extend(part);
                Ok(objects)
            }
            Err(error) if error.try_again => return Err(again(words(&error, caller))),
            Err(error) => Err(words(&error, caller).to_owned()),
        };
        let pieces = conversion_review::response(&review.uid, converted);
        Ok(respond(pieces, parts))
    }

    const fn asker(&self, caller: &Caller) -> Asker<'_> {
        Asker {
            peer: caller.peer,
            rooms: &self.rooms,
        }
    }
}

/// Returns why there is no decision, for this caller.
fn words<'a>(error: &'a NoDecision, caller: &Caller) -> &'a str {
    match caller.is_verified {
        true => &error.detail,
        false => &error.public,
    }
}

/// Reads a whole body of a limited size when there is room for it. Returns it with its part of the room.
async fn read(body: Body, asker: Asker<'_>, limit: usize) -> Result<(Vec<u8>, Part), Response> {
    let words = format!("the limit for a review is {limit} bytes");
    let too_large = || plain(StatusCode::PAYLOAD_TOO_LARGE, &words);
    // Without a length, it may be as long as the limit.
    let length = body.size_hint().exact().map_or(Ok(limit), usize::try_from);
    let length = length.ok().filter(|length| *length <= limit);
    let length = length.ok_or_else(too_large)?;
    let part = asker.rooms.bodies.take(asker.peer, length).await;
    let reading = async {
        let mut body = Limited::new(body, limit);
        let mut text = Vec::new();
        while let Some(frame) = body.frame().await {
            let frame = frame.map_err(|error| match error.is::<LengthLimitError>() {
                true => too_large(),
                false => plain(StatusCode::BAD_REQUEST, &error.to_string()),
            })?;
            text.extend_from_slice(frame.data_ref().map_or(&[], |data| data));
        }
        Ok((text, part))
    };
    let words = "the body did not arrive in time";
    match timeout(BODY_TIMEOUT, reading).await {
        Ok(read) => read,
        Err(_elapsed) => Err(plain(StatusCode::REQUEST_TIMEOUT, words)),
    }
}

fn no_review(expected: &str, error: &str) -> Response {
    plain(StatusCode::BAD_REQUEST, &format!("not {expected}: {error}"))
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
fn time_limit(query: &str) -> Duration {
    let given = query.split('&').find_map(|pair| pair.strip_prefix("timeout="));
    let given = given.and_then(|text| text.parse::<jiff::SignedDuration>().ok());
    let given = given.and_then(|given| Duration::try_from(given).ok());
    given.unwrap_or(MAX_TIMEOUT).min(MAX_TIMEOUT)
}

/// Answers with a text. It is cut, since it may quote the request, and nothing else limits the memory of answers that
/// nobody reads.
fn plain(status: StatusCode, body: &str) -> Response {
    (status, format!("{}\n", shorten(body, WORDS))).into_response()
}

/// Asks the API server to send a request again, with another connection. The API server reports the text if that does not
/// help, which it does not do with the text of a 503.
fn again(body: &str) -> Response {
    let headers = [(RETRY_AFTER, "1"), (CONNECTION, "close")];
    (headers, plain(StatusCode::INTERNAL_SERVER_ERROR, body)).into_response()
}

/// Answers with JSON in pieces, whose parts end when the last piece is sent.
fn respond(mut pieces: Vec<Bytes>, parts: Vec<Part>) -> Response {
    let length: usize = pieces.iter().map(Bytes::len).sum();
    if let Some(last) = pieces.pop() {
        pieces.push(Bytes::from_owner(Sent(last, parts)));
    }
    let headers = [
        (CONTENT_TYPE, "application/json".to_owned()),
        (CONTENT_LENGTH, length.to_string()),
    ];
    let pieces = pieces.into_iter().map(Ok::<_, std::convert::Infallible>);
    (headers, Body::from_stream(stream::iter(pieces))).into_response()
}

/// Bytes that keep parts until they are sent.
struct Sent(
    Bytes,
    #[expect(dead_code, reason = "held until it is dropped")] Vec<Part>,
);

impl AsRef<[u8]> for Sent {
    fn as_ref(&self) -> &[u8] {
        &self.0
    }
}

#[cfg(test)]
mod tests {
    use futures::FutureExt;

    use super::super::bounds::Sizes;
    use super::*;

    #[test]
    fn the_time_is_what_the_api_server_gives() {
        assert_eq!(time_limit("timeout=3s"), Duration::from_secs(3));
        assert_eq!(time_limit("a=b&timeout=1m30s"), MAX_TIMEOUT);
        for bad in ["", "timeout=", "timeout=-3s", "timeout=soon"] {
            assert_eq!(time_limit(bad), MAX_TIMEOUT, "{bad}");
        }
    }

    #[tokio::test]
    async fn an_answer_holds_its_room_until_its_last_piece_is_sent() {
        let room = Rooms::new(usize::MAX).work;
        let peer = std::net::IpAddr::from([10, 0, 0, 1]);
        let all = Sizes::FULL.object;
        let part = room.take(peer, all).await;
        let pieces = vec![Bytes::from_static(b"[1"), Bytes::from_static(b"]")];
        let answer = respond(pieces, vec![part]);
        assert_eq!(answer.headers()[CONTENT_LENGTH], "3");
        let mut body = answer.into_body();
        let first = body.frame().await.unwrap().unwrap().into_data().unwrap();
        let last = body.frame().await.unwrap().unwrap().into_data().unwrap();
        assert_eq!([first, last.clone()].concat(), b"[1]");
        assert!(body.frame().await.is_none());
        drop(body);
        assert!(
            room.take(peer, all).now_or_never().is_none(),
            "the connection has not sent it"
        );
        drop(last);
        assert!(room.take(peer, all).now_or_never().is_some());
    }

    #[test]
    fn the_words_of_an_answer_are_few_whatever_they_quote() {
        for (words, expected) in [("no", 3), (&*"é".repeat(1 << 20), WORDS + 1)] {
            for answer in [plain(StatusCode::BAD_REQUEST, words), again(words)] {
                let length = answer.into_body().size_hint().exact().unwrap();
                let length = usize::try_from(length).unwrap();
                assert!(length <= expected && length + 2 > expected, "{length}");
            }
        }
    }
}
