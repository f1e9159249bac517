//! Drops the files of live versions from memory: they are needed again only when the live version changes.

use super::Slot;
use operator_host_runtime::{Digest, PluginBytes};

impl Slot {
    /// Drops a file from memory if it is among the kept versions. It is read again from there.
    pub(super) async fn release(&self, file: &PluginBytes, digest: Digest) {
        let Some(versions) = self.versions.clone() else {
            return;
        };
        let (limit, file) = (self.expected.limits.module, file.clone());
        let released = tokio::task::spawn_blocking(move || {
            if versions.has(&digest) {
                let read = move || versions.read_bytes(&digest.to_string(), limit);
                file.release(digest, move || read().map_err(std::io::Error::other));
            }
        });
        // When the process is shutting down, the file stays in memory.
        let _ = released.await;
    }
}
