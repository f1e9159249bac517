//! Calls the plugin: evaluates it on the caches, traces and records its calls.

use std::sync::Arc;

use kube::core::DynamicObject;

use super::context::Context;
use super::crowded::Crowded;
use super::error::ReconcileError;
use super::evaluate::{PluginExport, Subject, evaluate};
use super::observer::span_of_call;
use crate::clock::now;
use crate::object::{NamespacedName, too_deep};
use crate::plugin::contract::{Need, Request, Response};
use crate::plugin::{CallError, Plugin, Share};
use crate::trace;

/// Calls the plugin within a reconcile, and remembers the needs that it returns.
///
/// Keep the [`Share`] as long as the answer: it is the part of the memory for all calls that the answer takes.
pub(super) async fn call<T: PluginExport>(
    context: &Context,
    plugin: &Plugin,
    parent: &Arc<DynamicObject>,
    observed: &[Arc<DynamicObject>],
) -> Result<(T, Option<Share>), ReconcileError> {
    let name = NamespacedName::of(parent);
    context.memory_of(&name, |memory| {
        if memory.asked.replace(*plugin.digest()) != Some(*plugin.digest()) {
            memory.versions.clear();
        }
    });
    let known = context.state.needs.of(&name);
    let remember = |needs: &[Need]| context.state.needs.set(&name, needs);
    let subject = Subject {
        parent,
        children: observed,
        now: now(),
        namespace_terminating: context.is_namespace_terminating(parent),
        old_parent: None,
    };
    evaluate_traced(context, plugin, &subject, known, remember).await
}

/// Does what [`call`] does. When the children of a cluster-scoped parent are too large for a request, the plugin is called
/// without the contents of the namespaces with the most, which are returned.
pub(super) async fn call_beside_crowded<T: PluginExport>(
    context: &Context,
    plugin: &Plugin,
    parent: &Arc<DynamicObject>,
    observed: &[Arc<DynamicObject>],
) -> Result<(T, Option<Share>, Option<Crowded>), ReconcileError> {
    let crowded = match call(context, plugin, parent, observed).await {
        Ok((answer, share)) => return Ok((answer, share, None)),
        Err(error) => crowded(parent, observed, error)?,
    };
    match call(context, plugin, parent, &crowded.shown).await {
        Ok((answer, share)) => Ok((answer, share, Some(crowded))),
        // It may fail because of what it does not see.
        Err(ReconcileError::Call(_)) => Err(crowded.into()),
        Err(other) => Err(other),
    }
}

fn crowded(
    parent: &DynamicObject,
    observed: &[Arc<DynamicObject>],
    error: ReconcileError,
) -> Result<Crowded, ReconcileError> {
    match error {
        ReconcileError::Call(error @ CallError::Request { limit, .. }) => {
            Crowded::of(parent, observed, limit, error).map_err(ReconcileError::Call)
        }
        other => Err(other),
    }
}

/// Calls the plugin for an object that is not written yet, without crowded namespaces. Remembers nothing.
pub(super) async fn call_for_admission(
    context: &Context,
    plugin: &Plugin,
    parent: &Arc<DynamicObject>,
    old_parent: Option<&Arc<DynamicObject>>,
) -> Result<(Response, Option<Share>), ReconcileError> {
    let observed = context.observed(parent, plugin);
    let subject = Subject {
        parent,
        children: &observed,
        now: now(),
        namespace_terminating: context.is_namespace_terminating(parent),
        old_parent,
    };
    let error = match evaluate_traced(context, plugin, &subject, Vec::new(), |_| {}).await {
        Ok(answer) => return Ok(answer),
        Err(error) => error,
    };
    let crowded = crowded(parent, &observed, error)?;
    let subject = Subject {
        children: &crowded.shown,
        ..subject
    };
    evaluate_traced(context, plugin, &subject, Vec::new(), |_| {}).await
}

async fn evaluate_traced<T: PluginExport>(
    context: &Context,
    plugin: &Plugin,
    subject: &Subject<'_>,
    known: Vec<Need>,
    remember: impl Fn(&[Need]),
) -> Result<(T, Option<Share>), ReconcileError> {
    // It may have become so since it was looked at. The plugin would see it without that field.
    if let Some(field) = too_deep(subject.parent) {
        return Err(ReconcileError::TooDeep(format!("{field} of the resource")));
    }
    let call = |mut request: Request| async move {
        let span = span_of_call(plugin, T::EXPORT.as_str());
        request.traceparent = trace::traceparent(&span);
        let call = T::call(plugin, &request);
        let (outcome, share) = context
            .observer
            .call(T::EXPORT.as_str(), &span, call, T::children)
            .await;
        context.observer.record(plugin, T::EXPORT, request, &outcome);
        (outcome, share)
    };
    Ok(evaluate(subject, context, known, call, remember).await?)
}
