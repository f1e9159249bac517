//! Drops the files of live versions from memory: they are needed again only when the live version changes.

use std::io;

use bytes::Bytes;

use super::{PluginFile, Slot};
use operator_host_core::sync::lock;

impl Slot {
    /// Drops a file from memory if it is among the kept versions.
    pub(super) async fn release(&self, file: &PluginFile) {
        let Some(versions) = self.versions.clone() else {
            return;
        };
        let digest = file.digest;
        let kept = tokio::task::spawn_blocking(move || versions.has(&digest)).await;
        // When the process is shutting down, the file stays in memory.
        if kept.unwrap_or(false) {
            *lock(&file.bytes) = None;
        }
    }

    /// Returns the bytes of a file, which are in memory from then on.
    pub(super) async fn bytes_of(&self, file: &PluginFile) -> io::Result<Bytes> {
        let known = lock(&file.bytes).clone();
        let (None, Some(versions)) = (&known, self.versions.clone()) else {
            return known.ok_or_else(|| io::Error::other("no versions are kept"));
        };
        let (digest, limit) = (file.digest.to_string(), self.expected.limits.module);
        let read = tokio::task::spawn_blocking(move || versions.read_bytes(&digest, limit));
        let bytes = read.await.map_err(io::Error::other)?.map_err(io::Error::other)?;
        *lock(&file.bytes) = Some(bytes.clone());
        Ok(bytes)
    }
}
