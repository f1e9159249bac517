//! Clients without Nagle's algorithm.

use hyper_util::{
    client::legacy::{Client as HttpClient, connect::HttpConnector},
    rt::TokioExecutor,
};
use k8s_openapi::api::core::v1::Namespace;
use kube::{
    Api, Client, Config,
    api::PostParams,
    client::{Body, ConfigExt},
    config::{KubeConfigOptions, Kubeconfig},
};
use std::path::Path;
use tower::ServiceBuilder;

/// Creates a client for `config` with TCP_NODELAY. Without it, which is kube 5.0's default, the first list and the
/// first write on each connection wait 40 ms for a delayed acknowledgement.
///
/// Its connections belong to the tokio runtime in which it is used.
pub fn connect(config: &Config) -> anyhow::Result<Client> {
    let mut tcp = HttpConnector::new();
    tcp.enforce_http(false);
    tcp.set_nodelay(true);
    let tls = config.rustls_https_connector_with_connector(tcp)?;
    let service = ServiceBuilder::new()
        .layer(config.base_uri_layer())
        .option_layer(config.auth_layer()?)
        .layer(config.extra_headers_layer()?)
        .map_err(tower::BoxError::from)
        .service(HttpClient::builder(TokioExecutor::new()).build::<_, Body>(tls));
    Ok(Client::new(service, config.default_namespace.clone()))
}

/// Returns the client configuration of a kubeconfig file's current context.
pub(crate) async fn config_of(kubeconfig: &Path) -> anyhow::Result<Config> {
    let kubeconfig = Kubeconfig::read_from(kubeconfig)?;
    Ok(Config::from_custom_kubeconfig(kubeconfig, &KubeConfigOptions::default()).await?)
}

/// Creates a namespace, unless it exists.
pub async fn create_namespace(client: &Client, name: &str) -> anyhow::Result<()> {
    let mut namespace = Namespace::default();
    namespace.metadata.name = Some(name.to_owned());
    let namespaces = Api::all(client.clone());
    match namespaces.create(&PostParams::default(), &namespace).await {
        Err(kube::Error::Api(status)) if status.is_already_exists() => Ok(()),
        created => Ok(created.map(drop)?),
    }
}
