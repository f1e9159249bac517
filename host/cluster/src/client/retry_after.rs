//! Preserves the `Retry-After` header: kube builds its error from the response body alone.

use std::fmt::Write as _;

use http_body_util::combinators::UnsyncBoxBody;
use http_body_util::{BodyExt, Full, LengthLimitError, Limited};
use hyper::body::{Body as HttpBody, Bytes};
use hyper::header::RETRY_AFTER;
use hyper::{Response, StatusCode};
use serde_json::{Value, json};
use tower::BoxError;

/// Maximum number of bytes read of a refusal. The API server's are a few hundred bytes.
const MAX_REFUSAL: usize = 64 * 1024;

/// Copies the `Retry-After` header of a refusal into its body, where the API server itself sometimes puts it:
/// `details.retryAfterSeconds` of a `Status`. Other responses are unchanged.
///
/// # Errors
/// When the body cannot be read completely.
pub(super) async fn keep<B>(
    response: Response<B>,
) -> Result<Response<UnsyncBoxBody<Bytes, BoxError>>, BoxError>
where
    B: HttpBody<Data = Bytes> + Send + 'static,
    B::Error: Into<BoxError>,
{
    let seconds = response.headers().get(RETRY_AFTER);
    // The header may also contain a date, which API servers do not send.
    let seconds = seconds.and_then(|value| value.to_str().ok()?.trim().parse::<u32>().ok());
    let Some(seconds) = seconds.filter(|_| is_refusal(response.status())) else {
        return Ok(response.map(|body| body.map_err(Into::into).boxed_unsync()));
    };
    let (parts, body) = response.into_parts();
    let text = match Limited::new(body, MAX_REFUSAL).collect().await {
        Ok(body) => body.to_bytes(),
        // The status and the delay say more than the page of a proxy.
        Err(error) if error.is::<LengthLimitError>() => Bytes::new(),
        Err(error) => return Err(error),
    };
    let body = Full::from(with_delay(parts.status, &text, seconds));
    Ok(Response::from_parts(
        parts,
        body.map_err(|never| match never {}).boxed_unsync(),
    ))
}

fn is_refusal(status: StatusCode) -> bool {
    status.is_client_error() || status.is_server_error()
}

fn with_delay(code: StatusCode, text: &[u8], seconds: u32) -> String {
    let parsed = serde_json::from_slice::<Value>(text).ok();
    let mut status = parsed.filter(|value| value["kind"] == "Status").unwrap_or_else(|| {
        let mut message = String::from_utf8_lossy(text).trim().to_owned();
        if message.is_empty() {
            let _ = write!(message, "{code}");
        }
        json!({ "kind": "Status", "apiVersion": "v1", "status": "Failure", "reason": "", "message": message,
            "code": code.as_u16() })
    });
    let details = &mut status["details"];
    if !details.is_object() {
        *details = json!({});
    }
    if details["retryAfterSeconds"].as_u64().unwrap_or_default() == 0 {
        details["retryAfterSeconds"] = seconds.into();
    }
    status.to_string()
}

#[cfg(test)]
mod tests {
    use super::*;

    async fn body_of(code: u16, retry_after: Option<&str>, text: impl Into<Bytes>) -> String {
        let mut response = Response::builder().status(code);
        if let Some(value) = retry_after {
            response = response.header(RETRY_AFTER, value);
        }
        let response = response.body(Full::new(text.into())).unwrap();
        let answer = keep(response).await.unwrap();
        let bytes = answer.into_body().collect().await.unwrap().to_bytes();
        String::from_utf8(bytes.to_vec()).unwrap()
    }

    /// Returns the delay in the body that kube would get.
    fn delay(text: &str) -> u32 {
        let status: kube::core::Status = serde_json::from_str(text).unwrap();
        status.details.map_or(0, |details| details.retry_after_seconds)
    }

    #[tokio::test]
    async fn a_header_becomes_part_of_the_status_and_the_words_stay() {
        let text = body_of(429, Some("7"), "Too many requests, please try again later.\n").await;
        assert_eq!(delay(&text), 7);
        assert!(
            text.contains("Too many requests") && text.contains("429"),
            "{text}"
        );
        let status = r#"{"kind":"Status","apiVersion":"v1","status":"Failure","message":"m","reason":"r","code":503,
            "details":{"name":"n","retryAfterSeconds":3}}"#;
        let text = body_of(503, Some("7"), status).await;
        assert_eq!(delay(&text), 3, "the value in the body comes first");
        assert!(text.contains("\"n\""), "{text}");
    }

    #[tokio::test]
    async fn the_long_page_of_a_proxy_hides_neither_status_nor_delay() {
        let text = body_of(503, Some("7"), vec![b'x'; MAX_REFUSAL + 1]).await;
        assert_eq!(delay(&text), 7);
        assert!(text.contains("503") && text.len() < 1000, "{text}");
    }

    #[tokio::test]
    async fn a_response_that_is_no_refusal_or_has_no_seconds_stays_as_it_is() {
        assert_eq!(body_of(200, Some("7"), "fine").await, "fine");
        assert_eq!(body_of(429, None, "no").await, "no");
        assert_eq!(
            body_of(429, Some("Wed, 21 Oct 2026 07:28:00 GMT"), "no").await,
            "no"
        );
        assert_eq!(body_of(429, Some("-1"), "no").await, "no");
    }
}
