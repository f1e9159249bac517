//! A server outside of the cluster: it keeps what it is sent by its path, and remembers every request.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::{Arc, Mutex};

use axum::Router;
use axum::body::{Body, Bytes};
use axum::extract::State;
use axum::http::{HeaderMap, Method, StatusCode, Uri};
use axum::response::{IntoResponse, Response};
use http_body_util::Full;
use hyper_util::rt::TokioIo;
use hyper_util::service::TowerToHyperService;
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::watch;

use crate::support::prelude::*;
use crate::telemetry::collector::Certificates;

/// The kind.
pub const EXTERNAL: &str = "operator-host.dev/v1alpha1/External";

/// A request, as `PUT /users/a`, with what came with it.
#[derive(Clone, Debug)]
pub struct Received {
    pub line: String,
    pub headers: HeaderMap,
}

#[derive(Default)]
pub struct Inner {
    pub resources: BTreeMap<String, Value>,
    pub received: Vec<Received>,
    /// The token that `X-Token` must be.
    pub token: Option<String>,
    /// The answers to give instead, as a code and headers.
    pub refuse: Option<(u16, Vec<(&'static str, String)>)>,
    /// Whether it sends ETags.
    pub etags: bool,
    /// Whether it takes what it is sent and forgets it.
    pub forgets: bool,
    /// The port of the server to ask instead.
    pub before: Option<u16>,
    /// Of the requests with this text, only the first so many are answered.
    held: Option<(String, usize)>,
}

impl Inner {
    fn count(&self, text: &str) -> usize {
        self.received.iter().filter(|it| it.line.contains(text)).count()
    }
}

#[derive(Clone)]
pub struct Server {
    pub port: u16,
    inner: Arc<Mutex<Inner>>,
    /// While it is false, requests are carried out and not answered.
    answers: watch::Sender<bool>,
}

impl Server {
    pub async fn start() -> Self {
        let (server, listener, router) = Self::bind("127.0.0.1:0").await;
        tokio::spawn(async move { axum::serve(listener, router).await });
        server
    }

    async fn bind(address: &str) -> (Self, TcpListener, Router) {
        let listener = TcpListener::bind(address).await.unwrap();
        let server = Self {
            port: listener.local_addr().unwrap().port(),
            inner: Arc::default(),
            answers: watch::Sender::new(true),
        };
        let router = Router::new().fallback(answer).with_state(server.clone());
        (server, listener, router)
    }

    /// Starts one on the loopback address of IPv6 that speaks TLS. Returns also how to give it another certificate.
    pub async fn start_tls(certificates: &Certificates) -> (Self, impl Fn(&Certificates)) {
        let (server, listener, router) = Self::bind("[::1]:0").await;
        let current = Arc::new(Mutex::new(certificates.acceptor(None)));
        let acceptor = Arc::clone(&current);
        tokio::spawn(async move {
            loop {
                let (stream, _) = listener.accept().await.unwrap();
                let acceptor = current.lock().unwrap().clone();
                let service = TowerToHyperService::new(router.clone());
                tokio::spawn(async move {
                    let stream = TokioIo::new(acceptor.accept(stream).await?);
                    let http = hyper::server::conn::http1::Builder::new();
                    http.serve_connection(stream, service).await?;
                    anyhow::Ok(())
                });
            }
        });
        let present = move |certificates: &Certificates| {
            *acceptor.lock().unwrap() = certificates.acceptor(None);
        };
        (server, present)
    }

    /// Reads or changes its state.
    pub fn with<T>(&self, act: impl FnOnce(&mut Inner) -> T) -> T {
        act(&mut self.inner.lock().unwrap())
    }

    pub fn put(&self, path: &str, value: Value) {
        self.with(|inner| inner.resources.insert(path.to_owned(), value));
    }

    pub fn get(&self, path: &str) -> Option<Value> {
        self.with(|inner| inner.resources.get(path).cloned())
    }

    /// Waits until it has this at a path.
    pub async fn until_has(&self, path: &str, value: Value) {
        let what = format!("{path} is {value}");
        until_true(&what, async || self.get(path).as_ref() == Some(&value)).await;
    }

    /// Waits until it has received so many more requests.
    pub async fn until_asked(&self, more: usize) {
        let before = self.lines().len();
        until_true("it is asked again", async || self.lines().len() >= before + more).await;
    }

    /// Returns the requests so far, as `GET /a`.
    pub fn lines(&self) -> Vec<String> {
        self.with(|inner| inner.received.iter().map(|it| it.line.clone()).collect())
    }

    /// Returns the requests that change something.
    pub fn writes(&self) -> Vec<String> {
        let mut lines = self.lines();
        lines.retain(|line| !line.starts_with("GET "));
        lines
    }

    pub fn answers(&self, answers: bool) {
        self.answers.send_replace(answers);
    }

    /// Answers one request less than so many of those with this text, and waits for the last: it is carried out, and its
    /// answer never comes.
    pub async fn hold(&self, text: &str, count: usize, act: impl Future<Output = ()>) {
        self.with(|inner| inner.held = Some((text.to_owned(), count)));
        act.await;
        let is_there = async || self.with(|inner| inner.count(text) >= count);
        until_true("the request is there", is_there).await;
    }

    /// Answers again.
    pub fn release(&self) {
        self.with(|inner| inner.held = None);
    }

    /// Returns the entry of an endpoint for a namespace; `more` are further fields.
    pub fn endpoint(&self, name: &str, namespace: &str, more: &str) -> String {
        endpoint(name, self.port, namespace, more)
    }
}

/// Returns the entry of an endpoint at a port of this machine.
pub fn endpoint(name: &str, port: u16, namespace: &str, more: &str) -> String {
    format!(
        "- {{name: {name}, url: 'http://127.0.0.1:{port}/api', allowPlain: true, allowAddresses: [127.0.0.0/8], \
         methods: [PUT, POST, PATCH, DELETE], namespaces: [{namespace}], qps: 100{more}}}\n"
    )
}

/// Writes a file of endpoints.
pub fn file(scenario: &Scenario, endpoints: &[String]) -> PathBuf {
    let (namespace, endpoints) = (&scenario.namespace, endpoints.concat());
    let text = format!("namespaces: [{namespace}]\nendpoints:\n{endpoints}");
    scenario.file("endpoints.yaml", text)
}

/// Returns an External for `/NAME` with this value.
pub fn external(name: &str, value: &Value) -> Value {
    let path = format!("/{name}");
    json!({
        "apiVersion": "operator-host.dev/v1alpha1", "kind": "External", "metadata": {"name": name},
        "spec": {
            "endpoint": "shop", "observe": {"path": path}, "matches": value, "every": "5s",
            "set": {"method": "PUT", "path": path, "body": value},
            "unset": {"method": "DELETE", "path": path},
        },
    })
}

/// Returns an External for `/PATH` that only reads.
pub fn reader(name: &str, path: &str, value: &Value) -> Value {
    let mut reader = external(path, value);
    reader["metadata"]["name"] = name.into();
    let spec = reader["spec"].as_object_mut().unwrap();
    spec.retain(|field, _| !field.ends_with("set"));
    reader
}

/// Starts a process with one endpoint, `shop`, which is a new server.
pub async fn shop(namespace: &str, more: &str) -> (Scenario, Server, Host) {
    let scenario = Scenario::new(namespace).await;
    let server = Server::start().await;
    let file = file(&scenario, &[server.endpoint("shop", namespace, more)]);
    let process = scenario.start_egress("egress", &file);
    (scenario, server, process)
}

impl Scenario {
    /// Applies an External.
    pub async fn external(&self, external: &Value) -> DynamicObject {
        self.apply(&external.to_string()).await
    }

    /// Waits until a condition of an External is as [`Scenario::until_condition`] describes.
    pub async fn until_external(&self, name: &str, says: &str) -> String {
        self.until_condition(EXTERNAL, name, says).await
    }

    /// Waits until an External is as the current spec wants it.
    pub async fn until_matches(&self, name: &str) -> DynamicObject {
        let is_so = |it: &DynamicObject| {
            let is_current = it.data["status"]["observedGeneration"].as_i64() == it.metadata.generation;
            is_current && condition(it, "Ready").is_some_and(|ready| ready["status"] == "True")
        };
        self.until(EXTERNAL, name, "Ready", is_so).await
    }
}

async fn answer(
    State(server): State<Server>,
    method: Method,
    uri: Uri,
    headers: HeaderMap,
    body: Bytes,
) -> Response {
    let path = uri.path_and_query().unwrap().as_str();
    let path = path.trim_start_matches("/api").to_owned();
    let line = format!("{method} {path}");
    let (is_held, before) = server.with(|inner| {
        inner.received.push(Received {
            line: line.clone(),
            headers: headers.clone(),
        });
        let is_held = |(text, count): &(String, usize)| line.contains(text) && inner.count(text) >= *count;
        (inner.held.as_ref().is_some_and(is_held), inner.before)
    });
    let answer = match before {
        Some(port) => forward(port, &method, &uri, &headers, body).await,
        None => server.own(&method, path, &headers, &body),
    };
    if is_held {
        std::future::pending::<()>().await;
    }
    let mut answers = server.answers.subscribe();
    let _ = answers.wait_for(|answers| *answers).await;
    answer
}

/// Asks another server the same.
async fn forward(port: u16, method: &Method, uri: &Uri, headers: &HeaderMap, body: Bytes) -> Response {
    let mut request = axum::http::Request::new(Full::new(body));
    (*request.method_mut(), *request.uri_mut()) = (method.clone(), uri.clone());
    *request.headers_mut() = headers.clone();
    let answer = async {
        let stream = TcpStream::connect(("127.0.0.1", port)).await?;
        let (mut sender, connection) = hyper::client::conn::http1::handshake(TokioIo::new(stream)).await?;
        tokio::spawn(connection);
        anyhow::Ok(sender.send_request(request).await?)
    };
    match answer.await {
        Ok(answer) => answer.map(Body::new),
        Err(_) => StatusCode::BAD_GATEWAY.into_response(),
    }
}

impl Server {
    fn own(&self, method: &Method, path: String, headers: &HeaderMap, body: &Bytes) -> Response {
        let text = String::from_utf8_lossy(body).into_owned();
        self.with(|inner| {
            let token = headers.get("x-token").and_then(|value| value.to_str().ok());
            if let Some((code, headers)) = &inner.refuse {
                let headers = headers
                    .iter()
                    .map(|(name, value)| (name.parse().unwrap(), value.parse().unwrap()));
                let headers: HeaderMap = headers.collect();
                return (StatusCode::from_u16(*code).unwrap(), headers, "hunter2: not now").into_response();
            }
            if inner.token.is_some() && inner.token.as_deref() != token {
                return StatusCode::UNAUTHORIZED.into_response();
            }
            let value = || serde_json::from_str::<Value>(&text).unwrap_or_default();
            match *method {
                Method::GET => {
                    let Some(found) = inner.resources.get(&path) else {
                        return StatusCode::NOT_FOUND.into_response();
                    };
                    let tag = format!("\"{:x}\"", found.to_string().len());
                    if inner.etags && headers.get("if-none-match").is_some_and(|known| *known == tag) {
                        return StatusCode::NOT_MODIFIED.into_response();
                    }
                    let mut headers = HeaderMap::new();
                    if inner.etags {
                        headers.insert("etag", tag.parse().unwrap());
                    }
                    (headers, found.to_string()).into_response()
                }
                Method::DELETE => match inner.resources.remove(&path) {
                    Some(_) => StatusCode::NO_CONTENT.into_response(),
                    None => StatusCode::NOT_FOUND.into_response(),
                },
                _ => {
                    if !inner.forgets {
                        inner.resources.insert(path, value());
                    }
                    StatusCode::CREATED.into_response()
                }
            }
        })
    }
}

/// A server that answers every request with these bytes, again and again with a pause if one is given; with none, never.
pub async fn raw(bytes: Vec<u8>, pause: Option<Duration>) -> (u16, Arc<Mutex<BTreeSet<String>>>) {
    use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let port = listener.local_addr().unwrap().port();
    let seen = Arc::<Mutex<BTreeSet<String>>>::default();
    let received = Arc::clone(&seen);
    let serve = async move |mut stream: TcpStream| {
        let mut buffer = vec![0; 64 << 10];
        let count = stream.read(&mut buffer).await.unwrap_or(0);
        let head = String::from_utf8_lossy(&buffer[..count]).into_owned();
        let line = head.lines().next().unwrap_or_default().to_owned();
        received.lock().unwrap().insert(line);
        let end = bytes.windows(4).position(|it| it == b"\r\n\r\n");
        let (head, rest) = bytes.split_at(end.map_or(0, |at| at + 4));
        let _ = stream.write_all(head).await;
        loop {
            if stream.write_all(rest).await.is_err() {
                return;
            }
            match pause {
                Some(pause) if !rest.is_empty() => tokio::time::sleep(pause).await,
                Some(_) => std::future::pending().await,
                None => return,
            }
        }
    };
    tokio::spawn(async move {
        loop {
            let (stream, _) = listener.accept().await.unwrap();
            let serve = serve.clone();
            tokio::spawn(async move { serve(stream).await });
        }
    });
    (port, seen)
}
