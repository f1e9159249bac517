//! Decides which objects belong to a parent.

use std::collections::HashSet;
use std::sync::Arc;

use k8s_openapi::apimachinery::pkg::apis::meta::v1::OwnerReference;
use kube::core::DynamicObject;

use super::provenance::SecretProof;
use super::update::RETAIN;
use operator_host_core::child_rules::{Removal, Scope};
use operator_host_core::object::{
    ChildRef, NamespacedName, ON_REMOVAL_ANNOTATION, ORPHAN, PARENT_ANNOTATION, annotation, controller_of,
    is_namespace, is_reference_to, made_at, maker,
};

/// Returns the namespace in which a parent has its children; `None`: the plugin names one for each child.
pub fn home<'a>(scope: Scope<'_>, parent: &'a DynamicObject) -> Option<&'a str> {
    let name = parent.metadata.name.as_deref().unwrap_or_default();
    scope.home(name, parent.metadata.namespace.as_deref())
}

/// Reports whether a parent with this [`home`] may have children in `child`; `None` means no namespace. Anyone with write
/// access to another namespace can copy this host's labels and annotations to an object there, so objects out of
/// reach are ignored. Of a parent that makes namespaces, only its children tell which it has made: see
/// [`leave_out_others`].
pub fn reaches(scope: Scope<'_>, parent: Option<&str>, child: Option<&str>) -> bool {
    match (parent, child) {
        (Some(parent), child) => child == Some(parent),
        (None, Some(child)) => scope.rules.other_namespaces.contains(child) || scope.rules.makes_namespaces(),
        (None, None) => true,
    }
}

/// Leaves out what is in a namespace that is neither configured nor one of the parent's children.
pub fn leave_out_others(scope: Scope<'_>, parent: &DynamicObject, children: &mut Vec<Arc<DynamicObject>>) {
    if parent.metadata.namespace.is_some() || !scope.rules.makes_namespaces() {
        return;
    }
    let made = children.iter().map(|child| ChildRef::of(child));
    let made = made.filter(|child| is_namespace(&child.kind));
    let made: HashSet<String> = made.map(|child| child.name.name).collect();
    let is_reached =
        |namespace: &String| scope.rules.other_namespaces.contains(namespace) || made.contains(namespace);
    children.retain(|child| child.metadata.namespace.as_ref().is_none_or(is_reached));
}

/// Reports whether a parent owns an object: its controller owner reference has the parent's UID, the controller has made it, and
/// the parent may have children there. A label or an annotation alone proves nothing: people and templates copy them. The
/// reference alone does not, either: another controller may make objects for the same parent, as that of Deployments does.
pub fn owns(scope: Scope<'_>, parent: &DynamicObject, object: &DynamicObject) -> bool {
    parent.metadata.uid.is_some()
        && controller_of(object).map(|owner| &owner.uid) == parent.metadata.uid.as_ref()
        && is_ours(scope, object)
        && is_within_reach(scope, parent, object)
}

/// Reports whether the controller made an object, as [`maker`] says.
pub fn is_ours(scope: Scope<'_>, object: &DynamicObject) -> bool {
    maker(object) == Some(scope.controller)
}

/// Reports whether an object is a retained child: it or its kind is retained, it has no controller, its label and
/// annotation name this parent, and the parent may have children there. This suffices to take it over again, but
/// never to delete it.
pub fn retains(
    scope: Scope<'_>,
    proof: SecretProof<'_>,
    parent: &DynamicObject,
    object: &DynamicObject,
) -> bool {
    let generated = proof.holds(scope.parent, parent, object);
    removal(scope, generated, object) == Some(Removal::Retain) && is_left(scope, parent, object)
}

/// Reports whether an object has no controller, and has been a child of this parent, as far as its marks tell.
pub(super) fn is_left(scope: Scope<'_>, parent: &DynamicObject, object: &DynamicObject) -> bool {
    // A later parent of the name is a stranger to an orphan.
    let is_orphan = annotation(object, ON_REMOVAL_ANNOTATION) == Some(ORPHAN);
    (!is_orphan || made_at(parent, object).is_some())
        && controller_of(object).is_none()
        && is_ours(scope, object)
        && annotation(object, PARENT_ANNOTATION) == Some(&NamespacedName::of(parent).to_string())
        && is_within_reach(scope, parent, object)
}

/// Returns how the configuration treats an object that is no longer wanted; `None` if the controller does not
/// create its kind. `generated` is whether it is proved that the host generated it. What an object says itself counts only
/// without a controller: the host has applied it so.
pub fn removal(scope: Scope<'_>, generated: bool, object: &DynamicObject) -> Option<Removal> {
    let removal = *scope.rules.children.get(&ChildRef::of(object).kind)?;
    Some(match annotation(object, ON_REMOVAL_ANNOTATION) {
        _ if generated => scope.rules.generated,
        Some(RETAIN | ORPHAN) if controller_of(object).is_none() => Removal::Retain,
        _ => removal,
    })
}

fn is_within_reach(scope: Scope<'_>, parent: &DynamicObject, object: &DynamicObject) -> bool {
    reaches(scope, home(scope, parent), object.metadata.namespace.as_deref())
}

/// Returns the parent of a child if it belongs to this controller and may have children in the child's namespace.
/// `namespaced` is true if the parents are namespaced.
pub fn parent_of(scope: Scope<'_>, namespaced: bool, child: &DynamicObject) -> Option<NamespacedName> {
    let namespace = child.metadata.namespace.as_deref();
    if let Some(owner) = controller_of(child) {
        return parent_by_owner(scope, namespaced, owner, namespace);
    }
    if !is_ours(scope, child) {
        return None;
    }
    let parent = NamespacedName::parse(annotation(child, PARENT_ANNOTATION)?);
    is_possible(scope, namespaced, &parent, namespace).then_some(parent)
}

/// Returns the parent that an owner reference of an object in `namespace` refers to, if this controller reconciles its
/// kind and it may have children there.
pub fn parent_by_owner(
    scope: Scope<'_>,
    namespaced: bool,
    owner: &OwnerReference,
    namespace: Option<&str>,
) -> Option<NamespacedName> {
    // A cluster-scoped parent has no namespace, whatever namespace its child is in.
    let own = namespace.filter(|_| namespaced).map(str::to_owned);
    let parent = NamespacedName::new(own, &*owner.name);
    let is_parent =
        is_reference_to(scope.parent, owner) && is_possible(scope, namespaced, &parent, namespace);
    is_parent.then_some(parent)
}

fn is_possible(scope: Scope<'_>, namespaced: bool, parent: &NamespacedName, child: Option<&str>) -> bool {
    let home = scope.home(&parent.name, parent.namespace.as_deref());
    parent.namespace.is_some() == namespaced && reaches(scope, home, child)
}

#[cfg(test)]
mod tests;
