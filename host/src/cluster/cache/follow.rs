//! One watch: lists, follows, and goes on where it was after whatever came in between.
//!
//! Only what takes the position away lets it list again: a refusal for good, a position that the API server has
//! forgotten, more of the kind that is needed. A server that has no time, or is not there, is asked for what came
//! after the last change, so that it need not send everything to everybody while it recovers.

use std::collections::HashSet;
use std::sync::Arc;
use std::time::Duration;

use kube::core::{DynamicObject, ObjectList, WatchEvent};
use kube::{Api, Client};
use tokio::sync::watch;
use tokio::time::Instant;
use tracing::debug;

use super::source::{Limits, Source, Trouble};
use super::{Inner, Keep, WatchState};
use crate::cluster::discovery::{KindError, Kinds, Resource};
use crate::object::ObjectName;
use crate::work_queue::backoff::jittered;

/// The first delay between tries of a failing watch; doubled each time.
const FIRST_DELAY: Duration = Duration::from_millis(100);
/// The longest while the API server does not answer: it comes back without a word, and a try costs one connection.
const LAST_DELAY_AWAY: Duration = Duration::from_secs(1);
/// The longest while it refuses: a permission that is given back is noticed after this time at the latest.
const LAST_DELAY_REFUSED: Duration = Duration::from_secs(5);
/// The longest that a server is left alone because it asks for it.
const LAST_RETRY_AFTER: Duration = Duration::from_secs(60);
/// For how long a trouble that passes by itself is nobody's business.
const GRACE: Duration = Duration::from_secs(60);
/// A watch that has run for so long was well, though it brought nothing.
const QUIET: Duration = Duration::from_secs(5);

/// The failures of one watch in a row.
pub(super) struct Retry {
    failures: u32,
    /// When the first request that failed was sent.
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
    /// What was asked for is there.
    fn reset(&mut self) {
        (self.failures, self.since) = (0, None);
    }

    /// Counts the failure of a request that was sent at `sent`. How long to wait after it: at most `last`, but as long
    /// as the API server has asked for; never the same time for all who failed together.
    fn delay(&mut self, sent: Instant, last: Duration, asked: Option<Duration>) -> Duration {
        let delay = FIRST_DELAY.saturating_mul(1 << self.failures.min(16)).min(last);
        self.failures = self.failures.saturating_add(1);
        self.since.get_or_insert(sent);
        let asked = asked.unwrap_or_default().min(LAST_RETRY_AFTER);
        // What it asks for is the least: the jitter is on top.
        jittered(delay, 0.5).max(asked + jittered(asked / 2, 1.0))
    }

    /// Whether it has failed for longer than what passes by itself does.
    fn is_lasting(&self) -> bool {
        self.since.is_some_and(|since| since.elapsed() >= self.grace)
    }
}

/// Runs one watch for as long as somebody holds it.
pub(super) async fn run(inner: Arc<Inner>, client: Client, kinds: Arc<Kinds>) {
    let mut changed = kinds.subscribe();
    let mut retry = Retry::default();
    loop {
        changed.mark_unchanged();
        let sent = Instant::now();
        let last = match kinds.resolve(&inner.scope.kind).await {
            Ok(resource) => {
                let source = source(&inner, &client, &resource);
                inner.fail(follow(&inner, &source, &mut retry).await);
                // The definition may have gone, or come back with another plural.
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
        // A CustomResourceDefinition that comes or changes is worth a try soon.
        tokio::select! {
            () = tokio::time::sleep(retry.delay(sent, last, None)) => {}
            _ = changed.changed() => retry.reset(),
        }
    }
}

fn source(inner: &Inner, client: &Client, resource: &Resource) -> Source {
    let api: Api<DynamicObject> = match &inner.scope.namespace {
        Some(namespace) if resource.namespaced => {
            Api::namespaced_with(client.clone(), namespace, &resource.api)
        }
        _ => Api::all_with(client.clone(), &resource.api),
    };
    Source {
        api,
        form: inner.scope.form,
        limits: Limits::default(),
    }
}

/// How far a watch is.
enum Position {
    /// So much of the list is there.
    Listing {
        token: Option<String>,
        listed: HashSet<ObjectName>,
    },
    /// All up to this resource version is there.
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

/// Follows one kind until the API server refuses it for good; says why.
pub(super) async fn follow(inner: &Inner, source: &Source, retry: &mut Retry) -> String {
    let mut keep = inner.keep.subscribe();
    let mut filled_under = keep.borrow_and_update().clone();
    let mut position = Position::start();
    loop {
        if keep.has_changed().unwrap_or(false) {
            let wanted = keep.borrow_and_update().clone();
            if !filled_under.covers(&wanted) {
                debug!(kind = %inner.scope.kind, "more of this kind is needed: listing anew");
                position = Position::start();
            }
            filled_under = wanted;
        }
        let sent = Instant::now();
        let trouble = match &mut position {
            Position::Listing { token, listed } => match source.page(token.as_deref()).await {
                Ok(page) => match take(inner, page, token, listed, &keep) {
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
                        message: "the API server's list has no resource version, so it cannot be followed"
                            .into(),
                        retry_after: None,
                        resumable: false,
                    },
                },
                Err(trouble) => trouble,
            },
            Position::Watching(version) => {
                match changes(inner, source, version, retry, &mut keep, &mut filled_under).await {
                    Some(trouble) => trouble,
                    None => continue,
                }
            }
        };
        match trouble {
            Trouble::Refused(message) => return message,
            Trouble::NotServed => return KindError::Unknown(inner.scope.kind.clone()).to_string(),
            Trouble::Outdated => {
                debug!(kind = %inner.scope.kind, "too much has changed meanwhile: listing anew");
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

/// What a page was.
enum Taken {
    /// One of several.
    More,
    /// The last; all up to this resource version is there.
    All(String),
    /// The last of a list that has no version.
    Unusable,
}

fn take(
    inner: &Inner,
    page: ObjectList<DynamicObject>,
    token: &mut Option<String>,
    listed: &mut HashSet<ObjectName>,
    keep: &watch::Receiver<Keep>,
) -> Taken {
    for object in page.items {
        listed.insert(ObjectName::of(&object));
        inner.put(&inner.prepare(object));
    }
    *token = page.metadata.continue_.filter(|token| !token.is_empty());
    if token.is_some() {
        return Taken::More;
    }
    inner.listed(listed);
    // One that failed is well when it is watched again: who may list and not watch would be told that it is with each
    // list, and that it is not right after.
    if !matches!(*inner.state.borrow(), WatchState::Failing(_)) {
        inner.synced(keep);
    }
    let version = page.metadata.resource_version;
    version
        .filter(|version| !version.is_empty())
        .map_or(Taken::Unusable, Taken::All)
}

/// Follows the changes after `version`, and moves it on. `None` at a good end, after which the next watch goes on.
async fn changes(
    inner: &Inner,
    source: &Source,
    version: &mut String,
    retry: &mut Retry,
    keep: &mut watch::Receiver<Keep>,
    filled_under: &mut Keep,
) -> Option<Trouble> {
    let mut changes = match source.changes(version).await {
        Ok(changes) => changes,
        Err(trouble) => return Some(trouble),
    };
    let begun = Instant::now();
    // It is taken: whatever was wrong is over. How often it failed counts until it has shown that it lasts.
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
                // For `follow` to see.
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
            // A server that ends watches as soon as they begin is not asked again at once.
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
