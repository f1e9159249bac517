//! The HTTP client that carries OTLP: the host's own hyper and rustls instead of another HTTP stack.

use bytes::Bytes;
use http_body_util::{BodyExt, Full, Limited};
use hyper_rustls::{HttpsConnector, HttpsConnectorBuilder};
use hyper_util::client::legacy::Client;
use hyper_util::client::legacy::connect::HttpConnector;
use hyper_util::rt::TokioExecutor;
use opentelemetry_http::{HttpClient, HttpError, Request, Response};
use tokio::runtime::Handle;

/// A collector answers in a few bytes.
const MAX_RESPONSE: usize = 1 << 20;

/// Sends from any thread; the work is done on the runtime that made it.
#[derive(Debug)]
pub(super) struct Http {
    client: Client<HttpsConnector<HttpConnector>, Full<Bytes>>,
    runtime: Handle,
}

impl Http {
    /// Needs a runtime around it.
    pub(super) fn new(tls: rustls::ClientConfig) -> Self {
        let connector = HttpsConnectorBuilder::new()
            .with_tls_config(tls)
            .https_or_http()
            .enable_http1()
            .build();
        let client = Client::builder(TokioExecutor::new()).build(connector);
        Self {
            client,
            runtime: Handle::current(),
        }
    }
}

#[async_trait::async_trait]
impl HttpClient for Http {
    async fn send_bytes(&self, request: Request<Bytes>) -> Result<Response<Bytes>, HttpError> {
        let client = self.client.clone();
        // The exporters' threads are not tokio's.
        let exchange = self.runtime.spawn(async move {
            let (parts, body) = client.request(request.map(Full::new)).await?.into_parts();
            let body = Limited::new(body, MAX_RESPONSE).collect().await?.to_bytes();
            Ok(Response::from_parts(parts, body))
        });
        exchange.await?
    }
}
