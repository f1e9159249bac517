//! ConfigMaps with plugins that the host reads through the API server: puts their content into a folder, as the kubelet does
//! with a mounted one, but at once. From there on they are files like all others.
//!
//! A watch of each namespace tells which plugin's ConfigMaps have changed, without their content. That is read for one plugin at a
//! time, so that a hundred of them take no more memory than one.

use std::collections::{BTreeMap, BTreeSet};
use std::fs::{self, File};
use std::io;
use std::path::PathBuf;
use std::pin::pin;
use std::time::Duration;

use futures::StreamExt as _;
use k8s_openapi::api::core::v1::ConfigMap;
use kube::api::ListParams;
use kube::core::PartialObjectMeta;
use kube::runtime::WatchStreamExt as _;
use kube::runtime::watcher::{self, Event, watcher};
use kube::{Api, Client, ResourceExt as _};
use tokio::sync::watch;
use tokio_util::task::AbortOnDropHandle;
use tracing::warn;

use operator_host_config::Config;
use operator_host_config::location::Location;
use operator_host_core::object::{PACK_LABEL, is_config_map_key};
use operator_host_delivery::changes::send_if_new;
use operator_host_delivery::reload;
use operator_host_delivery::source::PROBLEM;

/// The wait before ConfigMaps that could not be read are read again.
const RETRY: Duration = Duration::from_secs(5);

/// The ConfigMaps that controllers name, each followed while one does.
pub(super) struct ConfigMaps {
    client: Client,
    /// The host's own namespace.
    pub(super) home: String,
    root: RootFolder,
    /// By namespace.
    followed: BTreeMap<String, Followed>,
}

/// The names of the ConfigMaps, by folder: two controllers may name the same in other words.
type Wanted = BTreeMap<PathBuf, String>;

/// A namespace that is watched until this is dropped.
struct Followed {
    wanted: watch::Sender<Wanted>,
    _following: AbortOnDropHandle<()>,
}

/// The folder of this process, created when the first controller needs it: a host without such plugins needs no place to write.
/// It is locked while a process uses it, so that others recognize one that a killed process left behind.
pub(super) struct RootFolder {
    parent: PathBuf,
    identity: String,
    lock: Option<File>,
}

impl RootFolder {
    pub(super) const fn new(parent: PathBuf, identity: String) -> Self {
        Self {
            parent,
            identity,
            lock: None,
        }
    }

    pub(super) fn path(&self) -> PathBuf {
        self.parent.join(&self.identity)
    }

    /// Creates the folder, and removes those of processes that have ended.
    fn create(&mut self) -> io::Result<()> {
        if self.lock.is_some() {
            return Ok(());
        }
        fs::create_dir_all(&self.parent)?;
        // No other process may take a new folder, which is not locked yet, for one that was left behind.
        let alone = File::open(&self.parent)?;
        alone.lock()?;
        for other in fs::read_dir(&self.parent)? {
            let other = other?.path();
            let is_left = File::open(&other).is_ok_and(|folder| folder.try_lock().is_ok());
            if is_left && let Err(error) = fs::remove_dir_all(&other) {
                warn!(folder = %other.display(), %error, "cannot remove what an earlier process left behind");
            }
        }
        fs::create_dir_all(self.path())?;
        let lock = File::open(self.path())?;
        lock.try_lock()?;
        self.lock = Some(lock);
        Ok(())
    }
}

impl Drop for RootFolder {
    fn drop(&mut self) {
        if self.lock.is_some() {
            // What remains, the next process removes.
            let _ = fs::remove_dir_all(self.path());
        }
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

    /// Follows the ConfigMaps of this configuration, and no others. An error says why their plugins cannot be stored, and what to do.
    pub(super) fn keep(&mut self, config: &Config) -> Result<(), String> {
        let mut wanted = BTreeMap::<String, Wanted>::new();
        for controller in &config.controllers {
            if let Location::ConfigMap(key) = &controller.plugin {
                let namespace = key.namespace.as_ref().unwrap_or(&self.home).clone();
                let folder = self.root.path().join(key.folder());
                let names = wanted.entry(namespace).or_default();
                names.insert(folder, key.name.clone());
            }
        }
        self.followed
            .retain(|namespace, _| wanted.contains_key(namespace));
        if wanted.is_empty() {
            return Ok(());
        }
        self.root.create().map_err(|error| {
            format!(
                "the host cannot create its folder {} for plugins in ConfigMaps: {error}; set --cache-dir to a folder that the host \
                 may write, and start it again",
                self.root.path().display()
            )
        })?;
        for (namespace, wanted) in wanted {
            if let Some(followed) = self.followed.get(&namespace) {
                send_if_new(&followed.wanted, wanted);
                continue;
            }
            let (sender, receiver) = watch::channel(wanted);
            let following = follow(self.client.clone(), namespace.clone(), receiver);
            let followed = Followed {
                wanted: sender,
                _following: AbortOnDropHandle::new(tokio::spawn(following)),
            };
            self.followed.insert(namespace, followed);
        }
        Ok(())
    }
}

/// Keeps the folders of plugins like their ConfigMaps in a namespace. Ends with the sender.
async fn follow(client: Client, namespace: String, mut wanted: watch::Receiver<Wanted>) {
    let metadata = Api::<PartialObjectMeta<ConfigMap>>::namespaced(client.clone(), &namespace);
    let api = Api::<ConfigMap>::namespaced(client, &namespace);
    let config = watcher::Config::default().labels(PACK_LABEL);
    let mut events = pin!(watcher(metadata, config).default_backoff());
    let mut known = wanted.borrow_and_update().clone();
    // The names of those to read, again and again while that fails.
    let mut outdated = BTreeSet::new();
    loop {
        tokio::select! {
            Some(event) = events.next() => match event {
                Ok(Event::Init | Event::InitApply(_)) => {}
                Ok(Event::InitDone) => outdated.extend(known.values().cloned()),
                Ok(Event::Apply(map) | Event::Delete(map)) => {
                    outdated.extend(map.labels().get(PACK_LABEL).cloned());
                }
                Err(error) => change(&namespace, &known, move |mount| mount.fail(&error)).await,
            },
            changed = wanted.changed() => {
                if changed.is_err() {
                    return;
                }
                let before = std::mem::replace(&mut known, wanted.borrow_and_update().clone());
                let new = known.iter().filter(|(folder, _)| !before.contains_key(*folder));
                outdated.extend(new.map(|(_, name)| name.clone()));
            }
            () = tokio::time::sleep(RETRY), if !outdated.is_empty() => {}
        }
        for name in std::mem::take(&mut outdated) {
            let folders: Wanted = known.clone().into_iter().filter(|(_, of)| *of == name).collect();
            if folders.is_empty() {
                continue;
            }
            let parts = ListParams::default().labels(&format!("{PACK_LABEL}={name}"));
            match api.list(&parts).await {
                Ok(maps) => change(&namespace, &folders, move |mount| mount.take(&maps.items)).await,
                Err(error) => {
                    change(&namespace, &folders, move |mount| mount.fail(&error)).await;
                    outdated.insert(name);
                }
            }
        }
    }
}

/// Changes folders on a thread that may block.
async fn change(
    namespace: &str,
    folders: &Wanted,
    change: impl Fn(&Mount) -> io::Result<()> + Send + 'static,
) {
    let (namespace, folders) = (namespace.to_owned(), folders.clone());
    let changed = tokio::task::spawn_blocking(move || {
        for (folder, name) in folders {
            let mount = Mount {
                folder,
                namespace: namespace.clone(),
                name,
            };
            if let Err(error) = change(&mount) {
                warn!(folder = %mount.folder.display(), %error, "cannot write the files of a ConfigMap");
            }
            reload::changed(&mount.folder);
        }
    });
    // It panics only when the process ends.
    let _ = changed.await;
}

/// The folder of one plugin's ConfigMaps.
struct Mount {
    folder: PathBuf,
    namespace: String,
    name: String,
}

impl Mount {
    /// Writes the files of all ConfigMaps of the plugin, and removes others.
    fn take(&self, maps: &[ConfigMap]) -> io::Result<()> {
        let mut files = BTreeMap::<&str, &[u8]>::new();
        let parts = |map: &&ConfigMap| self.is_part(map.metadata.name.as_deref().unwrap_or_default());
        for map in maps.iter().filter(parts) {
            let texts = map.data.iter().flatten();
            files.extend(texts.map(|(key, text)| (key.as_str(), text.as_bytes())));
            let bytes = map.binary_data.iter().flatten();
            files.extend(bytes.map(|(key, bytes)| (key.as_str(), &bytes.0[..])));
        }
        files.retain(|key, _| is_config_map_key(key));
        // They become visible together: otherwise it would look as if parts were missing.
        let hidden = self.hidden();
        fs::create_dir_all(&hidden)?;
        for (key, content) in &files {
            let is_same = fs::read(self.folder.join(key)).is_ok_and(|old| old == *content);
            if !is_same {
                fs::write(hidden.join(key), content)?;
            }
        }
        if self.folder.is_dir() {
            for file in fs::read_dir(&hidden)? {
                let file = file?;
                fs::rename(file.path(), self.folder.join(file.file_name()))?;
            }
        } else {
            fs::rename(&hidden, &self.folder)?;
        }
        for file in fs::read_dir(&self.folder)? {
            let file = file?;
            let name = file.file_name();
            let name = name.to_string_lossy();
            if name != PROBLEM && !files.contains_key(&*name) {
                fs::remove_file(file.path())?;
            }
        }
        self.explain(&format!(
            "the ConfigMap {}/{} does not exist, has another key, or lacks the label {PACK_LABEL}={}: apply what `operator-host \
             pack` prints",
            self.namespace, self.name, self.name
        ))
    }

    /// Says why the ConfigMaps cannot be read. The files in the folder stay.
    fn fail(&self, error: &dyn std::fmt::Display) -> io::Result<()> {
        self.explain(&format!(
            "cannot read the ConfigMap {}/{}: {error}; `operator-host rbac` prints the permissions that the host needs",
            self.namespace, self.name
        ))
    }

    /// Whether a ConfigMap is the plugin's, or one of its further parts, by the names that `pack` gives them.
    fn is_part(&self, name: &str) -> bool {
        let rest = name.strip_prefix(&self.name);
        let number = rest.and_then(|rest| rest.strip_prefix('-'));
        rest == Some("")
            || number.is_some_and(|number| !number.is_empty() && number.bytes().all(|b| b.is_ascii_digit()))
    }

    /// Where files are written before they are moved to their place.
    fn hidden(&self) -> PathBuf {
        let mut name = self.folder.file_name().unwrap_or_default().to_owned();
        name.push("..new");
        self.folder.with_file_name(name)
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
    use std::path::Path;

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
        let mount = mount(folder.clone());
        let first = map(
            "echo-plugin",
            &[("echo.wasm.pack", "index"), ("echo.wasm.0", "a")],
        );
        let second = map("echo-plugin-1", &[("echo.wasm.1", "b")]);
        let foreign = map("other", &[("echo.wasm", "evil")]);
        mount.take(&[first.clone(), second, foreign]).unwrap();
        assert_eq!(files(&folder), ["echo.wasm.0", "echo.wasm.1", "echo.wasm.pack"]);
        // A part that is the same stays, and another one takes its place.
        let other = map("echo-plugin-1", &[("echo.wasm.1", "c")]);
        mount.take(&[first, other]).unwrap();
        assert_eq!(fs::read_to_string(folder.join("echo.wasm.1")).unwrap(), "c");
        assert_eq!(fs::read_to_string(folder.join("echo.wasm.0")).unwrap(), "a");
        // A smaller version has one part.
        mount
            .take(&[map("echo-plugin", &[("echo.wasm", "whole")])])
            .unwrap();
        assert_eq!(files(&folder), ["echo.wasm"]);
        assert_eq!(fs::read_to_string(folder.join("echo.wasm")).unwrap(), "whole");
        mount.fail(&"forbidden").unwrap();
        assert_eq!(files(&folder), ["echo.wasm"], "what is there stays");
        mount.take(&[]).unwrap();
        assert!(files(&folder).is_empty());
        let problem = fs::read_to_string(folder.join(PROBLEM)).unwrap();
        assert!(problem.contains("own/echo-plugin does not exist"), "{problem}");
    }

    #[test]
    fn a_process_removes_what_others_left_and_no_more() {
        let parent = tempfile::tempdir().unwrap();
        let create = |identity: &str| {
            let mut root = RootFolder::new(parent.path().to_owned(), identity.to_owned());
            root.create().unwrap();
            root
        };
        let running = create("running");
        fs::create_dir(parent.path().join("killed")).unwrap();
        let second = create("second");
        assert_eq!(files(parent.path()), ["running", "second"]);
        drop((running, second));
        assert!(files(parent.path()).is_empty());
    }
}
