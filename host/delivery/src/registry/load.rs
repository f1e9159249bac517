//! Loads a plugin file's contents as a version that a controller may call.

use thiserror::Error;
use tracing::field::Empty;
use tracing::{info_span, record_all};

use super::held::Waiting;
use super::plugin_file::ReadError;
use super::{Expected, PluginFile, Slot};
use crate::Problem;
use crate::acceptance::{self, Signed};
use crate::report::KeptVersion;
use operator_host_contract::Kind;
use operator_host_core::sync::lock;
use operator_host_runtime::{LoadError, Part, Plugin};
use operator_host_telemetry::trace;

/// The reason why a candidate is refused.
#[derive(Debug, Error)]
pub(super) enum Refused {
    #[error(transparent)]
    Untrusted(#[from] Problem),
    #[error(transparent)]
    Load(#[from] LoadError),
    #[error("its file cannot be read again: {0}")]
    Read(#[from] ReadError),
    #[error(
        "it reconciles {found}, but the controller {controller:?} reconciles {expected}: configure the plugin for that kind"
    )]
    OtherKind {
        controller: String,
        found: Kind,
        expected: Kind,
    },
    #[error(
        "it has a cleanup, which needs a finalizer on each {0}, and a controller that decorates sets none: build it without \
         `cleanup` and without an order of deletion; owner references remove the children"
    )]
    Finalizer(Kind),
}

impl Refused {
    pub(super) const fn is_of_other_kind(&self) -> bool {
        matches!(self, Self::OtherKind { .. })
    }

    /// Whether the file has changed before its turn came, so that there is nothing to say about it.
    pub(super) const fn is_outdated(&self) -> bool {
        matches!(self, Self::Read(ReadError::Changed))
    }

    /// Whether the host is the cause, so that the same file may be loaded later.
    pub(super) fn is_of_host(&self) -> bool {
        matches!(self, Self::Load(error) if error.part() == Part::Host) || matches!(self, Self::Read(_))
    }
}

impl Slot {
    /// Returns the plugin in a file. Loads it unless it is loaded already.
    pub(super) async fn loaded(&self, file: &PluginFile) -> Result<Plugin, Refused> {
        let signed = self.trusts(file)?;
        if let Some(waiting) = &*lock(&self.waiting)
            && *waiting.plugin.digest() == file.digest
            && *waiting.plugin.limits() == self.expected.limits
        {
            return is_as_signed(waiting.plugin.clone(), signed.as_ref());
        }
        self.forget_waiting();
        let span = self.tracer.root(None, || {
            info_span!(
                target: trace::TARGET,
                parent: None,
                "reload",
                operator.controller = self.expected.controller,
                plugin.digest = %file.digest,
                plugin.name = Empty,
                plugin.version = Empty,
            )
        });
        let loaded = trace::around(&span, self.load(file)).await;
        match loaded.and_then(|plugin| is_as_signed(plugin, signed.as_ref())) {
            Ok(plugin) => {
                let description = plugin.description();
                record_all!(
                    span,
                    plugin.name = description.name,
                    plugin.version = description.version
                );
                self.tracer.reloaded(&self.expected.controller, &span);
                *lock(&self.waiting) = Some(Waiting {
                    plugin: plugin.clone(),
                    tries: 0,
                    reported: None,
                });
                Ok(plugin)
            }
            Err(refused) => {
                trace::fail(&span, "refused", &refused.to_string(), "");
                Err(refused)
            }
        }
    }

    pub(crate) fn trusts(&self, file: &PluginFile) -> Result<Option<Signed>, Problem> {
        let Expected { trust, parent, .. } = &self.expected;
        acceptance::check(trust, file.digest, parent, file.signature.as_deref())
    }

    /// Loads a version that was live before, and returns it with its file.
    pub(super) async fn kept(&self, kept: &KeptVersion) -> Result<(Plugin, PluginFile), Refused> {
        let versions = self.versions.clone();
        let versions = versions.ok_or_else(|| {
            Problem::from("this host stores no plugin versions: set --state-dir or --cache-dir")
        })?;
        let (wanted, limit) = (kept.clone(), self.expected.limits.module);
        let turn = self.tenant.acquire(1).await;
        let read = tokio::task::spawn_blocking(move || {
            let content = versions.read(&wanted, limit)?;
            Ok::<_, Problem>(PluginFile::kept(versions, content))
        });
        let file = read.await.map_err(|error| Problem(error.to_string()))??;
        drop(turn);
        // The trusted keys may have changed since this version was live.
        let signed = self.trusts(&file)?;
        let plugin = is_as_signed(self.load(&file).await?, signed.as_ref())?;
        Ok((plugin, file))
    }

    async fn load(&self, file: &PluginFile) -> Result<Plugin, Refused> {
        let (parent, limits) = (&self.expected.parent, self.expected.limits);
        let read = async { file.read().await.map_err(Refused::Read) };
        let load = self
            .runtime
            .load_in_turn(file.digest, file.size, &self.tenant, read, limits);
        let plugin: Plugin = load.await?;
        let description = plugin.description();
        let is_one_more = self.expected.decorates && description.also.contains(parent);
        if description.parent != *parent && !is_one_more {
            return Err(Refused::OtherKind {
                controller: self.expected.controller.clone(),
                found: description.parent.clone(),
                expected: parent.clone(),
            });
        }
        if self.expected.decorates && description.finalizer {
            return Err(Refused::Finalizer(parent.clone()));
        }
        Ok(plugin)
    }
}

/// Returns the plugin if its description agrees with the signed statement.
fn is_as_signed(plugin: Plugin, signed: Option<&Signed>) -> Result<Plugin, Refused> {
    if let Some(signed) = signed {
        signed.describes(plugin.description())?;
    }
    Ok(plugin)
}
