//! ConfigMaps with plugins that the host reads through the API server: puts their content into a folder, as the kubelet does
//! with a mounted one, but at once. From there on they are files like all others.

use std::collections::{BTreeMap, BTreeSet};
use std::fs::{self, File};
use std::io;
use std::path::{Path, PathBuf};
use std::pin::pin;

use futures::StreamExt as _;
use k8s_openapi::api::core::v1::ConfigMap;
use kube::runtime::WatchStreamExt as _;
use kube::runtime::watcher::{self, Event, watcher};
use kube::{Api, Client};
use tokio_util::sync::{CancellationToken, DropGuard};
use tracing::{error, warn};

use operator_host_config::Config;
use operator_host_core::object::{PACK_LABEL, is_config_map_key};
use operator_host_delivery::Location;
use operator_host_delivery::location::ConfigMapKey;
use operator_host_delivery::source::PROBLEM;

/// The ConfigMaps that controllers name, each followed while one does.
pub(super) struct ConfigMaps {
    client: Client,
    /// The host's own namespace.
    home: String,
    root: RootFolder,
    followed: BTreeMap<PathBuf, DropGuard>,
}

/// The folder of this process, created when the first controller needs it: a host without such plugins needs no place to write.
pub(super) struct RootFolder {
    parent: PathBuf,
    identity: String,
    created: Option<Root>,
}

impl RootFolder {
    pub(super) const fn new(parent: PathBuf, identity: String) -> Self {
        Self {
            parent,
            identity,
            created: None,
        }
    }

    pub(super) fn path(&self) -> PathBuf {
        self.parent.join(&self.identity)
    }

    fn create(&mut self) -> io::Result<()> {
        if self.created.is_none() {
            self.created = Some(Root::create(&self.parent, &self.identity)?);
        }
        Ok(())
    }
}

/// The folder while it exists. It is locked, so that what a killed process left behind can be told from it.
struct Root {
    folder: PathBuf,
    _lock: File,
}

impl Root {
    /// Creates the folder in `parent`, and removes those of processes that have ended.
    fn create(parent: &Path, identity: &str) -> io::Result<Self> {
        fs::create_dir_all(parent)?;
        // No other process may take a new folder, which is not locked yet, for one that was left behind.
        let alone = File::open(parent)?;
        alone.lock()?;
        for other in fs::read_dir(parent)? {
            let other = other?.path();
            let is_left = File::open(&other).is_ok_and(|folder| folder.try_lock().is_ok());
            if is_left && let Err(error) = fs::remove_dir_all(&other) {
                warn!(folder = %other.display(), %error, "cannot remove what an earlier process left behind");
            }
        }
        let folder = parent.join(identity);
        fs::create_dir_all(&folder)?;
        let lock = File::open(&folder)?;
        lock.try_lock()?;
        Ok(Self { folder, _lock: lock })
    }
}

impl Drop for Root {
    fn drop(&mut self) {
        // What remains, the next process removes.
        let _ = fs::remove_dir_all(&self.folder);
    }
}

impl ConfigMaps {
    pub(super) const fn new(client: Client, home: String, root: RootFolder) -> Self {
        Self {
            client,
            home,
            root,
            followed: BTreeMap::new(),
        }
    }

    /// Follows the ConfigMaps of this configuration, and no others.
    pub(super) fn keep(&mut self, config: &Config) {
        let named = config
            .controllers
            .iter()
            .filter_map(|controller| match &controller.plugin {
                Location::ConfigMap(key) => Some(key),
                Location::File(_) | Location::Registry { .. } => None,
            });
        let named: BTreeMap<PathBuf, &ConfigMapKey> = named.map(|key| (key.folder(), key)).collect();
        self.followed.retain(|folder, _| named.contains_key(folder));
        if named.is_empty() {
            return;
        }
        if let Err(error) = self.root.create() {
            let folder = self.root.path();
            return error!(folder = %folder.display(), %error,
                "cannot create the folder of plugins in ConfigMaps, so their controllers wait: set --cache-dir to a folder that the \
                 host may write, and start it again");
        }
        for (folder, key) in named {
            if self.followed.contains_key(&folder) {
                continue;
            }
            let namespace = key.namespace.as_ref().unwrap_or(&self.home);
            let mount = Mount {
                folder: self.root.path().join(&folder),
                namespace: namespace.clone(),
                name: key.name.clone(),
                maps: BTreeMap::new(),
                listed: None,
            };
            let stop = CancellationToken::new();
            let following = follow(Api::namespaced(self.client.clone(), namespace), mount);
            let until = stop.clone();
            tokio::spawn(async move { until.run_until_cancelled(following).await });
            self.followed.insert(folder, stop.drop_guard());
        }
    }
}

/// Keeps a folder like the ConfigMaps of one plugin. Never returns.
async fn follow(api: Api<ConfigMap>, mut mount: Mount) {
    let config = watcher::Config::default().labels(&format!("{PACK_LABEL}={}", mount.name));
    let mut events = pin!(watcher(api, config).default_backoff());
    while let Some(event) = events.next().await {
        let taken = tokio::task::spawn_blocking(move || {
            let result = mount.take(event);
            (mount, result)
        });
        // It panics only when the process ends.
        let Ok((back, result)) = taken.await else { return };
        mount = back;
        if let Err(error) = result {
            warn!(folder = %mount.folder.display(), %error, "cannot write the files of a ConfigMap");
        }
    }
}

/// The folder of one plugin's ConfigMaps.
struct Mount {
    folder: PathBuf,
    namespace: String,
    name: String,
    /// The files by ConfigMap.
    maps: BTreeMap<String, BTreeSet<String>>,
    /// The same, of the list that is being read.
    listed: Option<BTreeMap<String, BTreeSet<String>>>,
}

impl Mount {
    fn take(&mut self, event: Result<Event<ConfigMap>, watcher::Error>) -> io::Result<()> {
        match event {
            Ok(Event::Init) => {
                self.listed = Some(BTreeMap::new());
                return Ok(());
            }
            Ok(Event::InitApply(map)) => {
                if let Some((name, files)) = self.write(map)? {
                    self.listed.get_or_insert_default().insert(name, files);
                }
                return Ok(());
            }
            Ok(Event::InitDone) => self.maps = self.listed.take().unwrap_or_default(),
            Ok(Event::Apply(map)) => {
                if let Some((name, files)) = self.write(map)? {
                    self.maps.insert(name, files);
                }
            }
            Ok(Event::Delete(map)) => {
                self.maps.remove(map.metadata.name.as_deref().unwrap_or_default());
            }
            // What is there stays.
            Err(error) => {
                return self.explain(&format!(
                    "cannot read the ConfigMap {}/{}: {error}; `operator-host rbac` prints the permissions that the host needs",
                    self.namespace, self.name
                ));
            }
        }
        self.clean()?;
        self.explain(&format!(
            "the ConfigMap {}/{} does not exist, has another key, or lacks the label {PACK_LABEL}={}: apply what `operator-host \
             pack` prints",
            self.namespace, self.name, self.name
        ))
    }

    /// Whether a ConfigMap is the plugin's, or one of its further parts, by the names that `pack` gives them.
    fn is_part(&self, name: &str) -> bool {
        let rest = name.strip_prefix(&self.name);
        let number = rest.and_then(|rest| rest.strip_prefix('-'));
        rest == Some("")
            || number.is_some_and(|number| !number.is_empty() && number.bytes().all(|b| b.is_ascii_digit()))
    }

    /// Writes the files of a ConfigMap, and returns its name and theirs.
    fn write(&self, map: ConfigMap) -> io::Result<Option<(String, BTreeSet<String>)>> {
        let name = map.metadata.name.unwrap_or_default();
        if !self.is_part(&name) {
            return Ok(None);
        }
        let texts = map.data.into_iter().flatten();
        let texts = texts.map(|(key, text)| (key, text.into_bytes()));
        let bytes = map.binary_data.into_iter().flatten();
        let bytes = bytes.map(|(key, bytes)| (key, bytes.0));
        let hidden = self.hidden();
        fs::create_dir_all(&hidden)?;
        let mut files = BTreeSet::new();
        for (key, content) in texts.chain(bytes) {
            if !is_config_map_key(&key) {
                continue;
            }
            let (new, old) = (hidden.join(&key), self.folder.join(&key));
            let is_same = fs::read(&old).is_ok_and(|old| old == content);
            if !is_same {
                fs::write(&new, content)?;
                if self.folder.is_dir() {
                    fs::rename(&new, &old)?;
                }
            }
            files.insert(key);
        }
        Ok(Some((name, files)))
    }

    /// Where files are written before they are moved to their place. Those of the first list are moved together: before it is
    /// complete, it would look as if parts were missing.
    fn hidden(&self) -> PathBuf {
        let mut name = self.folder.file_name().unwrap_or_default().to_owned();
        name.push("..new");
        self.folder.with_file_name(name)
    }

    /// Shows the first list as a whole, and removes files that no ConfigMap has any more.
    fn clean(&self) -> io::Result<()> {
        if !self.folder.is_dir() {
            fs::create_dir_all(self.hidden())?;
            fs::rename(self.hidden(), &self.folder)?;
        }
        let wanted: BTreeSet<&String> = self.maps.values().flatten().collect();
        for file in fs::read_dir(&self.folder)? {
            let file = file?;
            let name = file.file_name().to_string_lossy().into_owned();
            if name != PROBLEM && !wanted.contains(&name) {
                fs::remove_file(file.path())?;
            }
        }
        Ok(())
    }

    /// Says why a file that is looked for is missing.
    fn explain(&self, problem: &str) -> io::Result<()> {
        fs::create_dir_all(&self.folder)?;
        let (new, place) = (self.folder.join("..new"), self.folder.join(PROBLEM));
        if fs::read(&place).is_ok_and(|old| old == problem.as_bytes()) {
            return Ok(());
        }
        fs::write(&new, problem)?;
        fs::rename(&new, &place)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn map(name: &str, data: &[(&str, &str)]) -> ConfigMap {
        let data = data
            .iter()
            .map(|(key, text)| ((*key).to_owned(), (*text).to_owned()));
        ConfigMap {
            metadata: kube::core::ObjectMeta {
                name: Some(name.to_owned()),
                ..Default::default()
            },
            data: Some(data.collect()),
            ..ConfigMap::default()
        }
    }

    fn mount(folder: PathBuf) -> Mount {
        Mount {
            folder,
            namespace: "own".into(),
            name: "echo-plugin".into(),
            maps: BTreeMap::new(),
            listed: None,
        }
    }

    fn files(folder: &Path) -> Vec<String> {
        let entries = fs::read_dir(folder).unwrap();
        let mut names: Vec<_> = entries
            .map(|entry| entry.unwrap().file_name().to_string_lossy().into_owned())
            .filter(|name| !name.starts_with(".."))
            .collect();
        names.sort();
        names
    }

    #[test]
    fn a_folder_follows_the_parts_of_a_plugin() {
        let root = tempfile::tempdir().unwrap();
        let folder = root.path().join("own/echo-plugin");
        let mut mount = mount(folder.clone());
        mount.take(Ok(Event::Init)).unwrap();
        let first = map(
            "echo-plugin",
            &[("echo.wasm.pack", "index"), ("echo.wasm.0", "a")],
        );
        mount.take(Ok(Event::InitApply(first))).unwrap();
        assert!(!folder.exists(), "the list is not complete");
        mount
            .take(Ok(Event::InitApply(map(
                "echo-plugin-1",
                &[("echo.wasm.1", "b")],
            ))))
            .unwrap();
        mount
            .take(Ok(Event::InitApply(map("other", &[("echo.wasm", "evil")]))))
            .unwrap();
        mount.take(Ok(Event::InitDone)).unwrap();
        assert_eq!(files(&folder), ["echo.wasm.0", "echo.wasm.1", "echo.wasm.pack"]);
        // A smaller version has one part.
        mount
            .take(Ok(Event::Apply(map("echo-plugin", &[("echo.wasm", "whole")]))))
            .unwrap();
        mount.take(Ok(Event::Delete(map("echo-plugin-1", &[])))).unwrap();
        assert_eq!(files(&folder), ["echo.wasm"]);
        assert_eq!(fs::read_to_string(folder.join("echo.wasm")).unwrap(), "whole");
        mount.take(Ok(Event::Delete(map("echo-plugin", &[])))).unwrap();
        assert!(files(&folder).is_empty());
        let problem = fs::read_to_string(folder.join(PROBLEM)).unwrap();
        assert!(problem.contains("own/echo-plugin does not exist"), "{problem}");
    }

    #[test]
    fn a_process_removes_what_others_left_and_no_more() {
        let parent = tempfile::tempdir().unwrap();
        let running = Root::create(parent.path(), "running").unwrap();
        fs::create_dir(parent.path().join("killed")).unwrap();
        let second = Root::create(parent.path(), "second").unwrap();
        assert_eq!(files(parent.path()), ["running", "second"]);
        drop((running, second));
        assert!(files(parent.path()).is_empty());
    }
}
