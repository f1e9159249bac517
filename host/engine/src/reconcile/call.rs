//! Calls the plugin: evaluates it on the caches, traces and records its calls.

use std::sync::Arc;

use kube::core::DynamicObject;

use super::error::{ReconcileError, Result};
use super::evaluate::{EvaluateError, evaluate};
use super::run::Run;
use crate::calls::{observe, span_of_call};
use crate::validation;
use operator_host_contract::{Asked, Export, Need, Request, Response};
use operator_host_core::object::{ChildRef, is_unreadable};
use operator_host_runtime::{CallError, Class, Plugin, Share};
use operator_host_telemetry::trace;

/// Calls the plugin within a reconcile, and remembers the needs that it returns. `export` is `reconcile` or `cleanup`.
///
/// Keep the [`Share`] as long as the answer: it is the part of the memory for all calls that the answer takes.
pub(super) async fn call(
    run: &Run<'_>,
    plugin: &Plugin,
    export: Export,
    subject: &Request,
) -> Result<(Response, Option<Share>)> {
    let parent = &subject.parent;
    run.memory(|memory| {
        // A change that the plugin made in a parent that it decorates must not reset its pace.
        let generation = parent.metadata.generation;
        let generation = generation.filter(|_| run.context.config.decorates.is_none());
        memory.begin(generation, *plugin.digest());
        memory.asked = Some(*plugin.digest());
    });
    // It may have become so since it was looked at.
    check_readable(parent)?;
    let call = |mut request: Request| async move {
        let span = span_of_call(plugin, export.as_str());
        request.traceparent = trace::traceparent(&span);
        let asked = request.asked_of(export);
        let observer = &run.context.observer;
        let children = |answer: &Response| Some(answer.children.len());
        let call = plugin.respond(asked.clone());
        let (outcome, share) = observe(&observer.metrics, export.as_str(), &span, call, children).await;
        observer.calls.record(plugin, asked, &outcome);
        (outcome, share)
    };
    let known = run.context.state.needs.of(run.name);
    let remember = |needs: &[Need]| run.context.state.needs.set(run.name, needs);
    let called = evaluate(subject, run.context, known, call, remember).await;
    called.map_err(|error| match error {
        EvaluateError::Call(error) if error.class() == Class::Request => {
            too_large(&subject.children, error).into()
        }
        other => other.into(),
    })
}

/// Adds to the error for a request that is too large which child is the largest: others may have made it.
fn too_large(children: &[Arc<DynamicObject>], error: CallError) -> CallError {
    let size = |child: &Arc<DynamicObject>| serde_json::to_vec(child).map_or(0, |text| text.len());
    let sized = children.iter().map(|child| (size(child), child));
    let Some((size, child)) = sized.max_by_key(|(size, _)| *size) else {
        return error;
    };
    let (class, child, kib) = (error.class(), ChildRef::of(child), size.div_ceil(1 << 10));
    let message = format!("{error}. The largest child is {child} ({kib} KiB)");
    CallError::Other { class, message }
}

/// Checks that the plugin can be shown the parent.
pub(super) fn check_readable(parent: &DynamicObject) -> Result<()> {
    match is_unreadable(parent) {
        true => Err(ReconcileError::Unreadable),
        false => Ok(()),
    }
}

/// Asks the plugin whether the parent is valid: it may be older than the webhook, or have been written while that did not
/// answer.
pub(super) async fn check_valid(run: &Run<'_>, plugin: &Plugin, parent: &Arc<DynamicObject>) -> Result<()> {
    if !plugin.description().validates {
        return Ok(());
    }
    let parent = validation::text(parent)?;
    let span = span_of_call(plugin, Export::Validate.as_str());
    let call = plugin.validate(&parent, None);
    let observer = &run.context.observer;
    let export = Export::Validate.as_str();
    let (outcome, _share) = observe(&observer.metrics, export, &span, call, |_| None).await;
    let asked = Asked::Validate(parent, None);
    observer.calls.record(plugin, asked, &outcome);
    Ok(validation::verdict(&outcome?)?)
}
