//! `operator-host new`: creates a plugin project from a template.

mod files;
mod lock;
mod sdk;

use std::path::{Path, PathBuf};

use anyhow::{Context, anyhow};
use clap::ValueEnum;

use super::Failure;

/// The options of `new`.
#[derive(Debug, clap::Args)]
#[command(disable_version_flag = true)]
#[command(after_help = "Exit codes: 0 written, 1 it could not be written, 2 wrong usage.")]
pub struct Args {
    /// The folder to create; its last component is the plugin's name
    #[arg(value_name = "NAME")]
    folder: PathBuf,
    /// The programming language
    #[arg(long, short)]
    lang: Language,
    /// The kind of the custom resource, such as `Greeter`
    #[arg(long, short)]
    kind: String,
    /// The kind's API group, such as `example.com`
    #[arg(long, short)]
    group: String,
    /// The kind's version
    #[arg(long, default_value = "v1")]
    version: String,
    /// The kind's plural in API paths [default: the kind in lower case with an `s`]
    #[arg(long)]
    plural: Option<String>,
    /// The folder of the Rust SDK in a checkout of operator-host; for a plugin in Rust also the URL of a git repository
    /// that contains it (`URL#TAG`), or its version on crates.io; for one in JavaScript, TypeScript or Python the version
    /// of its SDK on npm or PyPI [default: the checkout that contains the new folder, otherwise the SDK of this release]
    #[arg(long, env = "OPERATOR_HOST_SDK", value_name = "FOLDER|URL|VERSION")]
    sdk: Option<String>,
}

/// The language of a plugin.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum Language {
    /// A component, with the Rust SDK
    Rust,
    /// A WASI command, with the standard library only
    Go,
    /// A component, with the bindings of the WIT world
    C,
    /// A component with the engine QuickJS, and a small SDK
    Js,
    /// As `js`, with types
    Ts,
    /// A component with the interpreter CPython, and a small SDK
    Python,
    /// A WASI command, with a small SDK
    Zig,
    /// A WASI command, with a small SDK
    #[value(name = "assemblyscript")]
    AssemblyScript,
}

/// The values that fill the templates' placeholders.
struct Placeholders {
    name: String,
    kind: String,
    singular: String,
    plural: String,
    group: String,
    version: String,
    sdk: String,
    package: Option<String>,
    build: String,
    compiler: String,
    tools: String,
}

impl Placeholders {
    fn fill(&self, template: &str) -> String {
        [
            ("@NAME@", &self.name),
            ("@KIND@", &self.kind),
            ("@SINGULAR@", &self.singular),
            ("@PLURAL@", &self.plural),
            ("@GROUP@", &self.group),
            ("@VERSION@", &self.version),
            ("@SDK@", &self.sdk),
            ("@BUILD@", &self.build),
            ("@COMPILER@", &self.compiler),
            // In the Makefiles of the samples.
            ("$(shell CC= ../c.sh)", &self.compiler),
            ("$(shell COMPONENTIZE= ../js.sh)", &self.compiler),
            ("$(shell COMPONENTIZE= ../python.sh)", &self.compiler),
            ("$(shell ZIG= ../zig.sh)", &self.compiler),
            ("$(shell ASC= ../assemblyscript.sh)", &self.compiler),
            ("@TOOLS@", &self.tools),
        ]
        .iter()
        .fold(template.to_owned(), |text, (placeholder, value)| {
            text.replace(placeholder, value)
        })
    }
}

/// Writes the folder and prints the next steps.
///
/// # Errors
/// When a name is invalid, the SDK is not found, the folder exists, or it cannot be written.
pub fn run(args: &Args) -> Result<(), Failure> {
    let placeholders = placeholders(args).map_err(Failure::Usage)?;
    let folder = &args.folder;
    if folder.exists() {
        return Err(Failure::Usage(anyhow!(
            "{} already exists: give another name, or remove it",
            folder.display()
        )));
    }
    let files = match &placeholders.package {
        Some(version) => files::with_package(args.lang, version),
        None => files::of(args.lang),
    };
    for (name, content) in files {
        write(&folder.join(name), &content.fill(&placeholders))?;
    }
    println!(
        "{} is a plugin for {}/{} {}. Next:",
        folder.display(),
        placeholders.group,
        placeholders.version,
        placeholders.kind
    );
    println!("  cd {}", folder.display());
    println!("  make          # builds build/{}.wasm", placeholders.name);
    println!("  make render   # prints its children and its status, without a cluster");
    println!("  make test");
    Ok(())
}

fn write(file: &Path, content: &[u8]) -> anyhow::Result<()> {
    let written = file
        .parent()
        .map_or(Ok(()), std::fs::create_dir_all)
        .and_then(|()| std::fs::write(file, content));
    written.with_context(|| format!("cannot write {}", file.display()))
}

fn placeholders(args: &Args) -> anyhow::Result<Placeholders> {
    let name = args
        .folder
        .file_name()
        .and_then(|name| name.to_str())
        .unwrap_or_default();
    require(
        "the plugin's name",
        name,
        "a DNS label that begins with a letter, such as `greeter`",
        |text| is_label(text) && text.starts_with(|c: char| c.is_ascii_lowercase()),
    )?;
    require(
        "--kind",
        &args.kind,
        "letters and digits in CamelCase, such as `Greeter`",
        |text| {
            text.starts_with(|c: char| c.is_ascii_uppercase())
                && text.len() <= 63
                && text.chars().all(|c| c.is_ascii_alphanumeric())
        },
    )?;
    require(
        "--group",
        &args.group,
        "a domain name, such as `example.com`",
        |text| text.contains('.') && text.len() <= 200 && text.split('.').all(is_label),
    )?;
    require(
        "--version",
        &args.version,
        "a version such as `v1` or `v1beta2`",
        is_version,
    )?;
    let singular = args.kind.to_lowercase();
    let plural = args.plural.clone().unwrap_or_else(|| format!("{singular}s"));
    require(
        "--plural",
        &plural,
        "a DNS label that differs from the kind in lower case, such as `greeters`",
        |text| is_label(text) && text != singular,
    )?;
    let sdk::Sdk {
        dependency,
        package,
        build,
        compiler,
        tools,
    } = match args.lang {
        Language::Rust => sdk::find(args.sdk.as_deref(), &args.folder, name)?,
        Language::Go => sdk::GO.find(args.sdk.as_deref(), &args.folder)?,
        Language::C => sdk::C.find(args.sdk.as_deref(), &args.folder)?,
        Language::Js | Language::Ts => sdk::JS.find(args.sdk.as_deref(), &args.folder)?,
        Language::Python => sdk::PYTHON.find(args.sdk.as_deref(), &args.folder)?,
        Language::Zig => sdk::ZIG.find(args.sdk.as_deref(), &args.folder)?,
        Language::AssemblyScript => sdk::ASSEMBLYSCRIPT.find(args.sdk.as_deref(), &args.folder)?,
    };
    Ok(Placeholders {
        name: name.to_owned(),
        kind: args.kind.clone(),
        singular,
        plural,
        group: args.group.clone(),
        version: args.version.clone(),
        sdk: dependency,
        package,
        build,
        compiler,
        tools,
    })
}

fn require(what: &str, text: &str, expected: &str, holds: impl Fn(&str) -> bool) -> anyhow::Result<()> {
    if holds(text) {
        return Ok(());
    }
    Err(anyhow!("{what} is {text:?}; it must be {expected}"))
}

/// Whether the text is a version of a kind: `v`, a number, and perhaps `alpha` or `beta` with another number.
fn is_version(text: &str) -> bool {
    let is_number = |text: &str| !text.is_empty() && text.chars().all(|c| c.is_ascii_digit());
    let Some(rest) = text.strip_prefix('v') else {
        return false;
    };
    let stages = rest.split_once("alpha").or_else(|| rest.split_once("beta"));
    text.len() <= 63
        && match stages {
            Some((major, stage)) => is_number(major) && (stage.is_empty() || is_number(stage)),
            None => is_number(rest),
        }
}

fn is_label(text: &str) -> bool {
    let inner = |c: char| c.is_ascii_lowercase() || c.is_ascii_digit() || c == '-';
    (1..=63).contains(&text.len())
        && text.chars().all(inner)
        && !text.starts_with('-')
        && !text.ends_with('-')
}
