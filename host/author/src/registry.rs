//! The options of commands that talk to a registry.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use anyhow::anyhow;

use super::Failure;
use operator_host_config::reference::{Reference, SCHEME};
use operator_host_config::registry::RegistryConfig;

/// How to ask a registry.
#[derive(Debug, Default, clap::Args)]
pub struct RegistryArgs {
    /// A Docker configuration file with the registry's credentials [default: config.json in $DOCKER_CONFIG or in
    /// ~/.docker, if it exists]
    #[arg(long, env = "OPERATOR_HOST_REGISTRY_CREDENTIALS", value_name = "FILE")]
    credentials: Option<PathBuf>,
    /// PEM file with certificate authorities to trust in addition to those of the system
    #[arg(long, value_name = "FILE")]
    certificate_authorities: Option<PathBuf>,
    /// Ask the registry without TLS
    #[arg(long)]
    plain_http: bool,
}

impl RegistryArgs {
    /// Returns the settings for a reference.
    pub fn settings(&self, reference: &Reference) -> Arc<RegistryConfig> {
        let registry = reference.registry.to_ascii_lowercase();
        Arc::new(RegistryConfig {
            credentials: self.credentials.clone().or_else(docker_config),
            certificate_authorities: self.certificate_authorities.clone(),
            plain_http: self.plain_http.then_some(registry).into_iter().collect(),
            ..RegistryConfig::default()
        })
    }
}

fn docker_config() -> Option<PathBuf> {
    let folder = std::env::var_os("DOCKER_CONFIG").map(PathBuf::from);
    let folder = folder.or_else(|| Some(PathBuf::from(std::env::var_os("HOME")?).join(".docker")))?;
    Some(folder.join("config.json")).filter(|file| file.is_file())
}

/// Returns the reference when the text begins with `oci://`.
pub fn reference(text: &Path) -> Result<Option<Reference>, Failure> {
    let text = text.to_str().filter(|text| text.starts_with(SCHEME));
    text.map(parse).transpose()
}

/// Parses a reference, with or without `oci://`.
pub fn parse(text: &str) -> Result<Reference, Failure> {
    text.parse()
        .map_err(|message: String| Failure::Usage(anyhow!(message)))
}
