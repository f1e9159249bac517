//! Drops the files of live versions from memory: they are needed again only when the compiled code is damaged or the live
//! version changes.

use std::io;
use std::sync::Arc;

use bytes::Bytes;

use super::{Expected, Slot};
use crate::Location;
use crate::kept::Versions;
use crate::source::read_now;
use operator_host_runtime::{Digest, Plugin, PluginBytes};

impl Slot {
    /// Drops the file of a plugin from memory; see [`Slot::release`].
    pub(super) async fn release_file_of(&self, plugin: &Plugin) {
        if let Some(file) = plugin.file() {
            self.release(&file, *plugin.digest()).await;
        }
    }

    /// Drops a file from memory if it is among the kept versions. It is read again from there, or from the plugin's own
    /// file if the kept one is lost.
    pub(super) async fn release(&self, file: &PluginBytes, digest: Digest) {
        let Some(versions) = self.versions.clone() else {
            return;
        };
        let Expected { location, limits, .. } = &self.expected;
        let (location, limit, file) = (location.clone(), limits.module, file.clone());
        let released = tokio::task::spawn_blocking(move || {
            if versions.has(&digest) {
                file.release(digest, move || read_again(&versions, &location, digest, limit));
            }
        });
        // When the process is shutting down, the file stays in memory.
        let _ = released.await;
    }
}

fn read_again(
    versions: &Arc<Versions>,
    location: &Location,
    digest: Digest,
    limit: usize,
) -> io::Result<Bytes> {
    let kept = match versions.read_bytes(&digest.to_string(), limit) {
        Ok(bytes) => return Ok(bytes),
        Err(error) => error,
    };
    let Location::File(path) = location else {
        return Err(io::Error::other(kept));
    };
    match read_now(path, limit) {
        Ok(content) if content.digest == digest => Ok(content.bytes),
        Ok(_) => Err(io::Error::other(format!(
            "{kept}, and {location} is another version"
        ))),
        Err(reason) => Err(io::Error::other(format!(
            "{kept}, and {location} cannot be read: {reason}"
        ))),
    }
}
