//! What a slot knows and reports about the registry that its plugin comes from.

use bytes::Bytes;
use jiff::Timestamp;
use tracing::{error, info, warn};

use super::{Expected, Slot};
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
        let Expected {
            controller, location, ..
        } = &self.expected;
        let message = format!("the plugin {} cannot be pulled: {reason}", location.name());
        self.metrics.reloaded("refused");
        match self.digest() {
            Some(live) => {
                warn!(controller, file = %location, %live, "{message}; the live version stays");
            }
            None => {
                self.has_no_live_version(message.as_str().into());
                error!(controller, file = %location, "{message}");
            }
        }
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
            let Expected {
                controller, location, ..
            } = &self.expected;
            info!(controller, file = %location, "the registry gives the plugin again");
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
