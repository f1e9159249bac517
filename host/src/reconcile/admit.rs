//! The plugin's decision about a resource before it is written.

use std::sync::Arc;

use kube::core::DynamicObject;

use super::call::call_for_admission;
use super::context::Context;
use super::error::ReconcileError;
use crate::object::NamespacedName;
use crate::plugin::CallError;
use crate::plugin::registry::Live;

/// The plugin's decision about a resource that is about to be written.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Admission {
    /// The plugin would reconcile it, now or later.
    Fine,
    /// The plugin calls it invalid, for this reason.
    Invalid(String),
}

/// Why there is no decision.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum NoAnswer {
    /// No version is loaded yet.
    #[error("the plugin is being loaded")]
    Loading,
    /// No version can be used.
    #[error("{0}")]
    Failed(String),
    /// The caches that the plugin needs are not filled yet.
    #[error("the first lists are not complete yet")]
    Starting,
    /// A watch that the plugin needs no longer works.
    #[error("{0}")]
    Watch(String),
    /// The resource is in the host's own namespace.
    #[error("{0}")]
    Namespace(String),
    /// Whether the host generated the Secrets cannot be verified.
    #[error("{0}")]
    Provenance(String),
    /// The call failed.
    #[error("{0}")]
    Call(String),
}

impl NoAnswer {
    /// Returns the reason without the plugin's output, for callers that may see only its decision.
    #[must_use]
    pub const fn public_message(&self) -> &'static str {
        match self {
            Self::Loading => "the plugin is being loaded",
            Self::Failed(_) => "no version of the plugin can be used: the host's log says why",
            Self::Starting => "the first lists are not complete yet",
            Self::Watch(_) => "a watch that the controller needs does not work: the host's log says why",
            Self::Namespace(_) => "resources in the host's own namespace are not reconciled",
            Self::Provenance(_) => "the key of generated Secrets cannot be read: the host's log says why",
            Self::Call(_) => "the plugin gave no answer: the host's log says why",
        }
    }
}

/// Asks the live version, with the children and needs from the caches. Writes and remembers nothing. `old` is the object
/// that would be replaced, in the same version.
///
/// # Errors
/// When there is no decision, and why.
pub async fn admit(
    context: &Context,
    mut object: DynamicObject,
    old: Option<DynamicObject>,
) -> Result<Admission, NoAnswer> {
    let plugin = match &*context.plugin.borrow() {
        Live::Plugin(plugin) => plugin.clone(),
        Live::Loading => return Err(NoAnswer::Loading),
        Live::Failed(failed) => return Err(NoAnswer::Failed(failed.why.to_string())),
    };
    if context.is_starting(&NamespacedName::of(&object)) {
        return Err(NoAnswer::Starting);
    }
    if let Some(failure) = context.watch_failure(&object) {
        return Err(NoAnswer::Watch(failure));
    }
    if context.is_in_host_namespace(&object) {
        return Err(NoAnswer::Namespace(context.host_namespace_error()));
    }
    let known = context.load_provenance_key(&object, None).await;
    known.map_err(|error| NoAnswer::Provenance(error.to_string()))?;
    crate::object::slim(&mut object);
    let old = old.map(|mut old| {
        crate::object::slim(&mut old);
        Arc::new(old)
    });
    match call_for_admission(context, &plugin, &Arc::new(object), old.as_ref()).await {
        // It waits for something that may still appear.
        Ok(_) | Err(ReconcileError::Call(CallError::Retry { .. })) => Ok(Admission::Fine),
        Err(ReconcileError::Call(CallError::Invalid { reason, message, .. })) => {
            Ok(Admission::Invalid(match reason {
                Some(reason) => format!("{reason}: {message}"),
                None => message,
            }))
        }
        Err(error) => Err(NoAnswer::Call(error.to_string())),
    }
}
