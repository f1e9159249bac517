//! Children of kinds that the plugin makes and the configuration does not list any more. The host does not watch them, so
//! nothing else would tell that they are there and stay as they are.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use kube::api::ListParams;
use kube::core::DynamicObject;
use tokio::sync::watch;
use tracing::debug;

use super::context::Context;
use crate::work_queue::Trigger;
use operator_host_cluster::objects::Objects;
use operator_host_contract::Kind;
use operator_host_core::object::{CONTROLLER_LABEL, ChildRef, NamespacedName, controller_of, first_few};
use operator_host_delivery::registry::Live;
use operator_host_desired::conditions::{KIND_NOT_LISTED, Reason};
use operator_host_desired::ownership::parent_of;

/// How often the host looks again while there are some.
const AGAIN: Duration = Duration::from_secs(20);
/// How many children a condition names.
const SHOWN: usize = 3;

/// Returns the condition about the children of a parent.
fn reason(children: &[ChildRef], controller: &str) -> Reason {
    let message = format!(
        "{}: the kind is not in `children` of the controller {controller:?}, so the host neither updates nor deletes \
         them; list the kind again, or delete them with kubectl",
        first_few(children, SHOWN, ", ")
    );
    Reason::new(KIND_NOT_LISTED, message)
}

/// Looks for such children when the plugin changes, and repeatedly while there are some. Never returns.
pub async fn follow(context: &Context, mut plugin: watch::Receiver<Live>) {
    loop {
        let makes = match &*plugin.borrow_and_update() {
            Live::Plugin(plugin) => plugin.description().makes.clone(),
            Live::Loading | Live::Failed(_) => Vec::new(),
        };
        let mut found = BTreeMap::<_, Vec<_>>::new();
        for kind in makes {
            if !context.config.rules.children.contains_key(&kind) {
                find(context, &kind, &mut found).await;
            }
        }
        let is_empty = found.is_empty();
        let reason = |children: Vec<_>| reason(&children, &context.config.name);
        let now = found
            .into_iter()
            .map(|(parent, children)| (parent, reason(children)));
        let now: BTreeMap<_, _> = now.collect();
        let before = context.state.unwatched.replace(now.clone());
        let parents: BTreeSet<_> = before.keys().chain(now.keys()).collect();
        for parent in parents {
            if before.get(parent) != now.get(parent) {
                context.queue.enqueue(parent, Trigger::Related);
            }
        }
        tokio::select! {
            Ok(()) = plugin.changed() => {}
            () = tokio::time::sleep(AGAIN), if !is_empty => {}
            else => return std::future::pending().await,
        }
    }
}

/// Finds the children of one kind. What the host may not list stays unknown.
async fn find(context: &Context, kind: &Kind, found: &mut BTreeMap<NamespacedName, Vec<ChildRef>>) {
    let Ok(resource) = context.cluster.kinds.resolve(kind).await else {
        return;
    };
    let params = ListParams::default().labels(&format!("{CONTROLLER_LABEL}={}", context.config.name));
    let places = match context.caches.parents.namespaces() {
        Some(namespaces) if resource.namespaced => namespaces.into_keys().map(Some).collect(),
        _ => vec![None],
    };
    for place in places {
        let objects = Objects::new(context.cluster.client.clone(), &resource.api, place.as_deref());
        let children = match objects.list_metadata(&params).await {
            Ok(list) => list.items,
            Err(error) => {
                debug!("cannot look for children of the kind {kind}, which is not listed: {error}");
                continue;
            }
        };
        for child in children {
            if let Some(parent) = parent_with(context, &child) {
                let (kind, name) = (kind.clone(), NamespacedName::of(&child));
                found.entry(parent).or_default().push(ChildRef { kind, name });
            }
        }
    }
}

/// Returns the existing parent of a child.
fn parent_with(context: &Context, child: &DynamicObject) -> Option<NamespacedName> {
    let namespaced = context.cluster.served.parent.namespaced;
    let name = parent_of(context.config.scope(), namespaced, child)?;
    let parent = context.caches.parent(&name)?;
    let is_owner = controller_of(child).is_none_or(|owner| parent.metadata.uid.as_ref() == Some(&owner.uid));
    is_owner.then_some(name)
}
