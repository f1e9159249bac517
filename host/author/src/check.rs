//! `operator-host check`: validates a plugin and reports every problem.

use std::path::PathBuf;
use std::process::ExitCode;
use std::time::Duration;

use kube::core::DynamicObject;
use serde_json::Value;

use super::inputs::{Inputs, Resources};
use super::output::{GREEN, Paint, RED, YELLOW};
use super::{Failure, plugin_file};
use crate::dry_run::offline::{self, Allowed, RenderError, Scene};
use crate::permissions::power;
use operator_host_config::{Config, ControllerConfig, DefinitionsMode};
use operator_host_contract::{Description, Kind, Response};
use operator_host_core::crd::definition;
use operator_host_core::object::{is_built_in, kind_of};
use operator_host_engine::reconcile::evaluate::EvaluateError;
use operator_host_runtime::{
    Call, CallError, CallStats, CodeOrigin, Part, Plugin, RandomSource, compile_memory,
};
use operator_host_schema::{cel, difference, schema};
use operator_host_webhook::conversion::{Lost, there_and_back};
use operator_host_webhook::defaults::unstable;

/// The options of `check`.
#[derive(Debug, clap::Args)]
#[command(
    after_help = "Exit codes: 0 nothing failed (warnings are allowed), 1 something failed, 2 wrong usage."
)]
pub struct Args {
    /// The plugin's WebAssembly file, or its reference in a registry (`oci://…`)
    plugin: PathBuf,
    /// Resources to reconcile with the plugin; repeatable. Objects of other kinds count as in `--related`
    #[arg(long, short, value_name = "FILE")]
    sample: Vec<PathBuf>,
    /// A configuration whose controller of the plugin's kind must allow what the plugin creates and reads, and whose
    /// limits apply
    #[arg(long, short, value_name = "FILE")]
    config: Option<PathBuf>,
    #[command(flatten)]
    inputs: Inputs,
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
    fn ok(&mut self, what: &'static str, message: impl Into<String>) {
        self.lines.push((Level::Ok, what, message.into()));
    }

    fn warn(&mut self, what: &'static str, message: impl Into<String>) {
        self.lines.push((Level::Warn, what, message.into()));
    }

    fn fail(&mut self, what: &'static str, message: impl Into<String>) {
        self.lines.push((Level::Fail, what, message.into()));
    }

    fn print(&self, paint: Paint) {
        for (level, what, message) in &self.lines {
            let word = match level {
                Level::Ok => paint.with(GREEN, "ok  "),
                Level::Warn => paint.with(YELLOW, "warn"),
                Level::Fail => paint.with(RED, "fail"),
            };
            let indented = message.replace('\n', "\n                    ");
            println!("{word}  {what:12}  {indented}");
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
    let config = args.config.as_deref().map(Config::load);
    let config = config.transpose().map_err(Failure::usage)?;
    let mut report = Report::default();
    let bytes = plugin_file::read_or_pull(&args.plugin, &args.inputs.registry).await?;
    let load = async |memory| plugin_file::load_for(bytes.clone(), config.as_ref(), memory).await;
    let mut loaded = load(plugin_file::CONTAINER).await?;
    let fits_container = !loaded.as_ref().is_err_and(|error| error.part() == Part::Size);
    if !fits_container {
        loaded = load(plugin_file::memory()).await?;
    }
    match loaded {
        Ok((plugin, controller)) => {
            about(&plugin, &mut report);
            if !fits_container {
                let memory = plugin_file::CONTAINER;
                let message = format!(
                    "a container with the default memory of {} MiB cannot compile it, since the compiler gets {} MiB of that: \
                     raise the container's memory limit",
                    memory >> 20,
                    compile_memory(memory) >> 20
                );
                report.warn("memory", message);
            }
            crd(&plugin, &mut report);
            if let Some(config) = &config {
                configuration(&plugin, config, &mut report);
            }
            let allowed = match controller {
                Some(controller) => Allowed::by(controller.clone()),
                None => Allowed::all_of(plugin.description()),
            };
            samples(&plugin, &args, &allowed, &mut report).await?;
        }
        Err(error) => {
            report.fail(error.part().as_str(), error.to_string());
            report.warn("the rest", "skipped: the other checks need a plugin that loads");
        }
    }
    report.print(Paint::of(&std::io::stdout()));
    Ok(ExitCode::from(u8::from(report.failed())))
}

fn about(plugin: &Plugin, report: &mut Report) {
    let (form, description) = (plugin.form().as_str(), plugin.description());
    let (contract, digest) = (&description.contract, plugin.digest());
    report.ok("form", format!("{form}, contract {contract}, {digest}"));
    report.ok("imports", imports(plugin));
    let size = plugin.size();
    let made = match plugin.code_origin() {
        CodeOrigin::Compiled => "compiled",
        CodeOrigin::Cached => "loaded from the cache",
    };
    let mut text = format!(
        "{} KiB, {made} in {:?}",
        size.div_ceil(1024),
        plugin.compile_time()
    );
    if size.div_ceil(3) * 4 > CONFIG_MAP {
        text += "; as it is, it is larger than a ConfigMap: deliver it with `operator-host pack`, which compresses it";
    }
    report.ok("size", text);
    let kinds = |kinds: &[Kind]| match kinds {
        [] => "nothing".to_owned(),
        kinds => kinds
            .iter()
            .map(ToString::to_string)
            .collect::<Vec<_>>()
            .join(", "),
    };
    let mut text = format!(
        "{} {} reconciles {}, makes {}, reads {}",
        description.name,
        description.version,
        description.parent,
        kinds(&description.makes),
        kinds(&description.reads),
    );
    if description.finalizer {
        text += ", cleans up";
    }
    report.ok("describe", text);
    for (name, list) in [("makes", &description.makes), ("reads", &description.reads)] {
        for (index, kind) in list.iter().enumerate() {
            if list[..index].contains(kind) {
                report.warn("describe", format!("`{name}` names {kind} twice"));
            }
        }
    }
    for kind in &description.makes {
        if let Some(power) = power(kind) {
            report.warn("privileges", format!("the plugin creates {kind}: {power}"));
        }
    }
    if description.makes.contains(&description.parent) {
        let message = "`makes` names the parent's own kind: each parent would create another parent";
        report.warn("describe", message);
    }
}

/// Describes the plugin's imports. Those that the host does not provide are no mistake: tool-chains bring them.
fn imports(plugin: &Plugin) -> String {
    let refused = plugin.refused_imports().iter();
    let names: Vec<String> = refused.map(|name| format!("`{name}`")).collect();
    match names.join(", ").as_str() {
        "" => "only what every plugin gets".to_owned(),
        names => {
            format!("what every plugin gets, and {names}: a call that uses one of these ends with an error")
        }
    }
}

fn crd(plugin: &Plugin, report: &mut Report) {
    let (description, parent) = (plugin.description(), &plugin.description().parent);
    if is_built_in(parent.group()) {
        let message = format!(
            "{parent} is a kind of Kubernetes itself, whose objects others write: the host reconciles custom resources only"
        );
        return report.fail("parent", message);
    }
    let Some(crd) = &description.definition() else {
        let message = "the plugin contains no CustomResourceDefinition: write one and install it by hand";
        return report.warn("crd", message);
    };
    let problems = definition::problems(crd, parent);
    for problem in &problems {
        report.fail("crd", problem.to_string());
    }
    if problems.is_empty() {
        report.ok("crd", crd["metadata"]["name"].as_str().unwrap_or_default());
    }
}

/// Checks that the configuration allows what the plugin creates and reads.
fn configuration(plugin: &Plugin, config: &Config, report: &mut Report) {
    let description = plugin.description();
    let of_kind = |controller: &&ControllerConfig| controller.parent == description.parent;
    let mut controllers = config.controllers.iter().filter(of_kind).peekable();
    if controllers.peek().is_none() {
        let message = format!("no controller reconciles {}", description.parent);
        report.fail("config", message);
    }
    for controller in controllers {
        let mut disagreements = controller.disallows(description);
        if controller.definitions == DefinitionsMode::Install {
            disagreements.extend(not_installable(description, config));
        }
        for warning in controller.warnings() {
            report.warn("config", warning);
        }
        for disagreement in &disagreements {
            report.fail("config", format!("{}: {disagreement}", controller.name));
        }
        if disagreements.is_empty() {
            let message = format!("{}: allows what the plugin creates and reads", controller.name);
            report.ok("config", message);
        }
        if let Some(crd) = description.definition()
            && controller.definitions == DefinitionsMode::Install
        {
            let message = format!(
                "{}: the host installs {}; it needs the verbs create and patch on customresourcedefinitions, and list on all \
                 objects of the kind, as `operator-host rbac` prints them",
                controller.name,
                crd["metadata"]["name"].as_str().unwrap_or_default()
            );
            report.ok("config", message);
        }
    }
}

/// Returns why a host with this configuration could not install the plugin's definition.
fn not_installable(description: &Description, config: &Config) -> Option<String> {
    let reach = config.webhook.as_ref().and_then(|webhook| webhook.reach.as_ref());
    let why = match &description.crd {
        None => ", and the plugin contains no CustomResourceDefinition",
        Some(_) if description.converts() && reach.is_none() => {
            " and the plugin converts its kind, but `webhook.service` or `webhook.url` is not set: the definition cannot name \
             the webhook"
        }
        Some(_) => return None,
    };
    Some(format!("`definitions` is install{why}"))
}

async fn samples(
    plugin: &Plugin,
    args: &Args,
    allowed: &Allowed,
    report: &mut Report,
) -> Result<(), Failure> {
    if args.sample.is_empty() {
        report.warn("samples", "not tested: pass --sample resource.yaml");
        return Ok(());
    }
    let resources = match args.inputs.read(&args.sample, plugin, allowed) {
        Ok(resources) => resources,
        Err(Failure::Usage(error)) => {
            report.fail("samples", format!("{error:#}"));
            return Ok(());
        }
        Err(other) => return Err(other),
    };
    rules(plugin, &resources, report);
    let objects = resources.scenes.iter().map(|scene| value(&scene.parent));
    let objects: Vec<Value> = objects.collect();
    conversions(plugin, &objects, report).await;
    default(plugin, &objects, report).await;
    for scene in resources.scenes {
        let name = scene.parent.metadata.name.clone().unwrap_or_default();
        // The call whose answer counts: the one that finds what the plugin needs.
        let request = offline::last_request(plugin, &scene).await;
        // Random numbers change from one reconcile to the next, and no answer may depend on them.
        let first = plugin.proving(RandomSource::First).reconcile(&request).await;
        cost(plugin, &name, first.stats, report);
        let first = answer(first);
        let second = answer(plugin.proving(RandomSource::Second).reconcile(&request).await);
        match (first, second) {
            (Err(error), _) | (_, Err(error)) => {
                report.fail("samples", format!("{name}: {error}"));
            }
            (Ok(first), Ok(second)) => {
                match difference::first(&first, &second, "") {
                    None => report.ok(
                        "determinism",
                        format!("{name}: two calls with different random numbers gave the same answer"),
                    ),
                    Some((path, a, b)) => report.fail(
                        "determinism",
                        format!(
                            "{name}: two answers to the same request differ: {path} is {a}, then {b}; does the plugin depend on \
                             random numbers, such as the order of a hash map, or on memory addresses?"
                        ),
                    ),
                }
                children(plugin, &name, &scene, report).await;
            }
        }
    }
    Ok(())
}

fn value(object: &DynamicObject) -> Value {
    // Serialization of a resource cannot fail.
    serde_json::to_value(object).unwrap_or_default()
}

/// Reports what the rules in CEL say about other objects of the plugin's kind. The samples themselves violate none.
fn rules(plugin: &Plugin, resources: &Resources, report: &mut Report) {
    let description = plugin.description();
    let Some(crd) = &description.definition() else {
        return;
    };
    for rule in &resources.left {
        report.warn("rules", rule);
    }
    let mut violated = false;
    for object in &resources.related {
        let object = value(object);
        let kind = kind_of(&object);
        let schema = definition::schema(crd, &kind).filter(|_| description.parent.is_version_of(&kind));
        let verdict = schema
            .map(|schema| cel::validate(schema, &object, None))
            .unwrap_or_default();
        let name = object["metadata"]["name"].as_str().unwrap_or_default();
        for violation in verdict.violations {
            violated = true;
            report.fail("rules", format!("{name}: {violation}"));
        }
    }
    let has_rules = definition::schema(crd, &description.parent).is_some_and(schema::has_rules);
    if has_rules && !violated {
        report.ok("rules", "no object violates a rule of the definition");
    }
}

/// Converts the samples to every other version and back.
async fn conversions(plugin: &Plugin, objects: &[Value], report: &mut Report) {
    let description = plugin.description();
    if !description.converts() {
        return;
    }
    let lost = match there_and_back(plugin, objects, Duration::MAX).await {
        Ok(lost) => lost,
        Err(error) => return report.fail("conversion", error.to_string()),
    };
    let fine = format!("nothing is lost between {}", description.versions.join(", "));
    losses("conversion", objects, &lost, fine, report);
}

/// Reports what samples lose, or that all is fine.
fn losses(what: &'static str, objects: &[Value], lost: &[Lost], fine: String, report: &mut Report) {
    for Lost { index, message } in lost {
        let name = objects[*index]["metadata"]["name"].as_str().unwrap_or_default();
        report.fail(what, format!("{name}: {message}"));
    }
    if lost.is_empty() {
        report.ok(what, fine);
    }
}

/// Asks for the defaults of the samples twice.
async fn default(plugin: &Plugin, objects: &[Value], report: &mut Report) {
    if !plugin.description().defaults {
        return;
    }
    let found = match unstable(plugin, objects, Duration::MAX).await {
        Ok(found) => found,
        Err(error) => return report.fail("defaults", error.to_string()),
    };
    let fine = "asked twice, the answers are the same".to_owned();
    losses("defaults", objects, &found, fine, report);
}

/// Checks the children and needs of an answer, as a reconcile does.
async fn children(plugin: &Plugin, name: &str, scene: &Scene, report: &mut Report) {
    match offline::reconcile(plugin, scene).await {
        Ok(rendering) => {
            let count = rendering.children.len() + rendering.response.generate.len();
            report.ok("children", format!("{name}: {count}, all of them allowed"));
        }
        Err(RenderError::Evaluate(EvaluateError::Call(error @ CallError::Failure(_)))) => {
            report.warn("samples", format!("{name}: {error}"));
        }
        Err(error) => report.fail("children", format!("{name}: {error}")),
    }
}

/// Converts the outcome to a document, and releases the memory of the call. *Invalid* and *retry* are answers too.
fn answer(call: Call<Response>) -> Result<Value, String> {
    let answer = match call.outcome {
        Ok(response) => serde_json::to_value(response),
        Err(CallError::Failure(failure)) => serde_json::to_value(failure),
        Err(error) => return Err(error.to_string()),
    };
    answer.map_err(|error| error.to_string())
}

fn cost(plugin: &Plugin, name: &str, stats: CallStats, report: &mut Report) {
    let (time, memory) = (stats.guest_time, stats.peak_memory);
    let message = format!("{name}: {time:?} and {} KiB for one call", memory.div_ceil(1024));
    match time > SLOW || memory > plugin.limits().memory / 2 {
        true => report.warn("cost", message),
        false => report.ok("cost", message),
    }
}
