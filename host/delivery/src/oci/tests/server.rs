//! A server that answers as a test says, one request on each connection.

use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::{TcpListener, TcpStream};
use tokio::task::JoinHandle;

/// A request.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Seen {
    pub(super) method: String,
    pub(super) path: String,
    head: String,
}

impl Seen {
    pub(super) fn header(&self, name: &str) -> Option<&str> {
        let mut lines = self.head.lines().filter_map(|line| line.split_once(": "));
        let (_, value) = lines.find(|(key, _)| key.eq_ignore_ascii_case(name))?;
        Some(value)
    }
}

/// What the server sends.
#[derive(Clone)]
pub(super) struct Answer {
    /// None for an answer without a head.
    status: Option<u16>,
    headers: String,
    body: Vec<u8>,
    /// The pause between two repetitions of the body, if it has no end.
    pause: Option<Duration>,
}

impl Answer {
    pub(super) fn status(status: u16) -> Self {
        Self::ok(b"").and_status(status)
    }

    pub(super) fn ok(body: &[u8]) -> Self {
        Self {
            status: Some(200),
            headers: format!("Content-Length: {}\r\n", body.len()),
            body: body.to_vec(),
            pause: None,
        }
    }

    pub(super) fn json(body: &serde_json::Value) -> Self {
        Self::ok(body.to_string().as_bytes())
    }

    /// Returns a response without an end, with a length if it states one.
    pub(super) fn endless(length: Option<u64>) -> Self {
        let length = length.map(|length| format!("Content-Length: {length}\r\n"));
        Self {
            headers: length.unwrap_or_default(),
            pause: Some(Duration::ZERO),
            ..Self::ok(&[b' '; 4096])
        }
    }

    /// Returns a response whose body comes byte by byte.
    pub(super) fn trickle() -> Self {
        Self {
            headers: "Content-Length: 11\r\n".to_owned(),
            pause: Some(Duration::from_millis(200)),
            ..Self::ok(b" ")
        }
    }

    /// Returns these bytes, and the end.
    pub(super) fn raw(bytes: &[u8]) -> Self {
        Self {
            status: None,
            ..Self::ok(bytes)
        }
    }

    /// Returns nothing, for ever.
    pub(super) fn stalled() -> Self {
        Self {
            pause: Some(Duration::MAX),
            ..Self::raw(b"")
        }
    }

    pub(super) fn with(mut self, name: &str, value: &str) -> Self {
        self.headers.push_str(&format!("{name}: {value}\r\n"));
        self
    }

    pub(super) fn and_status(self, status: u16) -> Self {
        Self {
            status: Some(status),
            ..self
        }
    }

    async fn send(self, to: &mut TcpStream, head_only: bool) -> std::io::Result<()> {
        if let Some(status) = self.status {
            let head = format!("HTTP/1.1 {status} X\r\nConnection: close\r\n{}\r\n", self.headers);
            to.write_all(head.as_bytes()).await?;
        }
        if head_only {
            return to.shutdown().await;
        }
        loop {
            to.write_all(&self.body).await?;
            match self.pause {
                Some(Duration::ZERO) => {}
                Some(pause) => tokio::time::sleep(pause).await,
                None => return to.shutdown().await,
            }
        }
    }
}

/// A server on this machine, until it is dropped.
pub(super) struct Server {
    port: u16,
    seen: Arc<Mutex<Vec<Seen>>>,
    task: JoinHandle<()>,
}

impl Server {
    pub(super) async fn start(answer: impl Fn(&Seen) -> Answer + Send + Sync + 'static) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let port = listener.local_addr().unwrap().port();
        let seen = Arc::<Mutex<Vec<Seen>>>::default();
        let (answer, all) = (Arc::new(answer), Arc::clone(&seen));
        let task = tokio::spawn(async move {
            while let Ok((mut stream, _)) = listener.accept().await {
                let (answer, all) = (Arc::clone(&answer), Arc::clone(&all));
                tokio::spawn(async move {
                    if let Some(seen) = read(&mut stream).await {
                        all.lock().unwrap().push(seen.clone());
                        // The other side may have seen enough.
                        let _ = answer(&seen).send(&mut stream, seen.method == "HEAD").await;
                    }
                });
            }
        });
        Self { port, seen, task }
    }

    pub(super) fn name(&self) -> String {
        format!("127.0.0.1:{}", self.port)
    }

    pub(super) fn seen(&self) -> Vec<Seen> {
        self.seen.lock().unwrap().clone()
    }

    pub(super) fn forget(&self) {
        self.seen.lock().unwrap().clear();
    }

    /// Writes a Docker configuration with the credentials team and pass for this server.
    pub(super) fn credentials(&self, folder: &Path) -> PathBuf {
        self.credentials_of(folder, "dGVhbTpwYXNz")
    }

    /// Writes one with other credentials, in base64.
    pub(super) fn credentials_of(&self, folder: &Path, encoded: &str) -> PathBuf {
        let file = folder.join("credentials.json");
        let entry = serde_json::json!({"auth": encoded});
        let text = serde_json::json!({"auths": {self.name(): entry}});
        std::fs::write(&file, text.to_string()).unwrap();
        file
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        self.task.abort();
    }
}

async fn read(stream: &mut TcpStream) -> Option<Seen> {
    let mut head = Vec::new();
    while !head.ends_with(b"\r\n\r\n") {
        head.push(stream.read_u8().await.ok()?);
    }
    let head = String::from_utf8(head).ok()?;
    let mut line = head.lines().next()?.split(' ');
    Some(Seen {
        method: line.next()?.to_owned(),
        path: line.next()?.to_owned(),
        head: head.clone(),
    })
}
