//! Matches objects against a need: by name, namespace and label selector.

use std::collections::BTreeSet;

use kube::ResourceExt;
use kube::core::DynamicObject;

use operator_host_contract::{Kind, Need};
use operator_host_core::object::{NamespacedName, Selector};

/// Reports whether a parent's need selects an object, if the controller may read it, and if its namespace selector, where it has one,
/// picks the object's namespace.
pub fn selects(need: &Need, parent: &NamespacedName, kind: &Kind, object: &DynamicObject) -> bool {
    let namespace = need.namespace.as_ref().or(parent.namespace.as_ref());
    need.kind == kind.kind
        && need.api_version == kind.api_version
        && is_named(need.all_names().as_ref(), object)
        && (need.is_everywhere()
            || object.metadata.namespace.is_none()
            || object.metadata.namespace.as_ref() == namespace)
        && selector(need).is_ok_and(|selector| selector.matches(object.labels()))
}

/// Reports whether an object has one of these names. `None` stands for all.
pub fn is_named(names: Option<&BTreeSet<&str>>, object: &DynamicObject) -> bool {
    let name = object.metadata.name.as_deref();
    names.is_none_or(|names| name.is_some_and(|name| names.contains(name)))
}

/// Returns the label selector of a need.
///
/// # Errors
/// Why it is invalid.
pub fn selector(need: &Need) -> Result<Selector, String> {
    Selector::of(need.label_selector.as_deref().unwrap_or_default())
}
