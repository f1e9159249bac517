//! The connection to the API server.

mod measured;
mod reach;

use std::sync::Arc;
use std::time::Duration;

use hyper_util::client::legacy::connect::HttpConnector;
use hyper_util::rt::TokioExecutor;
use kube::client::{Body, ClientBuilder, ConfigExt};
use kube::{Client, Config};
use thiserror::Error;
use tower::BoxError;

use crate::metrics::Metrics;

use self::measured::Measured;
pub(crate) use self::reach::chain;

/// The silence after which the other end of a connection is asked whether it is there, and the time between two
/// such questions.
const KEEPALIVE: Duration = Duration::from_secs(15);

/// Why there is no client.
#[derive(Debug, Error)]
pub enum ClientError {
    /// Neither `KUBECONFIG`, nor `~/.kube/config`, nor a service account names a cluster.
    #[error("no cluster to connect to: {0}; set KUBECONFIG, or run inside a cluster with a service account")]
    Config(#[from] kube::config::InferConfigError),
    /// The configuration wants a proxy, which this host does not speak to.
    #[error("the cluster's configuration asks for the proxy {0}, which operator-host does not support; leave `proxy-url` out")]
    Proxy(String),
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
    let config = Config::infer().await?;
    if let Some(proxy) = &config.proxy_url {
        return Err(ClientError::Proxy(proxy.to_string()));
    }
    let mut connector = HttpConnector::new();
    connector.enforce_http(false);
    connector.set_nodelay(true);
    connector.set_connect_timeout(config.connect_timeout);
    // A watch may be silent for minutes; a connection that was cut without a word must not be taken for one.
    connector.set_keepalive(Some(KEEPALIVE));
    connector.set_keepalive_interval(Some(KEEPALIVE));
    connector.set_keepalive_retries(Some(2));
    let https = config.rustls_https_connector_with_connector(connector)?;
    let transport = hyper_util::client::legacy::Client::builder(TokioExecutor::new()).build::<_, Body>(https);
    let service = tower::ServiceBuilder::new()
        .layer_fn(|service| Measured::new(service, Arc::clone(&metrics)))
        .layer(config.base_uri_layer())
        .option_layer(config.auth_layer()?)
        .layer(config.extra_headers_layer()?)
        .map_err(BoxError::from)
        .map_result(reach::listen())
        .service(transport);
    Ok(ClientBuilder::new(service, config.default_namespace).build())
}
