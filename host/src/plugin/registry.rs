//! Which version of a plugin is live. A pass takes one and keeps it to its end, whatever is reloaded meanwhile.

use std::path::PathBuf;
use std::sync::Arc;
use std::time::Instant;

use bytes::Bytes;
use thiserror::Error;
use tokio::sync::watch;
use tracing::{error, info, warn};

use super::contract::Kind;
use super::{Digest, Limits, LoadError, Made, Plugin, Runtime};
use crate::metrics::ControllerMetrics;
use crate::trace::Tracer;

/// What a controller calls.
#[derive(Clone)]
pub enum Live {
    /// The plugin is not loaded yet.
    Loading,
    /// This version answers.
    Plugin(Plugin),
    /// There is no version that could answer; the text says why and what to do.
    Failed(Arc<str>),
}

/// What a plugin must be to be a controller's.
#[derive(Clone, Debug, PartialEq)]
pub struct Expected {
    /// The controller's name.
    pub controller: String,
    /// The kind that the plugin must reconcile.
    pub parent: Kind,
    /// The plugin's file.
    pub file: PathBuf,
    /// The caps on the file and on each call.
    pub limits: Limits,
}

/// The contents of a file that could become the live version.
#[derive(Clone)]
pub struct Candidate {
    /// The file's contents.
    pub bytes: Bytes,
    /// Their digest.
    pub digest: Digest,
    /// When it was noticed that there is something new.
    pub noticed: Instant,
}

/// Why a candidate does not become live.
#[derive(Debug, Error)]
enum Refused {
    #[error(transparent)]
    Load(#[from] LoadError),
    #[error(
        "it reconciles {found}, but the controller {controller:?} is for {expected}: configure the plugin that belongs to it"
    )]
    OtherKind {
        controller: String,
        found: Kind,
        expected: Kind,
    },
}

/// The place of one controller's plugin. Only what is loaded and is the controller's gets in, and nothing takes
/// out what is live but the next version.
pub struct Slot {
    runtime: Runtime,
    expected: Expected,
    metrics: ControllerMetrics,
    tracer: Tracer,
    live: Arc<watch::Sender<Live>>,
    trouble: Arc<watch::Sender<Option<Arc<str>>>>,
}

impl Slot {
    /// An empty place, and what the controller reads of it.
    #[must_use]
    pub fn new(
        runtime: Runtime,
        expected: Expected,
        metrics: ControllerMetrics,
    ) -> (Self, watch::Receiver<Live>) {
        let (live, receiver) = watch::channel(Live::Loading);
        let slot = Self {
            runtime,
            expected,
            metrics,
            tracer: Tracer::default(),
            live: Arc::new(live),
            trouble: Arc::default(),
        };
        (slot, receiver)
    }

    /// The same place under other expectations: what is live in it stays until something else meets them.
    #[must_use]
    pub fn expecting(&self, expected: Expected) -> Self {
        Self {
            runtime: self.runtime.clone(),
            expected,
            metrics: self.metrics.clone(),
            tracer: self.tracer.clone(),
            live: Arc::clone(&self.live),
            trouble: Arc::clone(&self.trouble),
        }
    }

    /// The same, with a span for each reload.
    #[must_use]
    pub fn traced(self, tracer: Tracer) -> Self {
        Self { tracer, ..self }
    }

    /// What is expected of its plugin.
    #[must_use]
    pub fn expected(&self) -> &Expected {
        &self.expected
    }

    /// What is wrong with the file while an earlier version of it is live.
    #[must_use]
    pub fn trouble(&self) -> watch::Receiver<Option<Arc<str>>> {
        self.trouble.subscribe()
    }

    /// Loads a candidate and makes it live. One that cannot be loaded or is not this controller's changes nothing.
    pub async fn offer(&self, candidate: Candidate) {
        let before = self.digest();
        if before == Some(candidate.digest) && self.limits() == Some(self.expected.limits) {
            self.trouble.send_replace(None);
            info!(controller = self.expected.controller, file = %self.expected.file.display(),
                digest = %candidate.digest, "the plugin's file holds the live version again");
            return;
        }
        let span = self.tracer.root("reload", None);
        span.set("operator.controller", self.expected.controller.clone());
        span.set("plugin.digest", candidate.digest.to_string());
        match span.around(self.load(candidate.bytes)).await {
            Ok(plugin) => {
                info!(
                    controller = self.expected.controller,
                    plugin = plugin.description().name,
                    version = plugin.description().version,
                    digest = %plugin.digest(),
                    before = before.map(tracing::field::display),
                    form = plugin.form().as_str(),
                    bytes = plugin.size(),
                    compiled = plugin.made() == Made::Compiled,
                    compile_ms = millis(plugin.compile_time()),
                    reload_ms = millis(candidate.noticed.elapsed()),
                    "plugin loaded"
                );
                span.set("plugin.name", plugin.description().name.clone());
                span.set("plugin.version", plugin.description().version.clone());
                self.tracer.reloaded(&self.expected.controller, &span);
                self.metrics.plugin_live(&plugin);
                self.metrics.reloaded("loaded");
                self.trouble.send_replace(None);
                self.live.send_replace(Live::Plugin(plugin));
            }
            Err(reason) => {
                let reason = reason.to_string();
                span.fail("refused", &reason, "");
                span.around(async { self.fail(&reason, Some(candidate.digest)) })
                    .await;
            }
        }
    }

    /// Says what is wrong with the file. What is live stays.
    pub fn fail(&self, reason: &str, digest: Option<Digest>) {
        let Expected { controller, file, .. } = &self.expected;
        let name = file.file_name().map_or_else(|| file.clone(), PathBuf::from);
        let message = format!("the plugin {} cannot be used: {reason}", name.display());
        let digest = digest.map(tracing::field::display);
        self.metrics.reloaded("refused");
        match self.digest() {
            Some(live) => {
                warn!(controller, file = %file.display(), digest, %live, "{message}; the version before stays live");
                self.trouble.send_replace(Some(message.into()));
            }
            None => {
                error!(controller, file = %file.display(), digest, "{message}");
                self.live.send_replace(Live::Failed(message.into()));
            }
        }
    }

    /// The live version's.
    fn digest(&self) -> Option<Digest> {
        match &*self.live.borrow() {
            Live::Plugin(plugin) => Some(*plugin.digest()),
            Live::Loading | Live::Failed(_) => None,
        }
    }

    /// Those that the live version was loaded with.
    fn limits(&self) -> Option<Limits> {
        match &*self.live.borrow() {
            Live::Plugin(plugin) => Some(*plugin.limits()),
            Live::Loading | Live::Failed(_) => None,
        }
    }

    async fn load(&self, bytes: Bytes) -> Result<Plugin, Refused> {
        let Expected {
            controller,
            parent,
            limits,
            ..
        } = &self.expected;
        let plugin = self.runtime.load(bytes, *limits).await?;
        let found = &plugin.description().parent;
        if found != parent {
            return Err(Refused::OtherKind {
                controller: controller.clone(),
                found: found.clone(),
                expected: parent.clone(),
            });
        }
        Ok(plugin)
    }
}

fn millis(duration: std::time::Duration) -> u64 {
    u64::try_from(duration.as_millis()).unwrap_or(u64::MAX)
}
