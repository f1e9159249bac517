//! Controllers that are objects of the cluster (`kind: Controller`): they run beside those of the configuration file, as far as
//! its ceilings allow it.

pub(super) mod admit;
pub(super) mod report;
mod status;

use std::sync::Arc;

use kube::core::DynamicObject;
use tokio::sync::Notify;

use operator_host_cluster::cache::{Reflector, SharedCache, Subscription, WatchState};
use operator_host_config::{Config, object};
use operator_host_core::object::{NamespacedName, Selector, is_terminating};

/// The Controllers of the cluster.
pub(super) struct Objects {
    watches: Arc<SharedCache>,
    definitions: Arc<Reflector>,
    changed: Arc<Notify>,
    _definitions: Subscription,
    watch: Option<(Arc<Reflector>, Subscription)>,
}

impl Objects {
    /// `definitions` says whether the cluster has the kind at all.
    pub(super) fn new(watches: Arc<SharedCache>, definitions: Arc<Reflector>) -> Self {
        let changed = Arc::<Notify>::default();
        let hint = Arc::clone(&changed);
        let subscription = definitions.subscribe(Arc::new(move |_, change| {
            let name = change.object().and_then(|object| object.metadata.name.as_deref());
            if name.is_some_and(|name| name == definition().name) {
                hint.notify_one();
            }
        }));
        Self {
            watches,
            definitions,
            changed,
            _definitions: subscription,
            watch: None,
        }
    }

    /// Returns the watch of the Controllers: none while the kind is not defined, and none for a host without ceilings. When the
    /// ceilings are taken away from a running host, the Controllers are told that they may not run.
    pub(super) fn watch(&mut self, config: &Config) -> Option<Arc<Reflector>> {
        // A host that may not read definitions tries.
        let is_defined = matches!(self.definitions.state_now(), WatchState::Failing(_))
            || self.definitions.contains(&definition());
        let is_ignored = config.ceilings.is_none() && self.watch.is_none();
        if is_ignored || !is_defined {
            self.watch = None;
            return None;
        }
        let (watch, _) = self.watch.get_or_insert_with(|| {
            let watch = self.watches.watch(&object::kind(), None);
            let hint = Arc::clone(&self.changed);
            let subscription = watch.subscribe(Arc::new(move |_, change| {
                // The host writes the rest itself.
                let written_by_users =
                    |object: &Arc<DynamicObject>| (object.metadata.generation, is_terminating(object));
                if change.before().map(written_by_users) != change.after().map(written_by_users) {
                    hint.notify_one();
                }
            }));
            (watch, subscription)
        });
        Some(Arc::clone(watch))
    }

    /// Reports whether the Controllers are known: they have been listed, or cannot be.
    pub(super) fn are_known(&self, config: &Config) -> bool {
        config.ceilings.is_none() || self.sources().all(|watch| is_decided(&watch.state_now()))
    }

    /// Waits until more of them may be known.
    pub(super) async fn known(&self) {
        for watch in self.sources() {
            // The sender is in the watch.
            let _ = watch.state().wait_for(is_decided).await;
        }
    }

    fn sources(&self) -> impl Iterator<Item = &Arc<Reflector>> {
        let watch = self.watch.as_ref().map(|(watch, _)| watch);
        std::iter::once(&self.definitions).chain(watch)
    }

    /// Waits for a change of what users write.
    pub(super) async fn changed(&self) {
        self.changed.notified().await;
    }
}

fn is_decided(state: &WatchState) -> bool {
    *state != WatchState::Starting
}

/// Returns all Controllers.
pub(super) fn all(watch: &Reflector) -> Vec<Arc<DynamicObject>> {
    watch.select(None, &Selector::default())
}

fn definition() -> NamespacedName {
    NamespacedName {
        namespace: None,
        name: format!("{}.{}", object::PLURAL, object::GROUP),
    }
}
