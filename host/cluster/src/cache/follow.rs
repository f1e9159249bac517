//! The loop of one watch: lists, follows, and resumes from its last position after an interruption.
//!
//! It lists again only when the position is lost: after a permanent refusal, when the API server no longer has the
//! position, or when more of the kind is needed. After an overload or an outage it asks only for the changes since
//! the last one, so that a recovering API server need not send every object to every client.

use std::collections::HashSet;
use std::convert::Infallible;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use k8s_openapi::api::core::v1::Namespace;
use kube::core::{DynamicObject, WatchEvent};
use kube::{Api, Client};
use tokio::sync::watch;
use tokio::time::Instant;
use tracing::debug;

use super::first_lists::FirstLists;
use super::page::Page;
use super::read::{Watched, object};
use super::requests::{Limits, Trouble, WatchSource, version};
use super::{Inner, Wanted, WatchState};
use crate::discovery::{Discovery, KindError, ResolvedKind};
use operator_host_core::backoff::{at_least, jittered};
use operator_host_core::object::{NamespacedName, NotServed, next_page};
use operator_host_core::sync::lock;

/// First delay between attempts of a failing watch; doubled after each one.
const FIRST_DELAY: Duration = Duration::from_millis(100);
/// Longest delay while the API server does not answer. Its return is not announced, and an attempt costs one
/// connection.
const MAX_DELAY_UNREACHABLE: Duration = Duration::from_secs(1);
/// Longest delay while the API server refuses. A restored permission is noticed within this time.
const MAX_DELAY_REFUSED: Duration = Duration::from_secs(5);
/// How long a transient error may last before it is reported.
const GRACE: Duration = Duration::from_secs(60);
/// A failing watch that the API server accepts and that has run this long without an error has recovered.
const RECOVERED: Duration = Duration::from_secs(1);

/// The consecutive failures of one watch.
pub(super) struct Retry {
    failures: u32,
    /// When the first failed request was sent.
    since: Option<Instant>,
    grace: Duration,
}

impl Default for Retry {
    fn default() -> Self {
        Self {
            failures: 0,
            since: None,
            grace: GRACE,
        }
    }
}

impl Retry {
    /// Resets the failures after a success.
    fn reset(&mut self) {
        (self.failures, self.since) = (0, None);
    }

    /// Counts the failure of a request that was sent at `sent` and returns the delay before the next attempt: at
    /// most `last`, but at least what the API server asked for, with jitter so that clients that failed together do
    /// not retry together.
    fn delay(&mut self, sent: Instant, last: Duration, asked: Option<Duration>) -> Duration {
        let delay = FIRST_DELAY.saturating_mul(1 << self.failures.min(16)).min(last);
        self.failures = self.failures.saturating_add(1);
        self.since.get_or_insert(sent);
        jittered(delay, 0.5).max(asked.map(at_least).unwrap_or_default())
    }

    /// Reports whether it has failed for longer than a transient error lasts.
    fn is_lasting(&self) -> bool {
        self.since.is_some_and(|since| since.elapsed() >= self.grace)
    }
}

/// Runs one watch until its last handle is dropped.
pub(super) async fn run(
    inner: Arc<Inner>,
    client: Client,
    kinds: Arc<Discovery>,
    first_lists: Arc<FirstLists>,
) -> Infallible {
    let mut changed = kinds.subscribe();
    let mut retry = Retry::default();
    loop {
        changed.mark_unchanged();
        let sent = Instant::now();
        let (last, asked) = match kinds.resolve(&inner.scope.kind).await {
            Ok(resource) => {
                let source = source(&inner, &client, &resource);
                let why = follow(&inner, &source, &mut retry, &first_lists).await;
                match unless_missing(&client, inner.scope.namespace.as_deref(), why).await {
                    None => inner.has_no_namespace(),
                    Some(why) => inner.fail(why),
                }
                // The definition may have been deleted, or recreated with another plural.
                kinds.forget_older(&inner.scope.kind, Duration::ZERO);
                (MAX_DELAY_REFUSED, None)
            }
            Err(error @ KindError::Unknown(_)) => {
                inner.fail(error.to_string());
                (MAX_DELAY_REFUSED, None)
            }
            Err(error) => {
                debug!(kind = %inner.scope.kind, %error, "discovery failed");
                inner.list_failed(&error.to_string());
                if retry.is_lasting() {
                    inner.fail(error.to_string());
                }
                (MAX_DELAY_UNREACHABLE, error.retry_after())
            }
        };
        // Retry soon after a CustomResourceDefinition was added or changed.
        tokio::select! {
            () = tokio::time::sleep(retry.delay(sent, last, asked)) => {}
            _ = changed.changed() => retry.reset(),
        }
    }
}

/// Returns why a watch failed, unless its namespace does not exist. A host that is allowed to list in some namespaces only
/// has no permission in one that does not exist.
async fn unless_missing(client: &Client, namespace: Option<&str>, why: String) -> Option<String> {
    let Some(namespace) = namespace else {
        return Some(why);
    };
    let namespaces: Api<Namespace> = Api::all(client.clone());
    let found = tokio::time::timeout(MAX_DELAY_REFUSED, namespaces.get_metadata_opt(namespace)).await;
    match found {
        Ok(Ok(None)) => None,
        Ok(Err(kube::Error::Api(status))) if status.code == 403 => Some(format!(
            "{why}. Or the namespace {namespace} may not exist: the host sees that only with the verb `get` on namespaces"
        )),
        _ => Some(why),
    }
}

fn source(inner: &Inner, client: &Client, resource: &ResolvedKind) -> WatchSource {
    let api: Api<DynamicObject> = match &inner.scope.namespace {
        Some(namespace) if resource.namespaced => {
            Api::namespaced_with(client.clone(), namespace, &resource.api)
        }
        _ => Api::all_with(client.clone(), &resource.api),
    };
    WatchSource::new(api, inner.scope.form, Limits::default())
}

/// The progress of a watch.
enum Position {
    /// The list is complete up to this token.
    Listing {
        token: Option<String>,
        listed: HashSet<NamespacedName>,
    },
    /// All changes up to this resource version have been received.
    Watching(String),
}

impl Position {
    fn start() -> Self {
        Self::Listing {
            token: None,
            listed: HashSet::new(),
        }
    }
}

/// Follows one kind until the API server permanently refuses it, and returns the reason.
pub(super) async fn follow(
    inner: &Inner,
    source: &WatchSource,
    retry: &mut Retry,
    first_lists: &FirstLists,
) -> String {
    let mut keep = inner.keep.subscribe();
    let mut filled_under = keep.borrow_and_update().clone();
    let mut position = Position::start();
    // Whether the API server may have gone back to an earlier state than the position. It accepts a watch from there all
    // the same, and sends nothing until it has that many versions again.
    let mut in_doubt = false;
    let mut unserved_since = None;
    loop {
        let turn = match inner.was_listed.load(Ordering::Relaxed) {
            true => None,
            false => first_lists.turn().await,
        };
        // A list under way goes on when only the schema has changed: many definitions may change one after the other.
        let is_listing = matches!(position, Position::Listing { token: Some(_), .. });
        let lacks_nothing = filled_under.policy.covers(&keep.borrow().policy);
        if keep.has_changed().unwrap_or(false) && !(is_listing && lacks_nothing) {
            let wanted = keep.borrow_and_update().clone();
            if !filled_under.covers(&wanted) {
                debug!(kind = %inner.scope.kind, "more of this kind is needed, or its schema has changed: listing again");
                position = Position::start();
            }
            filled_under = wanted;
        }
        let sent = Instant::now();
        let progress = match &mut position {
            Position::Listing { token, listed } => {
                let page = first_lists.within(turn, source.page(token.as_deref())).await;
                let taken = page.and_then(|page| take_page(inner, page, token, listed, &keep));
                taken.map(|complete| {
                    retry.since = None;
                    if let Some(version) = complete {
                        position = Position::Watching(version);
                    }
                })
            }
            Position::Watching(version) if in_doubt => {
                let known = version.parse().ok();
                source.newest().await.map(|newest| {
                    in_doubt = false;
                    if newest.is_some() && newest < known {
                        position = Position::start();
                    }
                })
            }
            Position::Watching(version) => {
                in_doubt = true;
                let changes = changes(inner, source, version, retry, &mut keep, &mut filled_under);
                changes.await.map(|is_due| in_doubt = !is_due)
            }
        };
        let Err(trouble) = progress else {
            unserved_since = None;
            continue;
        };
        // An outage before it does not count.
        unserved_since = (trouble == Trouble::NotServed).then(|| unserved_since.unwrap_or(sent));
        let (failure, asked) = match trouble {
            Trouble::Refused(message) => return message,
            Trouble::NotServed
                if inner.was_listed.load(Ordering::Relaxed)
                    && unserved_since.is_some_and(|since| since.elapsed() < source.limits.unserved) =>
            {
                debug!(kind = %inner.scope.kind, "the kind is not served: asking again");
                (None, None)
            }
            Trouble::NotServed => return NotServed::new(inner.scope.kind.clone()).to_string(),
            Trouble::Outdated => {
                debug!(kind = %inner.scope.kind, "the last resource version has expired: listing again");
                position = Position::start();
                (None, None)
            }
            Trouble::Passing {
                message,
                retry_after,
                resumable,
            } => {
                if !resumable {
                    position = Position::start();
                }
                debug!(kind = %inner.scope.kind, message, "watch interrupted");
                inner.list_failed(&message);
                (Some(message), retry_after)
            }
        };
        inner.metrics.watch_restarted(&inner.scope.kind);
        let delay = retry.delay(sent, MAX_DELAY_UNREACHABLE, asked);
        if let Some(message) = failure.filter(|_| retry.is_lasting()) {
            inner.fail(message);
        }
        tokio::time::sleep(delay).await;
    }
}

/// Returns the resource version of a list.
fn version_of(list: &Page) -> Option<u128> {
    list.metadata.resource_version.as_deref()?.parse().ok()
}

/// Stores the objects of a page. Returns the resource version up to which the store is complete; `None`: more pages follow.
fn take_page(
    inner: &Inner,
    page: Page,
    token: &mut Option<String>,
    listed: &mut HashSet<NamespacedName>,
    keep: &watch::Receiver<Wanted>,
) -> Result<Option<String>, Trouble> {
    let list = version_of(&page);
    if token.is_none() {
        inner.list_begins(list);
    }
    let is_whole = |object: &DynamicObject| inner.reads_whole(object);
    page.for_each(is_whole, |object| {
        let object = inner.prepare(object);
        listed.insert(object.name.clone());
        inner.put(&object, list);
    })
    .map_err(|error| Trouble::unreadable(&error))?;
    *token = next_page(&page.metadata);
    if token.is_some() {
        return Ok(None);
    }
    inner.listed(listed, list);
    // A failing watch counts as recovered only once it watches again. Otherwise a client that may list but not
    // watch would alternate between recovered and failing.
    if !matches!(*inner.state.borrow(), WatchState::Failing(_)) {
        inner.synced(keep);
    }
    let version = page.metadata.resource_version;
    let version = version.filter(|version| !version.is_empty());
    version.map(Some).ok_or_else(|| {
        let message = "the API server's list has no resource version, so it cannot be followed";
        Trouble::passing(message, false)
    })
}

/// Follows the changes after `position` and advances it, until the API server ends the watch or something else is needed. The
/// next watch resumes from there. Returns whether the watch has not been interrupted.
async fn changes(
    inner: &Inner,
    source: &WatchSource,
    position: &mut String,
    retry: &mut Retry,
    keep: &mut watch::Receiver<Wanted>,
    filled_under: &mut Wanted,
) -> Result<bool, Trouble> {
    let mut changes = source.changes(position).await?;
    let begun = Instant::now();
    // An API server in trouble accepts a watch and ends it with an error a moment later. The failure count is kept
    // until the watch has lasted for a while.
    let mut has_recovered = retry.since.is_none() && !matches!(*inner.state.borrow(), WatchState::Failing(_));
    if has_recovered {
        inner.synced(keep);
    }
    loop {
        let event = tokio::select! {
            biased;
            // The sender is in `inner`.
            Ok(()) = keep.changed() => {
                let wanted = keep.borrow().clone();
                if filled_under.covers(&wanted) {
                    *filled_under = wanted;
                    if has_recovered {
                        inner.synced(keep);
                    }
                    continue;
                }
                // Let `follow` see the change.
                keep.mark_changed();
                return Ok(true);
            }
            () = tokio::time::sleep_until(begun + RECOVERED), if !has_recovered => {
                has_recovered = true;
                retry.since = None;
                inner.synced(keep);
                continue;
            }
            event = changes.next() => event,
        };
        let object = match &event {
            Some(Ok(event)) => news(inner, event)?,
            _ => None,
        };
        if let Some(Ok(event)) = &event
            && let Some(seen) = version(event)
        {
            seen.clone_into(position);
            *lock(&inner.newest) = seen.parse().ok();
            retry.reset();
            if !has_recovered {
                has_recovered = true;
                inner.synced(keep);
            }
        }
        if begun.elapsed() >= source.limits.healthy {
            retry.reset();
        }
        match event {
            Some(Ok(WatchEvent::Error(status))) => return Err(Trouble::of_status(&status)),
            Some(Ok(event)) => match (object, event) {
                (Some(object), WatchEvent::Deleted(_)) => inner.deleted(object),
                (Some(object), _) => inner.put(&inner.prepare(object), None),
                (None, _) => {}
            },
            Some(Err(trouble)) => return Err(trouble),
            None if begun.elapsed() < source.limits.healthy => {
                // Back off from a server that ends watches as soon as they begin.
                let message = "the API server ended a watch as soon as it had begun";
                return Err(Trouble::passing(message, true));
            }
            None => return Ok(changes.is_due()),
        }
    }
}

/// Reads the object of an event, unless it has none or its state is known: from the answer to this host's own write.
fn news(inner: &Inner, event: &WatchEvent<Watched>) -> Result<Option<DynamicObject>, Trouble> {
    let watched = match event {
        WatchEvent::Added(watched) | WatchEvent::Modified(watched) if !inner.knows(&watched.head) => watched,
        WatchEvent::Deleted(watched) => watched,
        _ => return Ok(None),
    };
    object(&watched.text, |object| inner.reads_whole(object))
        .map(Some)
        .map_err(|error| Trouble::unreadable(&error))
}

#[cfg(test)]
mod tests;
