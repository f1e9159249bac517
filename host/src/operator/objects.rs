//! Controllers that are objects of the cluster (`kind: Controller`): they run beside those of the configuration file, as far as
//! its ceilings allow it.

pub(super) mod admit;
pub(super) mod records;
pub(super) mod report;
mod status;
mod undecorate;
pub(super) mod waiting;

use std::sync::Arc;

use kube::core::DynamicObject;
use tokio::sync::Notify;

use operator_host_cluster::cache::{Reflector, SharedCache, Subscription, WatchState};
use operator_host_config::{Config, object};
use operator_host_core::object::{NamespacedName, Selector, annotation, holder_annotation, is_terminating};

use self::records::KindRecords;

/// The Controllers of the cluster.
pub(super) struct Objects {
    watches: Arc<SharedCache>,
    definitions: Arc<Reflector>,
    installation: String,
    changed: Arc<Notify>,
    _definitions: Subscription,
    watch: Option<(Arc<Reflector>, Subscription)>,
}

impl Objects {
    /// `definitions` says whether the cluster has the kind at all, and has the records of this installation.
    pub(super) fn new(watches: Arc<SharedCache>, definitions: Arc<Reflector>, installation: String) -> Self {
        let changed = Arc::<Notify>::default();
        let hint = Arc::clone(&changed);
        let key = holder_annotation(&installation);
        let subscription = definitions.subscribe(Arc::new(move |_, change| {
            let name = change.object().and_then(|object| object.metadata.name.as_deref());
            let holder = |definition: Option<&Arc<DynamicObject>>| {
                definition.and_then(|it| annotation(it, &key)).map(str::to_owned)
            };
            if name.is_some_and(|name| name == definition().name)
                || holder(change.before()) != holder(change.after())
            {
                hint.notify_one();
            }
        }));
        Self {
            watches,
            definitions,
            installation,
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
        if !is_defined || config.ceilings.is_none() && self.watch.is_none() {
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

    /// Returns which controllers reconcile the kinds, as recorded.
    pub(super) fn records(&self) -> KindRecords {
        records::read(&self.definitions, &self.installation)
    }

    /// Reports whether the Controllers are known: they have been listed, or cannot be.
    pub(super) fn are_known(&self, config: &Config) -> bool {
        let is_known = |watch: &Arc<Reflector>| watch.state_now() != WatchState::Starting;
        config.ceilings.is_none() || self.sources().all(is_known)
    }

    /// Waits until more of them may be known.
    pub(super) async fn known(&self) {
        for watch in self.sources() {
            // The sender is in the watch.
            let mut state = watch.state();
            let _ = state.wait_for(|state| *state != WatchState::Starting).await;
        }
    }

    fn sources(&self) -> impl Iterator<Item = &Arc<Reflector>> {
        let watch = self.watch.as_ref().map(|(watch, _)| watch);
        std::iter::once(&self.definitions).chain(watch)
    }

    /// Reports whether all Controllers and all records are known. A list that is under way, or that failed, has some of them, and
    /// who keeps a kind may not be among these.
    pub(super) fn are_listed(&self, watch: &Reflector) -> bool {
        let is_listed = watch.was_listed() && watch.state_now() != WatchState::Starting;
        // A host that may not read definitions has no records.
        let may_not = |state| matches!(state, WatchState::Failing(why) if status::is_forbidden(&why));
        is_listed && (self.definitions.was_listed() || may_not(self.definitions.state_now()))
    }

    /// Waits until they are.
    pub(super) async fn listed(&self) {
        for watch in self.sources() {
            // The sender is in the watch.
            let _ = watch.state().wait_for(|state| *state == WatchState::Synced).await;
        }
    }

    /// Waits for a change of what users write.
    pub(super) async fn changed(&self) {
        self.changed.notified().await;
    }
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
