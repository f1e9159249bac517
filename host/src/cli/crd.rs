//! `operator-host crd`: prints a plugin's CustomResourceDefinition.

use std::path::PathBuf;

use anyhow::{Context, anyhow};
use serde_json::{Value, json};

use super::{Failure, conversion, plugin_file, webhook_manifests};
use operator_host_webhook::CONVERT_PATH;

/// The options of `crd`.
#[derive(Debug, clap::Args)]
pub struct Args {
    /// The plugin's WebAssembly file
    plugin: PathBuf,
    /// The Service in front of the host's webhook port, which converts the versions of the kind
    #[arg(long, value_name = "NAMESPACE/NAME", conflicts_with = "url")]
    service: Option<String>,
    /// The URL of the host's webhook, instead of a Service, such as `https://10.0.0.1:8443/convert`
    #[arg(long, value_name = "URL")]
    url: Option<String>,
    /// The PEM file of the certificate authority that the API server should trust; omit it when another component
    /// injects the authority, such as cert-manager
    #[arg(long, value_name = "FILE")]
    ca: Option<PathBuf>,
    /// The Certificate whose authority cert-manager injects
    #[arg(long, value_name = "NAMESPACE/NAME", conflicts_with = "ca")]
    inject_ca_from: Option<String>,
}

/// Prints the definition as YAML.
///
/// # Errors
/// When the file is not a plugin, or the plugin contains no definition.
pub async fn run(args: Args) -> Result<(), Failure> {
    let file = &args.plugin;
    let plugin = plugin_file::load(file)
        .await?
        .with_context(|| file.display().to_string())?;
    let description = plugin.description();
    let crd = &description.definition().ok_or_else(|| {
        anyhow!(
            "{}: the plugin contains no CustomResourceDefinition",
            file.display()
        )
    })?;
    let client = client(&args)?;
    let crd = match client {
        Some(_) if !description.converts() => {
            return Err(Failure::Usage(anyhow!(
                "{}: the plugin has one version of {}, so there is nothing to convert: omit --service and --url",
                file.display(),
                description.parent.kind
            )));
        }
        Some(mut client) => {
            webhook_manifests::add_authority(&mut client, args.ca.as_deref())?;
            let mut crd = conversion::with_webhook(crd, client);
            if let Some(certificate) = &args.inject_ca_from {
                crd["metadata"]["annotations"]["cert-manager.io/inject-ca-from"] =
                    certificate.as_str().into();
            }
            crd
        }
        None if description.converts() => {
            eprintln!(
                "note: only the stored version is served, because nothing converts the others: give --service or --url of the \
                 host's webhook to serve all versions"
            );
            conversion::without_webhook(crd)
        }
        None => crd.clone(),
    };
    print!("{}", serde_saphyr::to_string(&crd)?);
    Ok(())
}

/// Returns how the API server reaches the host.
fn client(args: &Args) -> Result<Option<Value>, Failure> {
    if let Some(url) = &args.url {
        return Ok(Some(json!({ "url": url })));
    }
    let Some(service) = &args.service else {
        if args.ca.is_some() || args.inject_ca_from.is_some() {
            return Err(Failure::Usage(anyhow!(
                "--ca and --inject-ca-from need --service or --url"
            )));
        }
        return Ok(None);
    };
    let parts = service
        .split_once('/')
        .filter(|(namespace, name)| !namespace.is_empty() && !name.is_empty());
    let (namespace, name) =
        parts.ok_or_else(|| Failure::Usage(anyhow!("--service must be NAMESPACE/NAME")))?;
    Ok(Some(json!({
        "service": { "namespace": namespace, "name": name, "port": 443, "path": CONVERT_PATH },
    })))
}
