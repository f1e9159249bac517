//! The files that `new` writes, by language: those of its folder in `templates` and of `templates/common`, with the placeholders
//! filled. Files that this repository's samples contain too are links to them: the loop around Hello, the bindings and the
//! JSON of Echo in C, the SDKs of Echo in other languages.

use std::collections::BTreeMap;
use std::io::{self, BufRead, BufReader, Read};
use std::path::{Path, PathBuf};

use flate2::read::GzDecoder;

/// Made by the build script: a line of JSON with the path and the size of each file, and their contents after it.
static PACKED: &[u8] = include_bytes!(concat!(env!("OUT_DIR"), "/templates.gz"));

/// Returns the templates by their paths.
pub(super) fn templates() -> BTreeMap<PathBuf, Vec<u8>> {
    // What the build has written can be read.
    unpack().unwrap_or_default()
}

fn unpack() -> io::Result<BTreeMap<PathBuf, Vec<u8>>> {
    let mut packed = BufReader::new(GzDecoder::new(PACKED));
    let mut sizes = String::new();
    packed.read_line(&mut sizes)?;
    let sizes: Vec<(PathBuf, usize)> = serde_json::from_str(&sizes)?;
    let files = sizes.into_iter().map(|(path, size)| {
        let mut content = vec![0; size];
        packed.read_exact(&mut content)?;
        Ok((path, content))
    });
    files.collect()
}

/// Returns the files by their paths in the new folder. `language` is the name of a folder, and `fill` fills the placeholders.
/// A file whose name would mean something in this repository has `.txt` after it there.
pub(super) fn of(language: &str, fill: impl Fn(&str) -> String) -> Vec<(PathBuf, Vec<u8>)> {
    let own = |path: &Path| {
        let path = path
            .strip_prefix("common")
            .or_else(|_| path.strip_prefix(language))
            .ok()?;
        Some(
            match path.extension().is_some_and(|extension| extension == "txt") {
                true => path.with_extension(""),
                false => path.to_owned(),
            },
        )
    };
    let filled = |content: Vec<u8>| match String::from_utf8(content) {
        Ok(text) => fill(&text).into_bytes(),
        Err(error) => error.into_bytes(),
    };
    let files = templates().into_iter();
    files
        .filter_map(|(path, content)| Some((own(&path)?, filled(content))))
        .collect()
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;
    use std::process::Command;

    use super::*;

    #[test]
    fn nothing_is_embedded_that_is_not_in_the_repository() {
        let listed = Command::new("git")
            .args(["ls-files", "templates"])
            .current_dir(env!("CARGO_MANIFEST_DIR"))
            .output()
            .unwrap();
        let listed = String::from_utf8(listed.stdout).unwrap();
        let listed = listed
            .lines()
            .map(|path| PathBuf::from(path.strip_prefix("templates/").unwrap()));
        assert_eq!(templates().into_keys().collect::<BTreeSet<_>>(), listed.collect());
    }
}
