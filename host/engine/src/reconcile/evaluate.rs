//! One evaluation of a parent: calls the plugin, and calls it again with the objects that it needs, until its needs
//! settle. All callers use it: reconciles (`reconcile::call`), the proof of a new version
//! (`rollout::shadow`), `render` (`dry_run::offline`) and `diff` (`dry_run::server_side`).
//!
//! **Inputs.** The request without `related`; the [`RelatedObjects`] that the plugin asks to read; the needs with which an
//! earlier evaluation ended, if any; `call`, which makes one call with the caller's own spans, records and
//! randomness; and `remember`, which is called whenever the needs change. Deadlines and memory are limited by the
//! plugin's limits and the caller's.
//!
//! **Order.**
//! 1. The needs are read ([`needs::read_all`]). Known needs that can no longer be read are forgotten, since they may
//!    be from another version or another configuration: the first call is then made without them.
//! 2. The plugin is called.
//! 3. The needs in its answer are checked ([`needs::validate`]) and remembered.
//! 4. If the request contained all of them, the answer counts. Otherwise it is dropped, and the needs are read
//!    again.
//!
//! **Guarantees.** An answer counts only when the plugin saw all that it needs. All calls of an evaluation have the
//! same parent, children and clock. There is one call, and another each time that the plugin asks for other
//! objects, at most [`MAX_NEED_ROUNDS`] times. Needs are remembered before they are read, so that a change in
//! between enqueues its parent. One answer is held at a time. Nothing is written.
//!
//! **Errors.** An invalid need or a failed call. Needs that could not be read, or that made a request too large,
//! are forgotten, so that the next evaluation begins with none.

use kube::core::DynamicObject;
use serde_json::Value;
use thiserror::Error;

use super::needs::{self, MAX_NEED_ROUNDS, NeedError, RelatedObjects};
use crate::validation;
use operator_host_contract::{Export, Failure, Need, Request, Response};
use operator_host_core::object::{is_terminating, remove_nulls};
use operator_host_runtime::{Call, CallError, Class, Plugin, Share};

/// Why an evaluation failed.
#[derive(Debug, Error)]
pub enum EvaluateError {
    /// A need is refused or cannot be read, or the needs never settle.
    #[error(transparent)]
    Need(#[from] NeedError),
    /// A call failed, or the plugin returned an error.
    #[error(transparent)]
    Call(#[from] CallError),
}

/// Evaluates a parent, as described in the module. The returned share is the answer's part of the memory of all
/// calls and must be kept as long as the answer.
///
/// # Errors
/// As described in the module.
pub async fn evaluate<F>(
    subject: &Request,
    source: &impl RelatedObjects,
    known: Vec<Need>,
    call: impl Fn(Request) -> F,
    remember: impl Fn(&[Need]),
) -> Result<(Response, Option<Share>), EvaluateError>
where
    F: Future<Output = (Result<Response, CallError>, Option<Share>)>,
{
    let mut needs = known;
    for round in 0..=MAX_NEED_ROUNDS {
        let related = match needs::read_all(source, &subject.parent, &needs).await {
            Ok(related) => related,
            Err(error) => {
                remember(&[]);
                if round > 0 {
                    return Err(error.into());
                }
                needs.clear();
                Vec::new()
            }
        };
        let request = Request {
            related,
            ..subject.clone()
        };
        let (outcome, share) = call(request).await;
        let is_too_large = |error: &CallError| error.class() == Class::Request;
        if outcome.as_ref().is_err_and(is_too_large) {
            // Without those objects it may ask for less.
            remember(&[]);
        }
        let answer = without_nulls(outcome)?;
        needs::validate(&answer.needs)?;
        let settled = answer.needs.iter().all(|need| needs.contains(need));
        needs.clone_from(&answer.needs);
        remember(&needs);
        if settled {
            return Ok((answer, share));
        }
    }
    Err(NeedError::unsettled().into())
}

/// Removes what is null from the children and the status: it means absent.
fn without_nulls(mut outcome: Result<Response, CallError>) -> Result<Response, CallError> {
    let status = match &mut outcome {
        Ok(answer) => {
            let children = answer.children.iter_mut().filter_map(Value::as_object_mut);
            children.chain(&mut answer.parent).for_each(remove_nulls);
            &mut answer.status
        }
        Err(CallError::Failure(Failure::Invalid { status, .. } | Failure::Retry { status, .. })) => status,
        Err(_) => &mut None,
    };
    status.iter_mut().for_each(remove_nulls);
    outcome
}

/// Returns what to ask about a parent.
pub fn export_for(plugin: &Plugin, parent: &DynamicObject) -> Export {
    match plugin.description().finalizer && is_terminating(parent) {
        true => Export::Cleanup,
        false => Export::Reconcile,
    }
}

/// Evaluates a parent without any effect. Asks first whether the parent is valid, unless it is being deleted.
///
/// # Errors
/// As [`evaluate`].
pub async fn evaluate_dry(
    plugin: &Plugin,
    subject: &Request,
    source: &impl RelatedObjects,
    known: Vec<Need>,
) -> Result<(Response, Option<Share>), EvaluateError> {
    let export = export_for(plugin, &subject.parent);
    if export == Export::Reconcile {
        validation::check(plugin, &subject.parent).await?;
    }
    let call = |request: Request| async move {
        let Call { outcome, share, .. } = plugin.respond(request.asked_of(export)).await;
        (outcome, share)
    };
    evaluate(subject, source, known, call, |_| {}).await
}

#[cfg(test)]
mod tests;
