//! One bounded HTTP exchange: the host's own hyper and rustls.

use std::error::Error;
use std::fmt;
use std::path::Path;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use bytes::Bytes;
use http_body_util::{BodyExt as _, Full};
use hyper::body::Incoming;
use hyper::{Request, Response, Uri};
use hyper_rustls::{HttpsConnector, HttpsConnectorBuilder};
use hyper_util::client::legacy::Client;
use hyper_util::client::legacy::connect::HttpConnector;
use hyper_util::rt::TokioExecutor;
use rustls::ClientConfig;

use super::credentials::HUB;
use super::error::{Cause, RegistryError};
use operator_host_core::digest::Digest;
use operator_host_core::files;
use operator_host_core::sync::lock;
use operator_host_core::text::printable;
use operator_host_telemetry::http_client;
use operator_host_telemetry::http_client::Target;
use operator_host_telemetry::metrics::Metrics;

/// The time to connect.
const CONNECT: Duration = Duration::from_secs(10);
/// Bytes that the file of authorities may have.
const AUTHORITIES_LIMIT: usize = 1 << 20;

/// A place that can be asked: the scheme, the host and the port of a URL.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Origin {
    pub(super) tls: bool,
    /// The host, with the port unless it is the scheme's.
    pub(super) authority: String,
}

impl Origin {
    /// Returns the origin of a registry.
    pub(super) fn of(registry: &str, tls: bool) -> Self {
        let authority = if registry == HUB {
            "registry-1.docker.io"
        } else {
            registry
        };
        Self::new(tls, authority)
    }

    fn new(tls: bool, authority: &str) -> Self {
        let default = if tls { ":443" } else { ":80" };
        let authority = authority.strip_suffix(default).unwrap_or(authority);
        Self {
            tls,
            authority: authority.to_ascii_lowercase(),
        }
    }

    /// Returns the origin of an absolute URL.
    ///
    /// # Errors
    /// Why the host does not ask it. The reason does not contain the URL, which may contain a password.
    pub(super) fn of_url(url: &Uri) -> Result<Self, &'static str> {
        let tls = match url.scheme_str() {
            Some("https") => true,
            Some("http") => false,
            _ => return Err("the URL is neither https nor http"),
        };
        let authority = url.authority().ok_or("the URL has no host")?;
        if authority.as_str().contains('@') {
            return Err("the URL contains a user");
        }
        Ok(Self::new(tls, authority.as_str()))
    }
}

impl fmt::Display for Origin {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let scheme = if self.tls { "https" } else { "http" };
        write!(f, "{scheme}://{}", self.authority)
    }
}

/// The connections to all registries that are trusted in the same way.
pub(super) struct Transport {
    metrics: Arc<Metrics>,
    client: Client<HttpsConnector<HttpConnector>, Full<Bytes>>,
}

/// The transport in use, which other authorities replace.
pub struct Transports {
    metrics: Arc<Metrics>,
    /// With the digest of its own authorities.
    last: Mutex<Option<(Option<Digest>, Arc<Transport>)>>,
}

/// For commands, whose metrics nobody reads.
impl Default for Transports {
    fn default() -> Self {
        Self::new(Arc::new(Metrics::unread()))
    }
}

impl Transports {
    /// Prepares transports that measure each request.
    pub(crate) fn new(metrics: Arc<Metrics>) -> Self {
        Self {
            metrics,
            last: Mutex::default(),
        }
    }

    /// Returns the transport that trusts the system's authorities and those in the file.
    pub(super) fn get(&self, authorities: Option<&Path>) -> Result<Arc<Transport>, RegistryError> {
        let unusable = |reason: &dyn fmt::Display| {
            let file = authorities.unwrap_or(Path::new("")).display();
            RegistryError::from(format!("cannot use the certificate authorities {file}: {reason}"))
        };
        let pem = authorities.map(|file| files::read(file, AUTHORITIES_LIMIT));
        let pem = pem.transpose().map_err(|error| unusable(&error))?;
        let key = pem.as_deref().map(Digest::of);
        let mut last = lock(&self.last);
        if let Some((of, transport)) = &*last
            && *of == key
        {
            return Ok(Arc::clone(transport));
        }
        let tls = http_client::tls(true, pem.as_deref()).map_err(|why| unusable(&why))?;
        let transport = Arc::new(Transport::new(tls, Arc::clone(&self.metrics)));
        *last = Some((key, Arc::clone(&transport)));
        Ok(transport)
    }
}

impl Transport {
    fn new(tls: ClientConfig, metrics: Arc<Metrics>) -> Self {
        let mut connector = HttpConnector::new();
        connector.enforce_http(false);
        connector.set_connect_timeout(Some(CONNECT));
        let connector = HttpsConnectorBuilder::new()
            .with_tls_config(tls)
            .https_or_http()
            .enable_http1()
            .wrap_connector(connector);
        Self {
            metrics,
            client: Client::builder(TokioExecutor::new())
                .pool_idle_timeout(Duration::from_secs(30))
                .pool_max_idle_per_host(4)
                .build(connector),
        }
    }

    /// Sends a request; returns when the response begins. `is_known`: the configuration names the server.
    pub(super) async fn send(
        &self,
        request: Request<Full<Bytes>>,
        is_known: bool,
        time: Duration,
    ) -> Result<Response<Incoming>, RegistryError> {
        let host = host_of(request.uri());
        let target = Target::of(&request, is_known);
        let answer = async {
            match tokio::time::timeout(time, self.client.request(request)).await {
                Ok(Ok(response)) => Ok(response),
                Ok(Err(error)) => Err(unreachable(&host, &causes(&error))),
                Err(_) => Err(RegistryError::slow(&host, time)),
            }
        };
        let class = |error: &RegistryError| match error.cause {
            Cause::Slow => "timeout",
            _ => "connect",
        };
        http_client::observe(&self.metrics, target, answer, class).await
    }
}

/// Reads a body of at most `limit` bytes within a time.
pub(super) async fn read(
    response: Response<Incoming>,
    host: &str,
    what: &str,
    limit: usize,
    time: Duration,
) -> Result<Bytes, RegistryError> {
    let too_large = || format!("{host} sends more than {limit} bytes for {what}");
    let mut body = response.into_body();
    let stated = hyper::body::Body::size_hint(&body).lower();
    if stated > limit as u64 {
        return Err(too_large().into());
    }
    let reading = async {
        let mut bytes = Vec::with_capacity(usize::try_from(stated).unwrap_or(limit));
        while let Some(frame) = body.frame().await {
            let frame = frame.map_err(|error| {
                let why = format!("the connection broke while it sent {what}: {}", causes(&error));
                unreachable(host, &why)
            })?;
            let Ok(data) = frame.into_data() else {
                continue;
            };
            if bytes.len() + data.len() > limit {
                return Err(too_large().into());
            }
            bytes.extend_from_slice(&data);
        }
        Ok(Bytes::from(bytes))
    };
    let read = tokio::time::timeout(time, reading).await;
    read.map_err(|_| RegistryError::slow(host, time))?
}

fn unreachable(host: &str, reason: &str) -> RegistryError {
    format!("cannot reach {host}: {reason}").into()
}

pub(super) fn host_of(url: &Uri) -> String {
    url.authority()
        .map(|authority| words(authority.as_str()))
        .unwrap_or_default()
}

/// Joins an error with its causes, and adds what to do about the usual ones.
fn causes(error: &(dyn Error + 'static)) -> String {
    let mut texts: Vec<String> = Vec::new();
    let mut next = Some(error);
    while let Some(cause) = next {
        let text = cause.to_string();
        if texts.last().is_none_or(|last| !last.contains(&text)) {
            texts.push(text);
        }
        next = cause.source();
    }
    // The first says only that a client failed.
    let causes = texts.get(1..).filter(|causes| !causes.is_empty());
    let text = words(&causes.unwrap_or(&texts).join(": "));
    let advice = if text.contains("InvalidContentType") || text.contains("corrupt message") {
        "; if it does not speak TLS, list it under `registry.plainHttp` (--plain-http)"
    } else if text.contains("UnknownIssuer") {
        "; if its authority is your own, name it with `registry.certificateAuthorities` (--certificate-authorities)"
    } else {
        ""
    };
    text + advice
}

/// Returns text of others in a form that a log line, a condition and a terminal can show.
pub(super) fn words(text: &str) -> String {
    const LONGEST: usize = 300;
    match text.char_indices().nth(LONGEST) {
        Some((end, _)) => printable(&text[..end]) + "…",
        None => printable(text),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn origin(url: &str) -> Result<Origin, &'static str> {
        Origin::of_url(&url.parse().unwrap())
    }

    #[test]
    fn origins_are_equal_when_scheme_host_and_port_are() {
        assert_eq!(origin("https://R:443/a"), Ok(Origin::of("r", true)));
        assert_eq!(origin("http://r/a"), Ok(Origin::of("r:80", false)));
        assert_ne!(origin("https://r:444/a"), Ok(Origin::of("r", true)));
        assert_ne!(origin("http://r/a"), Ok(Origin::of("r", true)));
        assert!(origin("https://user:password@r/a").unwrap_err().contains("user"));
        assert!(origin("ftp://r/a").is_err());
        assert!(origin("/a").is_err());
    }
}
