//! Why a pass did not come to its end, and what that means for the parent.

use std::sync::Arc;
use std::time::Duration;

use kube::core::DynamicObject;
use thiserror::Error;
use tokio::time::Instant;
use tracing::{debug, warn};

use super::context::Context;
use super::evaluate::EvaluateError;
use super::needs::NeedError;
use super::provenance::ProvenanceError;
use super::status::{self, Reason, Said, Verdict};
use super::{MAX_ROUNDS, MIN_DELAY, Next, as_seen, leaving, now};
use crate::cluster::resource_client::{ApiError, Fault};
use crate::desired::plan::Refusal;
use crate::object::{ObjectName, is_terminating, shorten};
use crate::plugin::contract::EventType;
use crate::plugin::{CallError, Class};
use crate::work_queue::backoff::jittered;

/// Why a pass did not come to its end.
#[derive(Debug, Error)]
pub(super) enum PassError {
    #[error("{0}")]
    NoPlugin(Arc<str>),
    #[error("{0}")]
    Watch(String),
    #[error("its namespace is being deleted")]
    NamespaceGoing,
    #[error(transparent)]
    Call(CallError),
    #[error(transparent)]
    Need(NeedError),
    #[error("{0}")]
    Namespace(String),
    #[error(transparent)]
    Provenance(#[from] ProvenanceError),
    #[error("{}", join(.0))]
    Refused(Vec<Refusal>),
    #[error("{}", join(.0))]
    Api(Vec<ApiError>),
    #[error("the API server does not take the status that the plugin gave: {0}")]
    Status(ApiError),
    #[error(
        "the plugin wanted something else {MAX_ROUNDS} times in a row, each time after it was done; what it asks for must \
         not change by being done, such as one child that copies the resource version of another"
    )]
    Unsettled,
}

/// The first few in full, the others by number: a condition's message has its limit.
fn join<E: std::fmt::Display>(errors: &[E]) -> String {
    const SHOWN: usize = 10;
    let mut texts: Vec<_> = errors.iter().take(SHOWN).map(ToString::to_string).collect();
    if errors.len() > SHOWN {
        texts.push(format!("and {} more", errors.len() - SHOWN));
    }
    texts.join("; ")
}

impl PassError {
    /// One word, for a label.
    pub(super) const fn class(&self) -> &'static str {
        match self {
            Self::NoPlugin(_) => "no_plugin",
            Self::Watch(_) | Self::Need(NeedError::Unreadable { .. }) => "watch",
            Self::NamespaceGoing => "namespace_going",
            Self::Call(error) => error.class().as_str(),
            Self::Need(_) => "need",
            Self::Namespace(_) => "namespace",
            Self::Provenance(_) => "provenance",
            Self::Refused(_) => "refused",
            Self::Api(_) => "api",
            Self::Status(_) => "status",
            Self::Unsettled => "unsettled",
        }
    }
}

impl PassError {
    /// When to try again: as the back-off says, but when the API server wants to be asked again.
    pub(super) fn backoff(&self) -> Next {
        let errors = match self {
            Self::Api(errors) => errors.as_slice(),
            Self::Status(error) => std::slice::from_ref(error),
            _ => &[],
        };
        let asked = errors.iter().filter_map(|error| error.retry_after).max();
        asked.map_or(Next::Backoff, |asked| {
            let asked = asked.min(LAST_RETRY_AFTER);
            Next::BackoffAtLeast(asked + jittered(asked / 2, 1.0))
        })
    }
}

impl From<EvaluateError> for PassError {
    fn from(error: EvaluateError) -> Self {
        match error {
            EvaluateError::Need(error) => Self::Need(error),
            EvaluateError::Call(error) => Self::Call(error),
        }
    }
}

impl From<ApiError> for PassError {
    fn from(error: ApiError) -> Self {
        Self::Api(vec![error])
    }
}

pub(super) async fn fail(context: &Context, parent: &DynamicObject, error: &PassError) -> Next {
    let name = &ObjectName::of(parent);
    if is_passing(context, parent, error) {
        debug!("{error}");
        count_failure(context, name);
        return error.backoff();
    }
    let Some(parent) = as_seen(context, parent) else {
        // The parent that has its name now, if any, has a mark of its own in the queue.
        return Next::OnChange;
    };
    let (verdict, next) = judge(context, &parent, error);
    if let Verdict::Stalled(reason) | Verdict::Reconciling(reason) = &verdict {
        say(context, name, &reason.message);
    }
    if let PassError::Call(CallError::Trap { backtrace, .. }) = error
        && !backtrace.is_empty()
    {
        debug!(
            "the plugin's backtrace, innermost first:\n{}",
            shorten(backtrace, MAX_LINE)
        );
    }
    let desired = status::desired(&parent, None, None, &verdict, now());
    let news = match &verdict {
        Verdict::Stalled(reason) | Verdict::Reconciling(reason) => Some(reason),
        Verdict::Reconciled | Verdict::CleaningUp(_) | Verdict::Paused => None,
    };
    // Waiting is no fault that deserves a Warning.
    let waits = matches!(error, PassError::Call(CallError::Retry { .. })) || is_waiting_for_deletion(error);
    if let Some(reason) =
        news.filter(|_| !waits && desired.get("conditions") != parent.data["status"].get("conditions"))
    {
        context.publish(&parent, EventType::Warning, &reason.reason, &reason.message);
    }
    if !matches!(next, Next::OnChange) {
        count_failure(context, name);
    }
    let said = Said {
        fields: None,
        conditions: None,
        verdict: &verdict,
    };
    match status::write(context, &parent, &said).await {
        Ok(_) => next,
        Err(error) => {
            context.observer.metrics.failed("status");
            debug!("{error}");
            Next::Backoff
        }
    }
}

/// For how long a parent is tried again in silence while the API server has no time for it.
const GRACE: Duration = Duration::from_secs(60);
/// The longest that the API server is left alone because it asks for it.
const LAST_RETRY_AFTER: Duration = Duration::from_secs(60);

/// Whether a failure says nothing about the parent, so that its status shall not speak of it.
pub(super) fn is_passing(context: &Context, parent: &DynamicObject, error: &PassError) -> bool {
    let name = &ObjectName::of(parent);
    let errors = match error {
        PassError::NamespaceGoing => return true,
        PassError::Api(errors) => errors,
        _ => {
            context.memory_of(name, |memory| memory.bad_weather = None);
            return false;
        }
    };
    // A pass that lost a race is simply run again on what is there now.
    let bad_weather = context.memory_of(name, |memory| {
        let is_bad = errors.iter().any(ApiError::is_weather);
        memory.bad_weather = is_bad.then(|| memory.bad_weather.unwrap_or_else(Instant::now));
        memory.bad_weather.is_some_and(|since| since.elapsed() < GRACE)
    });
    errors.iter().all(ApiError::is_lost_race)
        // The parent goes with its namespace, unless it is the cleanup that needs what cannot be made.
        || (name.namespace.is_some()
            && !is_terminating(parent)
            && errors.iter().any(ApiError::is_namespace_going))
        || errors
            .iter()
            .any(|error| matches!(error.fault, Fault::Unreachable | Fault::Deposed))
        || bad_weather
}

/// How much of an error goes into the log, in bytes: a plugin may choose its text.
const MAX_LINE: usize = 4096;

/// Says in the log what is wrong with a parent: once, however often it is tried again.
pub(super) fn say(context: &Context, name: &ObjectName, error: &dyn std::fmt::Display) {
    let text = shorten(&error.to_string(), MAX_LINE);
    let news = context.memory_of(name, |memory| {
        let news = memory.said.as_ref() != Some(&text);
        memory.said = Some(text.clone());
        news
    });
    if news {
        warn!("{text}");
    } else {
        debug!("{text}");
    }
}

pub(super) fn count_failure(context: &Context, name: &ObjectName) {
    context.memory_of(name, |memory| memory.failures = memory.failures.saturating_add(1));
}

/// What a failure means for the parent: the condition, and when to try again.
fn judge(context: &Context, parent: &DynamicObject, error: &PassError) -> (Verdict, Next) {
    let message = match error {
        _ if is_terminating(parent) => leaving::blocked(context, parent, error),
        // The plugin's own words.
        PassError::Call(CallError::Invalid { message, .. } | CallError::Retry { message, .. }) => {
            message.clone()
        }
        error => error.to_string(),
    };
    let stalled = |reason: &str| Verdict::Stalled(Reason::new(reason, message.clone()));
    let reconciling = |reason: &str| Verdict::Reconciling(Reason::new(reason, message.clone()));
    match error {
        PassError::Call(CallError::Invalid { reason, .. }) => (
            stalled(reason.as_deref().unwrap_or("InvalidSpec")),
            Next::OnChange,
        ),
        PassError::Call(CallError::Retry { after, .. }) => {
            let verdict = reconciling("Retrying");
            let next = after.map_or(Next::Backoff, |delay| Next::After(delay.max(MIN_DELAY)));
            (verdict, next)
        }
        PassError::Call(CallError::Busy { .. }) => (reconciling("HostBusy"), Next::Backoff),
        PassError::Call(error) => (stalled(fault(error.class())), Next::Backoff),
        PassError::Need(NeedError::Unreadable { .. }) => (reconciling("WatchFailed"), Next::Backoff),
        PassError::Need(_) => (stalled("NeedRefused"), Next::Backoff),
        PassError::Namespace(_) => (stalled("NamespaceRefused"), Next::OnChange),
        PassError::Provenance(_) => (reconciling("ProvenanceUnknown"), Next::Backoff),
        PassError::Refused(_) if is_waiting_for_deletion(error) => {
            (reconciling("WaitingForDeletion"), Next::Backoff)
        }
        PassError::Refused(_) => (stalled("ChildRefused"), Next::Backoff),
        PassError::NoPlugin(_) => (stalled("PluginNotLoaded"), Next::OnChange),
        PassError::Watch(_) => (reconciling("WatchFailed"), Next::Backoff),
        PassError::NamespaceGoing => (reconciling("NamespaceGoing"), Next::Backoff),
        PassError::Api(_) => (reconciling("ApplyFailed"), error.backoff()),
        PassError::Status(_) => (stalled("StatusRefused"), Next::Backoff),
        PassError::Unsettled => (stalled("PluginUnsettled"), Next::Backoff),
    }
}

/// Whether nothing stands in the way but children of a parent that had this name before.
pub(super) fn is_waiting_for_deletion(error: &PassError) -> bool {
    matches!(error, PassError::Refused(refusals)
        if refusals.iter().all(|refusal| matches!(refusal, Refusal::OfPredecessor { .. })))
}

/// The condition's reason for a fault of the plugin.
const fn fault(class: Class) -> &'static str {
    match class {
        Class::Invalid => "InvalidSpec",
        Class::Retry => "Retrying",
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
