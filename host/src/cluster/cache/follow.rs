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

use kube::core::{DynamicObject, ObjectList, WatchEvent};
use kube::{Api, Client};
use tokio::sync::watch;
use tokio::time::Instant;
use tracing::debug;

use super::source::{Limits, Trouble, WatchSource};
use super::{CachePolicy, Inner, WatchState};
use crate::backoff::jittered;
use crate::cluster::discovery::{Discovery, KindError, ResolvedKind};
use crate::object::NamespacedName;

/// First delay between attempts of a failing watch; doubled after each one.
const FIRST_DELAY: Duration = Duration::from_millis(100);
/// Longest delay while the API server does not answer. Its return is not announced, and an attempt costs one
/// connection.
const LAST_DELAY_AWAY: Duration = Duration::from_secs(1);
/// Longest delay while the API server refuses. A restored permission is noticed within this time.
const LAST_DELAY_REFUSED: Duration = Duration::from_secs(5);
/// Longest `Retry-After` that is honored.
const LAST_RETRY_AFTER: Duration = Duration::from_secs(60);
/// How long a transient error may last before it is reported.
const GRACE: Duration = Duration::from_secs(60);
/// How long a kind that was listed before may be missing. An API server that has just started does not serve the kinds
/// of definitions yet.
const UNSERVED: Duration = Duration::from_secs(5);
/// A watch that has run this long counts as healthy, even if it delivered nothing.
const QUIET: Duration = Duration::from_secs(5);

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
        let asked = asked.unwrap_or_default().min(LAST_RETRY_AFTER);
        // The delay that the server asks for is the minimum; jitter is added to it.
        jittered(delay, 0.5).max(asked + jittered(asked / 2, 1.0))
    }

    /// Reports whether the first failed request was sent at least this long ago.
    fn has_lasted(&self, time: Duration) -> bool {
        self.since.is_some_and(|since| since.elapsed() >= time)
    }

    /// Reports whether it has failed for longer than a transient error lasts.
    fn is_lasting(&self) -> bool {
        self.has_lasted(self.grace)
    }
}

/// Runs one watch until its last handle is dropped.
pub(super) async fn run(inner: Arc<Inner>, client: Client, kinds: Arc<Discovery>) -> Infallible {
    let mut changed = kinds.subscribe();
    let mut retry = Retry::default();
    loop {
        changed.mark_unchanged();
        let sent = Instant::now();
        let last = match kinds.resolve(&inner.scope.kind).await {
            Ok(resource) => {
                let source = source(&inner, &client, &resource);
                inner.fail(follow(&inner, &source, &mut retry).await);
                // The definition may have been deleted, or recreated with another plural.
                kinds.forget(&inner.scope.kind);
                LAST_DELAY_REFUSED
            }
            Err(error @ KindError::Unknown(_)) => {
                inner.fail(error.to_string());
                LAST_DELAY_REFUSED
            }
            Err(error) => {
                debug!(kind = %inner.scope.kind, %error, "discovery failed");
                if retry.is_lasting() {
                    inner.fail(error.to_string());
                }
                LAST_DELAY_AWAY
            }
        };
        // Retry soon after a CustomResourceDefinition was added or changed.
        tokio::select! {
            () = tokio::time::sleep(retry.delay(sent, last, None)) => {}
            _ = changed.changed() => retry.reset(),
        }
    }
}

fn source(inner: &Inner, client: &Client, resource: &ResolvedKind) -> WatchSource {
    let api: Api<DynamicObject> = match &inner.scope.namespace {
        Some(namespace) if resource.namespaced => {
            Api::namespaced_with(client.clone(), namespace, &resource.api)
        }
        _ => Api::all_with(client.clone(), &resource.api),
    };
    WatchSource {
        api,
        form: inner.scope.form,
        limits: Limits::default(),
    }
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
pub(super) async fn follow(inner: &Inner, source: &WatchSource, retry: &mut Retry) -> String {
    let mut keep = inner.keep.subscribe();
    let mut filled_under = keep.borrow_and_update().clone();
    let mut position = Position::start();
    loop {
        if keep.has_changed().unwrap_or(false) {
            let wanted = keep.borrow_and_update().clone();
            if !filled_under.covers(&wanted) {
                debug!(kind = %inner.scope.kind, "more of this kind is needed: listing again");
                position = Position::start();
            }
            filled_under = wanted;
        }
        let sent = Instant::now();
        let trouble = match &mut position {
            Position::Listing { token, listed } => {
                let newest_before = if token.is_none() { inner.newest() } else { None };
                match source.page(token.as_deref()).await {
                    Ok(page) => {
                        if token.is_none() {
                            inner.rewind_to(version_of(&page), newest_before);
                        }
                        match take(inner, page, token, listed, &keep) {
                            Taken::More => {
                                retry.since = None;
                                continue;
                            }
                            Taken::All(version) => {
                                retry.since = None;
                                position = Position::Watching(version);
                                continue;
                            }
                            Taken::Unusable => Trouble::Passing {
                                message:
                                    "the API server's list has no resource version, so it cannot be followed"
                                        .into(),
                                retry_after: None,
                                resumable: false,
                            },
                        }
                    }
                    Err(trouble) => trouble,
                }
            }
            Position::Watching(version) => {
                match changes(inner, source, version, retry, &mut keep, &mut filled_under).await {
                    Some(trouble) => trouble,
                    None => continue,
                }
            }
        };
        match trouble {
            Trouble::Refused(message) => return message,
            Trouble::NotServed if inner.was_listed.load(Ordering::Relaxed) && !retry.has_lasted(UNSERVED) => {
                debug!(kind = %inner.scope.kind, "the kind is not served: asking again");
                inner.metrics.watch_restarted(&inner.scope.kind);
                tokio::time::sleep(retry.delay(sent, LAST_DELAY_AWAY, None)).await;
            }
            Trouble::NotServed => return KindError::Unknown(inner.scope.kind.clone()).to_string(),
            Trouble::Outdated => {
                debug!(kind = %inner.scope.kind, "the last resource version has expired: listing again");
                inner.metrics.watch_restarted(&inner.scope.kind);
                position = Position::start();
                tokio::time::sleep(retry.delay(sent, LAST_DELAY_AWAY, None)).await;
            }
            Trouble::Passing {
                message,
                retry_after,
                resumable,
            } => {
                debug!(kind = %inner.scope.kind, message, "watch interrupted");
                inner.metrics.watch_restarted(&inner.scope.kind);
                if !resumable {
                    position = Position::start();
                }
                let delay = retry.delay(sent, LAST_DELAY_AWAY, retry_after);
                if retry.is_lasting() {
                    inner.fail(message);
                }
                tokio::time::sleep(delay).await;
            }
        }
    }
}

/// Returns the resource version of a list.
fn version_of(list: &ObjectList<DynamicObject>) -> Option<u128> {
    list.metadata.resource_version.as_deref()?.parse().ok()
}

/// The result of reading one page.
enum Taken {
    /// More pages follow.
    More,
    /// The last page; the store is complete up to this resource version.
    All(String),
    /// The last page of a list without a resource version.
    Unusable,
}

fn take(
    inner: &Inner,
    page: ObjectList<DynamicObject>,
    token: &mut Option<String>,
    listed: &mut HashSet<NamespacedName>,
    keep: &watch::Receiver<CachePolicy>,
) -> Taken {
    let list = version_of(&page);
    for object in page.items {
        listed.insert(NamespacedName::of(&object));
        inner.put_listed(&inner.prepare(object), list);
    }
    *token = page.metadata.continue_.filter(|token| !token.is_empty());
    if token.is_some() {
        return Taken::More;
    }
    inner.listed(listed, list);
    // A failing watch counts as recovered only once it watches again. Otherwise a client that may list but not
    // watch would alternate between recovered and failing.
    if !matches!(*inner.state.borrow(), WatchState::Failing(_)) {
        inner.synced(keep);
    }
    let version = page.metadata.resource_version;
    version
        .filter(|version| !version.is_empty())
        .map_or(Taken::Unusable, Taken::All)
}

/// Follows the changes after `version` and advances it. Returns `None` after a regular end, when the next watch
/// resumes from there.
async fn changes(
    inner: &Inner,
    source: &WatchSource,
    version: &mut String,
    retry: &mut Retry,
    keep: &mut watch::Receiver<CachePolicy>,
    filled_under: &mut CachePolicy,
) -> Option<Trouble> {
    let mut changes = match source.changes(version).await {
        Ok(changes) => changes,
        Err(trouble) => return Some(trouble),
    };
    let begun = Instant::now();
    // The server accepted the watch, so the error is over. The failure count is kept until the watch has lasted for
    // a while.
    retry.since = None;
    inner.synced(keep);
    loop {
        let event = tokio::select! {
            biased;
            // The sender is in `inner`.
            Ok(()) = keep.changed() => {
                let wanted = keep.borrow().clone();
                if filled_under.covers(&wanted) {
                    *filled_under = wanted;
                    inner.synced(keep);
                    continue;
                }
                // Let `follow` see the change.
                keep.mark_changed();
                return None;
            }
            event = changes.next() => event,
        };
        let object = match &event {
            Some(Ok(
                WatchEvent::Added(object) | WatchEvent::Modified(object) | WatchEvent::Deleted(object),
            )) => object.metadata.resource_version.clone(),
            Some(Ok(WatchEvent::Bookmark(bookmark))) => Some(bookmark.metadata.resource_version.clone()),
            _ => None,
        };
        if let Some(seen) = object.filter(|seen| !seen.is_empty()) {
            *version = seen;
            retry.reset();
        }
        if begun.elapsed() >= QUIET {
            retry.reset();
        }
        match event {
            Some(Ok(WatchEvent::Added(object) | WatchEvent::Modified(object))) => {
                inner.put(&inner.prepare(object));
            }
            Some(Ok(WatchEvent::Deleted(object))) => inner.deleted(object),
            Some(Ok(WatchEvent::Bookmark(_))) => {}
            Some(Ok(WatchEvent::Error(status))) => return Some(Trouble::of_status(&status)),
            Some(Err(trouble)) => return Some(trouble),
            None if begun.elapsed() >= QUIET => return None,
            // Back off from a server that ends watches as soon as they begin.
            None => {
                return Some(Trouble::Passing {
                    message: "the API server ended a watch as soon as it had begun".to_owned(),
                    retry_after: None,
                    resumable: true,
                });
            }
        }
    }
}

#[cfg(test)]
mod tests;
