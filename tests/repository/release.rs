//! What a release consists of: completions, the manual, the archive, and the chart. The scripts are in `host/release`; those
//! that need Docker are not run here.

#[path = "../../host/release/man.rs"]
#[allow(dead_code, reason = "its main function")]
mod man;

use std::collections::BTreeSet;
use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::Path;
use std::process::{Command, Output};

use clap::CommandFactory;
use operator_host::cli::Cli;
use serde_json::Value;
use tempfile::TempDir;

use crate::delivery::registry::server::{Access, Registry};
use crate::support::root;

const PROGRAM: &str = env!("CARGO_BIN_EXE_operator-host");

fn script(name: &str) -> Command {
    Command::new(root().join("host/release").join(name))
}

/// Runs a command that succeeds, and returns what it prints.
fn printed(command: &mut Command) -> String {
    let output = command.output().expect("it runs");
    let error = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{command:?}: {error}");
    String::from_utf8(output.stdout).unwrap()
}

/// Runs a command that fails, and returns why.
fn failed(command: &mut Command) -> String {
    let Output { status, stderr, .. } = command.output().expect("it runs");
    assert!(!status.success(), "{command:?}");
    String::from_utf8(stderr).unwrap()
}

/// Returns what a shell offers for the last of these words, with the function that the script registers.
fn completed(words: &str) -> Vec<String> {
    let script = format!(
        "source <(\"$0\" completions bash); \
         [[ $(complete -p operator-host) =~ -F\\ ([^ ]+) ]]; \
         COMP_WORDS=({words}); COMP_CWORD=$((${{#COMP_WORDS[@]}} - 1)); COMPREPLY=(); \
         \"${{BASH_REMATCH[1]}}\" operator-host \"${{COMP_WORDS[COMP_CWORD]}}\" \"${{COMP_WORDS[COMP_CWORD - 1]}}\"; \
         printf '%s\\n' \"${{COMPREPLY[@]}}\""
    );
    let mut bash = Command::new("bash");
    let text = printed(bash.args(["--norc", "-c", &script, PROGRAM]));
    text.split_whitespace().map(str::to_owned).collect()
}

#[test]
fn bash_completes_commands_options_and_values() {
    assert_eq!(completed("operator-host exp"), ["explain"]);
    let all = completed("operator-host ''");
    for name in ["run", "check", "plugins", "completions"] {
        assert!(all.iter().any(|it| it == name), "{name} is not in {all:?}");
    }
    assert!(
        !all.iter().any(|it| it == "compile-plugin"),
        "it is internal: {all:?}"
    );
    assert_eq!(completed("operator-host run --metr"), ["--metrics-compat"]);
    assert_eq!(completed("operator-host plugins his"), ["history"]);
    assert_eq!(completed("operator-host new --lang assem"), ["assemblyscript"]);
}

/// Returns the names of all commands that the manual has pages for.
fn pages(command: &clap::Command, name: &str) -> Vec<(String, Vec<String>)> {
    let options = command.get_arguments().filter(|it| !it.is_hide_set());
    let options = options.filter_map(|it| Some(format!("--{}", it.get_long()?)));
    let mut all = vec![(name.to_owned(), options.collect())];
    for sub in command.get_subcommands().filter(|it| !it.is_hide_set()) {
        all.extend(pages(sub, &format!("{name}-{}", sub.get_name())));
    }
    all
}

#[test]
fn the_manual_has_a_page_for_every_command_with_its_options() {
    let folder = tempfile::tempdir().unwrap();
    man::write_all(folder.path()).unwrap();
    let expected = pages(&Cli::command(), "operator-host");
    assert!(expected.len() >= 20);
    let count = fs::read_dir(folder.path()).unwrap().count();
    assert_eq!(count, expected.len(), "pages that no command has");
    for (name, options) in expected {
        let file = folder.path().join(format!("{name}.1"));
        printed(
            Command::new("mandoc")
                .args(["-T", "lint", "-W", "error"])
                .arg(&file),
        );
        let text = printed(
            Command::new("mandoc")
                .args(["-T", "ascii", "-O", "width=500"])
                .arg(&file),
        );
        // Bold letters are written twice, with a backspace between them.
        let mut plain: Vec<char> = Vec::new();
        for letter in text.chars() {
            if letter == '\u{8}' {
                plain.pop();
            } else {
                plain.push(letter);
            }
        }
        let plain: String = plain.into_iter().collect();
        assert!(plain.contains(&format!("{name} - ")), "{plain}");
        for option in options {
            assert!(plain.contains(&option), "{option} is not in {plain}");
        }
    }
}

/// Makes an archive, and returns the folder with it. A program that calls the one of this build takes its place, which is
/// large with all that debuggers need.
fn archived(manual: &Path) -> TempDir {
    let folder = tempfile::tempdir().unwrap();
    let small = tempfile::tempdir().unwrap();
    let program = small.path().join("program");
    fs::write(&program, format!("#!/bin/sh\nexec '{PROGRAM}' \"$@\"\n")).unwrap();
    fs::set_permissions(&program, fs::Permissions::from_mode(0o700)).unwrap();
    printed(script("archive.sh").arg(&program).arg(manual).arg(folder.path()));
    folder
}

#[test]
fn an_archive_has_the_program_and_what_belongs_to_it_and_is_the_same_each_time() {
    let manual = tempfile::tempdir().unwrap();
    man::write_all(manual.path()).unwrap();
    let (one, other) = (archived(manual.path()), archived(manual.path()));
    let name = format!(
        "operator-host-{}-linux-{}",
        env!("CARGO_PKG_VERSION"),
        std::env::consts::ARCH
    );
    let archive = one.path().join(format!("{name}.tar.gz"));
    let same = other.path().join(format!("{name}.tar.gz"));
    assert!(
        fs::read(&archive).unwrap() == fs::read(same).unwrap(),
        "the same files"
    );

    let unpacked = tempfile::tempdir().unwrap();
    printed(
        Command::new("tar")
            .arg("-xzf")
            .arg(&archive)
            .arg("-C")
            .arg(unpacked.path()),
    );
    let inside = unpacked.path().join(&name);
    assert_eq!(
        fs::read_dir(unpacked.path()).unwrap().count(),
        1,
        "nothing beside {name}"
    );
    let version = printed(Command::new(inside.join("operator-host")).arg("--version"));
    assert_eq!(
        version,
        concat!("operator-host ", env!("CARGO_PKG_VERSION"), "\n")
    );
    for file in [
        "LICENSE",
        "CHANGELOG.md",
        "completions/operator-host",
        "completions/_operator-host",
        "completions/operator-host.fish",
        "completions/operator-host.ps1",
        "man/operator-host-explain.1",
    ] {
        let length = fs::metadata(inside.join(file))
            .unwrap_or_else(|error| panic!("{file}: {error}"))
            .len();
        assert!(length > 500, "{file} has {length} bytes");
    }
    // Unpacked by root, the files are root's, and others cannot write them.
    let listed = printed(Command::new("tar").arg("-tvzf").arg(&archive));
    for line in listed.lines() {
        assert!(line.contains(" 0/0 ") && line.as_bytes()[8] == b'-', "{line}");
    }

    let list = fs::read_to_string(one.path().join(format!("{name}.cdx.json"))).unwrap();
    let list: Value = serde_json::from_str(&list).unwrap();
    assert_eq!(list["bomFormat"], "CycloneDX");

    let url = "https://example.com/releases/download/v1";
    let krew = printed(script("krew.sh").arg(one.path()).arg(url));
    let krew: Value = serde_saphyr::from_str(&krew).unwrap();
    assert_eq!(krew["metadata"]["name"], "operator-host");
    assert_eq!(krew["spec"]["version"], concat!("v", env!("CARGO_PKG_VERSION")));
    let [platform] = &krew["spec"]["platforms"].as_array().unwrap()[..] else {
        panic!("{krew:#}")
    };
    assert_eq!(platform["uri"], format!("{url}/{name}.tar.gz"));
    let sum = printed(Command::new("sha256sum").arg(&archive));
    assert_eq!(platform["sha256"], sum.split(' ').next().unwrap());
    for file in platform["files"].as_array().unwrap() {
        assert!(
            unpacked.path().join(file["from"].as_str().unwrap()).is_file(),
            "{file}"
        );
    }
    assert_eq!(platform["bin"], "operator-host");
    let empty = tempfile::tempdir().unwrap();
    assert!(failed(script("krew.sh").arg(empty.path()).arg(url)).contains("there is no archive"));

    printed(script("checksums.sh").arg(one.path()));
    let check = || {
        let mut command = Command::new("sha256sum");
        command
            .args(["--check", "--strict", "SHA256SUMS"])
            .current_dir(one.path());
        command
    };
    assert_eq!(printed(&mut check()).lines().count(), 2);
    fs::write(&archive, "another").unwrap();
    assert!(failed(&mut check()).contains("1 computed checksum did NOT match"));
    assert!(failed(script("checksums.sh").arg(empty.path())).contains("there is no file"));
}

#[tokio::test]
async fn the_chart_is_packaged_and_pushed_to_a_registry() {
    let folder = tempfile::tempdir().unwrap();
    let registry = Registry::start(&folder.path().join("registry"), Access::Plain).await;
    let into = folder.path().join("dist");
    let reference = format!("oci://{}/team/charts", registry.name());
    let file = printed(
        script("chart.sh")
            .arg(&into)
            .arg(&reference)
            .env("HELM", root().join("tests/helm.sh"))
            .env("HELM_PUSH", "--plain-http"),
    );
    let file = Path::new(file.trim());
    assert!(file.starts_with(&into) && file.is_file(), "{}", file.display());
    let version = env!("CARGO_PKG_VERSION");
    let url = format!(
        "http://{}/v2/team/charts/operator-host/manifests/{version}",
        registry.name()
    );
    let accept = "Accept: application/vnd.oci.image.manifest.v1+json";
    let manifest = printed(Command::new("curl").args(["--silent", "--fail", "--header", accept, &url]));
    let manifest: Value = serde_json::from_str(&manifest).unwrap();
    assert_eq!(
        manifest["config"]["mediaType"],
        "application/vnd.cncf.helm.config.v1+json"
    );
    let sum = printed(Command::new("sha256sum").arg(file));
    let digest = format!("sha256:{}", sum.split(' ').next().unwrap());
    assert_eq!(manifest["layers"][0]["digest"], digest, "{manifest:#}");
}

#[test]
fn a_tag_of_another_version_or_without_its_changes_is_no_release() {
    let version = env!("CARGO_PKG_VERSION");
    assert_eq!(printed(&mut script("version.sh")), format!("{version}\n"));
    let error = failed(script("version.sh").arg("v99.0.0"));
    assert!(
        error.contains(&format!("the tag v99.0.0 is not v{version}")),
        "{error}"
    );
    let notes = printed(script("notes.sh").arg("Unreleased"));
    assert!(
        notes.contains("### Added") && !notes.contains("## Unreleased"),
        "{notes}"
    );
    let error = failed(script("notes.sh").arg("99.0.0"));
    assert!(error.contains("no section 99.0.0"), "{error}");
}

#[test]
fn the_sdks_for_javascript_and_python_are_packages_of_npm_and_pypi() {
    let has = |program: &str| Command::new(program).arg("--version").output().is_ok();
    if !has("npm") || !has("python3") {
        eprintln!("not run: there is no npm or no python3");
        return;
    }
    let folder = TempDir::new().unwrap();
    printed(script("sdks.sh").arg(folder.path()));
    let version = env!("CARGO_PKG_VERSION");
    let file = |name: String| folder.path().join(name);

    let listed = printed(
        Command::new("tar")
            .arg("tf")
            .arg(file(format!("operator-plugin-{version}.tgz"))),
    );
    let listed: BTreeSet<&str> = listed
        .lines()
        .filter_map(|name| name.strip_prefix("package/"))
        .collect();
    let show = ["--extract", "--to-stdout", "package/package.json", "--file"];
    let manifest = printed(
        Command::new("tar")
            .args(show)
            .arg(file(format!("operator-plugin-{version}.tgz"))),
    );
    let manifest: Value = serde_json::from_str(&manifest).unwrap();
    assert_eq!(manifest["version"], version);
    let named = manifest["files"]
        .as_array()
        .unwrap()
        .iter()
        .filter_map(Value::as_str);
    assert_eq!(
        listed,
        named.chain(["package.json", "README.md", "LICENSE"]).collect()
    );
    for field in [
        "description",
        "license",
        "homepage",
        "keywords",
        "exports",
        "engines",
    ] {
        assert!(!manifest[field].is_null(), "{field}");
    }

    let wheel = file(format!("operator_plugin-{version}-py3-none-any.whl"));
    let listed = printed(Command::new("python3").args(["-m", "zipfile", "-l"]).arg(&wheel));
    for name in [
        "operator_plugin.py",
        "operator_types.py",
        "share/operator-plugin/plugin.wit",
        "licenses/LICENSE",
    ] {
        assert!(listed.contains(name), "{name} is not in {listed}");
    }
    assert!(file(format!("operator_plugin-{version}.tar.gz")).is_file());
}
