//! Calls that depend only on a plugin: conversions and defaults.
//!
//! Reads of the kind fail while nothing converts it, so a conversion needs neither caches, which need conversions
//! themselves, nor a leader.

use std::sync::Arc;

use serde_json::value::RawValue;
use tokio::sync::{Semaphore, SemaphorePermit, watch};

use super::bounds::Bounds;
use super::review::Review;
use super::{Decision, NoDecision, TURNS, defaulting, memory_of};
use crate::config::ControllerConfig;
use crate::conversion;
use crate::plugin::Plugin;
use crate::plugin::contract::Kind;
use crate::plugin::registry::Live;

/// Calls the plugin of one controller while it is held, whatever the state of the controller.
pub struct PluginTarget {
    config: Arc<ControllerConfig>,
    plugin: watch::Receiver<Live>,
    turns: Semaphore,
}

impl PluginTarget {
    pub(super) fn new(config: &Arc<ControllerConfig>, plugin: watch::Receiver<Live>) -> Self {
        Self {
            config: Arc::clone(config),
            plugin,
            turns: Semaphore::new(TURNS),
        }
    }

    pub(super) fn controller(&self) -> &str {
        &self.config.name
    }

    /// Reports whether it reconciles this kind, in any version.
    pub(super) fn is_for(&self, kind: &Kind) -> bool {
        self.config.parent.is_version_of(kind)
    }

    /// Converts objects to a version, each in its place.
    ///
    /// # Errors
    /// Why the plugin cannot be used, or which object cannot be converted and why.
    pub(super) async fn convert(&self, to: &str, objects: &[&RawValue]) -> Result<Vec<String>, NoDecision> {
        let _turn = self.turn().await?;
        let plugin = self.plugin().await?;
        conversion::convert(&plugin, to, objects)
            .await
            .map_err(|error| NoDecision {
                public: error.public_message(),
                detail: error.to_string(),
            })
    }

    /// Sets the defaults of an object.
    ///
    /// # Errors
    /// Why the plugin gives no answer.
    pub(super) async fn default(
        &self,
        review: &Review<'_>,
        object: &str,
        bounds: &Bounds,
    ) -> Result<Decision, NoDecision> {
        let memory = memory_of([Some(object), None])?;
        let _turn = self.turn().await?;
        let _room = bounds.object(memory).await;
        defaulting::default(&self.plugin().await?, review, object).await
    }

    async fn turn(&self) -> Result<SemaphorePermit<'_>, NoDecision> {
        let stopping = |_| NoDecision::new("the host is stopping");
        self.turns.acquire().await.map_err(stopping)
    }

    /// Returns the live version; waits while it is being loaded.
    async fn plugin(&self) -> Result<Plugin, NoDecision> {
        let mut plugin = self.plugin.clone();
        let live = plugin.wait_for(|live| !matches!(live, Live::Loading)).await;
        match live.as_deref() {
            Ok(Live::Plugin(plugin)) => Ok(plugin.clone()),
            Ok(Live::Failed(why)) => Err(NoDecision {
                public: "no version of the plugin can be used: the host's log says why".to_owned(),
                detail: why.to_string(),
            }),
            Ok(Live::Loading) | Err(_) => Err(NoDecision::new("the host is stopping")),
        }
    }
}
