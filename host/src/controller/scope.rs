//! Changes the namespaces that a controller watches when the configuration changes. Its work in the other
//! namespaces continues.

use std::collections::BTreeSet;
use std::sync::Arc;

use futures::future::join_all;
use tracing::info;

use operator_host_cluster::cache::{Reflector, SharedCache, WatchState};
use operator_host_cluster::kind_reflectors::{ByNamespace, KindReflectors};
use operator_host_config::ControllerConfig;
use operator_host_contract::Kind;
use operator_host_engine::reconcile::context::Context;
use operator_host_engine::work_queue::Trigger;

/// Returns the namespaces in which a controller's children and reads are watched when its parents are in
/// `namespaces`, unless they are watched everywhere.
pub fn with_others<'a>(
    namespaces: &'a [String],
    config: &'a ControllerConfig,
) -> impl Iterator<Item = &'a String> {
    namespaces
        .iter()
        .chain(config.rules.other_names().into_iter().flatten())
}

/// Switches to other namespaces. Parents in new namespaces are reconciled once the first lists there are complete.
pub async fn set_namespaces(context: &Arc<Context>, watches: &SharedCache, namespaces: &[String]) {
    let (config, caches) = (&context.config, &context.caches);
    let own: BTreeSet<&String> = namespaces.iter().collect();
    let all: BTreeSet<&String> = with_others(namespaces, config).collect();
    let others = caches.children.iter().chain(&caches.reads);
    let others = others.map(|(kind, watches)| (kind, watches, &all));
    let (mut changes, mut added) = (Vec::new(), Vec::new());
    for (kind, seen, wanted) in others.chain([(&config.parent, &caches.parents, &own)]) {
        // A watch of all namespaces includes these.
        let Some(before) = seen.namespaces() else { continue };
        let after = following(watches, kind, &before, wanted);
        let new = after.iter().filter(|(name, _)| !before.contains_key(*name));
        added.extend(new.map(|(_, watch)| Arc::clone(watch)));
        changes.push((seen, after));
    }
    wait_for_lists(&added).await;
    let before = names(&caches.parents);
    for (seen, after) in changes {
        seen.replace(after);
    }
    let after = names(&caches.parents);
    super::subscribe(context);
    context.state.forget_outside(&after);
    for namespace in after.difference(&before) {
        super::enqueue_within(context, Some(namespace), &Trigger::Resync);
    }
    info!(
        controller = config.name,
        namespaces = namespaces.join(", "),
        "the watched namespaces have changed"
    );
}

fn following(
    watches: &SharedCache,
    kind: &Kind,
    before: &ByNamespace,
    wanted: &BTreeSet<&String>,
) -> ByNamespace {
    let watch = |name: &str| {
        let known = before.get(name).cloned();
        known.unwrap_or_else(|| watches.watch(kind, Some(name)))
    };
    wanted.iter().map(|name| ((*name).clone(), watch(name))).collect()
}

fn names(watches: &KindReflectors) -> BTreeSet<String> {
    watches.namespaces().unwrap_or_default().into_keys().collect()
}

/// Waits until each watch has listed or has failed to.
pub(super) async fn wait_for_lists(watches: &[Arc<Reflector>]) {
    join_all(watches.iter().map(|watch| async {
        let mut state = watch.state();
        let _ = state.wait_for(|state| *state != WatchState::Starting).await;
    }))
    .await;
}
