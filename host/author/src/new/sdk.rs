//! Locates what a new plugin needs from operator-host: the SDK of a Rust plugin, in a checkout, by a relative path, in a
//! git repository, or by its version in the Rust registry; the script of a checkout that finds or installs the compiler of
//! a plugin in another language.

use std::path::{Component, Path, PathBuf};

use anyhow::{Context, anyhow};

/// The SDK of a plugin outside of a checkout, in a form that `--sdk` takes. The build of a release sets it, as there is none
/// before the SDK is published.
const RELEASED: Option<&str> = option_env!("OPERATOR_HOST_RELEASED_SDK");

/// The parts of a project that depend on the location of the SDK.
#[derive(Debug, Default, PartialEq, Eq)]
pub(super) struct Sdk {
    /// The dependency in `Cargo.toml`.
    pub dependency: String,
    /// The build lines of the `Makefile`.
    pub build: String,
    /// The compiler of a plugin in another language than Rust, as the `Makefile` names it.
    pub compiler: String,
    /// The README's text about the toolchain.
    pub tools: String,
}

/// The compiler of a language other than Rust.
pub(super) struct Compiler {
    /// The program that the `Makefile` runs.
    pub program: &'static str,
    /// The script in a checkout that prints the program's path.
    pub script: &'static str,
    /// What the README says about it.
    pub needs: &'static str,
    /// How to name another program.
    pub variable: &'static str,
}

pub(super) const GO: Compiler = Compiler {
    program: "go",
    script: "go.sh",
    needs: "It needs Go 1.21 or later (<https://go.dev/dl>; Debian 12 has 1.19).",
    variable: "GO",
};

pub(super) const C: Compiler = Compiler {
    program: "clang",
    script: "c.sh",
    needs: "It needs clang and lld with the WebAssembly target, and wasi-libc: Debian's packages `clang`, `lld`, \
            `wasi-libc` and\n`libclang-rt-14-dev-wasm32` (the number is clang's), or the WASI SDK.",
    variable: "CC",
};

pub(super) const JS: Compiler = Compiler {
    program: "npx --yes componentize-qjs@0.4.5",
    script: "js.sh",
    needs: "It needs Node.js 22.15 or later with npm, for the package `componentize-qjs`.",
    variable: "COMPONENTIZE",
};

pub(super) const PYTHON: Compiler = Compiler {
    program: "componentize-py",
    script: "python.sh",
    needs: "It needs the package `componentize-py` of PyPI: `pip install componentize-py==0.25.1`.",
    variable: "COMPONENTIZE",
};

pub(super) const ZIG: Compiler = Compiler {
    program: "zig",
    script: "zig.sh",
    needs: "It needs Zig 0.17: <https://ziglang.org/download>, or `pip install ziglang==0.17.1`.",
    variable: "ZIG",
};

pub(super) const ASSEMBLYSCRIPT: Compiler = Compiler {
    program: "npx asc --config ./node_modules/@assemblyscript/wasi-shim/asconfig.json --transform json-as",
    script: "assemblyscript.sh",
    needs: "It needs Node.js 20 or later with npm:\n`npm install assemblyscript@0.28.20 json-as@1.6.0 \
            @assemblyscript/wasi-shim@0.1.0`.",
    variable: "ASC",
};

impl Compiler {
    /// Uses the script of the checkout that the user gave, or of the one that contains the new folder. Without a checkout,
    /// the compiler must be on the `PATH`.
    pub(super) fn find(&self, given: Option<&str>, folder: &Path) -> anyhow::Result<Sdk> {
        let Self {
            program,
            script,
            needs,
            variable,
        } = self;
        let sdk = match given {
            Some(given) => Some(PathBuf::from(given)).filter(|sdk| is_sdk(sdk)),
            None => around(folder)?,
        };
        let script = sdk
            .map(|sdk| sdk.join("..").join(script))
            .filter(|script| script.is_file());
        let Some(script) = script else {
            return Ok(Sdk {
                compiler: (*program).to_owned(),
                tools: format!(
                    "{needs}\n`make {variable}=PATH` takes another one than `{program}` on the `PATH`."
                ),
                ..Sdk::default()
            });
        };
        let script = script
            .canonicalize()
            .with_context(|| script.display().to_string())?;
        let script = relative(&script, &absolute(folder)?);
        let script = script.display();
        Ok(Sdk {
            // The variable may be in the environment, for programs that are not plugins.
            compiler: format!("$(shell {variable}= \"{script}\")"),
            tools: format!(
                "{needs}\n`make` asks `{script}` for one, which downloads or installs it if it is missing. `make \
                 {variable}=PATH` takes another one."
            ),
            ..Sdk::default()
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
