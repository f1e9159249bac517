//! `operator-host render`: prints what a plugin produces for resources in files.

use std::io::Write;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use anyhow::{Context, anyhow};
use jiff::Timestamp;
use kube::core::DynamicObject;
use serde_json::Value;

use super::plugin_file::Loaded;
use super::registry::RegistryArgs;
use super::rendering::{self, Output};
use super::{Failure, plugin_file};
use crate::dry_run::documents::{self, Document};
use crate::dry_run::offline::{self, Allowed, RenderError, Scene};
use operator_host_config::Config;
use operator_host_contract::{self as contract, Kind};
use operator_host_core::crd::definition;
use operator_host_desired::names;
use operator_host_engine::reconcile::evaluate::EvaluateError;
use operator_host_runtime::{CallError, Plugin};
use operator_host_schema::cel;
use operator_host_schema::schema;

/// The options of `render`.
#[derive(Debug, clap::Args)]
#[command(after_help = "\
Exit codes: 0 rendered; 1 the plugin failed or its answer is refused; 2 wrong usage, or a resource that does not \
fit its definition.")]
pub struct Args {
    /// The plugin's WebAssembly file, or its reference in a registry (`oci://…`)
    #[arg(long, short, env = "OPERATOR_HOST_PLUGIN", value_name = "FILE")]
    plugin: PathBuf,
    /// Files with the custom resources, one or more documents each; repeatable. Objects of other kinds count as in
    /// `--related`
    #[arg(long = "filename", short, required = true, value_name = "FILE")]
    filename: Vec<PathBuf>,
    /// Existing children, such as the output of `kubectl get pods -o yaml`
    #[arg(long, value_name = "FILE")]
    children: Vec<PathBuf>,
    /// Objects that the plugin finds when it asks to read others
    #[arg(long, value_name = "FILE")]
    related: Vec<PathBuf>,
    /// A configuration whose controller of the plugin's kind says what is allowed, such as other namespaces. Without it,
    /// everything that the plugin lists is
    #[arg(long, short, value_name = "FILE")]
    config: Option<PathBuf>,
    /// The time of the host's clock. The default is fixed, so that the same files give the same output
    #[arg(
        long,
        env = "OPERATOR_HOST_NOW",
        default_value = "2000-01-01T00:00:00Z",
        value_name = "RFC3339"
    )]
    now: Timestamp,
    /// The output format
    #[arg(
        long,
        short,
        env = "OPERATOR_HOST_OUTPUT",
        default_value = "yaml",
        value_name = "FORMAT"
    )]
    output: Output,
    /// The plugin log lines to print, from `off` to `trace`
    #[arg(long, env = "OPERATOR_HOST_LOG", default_value = "info", value_name = "LEVEL")]
    log: String,
    #[command(flatten)]
    registry: RegistryArgs,
}

/// Renders every resource.
///
/// # Errors
/// The help lists the exit codes.
pub async fn run(args: Args) -> Result<(), Failure> {
    plugin_file::show_log(&args.log)?;
    let config = args
        .config
        .as_deref()
        .map(Config::load)
        .transpose()
        .map_err(usage)?;
    let Loaded {
        plugin, controller, ..
    } = plugin_file::load_for(&args.plugin, &args.registry, config.as_ref())
        .await?
        .with_context(|| args.plugin.display().to_string())?;
    let description = plugin.description();
    let allowed = match (controller, &args.config) {
        (Some(controller), _) => Allowed::by(controller.clone()),
        (None, None) => Allowed::all_of(description),
        (None, Some(file)) => {
            let error = anyhow!(
                "no controller in {} reconciles {}",
                file.display(),
                description.parent
            );
            return Err(Failure::Usage(error));
        }
    };
    let children = objects(&args.children)?;
    let other = objects(&args.related)?;
    let Resources {
        parents,
        mut related,
        left,
        definitions,
    } = resources(&args.filename, &plugin, children.iter().chain(&other), args.now)?;
    for rule in left {
        eprintln!("warning: {rule}");
    }
    related.extend(other);
    let mut done = Vec::with_capacity(parents.len());
    for parent in parents {
        let scene = Scene {
            children: offline::own(&children, &parent, description, &definitions, &allowed),
            parent: Arc::new(parent),
            related: related.clone(),
            now: args.now,
            allowed: allowed.clone(),
            definitions: Arc::clone(&definitions),
        };
        let rendering = offline::reconcile(&plugin, &scene).await.map_err(|error| {
            let name = scene.parent.metadata.name.clone().unwrap_or_default();
            let what = match &error {
                RenderError::Evaluate(EvaluateError::Call(CallError::Failure(
                    contract::Failure::Invalid { reason, .. },
                ))) => {
                    format!(": {}", reason.as_deref().unwrap_or("InvalidSpec"))
                }
                RenderError::Evaluate(EvaluateError::Call(CallError::Failure(
                    contract::Failure::Retry { .. },
                ))) => ": retry requested".into(),
                _ => String::new(),
            };
            anyhow!("{} {name}{what}: {error}", description.parent.kind)
        })?;
        done.push((scene, rendering));
    }
    let text = rendering::print(args.output, &description.parent, &done)?;
    std::io::stdout().lock().write_all(text.as_bytes())?;
    Ok(())
}

/// The objects in files with samples.
pub struct Resources {
    /// The custom resources of the plugin's kind.
    pub parents: Vec<DynamicObject>,
    /// The objects of other kinds, which a need may find.
    pub related: Vec<Arc<DynamicObject>>,
    /// The rules in CEL that only the API server can evaluate, and why.
    pub left: Vec<String>,
    /// The CustomResourceDefinitions at hand: the plugin's own first.
    pub definitions: Arc<[Value]>,
}

/// Reads the resources and fills in their defaults.
///
/// # Errors
/// When a resource does not fit its definition or its rules; lists every problem of all files. When a kind is almost the plugin's: in
/// its group, and not one that the plugin creates or reads.
pub fn resources<'a>(
    files: &[PathBuf],
    plugin: &Plugin,
    others: impl Iterator<Item = &'a Arc<DynamicObject>>,
    now: Timestamp,
) -> Result<Resources, Failure> {
    let description = plugin.description();
    let known = |kind: &Kind| description.makes.contains(kind) || description.reads.contains(kind);
    // Serialization of an object cannot fail.
    let others = others.map(|object| serde_json::to_value(&**object).unwrap_or_default());
    let mut others: Vec<Value> = others.collect();
    for file in files {
        others.extend(
            documents::read(file)
                .map_err(usage)?
                .into_iter()
                .map(|it| it.object),
        );
    }
    others.retain(|object| object["kind"] == "CustomResourceDefinition");
    let own = description.definition();
    let definitions: Vec<Value> = own.clone().into_iter().chain(others).collect();
    let crd = own
        .as_ref()
        .or_else(|| definition::of_kind(&definitions, &description.parent));
    let schema = crd.and_then(|crd| definition::schema(crd, &description.parent));
    let mut parents = Vec::new();
    let mut related = Vec::new();
    let mut left = Vec::new();
    let mut wrong = Vec::new();
    for file in files {
        for mut document in documents::read(file).map_err(usage)? {
            let kind = document.kind();
            if kind != description.parent && (kind.group() != description.parent.group() || known(&kind)) {
                related.push(Arc::new(dynamic(file, &document)?));
                continue;
            }
            if kind != description.parent {
                let (file, number) = (file.display(), document.number);
                wrong.push(format!(
                    "{file}, document {number}: the kind is {kind}; the plugin reconciles {}",
                    description.parent
                ));
                continue;
            }
            let name = document.object["metadata"]["name"].as_str().unwrap_or_default();
            if let Some(problem) = names::problem(&kind, name) {
                wrong.push(format!("{}: metadata.name: {problem}", place(file, &document)));
            }
            if let Some(schema) = schema {
                schema::fill_defaults(&mut document.object, schema);
                let problems = schema::validate_resource(&document.object, schema);
                // As in the API server, the rules apply to what fits the schema.
                if problems.is_empty() {
                    let verdict = cel::validate(schema, &document.object, None);
                    let place = place(file, &document);
                    wrong.extend(
                        verdict
                            .violations
                            .iter()
                            .map(|violation| format!("{place}: {violation}")),
                    );
                    left.extend(verdict.left.iter().map(|rule| format!("{place}: {rule}")));
                }
                for problem in problems {
                    wrong.push(format!("{}: {problem}", place(file, &document)));
                }
            }
            match document.dynamic() {
                Ok(object) => parents.push(offline::admit(object, crd, now)),
                Err(error) => wrong.push(format!("{}: {error}", place(file, &document))),
            }
        }
    }
    if parents.is_empty() && wrong.is_empty() {
        wrong.push(format!(
            "the files contain no resource of the kind {}",
            description.parent
        ));
    }
    if !wrong.is_empty() {
        return Err(Failure::Usage(anyhow!(wrong.join("\n"))));
    }
    Ok(Resources {
        parents,
        related,
        left,
        definitions: definitions.into(),
    })
}

fn place(file: &Path, document: &Document) -> String {
    let name = document.object["metadata"]["name"].as_str().unwrap_or_default();
    format!(
        "{}, document {} ({} {name})",
        file.display(),
        document.number,
        document.kind().kind
    )
}

/// Reads existing objects.
///
/// # Errors
/// When a file contains something other than objects.
pub fn objects(files: &[PathBuf]) -> Result<Vec<Arc<DynamicObject>>, Failure> {
    let mut objects = Vec::new();
    for file in files {
        for document in documents::read(file).map_err(usage)? {
            objects.push(Arc::new(dynamic(file, &document)?));
        }
    }
    Ok(objects)
}

fn dynamic(file: &Path, document: &Document) -> Result<DynamicObject, Failure> {
    document.dynamic().map_err(|error| {
        let place = place(file, document);
        Failure::Usage(anyhow!("{place}: {error}"))
    })
}

fn usage(error: impl Into<anyhow::Error>) -> Failure {
    Failure::Usage(error.into())
}
