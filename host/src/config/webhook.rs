//! The part of the configuration that defines the validating webhook.

use std::net::SocketAddr;
use std::path::{Path, PathBuf};

use serde::Deserialize;
use serde_saphyr::Spanned;

use super::ConfigError;
use super::values::invalid;

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
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub(super) struct RawWebhook {
    address: Option<Spanned<String>>,
    certificate: PathBuf,
    key: PathBuf,
}

/// Default of [`WebhookConfig::address`].
pub const DEFAULT_ADDRESS: &str = "0.0.0.0:8443";

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
        Ok(WebhookConfig {
            address,
            certificate: here.join(self.certificate),
            key: here.join(self.key),
            client_ca: None,
        })
    }
}
