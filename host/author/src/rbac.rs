//! `operator-host rbac`: prints the minimal permissions for a configuration and its plugins.

use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};
use std::sync::Arc;

use anyhow::anyhow;
use clap::ValueEnum;
use clap::builder::ArgPredicate;
use serde_json::{Value, json};

use super::{Failure, plugin_file};
use crate::dry_run::documents;
use crate::permissions::manifests::{Grant, grants};
use crate::permissions::resources::Resources;
use crate::permissions::{Rights, Scope, egress_rights, rights};
use operator_host_cluster::client;
use operator_host_cluster::discovery::{Discovery, KindError};
use operator_host_config::endpoints::EndpointsConfig;
use operator_host_config::{Config, ServiceAccount};
use operator_host_contract::{Description, Kind};
use operator_host_runtime::Plugin;
use operator_host_telemetry::metrics::Metrics;

/// The options of `rbac`.
#[derive(Debug, clap::Args)]
#[command(after_help = "\
Plurals are looked up in the plugins' CustomResourceDefinitions, in those given with --crd, among Kubernetes' built-in \
kinds, and finally in the current cluster.")]
pub struct Args {
    /// The configuration file
    #[arg(long, short, env = "OPERATOR_HOST_CONFIG")]
    #[arg(value_name = "FILE", required_unless_present = "endpoints")]
    config: Option<PathBuf>,
    /// The file of endpoints: print what `operator-host egress` needs instead
    #[arg(long, value_name = "FILE", conflicts_with_all = ["crd", "files"])]
    endpoints: Option<PathBuf>,
    /// The host's ServiceAccount
    #[arg(
        long,
        env = "OPERATOR_HOST_SERVICE_ACCOUNT",
        default_value = "operator-host/operator-host",
        default_value_if("endpoints", ArgPredicate::IsPresent, "operator-host/operator-host-egress"),
        value_name = "NAMESPACE/NAME"
    )]
    service_account: ServiceAccount,
    /// Files with CustomResourceDefinitions of kinds that no plugin defines; repeatable
    #[arg(long, value_name = "FILE")]
    crd: Vec<PathBuf>,
    #[command(flatten)]
    plugins: plugin_file::PluginFiles,
    /// The output format
    #[arg(long, short, env = "OPERATOR_HOST_OUTPUT")]
    #[arg(default_value = "yaml", value_name = "FORMAT")]
    output: Output,
}

/// The output format.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
enum Output {
    /// Documents for `kubectl apply`
    Yaml,
    /// A `List` of the same
    Json,
    /// Values for the Helm chart
    Helm,
}

/// Prints the permissions.
///
/// # Errors
/// When the configuration is invalid, a plugin cannot be loaded, or a kind is unknown.
pub async fn run(args: Args) -> Result<(), Failure> {
    let rights = match (&args.endpoints, &args.config) {
        (Some(file), _) => {
            let config = EndpointsConfig::load(file).map_err(Failure::usage)?;
            egress_rights(&config, &args.service_account)
        }
        (None, Some(file)) => of_host(file, &args).await?,
        (None, None) => return Err(Failure::Usage(anyhow!("give --config or --endpoints"))),
    };
    for remark in &rights.remarks {
        eprintln!("operator-host: {remark}");
    }
    for warning in &rights.warnings {
        eprintln!("operator-host: warning: {warning}");
    }
    print!("{}", print(&args, &rights)?);
    Ok(())
}

async fn of_host(file: &Path, args: &Args) -> Result<Rights, Failure> {
    let config = Config::load(file).map_err(Failure::usage)?;
    let plugins = load(&config, &args.plugins).await?;
    let descriptions = plugins.iter().map(|plugin| plugin.description().clone());
    let descriptions: Vec<_> = descriptions.collect();
    let named = config.controllers.iter().flat_map(|controller| {
        std::iter::once(&controller.parent)
            .chain(controller.rules.children.keys())
            .chain(&controller.reads)
    });
    let resources = resources(named, descriptions.iter(), &args.crd).await?;
    Ok(rights(&config, &args.service_account, &descriptions, &resources)?)
}

/// Loads the plugin of each controller, which must be for its kind.
pub(crate) async fn load(config: &Config, files: &plugin_file::PluginFiles) -> Result<Vec<Plugin>, Failure> {
    let is_there = |name: &&str| config.controllers.iter().any(|it| it.name == *name);
    if let Some(name) = files.names().find(|name| !is_there(name)) {
        return Err(Failure::Usage(anyhow!(
            "--plugin: the configuration has no controller {name:?}"
        )));
    }
    let mut plugins = Vec::with_capacity(config.controllers.len());
    for controller in &config.controllers {
        plugins.push(files.load(controller).await?);
    }
    Ok(plugins)
}

/// Looks up kinds: in definitions, among those of Kubernetes, and in the current cluster. An error names the definition to supply.
pub(crate) async fn resources<'a>(
    kinds: impl Iterator<Item = &'a Kind>,
    descriptions: impl Iterator<Item = &'a Description>,
    crds: &[PathBuf],
) -> Result<Resources, Failure> {
    let mut resources = Resources::default();
    for document in documents::read(crds)? {
        if document.kind().kind == "CustomResourceDefinition" {
            resources.define(&document.object);
        }
    }
    for crd in descriptions.filter_map(|description| description.crd.as_ref()) {
        resources.define(&crd.value());
    }
    let missing: BTreeSet<&Kind> = kinds.filter(|kind| resources.of(kind).is_err()).collect();
    if missing.is_empty() {
        return Ok(resources);
    }
    let metrics = Arc::new(Metrics::unread());
    let client = client::connect(Arc::clone(&metrics)).await;
    let kinds = client.map(|client| Discovery::new(client, metrics));
    for kind in missing {
        let found = match &kinds {
            Ok(kinds) => kinds.resolve(kind).await.map_err(|error| match error {
                KindError::Unknown(_) | KindError::NotDefined(_) => {
                    "the current cluster does not serve it".to_owned()
                }
                KindError::Discovery { message, .. } => message,
            }),
            Err(error) => Err(error.to_string()),
        };
        let found = found.map_err(|why| {
            Failure::Usage(anyhow!(
                "the plural of {kind} is not known: no plugin contains its CustomResourceDefinition, and {why}; give the \
                 definition with --crd FILE, or connect to a cluster that serves it"
            ))
        })?;
        resources.insert(kind.clone(), &found);
    }
    Ok(resources)
}

fn print(args: &Args, rights: &Rights) -> Result<String, Failure> {
    let account = &args.service_account;
    let grants = grants(rights, account);
    let manifests = || grants.iter().flat_map(Grant::manifests);
    Ok(match args.output {
        Output::Yaml => {
            let mut text = String::from("# Printed by `operator-host rbac`.\n");
            for manifest in manifests() {
                text.push_str("---\n");
                text.push_str(&serde_saphyr::to_string(&manifest)?);
            }
            text
        }
        Output::Json => {
            let items: Vec<Value> = manifests().collect();
            let list = json!({ "apiVersion": "v1", "kind": "List", "items": items });
            serde_json::to_string_pretty(&list)? + "\n"
        }
        Output::Helm => {
            let mut accounts = rules(grants);
            let mut rbac = accounts.remove(account).unwrap_or_default();
            let values = match args.endpoints {
                // `egress` impersonates no account.
                Some(_) => json!({ "egress": { "rbac": rbac } }),
                None => {
                    rbac["accounts"] = named(accounts);
                    json!({ "rbac": rbac })
                }
            };
            let text = serde_saphyr::to_string(&values)?;
            format!("# Printed by `operator-host rbac -o helm`.\n{text}")
        }
    })
}

/// Returns the rules of each account only: the chart creates the objects, with its own names.
fn rules(all: Vec<Grant>) -> BTreeMap<ServiceAccount, Value> {
    let mut grants: BTreeMap<ServiceAccount, Value> = BTreeMap::new();
    for one in all {
        let grant = grants
            .entry(one.account)
            .or_insert_with(|| json!({ "cluster": [], "namespaces": {} }));
        match one.scope {
            Scope::Cluster => grant["cluster"] = one.rules,
            Scope::Namespace(namespace) => grant["namespaces"][namespace] = one.rules,
        }
    }
    grants
}

/// Returns the rules of accounts as a list, each with the account's namespace and name.
fn named(grants: BTreeMap<ServiceAccount, Value>) -> Value {
    let accounts = grants.into_iter().map(|(account, mut grant)| {
        grant["namespace"] = account.namespace.into();
        grant["name"] = account.name.into();
        grant
    });
    accounts.collect()
}
