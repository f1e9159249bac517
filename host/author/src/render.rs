//! `operator-host render`: prints what a plugin produces for resources in files.

use std::io::Write;
use std::path::PathBuf;

use anyhow::{Context, anyhow};

use super::inputs::{Inputs, Resources};
use super::rendering::{self, Output};
use super::{Failure, plugin_file};
use crate::dry_run::offline::{self, Allowed, RenderError};
use operator_host_config::Config;
use operator_host_contract as contract;
use operator_host_engine::reconcile::evaluate::EvaluateError;
use operator_host_runtime::CallError;

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
    /// A configuration whose controller of the plugin's kind says what is allowed, such as other namespaces. Without it,
    /// everything that the plugin lists is
    #[arg(long, short, value_name = "FILE")]
    config: Option<PathBuf>,
    /// The output format
    #[arg(long, short, env = "OPERATOR_HOST_OUTPUT")]
    #[arg(default_value = "yaml", value_name = "FORMAT")]
    output: Output,
    /// The plugin log lines to print, from `off` to `trace`
    #[arg(long, env = "OPERATOR_HOST_LOG", default_value = "info", value_name = "LEVEL")]
    log: String,
    #[command(flatten)]
    inputs: Inputs,
}

/// Renders every resource.
///
/// # Errors
/// The help lists the exit codes.
pub async fn run(args: Args) -> Result<(), Failure> {
    plugin_file::show_log(&args.log)?;
    let config = args.config.as_deref().map(Config::load);
    let config = config.transpose().map_err(Failure::usage)?;
    let bytes = plugin_file::read_or_pull(&args.plugin, &args.inputs.registry).await?;
    let (plugin, controller) = plugin_file::load_for(bytes, config.as_ref(), plugin_file::memory())
        .await?
        .with_context(|| args.plugin.display().to_string())?;
    let description = plugin.description();
    let allowed = match (controller, &args.config) {
        (Some(controller), _) => Allowed::by(controller.clone()),
        (None, None) => Allowed::all_of(description),
        (None, Some(file)) => {
            let (file, parent) = (file.display(), &description.parent);
            return Err(Failure::Usage(anyhow!(
                "no controller in {file} reconciles {parent}"
            )));
        }
    };
    let Resources { scenes, left, .. } = args.inputs.read(&args.filename, &plugin, &allowed)?;
    for rule in left {
        eprintln!("warning: {rule}");
    }
    let mut done = Vec::with_capacity(scenes.len());
    for scene in scenes {
        let rendering = offline::reconcile(&plugin, &scene).await.map_err(|error| {
            let name = scene.parent.metadata.name.clone().unwrap_or_default();
            let what = match &error {
                RenderError::Evaluate(EvaluateError::Call(CallError::Failure(failure))) => match failure {
                    contract::Failure::Invalid { reason, .. } => reason.as_deref().unwrap_or("InvalidSpec"),
                    contract::Failure::Retry { .. } => "retry requested",
                },
                _ => return anyhow!("{} {name}: {error}", description.parent.kind),
            };
            anyhow!("{} {name}: {what}: {error}", description.parent.kind)
        })?;
        done.push((scene, rendering));
    }
    let text = rendering::print(args.output, &description.parent, &done)?;
    std::io::stdout().lock().write_all(text.as_bytes())?;
    Ok(())
}
