//! Follows a plugin in a registry: looks at a tag every so often, and pulls what it names when that has changed.
//!
//! What is pulled goes the way of a new file. A registry that does not answer, or answers with something else, changes
//! nothing: the live version continues, and so does a candidate that was pulled before.

use std::path::PathBuf;
use std::sync::Arc;
use std::time::{Duration, Instant};

use bytes::Bytes;
use tokio::sync::watch;
use tracing::{debug, info_span};

use super::registry::{PluginFile, Slot};
use crate::acceptance;
use crate::oci::error::RegistryError;
use crate::oci::pull::{Found, Puller};
use crate::oci::transport::Transports;
use operator_host_config::reference::Reference;
use operator_host_config::registry::RegistryConfig;
use operator_host_core::backoff;
use operator_host_core::backoff::BackoffConfig;
use operator_host_core::digest::Digest;
use operator_host_runtime::fair::Member;
use operator_host_telemetry::trace;

/// The delay before a registry that failed is asked again. It doubles up to the longest, or to a shorter interval.
const FIRST_RETRY: Duration = Duration::from_secs(1);
const LONGEST_RETRY: Duration = Duration::from_secs(300);
/// How long a problem is reported before another one takes its place.
const REPORT_INTERVAL: Duration = Duration::from_secs(60);
/// The part of the interval by which looks are spread.
const JITTER: f64 = 0.2;

/// A plugin that was pulled.
struct Pulled {
    found: Found,
    file: PluginFile,
}

/// Whether a problem must be reported. Without a live version its words are written into every object, and a registry can
/// send other words with each answer.
fn is_news(reported: Option<&(String, Instant)>, problem: &str, now: Instant) -> bool {
    reported.is_none_or(|(known, since)| {
        known != problem && now.saturating_duration_since(*since) >= REPORT_INTERVAL
    })
}

/// The state of following one artifact.
pub(super) struct Follower {
    pub(super) slot: Arc<Slot>,
    pub(super) reference: Reference,
    pub(super) settings: Arc<RegistryConfig>,
    pub(super) transports: Arc<Transports>,
    /// With whom it takes turns to pull.
    pub(super) turns: Arc<Member>,
    /// Where the files are that were pulled.
    pub(super) folder: PathBuf,
    /// Where to put what was pulled.
    pub(super) contents: watch::Sender<Option<PluginFile>>,
}

impl Follower {
    /// Follows the artifact. Never returns.
    pub(super) async fn run(self) {
        let mut puller = Puller::new(
            self.reference.clone(),
            Arc::clone(&self.settings),
            Arc::clone(&self.transports),
            self.slot.expected().limits.module,
        );
        let mut pulled: Option<Pulled> = None;
        let mut failures = 0;
        let mut reported: Option<(String, Instant)> = None;
        // The layer may use up its whole time limit; then the signatures must be asked for.
        let limit = self.settings.timeout.saturating_mul(2);
        loop {
            let span = self.slot.tracer.root(None, || {
                info_span!(
                    target: trace::TARGET,
                    parent: None,
                    "pull",
                    operator.controller = self.slot.expected().controller,
                )
            });
            let look = trace::around(&span, self.look(&mut puller, pulled.as_ref()));
            let looked = match tokio::time::timeout(limit, look).await {
                Ok(looked) => looked,
                Err(_) => Err(RegistryError::slow(&self.reference.registry, limit)),
            };
            let wait = match looked {
                Ok(new) => {
                    let is_new = new.is_some();
                    pulled = new.or(pulled);
                    self.reached(pulled.as_ref(), is_new, failures > 0);
                    failures = 0;
                    reported = None;
                    let is_final = self.reference.tag().is_none() && self.is_accepted(pulled.as_ref());
                    if is_final {
                        // A digest never changes.
                        return std::future::pending().await;
                    }
                    backoff::jittered(self.settings.interval, JITTER)
                }
                Err(error) => {
                    let (text, now) = (error.to_string(), Instant::now());
                    trace::fail(&span, "pull", &text, "");
                    failures += 1;
                    if is_news(reported.as_ref(), &text, now) {
                        self.slot.registry_failed(&text);
                        reported = Some((text, now));
                    } else {
                        let controller = &self.slot.expected().controller;
                        debug!(controller, "the plugin cannot be pulled: {text}");
                    }
                    retry_delay(self.settings.interval, failures, error.wait())
                }
            };
            drop(span);
            tokio::time::sleep(wait).await;
        }
    }

    /// Looks once; returns what is new. That may be a signature that was pushed after the plugin.
    async fn look(
        &self,
        puller: &mut Puller,
        pulled: Option<&Pulled>,
    ) -> Result<Option<Pulled>, RegistryError> {
        let known = pulled.map(|pulled| pulled.found.manifest);
        let found = match (puller.find(known).await?, pulled) {
            (Some(found), _) => found,
            (None, Some(pulled)) if !self.is_accepted(Some(pulled)) => pulled.found.clone(),
            (None, _) => return Ok(None),
        };
        // Pull the small signature first: if it failed after the plugin was pulled, the next look would pull the plugin
        // again.
        let signature = self.signature(puller, &found).await?;
        let digest = found.layer.digest;
        if let Some(Pulled { file, .. }) = pulled.filter(|pulled| pulled.file.digest == digest) {
            if known == Some(found.manifest) && file.signature == signature {
                return Ok(None);
            }
            let file = file.signed(signature);
            return Ok(Some(Pulled { found, file }));
        }
        let turn = self.turns.acquire(1).await;
        let bytes = match self.slot.stored(digest).await {
            Some(bytes) => bytes,
            None => puller.fetch(&found).await?,
        };
        let folder = self.folder.clone();
        let file = move || PluginFile::pulled(&folder, bytes, digest, signature);
        let file = tokio::task::spawn_blocking(file).await;
        let file = file.map_err(|error| error.to_string())?;
        drop(turn);
        Ok(Some(Pulled { found, file }))
    }

    /// Reads the signature: the first that is accepted, otherwise the first, so that the reason is reported.
    async fn signature(&self, puller: &mut Puller, found: &Found) -> Result<Option<Bytes>, RegistryError> {
        let expected = self.slot.expected();
        if expected.trust.keys.is_none() {
            return Ok(None);
        }
        let accepts = |signature: &[u8]| {
            let trust = &expected.trust;
            acceptance::check(trust, found.layer.digest, &expected.parent, Some(signature)).is_ok()
        };
        let signatures = puller.signatures(found, accepts).await?;
        // The search ends with the first that is accepted.
        let accepted = signatures.last().filter(|signature| accepts(signature));
        Ok(accepted.or(signatures.first()).cloned())
    }

    fn is_accepted(&self, pulled: Option<&Pulled>) -> bool {
        pulled.is_some_and(|pulled| self.slot.trusts(&pulled.file).is_ok())
    }

    fn reached(&self, pulled: Option<&Pulled>, is_new: bool, again: bool) {
        let manifest: Option<Digest> = pulled.map(|pulled| pulled.found.manifest);
        self.slot.registry_answered(manifest);
        // Without a live version, the last message is about the registry: decide about the plugin again.
        if is_new || again && self.slot.is_without_plugin() {
            self.contents
                .send_replace(pulled.map(|pulled| pulled.file.clone()));
        }
    }
}

/// Returns how long to wait after this many failures. A registry that has too many requests says how long, but not for
/// ever.
fn retry_delay(interval: Duration, failures: u32, asked: Option<Duration>) -> Duration {
    let delays = BackoffConfig {
        initial: FIRST_RETRY,
        max: LONGEST_RETRY.min(interval),
    };
    let asked = asked.unwrap_or_default().min(LONGEST_RETRY);
    backoff::delay(&delays, failures).max(asked)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_registry_that_changes_its_words_is_reported_once_a_minute() {
        let start = Instant::now();
        let after = |seconds| start + Duration::from_secs(seconds);
        let reported = Some(("away".to_owned(), start));
        assert!(is_news(None, "away", start));
        assert!(!is_news(reported.as_ref(), "away", after(3600)));
        assert!(!is_news(reported.as_ref(), "status", after(59)));
        assert!(is_news(reported.as_ref(), "status", after(60)));
    }

    #[test]
    fn a_registry_gets_the_time_that_it_asks_for_but_not_for_ever() {
        let minute = Duration::from_secs(60);
        let delay = |asked: Option<u64>| retry_delay(minute, 1, asked.map(Duration::from_secs));
        assert!(delay(None) <= FIRST_RETRY);
        assert_eq!(delay(Some(90)), Duration::from_secs(90));
        assert_eq!(delay(Some(86_400)), LONGEST_RETRY);
        assert!(retry_delay(minute, 100, None) <= minute);
    }
}
