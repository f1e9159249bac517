//! What a slot knows and reports about the registry that its plugin comes from.

use bytes::Bytes;
use jiff::Timestamp;
use tracing::info;

use super::Slot;
use operator_host_core::digest::Digest;

impl Slot {
    /// Reports that the registry does not give the plugin. Nothing else changes: the live version stays, and so does a
    /// candidate. The registry has a part in the words, and without a live version they reach every object: the caller
    /// reports one problem once.
    pub(crate) fn registry_failed(&self, reason: &str) {
        self.report.send_modify(|report| {
            let registry = report.registry.get_or_insert_default();
            registry.problem = Some(reason.to_owned());
            registry.problem_since = Some(Timestamp::now());
        });
        let location = &self.expected.location;
        let message = format!("the plugin {} cannot be pulled: {reason}", location.name());
        self.metrics.reloaded("refused");
        self.complain(message.into(), Some(location), None, "the live version stays");
    }

    /// Reports that the registry answered, and the manifest that it named.
    pub(crate) fn registry_answered(&self, manifest: Option<Digest>) {
        let mut failed = false;
        self.report.send_modify(|report| {
            let registry = report.registry.get_or_insert_default();
            registry.manifest = manifest.map(|manifest| manifest.to_string());
            registry.checked = Some(Timestamp::now());
            registry.problem_since = None;
            failed = registry.problem.take().is_some();
        });
        if failed {
            let (controller, file) = (&self.expected.controller, &self.expected.location);
            info!(controller, %file, "the registry gives the plugin again");
        }
    }

    /// Returns a version's file, if it is among the kept versions, so that it need not be pulled.
    pub(crate) async fn stored(&self, digest: Digest) -> Option<Bytes> {
        let versions = self.versions.clone()?;
        let limit = self.expected.limits.module;
        let read = tokio::task::spawn_blocking(move || versions.read_bytes(&digest.to_string(), limit).ok());
        read.await.ok()?
    }

    /// Whether no version can be called.
    pub(crate) fn is_without_plugin(&self) -> bool {
        self.live_version().is_none()
    }
}
