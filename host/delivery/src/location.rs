//! Where a controller's plugin comes from.

use std::fmt;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use crate::oci::reference::Reference;
use crate::oci::settings::Settings;

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
        settings: Arc<Settings>,
    },
}

impl Location {
    /// Returns the file, unless the plugin comes from a registry.
    #[must_use]
    pub fn file(&self) -> Option<&Path> {
        match self {
            Self::File(file) => Some(file),
            Self::Registry { .. } => None,
        }
    }

    /// Returns the name for messages: that of the file without its folder, or the reference.
    #[must_use]
    pub fn name(&self) -> String {
        match self {
            Self::File(file) => Path::new(file.file_name().unwrap_or(file.as_os_str()))
                .display()
                .to_string(),
            Self::Registry { .. } => self.to_string(),
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
        }
    }
}
