//! Counts every request to the API server by verb, kind and response code, and observes it as an HTTP request.

use std::sync::Arc;
use std::task::{Context, Poll};

use futures::future::BoxFuture;
use hyper::{Method, Request, Response, Uri};
use hyper_util::client::legacy;
use tower::{BoxError, Service};

use operator_host_telemetry::http_client;
use operator_host_telemetry::http_client::Target;
use operator_host_telemetry::metrics::Metrics;

/// Measures every request to the API server, including those of watches, discovery and Events.
#[derive(Clone)]
pub(super) struct Measured<S> {
    service: S,
    metrics: Arc<Metrics>,
    /// Where the API server is, which may be a path of a proxy.
    server: Uri,
}

impl<S> Measured<S> {
    pub(super) fn new(service: S, metrics: Arc<Metrics>, server: Uri) -> Self {
        Self {
            service,
            metrics,
            server,
        }
    }
}

impl<S, B, R> Service<Request<B>> for Measured<S>
where
    S: Service<Request<B>, Response = Response<R>, Error = BoxError>,
    S::Future: Send + 'static,
    R: 'static,
{
    type Response = Response<R>;
    type Error = S::Error;
    type Future = BoxFuture<'static, Result<Self::Response, Self::Error>>;

    fn poll_ready(&mut self, context: &mut Context<'_>) -> Poll<Result<(), Self::Error>> {
        self.service.poll_ready(context)
    }

    fn call(&mut self, request: Request<B>) -> Self::Future {
        let path = request.uri().path();
        let prefix = self.server.path().trim_end_matches('/');
        let path = Path::parse(path.strip_prefix(prefix).unwrap_or(path));
        let (group, plural) = (path.group.to_owned(), path.plural.to_owned());
        let verb = verb(request.method(), &path, request.uri().query().unwrap_or_default());
        let metrics = Arc::clone(&self.metrics);
        let target = Target::of(&request, true);
        let answer = self.service.call(request);
        Box::pin(async move {
            let answer = http_client::observe(&metrics, target, answer, class).await;
            let code = answer.as_ref().ok().map(|answer| answer.status().as_u16());
            metrics.api_request(verb, &group, &plural, code);
            answer
        })
    }
}

/// Returns the `error.type` of a request without response.
fn class(error: &BoxError) -> &'static str {
    match error.downcast_ref::<legacy::Error>() {
        Some(error) if error.is_connect() => "connect",
        _ => http_client::OTHER,
    }
}

/// The parts of a request path.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Path<'a> {
    group: &'a str,
    /// Empty for a request without a resource, such as discovery.
    plural: &'a str,
    named: bool,
}

impl<'a> Path<'a> {
    /// `/api/v1/…` or `/apis/GROUP/VERSION/…`, then `[namespaces/NAMESPACE/]PLURAL[/NAME[/SUBRESOURCE]]`.
    fn parse(path: &'a str) -> Self {
        let mut parts = path.split('/').filter(|part| !part.is_empty());
        let group = match parts.next() {
            Some("apis") => parts.next().unwrap_or_default(),
            _ => "",
        };
        // Skip the version.
        parts.next();
        let mut rest: Vec<&str> = parts.collect();
        if rest.first() == Some(&"namespaces") && rest.len() > 2 {
            rest.drain(..2);
        }
        Self {
            group,
            plural: rest.first().copied().unwrap_or_default(),
            named: rest.len() > 1,
        }
    }
}

/// Returns the verb that Kubernetes' authorization and audit log use.
fn verb(method: &Method, path: &Path<'_>, query: &str) -> &'static str {
    let watches = || {
        query
            .split('&')
            .any(|pair| matches!(pair, "watch=true" | "watch=1"))
    };
    match method.as_str() {
        "POST" => "create",
        "PUT" => "update",
        "PATCH" => "patch",
        "DELETE" => "delete",
        _ if watches() => "watch",
        _ if path.named || path.plural.is_empty() => "get",
        _ => "list",
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_request_is_recognized_by_its_path() {
        let of = |path| Path::parse(path);
        let is = |path, group, plural, named| {
            let expected = Path { group, plural, named };
            assert_eq!(of(path), expected);
        };
        is("/api/v1/namespaces/a/pods/b", "", "pods", true);
        is("/api/v1/namespaces/a", "", "namespaces", true);
        is("/apis/g.dev/v1/things", "g.dev", "things", false);
        assert_eq!(of("/apis/g.dev/v1/namespaces/a/things/b/status").plural, "things");
        assert_eq!(of("/apis/g.dev/v1").plural, "");
        assert_eq!(of("/version").plural, "");
    }

    #[test]
    fn verbs_are_those_of_the_audit_log() {
        let verb = |method, path, query| verb(&method, &Path::parse(path), query);
        assert_eq!(verb(Method::GET, "/api/v1/pods", "watch=true&limit=1"), "watch");
        assert_eq!(verb(Method::GET, "/api/v1/pods", ""), "list");
        assert_eq!(verb(Method::GET, "/api/v1/namespaces/a/pods/b", ""), "get");
        assert_eq!(
            verb(Method::PATCH, "/api/v1/namespaces/a/pods/b", "force=true"),
            "patch"
        );
        assert_eq!(verb(Method::GET, "/apis/g.dev/v1", ""), "get");
    }
}
