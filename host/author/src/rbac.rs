//! `operator-host rbac`: prints the minimal permissions for a configuration and its plugins.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt::Write;
use std::path::PathBuf;
use std::sync::Arc;

use anyhow::{Context, anyhow};
use clap::ValueEnum;
use serde_json::{Value, json};

use super::{Failure, plugin_file};
use crate::dry_run::documents;
use crate::permissions::manifests::{Manifest, manifests};
use crate::permissions::resources::{Resource, Resources};
use crate::permissions::{Rights, Scope, rights};
use operator_host_cluster::client;
use operator_host_cluster::discovery::{Discovery, KindError};
use operator_host_config::{Config, ServiceAccount};
use operator_host_contract::{Description, Kind};
use operator_host_core::metrics::Metrics;

/// The options of `rbac`.
#[derive(Debug, clap::Args)]
#[command(after_help = "\
Plurals are looked up in the plugins' CustomResourceDefinitions, in those given with --crd, among Kubernetes' built-in \
kinds, and finally in the current cluster.")]
pub struct Args {
    /// The configuration file
    #[arg(long, short, env = "OPERATOR_HOST_CONFIG", value_name = "FILE")]
    config: PathBuf,
    /// The host's ServiceAccount
    #[arg(
        long,
        env = "OPERATOR_HOST_SERVICE_ACCOUNT",
        default_value = "operator-host/operator-host",
        value_name = "NAMESPACE/NAME",
        value_parser = super::service_account
    )]
    service_account: ServiceAccount,
    /// Files with CustomResourceDefinitions of kinds that no plugin defines; repeatable
    #[arg(long, value_name = "FILE")]
    crd: Vec<PathBuf>,
    #[command(flatten)]
    plugins: plugin_file::PluginFiles,
    /// The output format
    #[arg(
        long,
        short,
        env = "OPERATOR_HOST_OUTPUT",
        default_value = "yaml",
        value_name = "FORMAT"
    )]
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
    /// Each permission with the component that needs it
    Table,
}

/// Prints the permissions.
///
/// # Errors
/// When the configuration is invalid, a plugin cannot be loaded, or a kind is unknown.
pub async fn run(args: Args) -> Result<(), Failure> {
    let config = Config::load(&args.config).map_err(|error| Failure::Usage(error.into()))?;
    let descriptions = describe(&config, &args.plugins).await?;
    let resources = resources(&config, &descriptions, &args.crd).await?;
    let rights = rights(&config, &args.service_account, &descriptions, &resources)?;
    for remark in &rights.remarks {
        eprintln!("operator-host: {remark}");
    }
    // The table contains them.
    for warning in rights.warnings.iter().filter(|_| args.output != Output::Table) {
        eprintln!("operator-host: warning: {warning}");
    }
    print!("{}", print(args.output, &rights, &args.service_account)?);
    Ok(())
}

async fn describe(config: &Config, plugins: &plugin_file::PluginFiles) -> Result<Vec<Description>, Failure> {
    let mut descriptions = Vec::with_capacity(config.controllers.len());
    for controller in &config.controllers {
        let location = &controller.plugin;
        let plugin = plugins.load(controller).await?;
        let plugin = plugin.with_context(|| location.to_string())?;
        let description = plugin.description();
        if description.parent != controller.parent {
            return Err(Failure::Usage(anyhow!(
                "{location}: the plugin reconciles {}, but the controller {:?} reconciles {}: configure the plugin for that kind",
                description.parent,
                controller.name,
                controller.parent
            )));
        }
        descriptions.push(description.clone());
    }
    Ok(descriptions)
}

/// Looks up every kind that the configuration names. The error names the definition to supply.
async fn resources(
    config: &Config,
    descriptions: &[Description],
    crds: &[PathBuf],
) -> Result<Resources, Failure> {
    let mut resources = Resources::default();
    for file in crds {
        let documents = documents::read(file).map_err(|error| Failure::Usage(error.into()))?;
        for document in documents {
            if document.kind().kind == "CustomResourceDefinition" {
                resources.define(&document.object);
            }
        }
    }
    for crd in descriptions
        .iter()
        .filter_map(|description| description.crd.as_ref())
    {
        resources.define(&crd.value());
    }
    let named = config.controllers.iter().flat_map(|controller| {
        std::iter::once(&controller.parent)
            .chain(controller.children.keys())
            .chain(&controller.reads)
    });
    let missing: BTreeSet<&Kind> = named.filter(|kind| resources.of(kind).is_err()).collect();
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
        resources.insert(
            kind.clone(),
            Resource {
                group: found.api.group.clone(),
                plural: found.api.plural.clone(),
                namespaced: found.namespaced,
                has_status: found.has_status,
            },
        );
    }
    Ok(resources)
}

fn print(output: Output, rights: &Rights, account: &ServiceAccount) -> Result<String, Failure> {
    let manifests = || manifests(rights, account);
    Ok(match output {
        Output::Yaml => {
            let mut text = String::from("# Printed by `operator-host rbac`.\n");
            for manifest in manifests() {
                text.push_str("---\n");
                text.push_str(&serde_saphyr::to_string(&manifest)?);
            }
            text
        }
        Output::Json => {
            let items: Vec<Manifest> = manifests();
            let list = json!({ "apiVersion": "v1", "kind": "List", "items": items });
            serde_json::to_string_pretty(&list)? + "\n"
        }
        Output::Helm => {
            let text = serde_saphyr::to_string(&json!({ "rbac": helm(&manifests(), account) }))?;
            format!("# Printed by `operator-host rbac -o helm`.\n{text}")
        }
        Output::Table => table(rights),
    })
}

/// Returns the rules only: the chart creates the objects, with its own names.
fn helm(manifests: &[Manifest], host: &ServiceAccount) -> Value {
    let mut grants: BTreeMap<ServiceAccount, Value> = BTreeMap::new();
    // Each role is followed by its binding.
    for pair in manifests.chunks_exact(2) {
        let (rules, namespace, subjects) = match pair {
            [Manifest::ClusterRole(role), Manifest::ClusterRoleBinding(binding)] => {
                (json!(role.rules), None, &binding.subjects)
            }
            [Manifest::Role(role), Manifest::RoleBinding(binding)] => (
                json!(role.rules),
                binding.metadata.namespace.as_ref(),
                &binding.subjects,
            ),
            _ => continue,
        };
        for subject in subjects.iter().flatten() {
            let account = ServiceAccount {
                namespace: subject.namespace.clone().unwrap_or_default(),
                name: subject.name.clone(),
            };
            let grant = grants
                .entry(account)
                .or_insert_with(|| json!({ "cluster": [], "namespaces": {} }));
            match namespace {
                None => grant["cluster"] = rules.clone(),
                Some(namespace) => grant["namespaces"][namespace] = rules.clone(),
            }
        }
    }
    let mut values = grants.remove(host).unwrap_or_default();
    let accounts = grants.into_iter().map(|(account, mut grant)| {
        grant["namespace"] = account.namespace.into();
        grant["name"] = account.name.into();
        grant
    });
    values["accounts"] = accounts.collect();
    values
}

fn table(rights: &Rights) -> String {
    let mut rows = vec![["WHO", "NAMESPACE", "RESOURCE", "VERB", "WHY"].map(str::to_owned)];
    for (permission, reasons) in rights.iter() {
        let namespace = match &permission.scope {
            Scope::Cluster => "(all)".to_owned(),
            Scope::Namespace(namespace) => namespace.clone(),
        };
        let resource = match permission.group.as_str() {
            "" => permission.resource.clone(),
            group => format!("{}.{group}", permission.resource),
        };
        let resource = match &permission.name {
            Some(name) => format!("{resource} {name}"),
            None => resource,
        };
        let who = permission
            .who
            .as_ref()
            .map_or_else(|| "host".to_owned(), ToString::to_string);
        let reasons: Vec<&str> = reasons.iter().map(String::as_str).collect();
        rows.push([
            who,
            namespace,
            resource,
            permission.verb.to_owned(),
            reasons.join("; "),
        ]);
    }
    let width = |column: usize| rows.iter().map(|row| row[column].len()).max().unwrap_or(0);
    let [who, namespace, resource, verb] = [0, 1, 2, 3].map(width);
    let table = rows.iter().fold(String::new(), |mut text, row| {
        let [a, b, c, d, why] = row;
        let _ = writeln!(
            text,
            "{a:who$}   {b:namespace$}   {c:resource$}   {d:verb$}   {why}"
        );
        text
    });
    rights.warnings.iter().fold(table, |mut text, warning| {
        let _ = writeln!(text, "warning: {warning}");
        text
    })
}
