//! One question to the plugin, with all that it needs to answer.

use std::sync::Arc;

use kube::core::DynamicObject;

use super::failure::PassError;
use super::now;
use crate::controller::context::Context;
use crate::controller::needs::{self, NeedError};
use crate::controller::object::ObjectName;
use crate::plugin::contract::{CleanupResponse, Export, Need, Request, Response};
use crate::plugin::{Call, CallError, Plugin, Share};
use crate::record::Answer;
use crate::trace::Span;

/// How often a plugin may ask for other objects in one pass.
pub(crate) const MAX_NEEDS: usize = 4;

/// One question to the plugin: called again with what it needs until it needs nothing more. The share is what the answer
/// takes of the memory of all calls, to be kept as long as the answer.
pub(super) async fn ask<T: Question>(
    context: &Context,
    plugin: &Plugin,
    parent: &Arc<DynamicObject>,
    observed: &[Arc<DynamicObject>],
) -> Result<(T, Option<Share>), PassError> {
    let name = ObjectName::of(parent);
    let needs = context.memory_of(&name, |memory| {
        if memory.asked.replace(*plugin.digest()) != Some(*plugin.digest()) {
            memory.versions.clear();
        }
        memory.needs.clone()
    });
    // Before they are answered: a change of what is needed must find who needs it.
    let remember = |needs: &[Need]| context.memory_of(&name, |memory| memory.needs = needs.to_vec());
    question(context, plugin, parent, observed, needs, remember).await
}

/// What the plugin says of an object that is not there yet, or not so: nothing is remembered of it.
pub(super) async fn ask_ahead(
    context: &Context,
    plugin: &Plugin,
    parent: &Arc<DynamicObject>,
) -> Result<(Response, Option<Share>), PassError> {
    let observed = context.observed(parent, plugin);
    question(context, plugin, parent, &observed, Vec::new(), |_| {}).await
}

async fn question<T: Question>(
    context: &Context,
    plugin: &Plugin,
    parent: &Arc<DynamicObject>,
    observed: &[Arc<DynamicObject>],
    mut needs: Vec<Need>,
    remember: impl Fn(&[Need]),
) -> Result<(T, Option<Share>), PassError> {
    for _ in 0..=MAX_NEEDS {
        let related = needs::answer(context, parent, &needs).inspect_err(|_| {
            // The next pass asks anew: the plugin or its configuration may be another one by then.
            remember(&[]);
        })?;
        let span = Span::child("plugin");
        let request = Request {
            parent: Arc::clone(parent),
            children: observed.to_vec(),
            related,
            now: now(),
            traceparent: span.traceparent(),
            namespace_terminating: context.is_namespace_going(parent),
        };
        let call = T::ask(plugin, &request);
        let (outcome, share) = context
            .observer
            .call(plugin, T::EXPORT.as_str(), &span, call, T::children)
            .await;
        context.observer.record(plugin, T::EXPORT, request, &outcome);
        if let Err(CallError::Request { .. }) = outcome {
            // Without what it asked for it may ask for less.
            remember(&[]);
        }
        let response = outcome?;
        needs::admit(response.needs())?;
        let settled = response.needs() == needs || response.needs().iter().all(|need| needs.contains(need));
        needs = response.needs().to_vec();
        remember(&needs);
        if settled {
            return Ok((response, share));
        }
    }
    Err(NeedError::Unsettled { rounds: MAX_NEEDS }.into())
}

/// The two questions: to reconcile, and to clean up.
pub(super) trait Question: Clone + Into<Answer> {
    /// Its name in the contract.
    const EXPORT: Export;
    fn ask(plugin: &Plugin, request: &Request) -> impl Future<Output = Call<Self>> + Send;
    fn needs(&self) -> &[Need];
    fn children(&self) -> usize;
}

impl Question for Response {
    const EXPORT: Export = Export::Reconcile;

    fn ask(plugin: &Plugin, request: &Request) -> impl Future<Output = Call<Self>> + Send {
        plugin.reconcile(request)
    }

    fn needs(&self) -> &[Need] {
        &self.needs
    }

    fn children(&self) -> usize {
        self.children.len()
    }
}

impl Question for CleanupResponse {
    const EXPORT: Export = Export::Cleanup;

    fn ask(plugin: &Plugin, request: &Request) -> impl Future<Output = Call<Self>> + Send {
        plugin.cleanup(request)
    }

    fn needs(&self) -> &[Need] {
        &self.needs
    }

    fn children(&self) -> usize {
        self.children.len()
    }
}
