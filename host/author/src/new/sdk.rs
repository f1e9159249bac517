//! Locates what a new plugin needs from operator-host: the SDK of a Rust plugin, in a checkout, by a relative path, in a
//! git repository, or by its version in the Rust registry; the script of a checkout that finds or installs the compiler of
//! a plugin in another language, and the version of its SDK on npm or PyPI.

use std::path::{Component, Path, PathBuf};

use anyhow::{Context, anyhow};

/// The SDK of a plugin outside of a checkout, in a form that `--sdk` takes. The build of a release sets it, as there is none
/// before the SDK is published.
const RELEASED: Option<&str> = option_env!("OPERATOR_HOST_RELEASED_SDK");

/// The parts of a project that depend on the location of the SDK.
#[derive(Debug, Default, PartialEq, Eq)]
pub(super) struct Sdk {
    /// The dependency in `Cargo.toml`, or in `package.json`.
    pub dependency: String,
    /// The version of the package that contains the SDK's files, which are then not written beside the plugin.
    pub package: Option<String>,
    /// The build lines of the `Makefile`.
    pub build: String,
    /// The compiler of a plugin in another language than Rust, as the `Makefile` names it.
    pub compiler: String,
    /// The README's text about the toolchain.
    pub tools: String,
}

/// The compiler of a language other than Rust.
pub(super) struct Compiler {
    /// The language, as a message names it.
    pub language: &'static str,
    /// The registry of the package `operator-plugin`, which contains the SDK, if there is one.
    pub registry: Option<&'static str>,
    /// The program that the `Makefile` runs.
    pub program: &'static str,
    /// The script in a checkout that prints the program's path.
    pub script: &'static str,
    /// How to name another program.
    pub variable: &'static str,
}

pub(super) const GO: Compiler = Compiler {
    language: "Go",
    registry: None,
    program: "go",
    script: "go.sh",
    variable: "GO",
};

pub(super) const C: Compiler = Compiler {
    language: "C",
    registry: None,
    program: "clang",
    script: "c.sh",
    variable: "CC",
};

pub(super) const JS: Compiler = Compiler {
    language: "JavaScript or TypeScript",
    registry: Some("npm"),
    program: "npx --yes componentize-qjs@0.4.5",
    script: "js.sh",
    variable: "COMPONENTIZE",
};

pub(super) const PYTHON: Compiler = Compiler {
    language: "Python",
    registry: Some("PyPI"),
    program: "componentize-py",
    script: "python.sh",
    variable: "COMPONENTIZE",
};

pub(super) const ZIG: Compiler = Compiler {
    language: "Zig",
    registry: None,
    program: "zig",
    script: "zig.sh",
    variable: "ZIG",
};

pub(super) const ASSEMBLYSCRIPT: Compiler = Compiler {
    language: "AssemblyScript",
    registry: None,
    program: "npx asc --config ./node_modules/@assemblyscript/wasi-shim/asconfig.json --transform json-as",
    script: "assemblyscript.sh",
    variable: "ASC",
};

impl Compiler {
    /// Returns how the `Makefile` of a sample names the program.
    pub(super) fn in_samples(&self) -> String {
        format!("$(shell {}= ../{})", self.variable, self.script)
    }

    /// Uses the script of the checkout that the user gave, or of the one that contains the new folder. Without a checkout,
    /// the compiler must be on the `PATH`.
    pub(super) fn find(&self, given: Option<&str>, folder: &Path) -> anyhow::Result<Sdk> {
        let sdk = match given {
            Some(given) if is_sdk(Path::new(given)) => Some(PathBuf::from(given)),
            Some(given) => return self.package(given),
            None => around(folder)?,
        };
        let script = sdk
            .map(|sdk| sdk.join("..").join(self.script))
            .filter(|script| script.is_file());
        let Some(script) = script else {
            return Ok(self.on_the_path());
        };
        let script = script
            .canonicalize()
            .with_context(|| script.display().to_string())?;
        let script = relative(&script, &absolute(folder)?);
        let (script, variable) = (script.display(), self.variable);
        Ok(Sdk {
            // The variable may be in the environment, for programs that are not plugins.
            compiler: format!("$(shell {variable}= \"{script}\")"),
            tools: format!(
                "`make` asks `{script}` for one, which downloads or installs it if it is missing. `make {variable}=PATH` \
                 takes another one."
            ),
            ..Sdk::default()
        })
    }

    fn on_the_path(&self) -> Sdk {
        let (program, variable) = (self.program, self.variable);
        Sdk {
            compiler: program.to_owned(),
            tools: format!("`make {variable}=PATH` takes another one than `{program}` on the `PATH`."),
            ..Sdk::default()
        }
    }

    /// Returns the SDK as a package of this version.
    fn package(&self, version: &str) -> anyhow::Result<Sdk> {
        let language = self.language;
        let Some(registry) = self.registry else {
            return Err(anyhow!(
                "--sdk is {version:?}, which is not the folder plugins/sdk of a checkout of operator-host. There is no \
                 package of the SDK for {language}: leave out --sdk and OPERATOR_HOST_SDK, and its files are written into \
                 the new folder"
            ));
        };
        // A range would take another SDK than the one that the plugin was tested with.
        if semver::Version::parse(version).is_err() {
            return Err(anyhow!(
                "--sdk is {version:?}: for a plugin in {language} it is the version of the package operator-plugin on \
                 {registry}, such as `0.1.0`, or the folder plugins/sdk of a checkout of operator-host"
            ));
        }
        let mut sdk = self.on_the_path();
        sdk.tools += &format!(
            "\n\nThe SDK is version {version} of the package `operator-plugin` on {registry}. `make` installs it, and again \
             when you change the version."
        );
        Ok(Sdk {
            dependency: format!(",\n  \"dependencies\": {{\n    \"operator-plugin\": {version:?}\n  }}"),
            package: Some(version.to_owned()),
            ..sdk
        })
    }
}

/// Uses the location that the user gave, or otherwise the checkout that contains the new folder.
pub(super) fn find(given: Option<&str>, folder: &Path, name: &str) -> anyhow::Result<Sdk> {
    find_or(RELEASED.filter(|it| !it.is_empty()), given, folder, name)
}

fn find_or(released: Option<&str>, given: Option<&str>, folder: &Path, name: &str) -> anyhow::Result<Sdk> {
    let around = match given {
        Some(_) => None,
        None => around(folder)?,
    };
    if let Some(sdk) = around {
        return checkout(&sdk, folder, name);
    }
    let given = given.or(released).ok_or_else(|| {
        anyhow!(
            "{} is not in a checkout of operator-host, which contains the Rust SDK in plugins/sdk: pass --sdk with the \
             SDK's folder, with the URL of its git repository, or with its version",
            folder.display()
        )
    })?;
    if given.contains("://") {
        return Ok(git(given, name));
    }
    let is_version = given.starts_with(|c: char| c.is_ascii_digit() || "=^~".contains(c));
    if is_version && semver::VersionReq::parse(given).is_ok() {
        return Ok(elsewhere(format!("version = {given:?}"), name));
    }
    checkout(Path::new(given), folder, name)
}

/// Returns the SDK in the checkout that contains a folder.
fn around(folder: &Path) -> anyhow::Result<Option<PathBuf>> {
    let here = absolute(folder)?;
    let mut all = here.ancestors().skip(1).map(|it| it.join("plugins/sdk"));
    Ok(all.find(|sdk| is_sdk(sdk)))
}

/// Returns the SDK in a git repository; what follows a `#` is a tag.
fn git(url: &str, name: &str) -> Sdk {
    let dependency = match url.split_once('#') {
        Some((url, tag)) => format!("git = {url:?}, tag = {tag:?}"),
        None => format!("git = {url:?}"),
    };
    elsewhere(dependency, name)
}

/// Returns an SDK without the scripts of a checkout.
fn elsewhere(dependency: String, name: &str) -> Sdk {
    let file = name.replace('-', "_");
    Sdk {
        dependency,
        build: format!(
            "\tcargo build --release --target wasm32-wasip1\n\tcp target/wasm32-wasip1/release/{file}.wasm $@"
        ),
        tools: "It needs Rust with the target `wasm32-wasip1`: `rustup target add wasm32-wasip1`.".into(),
        ..Sdk::default()
    }
}

fn checkout(sdk: &Path, folder: &Path, name: &str) -> anyhow::Result<Sdk> {
    if !is_sdk(sdk) {
        return Err(anyhow!(
            "{} is not the Rust SDK: it is the folder plugins/sdk of a checkout of operator-host",
            sdk.display()
        ));
    }
    let sdk = sdk.canonicalize().with_context(|| sdk.display().to_string())?;
    let path = relative(&sdk, &absolute(folder)?);
    let script = path.parent().unwrap_or(Path::new("..")).join("build.sh");
    let (path, script) = (path.display(), script.display());
    if !sdk.join("../build.sh").is_file() {
        return Ok(elsewhere(format!("path = \"{path}\""), name));
    }
    Ok(Sdk {
        dependency: format!("path = \"{path}\""),
        build: format!("\tcp \"$$({script} .)\" $@"),
        tools: format!(
            "`make` builds with `{script}`, which adds Rust's target `wasm32-wasip1` with rustup, or assembles it from \
             Debian's\npackages where rustup cannot. With the target, `cargo build --release --target wasm32-wasip1` does the \
             same."
        ),
        ..Sdk::default()
    })
}

fn is_sdk(folder: &Path) -> bool {
    std::fs::read_to_string(folder.join("Cargo.toml"))
        .is_ok_and(|manifest| manifest.contains("name = \"operator-plugin\""))
}

/// Returns the absolute path of a folder that need not exist, with the links in its existing part resolved.
fn absolute(folder: &Path) -> anyhow::Result<PathBuf> {
    let whole = std::path::absolute(folder).with_context(|| folder.display().to_string())?;
    let there = whole.ancestors().find(|it| it.exists()).unwrap_or(Path::new("/"));
    let rest = whole.strip_prefix(there).unwrap_or(Path::new(""));
    Ok(there
        .canonicalize()
        .unwrap_or_else(|_| there.to_owned())
        .join(rest))
}

/// Returns the relative path from one absolute folder to another.
fn relative(to: &Path, from: &Path) -> PathBuf {
    let (to, from): (Vec<_>, Vec<_>) = (to.components().collect(), from.components().collect());
    let common = to.iter().zip(&from).take_while(|(a, b)| a == b).count();
    let up = std::iter::repeat_n(Component::ParentDir, from.len() - common);
    up.chain(to[common..].iter().copied()).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_way_from_one_folder_to_another_goes_up_and_down() {
        let way = |to: &str, from: &str| relative(Path::new(to), Path::new(from)).display().to_string();
        assert_eq!(way("/a/plugins/sdk", "/a/greeter"), "../plugins/sdk");
        assert_eq!(way("/a/plugins/sdk", "/a/plugins/greeter"), "../sdk");
        assert_eq!(way("/a/sdk", "/b/c/d"), "../../../a/sdk");
    }

    #[test]
    fn outside_of_a_checkout_the_sdk_is_what_the_user_gives_or_else_what_the_release_has() {
        let desk = tempfile::tempdir().unwrap();
        let folder = desk.path().join("greeter");
        let dependency =
            |released, given| find_or(released, given, &folder, "greeter").map(|sdk| sdk.dependency);
        let url = "https://forge.example.com/team/operator-host";
        assert_eq!(dependency(None, Some("0.1.0")).unwrap(), "version = \"0.1.0\"");
        assert_eq!(dependency(None, Some("=0.1.0")).unwrap(), "version = \"=0.1.0\"");
        assert_eq!(dependency(None, Some(url)).unwrap(), format!("git = {url:?}"));
        let tagged = format!("{url}#v0.1.0");
        let expected = format!("git = {url:?}, tag = \"v0.1.0\"");
        assert_eq!(dependency(Some(&tagged), None).unwrap(), expected);
        assert_eq!(dependency(Some("0.1.0"), None).unwrap(), "version = \"0.1.0\"");
        assert_eq!(
            dependency(Some("0.1.0"), Some(url)).unwrap(),
            format!("git = {url:?}")
        );
        let error = dependency(None, None).unwrap_err().to_string();
        assert!(error.contains("pass --sdk with the SDK's folder"), "{error}");
        assert!(error.contains("or with its version"), "{error}");
        let error = dependency(None, Some("0.1.0/sdk")).unwrap_err().to_string();
        assert!(error.contains("is not the Rust SDK"), "{error}");

        // Within a checkout it is that of the checkout, whatever the release has.
        let sdk = desk.path().join("plugins/sdk");
        std::fs::create_dir_all(&sdk).unwrap();
        std::fs::write(sdk.join("Cargo.toml"), "name = \"operator-plugin\"").unwrap();
        assert_eq!(
            dependency(Some("0.1.0"), None).unwrap(),
            "path = \"../plugins/sdk\""
        );
    }

    #[test]
    fn a_version_is_that_of_a_package_where_the_language_has_one() {
        let desk = tempfile::tempdir().unwrap();
        let folder = desk.path().join("greeter");
        for (language, registry) in [(JS, "npm"), (PYTHON, "PyPI")] {
            let sdk = language.find(Some("0.1.0"), &folder).unwrap();
            assert_eq!(sdk.package.as_deref(), Some("0.1.0"));
            assert!(sdk.tools.contains(registry), "{}", sdk.tools);
            assert_eq!(language.find(None, &folder).unwrap().package, None);
            for bad in [
                "0.1",
                "^0.1.0",
                "latest",
                "https://forge.example.com/sdk",
                "no/folder",
                "",
            ] {
                let error = language.find(Some(bad), &folder).unwrap_err().to_string();
                let words = format!("--sdk is {bad:?}: for a plugin in");
                assert!(error.contains(&words) && error.contains(registry), "{error}");
            }
        }
        for language in [GO, C, ZIG, ASSEMBLYSCRIPT] {
            let error = language.find(Some("0.1.0"), &folder).unwrap_err().to_string();
            let words = format!("There is no package of the SDK for {}", language.language);
            assert!(error.contains(&words), "{error}");
        }
    }

    /// Regression: the README told to run a script of the checkout, by a path that existed in no folder.
    #[test]
    fn a_compiler_comes_from_the_script_of_the_checkout_if_there_is_one() {
        let desk = tempfile::tempdir().unwrap();
        let folder = desk.path().join("greeter");
        let alone = C.find(None, &folder).unwrap();
        assert_eq!(alone.compiler, "clang");
        assert!(!alone.tools.contains("c.sh"), "{}", alone.tools);

        let sdk = desk.path().join("checkout/plugins/sdk");
        std::fs::create_dir_all(&sdk).unwrap();
        std::fs::write(sdk.join("Cargo.toml"), "name = \"operator-plugin\"").unwrap();
        std::fs::write(sdk.join("../go.sh"), "").unwrap();
        let given = GO.find(sdk.to_str(), &folder).unwrap();
        assert_eq!(given.compiler, "$(shell GO= \"../checkout/plugins/go.sh\")");
        let within = GO.find(None, &desk.path().join("checkout/greeter")).unwrap();
        assert_eq!(within.compiler, "$(shell GO= \"../plugins/go.sh\")");
        assert!(
            within.tools.contains("`make` asks `../plugins/go.sh`"),
            "{}",
            within.tools
        );
    }
}
