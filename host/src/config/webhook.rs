//! The part of the configuration that says where resources are validated before they are written.

use std::net::SocketAddr;
use std::path::{Path, PathBuf};

use serde::Deserialize;
use serde_saphyr::Spanned;

use super::ConfigError;
use super::values::invalid;

/// A validating admission webhook, served by this process.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct WebhookConfig {
    /// Where to listen.
    pub address: SocketAddr,
    /// The certificate with its chain, PEM. It may come, and change, while the host runs.
    pub certificate: PathBuf,
    /// Its private key, PEM.
    pub key: PathBuf,
    /// The authorities of which one must have signed the caller's certificate, PEM; `None`: everybody may ask. It is not
    /// the configuration that says this.
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
            let message = format!("{text:?} is no address to listen on: expected one such as `0.0.0.0:8443`");
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
