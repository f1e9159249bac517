//! Labels, and the selectors that match them.

use serde::{Serialize, Serializer};

use crate::object::Object;

/// Labels of a child. In `json!` they stand for themselves: under `metadata.labels`, and as a selector under
/// `matchLabels` or a Service's `selector`.
///
/// ```
/// use operator_plugin::{Labels, json};
///
/// let selector = Labels::new("app", "web");
/// let labels = selector.clone().and("managed-by", "me");
/// assert_eq!(json!({ "labels": labels }), json!({ "labels": { "app": "web", "managed-by": "me" } }));
/// assert_eq!(labels.query(), "app=web,managed-by=me");
/// ```
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Labels(Vec<(&'static str, String)>);

impl Labels {
    /// Creates a set of one label. A value may have at most 63 letters, digits, `-`, `_` and `.`.
    #[must_use]
    pub fn new(key: &'static str, value: impl Into<String>) -> Self {
        Self(vec![(key, value.into())])
    }

    /// Adds another label.
    #[must_use]
    pub fn and(mut self, key: &'static str, value: impl Into<String>) -> Self {
        self.0.push((key, value.into()));
        self
    }

    /// Returns a selector in the syntax of `kubectl get -l` and [`Need::selected`](crate::Need::selected).
    #[must_use]
    pub fn query(&self) -> String {
        let pairs = self.0.iter().map(|(key, value)| format!("{key}={value}"));
        pairs.collect::<Vec<_>>().join(",")
    }

    pub(crate) fn iter(&self) -> impl Iterator<Item = (&str, &str)> {
        self.0.iter().map(|(key, value)| (*key, value.as_str()))
    }

    /// Reports whether an object has all of the labels.
    #[must_use]
    pub fn select(&self, object: &Object) -> bool {
        self.0.iter().all(|(key, value)| object.label(key) == Some(value))
    }
}

impl Serialize for Labels {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_map(self.0.iter().map(|(key, value)| (key, value)))
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn labels_select_what_has_all_of_them() {
        let labels = Labels::new("app", "web").and("tier", "front");
        let object = |labels| Object::from(json!({ "metadata": { "labels": labels } }));
        assert!(labels.select(&object(json!({ "app": "web", "tier": "front", "more": "x" }))));
        assert!(!labels.select(&object(json!({ "app": "web" }))));
        assert!(!labels.select(&object(json!(null))));
    }
}
