//! Matches objects against a need: by name, namespace and label selector.

use kube::ResourceExt;
use kube::core::DynamicObject;

use operator_host_contract::{Kind, Need};
use operator_host_core::object::{NamespacedName, Selector};

/// Reports whether a parent's need selects an object, if the controller may read it.
pub fn selects(need: &Need, parent: &NamespacedName, kind: &Kind, object: &DynamicObject) -> bool {
    let namespace = need.namespace.as_ref().or(parent.namespace.as_ref());
    need.kind == kind.kind
        && need.api_version == kind.api_version
        && need
            .name
            .as_ref()
            .is_none_or(|name| object.metadata.name.as_ref() == Some(name))
        && (need.is_everywhere()
            || object.metadata.namespace.is_none()
            || object.metadata.namespace.as_ref() == namespace)
        && selector(need).is_ok_and(|selector| selector.matches(object.labels()))
}

/// Returns the label selector of a need.
///
/// # Errors
/// Why it is invalid.
pub fn selector(need: &Need) -> Result<Selector, String> {
    Selector::of(need.label_selector.as_deref().unwrap_or_default())
}
