//! A folder as the kubelet keeps it for a ConfigMap: links to `..data`, and that a link to a time-stamped folder.

use std::collections::BTreeMap;
use std::fs;
use std::os::unix::fs::symlink;
use std::path::{Path, PathBuf};

pub struct Mount {
    pub path: PathBuf,
    version: u32,
}

impl Mount {
    /// One file in a folder that is made.
    pub fn new(path: &Path, name: &str, content: &[u8]) -> Self {
        fs::create_dir(path).unwrap();
        let mut mount = Self {
            path: path.to_owned(),
            version: 0,
        };
        mount.put(name, content);
        mount
    }

    /// The ConfigMap holds this one file from now on.
    pub fn put(&mut self, name: &str, content: &[u8]) {
        self.project(&BTreeMap::from([(name.to_owned(), content.to_owned())]));
    }

    /// As the kubelet does it: a new folder, the link swapped, links to new keys made, those of old ones taken away.
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
