//! The parts of a CustomResourceDefinition that are not derived from the types of spec and status.

#![cfg_attr(
    target_family = "wasm",
    allow(dead_code, reason = "only the native build makes the text")
)]

// Generated natively and compiled in as text: the generator would double the size of a small plugin.
#[cfg(not(target_family = "wasm"))]
mod generate;
#[cfg(not(target_family = "wasm"))]
mod structural;

use serde::Serialize;

#[cfg(not(target_family = "wasm"))]
pub(crate) use generate::schema_of_spec;

/// The settings that the types do not contain.
pub(crate) struct Crd {
    pub(crate) plural: Option<&'static str>,
    pub(crate) short_names: &'static [&'static str],
    pub(crate) categories: &'static [&'static str],
    pub(crate) columns: &'static [Column],
    pub(crate) names: Option<(&'static str, usize)>,
    pub(crate) cluster_scoped: bool,
    pub(crate) scale: Option<Scale>,
    pub(crate) rules: &'static [Rule],
    pub(crate) deprecation: Option<&'static str>,
    pub(crate) without_descriptions: bool,
}

/// A column of `kubectl get`.
#[derive(Clone, Copy, Debug, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct Column {
    name: &'static str,
    #[serde(rename = "type")]
    type_: &'static str,
    json_path: &'static str,
    /// Kubernetes shows columns of priority 0 always, and all others only in the wide output.
    priority: Option<u8>,
}

impl Column {
    /// Creates a column of strings, from its title and the path of its values, such as `.status.phase`.
    #[must_use]
    pub const fn string(title: &'static str, path: &'static str) -> Self {
        Self::new(title, "string", path)
    }

    /// Creates a column of integers.
    #[must_use]
    pub const fn integer(title: &'static str, path: &'static str) -> Self {
        Self::new(title, "integer", path)
    }

    /// Creates a column of numbers that may have fractions.
    #[must_use]
    pub const fn number(title: &'static str, path: &'static str) -> Self {
        Self::new(title, "number", path)
    }

    /// Creates a column of booleans.
    #[must_use]
    pub const fn boolean(title: &'static str, path: &'static str) -> Self {
        Self::new(title, "boolean", path)
    }

    /// Creates a column of times, shown as ages.
    #[must_use]
    pub const fn date(title: &'static str, path: &'static str) -> Self {
        Self::new(title, "date", path)
    }

    /// Shows the column only in `kubectl get -o wide`.
    #[must_use]
    pub const fn wide(mut self) -> Self {
        self.priority = Some(1);
        self
    }

    const fn new(title: &'static str, type_: &'static str, path: &'static str) -> Self {
        Self {
            name: title,
            type_,
            json_path: path,
            priority: None,
        }
    }
}

/// The subresource `scale`: `kubectl scale` and a HorizontalPodAutoscaler set the number of replicas of a resource.
#[derive(Clone, Copy, Debug, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct Scale {
    spec_replicas_path: &'static str,
    status_replicas_path: &'static str,
    label_selector_path: Option<&'static str>,
}

impl Scale {
    /// Creates the subresource from the paths of two integers: the wanted replicas, such as `.spec.replicas`, and the
    /// existing ones, such as `.status.replicas`.
    #[must_use]
    pub const fn new(wanted: &'static str, observed: &'static str) -> Self {
        Self {
            spec_replicas_path: wanted,
            status_replicas_path: observed,
            label_selector_path: None,
        }
    }

    /// Sets the path of a string with the label selector of the pods, such as `.status.selector`. A
    /// HorizontalPodAutoscaler needs it. [`Labels::query`](crate::Labels::query) returns that string.
    #[must_use]
    pub const fn selector(mut self, path: &'static str) -> Self {
        self.label_selector_path = Some(path);
        self
    }
}

/// A rule in CEL that the API server checks before it stores a resource.
///
/// `render`, `check` and [`Case::violations`](crate::testing::Case::violations) evaluate the same rules.
#[derive(Clone, Copy, Debug, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct Rule {
    rule: &'static str,
    message: &'static str,
    message_expression: Option<&'static str>,
    field_path: Option<&'static str>,
    reason: Option<RuleReason>,
    optional_old_self: Option<bool>,
}

/// Why the API server refuses what violates a rule, as programs see it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
pub enum RuleReason {
    /// The value is wrong. The reason of rules without one.
    #[serde(rename = "FieldValueInvalid")]
    Invalid,
    /// The value is not allowed under some conditions, such as a change.
    #[serde(rename = "FieldValueForbidden")]
    Forbidden,
    /// A value is missing.
    #[serde(rename = "FieldValueRequired")]
    Required,
    /// The value must be unique.
    #[serde(rename = "FieldValueDuplicate")]
    Duplicate,
}

impl Rule {
    /// Creates a rule about the whole resource, and the message for a resource that breaks it. `self` is the resource,
    /// as in `self.spec.min <= self.spec.max`. A rule with `oldSelf` is checked on updates only, as in
    /// `self.spec.engine == oldSelf.spec.engine`.
    #[must_use]
    pub const fn new(rule: &'static str, message: &'static str) -> Self {
        Self {
            rule,
            message,
            message_expression: None,
            field_path: None,
            reason: None,
            optional_old_self: None,
        }
    }

    /// Sets an expression that makes the message, such as `'min is ' + string(self.spec.min)`. The message that
    /// [`new`](Self::new) takes is for when it fails.
    #[must_use]
    pub const fn message_expression(mut self, expression: &'static str) -> Self {
        self.message_expression = Some(expression);
        self
    }

    /// Sets why a resource is refused.
    #[must_use]
    pub const fn reason(mut self, reason: RuleReason) -> Self {
        self.reason = Some(reason);
        self
    }

    /// Checks a rule with `oldSelf` also when a resource is created. `oldSelf` is then an optional value, as in
    /// `!oldSelf.hasValue() || self.spec.size >= oldSelf.value().spec.size`.
    #[must_use]
    pub const fn with_optional_old_self(mut self) -> Self {
        self.optional_old_self = Some(true);
        self
    }

    /// Sets the field that the API server names with the message, such as `.spec.max`.
    #[must_use]
    pub const fn at(mut self, path: &'static str) -> Self {
        self.field_path = Some(path);
        self
    }
}

impl Crd {
    pub(crate) const fn new() -> Self {
        Self {
            plural: None,
            short_names: &[],
            categories: &[],
            columns: &[],
            names: None,
            cluster_scoped: false,
            scale: None,
            rules: &[],
            deprecation: None,
            without_descriptions: false,
        }
    }
}
