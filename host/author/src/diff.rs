//! `operator-host diff`: shows what plugins would change in the cluster.

use std::collections::BTreeSet;
use std::io::Write;
use std::path::PathBuf;
use std::process::ExitCode;
use std::sync::Arc;

use anyhow::{Context, anyhow};
use serde_json::Value;

use super::output::Paint;
use super::{Failure, plugin_file, rendering};
use crate::dry_run::documents::{self, Document};
use crate::dry_run::server_side::{self, Difference, Preview};
use operator_host_cluster::client::{self, warnings};
use operator_host_cluster::discovery::Discovery;
use operator_host_config::location::Location;
use operator_host_config::{Config, ControllerConfig};
use operator_host_core::object::NamespacedName;
use operator_host_runtime::Plugin;
use operator_host_telemetry::metrics::Metrics;

/// The options of `diff`.
#[derive(Debug, clap::Args)]
#[command(
    after_help = "Exit codes, as in `kubectl diff`: 0 nothing would change, 1 something would change, 2 the result is not known for all."
)]
pub struct Args {
    /// The configuration file
    #[arg(long, short, env = "OPERATOR_HOST_CONFIG", value_name = "FILE")]
    config: PathBuf,
    /// Show only this controller
    #[arg(long, value_name = "NAME")]
    controller: Option<String>,
    /// Use this plugin file instead of the configured one, such as a version to be rolled out
    #[arg(long, short, value_name = "FILE")]
    plugin: Option<PathBuf>,
    /// Use these resources as if they were applied, instead of those in the cluster
    #[arg(long = "filename", short, value_name = "FILE")]
    filename: Vec<PathBuf>,
    /// The namespace to look in [default: the kubeconfig's namespace for resources given by name, otherwise every
    /// namespace of the configuration]
    #[arg(long, short, value_name = "NAMESPACE")]
    namespace: Option<String>,
    /// Show only the resources with these names
    #[arg(value_name = "NAME", requires = "controller", conflicts_with = "filename")]
    names: Vec<String>,
}

/// Prints the differences.
///
/// # Errors
/// When some differences cannot be determined; the help lists the exit codes.
pub async fn run(args: Args) -> Result<ExitCode, Failure> {
    // As in `kubectl diff`.
    diff(args).await.map_err(Failure::into_trouble)
}

async fn diff(args: Args) -> Result<ExitCode, Failure> {
    plugin_file::show_log("off")?;
    if args.plugin.is_some() && args.controller.is_none() {
        return Err(anyhow!("--plugin needs --controller").into());
    }
    let config = Config::load(&args.config)?;
    let controllers = chosen(&config, args.controller.as_deref())?;
    let documents = documents::read(&args.filename)?;
    let is_stray = |document: &&Document| controllers.iter().all(|it| it.parent != document.kind());
    if let Some(stray) = documents.iter().find(is_stray) {
        return Err(anyhow!("no controller of the configuration is for {}", stray.kind()).into());
    }
    let metrics = Arc::new(Metrics::unread());
    let client = client::connect(Arc::clone(&metrics)).await?;
    let kinds = Discovery::new(client.clone(), metrics);
    let (mut differs, mut failed) = (false, false);
    for controller in controllers {
        let documents = documents.iter().filter(|it| it.kind() == controller.parent);
        let documents: Vec<_> = documents.collect();
        if documents.is_empty() && !args.filename.is_empty() {
            continue;
        }
        let location = match &args.plugin {
            Some(file) => &Location::File(file.clone()),
            None => &controller.plugin,
        };
        let plugin = plugin_file::load_from(location, controller).await?;
        let host = config.host_namespace.as_deref();
        let host = host.unwrap_or(client.default_namespace());
        let preview = Preview::new(&client, &kinds, controller, &plugin, host)
            .await
            .with_context(|| format!("controller {:?}", controller.name))?;
        let namespace = args.namespace.as_deref().unwrap_or(client.default_namespace());
        let named = |name: &str, given: Option<&str>| NamespacedName {
            namespace: preview
                .is_namespaced()
                .then(|| given.unwrap_or(namespace).to_owned()),
            name: name.to_owned(),
        };
        let mut parents = Vec::new();
        for document in documents {
            let (manifest, name) = manifest(document, named);
            let (applied, warnings) = warnings::hear(preview.applied(&manifest, &name)).await;
            say(&controller.parent.kind, &name, warnings);
            parents.push((name.clone(), applied));
        }
        for name in &args.names {
            let name = named(name, None);
            parents.push((name.clone(), preview.parent(name).await));
        }
        if args.filename.is_empty() && args.names.is_empty() {
            let places = match &args.namespace {
                Some(namespace) if preview.is_namespaced() => vec![Some(namespace.as_str())],
                _ => config.places(preview.is_namespaced()),
            };
            for place in places {
                let found = preview.parents(place).await?.into_iter();
                parents.extend(found.map(|parent| (NamespacedName::of(&parent), Ok(parent))));
            }
        }
        for (name, parent) in parents {
            let kind = &controller.parent.kind;
            let found = match parent {
                Ok(parent) => {
                    let (found, warnings) = warnings::hear(preview.differences(parent)).await;
                    say(kind, &name, warnings);
                    found
                }
                Err(error) => Err(error),
            };
            let error = match found {
                Ok((differences, refused)) => {
                    differs |= !differences.is_empty();
                    print(kind, &name, &plugin, &differences)?;
                    (!refused.is_empty()).then(|| server_side::refused(&refused))
                }
                Err(error) => Some(error),
            };
            if let Some(error) = error {
                failed = true;
                eprintln!("operator-host: {kind} {name}: {error}");
            }
        }
    }
    Ok(ExitCode::from(match failed {
        true => 2,
        false => u8::from(differs),
    }))
}

/// Prints what the API server warns of.
fn say(kind: &str, name: &NamespacedName, warnings: BTreeSet<String>) {
    for warning in warnings {
        eprintln!("operator-host: warning: {kind} {name}: {warning}");
    }
}

fn chosen<'a>(config: &'a Config, name: Option<&str>) -> anyhow::Result<Vec<&'a ControllerConfig>> {
    let Some(name) = name else {
        return Ok(config.controllers.iter().collect());
    };
    let found = config.controllers.iter().find(|it| it.name == name);
    found.map(|found| vec![found]).ok_or_else(|| {
        let names: Vec<_> = config.controllers.iter().map(|it| it.name.as_str()).collect();
        let names = names.join(", ");
        anyhow!("the configuration has no controller {name:?}; it has {names}")
    })
}

/// Returns a manifest with its namespace filled in.
fn manifest(
    document: &Document,
    named: impl Fn(&str, Option<&str>) -> NamespacedName,
) -> (Value, NamespacedName) {
    let mut manifest = document.object.clone();
    let name = named(document.name(), document.object["metadata"]["namespace"].as_str());
    if let Some(namespace) = &name.namespace {
        manifest["metadata"]["namespace"] = namespace.as_str().into();
    }
    (manifest, name)
}

/// Prints the changes of a parent's children.
fn print(
    kind: &str,
    parent: &NamespacedName,
    plugin: &Plugin,
    differences: &[Difference],
) -> anyhow::Result<()> {
    let mut out = std::io::stdout().lock();
    let paint = Paint::of(&out);
    if !differences.is_empty() {
        writeln!(out, "# {kind} {parent}")?;
    }
    let description = plugin.description();
    let with = format!("with {} {}", description.name, description.version);
    for Difference { key, before, after } in differences {
        let side = |side: &Option<Value>, when: &str| match side {
            Some(object) => Ok((format!("{key} ({when})"), serde_saphyr::to_string(object)?)),
            None => anyhow::Ok(("/dev/null".to_owned(), String::new())),
        };
        let ((from, before), (to, after)) = (side(before, "now")?, side(after, &with)?);
        out.write_all(rendering::diff((&from, &to), &before, &after, paint).as_bytes())?;
    }
    Ok(())
}
