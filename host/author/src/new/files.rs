//! The files that `new` writes, by language: those of its folder in `templates` and of `templates/common`, with the placeholders
//! filled. Files that this repository's samples contain too are links to them: the loop around Hello, the bindings and the
//! JSON of Echo in C, the SDKs of Echo in other languages.

use std::path::{Path, PathBuf};

use include_dir::{Dir, include_dir};

/// A file whose name would mean something in this repository has `.txt` after it.
pub(super) static TEMPLATES: Dir<'_> = include_dir!("$CARGO_MANIFEST_DIR/templates");

/// Returns the files by their paths in the new folder. `language` is the name of a folder, and `fill` fills the placeholders.
pub(super) fn of(language: &str, fill: impl Fn(&str) -> String) -> Vec<(PathBuf, Vec<u8>)> {
    let folders = ["common", language].into_iter();
    let folders = folders.filter_map(|name| TEMPLATES.get_dir(name));
    let files = folders.flat_map(|folder| within(folder, folder.path()));
    let filled = files.map(|(path, content)| match std::str::from_utf8(content) {
        Ok(text) => (path, fill(text).into_bytes()),
        Err(_) => (path, content.to_vec()),
    });
    filled.collect()
}

/// Returns the files in a folder and its subfolders, by their paths in `root`.
fn within(folder: &'static Dir<'_>, root: &Path) -> Vec<(PathBuf, &'static [u8])> {
    let mut files = Vec::new();
    for file in folder.files() {
        let path = file.path().strip_prefix(root).unwrap_or(file.path());
        let path = match path.extension().is_some_and(|extension| extension == "txt") {
            true => path.with_extension(""),
            false => path.to_owned(),
        };
        files.push((path, file.contents()));
    }
    let folders = folder.dirs();
    files.extend(folders.flat_map(|folder| within(folder, root)));
    files
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;
    use std::process::Command;

    use super::*;

    fn paths<'a>(folder: &'a Dir<'a>) -> BTreeSet<&'a Path> {
        let own = folder.files().map(include_dir::File::path);
        own.chain(folder.dirs().flat_map(paths)).collect()
    }

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
            .map(|path| Path::new(path.strip_prefix("templates/").unwrap()));
        assert_eq!(paths(&TEMPLATES), listed.collect());
    }
}
