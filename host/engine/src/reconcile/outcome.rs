//! How a reconcile ends, and its changes, for the Events on the parent.

use std::collections::HashSet;

use kube::core::DynamicObject;
use tracing::info;

use super::action::Requeue;
use super::finalizer::held_by_others;
use super::run::Run;
use operator_host_contract::{Condition, Event, EventType};
use operator_host_core::object::{ChildRef, first_few, kind_in_words};
use operator_host_desired::conditions::Verdict;
use operator_host_runtime::Share;

/// How a reconcile ends that meets no error.
#[expect(
    clippy::large_enum_variant,
    reason = "one for each reconcile, and nearly all are settled"
)]
pub(super) enum Outcome {
    /// The answer's children are in place, and its status is written.
    Settled(FinalAnswer),
    /// The parent was deleted or replaced, or its deletion has begun. Nothing is written: that change leads to another reconcile.
    ParentChanged,
    /// No finalizer holds the parent any more.
    Released,
    /// The plugin is not loaded yet. All parents are reconciled when it is.
    Loading,
}

impl Outcome {
    /// Returns how the reconcile of a parent ends that has lost the host's finalizer; `left` is the parent when finalizers of
    /// others hold it.
    pub(super) fn without_finalizer(left: Option<&DynamicObject>, answer: FinalAnswer) -> Self {
        match left {
            Some(left) => Self::Settled(FinalAnswer {
                verdict: Some(held_by_others(left)),
                ..answer
            }),
            None => Self::Released,
        }
    }
}

/// The last answer of the plugin, whose children are in place.
#[derive(Default)]
pub(super) struct FinalAnswer {
    pub(super) status: Option<serde_json::Map<String, serde_json::Value>>,
    pub(super) conditions: Vec<Condition>,
    pub(super) events: Vec<Event>,
    pub(super) requeue: Requeue,
    /// Whether the children are ready; a cleanup does not check it.
    pub(super) verdict: Option<Verdict>,
    /// Set only by a cleanup: whether the parent may be released.
    pub(super) done: bool,
    /// Its share of the memory of all calls.
    pub(super) _share: Option<Share>,
}

impl FinalAnswer {
    pub(super) fn done() -> Self {
        Self {
            done: true,
            ..Self::default()
        }
    }

    /// Publishes the plugin's Events.
    pub(super) fn publish(&self, run: &Run<'_>, parent: &DynamicObject) {
        for event in &self.events {
            let Event {
                type_,
                reason,
                message,
            } = event;
            run.context.publish(parent, *type_, reason, message);
        }
    }
}

/// The number of plugin Events that a reconcile publishes. Further ones are dropped.
const MAX_EVENTS: usize = 32;

/// Adds the Events of an iteration to those of the earlier ones, without duplicates and up to a limit.
pub(super) fn collect_events(events: &mut Vec<Event>, new: Vec<Event>) {
    for event in new {
        if events.len() < MAX_EVENTS && !events.contains(&event) {
            events.push(event);
        }
    }
}

/// The changes that a reconcile made to the children, for one Event.
#[derive(Default)]
pub(super) struct Changes {
    pub(super) created: Vec<ChildRef>,
    pub(super) updated: Vec<ChildRef>,
    pub(super) deleted: Vec<ChildRef>,
}

impl Changes {
    /// Returns how many different children were written, and how many deleted. One that is replaced counts twice.
    pub(super) fn touched(&self) -> usize {
        let written: HashSet<_> = self.created.iter().chain(&self.updated).collect();
        written.len() + self.deleted.iter().collect::<HashSet<_>>().len()
    }

    /// Returns how many children were created or updated, each as often as it was.
    pub(super) const fn writes(&self) -> usize {
        self.created.len() + self.updated.len()
    }

    /// Counts them in the metrics.
    pub(super) fn count(&self, run: &Run<'_>) {
        let metrics = &run.context.observer.metrics;
        self.created.iter().for_each(|child| metrics.created(&child.kind));
        self.updated.iter().for_each(|child| metrics.updated(&child.kind));
        self.deleted.iter().for_each(|child| metrics.deleted(&child.kind));
    }

    /// Counts them in the metrics, and reports them in one Event.
    pub(super) fn publish(&self, run: &Run<'_>, parent: &DynamicObject) {
        self.count(run);
        let all = [
            ("created", &self.created),
            ("updated", &self.updated),
            ("deleted", &self.deleted),
        ];
        let own = parent.metadata.namespace.as_deref();
        let changed = all.into_iter().filter(|(_, children)| !children.is_empty());
        let parts = changed.map(|(verb, children)| format!("{verb} {}", list(children, own)));
        let parts: Vec<_> = parts.collect();
        if parts.is_empty() {
            return;
        }
        let note = parts.join("; ");
        info!("{note}");
        run.context
            .publish(parent, EventType::Normal, "ChildrenChanged", &note);
    }
}

/// Lists the first few by name. Their namespace is named where it is not their parent's.
fn list(children: &[ChildRef], own: Option<&str>) -> String {
    const SHOWN: usize = 5;
    let mut seen = HashSet::new();
    // One that was released, and applied after that, was changed twice.
    let once = children.iter().filter(|child| seen.insert(*child));
    let name = |child: &ChildRef| match child.name.namespace.as_deref() == own {
        true => format!(
            "{} {}",
            kind_in_words(child.kind.group(), &child.kind.kind),
            child.name.name
        ),
        false => child.to_string(),
    };
    first_few(once.map(name), SHOWN, ", ")
}

#[cfg(test)]
mod tests {
    use super::*;
    use operator_host_contract::Kind;
    use operator_host_core::object::NamespacedName;

    #[test]
    fn an_event_names_the_namespace_of_a_child_where_it_is_not_its_parents() {
        let child = |namespace: Option<&str>| ChildRef {
            kind: Kind::new("v1", "ConfigMap"),
            name: NamespacedName {
                namespace: namespace.map(str::to_owned),
                name: "a".into(),
            },
        };
        assert_eq!(list(&[child(Some("shop"))], Some("shop")), "ConfigMap a");
        let children = [child(Some("shop-1")), child(Some("shop-2")), child(None)];
        let expected = "ConfigMap shop-1/a, ConfigMap shop-2/a, ConfigMap a";
        assert_eq!(list(&children, None), expected);
    }
}
