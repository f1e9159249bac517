//! Handles a failed reconcile: the parent's condition, the log and the next attempt.

use std::time::Duration;

use kube::ResourceExt;
use kube::core::DynamicObject;
use tokio::time::Instant;
use tracing::{debug, warn};

use super::action::Action;
use super::brakes;
use super::cleanup_deadline::time_left;
use super::context::Context;
use super::error::{ReconcileError, Result, is_waiting_for_deletion};
use super::going::without_advice;
use super::run::Run;
use super::status;
use operator_host_cluster::api_error::{ApiError, Fault};
use operator_host_contract::{EventType, Failure};
use operator_host_core::digest::hash_of;
use operator_host_core::object::is_terminating;
use operator_host_core::text::shorten;
use operator_host_desired::conditions::{Reason, StatusUpdate, Verdict, conditions_of, current};
use operator_host_runtime::CallError;

/// Reports why a reconcile failed, and returns when to try again.
pub(super) async fn fail(run: &Run<'_>, parent: &DynamicObject, error: &ReconcileError) -> Action {
    run.context
        .observer
        .fails(run.name, error.class(), error, run.span);
    note(run, error);
    if is_transient(run, parent, error) {
        debug!("{error}");
        count_failure(run);
        return match error.next() {
            // Retry early enough to write the first condition in time.
            Action::Backoff | Action::BackoffAtMost(_) if is_unreported(run.context, parent) => {
                Action::BackoffAtMost(FIRST_GRACE / 2)
            }
            next => next,
        };
    }
    let Some(parent) = run.context.caches.as_seen(parent) else {
        // A new parent of the same name, if any, is enqueued separately.
        return Action::OnChange;
    };
    let (verdict, next) = (judge(run, &parent, error), error.next());
    let may_pass = may_pass(run);
    if let Verdict::Stalled(reason) | Verdict::Reconciling(reason) = &verdict
        && !may_pass
    {
        log_once(run, &reason.message);
    }
    if let ReconcileError::Call(CallError::Trap { backtrace, .. }) = error
        && !backtrace.is_empty()
    {
        let backtrace = shorten(backtrace, MAX_LINE);
        debug!("the plugin's backtrace, innermost first:\n{backtrace}");
    }
    let failure = match error {
        ReconcileError::Call(error) => error.failure(),
        _ => None,
    };
    // Without the plugin's conditions: their changes are no reason to repeat the Event.
    let of_host = StatusUpdate::of_host(&verdict);
    let update = StatusUpdate {
        fields: failure.and_then(Failure::status),
        added: failure.map_or(&[], Failure::conditions),
        ..of_host
    };
    // Waiting does not deserve a Warning.
    let is_retry = matches!(failure, Some(Failure::Retry { .. }));
    let waits = may_pass || is_retry || is_waiting_for_deletion(error);
    if matches!(next, Action::OnChange) {
        brakes::forget_conflicts(run);
    } else {
        count_failure(run);
    }
    let before = current(&parent);
    let (wanted, _) = status::desired(run, &parent, before, &of_host);
    let is_news = wanted.get("conditions") != before.get("conditions");
    if let Verdict::Stalled(reason) | Verdict::Reconciling(reason) = &verdict
        && !waits
        && is_news
        && is_unpublished(run, &parent, reason)
    {
        run.context
            .publish(&parent, EventType::Warning, &reason.reason, &reason.message);
    }
    let mut written = status::write(run, &parent, &update, None).await;
    // The API server may refuse the plugin's status and conditions. The failure must be reported all the same.
    if let Err(refused) = &written
        && (update.fields.is_some() || !update.added.is_empty())
        && refused.is_invalid()
    {
        let what = "the status that the plugin gave with its failure was not written";
        log_once(run, &format!("{what}: {refused}"));
        written = status::write(run, &parent, &of_host, None).await;
    }
    match written {
        Ok(_) => next,
        Err(error) => {
            if matches!(next, Action::OnChange) {
                count_failure(run);
            }
            status_not_written(run, &parent, error)
        }
    }
}

/// Whether a failure was not published yet. The conditions alone do not tell it for a kind that has none.
fn is_unpublished(run: &Run<'_>, parent: &DynamicObject, reason: &Reason) -> bool {
    let of = (&parent.metadata.uid, parent.metadata.generation);
    let failure = Some(hash_of((of, &reason.reason, &reason.message)));
    run.memory(|memory| std::mem::replace(&mut memory.failure.last_published, failure) != failure)
}

/// Reports that the status could not be written, and returns when to try again. The caller counts the failure.
pub(super) fn status_not_written(run: &Run<'_>, parent: &DynamicObject, error: ApiError) -> Action {
    let error = ReconcileError::from(error);
    run.context.observer.fails(run.name, "status", &error, run.span);
    note(run, &error);
    // The failure itself is logged, with what can be done in such a namespace.
    let is_lost = run.context.caches.is_namespace_terminating(parent) && error.is_missing_permission();
    // Of a new parent too: the status cannot say it earlier, and an API server that starts refuses it for many at once.
    if is_lost || is_transient_within(run, parent, &error, GRACE) {
        debug!("{error}");
    } else {
        log_once(run, &error);
    }
    error.next()
}

/// How long an overload of the API server is tolerated before the status reports it.
const GRACE: Duration = Duration::from_secs(60);
/// The same for a parent without any condition: its user does not know whether anything happens at all.
pub(super) const FIRST_GRACE: Duration = Duration::from_secs(2);

/// Reports whether the host has written no condition of a parent yet, although it could.
pub(super) fn is_unreported(context: &Context, parent: &DynamicObject) -> bool {
    context.cluster.served.parent.has_status && conditions_of(current(parent)).next().is_none()
}

/// Returns what the API server answered.
fn answers(error: &ReconcileError) -> &[ApiError] {
    match error {
        ReconcileError::Api(errors) => errors,
        _ => &[],
    }
}

/// Notes since when a parent has had only transient failures. They must not hide a permanent one.
pub(super) fn note(run: &Run<'_>, error: &ReconcileError) {
    let errors = answers(error);
    let passes = !errors.is_empty() && errors.iter().all(ApiError::is_passing);
    run.memory(|memory| {
        memory.failure.transient_since =
            passes.then(|| memory.failure.transient_since.unwrap_or_else(Instant::now));
    });
}

/// Reports whether a failure, which was noted, is transient or not caused by the parent, so that the status does not show
/// it.
pub(super) fn is_transient(run: &Run<'_>, parent: &DynamicObject, error: &ReconcileError) -> bool {
    let grace = if is_unreported(run.context, parent) {
        FIRST_GRACE
    } else {
        GRACE
    };
    is_transient_within(run, parent, error, grace)
}

fn is_transient_within(
    run: &Run<'_>,
    parent: &DynamicObject,
    error: &ReconcileError,
    grace: Duration,
) -> bool {
    let errors = answers(error);
    if matches!(error, ReconcileError::NamespaceTerminating) {
        return true;
    }
    // The parent is deleted with its namespace, unless its cleanup needs an object that cannot be created.
    if run.name.namespace.is_some()
        && !is_terminating(parent)
        && errors.iter().any(ApiError::is_namespace_terminating)
    {
        return true;
    }
    // A race that is lost for a whole minute has another cause than a race.
    let since = run.memory(|memory| memory.failure.transient_since);
    let cannot_be_told = || {
        let mut faults = errors.iter().map(|error| error.fault);
        faults.any(|fault| matches!(fault, Fault::Unreachable | Fault::Deposed))
    };
    since.is_some_and(|since| since.elapsed() < grace || cannot_be_told())
}

/// Reports whether the last failure may be transient. Only the condition of a new parent reports such a failure.
fn may_pass(run: &Run<'_>) -> bool {
    let since = run.memory(|memory| memory.failure.transient_since);
    since.is_some_and(|since| since.elapsed() < GRACE)
}

/// Tells internal errors that the API server repeats word for word from an outage. If it is one, the status cannot be
/// written, either.
pub(super) fn mark_repeated<T>(run: &Run<'_>, result: &mut Result<T>) {
    let errors = match result {
        Err(ReconcileError::Api(errors)) => errors.as_mut_slice(),
        _ => &mut [],
    };
    let hash = |error: &ApiError| hash_of(error.to_string());
    let internal = errors.iter().filter(|error| error.is_internal());
    let internal = internal.map(hash).collect();
    let before = run.memory(|memory| std::mem::replace(&mut memory.failure.internal_errors, internal));
    for error in errors {
        if error.is_internal() && before.contains(&hash(error)) {
            error.fault = Fault::Repeated;
        }
    }
}

/// Maximum size of an error in the log, in bytes: a plugin may choose its text.
const MAX_LINE: usize = 4096;

/// Logs a parent's error once, however often it is retried. Returns whether it is new.
pub(super) fn log_once(run: &Run<'_>, error: &dyn std::fmt::Display) -> bool {
    let text = shorten(&error.to_string(), MAX_LINE);
    let now = Some(text.clone());
    let before = run.memory(|memory| std::mem::replace(&mut memory.failure.last_logged, now));
    let is_new = before.as_ref() != Some(&text);
    match is_new {
        true => warn!("{text}"),
        false => debug!("{text}"),
    }
    is_new
}

pub(super) fn count_failure(run: &Run<'_>) {
    run.memory(|memory| {
        memory.failure.count = memory.failure.count.saturating_add(1);
    });
}

/// Returns why a parent that is being deleted stays, and what can be done about it.
fn deletion_blocked(run: &Run<'_>, parent: &DynamicObject, error: &ReconcileError) -> String {
    let finalizer = run.context.config.finalizer();
    if time_left(run, parent) == Some(Duration::ZERO) {
        return format!(
            "its time is over (`finalizer.releaseAfter`), but it cannot be released, so the finalizer {finalizer} stays: \
             {error}"
        );
    }
    if answers(error).iter().any(ApiError::is_namespace_terminating) {
        let namespace = parent.namespace().unwrap_or_default();
        return format!(
            "the deletion waits for the plugin's cleanup, which must create an object in the namespace {namespace:?}, \
             but that namespace is being deleted: {error}; change the plugin to do without the object (the request \
             contains `namespaceTerminating`), set `finalizer.releaseAfter`, or remove the finalizer {finalizer}"
        );
    }
    if run.context.caches.is_namespace_terminating(parent) && error.is_missing_permission() {
        return format!(
            "its namespace is being deleted, and took along the RoleBinding that lets the host remove the finalizer \
             {finalizer}: {}; apply the ClusterRole and its binding that `operator-host rbac` prints, or remove the \
             finalizer yourself",
            without_advice(error)
        );
    }
    format!("the deletion waits for the plugin's cleanup, so the finalizer {finalizer} stays: {error}")
}

/// Determines the condition after a failure.
fn judge(run: &Run<'_>, parent: &DynamicObject, error: &ReconcileError) -> Verdict {
    let message = match error {
        ReconcileError::OtherController(_) => error.to_string(),
        _ if is_terminating(parent) => deletion_blocked(run, parent, error),
        // The plugin's own message.
        ReconcileError::Call(CallError::Failure(failure)) => failure.message().to_owned(),
        error => error.to_string(),
    };
    let told = error.told();
    let reason = match error {
        ReconcileError::Call(CallError::Failure(Failure::Invalid {
            reason: Some(own), ..
        })) => own.as_str(),
        _ => told.reason,
    };
    let reason = Reason::new(reason, message);
    match told.is_stalled {
        true => Verdict::Stalled(reason),
        false => Verdict::Reconciling(reason),
    }
}
