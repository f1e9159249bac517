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
                    if let Some(name) = usable_again(change.before(), change.after()) {
                        lock(&refused).remove(&name);
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
                let name = NamespacedName {
                    namespace: None,
                    name: namespace.to_owned(),
                };
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
            let (before, after) = (change.before(), change.after());
            if let Some(name) = usable_again(before, after) {
                notify(&name, NamespaceChange::Usable);
            } else if let Some(name) = begins_to_terminate(before, after) {
                notify(&name, NamespaceChange::Terminating);
            } else if let (Some(before), Some(after)) = (before, after)
                && before.metadata.labels != after.metadata.labels
            {
                notify(
                    after.metadata.name.as_deref().unwrap_or_default(),
                    NamespaceChange::Relabeled,
                );
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

/// A namespace before or after a change; `None` when there is none.
type State<'a> = Option<&'a Arc<DynamicObject>>;

/// Returns the name of a namespace that is new, or that replaces a terminating one.
fn usable_again(before: State<'_>, after: State<'_>) -> Option<String> {
    let new = after.filter(|new| !is_terminating(new))?;
    let was = before.is_some_and(|old| !is_terminating(old));
    if was { None } else { new.metadata.name.clone() }
}

/// Returns the name of a namespace whose deletion has just begun.
fn begins_to_terminate(before: State<'_>, after: State<'_>) -> Option<String> {
    let new = after.filter(|new| is_terminating(new))?;
    let was = before.is_some_and(|old| is_terminating(old));
    if was { None } else { new.metadata.name.clone() }
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
        let usable = |old, new| usable_again(old, new).is_some();
        assert!(usable(None, Some(&there)));
        assert!(usable(Some(&going), Some(&there)));
        assert!(!usable(Some(&there), Some(&there)));
        assert!(!usable(Some(&there), Some(&going)));
        assert!(!usable(None, Some(&going)));
        assert!(!usable(Some(&going), None));
        let goes = |old, new| begins_to_terminate(old, new).is_some();
        assert!(goes(None, Some(&going)));
        assert!(goes(Some(&there), Some(&going)));
        assert!(!goes(Some(&going), Some(&going)));
        assert!(!goes(Some(&there), Some(&there)));
        assert!(!goes(Some(&going), None));
    }
}
