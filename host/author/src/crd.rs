//! `operator-host crd`: prints a plugin's CustomResourceDefinition.

use std::path::PathBuf;

use anyhow::anyhow;
use serde_json::Value;

use super::plugin_file::Loaded;
use super::reach::{Client, ReachArgs};
use super::{Failure, plugin_file};
use operator_host_config::Config;

/// The options of `crd`.
#[derive(Debug, clap::Args)]
pub struct Args {
    /// The plugin's WebAssembly file
    plugin: PathBuf,
    /// The configuration file, whose `webhook` section says how the API server reaches the host, which converts the versions
    /// of the kind
    #[arg(long, short, env = "OPERATOR_HOST_CONFIG", value_name = "FILE")]
    config: Option<PathBuf>,
    #[command(flatten)]
    reach: ReachArgs,
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
    let Loaded { plugin, .. } = plugin_file::load(file).await?;
    let description = plugin.description();
    let file = file.display();
    let crd = description.definition();
    let mut crd = crd.ok_or_else(|| anyhow!("{file}: the plugin contains no CustomResourceDefinition"))?;
    match client(&args)? {
        _ if !description.converts() && !args.reach.is_given() => {}
        Some(client) if description.converts() => {
            client.convert(&mut crd);
            if let Some(certificate) = &args.inject_ca_from {
                crd["metadata"]["annotations"]["cert-manager.io/inject-ca-from"] =
                    certificate.as_str().into();
            }
        }
        Some(_) => {
            return Err(Failure::Usage(anyhow!(
                "{file}: the plugin has one version of {}, so there is nothing to convert: omit --service and --url",
                description.parent.kind
            )));
        }
        None => {
            eprintln!(
                "note: only the stored version is served, because nothing converts the others: give --service or --url of the \
                 host's webhook, or --config with a file that has them, to serve all versions"
            );
            serve_stored_only(&mut crd);
        }
    }
    print!("{}", serde_saphyr::to_string(&crd)?);
    Ok(())
}

/// Serves only the stored version of a definition. If the API server served another version without a webhook, it would drop the
/// fields that the stored version does not have.
fn serve_stored_only(definition: &mut Value) {
    let versions = definition["spec"]["versions"].as_array_mut();
    for version in versions.into_iter().flatten() {
        if version["storage"] != true {
            version["served"] = false.into();
        }
    }
}

/// Returns how the API server reaches the host, if the arguments or the configuration say it.
fn client(args: &Args) -> Result<Option<Client>, Failure> {
    let config = args.config.as_deref().map(Config::load).transpose();
    let config = config.map_err(Failure::usage)?;
    let webhook = config.as_ref().and_then(|config| config.webhook.as_ref());
    let reach = webhook.and_then(|webhook| webhook.reach.as_ref());
    if args.reach.is_given() || reach.is_some() {
        return args.reach.client(reach).map(Some);
    }
    if args.reach.ca.is_some() || args.inject_ca_from.is_some() {
        return Err(Failure::Usage(anyhow!(
            "--ca and --inject-ca-from need --service, --url, or `webhook.service` or `webhook.url` in the --config file"
        )));
    }
    Ok(None)
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn without_a_webhook_only_the_stored_version_is_served() {
        let version = |name: &str, served: bool, storage: bool| json!({ "name": name, "served": served, "storage": storage });
        let mut definition =
            json!({ "spec": { "versions": [version("v1", true, false), version("v2", true, true)] } });
        serve_stored_only(&mut definition);
        assert_eq!(
            definition,
            json!({ "spec": { "versions": [version("v1", false, false), version("v2", true, true)] } })
        );
    }
}
