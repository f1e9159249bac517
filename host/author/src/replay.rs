//! `operator-host replay`: repeats recorded calls.

mod accept;

use std::io::Write;
use std::path::{Path, PathBuf};
use std::process::ExitCode;

use anyhow::{Context, anyhow, bail};
use serde_json::Value;

use super::output::Paint;
use super::plugin_file::Loaded;
use super::{Failure, plugin_file, rendering};
use operator_host_contract::Export;
use operator_host_core::files;
use operator_host_core::object::kind_of;
use operator_host_instruments::record::{FAULT, Record, Version, mask, output};
use operator_host_runtime::Plugin;

/// The options of `replay`.
#[derive(Debug, clap::Args)]
#[command(
    after_help = "Exit codes: 0 every answer equals the recorded one or is accepted, 1 some answers differ, 2 everything else."
)]
pub struct Args {
    /// The plugin's WebAssembly file: the recorded version, or one to compare with it
    #[arg(long, short, env = "OPERATOR_HOST_PLUGIN", value_name = "FILE")]
    plugin: PathBuf,
    /// Records that `run --record` wrote, or folders of them
    #[arg(required = true, value_name = "RECORD")]
    records: Vec<PathBuf>,
    /// Replace recorded answers that differ by the new ones. A call that fails without an answer is not accepted
    #[arg(long)]
    accept: bool,
    /// The plugin log lines to print, from `off` to `trace`
    #[arg(long, env = "OPERATOR_HOST_LOG", default_value = "off", value_name = "LEVEL")]
    log: String,
}

/// Bytes of a record: more than a request and an answer with their default limits.
const LIMIT: usize = 64 << 20;

/// Repeats every call and prints the differences.
///
/// # Errors
/// When a file is not a record or its kind is not the plugin's, or when the plugin does not load.
pub async fn run(args: Args) -> Result<ExitCode, Failure> {
    replay(args).await.map_err(Failure::into_trouble)
}

async fn replay(args: Args) -> Result<ExitCode, Failure> {
    plugin_file::show_log(&args.log)?;
    let Loaded { plugin, .. } = plugin_file::load(&args.plugin).await?;
    let mut files = Vec::new();
    for path in &args.records {
        collect(path, &mut files).with_context(|| format!("cannot read {}", path.display()))?;
    }
    if files.is_empty() {
        return Err(anyhow!("the folders contain no record (*.json)").into());
    }
    let mut records = Vec::with_capacity(files.len());
    for file in files {
        let record = read(&file, &plugin).with_context(|| file.display().to_string())?;
        records.push((file, record));
    }
    let mut out = std::io::stdout().lock();
    let paint = Paint::of(&out);
    let live = Version::of(&plugin);
    let (mut accepted, mut different) = (0, 0);
    for (file, record) in &records {
        let answer = match call(&plugin, record).await {
            Ok(answer) => answer,
            Err(why) => {
                different += 1;
                writeln!(out, "different  {}: {why}", file.display())?;
                continue;
            }
        };
        let (before, after) = (shown(record, &record.output)?, shown(record, &answer)?);
        if before == after {
            writeln!(out, "same       {}", file.display())?;
            continue;
        }
        if args.accept && answer.get(FAULT).is_none() {
            accept::accept(file, record, &answer, &live).with_context(|| file.display().to_string())?;
            accepted += 1;
            writeln!(out, "accepted   {}", file.display())?;
        } else {
            different += 1;
            writeln!(out, "different  {}", file.display())?;
        }
        let recorded = match &record.plugin {
            Some(version) => format!("recorded ({version})"),
            None => "recorded".to_owned(),
        };
        let names = (recorded.as_str(), &*format!("replayed ({live})"));
        let before = serde_saphyr::to_string(&before)?;
        let after = serde_saphyr::to_string(&after)?;
        out.write_all(rendering::diff(names, &before, &after, paint).as_bytes())?;
    }
    let all = records.len();
    let same = all - different - accepted;
    write!(out, "{all} calls replayed: {same} the same, ")?;
    if args.accept {
        write!(out, "{accepted} accepted, ")?;
    }
    writeln!(out, "{different} different")?;
    Ok(ExitCode::from(u8::from(different > 0)))
}

/// Collects a file, or all records in a folder and its subfolders, by name.
fn collect(path: &Path, files: &mut Vec<PathBuf>) -> std::io::Result<()> {
    if !std::fs::metadata(path)?.is_dir() {
        files.push(path.to_owned());
        return Ok(());
    }
    let mut entries = std::fs::read_dir(path)?
        .map(|entry| entry.map(|entry| entry.path()))
        .collect::<Result<Vec<_>, _>>()?;
    entries.sort();
    for entry in entries {
        if entry.is_dir() || entry.extension().is_some_and(|extension| extension == "json") {
            collect(&entry, files)?;
        }
    }
    Ok(())
}

fn read(file: &Path, plugin: &Plugin) -> anyhow::Result<Record> {
    let text = files::read(file, LIMIT)?;
    let record: Record =
        serde_json::from_slice(&text).context("the file is not a record of a plugin call")?;
    let expected = &plugin.description().parent;
    let input = &record.input;
    let (object, is_for_any_version) = match (&input.request, &input.conversion, &input.parent) {
        (Some(request), ..) => (serde_json::to_value(&*request.parent)?, false),
        (_, Some(conversion), _) => (serde_json::to_value(conversion.objects.first())?, true),
        (.., Some(parent)) => (serde_json::to_value(parent)?, false),
        (None, None, None) => bail!("the record contains no request"),
    };
    let found = kind_of(&object);
    if found != *expected && !(is_for_any_version && expected.is_version_of(&found)) {
        bail!("the recorded call is for {found}, but the plugin reconciles {expected}");
    }
    Ok(record)
}

async fn call(plugin: &Plugin, record: &Record) -> anyhow::Result<Value> {
    let (input, call, description) = (&record.input, record.input.call, plugin.description());
    Ok(match (call, &input.request, &input.conversion, &input.parent) {
        (Export::Reconcile, Some(request), ..) => output(call, &plugin.reconcile(request).await.outcome),
        (Export::Cleanup, Some(request), ..) => output(call, &plugin.cleanup(request).await.outcome),
        // A version without it would abort.
        (Export::Convert, _, Some(_), _) if !description.converts() => {
            bail!("the plugin has one version only, and converts nothing")
        }
        (Export::Convert, _, Some(conversion), _) => output(call, &plugin.convert(conversion).await.outcome),
        (Export::Validate, .., Some(_)) if !description.validates => bail!("the plugin validates nothing"),
        (Export::Validate, .., Some(parent)) => {
            let validated = plugin.validate(parent, input.old_parent.as_ref()).await;
            output(call, &validated.outcome)
        }
        (Export::Default, .., Some(_)) if !description.defaults => bail!("the plugin sets no defaults"),
        (Export::Default, .., Some(parent)) => output(call, &plugin.default(parent).await.outcome),
        (call, ..) => bail!(
            "the record of `{}` does not contain what the plugin was asked, or cannot be replayed",
            call.as_str()
        ),
    })
}

/// Returns the answer as a record contains it, with the same masking of Secrets.
fn shown(record: &Record, answer: &Value) -> anyhow::Result<Value> {
    let mut document = serde_json::to_value(Record {
        output: answer.clone(),
        ..record.clone()
    })?;
    mask(&mut document);
    let mut answer = document["output"].take();
    tidy(&mut answer);
    Ok(answer)
}

/// Removes the empty fields of an answer.
fn tidy(answer: &mut Value) {
    let bodies = answer.as_object_mut().into_iter().flat_map(|it| it.values_mut());
    let is_empty = |value: &Value| value.is_null() || value.as_array().is_some_and(Vec::is_empty);
    for fields in bodies.filter_map(Value::as_object_mut) {
        fields.retain(|_, value| !is_empty(value));
    }
}
