//! An OTLP receiver, over gRPC on the generated services and over HTTP, which keeps everything that it receives.

use crate::support::prelude::*;
use std::net::SocketAddr;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};

use bytes::Bytes;
use http_body_util::{BodyExt, Full};
use hyper::body::Incoming;
use hyper::service::service_fn;
use hyper::{Request, Response, StatusCode};
use hyper_util::rt::TokioIo;
use opentelemetry_proto::tonic::collector::{logs::v1 as logs, metrics::v1 as metrics, trace::v1 as trace};
use opentelemetry_proto::tonic::common::v1::any_value::Value;
use opentelemetry_proto::tonic::common::v1::{AnyValue, KeyValue};
use opentelemetry_proto::tonic::logs::v1::LogRecord;
use opentelemetry_proto::tonic::metrics::v1::{Metric, metric, number_data_point};
pub use opentelemetry_proto::tonic::trace::v1::Span;
use prost::Message;
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, PrivateKeyDer};
use rustls::server::WebPkiClientVerifier;
use rustls::server::danger::ClientCertVerifier;
use tokio::net::TcpListener;
use tokio::task::JoinHandle;
use tokio_rustls::TlsAcceptor;
use tonic::transport::server::TcpIncoming;
use tonic::transport::{Certificate, Identity, Server, ServerTlsConfig};
use tonic::{Status, metadata::MetadataMap};

/// A CA, and a certificate from it for both server and client, in files.
pub struct Certificates {
    pub authority: PathBuf,
    pub leaf: PathBuf,
    pub key: PathBuf,
}

impl Certificates {
    pub fn make(folder: &Path) -> Self {
        let extensions = "subjectAltName=IP:127.0.0.1,IP:::1\nbasicConstraints=CA:FALSE\n";
        std::fs::write(folder.join("leaf.cnf"), extensions).unwrap();
        for arguments in [
            "req -x509 -newkey rsa:2048 -nodes -days 1 -subj /CN=authority -keyout ca.key -out ca.crt",
            "req -newkey rsa:2048 -nodes -subj /CN=leaf -keyout leaf.key -out leaf.csr",
            "x509 -req -in leaf.csr -CA ca.crt -CAkey ca.key -CAcreateserial -days 1 -extfile leaf.cnf -out leaf.crt",
        ] {
            let mut openssl = Command::new("openssl");
            openssl.args(arguments.split(' ')).current_dir(folder).prints();
        }
        let file = |name| folder.join(name);
        Self {
            authority: file("ca.crt"),
            leaf: file("leaf.crt"),
            key: file("leaf.key"),
        }
    }

    /// Returns what a server does that has the certificate, and asks its clients for one of the same CA with `verifier`.
    pub fn acceptor(&self, verifier: Option<Arc<dyn ClientCertVerifier>>) -> TlsAcceptor {
        let config = rustls::ServerConfig::builder()
            .with_client_cert_verifier(verifier.unwrap_or_else(WebPkiClientVerifier::no_client_auth))
            .with_single_cert(
                vec![CertificateDer::from_pem_file(&self.leaf).unwrap()],
                PrivateKeyDer::from_pem_file(&self.key).unwrap(),
            )
            .unwrap();
        TlsAcceptor::from(Arc::new(config))
    }
}

#[derive(Default)]
struct Received {
    spans: Mutex<Vec<Span>>,
    records: Mutex<Vec<LogRecord>>,
    metrics: Mutex<Vec<Metric>>,
    resource: Mutex<Vec<KeyValue>>,
    /// The value of the header `x-team` of each request.
    teams: Mutex<Vec<Option<String>>>,
    refuses: AtomicBool,
}

impl Received {
    fn trace(&self, request: trace::ExportTraceServiceRequest) {
        for resource in request.resource_spans {
            *self.resource.lock().unwrap() = resource.resource.unwrap_or_default().attributes;
            let spans = resource.scope_spans.into_iter().flat_map(|scope| scope.spans);
            self.spans.lock().unwrap().extend(spans);
        }
    }

    fn logs(&self, request: logs::ExportLogsServiceRequest) {
        let resources = request.resource_logs.into_iter();
        let scopes = resources.flat_map(|resource| resource.scope_logs);
        let records = scopes.flat_map(|scope| scope.log_records);
        self.records.lock().unwrap().extend(records);
    }

    fn metrics(&self, request: metrics::ExportMetricsServiceRequest) {
        let metrics = request.resource_metrics.into_iter();
        // Each export contains all metrics, with cumulative values.
        *self.metrics.lock().unwrap() = metrics
            .flat_map(|resource| resource.scope_metrics)
            .flat_map(|scope| scope.metrics)
            .collect();
    }
}

/// The receiver, which ends when it is dropped.
pub struct Collector {
    pub address: SocketAddr,
    kept: Arc<Received>,
    task: JoinHandle<()>,
}

impl Drop for Collector {
    fn drop(&mut self) {
        self.task.abort();
    }
}

impl Collector {
    pub async fn grpc() -> Self {
        Self::grpc_with(None).await
    }

    /// Requires TLS and a client certificate of the same CA.
    pub async fn grpc_with(certificates: Option<&Certificates>) -> Self {
        let kept = Arc::new(Received::default());
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap();
        let service = Service(Arc::clone(&kept));
        let mut server = Server::builder();
        if let Some(certificates) = certificates {
            let read = |file: &Path| std::fs::read(file).unwrap();
            let identity = Identity::from_pem(read(&certificates.leaf), read(&certificates.key));
            let root = Certificate::from_pem(read(&certificates.authority));
            let tls = ServerTlsConfig::new().identity(identity).client_ca_root(root);
            server = server.tls_config(tls).unwrap();
        }
        let router = server
            .add_service(trace::trace_service_server::TraceServiceServer::new(
                service.clone(),
            ))
            .add_service(logs::logs_service_server::LogsServiceServer::new(service.clone()))
            .add_service(metrics::metrics_service_server::MetricsServiceServer::new(
                service,
            ));
        let served = router.serve_with_incoming(TcpIncoming::from(listener));
        let task = tokio::spawn(async move { served.await.unwrap() });
        Self { address, kept, task }
    }

    pub async fn http() -> Self {
        Self::http_with(None).await
    }

    /// Requires the same as [`Collector::grpc_with`].
    pub async fn http_with(certificates: Option<&Certificates>) -> Self {
        let acceptor = certificates.map(|certificates| {
            let mut roots = rustls::RootCertStore::empty();
            let authority = CertificateDer::from_pem_file(&certificates.authority);
            roots.add(authority.unwrap()).unwrap();
            let verifier = WebPkiClientVerifier::builder(Arc::new(roots)).build().unwrap();
            certificates.acceptor(Some(verifier))
        });
        let kept = Arc::new(Received::default());
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap();
        let state = Arc::clone(&kept);
        let task = tokio::spawn(async move {
            loop {
                let (stream, _) = listener.accept().await.unwrap();
                let state = Arc::clone(&state);
                let service = service_fn(move |request| receive(Arc::clone(&state), request));
                let server = hyper::server::conn::http1::Builder::new();
                let acceptor = acceptor.clone();
                tokio::spawn(async move {
                    let Some(acceptor) = acceptor else {
                        return server.serve_connection(TokioIo::new(stream), service).await;
                    };
                    if let Ok(stream) = acceptor.accept(stream).await {
                        server.serve_connection(TokioIo::new(stream), service).await?;
                    }
                    Ok(())
                });
            }
        });
        Self { address, kept, task }
    }

    /// Refuses everything, or accepts it again.
    pub fn refuse(&self, refuses: bool) {
        self.kept.refuses.store(refuses, Ordering::Relaxed);
    }

    pub fn endpoint(&self) -> String {
        format!("http://{}", self.address)
    }

    pub fn spans(&self) -> Vec<Span> {
        self.kept.spans.lock().unwrap().clone()
    }

    pub fn records(&self) -> Vec<LogRecord> {
        self.kept.records.lock().unwrap().clone()
    }

    /// Waits for a log record of this span, and returns it.
    pub async fn until_record(&self, span: &Span, is_it: impl Fn(&LogRecord) -> bool) -> LogRecord {
        let of_span =
            |record: &&LogRecord| record.trace_id == span.trace_id && record.span_id == span.span_id;
        eventually("a log record", async || {
            let records = self.records();
            let found = records.iter().filter(of_span).find(|record| is_it(record));
            found.cloned().ok_or_else(|| format!("{records:?}"))
        })
        .await
    }

    pub fn metrics(&self) -> Vec<Metric> {
        self.kept.metrics.lock().unwrap().clone()
    }

    pub fn resource(&self) -> Vec<KeyValue> {
        self.kept.resource.lock().unwrap().clone()
    }

    pub fn teams(&self) -> Vec<Option<String>> {
        self.kept.teams.lock().unwrap().clone()
    }

    /// Waits until `look` finds something in the spans, and returns it.
    pub async fn until_spans<T>(&self, what: &str, look: impl Fn(&[Span]) -> Option<T>) -> T {
        eventually(what, async || {
            let spans = self.spans();
            let name = |span: &Span| (span.name.clone(), text(&span.attributes, "k8s.object.name"));
            look(&spans).ok_or_else(|| format!("{:?}", spans.iter().map(name).collect::<Vec<_>>()))
        })
        .await
    }

    /// Waits until the sum of a counter over all points with these attributes reaches a value.
    pub async fn until_counted(&self, name: &str, labels: &[(&str, &str)], least: f64) -> f64 {
        eventually(&format!("{name} {labels:?} of {least}"), async || {
            let count = sum(&self.metrics(), name, labels);
            (count >= least).then_some(count).ok_or(count.to_string())
        })
        .await
    }
}

/// Returns the sum of a counter over all points with these attributes.
pub fn sum(metrics: &[Metric], name: &str, labels: &[(&str, &str)]) -> f64 {
    let metrics = metrics.iter().filter(|metric| metric.name == name);
    let points = metrics.filter_map(|metric| match &metric.data {
        Some(metric::Data::Sum(sum)) => Some(&sum.data_points),
        Some(metric::Data::Gauge(gauge)) => Some(&gauge.data_points),
        _ => None,
    });
    points
        .flatten()
        .filter(|point| has(&point.attributes, labels))
        .map(|point| match point.value {
            Some(number_data_point::Value::AsDouble(value)) => value,
            Some(number_data_point::Value::AsInt(value)) => value as f64,
            None => 0.0,
        })
        .sum()
}

/// Returns how many values a histogram has in all points with these attributes.
pub fn samples(metrics: &[Metric], name: &str, labels: &[(&str, &str)]) -> u64 {
    let metrics = metrics.iter().filter(|metric| metric.name == name);
    let points = metrics.filter_map(|metric| match &metric.data {
        Some(metric::Data::Histogram(histogram)) => Some(&histogram.data_points),
        _ => None,
    });
    let points = points.flatten().filter(|point| has(&point.attributes, labels));
    points.map(|point| point.count).sum()
}

fn has(attributes: &[KeyValue], labels: &[(&str, &str)]) -> bool {
    let mut labels = labels.iter();
    labels.all(|(key, value)| text(attributes, key).as_deref() == Some(*value))
}

/// Returns an attribute as text, whatever its type.
pub fn text(attributes: &[KeyValue], key: &str) -> Option<String> {
    let attribute = attributes.iter().find(|attribute| attribute.key == key)?;
    shown(attribute.value.as_ref()?)
}

/// Returns a value as text, whatever its type.
pub fn shown(value: &AnyValue) -> Option<String> {
    match value.value.as_ref()? {
        Value::StringValue(text) => Some(text.clone()),
        Value::IntValue(number) => Some(number.to_string()),
        Value::DoubleValue(number) => Some(number.to_string()),
        Value::BoolValue(truth) => Some(truth.to_string()),
        _ => None,
    }
}

pub fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}

#[derive(Clone)]
struct Service(Arc<Received>);

impl Service {
    fn check(&self, metadata: &MetadataMap) -> Result<(), Status> {
        let team = metadata.get("x-team");
        let team = team.map(|value| value.to_str().unwrap().to_owned());
        self.0.teams.lock().unwrap().push(team);
        if self.0.refuses.load(Ordering::Relaxed) {
            return Err(Status::permission_denied("this collector refuses"));
        }
        Ok(())
    }
}

macro_rules! service {
    ($package:ident, $server:ident, $service:ident, $request:ident, $response:ident) => {
        #[tonic::async_trait]
        impl $package::$server::$service for Service {
            async fn export(
                &self,
                request: tonic::Request<$package::$request>,
            ) -> Result<tonic::Response<$package::$response>, Status> {
                self.check(request.metadata())?;
                self.0.$package(request.into_inner());
                Ok(tonic::Response::new(Default::default()))
            }
        }
    };
}

service! { trace, trace_service_server, TraceService, ExportTraceServiceRequest, ExportTraceServiceResponse }
service! { logs, logs_service_server, LogsService, ExportLogsServiceRequest, ExportLogsServiceResponse }
service! { metrics, metrics_service_server, MetricsService, ExportMetricsServiceRequest, ExportMetricsServiceResponse }

async fn receive(
    kept: Arc<Received>,
    request: Request<Incoming>,
) -> Result<Response<Full<Bytes>>, hyper::Error> {
    let team = request.headers().get("x-team");
    let team = team.map(|value| value.to_str().unwrap().to_owned());
    kept.teams.lock().unwrap().push(team);
    let path = request.uri().path().to_owned();
    let body = request.into_body().collect().await?.to_bytes();
    let mut response = Response::new(Full::default());
    match path.as_str() {
        _ if kept.refuses.load(Ordering::Relaxed) => *response.status_mut() = StatusCode::FORBIDDEN,
        "/v1/traces" => kept.trace(Message::decode(body).unwrap()),
        "/v1/logs" => kept.logs(Message::decode(body).unwrap()),
        "/v1/metrics" => kept.metrics(Message::decode(body).unwrap()),
        _ => *response.status_mut() = StatusCode::NOT_FOUND,
    }
    Ok(response)
}
