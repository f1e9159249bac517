//! Whom the host trusts, and the span and the duration of each HTTP request that it sends, to the API server and to registries, by
//! OpenTelemetry's conventions for HTTP clients. Source: <https://opentelemetry.io/docs/specs/semconv/http/>.
//!
//! A request ends when its response begins, as the conventions recommend for a body that nobody may read to its end. This
//! is why a watch is measured like any other request.

use std::future::Future;
use std::sync::Arc;
use std::time::{Duration, Instant};

use hyper::header::RETRY_AFTER;
use hyper::{Method, Request, Response, StatusCode, Uri};
use opentelemetry::KeyValue;
use opentelemetry::trace::Status;
use rustls::pki_types::CertificateDer;
use rustls::pki_types::pem::PemObject as _;
use rustls::{ClientConfig, RootCertStore};
use tracing::field::Empty;
use tracing::{Span, info_span};
use tracing_opentelemetry::OpenTelemetrySpanExt as _;

use crate::metrics::Metrics;
use crate::trace;

/// The class of an error that has no other.
pub const OTHER: &str = "_OTHER";

/// What is sent, and where to.
#[derive(Debug)]
pub struct Target {
    method: &'static str,
    url: Uri,
    is_known: bool,
}

impl Target {
    /// Returns the target of a request. `is_known`: the configuration names the server. The metric calls all others `other`: whoever
    /// chooses where a redirect leads does not choose the values of a label.
    pub fn of<B>(request: &Request<B>, is_known: bool) -> Self {
        Self {
            method: method(request.method()),
            url: request.uri().clone(),
            is_known,
        }
    }
}

/// Waits until the response begins. The span of the request, if the current one is recorded, is below that one. `class`
/// returns the `error.type` of a request without response: one of few words.
pub async fn observe<B, E>(
    metrics: &Arc<Metrics>,
    target: Target,
    request: impl Future<Output = Result<Response<B>, E>>,
    class: impl FnOnce(&E) -> &'static str,
) -> Result<Response<B>, E> {
    let span = trace::child(|| {
        info_span!(
            target: trace::TARGET,
            "request",
            otel.name = target.method,
            otel.kind = "client",
            http.request.method = target.method,
            server.address = target.url.host(),
            server.port = port(&target.url),
            url.full = full(&target.url),
            http.response.status_code = Empty,
        )
    });
    let mut exchange = Exchange {
        metrics,
        target,
        span,
        start: Instant::now(),
        // Whoever waits for a response no longer drops the future.
        end: End::Error("cancelled"),
    };
    let answer = request.await;
    exchange.end = match &answer {
        Ok(response) => End::Status(response.status().as_u16()),
        Err(error) => End::Error(class(error)),
    };
    answer
}

/// Creates the TLS of a client that trusts the authorities of the system, those of a PEM text, or both.
///
/// # Errors
/// Returns why the text cannot be used.
pub fn tls(trusts_system: bool, authorities: Option<&[u8]>) -> Result<ClientConfig, String> {
    let mut roots = RootCertStore::empty();
    if trusts_system {
        roots.add_parsable_certificates(rustls_native_certs::load_native_certs().certs);
    }
    if let Some(pem) = authorities {
        let own: Result<Vec<_>, _> = CertificateDer::pem_slice_iter(pem).collect();
        let (added, _) = roots.add_parsable_certificates(own.map_err(|error| error.to_string())?);
        if added == 0 {
            return Err("it contains no certificate in PEM".to_owned());
        }
    }
    let tls = ClientConfig::builder().with_root_certificates(roots);
    Ok(tls.with_no_client_auth())
}

/// Returns the time that a server asks to wait before the next request; `unnamed` when it has too many and names none. Dates are
/// ignored, since the clocks may differ.
pub fn asks_to_wait<B>(response: &Response<B>, unnamed: Duration) -> Option<Duration> {
    let seconds = response.headers().get(RETRY_AFTER);
    let seconds: Option<u32> = seconds.and_then(|value| value.to_str().ok()?.parse().ok());
    let named = seconds.map(|seconds| Duration::from_secs(seconds.into()));
    match response.status() {
        StatusCode::TOO_MANY_REQUESTS => Some(named.unwrap_or(unnamed)),
        StatusCode::SERVICE_UNAVAILABLE => named,
        _ => None,
    }
}

enum End {
    Status(u16),
    Error(&'static str),
}

/// A request that has begun; it has ended when this is dropped.
struct Exchange<'a> {
    metrics: &'a Metrics,
    target: Target,
    span: Span,
    start: Instant,
    end: End,
}

impl Drop for Exchange<'_> {
    fn drop(&mut self) {
        let Target { method, url, .. } = &self.target;
        let known = Some(url).filter(|_| self.target.is_known);
        let address = known.and_then(Uri::host).unwrap_or("other");
        let mut labels = vec![
            KeyValue::new("http.request.method", *method),
            KeyValue::new("server.address", address.to_owned()),
        ];
        labels.extend(
            known
                .and_then(port)
                .map(|port| KeyValue::new("server.port", port)),
        );
        let error = match self.end {
            End::Status(status) => {
                let status = i64::from(status);
                labels.push(KeyValue::new("http.response.status_code", status));
                self.span.record("http.response.status_code", status);
                (status >= 400).then(|| status.to_string())
            }
            End::Error(class) => Some(class.to_owned()),
        };
        if let Some(error) = error {
            self.span.set_attribute("error.type", error.clone());
            self.span.set_status(Status::error(""));
            labels.push(KeyValue::new("error.type", error));
        }
        self.metrics.http_request(self.start.elapsed(), &labels);
    }
}

/// The methods that the host uses.
fn method(method: &Method) -> &'static str {
    let known = ["GET", "HEAD", "POST", "PUT", "PATCH", "DELETE"];
    let known = known.into_iter().find(|known| method.as_str() == *known);
    known.unwrap_or(OTHER)
}

fn port(url: &Uri) -> Option<i64> {
    let default = match url.scheme_str() {
        Some("https") => Some(443),
        Some("http") => Some(80),
        _ => None,
    };
    url.port_u16().or(default).map(i64::from)
}

/// Returns the URL without the user and without the query, either of which may be as good as a password.
fn full(url: &Uri) -> String {
    let authority = url.authority().map_or("", |it| it.as_str());
    let authority = authority.rsplit_once('@').map_or(authority, |(_, host)| host);
    format!(
        "{}://{authority}{}",
        url.scheme_str().unwrap_or("http"),
        url.path()
    )
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;
    use std::convert::Infallible;

    use opentelemetry::metrics::MeterProvider as _;
    use opentelemetry_sdk::metrics::SdkMeterProvider;

    use super::*;

    #[test]
    fn a_url_is_shown_without_user_and_query() {
        let shown = |url: &str| full(&url.parse().unwrap());
        let expected = "https://r:5000/a/b";
        assert_eq!(shown("https://user:secret@r:5000/a/b?sig=secret"), expected);
        assert_eq!(shown("http://r"), "http://r/");
    }

    /// The labels of the requests in one exposition.
    async fn counted(sent: impl AsyncFnOnce(&Arc<Metrics>)) -> Vec<BTreeMap<String, String>> {
        let registry = prometheus::Registry::new();
        let exporter = opentelemetry_prometheus::exporter().with_registry(registry.clone());
        let provider = SdkMeterProvider::builder()
            .with_reader(exporter.build().unwrap())
            .build();
        sent(&Arc::new(Metrics::new(&provider.meter("test"), Arc::default()))).await;
        let mut families = registry.gather();
        families.retain(|it| it.name() == "http_client_request_duration_seconds");
        let metrics = families.iter().flat_map(|family| family.get_metric());
        let labels = metrics.map(|metric| {
            let labels = metric.get_label().iter();
            let labels = labels.map(|label| (label.name().to_owned(), label.value().to_owned()));
            labels.filter(|(name, _)| !name.starts_with("otel_")).collect()
        });
        labels.collect()
    }

    #[tokio::test]
    async fn an_unknown_server_chooses_no_label_and_an_abandoned_request_is_counted() {
        let answer = |status: u16| async move {
            let mut response = Response::new(());
            *response.status_mut() = status.try_into().unwrap();
            Ok::<_, Infallible>(response)
        };
        let labels = counted(async |metrics| {
            let redirected = Request::get("https://cdn.example.com/x?sig=secret").body(());
            let target = Target::of(&redirected.unwrap(), false);
            let done = observe(metrics, target, answer(200), |never| match *never {});
            done.await.unwrap();
            let put = || {
                let request = Request::put("https://r.example.com/x").body(());
                Target::of(&request.unwrap(), true)
            };
            let never = std::future::pending::<Result<Response<()>, Infallible>>();
            let abandoned = observe(metrics, put(), never, |never| match *never {});
            let time = std::time::Duration::from_millis(1);
            tokio::time::timeout(time, abandoned).await.unwrap_err();
            let done = observe(metrics, put(), answer(503), |never| match *never {});
            done.await.unwrap();
        });
        let labels = labels.await;
        let get = "http_request_method=GET server_address=other http_response_status_code=200";
        let put = "http_request_method=PUT server_address=r.example.com server_port=443";
        for expected in [
            get.to_owned(),
            format!("{put} error_type=cancelled"),
            format!("{put} http_response_status_code=503 error_type=503"),
        ] {
            let pairs = expected.split(' ').map(|pair| pair.split_once('=').unwrap());
            let pairs = pairs.map(|(name, value)| (name.to_owned(), value.to_owned()));
            assert!(
                labels.contains(&pairs.collect()),
                "{expected} is not in {labels:?}"
            );
        }
    }
}
