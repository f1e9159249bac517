//! An admission webhook of others, which reviews what the host writes.

use std::convert::Infallible;
use std::sync::Arc;

use http_body_util::{BodyExt as _, Full};
use hyper::Response;
use hyper::body::{Bytes, Incoming};
use hyper::service::service_fn;
use hyper_util::rt::TokioIo;
use serde_json::{Value, json};
use tokio::net::TcpListener;
use tokio_rustls::TlsAcceptor;
use tokio_rustls::rustls::ServerConfig;
use tokio_rustls::rustls::pki_types::pem::PemObject as _;
use tokio_rustls::rustls::pki_types::{CertificateDer, PrivateKeyDer};

use super::Authority;

/// Serves reviews with a certificate of this authority, and returns the address. `answer` makes the response to a review, but for
/// its UID.
pub(crate) async fn serve<F: Future<Output = Value> + Send>(
    authority: &Authority,
    answer: impl Fn(Value) -> F + Copy + Send + Sync + 'static,
) -> String {
    let (certificate, key) = authority.sign("1");
    let config = ServerConfig::builder().with_no_client_auth().with_single_cert(
        vec![CertificateDer::from_pem_slice(&certificate).unwrap()],
        PrivateKeyDer::from_pem_slice(&key).unwrap(),
    );
    let acceptor = TlsAcceptor::from(Arc::new(config.unwrap()));
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap();
    let review = move |request: hyper::Request<Incoming>| async move {
        let body = request.into_body().collect().await.expect("a body").to_bytes();
        let review: Value = serde_json::from_slice(&body).expect("a review");
        let uid = review["request"]["uid"].clone();
        let mut response = answer(review).await;
        response["uid"] = uid;
        let answer =
            json!({ "apiVersion": "admission.k8s.io/v1", "kind": "AdmissionReview", "response": response });
        Ok::<_, Infallible>(Response::new(Full::<Bytes>::from(answer.to_string())))
    };
    tokio::spawn(async move {
        loop {
            let (stream, _) = listener.accept().await.unwrap();
            let acceptor = acceptor.clone();
            tokio::spawn(async move {
                let Ok(stream) = acceptor.accept(stream).await else {
                    return;
                };
                let server = hyper::server::conn::http1::Builder::new();
                let _ = server
                    .serve_connection(TokioIo::new(stream), service_fn(review))
                    .await;
            });
        }
    });
    format!("https://{address}/review")
}
