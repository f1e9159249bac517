//! One watch: lists, follows, and starts again after a failure.

use std::collections::HashSet;
use std::pin::pin;
use std::sync::Arc;
use std::time::Duration;

use futures::StreamExt;
use kube::core::DynamicObject;
use kube::runtime::watcher;
use kube::{Api, Client};
use tokio::time::Instant;
use tracing::{debug, info};

use super::{Inner, WatchState};
use crate::controller::kinds::{KindError, Kinds, Resource};
use crate::controller::object::ObjectName;

/// The first delay between tries of a failing watch; doubled each time.
const FIRST_DELAY: Duration = Duration::from_millis(100);
/// The longest while the API server does not answer: it comes back without a word, and a try costs one connection.
const LAST_DELAY_AWAY: Duration = Duration::from_secs(1);
/// The longest while it refuses: a permission that is given back is noticed after this time at the latest.
const LAST_DELAY_REFUSED: Duration = Duration::from_secs(5);
/// After how many failures in a row a fault that is neither 403 nor 404 is no passing one any more.
const LASTING: u32 = 6;
/// After so long without a failure the next one is the first again.
const QUIET: Duration = Duration::from_secs(30);

/// The failures of one watch in a row, and how long to wait after them.
#[derive(Default)]
struct Retry {
    failures: u32,
}

impl Retry {
    fn reset(&mut self) {
        self.failures = 0;
    }

    /// Counts a failure; how long to wait after it, at most `last`.
    fn delay(&mut self, last: Duration) -> Duration {
        let delay = FIRST_DELAY.saturating_mul(1 << self.failures.min(16)).min(last);
        self.failures = self.failures.saturating_add(1);
        delay
    }
}

pub(super) async fn run(inner: Arc<Inner>, client: Client, kinds: Arc<Kinds>) {
    let mut changed = kinds.subscribe();
    let mut retry = Retry::default();
    loop {
        changed.mark_unchanged();
        let last = match kinds.resolve(&inner.scope.kind).await {
            Ok(resource) => {
                follow(&inner, &client, &resource, &mut retry).await;
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
                LAST_DELAY_AWAY
            }
        };
        // A CustomResourceDefinition that comes or changes is worth a try soon.
        tokio::select! {
            () = tokio::time::sleep(retry.delay(last)) => {}
            _ = changed.changed() => retry.reset(),
        }
    }
}

/// Follows one watch until the API server refuses it. What comes after starts with a list: only that says that
/// the cache is whole again.
async fn follow(inner: &Inner, client: &Client, resource: &Resource, retry: &mut Retry) {
    let api: Api<DynamicObject> = match &inner.scope.namespace {
        Some(namespace) if resource.namespaced => {
            Api::namespaced_with(client.clone(), namespace, &resource.api)
        }
        _ => Api::all_with(client.clone(), &resource.api),
    };
    let mut keep = inner.keep.subscribe();
    let mut filled_under = keep.borrow_and_update().clone();
    let mut stream = pin!(watcher(api.clone(), watcher::Config::default()));
    let mut listed = HashSet::new();
    let mut last_failure = Instant::now();
    loop {
        let event = tokio::select! {
            biased;
            // The sender is in `inner`.
            Ok(()) = keep.changed() => {
                let wanted = keep.borrow_and_update().clone();
                if !filled_under.covers(&wanted) {
                    debug!(kind = %inner.scope.kind, "more of this kind is needed: listing anew");
                    stream.set(watcher(api.clone(), watcher::Config::default()));
                }
                filled_under = wanted;
                continue;
            }
            event = stream.next() => event,
        };
        let Some(event) = event else { return };
        match event {
            Ok(watcher::Event::Init) => listed.clear(),
            Ok(watcher::Event::InitApply(object)) => {
                listed.insert(ObjectName::of(&object));
                inner.put(&inner.prepare(object));
            }
            Ok(watcher::Event::InitDone) => {
                inner.listed(&listed);
                listed = HashSet::new();
                if matches!(*inner.state.borrow(), WatchState::Failing(_)) {
                    info!(kind = %inner.scope.kind, namespace = inner.scope.namespace, "watching again");
                }
                inner.state.send_if_modified(|current| {
                    // Under another policy by now: the next turn of the loop sees to it.
                    let news = *current != WatchState::Synced && !keep.has_changed().unwrap_or(false);
                    if news {
                        *current = WatchState::Synced;
                    }
                    news
                });
                retry.reset();
            }
            Ok(watcher::Event::Apply(object)) => {
                inner.put(&inner.prepare(object));
                retry.reset();
            }
            Ok(watcher::Event::Delete(object)) => {
                inner.deleted(object);
                retry.reset();
            }
            Err(error) => {
                inner.metrics.watch_restarted(&inner.scope.kind);
                // A watch that has been quiet for long was well: nothing tells of a resumed one but its changes.
                if last_failure.elapsed() > QUIET {
                    retry.reset();
                }
                last_failure = Instant::now();
                if let Some(message) = refusal(inner, &error, retry.failures) {
                    inner.fail(message);
                    return;
                }
                tokio::time::sleep(retry.delay(LAST_DELAY_AWAY)).await;
            }
        }
    }
}

/// What is wrong when the API server refuses, and what to do. A server that is away is no refusal: the cache
/// stays as good as it was.
fn refusal(inner: &Inner, error: &watcher::Error, failures: u32) -> Option<String> {
    use watcher::Error;
    let status = match error {
        Error::InitialListFailed(kube::Error::Api(status))
        | Error::WatchStartFailed(kube::Error::Api(status))
        | Error::WatchFailed(kube::Error::Api(status)) => status,
        Error::WatchError(status) => status,
        other => {
            debug!(kind = %inner.scope.kind, error = %other, "watch interrupted");
            return None;
        }
    };
    let said = status.message.trim_end_matches('.');
    match status.code {
        401 => Some(super::super::api::unknown_to_the_server(said)),
        403 => Some(format!(
            "{said}; give the host's role the verbs list and watch on it"
        )),
        404 => Some(KindError::Unknown(inner.scope.kind.clone()).to_string()),
        // The resource version is too old after a gap: kube lists anew.
        410 => None,
        code if failures >= LASTING => Some(format!("the API server answers {code}: {said}")),
        code => {
            debug!(kind = %inner.scope.kind, code, message = said, "watch interrupted");
            None
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_server_that_is_away_is_tried_every_second_however_long_it_takes() {
        let mut retry = Retry::default();
        let delays: Vec<_> = (0..50)
            .map(|_| retry.delay(LAST_DELAY_AWAY).as_millis())
            .collect();
        assert_eq!(delays[..5], [100, 200, 400, 800, 1000]);
        assert_eq!(delays[49], 1000);
    }
}
