//! Follows the Leases by a watch, so that a replica that does not lead need not read them again and again.
//!
//! What it knows may be old. That cannot make two leaders: a lease is taken with an update that contains the version it
//! is based on, and the API server refuses one that is based on an old version. It could delay a takeover, so
//! silence ends a watch, and while there is none, the elector reads by itself.

use std::collections::BTreeMap;
use std::collections::btree_map::Entry;
use std::time::Duration;

use futures::{StreamExt, TryStreamExt};
use k8s_openapi::api::coordination::v1::Lease;
use kube::Api;
use kube::api::{ListParams, WatchParams};
use kube::core::WatchEvent;
use tokio::sync::watch;
use tokio::task::JoinHandle;
use tokio::time::{Instant, timeout};
use tracing::{debug, warn};

use super::leases::LeaseError;
use operator_host_cluster::refusal::is_missing_object;
use operator_host_config::leadership::Timing;
use operator_host_core::backoff::at_least;

/// How long one watch lasts. The API server is asked to end it then.
const WATCH: Duration = Duration::from_secs(290);
/// How long to wait after the API server refused a watch: somebody may grant the permission meanwhile.
const REFUSED: Duration = Duration::from_secs(30);

/// All Leases that are followed, by name; `None` while the watch is interrupted.
type Known = Option<BTreeMap<String, Lease>>;

/// What to read or to follow, and how.
#[derive(Clone)]
pub(super) struct Source {
    pub(super) api: Api<Lease>,
    /// The name of the only Lease; `None` for all of the namespace, whatever their labels are: somebody may have removed
    /// one.
    pub(super) only: Option<String>,
    pub(super) timing: Timing,
}

/// Why a watch ended.
enum End {
    /// As it should, after a while. What is known stays valid until the next one has begun.
    Regular,
    Failed(kube::Error),
    /// No answer, or no event for too long.
    Silent,
}

/// A watch and what it knows. It ends when it is dropped.
pub(super) struct LeaseWatch {
    known: watch::Sender<Known>,
    /// Sees a change when there is something to do: a renewal alone is not.
    woken: watch::Receiver<Known>,
    task: JoinHandle<()>,
}

impl Drop for LeaseWatch {
    fn drop(&mut self) {
        self.task.abort();
    }
}

impl LeaseWatch {
    pub(super) fn start(source: Source) -> Self {
        let (known, woken) = watch::channel(None);
        let task = tokio::spawn(run(source, known.clone()));
        Self { known, woken, task }
    }

    /// Returns all Leases; `None` when they have to be read.
    pub(super) fn known(&self) -> Option<BTreeMap<String, Lease>> {
        self.known.borrow().clone()
    }

    /// Adds the answer to a write, which the watch reports later.
    pub(super) fn record(&self, lease: &Lease) {
        put(&self.known, lease.clone());
    }

    /// Waits until a replica may have something to do.
    pub(super) async fn changed(&mut self) {
        // The sender is in `self`.
        let _ = self.woken.changed().await;
    }
}

/// Follows the Leases for ever.
async fn run(source: Source, known: watch::Sender<Known>) {
    let mut has_warned = false;
    loop {
        let end = follow(&source, &known).await;
        if matches!(end, End::Regular) {
            continue;
        }
        if known.borrow().is_some() {
            known.send_replace(None);
        }
        let delay = match end {
            End::Failed(error) => {
                let is_refused =
                    matches!(&error, kube::Error::Api(status) if matches!(status.code, 401 | 403));
                let name = source.only.as_deref().unwrap_or("of this namespace");
                let error = LeaseError::new("watch", name, Some(&error));
                if is_refused && !has_warned {
                    warn!("{error}; until then this replica reads it several times in each `retryPeriod`");
                    has_warned = true;
                } else {
                    debug!("{error}");
                }
                let asked = error.retry_after.map(at_least).unwrap_or_default();
                if is_refused {
                    REFUSED
                } else {
                    source.timing.retry_period.max(asked)
                }
            }
            End::Silent | End::Regular => source.timing.retry_period,
        };
        tokio::time::sleep(delay).await;
    }
}

async fn follow(source: &Source, known: &watch::Sender<Known>) -> End {
    // Answers take no longer than this for a leader, either.
    let patience = source.timing.renew_deadline / 2;
    // A leader renews in every `retry_period`, and one that is late may still lead.
    let silence = source.timing.retry_period * 2;
    let (all, version) = match timeout(patience, read(source)).await {
        Ok(Ok(read)) => read,
        Ok(Err(error)) => return End::Failed(error),
        Err(_elapsed) => return End::Silent,
    };
    let mut params = WatchParams::default().timeout(u32::try_from(WATCH.as_secs()).unwrap_or(u32::MAX));
    params.field_selector = source.only.as_ref().map(|name| format!("metadata.name={name}"));
    let mut events = match timeout(patience, source.api.watch(&params, &version)).await {
        Ok(Ok(events)) => events.boxed(),
        Ok(Err(error)) => return End::Failed(error),
        Err(_elapsed) => return End::Silent,
    };
    let begun = Instant::now();
    known.send_replace(Some(all));
    loop {
        let event = match timeout(silence, events.try_next()).await {
            Ok(Ok(Some(event))) => event,
            Ok(Ok(None)) if begun.elapsed() > silence => return End::Regular,
            // An API server that ends watches as soon as they begin.
            Ok(Ok(None)) | Err(_) => return End::Silent,
            Ok(Err(error)) => return End::Failed(error),
        };
        match event {
            WatchEvent::Added(lease) | WatchEvent::Modified(lease) => put(known, lease),
            WatchEvent::Deleted(lease) => remove(known, &lease),
            WatchEvent::Bookmark(_) => {}
            WatchEvent::Error(status) => return End::Failed(kube::Error::Api(status)),
        }
    }
}

/// Reads the Leases, and the version after which to watch them.
pub(super) async fn read(source: &Source) -> kube::Result<(BTreeMap<String, Lease>, String)> {
    let Some(name) = &source.only else {
        let list = source.api.list(&ListParams::default()).await?;
        let version = list.metadata.resource_version.unwrap_or_default();
        let named = list
            .items
            .into_iter()
            .filter_map(|lease| Some((lease.metadata.name.clone()?, lease)));
        return Ok((named.collect(), version));
    };
    // A role that names the Lease allows no list.
    match source.api.get(name).await {
        Ok(lease) => {
            let version = lease.metadata.resource_version.clone().unwrap_or_default();
            Ok((BTreeMap::from([(name.clone(), lease)]), version))
        }
        // Without a version, the watch begins with the Lease if it was created since.
        Err(kube::Error::Api(status)) if is_missing_object(&status, name) => {
            Ok((BTreeMap::new(), String::new()))
        }
        Err(error) => Err(error),
    }
}

/// Adds a Lease, unless what is known is newer.
fn put(known: &watch::Sender<Known>, lease: Lease) {
    known.send_if_modified(|known| {
        let (Some(known), Some(name)) = (known, lease.metadata.name.clone()) else {
            return false;
        };
        match known.entry(name) {
            Entry::Occupied(mut entry) if !is_newer(entry.get(), &lease) => {
                let is_more_than_renewed = is_more_than_renewed(entry.get(), &lease);
                entry.insert(lease);
                is_more_than_renewed
            }
            Entry::Occupied(_) => false,
            Entry::Vacant(entry) => {
                entry.insert(lease);
                true
            }
        }
    });
}

fn remove(known: &watch::Sender<Known>, lease: &Lease) {
    known.send_if_modified(|known| {
        let (Some(known), Some(name)) = (known, &lease.metadata.name) else {
            return false;
        };
        // It may have been created again since.
        let is_gone = known.get(name).is_some_and(|there| !is_newer(there, lease));
        if is_gone {
            known.remove(name);
        }
        is_gone
    });
}

/// Whether `this` is newer than `that`. Versions that are no numbers cannot be compared: the last one counts.
fn is_newer(this: &Lease, that: &Lease) -> bool {
    let version = |lease: &Lease| lease.metadata.resource_version.as_deref()?.parse::<u128>().ok();
    version(this) > version(that) && version(that).is_some()
}

/// Whether a replica may have to act at once.
fn is_more_than_renewed(before: &Lease, after: &Lease) -> bool {
    let holder = |lease: &Lease| lease.spec.as_ref().and_then(|spec| spec.holder_identity.clone());
    holder(before) != holder(after)
        || before.metadata.annotations != after.metadata.annotations
        || before.metadata.labels != after.metadata.labels
        || before.metadata.uid != after.metadata.uid
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;

    fn lease(version: &str, holder: &str, renewed: u32) -> Lease {
        let renewed = format!("2026-01-01T00:00:{renewed:02}.000000Z");
        serde_json::from_value(json!({ "metadata": { "name": "l", "resourceVersion": version },
            "spec": { "holderIdentity": holder, "renewTime": renewed } }))
        .unwrap()
    }

    fn version_of(known: &watch::Sender<Known>) -> Value {
        let known = known.borrow();
        let lease = known.as_ref().and_then(|known| known.get("l"));
        json!(lease.map(|lease| lease.metadata.resource_version.clone()))
    }

    #[test]
    fn only_what_a_replica_may_have_to_act_on_wakes_it() {
        let known = watch::Sender::new(Some(BTreeMap::new()));
        let mut woken = known.subscribe();
        let mut wakes = |act: &dyn Fn()| {
            woken.mark_unchanged();
            act();
            woken.has_changed().unwrap()
        };
        assert!(wakes(&|| put(&known, lease("8", "a", 1))), "a new Lease");
        assert!(!wakes(&|| put(&known, lease("9", "a", 2))), "a renewal");
        assert_eq!(version_of(&known), "9");
        assert!(wakes(&|| put(&known, lease("10", "", 3))), "a release");
        assert!(wakes(&|| remove(&known, &lease("11", "", 3))), "a deletion");
    }

    #[test]
    fn what_the_watch_reports_late_replaces_nothing_newer() {
        let known = watch::Sender::new(Some(BTreeMap::new()));
        put(&known, lease("10", "a", 1));
        put(&known, lease("9", "b", 1));
        remove(&known, &lease("9", "b", 1));
        assert_eq!(version_of(&known), "10");
        // Nothing is known while nothing is followed.
        known.send_replace(None);
        put(&known, lease("11", "a", 1));
        assert_eq!(version_of(&known), json!(null));
    }
}
