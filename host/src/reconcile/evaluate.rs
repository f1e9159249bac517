//! One evaluation of a parent: the plugin is called, and called again with the objects that it needs, until its needs
//! settle. All who ask a plugin what it wants do it here: a pass and the webhook (`reconcile::ask`), the proof of a new
//! version (`proving::shadow`), `render` (`author::pass`) and `diff` (`preview`).
//!
//! **Inputs.** The [`Subject`]; the [`Source`] of what the plugin asks to read; the needs that an earlier evaluation
//! ended with, or none; `call`, which makes one call in the caller's own way (its spans, its records, what is drawn);
//! and `remember`, which is told of the needs as they change. Deadlines and memory are the plugin's limits and the
//! caller's.
//!
//! **Order.**
//! 1. The needs are read ([`needs::answer`]). Known ones that cannot be read any more are forgotten, since they may be
//!    another version's, or of another configuration: the first call goes without.
//! 2. The plugin is called.
//! 3. The needs in its answer are checked ([`needs::admit`]) and remembered.
//! 4. When the request held all of them, the answer counts. Otherwise it is dropped, and the needs are read again.
//!
//! **Guarantees.** An answer counts only when the plugin saw all that it needs. All calls of an evaluation have the
//! same parent, children and clock; there is one, and one more each time that the plugin asks for other objects, which
//! it may do [`MAX_ITERATIONS`] times. Needs are remembered before they are read, so that a change in between finds its
//! parent. One answer is held at a time. Nothing is written.
//!
//! **Errors.** What is wrong with a need, or how a call failed. Needs that could not be read, or were too much for a
//! request, are forgotten, so that the next evaluation begins with none.

use std::sync::Arc;

use jiff::Timestamp;
use kube::core::DynamicObject;
use thiserror::Error;

use super::needs::{self, MAX_ITERATIONS, NeedError, Source};
use crate::plugin::contract::{CleanupResponse, Export, Need, Request, Response};
use crate::plugin::{Call, CallError, Draw, Plugin, Share};
use crate::record::Answer;

/// Why an evaluation has no answer.
#[derive(Debug, Error)]
pub enum EvaluateError {
    /// A need is refused or cannot be read, or the needs never settle.
    #[error(transparent)]
    Need(#[from] NeedError),
    /// A call failed, or the plugin said so.
    #[error(transparent)]
    Call(#[from] CallError),
}

/// What the plugin is asked about.
#[derive(Clone, Copy, Debug)]
pub struct Subject<'a> {
    /// The custom resource.
    pub parent: &'a Arc<DynamicObject>,
    /// Its children, as the plugin sees them.
    pub children: &'a [Arc<DynamicObject>],
    /// The host's clock, in whole seconds.
    pub now: Timestamp,
    /// Whether the parent's namespace is being deleted.
    pub namespace_terminating: bool,
}

/// Evaluates, as the module says. The share is what the answer takes of the memory of all calls, to be kept as long as
/// the answer.
///
/// # Errors
/// As the module says.
pub async fn evaluate<T: Question, F>(
    subject: &Subject<'_>,
    source: &impl Source,
    known: Vec<Need>,
    call: impl Fn(Request) -> F,
    remember: impl Fn(&[Need]),
) -> Result<(T, Option<Share>), EvaluateError>
where
    F: Future<Output = (Result<T, CallError>, Option<Share>)>,
{
    let mut needs = known;
    for iteration in 0..=MAX_ITERATIONS {
        let related = match needs::answer(source, subject.parent, &needs).await {
            Ok(related) => related,
            Err(error) => {
                remember(&[]);
                if iteration > 0 {
                    return Err(error.into());
                }
                needs.clear();
                Vec::new()
            }
        };
        let request = Request {
            parent: Arc::clone(subject.parent),
            children: subject.children.to_vec(),
            related,
            now: subject.now,
            traceparent: None,
            namespace_terminating: subject.namespace_terminating,
        };
        let (outcome, share) = call(request).await;
        if let Err(CallError::Request { .. }) = outcome {
            // Without what it asked for it may ask for less.
            remember(&[]);
        }
        let answer = outcome?;
        needs::admit(answer.needs())?;
        let settled = answer.needs().iter().all(|need| needs.contains(need));
        needs = answer.needs().to_vec();
        remember(&needs);
        if settled {
            return Ok((answer, share));
        }
    }
    Err(NeedError::Unsettled.into())
}

/// The two questions: to reconcile, and to clean up.
pub trait Question: Clone + Into<Answer> + Send {
    /// Its name in the contract.
    const EXPORT: Export;
    /// Makes the call.
    fn ask(plugin: &Plugin, request: &Request) -> impl Future<Output = Call<Self>> + Send;
    /// Makes the call for a proof.
    fn try_ask(plugin: &Plugin, request: &Request, draw: Draw) -> impl Future<Output = Call<Self>> + Send;
    /// What the answer needs.
    fn needs(&self) -> &[Need];
    /// How many children it asks for.
    fn children(&self) -> usize;
    /// The answer in one form for both, and of a cleanup whether it is done.
    fn into_response(self) -> (Response, Option<bool>);
}

impl Question for Response {
    const EXPORT: Export = Export::Reconcile;

    fn ask(plugin: &Plugin, request: &Request) -> impl Future<Output = Call<Self>> + Send {
        plugin.reconcile(request)
    }

    fn try_ask(plugin: &Plugin, request: &Request, draw: Draw) -> impl Future<Output = Call<Self>> + Send {
        plugin.try_reconcile(request, draw)
    }

    fn needs(&self) -> &[Need] {
        &self.needs
    }

    fn children(&self) -> usize {
        self.children.len()
    }

    fn into_response(self) -> (Response, Option<bool>) {
        (self, None)
    }
}

impl Question for CleanupResponse {
    const EXPORT: Export = Export::Cleanup;

    fn ask(plugin: &Plugin, request: &Request) -> impl Future<Output = Call<Self>> + Send {
        plugin.cleanup(request)
    }

    fn try_ask(plugin: &Plugin, request: &Request, draw: Draw) -> impl Future<Output = Call<Self>> + Send {
        plugin.try_cleanup(request, draw)
    }

    fn needs(&self) -> &[Need] {
        &self.needs
    }

    fn children(&self) -> usize {
        self.children.len()
    }

    fn into_response(self) -> (Response, Option<bool>) {
        let response = Response {
            children: self.children,
            status: self.status,
            conditions: self.conditions,
            events: self.events,
            requeue_after_ms: self.requeue_after_ms,
            needs: self.needs,
            ..Response::default()
        };
        (response, Some(self.done))
    }
}

#[cfg(test)]
mod tests;
