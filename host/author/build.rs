//! Packs the templates into one compressed file, because in the program as they are they would take four times as much.

use std::collections::BTreeMap;
use std::io::Write;
use std::path::{Path, PathBuf};

use flate2::Compression;
use flate2::write::GzEncoder;

fn main() -> Result<(), Box<dyn std::error::Error>> {
    println!("cargo::rerun-if-changed=build.rs");
    println!("cargo::rerun-if-changed=templates");
    let root = Path::new("templates");
    let mut files = BTreeMap::new();
    read(root, root, &mut files)?;
    let sizes: Vec<_> = files
        .iter()
        .map(|(path, content)| (path, content.len()))
        .collect();
    let mut packed = GzEncoder::new(Vec::new(), Compression::best());
    serde_json::to_writer(&mut packed, &sizes)?;
    packed.write_all(b"\n")?;
    for content in files.values() {
        packed.write_all(content)?;
    }
    let folder = std::env::var_os("OUT_DIR").ok_or("cargo sets OUT_DIR")?;
    std::fs::write(Path::new(&folder).join("templates.gz"), packed.finish()?)?;
    Ok(())
}

/// Reads the files in a folder and its subfolders, by their paths in `root`. A link is what it leads to.
fn read(
    root: &Path,
    folder: &Path,
    files: &mut BTreeMap<PathBuf, Vec<u8>>,
) -> Result<(), Box<dyn std::error::Error>> {
    for entry in std::fs::read_dir(folder)? {
        let path = entry?.path();
        if path.is_dir() {
            read(root, &path, files)?;
        } else {
            files.insert(path.strip_prefix(root)?.to_owned(), std::fs::read(&path)?);
        }
    }
    Ok(())
}
