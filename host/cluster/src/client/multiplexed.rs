//! Sends many requests at the same time over few connections.
//!
//! The response of a watch never ends, so over HTTP/1.1 each takes a connection of its own, with the buffers of its TLS
//! session, here and in the API server. Over HTTP/2 one connection carries many. A proxy without HTTP/2 gets HTTP/1.1.

use std::sync::{Arc, Mutex};
use std::task::{Context, Poll};

use futures::future::BoxFuture;
use http_body_util::BodyExt;
use http_body_util::combinators::UnsyncBoxBody;
use hyper::body::Bytes;
use hyper::{Request, Response};
use hyper_util::client::legacy;
use kube::client::Body;
use tower::Service;

use super::Transport;
use operator_host_core::sync::lock;

/// The most requests at a time over one connection. API servers accept at least 100, and let the rest wait: for ever
/// if the others are watches.
const STREAMS: usize = 64;

/// Creates the transport of another connection.
type Connect = Arc<dyn Fn() -> Transport + Send + Sync>;

/// Connections that requests share. Clones share them, too.
#[derive(Clone)]
pub(super) struct Multiplexed {
    connect: Connect,
    lines: Arc<Mutex<Vec<Line>>>,
}

/// One connection, or over HTTP/1.1 as many as it has requests.
#[derive(Clone)]
struct Line {
    transport: Transport,
    /// Whether a request was answered. Until then there is one at a time: requests that find no connection would
    /// each make one, and all but one are then closed again.
    answered: Arc<tokio::sync::Mutex<bool>>,
    /// Held by each request until its response has ended.
    in_use: Arc<()>,
}

impl Multiplexed {
    pub(super) fn new(connect: impl Fn() -> Transport + Send + Sync + 'static) -> Self {
        Self {
            connect: Arc::new(connect),
            lines: Arc::default(),
        }
    }

    /// Returns the first connection with room.
    fn line(&self) -> Line {
        let mut lines = lock(&self.lines);
        let has_room = |line: &&Line| Arc::strong_count(&line.in_use) <= STREAMS;
        if let Some(line) = lines.iter().find(has_room) {
            return line.clone();
        }
        let line = Line {
            transport: (self.connect)(),
            answered: Arc::default(),
            in_use: Arc::default(),
        };
        lines.push(line.clone());
        line
    }
}

impl Service<Request<Body>> for Multiplexed {
    type Response = Response<Streamed>;
    type Error = legacy::Error;
    type Future = BoxFuture<'static, Result<Self::Response, Self::Error>>;

    fn poll_ready(&mut self, _: &mut Context<'_>) -> Poll<Result<(), Self::Error>> {
        Poll::Ready(Ok(()))
    }

    fn call(&mut self, request: Request<Body>) -> Self::Future {
        let Line {
            transport,
            answered,
            in_use,
        } = self.line();
        Box::pin(async move {
            let mut first = answered.lock().await;
            let response = if *first {
                drop(first);
                transport.request(request).await?
            } else {
                let response = transport.request(request).await?;
                *first = true;
                response
            };
            // The body owns this closure, and the closure `in_use`.
            let counted = move |frame| {
                let _held = &in_use;
                frame
            };
            Ok(response.map(|body| body.map_frame(counted).boxed_unsync()))
        })
    }
}

/// A response, which counts as a request of its connection until it is dropped.
pub(super) type Streamed = UnsyncBoxBody<Bytes, hyper::Error>;

#[cfg(test)]
mod tests {
    use std::convert::Infallible;
    use std::sync::atomic::{AtomicUsize, Ordering};

    use futures::stream;
    use http_body_util::StreamBody;
    use hyper::body::Frame;
    use hyper::server::conn::{http1, http2};
    use hyper::service::service_fn;
    use hyper_rustls::HttpsConnectorBuilder;
    use hyper_util::client::legacy::connect::HttpConnector;
    use hyper_util::rt::{TokioExecutor, TokioIo};
    use tokio::net::TcpListener;

    use super::super::fence::fencing;
    use super::*;
    use crate::term::Term;

    /// A server whose responses never end, and the number of connections to it.
    async fn server(is_http2: bool) -> (String, Arc<AtomicUsize>) {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = format!("http://{}/", listener.local_addr().unwrap());
        let connections = Arc::<AtomicUsize>::default();
        let count = Arc::clone(&connections);
        tokio::spawn(async move {
            loop {
                let stream = TokioIo::new(listener.accept().await.unwrap().0);
                count.fetch_add(1, Ordering::Relaxed);
                let watch = service_fn(async |_| {
                    let endless = stream::pending::<Result<Frame<Bytes>, Infallible>>();
                    Ok::<_, Infallible>(Response::new(StreamBody::new(endless)))
                });
                if is_http2 {
                    let builder = http2::Builder::new(TokioExecutor::new());
                    tokio::spawn(builder.serve_connection(stream, watch));
                } else {
                    tokio::spawn(http1::Builder::new().serve_connection(stream, watch));
                }
            }
        });
        (address, connections)
    }

    fn client(is_http2: bool) -> Multiplexed {
        let _ = rustls::crypto::aws_lc_rs::default_provider().install_default();
        let https = HttpsConnectorBuilder::new().with_native_roots().unwrap();
        let fencing = fencing(HttpConnector::new(), Term::endless());
        let connector = https.https_or_http().enable_http1().wrap_connector(fencing);
        Multiplexed::new(move || {
            legacy::Client::builder(TokioExecutor::new())
                .http2_only(is_http2)
                .build(connector.clone())
        })
    }

    async fn watches(client: &Multiplexed, address: &str, count: usize) -> Vec<Response<Streamed>> {
        let request = || Request::get(address).body(Body::empty()).unwrap();
        let requests = (0..count).map(|_| client.clone().call(request()));
        futures::future::try_join_all(requests).await.unwrap()
    }

    #[tokio::test]
    async fn watches_share_few_connections() {
        let (address, connections) = server(true).await;
        let client = client(true);
        let first = watches(&client, &address, STREAMS).await;
        assert_eq!(connections.load(Ordering::Relaxed), 1);
        let second = watches(&client, &address, STREAMS + 1).await;
        assert_eq!(connections.load(Ordering::Relaxed), 3);
        // What has ended leaves room for others.
        drop((first, second));
        let _third = watches(&client, &address, 2 * STREAMS).await;
        assert_eq!(connections.load(Ordering::Relaxed), 3);
    }

    #[tokio::test]
    async fn a_server_without_http2_gets_a_connection_for_each_watch() {
        let (address, connections) = server(false).await;
        let _watches = watches(&client(false), &address, STREAMS + 1).await;
        assert_eq!(connections.load(Ordering::Relaxed), STREAMS + 1);
    }

    /// A request that fails, or that nobody waits for any more, must not leave the others waiting.
    #[tokio::test]
    async fn requests_go_on_after_the_first_has_failed() {
        let (address, connections) = server(true).await;
        let client = client(true);
        let closed = TcpListener::bind("127.0.0.1:0")
            .await
            .unwrap()
            .local_addr()
            .unwrap();
        let nowhere = Request::get(format!("http://{closed}/"))
            .body(Body::empty())
            .unwrap();
        assert!(client.clone().call(nowhere).await.is_err());
        let request = Request::get(&address).body(Body::empty()).unwrap();
        drop(client.clone().call(request));
        assert_eq!(watches(&client, &address, 2).await.len(), 2);
        assert_eq!(connections.load(Ordering::Relaxed), 1);
    }
}
