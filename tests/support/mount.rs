//! A folder like the kubelet's for a ConfigMap: links to `..data`, which is a link to a time-stamped folder.

use std::collections::BTreeMap;
use std::fs;
use std::os::unix::fs::symlink;
use std::path::{Path, PathBuf};

pub struct Mount {
    pub path: PathBuf,
    version: u32,
}

impl Mount {
    /// Creates the folder with one file.
    pub fn new(path: &Path, name: &str, content: &[u8]) -> Self {
        fs::create_dir(path).unwrap();
        let mut mount = Self {
            path: path.to_owned(),
            version: 0,
        };
        mount.put(name, content);
        mount
    }

    /// Replaces the contents by this one file.
    pub fn put(&mut self, name: &str, content: &[u8]) {
        self.project(&BTreeMap::from([(name.to_owned(), content.to_owned())]));
    }

    /// Updates the folder as the kubelet does: creates a new folder, swaps the link, adds links for new keys, and
    /// removes those of old ones.
    pub fn project(&mut self, keys: &BTreeMap<String, Vec<u8>>) {
        self.version += 1;
        let name = format!("..2026_11_21_00_00_00.{}", self.version);
        let data = self.path.join("..data");
        let old = fs::read_link(&data).ok();
        fs::create_dir(self.path.join(&name)).unwrap();
        for (key, content) in keys {
            fs::write(self.path.join(&name).join(key), content).unwrap();
        }
        symlink(&name, self.path.join("..data_tmp")).unwrap();
        fs::rename(self.path.join("..data_tmp"), &data).unwrap();
        for key in keys.keys() {
            let link = self.path.join(key);
            if fs::symlink_metadata(&link).is_err() {
                symlink(Path::new("..data").join(key), link).unwrap();
            }
        }
        let Some(old) = old else { return };
        for entry in fs::read_dir(self.path.join(&old)).unwrap() {
            let key = entry.unwrap().file_name();
            if !keys.contains_key(&*key.to_string_lossy()) {
                fs::remove_file(self.path.join(key)).unwrap();
            }
        }
        fs::remove_dir_all(self.path.join(old)).unwrap();
    }
}
