//! One pass over one parent: the straight line that everything else in this crate serves.

use std::sync::Arc;
use std::time::Duration;

use jiff::{Timestamp, Unit};
use kube::ResourceExt;
use kube::core::DynamicObject;
use serde_json::json;
use thiserror::Error;
use tracing::{debug, info, warn};

use super::api::{ApiError, Fault, Objects};
use super::apply::apply;
use super::children::{Plan, Policy, Refusal, plan};
use super::context::Context;
use super::needs::{self, NeedError};
use super::object::{ChildKey, ObjectName, PAUSED_ANNOTATION, annotation, is_terminating, shorten};
use super::prune::prune;
use super::secrets::generate;
use super::status::{self, Reason, Verdict};
use crate::plugin::contract::{CleanupResponse, Condition, Event, EventType, Kind, Need, Request, Response};
use crate::plugin::registry::Live;
use crate::plugin::{Call, CallError, Class, Plugin};
use crate::trace::Span;

/// How often a plugin may ask for other objects in one pass.
pub(crate) const MAX_NEEDS: usize = 4;
/// How often a plugin is asked again in one pass because its children changed by it.
const MAX_ROUNDS: usize = 4;
/// How many Events of a plugin a pass publishes; more are dropped.
const MAX_EVENTS: usize = 32;
/// The shortest time that a plugin can ask for, so that none can keep a worker busy by itself.
const MIN_DELAY: Duration = Duration::from_millis(100);

/// When to look at the parent again, though nothing changes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Next {
    /// When something changes.
    OnChange,
    /// After this time.
    After(Duration),
    /// After the back-off of a parent that has failed so many times in a row.
    Backoff,
}

/// Why a pass did not come to its end.
#[derive(Debug, Error)]
enum PassError {
    #[error("{0}")]
    NoPlugin(Arc<str>),
    #[error("{0}")]
    Watch(String),
    #[error(transparent)]
    Call(#[from] CallError),
    #[error(transparent)]
    Need(#[from] NeedError),
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
    const fn class(&self) -> &'static str {
        match self {
            Self::NoPlugin(_) => "no_plugin",
            Self::Watch(_) => "watch",
            Self::Call(error) => error.class().as_str(),
            Self::Need(_) => "need",
            Self::Refused(_) => "refused",
            Self::Api(_) => "api",
            Self::Status(_) => "status",
            Self::Unsettled => "unsettled",
        }
    }
}

impl From<ApiError> for PassError {
    fn from(error: ApiError) -> Self {
        Self::Api(vec![error])
    }
}

/// What the last answer of the plugin says, once its children are in place.
#[derive(Default)]
struct Answer {
    status: Option<serde_json::Map<String, serde_json::Value>>,
    conditions: Vec<Condition>,
    events: Vec<Event>,
    requeue: Option<Duration>,
    /// Only of a cleanup: whether the parent may go.
    done: bool,
}

/// What a pass did to the children, for one Event.
#[derive(Default)]
struct Changes {
    created: Vec<ChildKey>,
    updated: Vec<ChildKey>,
    deleted: Vec<ChildKey>,
}

/// Reconciles one parent. Never fails: what goes wrong ends in the parent's conditions, an Event and the log.
///
/// `trace` is the span around the pass.
pub async fn reconcile(context: &Context, name: &ObjectName, trace: &Span) -> Next {
    let Some(parent) = context.parent(name) else {
        context.forget(name);
        return Next::OnChange;
    };
    if trace.is_recording() {
        trace.set("k8s.object.uid", parent.metadata.uid.clone().unwrap_or_default());
        trace.set(
            "k8s.object.generation",
            parent.metadata.generation.unwrap_or_default(),
        );
    }
    if annotation(&parent, PAUSED_ANNOTATION) == Some("true") {
        return finish(context, &parent, None, Verdict::Paused, Next::OnChange).await;
    }
    let mut changes = Changes::default();
    let result = pass(context, &parent, &mut changes).await;
    changes.publish(context, &parent);
    match result {
        Ok(None) => Next::OnChange,
        Ok(Some(answer)) => {
            answer.publish(context, &parent);
            let next = answer.requeue.map_or(Next::OnChange, Next::After);
            let Some(parent) = as_seen(context, &parent) else {
                return Next::OnChange;
            };
            finish(context, &parent, Some(&answer), Verdict::Reconciled, next).await
        }
        Err(error) => {
            let class = error.class();
            context.observer.metrics.failed(class);
            if trace.is_recording() {
                trace.fail(class, &error.to_string(), "");
            }
            fail(context, &parent, &error).await
        }
    }
}

/// The parent as it is now, which the pass may have written itself, but with the generation that the pass saw:
/// that is the one its status speaks of. `None` when it is gone or another one has its name.
fn as_seen(context: &Context, seen: &DynamicObject) -> Option<Arc<DynamicObject>> {
    let now = context.parent(&ObjectName::of(seen))?;
    if now.metadata.uid != seen.metadata.uid {
        return None;
    }
    if now.metadata.generation == seen.metadata.generation {
        return Some(now);
    }
    let mut now = DynamicObject::clone(&now);
    now.metadata.generation = seen.metadata.generation;
    Some(Arc::new(now))
}

/// The pass itself; `None` when there is nothing to say about the parent any more.
async fn pass(
    context: &Context,
    parent: &Arc<DynamicObject>,
    changes: &mut Changes,
) -> Result<Option<Answer>, PassError> {
    let plugin = match &*context.plugin.borrow() {
        Live::Plugin(plugin) => plugin.clone(),
        // Workers start only when loading has ended.
        Live::Loading => return Ok(None),
        Live::Failed(why) => return Err(PassError::NoPlugin(Arc::clone(why))),
    };
    if let Some(failure) = context.watch_failure() {
        return Err(PassError::Watch(failure));
    }
    let finalizer = format!("operator-host.dev/{}", context.config.name);
    let has_finalizer = parent.finalizers().contains(&finalizer);
    if is_terminating(parent) {
        if !has_finalizer {
            // The garbage collector deletes what it owns.
            return Ok(None);
        }
        let answer = if plugin.description().finalizer {
            cleanup(context, &plugin, parent, changes).await?
        } else {
            Answer::done()
        };
        if answer.done {
            let rest = parent
                .finalizers()
                .iter()
                .filter(|f| **f != finalizer)
                .cloned()
                .collect();
            set_finalizers(context, parent, rest).await?;
            // There is no status to come, but the last word of the cleanup is to be seen.
            answer.publish(context, parent);
            return Ok(None);
        }
        return Ok(Some(answer));
    }
    if plugin.description().finalizer && !has_finalizer {
        // Before the first child, so that none is left behind uncleaned.
        let all = parent.finalizers().iter().cloned().chain([finalizer]).collect();
        let Some(parent) = set_finalizers(context, parent, all).await? else {
            return Ok(None);
        };
        return rounds(context, &plugin, &parent, changes).await.map(Some);
    }
    rounds(context, &plugin, parent, changes).await.map(Some)
}

/// Asks the plugin and makes it so, until what it sees is what it asked for: its last answer, and so the status,
/// knows the children as this very pass left them.
async fn rounds(
    context: &Context,
    plugin: &Plugin,
    parent: &Arc<DynamicObject>,
    changes: &mut Changes,
) -> Result<Answer, PassError> {
    let name = ObjectName::of(parent);
    let mut events = Vec::new();
    for _ in 0..MAX_ROUNDS {
        let observed = context.observed(parent);
        let response: Response = ask(context, plugin, parent, &observed).await?;
        let plan = make_plan(context, plugin, parent, &response)?;
        let mut changed = false;
        for secret in &plan.secrets {
            if generate(context, &name, secret).await? {
                changes.created.push(secret.key.clone());
                changed = true;
            }
        }
        let applied = apply(context, parent, &plan.desired).await;
        changed |= applied.changed();
        changes.created.extend(applied.created);
        changes.updated.extend(applied.updated);
        if !applied.failed.is_empty() {
            return Err(PassError::Api(applied.failed));
        }
        let (deleted, failed) = prune(context, parent, &observed, &plan).await;
        changed |= !deleted.is_empty();
        changes.deleted.extend(deleted);
        if !failed.is_empty() {
            return Err(PassError::Api(failed));
        }
        let Response {
            status,
            conditions,
            events: new,
            requeue_after_ms,
            ..
        } = response;
        // Each round may have its say, but not the same twice, and not without end.
        for event in new {
            if events.len() < MAX_EVENTS && !events.contains(&event) {
                events.push(event);
            }
        }
        if !changed {
            return Ok(Answer {
                status,
                conditions,
                events,
                requeue: requeue_after_ms.map(after),
                done: false,
            });
        }
    }
    Err(PassError::Unsettled)
}

/// The plugin's last words for a parent that is being deleted. Children that it does not name stay.
async fn cleanup(
    context: &Context,
    plugin: &Plugin,
    parent: &Arc<DynamicObject>,
    changes: &mut Changes,
) -> Result<Answer, PassError> {
    for _ in 0..MAX_ROUNDS {
        let observed = context.observed(parent);
        let CleanupResponse {
            done,
            children,
            status,
            conditions,
            mut events,
            requeue_after_ms,
            ..
        } = ask(context, plugin, parent, &observed).await?;
        let response = Response {
            children,
            ..Response::default()
        };
        let plan = make_plan(context, plugin, parent, &response)?;
        let applied = apply(context, parent, &plan.desired).await;
        let changed = applied.changed();
        changes.created.extend(applied.created);
        changes.updated.extend(applied.updated);
        if !applied.failed.is_empty() {
            return Err(PassError::Api(applied.failed));
        }
        if done || !changed {
            events.truncate(MAX_EVENTS);
            return Ok(Answer {
                status,
                conditions,
                events,
                requeue: requeue_after_ms.map(after),
                done,
            });
        }
    }
    Err(PassError::Unsettled)
}

/// What a plugin asked for, but not less than the shortest.
fn after(milliseconds: u64) -> Duration {
    Duration::from_millis(milliseconds).max(MIN_DELAY)
}

/// One question to the plugin: called again with what it needs until it needs nothing more.
async fn ask<T: Question>(
    context: &Context,
    plugin: &Plugin,
    parent: &Arc<DynamicObject>,
    observed: &[Arc<DynamicObject>],
) -> Result<T, PassError> {
    let name = ObjectName::of(parent);
    let mut needs = context.memory_of(&name, |memory| memory.needs.clone());
    for _ in 0..=MAX_NEEDS {
        let related = needs::answer(context, parent, &needs).inspect_err(|_| {
            // The next pass asks anew: the plugin or its configuration may be another one by then.
            context.memory_of(&name, |memory| memory.needs.clear());
        })?;
        let span = Span::child("plugin");
        let request = Request {
            parent: Arc::clone(parent),
            children: observed.to_vec(),
            related,
            now: now(),
            traceparent: span.traceparent(),
        };
        let call = T::ask(plugin, &request);
        let response = context
            .observer
            .call(plugin, T::EXPORT, &span, call, T::children)
            .await?;
        let settled = response.needs() == needs || response.needs().iter().all(|need| needs.contains(need));
        needs = response.needs().to_vec();
        context.memory_of(&name, |memory| memory.needs.clone_from(&needs));
        if settled {
            return Ok(response);
        }
    }
    Err(NeedError::Unsettled { rounds: MAX_NEEDS }.into())
}

/// The two questions: to reconcile, and to clean up.
trait Question: Sized {
    /// Its name in the contract.
    const EXPORT: &'static str;
    fn ask(plugin: &Plugin, request: &Request) -> impl Future<Output = Call<Self>> + Send;
    fn needs(&self) -> &[Need];
    fn children(&self) -> usize;
}

impl Question for Response {
    const EXPORT: &'static str = "reconcile";

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
    const EXPORT: &'static str = "cleanup";

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

fn make_plan(
    context: &Context,
    plugin: &Plugin,
    parent: &DynamicObject,
    response: &Response,
) -> Result<Plan, PassError> {
    let policy = Policy {
        config: &context.config,
        parent,
        digest: &plugin.digest().to_string(),
        namespaced: &|kind: &Kind| context.resources.get(kind).map(|resource| resource.namespaced),
        existing: &|key: &ChildKey| context.existing(key),
    };
    plan(&policy, &response.children, &response.keep, &response.generate).map_err(PassError::Refused)
}

/// Replaces the parent's finalizers unless it has changed; `None` when it is gone.
async fn set_finalizers(
    context: &Context,
    parent: &DynamicObject,
    finalizers: Vec<String>,
) -> Result<Option<Arc<DynamicObject>>, ApiError> {
    let name = ObjectName::of(parent);
    let body = json!({
        "metadata": { "resourceVersion": parent.metadata.resource_version, "finalizers": finalizers },
    });
    let objects = Objects::new(&context.writer, &context.resource);
    match objects.merge(&name, &body, &context.config.field_manager()).await {
        Ok(answer) => Ok(context.record_parent(answer)),
        Err(error) if error.is_not_found() => Ok(None),
        Err(error) => Err(error),
    }
}

/// Writes the status and says when to come back.
async fn finish(
    context: &Context,
    parent: &DynamicObject,
    answer: Option<&Answer>,
    verdict: Verdict,
    next: Next,
) -> Next {
    let fields = answer.and_then(|answer| answer.status.as_ref());
    let conditions = answer.map(|answer| answer.conditions.as_slice());
    let desired = status::desired(parent, fields, conditions, &verdict, now());
    let name = ObjectName::of(parent);
    match status::write(context, parent, desired).await {
        Ok(_) => {
            context.memory_of(&name, |memory| {
                memory.failures = 0;
                memory.said = None;
            });
            next
        }
        // The plugin's own part of it is at fault: the host's part goes without it.
        Err(error) if answer.is_some() && error.fault == Fault::Refused(422) => {
            context.observer.metrics.failed("status");
            fail(context, parent, &PassError::Status(error)).await
        }
        Err(error) => {
            context.observer.metrics.failed("status");
            let error = PassError::from(error);
            if is_passing(context, &name, &error) {
                debug!("{error}");
            } else {
                say(context, &name, &error);
            }
            count_failure(context, &name);
            Next::Backoff
        }
    }
}

/// How often a parent is tried again in silence while the API server has no time for it.
const PATIENCE: u32 = 3;

/// Whether a failure says nothing about the parent, so that its status shall not speak of it.
fn is_passing(context: &Context, name: &ObjectName, error: &PassError) -> bool {
    let PassError::Api(errors) = error else {
        return false;
    };
    // A pass that lost a race is simply run again on what is there now.
    let lost_race = |error: &ApiError| error.is_conflict() && matches!(error.verb, "patch" | "create");
    let failures = context.memory_of(name, |memory| memory.failures);
    errors.iter().all(lost_race)
        || (name.namespace.is_some() && errors.iter().any(ApiError::is_namespace_going))
        || errors
            .iter()
            .any(|error| matches!(error.fault, Fault::Unreachable | Fault::Deposed))
        || (failures < PATIENCE && errors.iter().any(ApiError::is_overload))
}

/// How much of an error goes into the log, in bytes: a plugin may choose its text.
const MAX_LINE: usize = 4096;

/// Says in the log what is wrong with a parent: once, however often it is tried again.
fn say(context: &Context, name: &ObjectName, error: &dyn std::fmt::Display) {
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

async fn fail(context: &Context, parent: &DynamicObject, error: &PassError) -> Next {
    let name = &ObjectName::of(parent);
    if is_passing(context, name, error) {
        debug!("{error}");
        count_failure(context, name);
        return Next::Backoff;
    }
    let Some(parent) = as_seen(context, parent) else {
        // The parent that has its name now, if any, has a mark of its own in the queue.
        return Next::OnChange;
    };
    let (verdict, next) = judge(error);
    say(context, name, error);
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
        Verdict::Reconciled | Verdict::Paused => None,
    };
    // Waiting is no fault that deserves a Warning.
    let waits = matches!(error, PassError::Call(CallError::Retry { .. })) || is_waiting_for_deletion(error);
    if let Some(reason) =
        news.filter(|_| !waits && desired.get("conditions") != parent.data["status"].get("conditions"))
    {
        let note = &reason.message;
        context.events.publish(
            &context.config.name,
            &parent,
            EventType::Warning,
            &reason.reason,
            note,
        );
    }
    if !matches!(next, Next::OnChange) {
        count_failure(context, name);
    }
    match status::write(context, &parent, desired).await {
        Ok(_) => next,
        Err(error) => {
            context.observer.metrics.failed("status");
            debug!("{error}");
            Next::Backoff
        }
    }
}

fn count_failure(context: &Context, name: &ObjectName) {
    context.memory_of(name, |memory| memory.failures = memory.failures.saturating_add(1));
}

/// What a failure means for the parent: the condition, and when to try again.
fn judge(error: &PassError) -> (Verdict, Next) {
    let message = error.to_string();
    let stalled = |reason: &str| Verdict::Stalled(Reason::new(reason, message.clone()));
    let reconciling = |reason: &str| Verdict::Reconciling(Reason::new(reason, message.clone()));
    match error {
        PassError::Call(CallError::Invalid { reason, message }) => {
            let reason = reason.as_deref().unwrap_or("InvalidSpec");
            (
                Verdict::Stalled(Reason::new(reason, message.clone())),
                Next::OnChange,
            )
        }
        PassError::Call(CallError::Retry { after, message }) => {
            let verdict = Verdict::Reconciling(Reason::new("Retrying", message.clone()));
            let next = after.map_or(Next::Backoff, |delay| Next::After(delay.max(MIN_DELAY)));
            (verdict, next)
        }
        PassError::Call(error) => (stalled(fault(error.class())), Next::Backoff),
        PassError::Need(_) => (stalled("NeedRefused"), Next::Backoff),
        PassError::Refused(_) if is_waiting_for_deletion(error) => {
            (reconciling("WaitingForDeletion"), Next::Backoff)
        }
        PassError::Refused(_) => (stalled("ChildRefused"), Next::Backoff),
        PassError::NoPlugin(_) => (stalled("PluginNotLoaded"), Next::OnChange),
        PassError::Watch(_) => (reconciling("WatchFailed"), Next::Backoff),
        PassError::Api(_) => (reconciling("ApplyFailed"), Next::Backoff),
        PassError::Status(_) => (stalled("StatusRefused"), Next::Backoff),
        PassError::Unsettled => (stalled("PluginUnsettled"), Next::Backoff),
    }
}

/// Whether nothing stands in the way but children of a parent that had this name before.
fn is_waiting_for_deletion(error: &PassError) -> bool {
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
        Class::Output => "PluginAnswerTooLarge",
        Class::Protocol => "PluginAnswerInvalid",
        Class::Host => "PluginNotCalled",
    }
}

/// The host's clock in whole seconds: a finer one would make equal requests differ.
fn now() -> Timestamp {
    let now = Timestamp::now();
    now.round(Unit::Second).unwrap_or(now)
}

impl Answer {
    fn done() -> Self {
        Self {
            done: true,
            ..Self::default()
        }
    }

    /// The plugin's Events.
    fn publish(&self, context: &Context, parent: &DynamicObject) {
        for event in &self.events {
            let Event {
                type_,
                reason,
                message,
            } = event;
            context
                .events
                .publish(&context.config.name, parent, *type_, reason, message);
        }
    }
}

impl Changes {
    /// One Event for all of them.
    fn publish(&self, context: &Context, parent: &DynamicObject) {
        let metrics = &context.observer.metrics;
        self.created.iter().for_each(|child| metrics.created(&child.kind));
        self.updated.iter().for_each(|child| metrics.updated(&child.kind));
        self.deleted.iter().for_each(|child| metrics.deleted(&child.kind));
        let parts: Vec<String> = [
            ("created", &self.created),
            ("updated", &self.updated),
            ("deleted", &self.deleted),
        ]
        .into_iter()
        .filter(|(_, children)| !children.is_empty())
        .map(|(verb, children)| format!("{verb} {}", list(children)))
        .collect();
        if parts.is_empty() {
            return;
        }
        let note = parts.join("; ");
        info!("{note}");
        context.events.publish(
            &context.config.name,
            parent,
            EventType::Normal,
            "ChildrenChanged",
            &note,
        );
    }
}

/// The first few by name, the others by number.
fn list(children: &[ChildKey]) -> String {
    const SHOWN: usize = 5;
    let mut names: Vec<String> = children
        .iter()
        .take(SHOWN)
        .map(|c| format!("{} {}", c.kind.kind, c.name.name))
        .collect();
    if children.len() > SHOWN {
        names.push(format!("{} more", children.len() - SHOWN));
    }
    names.join(", ")
}
