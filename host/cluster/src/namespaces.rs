//! Tracks which namespaces are being deleted. Nothing is created in them: the API server would refuse it, and
//! objects that it deletes there would be recreated at once.
//!
//! A host that watches all namespaces also watches their metadata. A host that is limited to some may not be
//! allowed to, and learns of a deletion when the API server first refuses to create an object there. So does one
//! whose watch fails.

use std::collections::{BTreeSet, HashMap};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use kube::core::DynamicObject;
use tokio::time::Instant;

use super::cache::{Change, Reflector, SharedCache, Subscriber, Subscription, WatchState};
use operator_host_contract::Kind;
use operator_host_core::object::{NamespacedName, Selector, is_terminating};
use operator_host_core::sync::lock;

/// How long a refusal counts without a watch: the namespace may be deleted and recreated.
const REFUSAL_TTL: Duration = Duration::from_secs(60);

/// The known state of namespaces; see the module.
#[derive(Default)]
pub struct Namespaces {
    watched: Mutex<Option<Watched>>,
    /// The namespaces named by refusals, and when.
    refused: Arc<Refused>,
}

type Refused = Mutex<HashMap<String, Instant>>;

struct Watched {
    watch: Arc<Reflector>,
    _subscription: Subscription,
}

impl Namespaces {
    /// Starts or stops the watch of namespaces.
    pub fn watch(&self, watches: Option<&SharedCache>) {
        let mut watched = lock(&self.watched);
        match watches {
            None => *watched = None,
            Some(_) if watched.is_some() => {}
            Some(watches) => {
                let kind = Kind::new("v1", "Namespace");
                let watch = watches.watch_metadata(&kind);
                let refused = Arc::clone(&self.refused);
                let forget: Subscriber = Arc::new(move |_, change: &Change<'_>| {
                    if let Some((name, NamespaceChange::Usable)) = changed(change) {
                        lock(&refused).remove(name);
                    }
                });
                *watched = Some(Watched {
                    _subscription: watch.subscribe(forget),
                    watch,
                });
            }
        }
    }

    /// Reports whether a namespace is known to be terminating.
    pub fn is_terminating(&self, namespace: &str) -> bool {
        let is_refused = lock(&self.refused)
            .get(namespace)
            .is_some_and(|at| at.elapsed() < REFUSAL_TTL);
        is_refused
            || lock(&self.watched).as_ref().is_some_and(|watched| {
                let name = NamespacedName::new(None, namespace);
                // A failing watch does not notice that the namespace was recreated.
                !matches!(watched.watch.state_now(), WatchState::Failing(_))
                    && watched
                        .watch
                        .get(&name)
                        .is_some_and(|object| is_terminating(&object))
            })
    }

    /// Returns the names of the namespaces that a selector picks; `None` when namespaces are not watched.
    #[must_use]
    pub fn select(&self, selector: &Selector) -> Option<BTreeSet<String>> {
        let watched = lock(&self.watched);
        let found = watched.as_ref()?.watch.select(None, selector);
        Some(found.iter().filter_map(|it| it.metadata.name.clone()).collect())
    }

    /// Records that the API server refused to create an object because the namespace is terminating.
    pub fn refused(&self, namespace: &str) {
        let mut refused = lock(&self.refused);
        refused.retain(|_, at| at.elapsed() < REFUSAL_TTL);
        refused.insert(namespace.to_owned(), Instant::now());
    }

    /// Records that a new object exists in a namespace: objects can be created in it again.
    pub fn object_created(&self, namespace: &str) {
        lock(&self.refused).remove(namespace);
    }

    /// Calls `notify` with the name of each namespace that begins to terminate, of each in which objects can be
    /// created again, and of each whose labels have changed. Returns `None` when namespaces are not watched.
    #[must_use]
    pub fn on_change(
        &self,
        notify: impl Fn(&str, NamespaceChange) + Send + Sync + 'static,
    ) -> Option<Subscription> {
        let watch = lock(&self.watched)
            .as_ref()
            .map(|watched| Arc::clone(&watched.watch))?;
        Some(watch.subscribe(Arc::new(move |_, change| {
            if let Some((name, change)) = changed(change) {
                notify(name, change);
            }
        })))
    }
}

/// A change of a namespace's state.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum NamespaceChange {
    /// It is being deleted.
    Terminating,
    /// Objects can be created in it again.
    Usable,
    /// Its labels have changed.
    Relabeled,
}

/// Returns the name of a namespace that has changed, and how.
fn changed<'a>(change: &Change<'a>) -> Option<(&'a str, NamespaceChange)> {
    let after = change.after()?;
    let name = after.metadata.name.as_deref()?;
    Some((name, difference(change.before(), after)?))
}

/// Returns how a namespace has changed, if that concerns anyone. `before` is `None` for a new one.
fn difference(before: Option<&Arc<DynamicObject>>, after: &DynamicObject) -> Option<NamespaceChange> {
    match (before.map(|it| is_terminating(it)), is_terminating(after)) {
        (None | Some(true), false) => Some(NamespaceChange::Usable),
        (None | Some(false), true) => Some(NamespaceChange::Terminating),
        _ => before
            .is_some_and(|before| before.metadata.labels != after.metadata.labels)
            .then_some(NamespaceChange::Relabeled),
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicBool, Ordering};

    use serde_json::{Value, json};

    use super::*;
    use crate::discovery::Discovery;
    use crate::testing::{answering, refusal, resources};
    use operator_host_telemetry::metrics::Metrics;

    #[test]
    fn a_refusal_is_remembered_for_its_namespace_alone() {
        let namespaces = Namespaces::default();
        namespaces.refused("going");
        assert!(namespaces.is_terminating("going"));
        assert!(!namespaces.is_terminating("shop"));
        namespaces.refused("shop");
        namespaces.object_created("going");
        assert!(!namespaces.is_terminating("going"));
        assert!(namespaces.is_terminating("shop"));
    }

    /// Regression: a namespace that was recreated while the watch failed counted as terminating forever.
    #[tokio::test]
    async fn a_failing_watch_does_not_keep_a_namespace_terminating() {
        let is_refused = Arc::new(AtomicBool::new(false));
        let refused = Arc::clone(&is_refused);
        let client = answering(move |uri| {
            if refused.load(Ordering::Relaxed) {
                refusal(403, "no")
            } else if uri.contains("watch=true") {
                (200, Value::Null)
            } else if uri.contains("namespaces") {
                let going = json!({ "metadata": { "name": "a", "uid": "u", "resourceVersion": "5",
                    "deletionTimestamp": "2026-01-01T00:00:00Z" } });
                let list = json!({ "kind": "PartialObjectMetadataList", "apiVersion": "meta.k8s.io/v1",
                    "metadata": { "resourceVersion": "9" }, "items": [going] });
                (200, list)
            } else {
                let mut list = resources("v1", &[("namespaces", "Namespace")]);
                list["resources"][0]["namespaced"] = false.into();
                (200, list)
            }
        });
        let metrics = Arc::new(Metrics::unread());
        let kinds = Arc::new(Discovery::new(client.clone(), Arc::clone(&metrics)));
        let watches = SharedCache::new(client, kinds, metrics);
        let namespaces = Namespaces::default();
        namespaces.watch(Some(&watches));
        let until = async |is_terminating: bool| {
            while namespaces.is_terminating("a") != is_terminating {
                tokio::time::sleep(Duration::from_millis(5)).await;
            }
        };
        let limit = Duration::from_secs(30);
        tokio::time::timeout(limit, until(true))
            .await
            .expect("terminating");
        is_refused.store(true, Ordering::Relaxed);
        tokio::time::timeout(limit, until(false)).await.expect("unknown");
    }

    #[test]
    fn a_namespace_is_usable_again_when_it_is_new_and_begins_to_terminate_once() {
        let namespace = |deleted: Option<&str>| {
            let text = serde_json::json!({
                "apiVersion": "v1", "kind": "Namespace",
                "metadata": { "name": "a", "deletionTimestamp": deleted },
            });
            Arc::new(serde_json::from_value::<kube::core::DynamicObject>(text).unwrap())
        };
        let (there, going) = (namespace(None), namespace(Some("2026-01-01T00:00:00Z")));
        for (before, after, expected) in [
            (None, &there, Some(NamespaceChange::Usable)),
            (Some(&going), &there, Some(NamespaceChange::Usable)),
            (Some(&there), &there, None),
            (None, &going, Some(NamespaceChange::Terminating)),
            (Some(&there), &going, Some(NamespaceChange::Terminating)),
            (Some(&going), &going, None),
        ] {
            assert_eq!(difference(before, after), expected, "{before:?} {after:?}");
        }
    }
}
