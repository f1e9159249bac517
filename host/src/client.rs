//! The connection to the API server.

mod reach;

use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::Instant;

use futures::future::BoxFuture;
use hyper::{Method, Request, Response};
use hyper_util::client::legacy::connect::HttpConnector;
use hyper_util::rt::TokioExecutor;
use kube::client::{Body, ClientBuilder, ConfigExt};
use kube::{Client, Config};
use thiserror::Error;
use tower::{BoxError, Service};

use crate::metrics::Metrics;

pub(crate) use self::reach::chain;

/// Why there is no client.
#[derive(Debug, Error)]
pub enum ClientError {
    /// Neither `KUBECONFIG`, nor `~/.kube/config`, nor a service account names a cluster.
    #[error("no cluster to connect to: {0}; set KUBECONFIG, or run inside a cluster with a service account")]
    Config(#[from] kube::config::InferConfigError),
    /// The configuration names a cluster, but cannot be used.
    #[error("cannot use the cluster's configuration: {0}")]
    Setup(#[from] kube::Error),
}

/// Connects as `kubectl` would: `KUBECONFIG`, `~/.kube/config`, or the pod's service account.
///
/// kube's own default leaves Nagle's algorithm on, which costs 40 ms at the first list and again at the first
/// write. So the connector is made here, with `TCP_NODELAY`; the layers above it are kube's.
///
/// # Errors
/// When there is no configuration or it cannot be used. Nothing is sent yet.
pub async fn connect(metrics: Arc<Metrics>) -> Result<Client, ClientError> {
    // `install_default` fails only when a provider is installed already, which is as good.
    let _ = rustls::crypto::aws_lc_rs::default_provider().install_default();
    let mut config = Config::infer().await?;
    // A watch is silent for up to five minutes; kube bounds it by its own idle time-out.
    config.read_timeout = None;
    let mut connector = HttpConnector::new();
    connector.enforce_http(false);
    connector.set_nodelay(true);
    connector.set_connect_timeout(config.connect_timeout);
    let https = config.rustls_https_connector_with_connector(connector)?;
    let transport = hyper_util::client::legacy::Client::builder(TokioExecutor::new()).build::<_, Body>(https);
    let service = tower::ServiceBuilder::new()
        .layer_fn(|service| Measured {
            service,
            metrics: Arc::clone(&metrics),
        })
        .layer(config.base_uri_layer())
        .option_layer(config.auth_layer()?)
        .layer(config.extra_headers_layer()?)
        .map_err(BoxError::from)
        .map_result(reach::listen())
        .service(transport);
    Ok(ClientBuilder::new(service, config.default_namespace).build())
}

/// Measures every request to the API server: those of watches, of discovery and of Events too.
#[derive(Clone)]
struct Measured<S> {
    service: S,
    metrics: Arc<Metrics>,
}

impl<S, B, R> Service<Request<B>> for Measured<S>
where
    S: Service<Request<B>, Response = Response<R>>,
    S::Future: Send + 'static,
    S::Error: 'static,
    R: 'static,
{
    type Response = Response<R>;
    type Error = S::Error;
    type Future = BoxFuture<'static, Result<Self::Response, Self::Error>>;

    fn poll_ready(&mut self, context: &mut Context<'_>) -> Poll<Result<(), Self::Error>> {
        self.service.poll_ready(context)
    }

    fn call(&mut self, request: Request<B>) -> Self::Future {
        let path = Path::parse(request.uri().path());
        let (group, plural) = (path.group.to_owned(), path.plural.to_owned());
        let verb = verb(request.method(), &path, request.uri().query().unwrap_or_default());
        let metrics = Arc::clone(&self.metrics);
        let start = Instant::now();
        let answer = self.service.call(request);
        Box::pin(async move {
            let answer = answer.await;
            let code = answer.as_ref().ok().map(|answer| answer.status().as_u16());
            metrics.api_request(verb, &group, &plural, code, start.elapsed());
            answer
        })
    }
}

/// What the path of a request to the API server says.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Path<'a> {
    group: &'a str,
    /// Empty for a request that is about no resource, such as discovery.
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
        // The version.
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

/// The verb as Kubernetes' authorization and audit log have it.
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
    fn a_request_is_told_by_its_path() {
        let of = |path| Path::parse(path);
        assert_eq!(
            of("/api/v1/namespaces/a/pods/b"),
            Path {
                group: "",
                plural: "pods",
                named: true
            }
        );
        assert_eq!(
            of("/api/v1/namespaces/a"),
            Path {
                group: "",
                plural: "namespaces",
                named: true
            }
        );
        assert_eq!(
            of("/apis/g.dev/v1/things"),
            Path {
                group: "g.dev",
                plural: "things",
                named: false
            }
        );
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
