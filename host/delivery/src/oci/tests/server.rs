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
        lines
            .find(|(key, _)| key.eq_ignore_ascii_case(name))
            .map(|(_, value)| value)
    }
}

/// What the server sends.
#[derive(Clone)]
pub(super) enum Answer {
    /// A response.
    Full {
        status: u16,
        headers: Vec<(String, String)>,
        body: Vec<u8>,
    },
    /// A response without an end, with a length if it states one.
    Endless { status: u16, length: Option<u64> },
    /// A response whose body comes byte by byte.
    Trickle,
    /// Nothing.
    Stalled,
    /// These bytes, and the end.
    Raw(Vec<u8>),
}

impl Answer {
    pub(super) fn status(status: u16) -> Self {
        Self::Full {
            status,
            headers: Vec::new(),
            body: Vec::new(),
        }
    }

    pub(super) fn ok(body: &[u8]) -> Self {
        Self::Full {
            status: 200,
            headers: Vec::new(),
            body: body.to_vec(),
        }
    }

    pub(super) fn endless(length: Option<u64>) -> Self {
        Self::Endless { status: 200, length }
    }

    pub(super) fn trickle() -> Self {
        Self::Trickle
    }

    pub(super) fn with(mut self, name: &str, value: &str) -> Self {
        if let Self::Full { headers, .. } = &mut self {
            headers.push((name.to_owned(), value.to_owned()));
        }
        self
    }

    pub(super) fn and_status(mut self, new: u16) -> Self {
        if let Self::Full { status, .. } | Self::Endless { status, .. } = &mut self {
            *status = new;
        }
        self
    }

    async fn send(self, to: &mut TcpStream, head_only: bool) -> std::io::Result<()> {
        match self {
            Self::Full {
                status,
                headers,
                body,
            } => {
                let mut head = format!(
                    "HTTP/1.1 {status} X\r\nConnection: close\r\nContent-Length: {}\r\n",
                    body.len()
                );
                for (name, value) in headers {
                    head.push_str(&format!("{name}: {value}\r\n"));
                }
                to.write_all(format!("{head}\r\n").as_bytes()).await?;
                if !head_only {
                    to.write_all(&body).await?;
                }
            }
            Self::Endless { status, length } => {
                let length =
                    length.map_or_else(String::new, |length| format!("Content-Length: {length}\r\n"));
                to.write_all(format!("HTTP/1.1 {status} X\r\nConnection: close\r\n{length}\r\n").as_bytes())
                    .await?;
                loop {
                    to.write_all(&[b' '; 4096]).await?;
                }
            }
            Self::Trickle => {
                to.write_all(b"HTTP/1.1 200 OK\r\nContent-Length: 11\r\n\r\n")
                    .await?;
                loop {
                    to.write_all(b" ").await?;
                    tokio::time::sleep(Duration::from_millis(200)).await;
                }
            }
            Self::Stalled => std::future::pending().await,
            Self::Raw(bytes) => to.write_all(&bytes).await?,
        }
        to.shutdown().await
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
                    let Some(seen) = read(&mut stream).await else {
                        return;
                    };
                    all.lock().unwrap().push(seen.clone());
                    // The other side may have seen enough.
                    let _ = answer(&seen).send(&mut stream, seen.method == "HEAD").await;
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
