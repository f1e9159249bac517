//! What a release consists of: completions, the manual, the archive, the chart, and the workflow that makes them. The scripts
//! are in `host/release`; those that need Docker are not run here.

#[path = "../../host/release/man.rs"]
#[allow(dead_code, reason = "its main function")]
mod man;

use crate::support::prelude::*;
use std::collections::BTreeSet;
use std::fs;
use std::io::{BufRead, BufReader, Write};
use std::net::TcpListener;
use std::os::unix::fs::PermissionsExt;

use clap::CommandFactory;
use operator_host::cli::Cli;
use tempfile::TempDir;

use crate::delivery::registry::server::{Access, Registry};

const PROGRAM: &str = env!("CARGO_BIN_EXE_operator-host");

fn script(name: &str) -> Command {
    Command::new(root().join("host/release").join(name))
}

/// Runs a command that fails, and returns why.
fn failed(command: &mut Command) -> String {
    let answer = command.call();
    assert_ne!(answer.code, Some(0), "{command:?}");
    answer.err
}

fn unpack(archive: &Path, into: &Path) {
    Command::new("tar")
        .arg("-xzf")
        .arg(archive)
        .arg("-C")
        .arg(into)
        .prints();
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
    let text = bash.args(["--norc", "-c", &script, PROGRAM]).prints();
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
    assert_eq!(completed("operator-host run --heal"), ["--health-addr"]);
    assert_eq!(completed("operator-host plugins his"), ["history"]);
    assert_eq!(completed("operator-host new --lang assem"), ["assemblyscript"]);
}

#[test]
fn every_shell_gets_completions_and_another_word_is_no_shell() {
    for shell in ["bash", "elvish", "fish", "powershell", "zsh"] {
        let text = Command::new(PROGRAM).args(["completions", shell]).prints();
        assert!(text.contains("health-addr"), "{shell}: {text}");
        let words = "compile-plugin";
        assert!(!text.contains(words), "{shell} offers what is internal");
    }
    let error = failed(Command::new(PROGRAM).args(["completions", "tcsh"]));
    assert_contains(&error, "possible values: bash");
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
        let mandoc = |arguments: [&str; 4]| Command::new("mandoc").args(arguments).arg(&file).prints();
        mandoc(["-T", "lint", "-W", "error"]);
        let text = mandoc(["-T", "ascii", "-O", "width=500"]);
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
        assert_contains(&plain, &format!("{name} - "));
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
    script("archive.sh")
        .arg(&program)
        .arg(manual)
        .arg(folder.path())
        .prints();
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
    unpack(&archive, unpacked.path());
    let inside = unpacked.path().join(&name);
    assert_eq!(
        fs::read_dir(unpacked.path()).unwrap().count(),
        1,
        "nothing beside {name}"
    );
    let version = Command::new(inside.join("operator-host"))
        .arg("--version")
        .prints();
    assert_eq!(
        version,
        concat!("operator-host ", env!("CARGO_PKG_VERSION"), "\n")
    );
    let files = "LICENSE CHANGELOG.md completions/operator-host completions/_operator-host \
        completions/operator-host.fish completions/operator-host.ps1 \
        man/operator-host-explain.1";
    for file in files.split(' ') {
        let length = fs::metadata(inside.join(file))
            .unwrap_or_else(|error| panic!("{file}: {error}"))
            .len();
        assert!(length > 500, "{file} has {length} bytes");
    }
    // Unpacked by root, the files are root's, and others cannot write them.
    let listed = Command::new("tar").arg("-tvzf").arg(&archive).prints();
    for line in listed.lines() {
        assert!(line.contains(" 0/0 ") && line.as_bytes()[8] == b'-', "{line}");
    }

    let list = fs::read_to_string(one.path().join(format!("{name}.cdx.json"))).unwrap();
    let list: Value = serde_json::from_str(&list).unwrap();
    assert_eq!(list["bomFormat"], "CycloneDX");

    let url = "https://example.com/releases/download/v1";
    let krew = script("krew.sh").arg(one.path()).arg(url).prints();
    let krew: Value = serde_saphyr::from_str(&krew).unwrap();
    assert_eq!(krew["metadata"]["name"], "operator-host");
    assert_eq!(krew["spec"]["version"], concat!("v", env!("CARGO_PKG_VERSION")));
    let [platform] = &krew["spec"]["platforms"].as_array().unwrap()[..] else {
        panic!("{krew:#}")
    };
    assert_eq!(platform["uri"], format!("{url}/{name}.tar.gz"));
    let sum = Command::new("sha256sum").arg(&archive).prints();
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

    script("checksums.sh").arg(one.path()).prints();
    let mut check = Command::new("sha256sum");
    check.args(["--check", "--strict", "SHA256SUMS"]);
    check.current_dir(one.path());
    assert_eq!(check.prints().lines().count(), 2);
    fs::write(&archive, "another").unwrap();
    assert!(failed(&mut check).contains("1 computed checksum did NOT match"));
    assert!(failed(script("checksums.sh").arg(empty.path())).contains("there is no file"));
}

#[tokio::test]
async fn the_chart_is_packaged_and_pushed_to_a_registry() {
    let folder = tempfile::tempdir().unwrap();
    let registry = Registry::start(&folder.path().join("registry"), Access::Plain).await;
    let into = folder.path().join("dist");
    let reference = format!("oci://{}/team/charts", registry.name());
    let file = script("chart.sh")
        .arg(&into)
        .arg(&reference)
        .env("HELM", root().join("tests/helm.sh"))
        .env("HELM_PUSH", "--plain-http")
        .prints();
    let file = Path::new(file.trim());
    assert!(file.starts_with(&into) && file.is_file(), "{}", file.display());
    let version = env!("CARGO_PKG_VERSION");
    let url = format!(
        "http://{}/v2/team/charts/operator-host/manifests/{version}",
        registry.name()
    );
    let accept = "Accept: application/vnd.oci.image.manifest.v1+json";
    let manifest = Command::new("curl")
        .args(["--silent", "--fail", "--header", accept, &url])
        .prints();
    let manifest: Value = serde_json::from_str(&manifest).unwrap();
    let expected = "application/vnd.cncf.helm.config.v1+json";
    assert_eq!(manifest["config"]["mediaType"], expected);
    let sum = Command::new("sha256sum").arg(file).prints();
    let digest = format!("sha256:{}", sum.split(' ').next().unwrap());
    assert_eq!(manifest["layers"][0]["digest"], digest, "{manifest:#}");
}

#[test]
fn a_tag_of_another_version_or_without_its_changes_is_no_release() {
    let version = env!("CARGO_PKG_VERSION");
    assert_eq!(script("version.sh").prints(), format!("{version}\n"));
    let error = failed(script("version.sh").arg("v99.0.0"));
    assert_contains(&error, &format!("the tag v99.0.0 is not v{version}"));
    let notes = script("notes.sh").arg("Unreleased").prints();
    assert!(
        notes.contains("### Added") && !notes.contains("## Unreleased"),
        "{notes}"
    );
    let error = failed(script("notes.sh").arg("99.0.0"));
    assert_contains(&error, "no section 99.0.0");
}

#[test]
fn the_sdks_for_javascript_and_python_are_packages_of_npm_and_pypi() {
    let has = |program: &str| Command::new(program).arg("--version").output().is_ok();
    if !has("npm") || !has("python3") {
        eprintln!("not run: there is no npm or no python3");
        return;
    }
    let folder = TempDir::new().unwrap();
    script("sdks.sh").arg(folder.path()).prints();
    let version = env!("CARGO_PKG_VERSION");
    let file = |name: String| folder.path().join(name);

    let package = file(format!("operator-plugin-{version}.tgz"));
    let listed = Command::new("tar").arg("tf").arg(&package).prints();
    let listed: BTreeSet<&str> = listed
        .lines()
        .filter_map(|name| name.strip_prefix("package/"))
        .collect();
    let show = ["--extract", "--to-stdout", "package/package.json", "--file"];
    let manifest = Command::new("tar").args(show).arg(&package).prints();
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
    for field in "description license homepage keywords exports engines".split(' ') {
        assert!(!manifest[field].is_null(), "{field}");
    }

    let wheel = file(format!("operator_plugin-{version}-py3-none-any.whl"));
    let listed = Command::new("python3")
        .args(["-m", "zipfile", "-l"])
        .arg(&wheel)
        .prints();
    let words =
        "operator_plugin.py … operator_types.py … share/operator-plugin/plugin.wit … licenses/LICENSE";
    assert_contains(&listed, words);
    assert!(file(format!("operator_plugin-{version}.tar.gz")).is_file());
    plugins_take_the_sdk_from_a_package(folder.path(), version);
}

/// Builds and tests new plugins with these packages, which are where npm and pip look for them.
fn plugins_take_the_sdk_from_a_package(packages: &Path, version: &str) {
    let registry = npm_registry(packages, version);
    let desk = TempDir::new().unwrap();
    let dependency = json!({ "type": "module", "dependencies": { "operator-plugin": version } }).to_string();
    let requirement = format!("operator-plugin=={version}\n");
    for (language, compiler, sdk, manifest, text) in [
        (
            "js",
            "js.sh",
            "operator-plugin.js operator-plugin.d.ts testing.mjs testing.d.mts build.mjs plugin.wit",
            "package.json",
            dependency,
        ),
        (
            "python",
            "python.sh",
            "operator_plugin.py operator_types.py plugin.wit",
            "requirements.txt",
            requirement,
        ),
    ] {
        let folder = desk.path().join(format!("packaged-{language}"));
        let mut new = Command::new(PROGRAM);
        new.arg("new").arg(&folder).args(["--lang", language]);
        new.args(["--kind", "Greeter", "--group", "example.org"]).prints();
        for file in sdk.split(' ') {
            fs::remove_file(folder.join(file)).unwrap();
        }
        fs::write(folder.join(manifest), text).unwrap();
        let compiler = Command::new(root().join("plugins").join(compiler)).prints();
        let mut make = Command::new("make");
        make.arg("test").current_dir(&folder);
        make.env("COMPONENTIZE", compiler.trim())
            .env("OPERATOR_HOST", PROGRAM)
            .env("npm_config_registry", &registry)
            .env("PIP_NO_INDEX", "1")
            .env("PIP_FIND_LINKS", packages);
        let printed = make.env_remove("MAKEFLAGS").prints();
        assert_contains(&printed, "3 calls replayed: 3 the same");
    }
}

/// Serves the package for JavaScript as a registry of npm, until the process ends.
fn npm_registry(packages: &Path, version: &str) -> String {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let registry = format!("http://{}", listener.local_addr().unwrap());
    let tarball = format!("{registry}/operator-plugin.tgz");
    let released = json!({ "name": "operator-plugin", "version": version, "dist": { "tarball": tarball } });
    let list = json!({ "name": "operator-plugin", "dist-tags": { "latest": version }, "versions": { version: released } });
    let file = fs::read(packages.join(format!("operator-plugin-{version}.tgz"))).unwrap();
    std::thread::spawn(move || {
        for stream in listener.incoming() {
            let mut stream = stream.unwrap();
            let mut lines = BufReader::new(stream.try_clone().unwrap()).lines();
            let request = lines.next().unwrap().unwrap();
            // The rest of its head.
            while lines
                .next()
                .is_some_and(|line| line.is_ok_and(|it| !it.is_empty()))
            {}
            let body = match request.contains(".tgz") {
                true => file.clone(),
                false => list.to_string().into_bytes(),
            };
            let head = format!(
                "HTTP/1.1 200 OK\r\nconnection: close\r\ncontent-length: {}\r\n\r\n",
                body.len()
            );
            stream.write_all(&[head.as_bytes(), &body].concat()).unwrap();
        }
    });
    registry
}

#[test]
fn the_workflow_runs_every_script_of_a_release_and_nothing_that_is_not_there() {
    let text = fs::read_to_string(root().join(".github/workflows/release.yml")).unwrap();
    let workflow: Value = serde_saphyr::from_str(&text).unwrap();
    let jobs = workflow["jobs"].as_object().unwrap().values();
    let steps = jobs.flat_map(|job| job["steps"].as_array().unwrap());
    let commands: Vec<&str> = steps.filter_map(|step| step["run"].as_str()).collect();
    // The workflow builds the image, and the Dockerfile runs a script, too.
    let dockerfile = fs::read_to_string(root().join("Dockerfile")).unwrap();
    let instructions = dockerfile.lines().filter(|line| !line.starts_with('#'));
    let named: BTreeSet<String> = commands
        .iter()
        .copied()
        .chain(instructions)
        .flat_map(|command| command.split(|c: char| c.is_whitespace() || "()".contains(c)))
        .filter_map(|word| word.strip_prefix("host/release/"))
        .map(str::to_owned)
        .collect();
    let entries = fs::read_dir(root().join("host/release")).unwrap();
    let names = entries.map(|entry| entry.unwrap().file_name().into_string().unwrap());
    let there: BTreeSet<String> = names.filter(|name| name.ends_with(".sh")).collect();
    assert_eq!(named, there);
    assert_eq!(workflow["permissions"], serde_json::json!({ "contents": "read" }));
    // Nothing is built before the advisories were looked at.
    assert_eq!(workflow["jobs"]["build"]["needs"], "advisories");
    assert_eq!(workflow["jobs"]["publish"]["needs"], "build");
    // What a tag's author chooses is no part of a command's text.
    for command in commands {
        assert!(!command.contains("${{"), "{command}");
    }
}

/// Whoever can move a tag of an action could otherwise change what a release contains.
#[test]
fn actions_are_pinned_by_commit_and_a_release_attests_origin_and_components() {
    let mut used = Vec::new();
    for entry in fs::read_dir(root().join(".github/workflows")).unwrap() {
        let text = fs::read_to_string(entry.unwrap().path()).unwrap();
        let uses = text.lines().filter_map(|line| line.split_once("uses: "));
        used.extend(uses.map(|(_, action)| action.to_owned()));
    }
    assert!(used.len() >= 12, "{used:?}");
    for action in &used {
        let (commit, version) = action
            .split_once('@')
            .unwrap()
            .1
            .split_once(" # v")
            .unwrap_or((action, ""));
        let is_commit = commit.len() == 40 && commit.bytes().all(|byte| byte.is_ascii_hexdigit());
        assert!(is_commit && !version.is_empty(), "{action}");
    }
    for (action, count) in [
        ("actions/attest-build-provenance@", 2),
        ("actions/attest-sbom@", 2),
    ] {
        let steps = used.iter().filter(|it| it.starts_with(action));
        assert_eq!(steps.count(), count, "{action}");
    }
}

#[test]
fn the_advisories_are_looked_at_each_week_and_before_a_release() {
    let workflow = |name: &str| -> Value {
        let text = fs::read_to_string(root().join(format!(".github/workflows/{name}.yml"))).unwrap();
        serde_saphyr::from_str(&text).unwrap()
    };
    for name in ["advisories", "release"] {
        let steps = &workflow(name)["jobs"]["advisories"]["steps"];
        let runs = steps.as_array().unwrap().iter();
        assert!(
            runs.filter_map(|step| step["run"].as_str())
                .any(|run| run == "tests/deny.sh advisories"),
            "{name}: {steps}"
        );
    }
    // The minute, the hour, and a day of the week.
    let cron = &workflow("advisories")["on"]["schedule"][0]["cron"];
    let fields: Vec<_> = cron.as_str().unwrap().split(' ').collect();
    let [minute, hour, "*", "*", day] = fields[..] else {
        panic!("{cron}")
    };
    assert!(
        [minute, hour, day]
            .iter()
            .all(|field| field.parse::<u8>().is_ok()),
        "{cron}"
    );
}

/// Returns an argument of cargo with the place of the crate that the SDK depends on. No registry has it yet.
pub(crate) fn unpublished_schema() -> String {
    let schema = root().join("host/schema");
    format!("--config=patch.crates-io.operator-host-schema.path={schema:?}")
}

/// Packages the crates of a workspace as they would be published, and returns the folders with their contents. `make package`
/// also builds them, which takes minutes.
pub(crate) fn packaged(workspace: &str, crates: &[String], into: &Path) -> Vec<PathBuf> {
    let mut cargo = Command::new("cargo");
    cargo.args(["package", "--no-verify", "--allow-dirty", "--quiet"]);
    cargo.arg(unpublished_schema());
    cargo.args(crates.iter().flat_map(|name| ["--package", name.as_str()]));
    cargo
        .current_dir(root().join(workspace))
        .env("CARGO_TARGET_DIR", into)
        .env("CARGO_NET_OFFLINE", "true")
        .prints();
    let unpacked = crates.iter().map(|name| {
        let name = format!("{name}-{}", env!("CARGO_PKG_VERSION"));
        let archive = into.join(format!("package/{name}.crate"));
        let bytes = fs::metadata(&archive).unwrap().len();
        assert!(bytes < 2 << 20, "{name} has {bytes} bytes");
        unpack(&archive, into);
        into.join(name)
    });
    unpacked.collect()
}

/// Returns the folders in one of the repository.
fn folders_of(folder: &str) -> impl Iterator<Item = PathBuf> {
    let entries = fs::read_dir(root().join(folder)).unwrap();
    entries
        .map(|entry| entry.unwrap().path())
        .filter(|path| path.is_dir())
}

/// Returns the files that a source file includes when it is compiled.
fn included(file: &Path) -> Vec<PathBuf> {
    let text = fs::read_to_string(file).unwrap();
    let pattern = r#"include_(?:str|bytes)!\(\s*"([^"]+)""#;
    let pattern = regex::Regex::new(pattern).unwrap();
    // What follows is for the tests of this repository.
    let code = text.split("#[cfg(test)]").next().unwrap();
    let names = pattern.captures_iter(code);
    names
        .map(|found| file.parent().unwrap().join(&found[1]))
        .collect()
}

pub(super) fn sources(folder: &Path, into: &mut Vec<PathBuf>) {
    for entry in fs::read_dir(folder).unwrap() {
        let path = entry.unwrap().path();
        // Modules of tests read other files of this repository.
        if path.ends_with("tests") || path.ends_with("tests.rs") {
            continue;
        }
        if path.is_dir() {
            sources(&path, into);
        } else if path.extension().is_some_and(|it| it == "rs") {
            into.push(path);
        }
    }
}

#[test]
fn each_crate_is_packaged_with_all_that_it_includes_and_says_what_it_is() {
    let folder = tempfile::tempdir().unwrap();
    let mut host = vec!["operator-host".to_owned()];
    host.extend(folders_of("host").filter_map(|folder| {
        let manifest = fs::read_to_string(folder.join("Cargo.toml")).ok()?;
        let name = manifest.lines().find_map(|line| line.strip_prefix("name = "))?;
        Some(name.trim_matches('"').to_owned())
    }));
    assert!(host.len() > 10, "{host:?}");
    let mut crates = packaged(".", &host, folder.path());
    crates.extend(packaged(
        "plugins",
        &["operator-plugin".to_owned()],
        folder.path(),
    ));
    let mut count = 0;
    for place in &crates {
        for file in ["LICENSE", "README.md"] {
            assert!(place.join(file).is_file(), "{} has no {file}", place.display());
        }
        let manifest = fs::read_to_string(place.join("Cargo.toml")).unwrap();
        for field in "description license documentation readme keywords categories rust-version".split(' ') {
            let found = manifest
                .lines()
                .any(|line| line.starts_with(&format!("{field} = ")));
            assert!(found, "{} has no {field}", place.display());
        }
        let mut all = Vec::new();
        sources(&place.join("src"), &mut all);
        for file in &all {
            for path in included(file) {
                assert!(path.is_file(), "{} includes {}", file.display(), path.display());
                count += 1;
            }
        }
    }
    assert!(count > 3, "{count} files are included");
    // The author's crate includes a folder.
    let author = crates
        .iter()
        .find(|place| place.join("templates").is_dir())
        .unwrap();
    let templates = Command::new("git")
        .args(["ls-files", "templates"])
        .current_dir(root().join("host/author"))
        .prints();
    assert!(templates.lines().count() > 30, "{templates}");
    for template in templates.lines() {
        assert!(
            author.join(template).is_file(),
            "no {template} in {}",
            author.display()
        );
    }
}
