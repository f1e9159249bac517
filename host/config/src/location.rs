//! Where a controller's plugin comes from.

use std::fmt;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use super::reference::Reference;
use super::registry::RegistryConfig;

/// Where a controller's plugin comes from.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Location {
    /// A file, which may be packed.
    File(PathBuf),
    /// An artifact in a registry.
    Registry {
        /// Its name.
        reference: Reference,
        /// How the registry is asked.
        settings: Arc<RegistryConfig>,
    },
    /// A key of a ConfigMap, which the host reads through the API server.
    ConfigMap(ConfigMapKey),
}

/// A key of a ConfigMap, in any packed form.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct ConfigMapKey {
    /// The namespace; `None` is the host's own.
    pub namespace: Option<String>,
    /// The ConfigMap. Further ones may hold the other parts of a packed plugin.
    pub name: String,
    /// The plugin's file name, such as `echo.wasm`.
    pub key: String,
}

impl ConfigMapKey {
    /// Returns where the host puts the files of this ConfigMap, relative to the folder of all of them.
    pub fn folder(&self) -> PathBuf {
        // No namespace has such a name.
        Path::new(self.namespace.as_deref().unwrap_or("_own")).join(&self.name)
    }
}

impl fmt::Display for ConfigMapKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("ConfigMap ")?;
        if let Some(namespace) = &self.namespace {
            write!(f, "{namespace}/")?;
        }
        write!(f, "{} ({})", self.name, self.key)
    }
}

impl Location {
    /// Returns the file, unless the plugin comes from a registry or through the API server.
    pub fn file(&self) -> Option<&Path> {
        match self {
            Self::File(file) => Some(file),
            Self::Registry { .. } | Self::ConfigMap(_) => None,
        }
    }

    /// Returns the name for messages: that of the file without its folder, or the reference.
    pub fn name(&self) -> String {
        match self {
            Self::File(file) => Path::new(file.file_name().unwrap_or(file.as_os_str()))
                .display()
                .to_string(),
            Self::Registry { .. } | Self::ConfigMap(_) => self.to_string(),
        }
    }
}

impl From<PathBuf> for Location {
    fn from(file: PathBuf) -> Self {
        Self::File(file)
    }
}

impl fmt::Display for Location {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::File(file) => file.display().fmt(f),
            Self::Registry { reference, .. } => reference.fmt(f),
            Self::ConfigMap(key) => key.fmt(f),
        }
    }
}
