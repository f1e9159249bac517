//! Locates what a new plugin needs of operator-host: the SDK of a Rust plugin, in a checkout or in a git repository; the script
//! of a checkout that finds or installs the compiler of a plugin in another language, whose SDK `new` writes beside it.

use std::path::{Component, Path, PathBuf};

use anyhow::{Context, anyhow, bail, ensure};

use super::Language;

/// The SDK of a Rust plugin outside of a checkout, in a form that `--sdk` takes. The build of a release sets it.
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
    program: &'static str,
    /// The script in a checkout that prints the program's path.
    script: &'static str,
    /// How to name another program.
    variable: &'static str,
}

impl Compiler {
    /// Returns that of a language; `None` for Rust.
    pub(super) const fn of(language: Language) -> Option<Self> {
        let (program, script, variable) = match language {
            Language::Rust => return None,
            Language::Go => ("go", "go.sh", "GO"),
            Language::C => ("clang", "c.sh", "CC"),
            Language::Js | Language::Ts => ("npx --yes componentize-qjs@0.4.5", "js.sh", "COMPONENTIZE"),
            Language::Python => ("componentize-py", "python.sh", "COMPONENTIZE"),
            Language::Zig => ("zig", "zig.sh", "ZIG"),
            Language::AssemblyScript => (
                "npx asc --config ./node_modules/@assemblyscript/wasi-shim/asconfig.json --transform json-as",
                "assemblyscript.sh",
                "ASC",
            ),
        };
        Some(Self {
            program,
            script,
            variable,
        })
    }

    /// Returns how the `Makefile` of a sample names the program.
    pub(super) fn in_samples(&self) -> String {
        format!("$(shell {}= ../{})", self.variable, self.script)
    }

    /// Uses the script of the checkout that the user gave, or of the one that contains the new folder. Without a checkout,
    /// the compiler must be on the `PATH`.
    pub(super) fn find(&self, given: Option<&str>, folder: &Path) -> anyhow::Result<Sdk> {
        let sdk = match given {
            Some(given) if is_sdk(Path::new(given)) => Some(PathBuf::from(given)),
            Some(given) => bail!(
                "--sdk is {given:?}, which is not the folder plugins/sdk of a checkout of operator-host: leave out --sdk and \
                 OPERATOR_HOST_SDK, and the SDK's files are written into the new folder"
            ),
            None => around(folder)?,
        };
        let script = sdk.and_then(|sdk| sdk.join("..").join(self.script).canonicalize().ok());
        let (program, variable) = (self.program, self.variable);
        let Some(script) = script else {
            return Ok(Sdk {
                compiler: program.to_owned(),
                tools: format!("`make {variable}=PATH` takes another one than `{program}` on the `PATH`."),
                ..Sdk::default()
            });
        };
        let script = relative(&script, &absolute(folder)?);
        let script = script.display();
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
}

/// Uses the SDK that the user gave, or otherwise that of the checkout that contains the new folder.
pub(super) fn find(given: Option<&str>, folder: &Path, name: &str) -> anyhow::Result<Sdk> {
    find_or(RELEASED.filter(|it| !it.is_empty()), given, folder, name)
}

fn find_or(released: Option<&str>, given: Option<&str>, folder: &Path, name: &str) -> anyhow::Result<Sdk> {
    if let (None, Some(sdk)) = (given, around(folder)?) {
        return checkout(&sdk, folder, name);
    }
    let given = given.or(released).ok_or_else(|| {
        anyhow!(
            "{} is not in a checkout of operator-host, which contains the Rust SDK in plugins/sdk: pass --sdk with the \
             SDK's folder, or with the URL of its git repository",
            folder.display()
        )
    })?;
    Ok(match given.split_once('#') {
        _ if !given.contains("://") => return checkout(Path::new(given), folder, name),
        Some((url, tag)) => elsewhere(format!("git = {url:?}, tag = {tag:?}"), name),
        None => elsewhere(format!("git = {given:?}"), name),
    })
}

/// Returns the SDK in the checkout that contains a folder.
fn around(folder: &Path) -> anyhow::Result<Option<PathBuf>> {
    let here = absolute(folder)?;
    let mut all = here.ancestors().skip(1).map(|it| it.join("plugins/sdk"));
    Ok(all.find(|sdk| is_sdk(sdk)))
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
    ensure!(
        is_sdk(sdk),
        "{} is not the Rust SDK: it is the folder plugins/sdk of a checkout of operator-host",
        sdk.display()
    );
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
    let there = there.canonicalize().unwrap_or_else(|_| there.to_owned());
    Ok(there.join(rest))
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
        let (tagged, git) = (format!("{url}#v0.1.0"), format!("git = {url:?}"));
        assert_eq!(dependency(None, Some(url)).unwrap(), git);
        let expected = format!("{git}, tag = \"v0.1.0\"");
        assert_eq!(dependency(Some(&tagged), None).unwrap(), expected);
        assert_eq!(dependency(Some(&tagged), Some(url)).unwrap(), git);
        let error = dependency(None, None).unwrap_err().to_string();
        assert!(error.contains("pass --sdk with the SDK's folder"), "{error}");
        let error = dependency(None, Some("0.1.0")).unwrap_err().to_string();
        assert!(error.contains("is not the Rust SDK"), "{error}");

        // Within a checkout it is that of the checkout, whatever the release has.
        let sdk = desk.path().join("plugins/sdk");
        std::fs::create_dir_all(&sdk).unwrap();
        std::fs::write(sdk.join("Cargo.toml"), "name = \"operator-plugin\"").unwrap();
        let found = dependency(Some(&tagged), None).unwrap();
        assert_eq!(found, "path = \"../plugins/sdk\"");
    }

    /// Regression: the README told to run a script of the checkout, by a path that existed in no folder.
    #[test]
    fn a_compiler_comes_from_the_script_of_the_checkout_if_there_is_one() {
        let desk = tempfile::tempdir().unwrap();
        let folder = desk.path().join("greeter");
        let go = Compiler::of(Language::Go).unwrap();
        let alone = go.find(None, &folder).unwrap();
        assert_eq!(alone.compiler, "go");
        assert!(!alone.tools.contains("go.sh"), "{}", alone.tools);
        let error = go.find(Some("0.1.0"), &folder).unwrap_err().to_string();
        assert!(error.contains("leave out --sdk and OPERATOR_HOST_SDK"), "{error}");

        let sdk = desk.path().join("checkout/plugins/sdk");
        std::fs::create_dir_all(&sdk).unwrap();
        std::fs::write(sdk.join("Cargo.toml"), "name = \"operator-plugin\"").unwrap();
        std::fs::write(sdk.join("../go.sh"), "").unwrap();
        let given = go.find(sdk.to_str(), &folder).unwrap();
        assert_eq!(given.compiler, "$(shell GO= \"../checkout/plugins/go.sh\")");
        let within = go.find(None, &desk.path().join("checkout/greeter")).unwrap();
        assert_eq!(within.compiler, "$(shell GO= \"../plugins/go.sh\")");
        let words = "`make` asks `../plugins/go.sh`";
        assert!(within.tools.contains(words), "{}", within.tools);
    }
}
