//! `operator-host new`: creates a plugin project from a template.

mod files;
mod lock;
mod sdk;

use std::path::{Path, PathBuf};

use anyhow::{Context, anyhow, ensure};
use clap::ValueEnum;

use self::sdk::Compiler;
use super::Failure;
use operator_host_contract::is_dns_label;

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
    /// The folder plugins/sdk of a checkout of operator-host; for a plugin in Rust also the URL of a git repository that
    /// contains it (`URL#TAG`) [default: the checkout that contains the new folder, otherwise the SDK of this release]
    #[arg(long, env = "OPERATOR_HOST_SDK", value_name = "FOLDER|URL")]
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

impl Language {
    /// Returns the name, which is also that of the folder with its templates.
    fn name(self) -> String {
        let value = self.to_possible_value();
        value.map(|value| value.get_name().to_owned()).unwrap_or_default()
    }
}

/// Writes the folder and prints the next steps.
///
/// # Errors
/// When a name is invalid, the SDK is not found, the folder exists, or it cannot be written.
pub fn run(args: &Args) -> Result<(), Failure> {
    let name = checked(args).map_err(Failure::Usage)?;
    let folder = &args.folder;
    let compiler = Compiler::of(args.lang);
    let sdk = match &compiler {
        Some(compiler) => compiler.find(args.sdk.as_deref(), folder),
        None => sdk::find(args.sdk.as_deref(), folder, name),
    };
    let sdk = sdk.map_err(Failure::Usage)?;
    if folder.exists() {
        return Err(Failure::Usage(anyhow!(
            "{} already exists: give another name, or remove it",
            folder.display()
        )));
    }
    let placeholders: [(&str, &str); 10] = [
        ("@NAME@", name),
        ("@KIND@", &args.kind),
        ("@SINGULAR@", &args.kind.to_lowercase()),
        ("@PLURAL@", &args.plural()),
        ("@GROUP@", &args.group),
        ("@VERSION@", &args.version),
        ("@SDK@", &sdk.dependency),
        ("@BUILD@", &sdk.build),
        ("@COMPILER@", &sdk.compiler),
        ("@TOOLS@", &sdk.tools),
    ];
    let in_samples = compiler.as_ref().map(Compiler::in_samples);
    let fill = |template: &str| {
        let more = in_samples.as_deref().map(|text| (text, sdk.compiler.as_str()));
        let all = placeholders.into_iter().chain(more);
        all.fold(template.to_owned(), |text, (from, to)| text.replace(from, to))
    };
    let mut files = files::of(&args.lang.name(), fill);
    if args.lang == Language::Rust {
        files.push(("Cargo.lock".into(), lock::of(name).into()));
    }
    for (file, content) in files {
        write(&folder.join(file), &content)?;
    }
    let (folder, group, version, kind) = (folder.display(), &args.group, &args.version, &args.kind);
    println!("{folder} is a plugin for {group}/{version} {kind}. Next:");
    println!("  cd {folder}");
    println!("  make          # builds build/{name}.wasm");
    println!("  make render   # prints its children and its status, without a cluster");
    println!("  make test");
    Ok(())
}

impl Args {
    /// Returns the kind's plural in API paths.
    fn plural(&self) -> String {
        let usual = || format!("{}s", self.kind.to_lowercase());
        self.plural.clone().unwrap_or_else(usual)
    }
}

fn write(file: &Path, content: &[u8]) -> anyhow::Result<()> {
    let folder = file.parent().map_or(Ok(()), std::fs::create_dir_all);
    let written = folder.and_then(|()| std::fs::write(file, content));
    written.with_context(|| format!("cannot write {}", file.display()))
}

/// Checks all names, and returns that of the plugin.
fn checked(args: &Args) -> anyhow::Result<&str> {
    let name = args.folder.file_name().and_then(|name| name.to_str());
    let name = name.unwrap_or_default();
    require(
        "the plugin's name",
        name,
        "a DNS label that begins with a letter, such as `greeter`",
        |text| is_dns_label(text) && text.starts_with(|c: char| c.is_ascii_lowercase()),
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
        |text| text.contains('.') && text.len() <= 200 && text.split('.').all(is_dns_label),
    )?;
    require(
        "--version",
        &args.version,
        "a version such as `v1` or `v1beta2`",
        is_version,
    )?;
    let singular = args.kind.to_lowercase();
    require(
        "--plural",
        &args.plural(),
        "a DNS label that differs from the kind in lower case, such as `greeters`",
        |text| is_dns_label(text) && text != singular,
    )?;
    Ok(name)
}

fn require(what: &str, text: &str, expected: &str, holds: impl Fn(&str) -> bool) -> anyhow::Result<()> {
    ensure!(holds(text), "{what} is {text:?}; it must be {expected}");
    Ok(())
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
