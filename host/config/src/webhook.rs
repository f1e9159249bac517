//! The part of the configuration that defines the validating webhook.

use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::path::{Path, PathBuf};

use serde::Deserialize;
use serde_json::json;

use super::values::{Text, Value};
use operator_host_contract::is_dns_label;

/// A validating admission webhook, served by this process.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize)]
#[serde(try_from = "RawWebhook")]
pub struct WebhookConfig {
    /// The address to listen on.
    pub address: SocketAddr,
    /// The file of the certificate chain, PEM. It may appear, and change, while the host runs.
    pub certificate: PathBuf,
    /// The file of the private key, PEM.
    pub key: PathBuf,
    /// The authorities that may have signed the caller's certificate, PEM; `None`: every caller is accepted. It is set
    /// by the command line, not by the configuration.
    pub client_ca: Option<PathBuf>,
    /// How the API server reaches it, for the definitions that the host installs; `None` when it is not configured.
    pub reach: Option<WebhookReach>,
}

/// How the API server reaches the webhook.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct WebhookReach {
    /// The Service in front of the host, or a URL.
    pub target: WebhookTarget,
    /// The file of the authority that the API server should trust, PEM; `None` when another component writes the
    /// authority into the definitions.
    pub authority: Option<PathBuf>,
}

/// Where the API server finds the webhook.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum WebhookTarget {
    /// A Service of the cluster.
    Service {
        /// Its namespace.
        namespace: String,
        /// Its name.
        name: String,
        /// Its port.
        port: u16,
    },
    /// The URL without a path, such as `https://10.0.0.1:8443`.
    Url(String),
}

impl WebhookTarget {
    /// Returns the `clientConfig` of a webhook at a path of the host, without an authority.
    pub fn client_config(&self, path: &str) -> serde_json::Value {
        match self {
            Self::Service {
                namespace,
                name,
                port,
            } => json!({ "service": { "namespace": namespace, "name": name, "port": port, "path": path } }),
            Self::Url(url) => json!({ "url": format!("{url}{path}") }),
        }
    }
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
struct RawWebhook {
    address: Option<Text<SocketAddr>>,
    certificate: PathBuf,
    key: PathBuf,
    service: Option<Text<Service>>,
    url: Option<Text<Url>>,
    certificate_authority: Option<PathBuf>,
}

/// Default of [`WebhookConfig::address`].
pub const DEFAULT_ADDRESS: SocketAddr = SocketAddr::new(IpAddr::V4(Ipv4Addr::UNSPECIFIED), 8443);
/// The port of a Service that is given without one.
const SERVICE_PORT: u16 = 443;

impl TryFrom<RawWebhook> for WebhookConfig {
    type Error = &'static str;

    fn try_from(raw: RawWebhook) -> Result<Self, &'static str> {
        let target = match (raw.service, raw.url) {
            (Some(_), Some(_)) => {
                return Err("`webhook.service` and `webhook.url` exclude each other: give one");
            }
            (service, url) => service.map(|it| it.0.0).or(url.map(|it| it.0.0)),
        };
        if target.is_none() && raw.certificate_authority.is_some() {
            return Err("`webhook.certificateAuthority` needs `webhook.service` or `webhook.url`");
        }
        let authority = raw.certificate_authority;
        Ok(Self {
            address: raw.address.map_or(DEFAULT_ADDRESS, |it| it.0),
            certificate: raw.certificate,
            key: raw.key,
            client_ca: None,
            reach: target.map(|target| WebhookReach { target, authority }),
        })
    }
}

impl WebhookConfig {
    /// Returns the same with paths that start at a folder.
    pub(super) fn relative_to(mut self, folder: &Path) -> Self {
        let authority = self.reach.as_mut().and_then(|reach| reach.authority.as_mut());
        let files = [&mut self.certificate, &mut self.key].into_iter();
        for path in files.chain(authority) {
            *path = folder.join(&path);
        }
        self
    }
}

impl Value for SocketAddr {
    fn parse(text: &str) -> Result<Self, String> {
        text.parse().map_err(|_| {
            format!("{text:?} is not an address to listen on: expected a value such as `0.0.0.0:8443`")
        })
    }
}

struct Service(WebhookTarget);

impl Value for Service {
    fn parse(text: &str) -> Result<Self, String> {
        parse_service(text).map(Self).ok_or_else(|| {
            format!("{text:?} is not a Service: expected `namespace/name` or `namespace/name:port`")
        })
    }
}

struct Url(WebhookTarget);

impl Value for Url {
    fn parse(text: &str) -> Result<Self, String> {
        parse_url(text).map(Self).ok_or_else(|| {
            format!("{text:?} is not the URL of a webhook: expected a value such as `https://10.0.0.1:8443`, without a path")
        })
    }
}

/// Parses `namespace/name` or `namespace/name:port`.
pub fn parse_service(text: &str) -> Option<WebhookTarget> {
    let (namespace, name) = text.split_once('/')?;
    let (name, port) = match name.split_once(':') {
        Some((name, port)) => (name, port.parse().ok().filter(|port| *port > 0)?),
        None => (name, SERVICE_PORT),
    };
    (is_dns_label(namespace) && is_dns_label(name)).then(|| WebhookTarget::Service {
        namespace: namespace.to_owned(),
        name: name.to_owned(),
        port,
    })
}

fn parse_url(text: &str) -> Option<WebhookTarget> {
    let rest = text.strip_prefix("https://")?;
    let host = rest.strip_suffix('/').unwrap_or(rest);
    let is_host = |c: char| c.is_ascii_alphanumeric() || matches!(c, '.' | '-' | ':' | '[' | ']');
    (!host.is_empty() && host.chars().all(is_host)).then(|| WebhookTarget::Url(format!("https://{host}")))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn reach(text: &str) -> Result<Option<WebhookReach>, String> {
        let file = format!("controllers: []\nwebhook: {{certificate: c, key: k, {text}}}\n");
        let config = super::super::Config::parse(Path::new("/etc/host/config.yaml"), &file);
        let config = config.map_err(|error| error.to_string())?;
        Ok(config.webhook.and_then(|webhook| webhook.reach))
    }

    #[test]
    fn the_api_server_reaches_the_webhook_by_a_service_or_a_url() {
        assert_eq!(reach("").unwrap(), None);
        let service = |port| WebhookTarget::Service {
            namespace: "a".into(),
            name: "b".into(),
            port,
        };
        let found = reach("service: a/b, certificateAuthority: ca.crt").unwrap();
        let found = found.unwrap();
        assert_eq!(found.target, service(443));
        assert_eq!(found.authority, Some(PathBuf::from("/etc/host/ca.crt")));
        let found = reach("service: 'a/b:8443'").unwrap().unwrap();
        assert_eq!(found.target, service(8443));
        let url = reach("url: 'https://10.0.0.1:8443/'").unwrap().unwrap();
        assert_eq!(url.target, WebhookTarget::Url("https://10.0.0.1:8443".into()));
    }

    #[test]
    fn what_cannot_be_reached_is_refused_with_its_place() {
        for (text, expected) in [
            ("service: b", "expected `namespace/name`"),
            ("service: 'a/b:0'", "expected `namespace/name`"),
            ("url: 'http://a'", "is not the URL of a webhook"),
            ("url: 'https://a/convert'", "without a path"),
            ("service: a/b, url: 'https://a'", "exclude each other"),
            ("certificateAuthority: ca.crt", "needs `webhook.service`"),
        ] {
            let error = reach(text).unwrap_err();
            let is_so = error.contains(":2:") && error.contains(expected);
            assert!(is_so, "{text}: {error}");
        }
    }
}
