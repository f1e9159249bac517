//! Errors that abort a reconcile.

use std::sync::Arc;
use std::time::Duration;

use thiserror::Error;

use super::action::{Action, MIN_DELAY, OBSTRUCTED};
use super::evaluate::EvaluateError;
use super::needs::NeedError;
use super::proof_key::ProofKeyError;
use operator_host_cluster::api_error::ApiError;
use operator_host_cluster::refusal::is_missing_permission;
use operator_host_contract::Failure;
use operator_host_core::backoff::at_least;
use operator_host_core::object::{first_few, unreadable};
use operator_host_desired::conditions::{NO_PLUGIN, RETRYING, WATCH_FAILED};
use operator_host_desired::plan::{Cause, Refusal};
use operator_host_runtime::{CallError, Class};

/// Why a reconcile failed.
#[derive(Debug, Error)]
pub(super) enum ReconcileError {
    #[error("{0}")]
    NoPlugin(Arc<str>),
    #[error("{0}")]
    Watch(String),
    #[error("its namespace is being deleted")]
    NamespaceTerminating,
    #[error(transparent)]
    Call(#[from] CallError),
    #[error(transparent)]
    Need(NeedError),
    #[error("{0}")]
    Namespace(String),
    #[error("{}", unreadable("the resource"))]
    Unreadable,
    #[error(
        "it has the finalizer {0} of a controller with another name, so its children are left alone: if this controller was \
         renamed, hand the resource over as \"Rename a controller\" in the documentation says; otherwise stop the host that \
         runs the other controller"
    )]
    OtherController(String),
    #[error("{0}")]
    FieldsRefused(String),
    #[error("{manager:?} cannot give it fields that another manager has set: {error}")]
    Contested { manager: String, error: Box<ApiError> },
    #[error(transparent)]
    ProofKey(#[from] ProofKeyError),
    #[error("{}", join(.0))]
    Refused(Vec<Refusal>),
    #[error("{}", join(&lasting(.0)))]
    Api(Vec<ApiError>),
    #[error("the status from the plugin was not written: {0}")]
    Status(ApiError),
    #[error(
        "the plugin's answers did not settle within {calls} calls: each answer changed the children again. An answer \
         must not depend on what applying it changes, for example on the resourceVersion of another child"
    )]
    Unsettled { calls: usize },
}

/// What metrics and conditions say of an error.
pub(super) struct Told {
    /// The label of a metric.
    pub class: &'static str,
    /// The reason of a condition.
    pub reason: &'static str,
    /// Whether retrying alone is not expected to help.
    pub is_stalled: bool,
}

/// The result of a step of a reconcile.
pub(super) type Result<T, E = ReconcileError> = std::result::Result<T, E>;

/// Why the rest of an answer has no effect.
#[derive(Debug)]
pub(super) enum Stop {
    /// What it was planned for has changed: the plugin is asked again.
    Outdated,
    /// The parent was deleted or replaced, or its deletion has begun, which leads to another reconcile.
    ParentChanged,
    /// It cannot be realized.
    Error(ReconcileError),
}

impl<E: Into<ReconcileError>> From<E> for Stop {
    fn from(error: E) -> Self {
        Self::Error(error.into())
    }
}

fn join<E: std::fmt::Display>(errors: &[E]) -> String {
    first_few(errors, 10, "; ")
}

/// Returns the permanent errors, or all errors if none is permanent.
fn lasting(errors: &[ApiError]) -> Vec<&ApiError> {
    let only_passing = errors.iter().all(ApiError::is_passing);
    let lasting = errors.iter().filter(|error| only_passing || !error.is_passing());
    lasting.collect()
}

impl ReconcileError {
    /// Returns the error's class, for a label.
    pub(super) fn class(&self) -> &'static str {
        self.told().class
    }

    /// Returns what metrics and conditions say of it.
    pub(super) fn told(&self) -> Told {
        let (class, reason, is_stalled) = match self {
            Self::NoPlugin(_) => ("no_plugin", NO_PLUGIN, true),
            Self::Watch(_) | Self::Need(NeedError::Unreadable(_)) => ("watch", WATCH_FAILED, false),
            // `is_transient` filters it out.
            Self::NamespaceTerminating => ("namespace_terminating", "ApplyFailed", false),
            Self::Call(error) => {
                let class = error.class();
                let may_pass = matches!(class, Class::Retry | Class::Busy);
                (class.as_str(), fault(class), !may_pass)
            }
            Self::Need(NeedError::Refused(_)) => ("need", "NeedRefused", true),
            Self::Namespace(_) => ("namespace", "NamespaceRefused", true),
            Self::Unreadable => ("unreadable", "Unreadable", true),
            Self::OtherController(_) => ("other_controller", "OtherController", true),
            Self::FieldsRefused(_) => ("refused", "ParentFieldsRefused", true),
            Self::Contested { .. } => ("api", "Contested", true),
            Self::ProofKey(_) => ("proof_key", "ProvenanceUnknown", false),
            Self::Refused(_) if is_waiting_for_deletion(self) => ("refused", "WaitingForDeletion", false),
            Self::Refused(_) if self.has_lost_secret() => ("refused", "GeneratedSecretLost", true),
            Self::Refused(_) => ("refused", "ChildRefused", true),
            Self::Api(_) => ("api", "ApplyFailed", false),
            Self::Status(_) => ("status", "StatusRefused", true),
            Self::Unsettled { .. } => ("unsettled", "PluginUnsettled", true),
        };
        Told {
            class,
            reason,
            is_stalled,
        }
    }

    /// Reports whether the API server says that the host lacks a permission. What a plugin says about one is no proof.
    pub(super) fn is_missing_permission(&self) -> bool {
        let errors = match self {
            Self::Watch(refusal) => return is_missing_permission(refusal),
            Self::Api(errors) => errors.as_slice(),
            Self::Status(error) => std::slice::from_ref(error),
            _ => &[],
        };
        errors.iter().any(ApiError::is_missing_permission)
    }

    pub(super) fn has_lost_secret(&self) -> bool {
        matches!(self, Self::Refused(refusals) if refusals.iter().any(|it| it.cause == Cause::SecretLost))
    }

    /// Returns when to retry: not at all if only a change helps; when the plugin says; otherwise after the back-off, later if the
    /// API server asks for it, and soon if an object of others may be in the way.
    pub(super) fn next(&self) -> Action {
        let errors = match self {
            Self::NoPlugin(_) | Self::Namespace(_) | Self::Unreadable | Self::OtherController(_) => {
                return Action::OnChange;
            }
            Self::Call(CallError::Failure(Failure::Invalid { .. })) => return Action::OnChange,
            Self::Call(CallError::Failure(Failure::Retry {
                after_ms: Some(after),
                ..
            })) => {
                return Action::After(Duration::from_millis(*after).max(MIN_DELAY));
            }
            Self::Api(errors) => errors.as_slice(),
            Self::Contested { error, .. } => std::slice::from_ref(&**error),
            _ => &[],
        };
        let is_obstructed = match self {
            Self::Refused(refusals) => refusals.iter().any(Refusal::is_obstacle) && !self.has_lost_secret(),
            // Another object may have the name: the API server calls that a conflict, or an invalid UID.
            _ => errors
                .iter()
                .any(|error| error.is_conflict() || error.is_lost_race()),
        };
        let asked = errors.iter().filter_map(|error| error.retry_after).max();
        match asked {
            Some(asked) => Action::BackoffAtLeast(at_least(asked)),
            None if is_obstructed => Action::BackoffAtMost(OBSTRUCTED),
            None => Action::Backoff,
        }
    }
}

impl From<EvaluateError> for ReconcileError {
    fn from(error: EvaluateError) -> Self {
        match error {
            EvaluateError::Need(error) => Self::Need(error),
            EvaluateError::Call(error) => Self::Call(error),
        }
    }
}

impl From<ApiError> for ReconcileError {
    fn from(error: ApiError) -> Self {
        Self::Api(vec![error])
    }
}

/// Reports whether the only obstacle is children of an earlier parent of this name.
pub(super) fn is_waiting_for_deletion(error: &ReconcileError) -> bool {
    matches!(error, ReconcileError::Refused(refusals)
        if refusals.iter().all(|refusal| refusal.cause == Cause::Predecessor))
}

/// Returns the condition's reason for an error of the plugin.
const fn fault(class: Class) -> &'static str {
    match class {
        Class::Invalid => "InvalidSpec",
        Class::Retry => RETRYING,
        Class::Trap => "PluginTrapped",
        Class::Timeout => "PluginTimedOut",
        Class::Memory => "PluginOutOfMemory",
        Class::Request => "PluginRequestTooLarge",
        Class::Output => "PluginAnswerTooLarge",
        Class::Protocol => "PluginAnswerInvalid",
        Class::Busy => "HostBusy",
        Class::Host => "PluginNotCalled",
    }
}
