//! `operator-host check`: validates a plugin and reports every problem.

use std::io::IsTerminal;
use std::path::PathBuf;
use std::process::ExitCode;
use std::sync::Arc;
use std::time::Duration;

use jiff::Timestamp;
use serde_json::Value;

use super::{Failure, plugin_file, render};
use crate::crd::definition;
use crate::plugin::contract::Request;
use crate::plugin::{Call, CallError, LoadError, Plugin};
use crate::rbac::power;

/// The options of `check`.
#[derive(Debug, clap::Args)]
#[command(
    after_help = "Exit codes: 0 nothing failed (warnings are allowed), 1 something failed, 2 wrong usage."
)]
pub struct Args {
    /// The plugin's WebAssembly file
    plugin: PathBuf,
    /// Resources to reconcile with the plugin; repeatable
    #[arg(long, short, value_name = "FILE")]
    sample: Vec<PathBuf>,
}

/// Bytes that a ConfigMap holds: 1 MiB, with binary data in base64.
const CONFIG_MAP: usize = 1 << 20;
/// The duration above which a call is reported as slow.
const SLOW: Duration = Duration::from_millis(50);

#[derive(Clone, Copy, PartialEq, Eq)]
enum Level {
    Ok,
    Warn,
    Fail,
}

/// The results so far.
#[derive(Default)]
struct Report {
    lines: Vec<(Level, &'static str, String)>,
}

impl Report {
    fn add(&mut self, level: Level, what: &'static str, message: impl Into<String>) {
        self.lines.push((level, what, message.into()));
    }

    fn print(&self, colour: bool) {
        for (level, what, message) in &self.lines {
            let (word, code) = match level {
                Level::Ok => ("ok", "32"),
                Level::Warn => ("warn", "33"),
                Level::Fail => ("fail", "31"),
            };
            let indented = message.replace('\n', "\n                    ");
            if colour {
                println!("\x1b[{code}m{word:4}\x1b[0m  {what:12}  {indented}");
            } else {
                println!("{word:4}  {what:12}  {indented}");
            }
        }
    }

    fn failed(&self) -> bool {
        self.lines.iter().any(|(level, ..)| *level == Level::Fail)
    }
}

/// Runs the checks and prints their results.
///
/// # Errors
/// When a file cannot be read.
pub async fn run(args: Args) -> Result<ExitCode, Failure> {
    plugin_file::show_log("off")?;
    let mut report = Report::default();
    match plugin_file::load(&args.plugin).await? {
        Ok(plugin) => {
            about(&plugin, &mut report);
            crd(&plugin, &mut report);
            samples(&plugin, &args, &mut report).await?;
        }
        Err(error) => {
            report.add(Level::Fail, part(&error), error.to_string());
            let rest = "skipped: the other checks need a plugin that loads";
            report.add(Level::Warn, "the rest", rest);
        }
    }
    report.print(std::io::stdout().is_terminal() && plugin_file::colour());
    Ok(ExitCode::from(u8::from(report.failed())))
}

/// Returns the name of the check that a load error belongs to.
fn part(error: &LoadError) -> &'static str {
    match error {
        LoadError::TooLarge { .. }
        | LoadError::Excessive { .. }
        | LoadError::CompileTimeout(_)
        | LoadError::CompileStalled(_)
        | LoadError::CompileMemory { .. }
        | LoadError::TooMuchCode { .. } => "size",
        // These occur in `run` only, which compiles in a separate process.
        LoadError::Refused { .. } | LoadError::FailedBefore { .. } | LoadError::Compiler { .. } => "compiler",
        LoadError::NotWasm | LoadError::Malformed { .. } | LoadError::OtherWorld { .. } => "form",
        LoadError::Forbidden { .. } => "imports",
        LoadError::Contract { .. } | LoadError::Bindings { .. } => "contract",
        LoadError::Describe(_) | LoadError::DescriptionTooLarge | LoadError::Description { .. } => "describe",
        LoadError::Host { .. } => "host",
    }
}

fn about(plugin: &Plugin, report: &mut Report) {
    let form = plugin.form().as_str();
    report.add(
        Level::Ok,
        "form",
        format!(
            "{form}, contract {}, {}",
            plugin.description().contract,
            plugin.digest()
        ),
    );
    report.add(Level::Ok, "imports", "only what every plugin gets".to_owned());
    let size = plugin.size();
    let text = format!(
        "{} KiB, compiled in {:?}",
        size.div_ceil(1024),
        plugin.compile_time()
    );
    if size.div_ceil(3) * 4 > CONFIG_MAP {
        report.add(
            Level::Warn,
            "size",
            format!("{text}; it does not fit into one ConfigMap, which holds 1 MiB in base64"),
        );
    } else {
        report.add(Level::Ok, "size", text);
    }
    let description = plugin.description();
    let kinds = |kinds: &[crate::plugin::contract::Kind]| {
        let names: Vec<String> = kinds.iter().map(ToString::to_string).collect();
        if names.is_empty() {
            "nothing".to_owned()
        } else {
            names.join(", ")
        }
    };
    report.add(
        Level::Ok,
        "describe",
        format!(
            "{} {} reconciles {}, makes {}, reads {}{}",
            description.name,
            description.version,
            description.parent,
            kinds(&description.makes),
            kinds(&description.reads),
            if description.finalizer { ", cleans up" } else { "" }
        ),
    );
    for (name, list) in [("makes", &description.makes), ("reads", &description.reads)] {
        for (index, kind) in list.iter().enumerate() {
            if list[..index].contains(kind) {
                report.add(Level::Warn, "describe", format!("`{name}` names {kind} twice"));
            }
        }
    }
    for kind in &description.makes {
        if let Some(power) = power(kind) {
            report.add(Level::Warn, "power", format!("the plugin makes {kind}: {power}"));
        }
    }
    if description.makes.contains(&description.parent) {
        let message = "`makes` names the parent's own kind: each parent would create another parent";
        report.add(Level::Warn, "describe", message);
    }
}

fn crd(plugin: &Plugin, report: &mut Report) {
    let description = plugin.description();
    let Some(crd) = &description.crd else {
        let message = "the plugin contains no CustomResourceDefinition: write one and install it by hand";
        return report.add(Level::Warn, "crd", message);
    };
    let problems = definition::problems(crd, &description.parent);
    for problem in &problems {
        report.add(Level::Fail, "crd", problem.to_string());
    }
    if problems.is_empty() {
        report.add(
            Level::Ok,
            "crd",
            crd["metadata"]["name"].as_str().unwrap_or_default(),
        );
    }
}

async fn samples(plugin: &Plugin, args: &Args, report: &mut Report) -> Result<(), Failure> {
    if args.sample.is_empty() {
        let message = "not tested: give --sample resource.yaml";
        report.add(Level::Warn, "samples", message);
        return Ok(());
    }
    let now = Timestamp::UNIX_EPOCH;
    let parents = match render::parents(&args.sample, plugin, now) {
        Ok(parents) => parents,
        Err(Failure::Usage(error)) => {
            report.add(Level::Fail, "samples", error.to_string());
            return Ok(());
        }
        Err(other) => return Err(other),
    };
    for parent in parents {
        let name = parent.metadata.name.clone().unwrap_or_default();
        let request = Request {
            parent: Arc::new(parent),
            children: Vec::new(),
            related: Vec::new(),
            now,
            traceparent: None,
            namespace_terminating: false,
        };
        let (first, second) = (plugin.reconcile(&request).await, plugin.reconcile(&request).await);
        cost(plugin, &name, &first, report);
        match (answer(&first), answer(&second)) {
            (Err(error), _) | (_, Err(error)) => {
                report.add(Level::Fail, "samples", format!("{name}: {error}"));
            }
            (Ok(first), Ok(second)) => match difference(&first, &second, "") {
                None => report.add(
                    Level::Ok,
                    "determinism",
                    format!("{name}: two calls gave the same answer"),
                ),
                Some(difference) => {
                    let message = format!(
                        "{name}: two answers to the same request differ: {difference}; does the plugin depend on memory addresses or on the order of a hash map?"
                    );
                    report.add(Level::Fail, "determinism", message);
                }
            },
        }
    }
    Ok(())
}

/// Converts the outcome to a document. *Invalid* and *retry* are answers too.
fn answer(call: &Call<crate::plugin::contract::Response>) -> Result<Value, String> {
    match &call.outcome {
        Ok(response) => serde_json::to_value(response).map_err(|error| error.to_string()),
        Err(CallError::Invalid { reason, message }) => {
            Ok(serde_json::json!({ "invalid": [reason, message] }))
        }
        Err(CallError::Retry { message, after }) => {
            Ok(serde_json::json!({ "retry": [message, after.map(|after| after.as_millis())] }))
        }
        Err(error) => Err(error.to_string()),
    }
}

fn cost<T>(plugin: &Plugin, name: &str, call: &Call<T>, report: &mut Report) {
    let stats = &call.stats;
    let message = format!(
        "{name}: {:?} and {} KiB for one call",
        stats.guest_time,
        stats.peak_memory.div_ceil(1024)
    );
    let limits = plugin.limits();
    let level = if stats.guest_time > SLOW || stats.peak_memory > limits.memory / 2 {
        Level::Warn
    } else {
        Level::Ok
    };
    report.add(level, "cost", message);
}

/// Returns the first place in which two documents differ.
fn difference(a: &Value, b: &Value, path: &str) -> Option<String> {
    match (a, b) {
        (Value::Object(a), Value::Object(b)) => a.keys().chain(b.keys()).find_map(|key| {
            let null = Value::Null;
            let (a, b) = (a.get(key).unwrap_or(&null), b.get(key).unwrap_or(&null));
            difference(a, b, &format!("{path}.{key}"))
        }),
        (Value::Array(a), Value::Array(b)) if a.len() == b.len() => a
            .iter()
            .zip(b)
            .enumerate()
            .find_map(|(index, (a, b))| difference(a, b, &format!("{path}[{index}]"))),
        (a, b) => (a != b).then(|| format!("{} is {a}, then {b}", path.trim_start_matches('.'))),
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn the_first_difference_of_two_answers_is_named_by_its_path() {
        let a = json!({"children": [{"a": 1}, {"b": [1, 2]}], "x": null});
        let b = json!({"children": [{"a": 1}, {"b": [1, 3]}], "x": null});
        assert_eq!(difference(&a, &a, ""), None);
        assert_eq!(
            difference(&a, &b, "").as_deref(),
            Some("children[1].b[1] is 2, then 3")
        );
        assert_eq!(
            difference(&json!({}), &json!({"y": 1}), "").as_deref(),
            Some("y is null, then 1")
        );
    }
}
