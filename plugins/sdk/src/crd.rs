//! The parts of a CustomResourceDefinition that are not derived from the types of spec and status.

// Generated natively and compiled in as text: the generator would double the size of a small plugin.
#[cfg(not(target_family = "wasm"))]
mod generate;
#[cfg(not(target_family = "wasm"))]
mod structural;

#[cfg(not(target_family = "wasm"))]
pub(crate) use generate::schema_of_spec;

/// The settings that the types do not contain.
#[cfg_attr(
    target_family = "wasm",
    allow(dead_code, reason = "only the native build makes the text")
)]
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
#[derive(Clone, Copy, Debug)]
#[cfg_attr(
    target_family = "wasm",
    allow(dead_code, reason = "only the native build makes the text")
)]
pub struct Column {
    title: &'static str,
    type_: &'static str,
    path: &'static str,
    wide: bool,
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
        self.wide = true;
        self
    }

    const fn new(title: &'static str, type_: &'static str, path: &'static str) -> Self {
        Self {
            title,
            type_,
            path,
            wide: false,
        }
    }
}

/// The subresource `scale`: `kubectl scale` and a HorizontalPodAutoscaler set the number of replicas of a resource.
#[derive(Clone, Copy, Debug)]
#[cfg_attr(
    target_family = "wasm",
    allow(dead_code, reason = "only the native build makes the text")
)]
pub struct Scale {
    wanted: &'static str,
    observed: &'static str,
    selector: Option<&'static str>,
}

impl Scale {
    /// Creates the subresource from the paths of two integers: the wanted replicas, such as `.spec.replicas`, and the
    /// existing ones, such as `.status.replicas`.
    #[must_use]
    pub const fn new(wanted: &'static str, observed: &'static str) -> Self {
        Self {
            wanted,
            observed,
            selector: None,
        }
    }

    /// Sets the path of a string with the label selector of the pods, such as `.status.selector`. A
    /// HorizontalPodAutoscaler needs it. [`Labels::query`](crate::Labels::query) returns that string.
    #[must_use]
    pub const fn selector(mut self, path: &'static str) -> Self {
        self.selector = Some(path);
        self
    }
}

/// A rule in CEL that the API server checks before it stores a resource.
///
/// `render`, `check` and [`Case::violations`](crate::testing::Case::violations) evaluate the same rules.
#[derive(Clone, Copy, Debug)]
#[cfg_attr(
    target_family = "wasm",
    allow(dead_code, reason = "only the native build makes the text")
)]
pub struct Rule {
    rule: &'static str,
    message: &'static str,
    message_expression: Option<&'static str>,
    path: Option<&'static str>,
    reason: Option<Reason>,
    optional_old: bool,
}

/// Why the API server refuses what violates a rule, as programs see it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Reason {
    /// The value is wrong. The reason of rules without one.
    Invalid,
    /// The value is not allowed under some conditions, such as a change.
    Forbidden,
    /// A value is missing.
    Required,
    /// The value must be unique.
    Duplicate,
}

#[cfg(not(target_family = "wasm"))]
impl Reason {
    const fn as_str(self) -> &'static str {
        match self {
            Self::Invalid => "FieldValueInvalid",
            Self::Forbidden => "FieldValueForbidden",
            Self::Required => "FieldValueRequired",
            Self::Duplicate => "FieldValueDuplicate",
        }
    }
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
            path: None,
            reason: None,
            optional_old: false,
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
    pub const fn reason(mut self, reason: Reason) -> Self {
        self.reason = Some(reason);
        self
    }

    /// Checks a rule with `oldSelf` also when a resource is created. `oldSelf` is then an optional value, as in
    /// `!oldSelf.hasValue() || self.spec.size >= oldSelf.value().spec.size`.
    #[must_use]
    pub const fn with_optional_old_self(mut self) -> Self {
        self.optional_old = true;
        self
    }

    /// Sets the field that the API server names with the message, such as `.spec.max`.
    #[must_use]
    pub const fn at(mut self, path: &'static str) -> Self {
        self.path = Some(path);
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
