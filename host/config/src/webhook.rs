//! The part of the configuration that defines the validating webhook.

use std::net::SocketAddr;
use std::path::{Path, PathBuf};

use serde::Deserialize;
use serde_json::{Value, json};
use serde_saphyr::Spanned;

use super::ConfigError;
use super::values::invalid;
use operator_host_contract::is_dns_label;

/// A validating admission webhook, served by this process.
#[derive(Clone, Debug, PartialEq, Eq)]
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
    #[must_use]
    pub fn client_config(&self, path: &str) -> Value {
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
pub(super) struct RawWebhook {
    address: Option<Spanned<String>>,
    certificate: PathBuf,
    key: PathBuf,
    service: Option<Spanned<String>>,
    url: Option<Spanned<String>>,
    certificate_authority: Option<Spanned<PathBuf>>,
}

/// Default of [`WebhookConfig::address`].
pub const DEFAULT_ADDRESS: &str = "0.0.0.0:8443";
/// The port of a Service that is given without one.
const SERVICE_PORT: u16 = 443;

impl RawWebhook {
    pub(super) fn validate(self, file: &Path) -> Result<WebhookConfig, ConfigError> {
        let (text, at) = match &self.address {
            Some(address) => (address.value.as_str(), address.referenced),
            None => (DEFAULT_ADDRESS, serde_saphyr::Location::UNKNOWN),
        };
        let address = text.parse().map_err(|_| {
            let message =
                format!("{text:?} is not an address to listen on: expected a value such as `0.0.0.0:8443`");
            invalid(file, at, message)
        })?;
        let here = file.parent().unwrap_or(Path::new(""));
        let reach = self.reach(file, here)?;
        Ok(WebhookConfig {
            address,
            certificate: here.join(self.certificate),
            key: here.join(self.key),
            client_ca: None,
            reach,
        })
    }

    fn reach(&self, file: &Path, here: &Path) -> Result<Option<WebhookReach>, ConfigError> {
        let target = match (&self.service, &self.url) {
            (Some(_), Some(url)) => {
                let message = "`webhook.service` and `webhook.url` exclude each other: give one";
                return Err(invalid(file, url.referenced, message));
            }
            (Some(service), None) => parse_service(&service.value).ok_or_else(|| {
                let message = format!(
                    "{:?} is not a Service: expected `namespace/name` or `namespace/name:port`",
                    service.value
                );
                invalid(file, service.referenced, message)
            })?,
            (None, Some(url)) => parse_url(&url.value).ok_or_else(|| {
                let message = format!(
                    "{:?} is not the URL of a webhook: expected a value such as `https://10.0.0.1:8443`, without a path",
                    url.value
                );
                invalid(file, url.referenced, message)
            })?,
            (None, None) => {
                if let Some(authority) = &self.certificate_authority {
                    let message = "`webhook.certificateAuthority` needs `webhook.service` or `webhook.url`";
                    return Err(invalid(file, authority.referenced, message));
                }
                return Ok(None);
            }
        };
        let authority = self.certificate_authority.as_ref();
        Ok(Some(WebhookReach {
            target,
            authority: authority.map(|authority| here.join(&authority.value)),
        }))
    }
}

/// Parses `namespace/name` or `namespace/name:port`.
#[must_use]
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
        let found = reach("service: a/b, certificateAuthority: ca.crt")
            .unwrap()
            .unwrap();
        assert_eq!(found.target, service(443));
        assert_eq!(found.authority, Some(PathBuf::from("/etc/host/ca.crt")));
        assert_eq!(
            reach("service: 'a/b:8443'").unwrap().unwrap().target,
            service(8443)
        );
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
            assert!(
                error.contains(":2:") && error.contains(expected),
                "{text}: {error}"
            );
        }
    }
}
