//! Locates the SDK for a new Rust plugin: in a checkout of operator-host, by a relative path, or in a git repository.

use std::path::{Component, Path, PathBuf};

use anyhow::{Context, anyhow};

/// The parts of a project that depend on the location of the SDK.
#[derive(Debug, Default, PartialEq, Eq)]
pub(super) struct Sdk {
    /// The dependency in `Cargo.toml`.
    pub(super) dependency: String,
    /// The build lines of the `Makefile`.
    pub(super) build: String,
    /// The README's text about the toolchain.
    pub(super) tools: String,
}

/// Uses the location that the user gave, or otherwise the checkout that contains the new folder.
pub(super) fn find(given: Option<&str>, folder: &Path, name: &str) -> anyhow::Result<Sdk> {
    match given {
        Some(url) if url.contains("://") => Ok(git(url, name)),
        Some(path) => checkout(Path::new(path), folder, name),
        None => {
            let here = absolute(folder)?;
            let sdk = here
                .ancestors()
                .skip(1)
                .map(|it| it.join("plugins/sdk"))
                .find(|sdk| is_sdk(sdk));
            let sdk = sdk.ok_or_else(|| {
                anyhow!(
                    "{} is not in a checkout of operator-host, which contains the Rust SDK in plugins/sdk: \
                     give --sdk with the SDK's folder, or with the URL of its git repository",
                    folder.display()
                )
            })?;
            checkout(&sdk, folder, name)
        }
    }
}

fn git(url: &str, name: &str) -> Sdk {
    let file = name.replace('-', "_");
    Sdk {
        dependency: format!("git = {url:?}"),
        build: format!(
            "\tcargo build --release --target wasm32-wasip1\n\tcp target/wasm32-wasip1/release/{file}.wasm $@"
        ),
        tools: "It needs Rust with the target `wasm32-wasip1`: `rustup target add wasm32-wasip1`.".into(),
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
        return Ok(Sdk {
            dependency: format!("path = \"{path}\""),
            ..git("", name)
        });
    }
    Ok(Sdk {
        dependency: format!("path = \"{path}\""),
        build: format!("\tcp \"$$({script} .)\" $@"),
        tools: format!(
            "`make` builds with `{script}`, which adds Rust's target `wasm32-wasip1` with rustup, or assembles it from \
             Debian's\npackages where rustup cannot. With the target, `cargo build --release --target wasm32-wasip1` does the \
             same."
        ),
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
}
