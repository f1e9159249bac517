//! The parts of a CustomResourceDefinition that are not derived from the types of spec and status.

// Generated natively and compiled in as text: the generator would double the size of a small plugin.
#[cfg(not(target_family = "wasm"))]
mod generate;
#[cfg(not(target_family = "wasm"))]
mod structural;

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
}

impl Column {
    /// Creates a column of strings, from its title and the path of its values, such as `.status.phase`.
    #[must_use]
    pub const fn string(title: &'static str, path: &'static str) -> Self {
        Self {
            title,
            type_: "string",
            path,
        }
    }

    /// Creates a column of integers.
    #[must_use]
    pub const fn integer(title: &'static str, path: &'static str) -> Self {
        Self {
            title,
            type_: "integer",
            path,
        }
    }

    /// Creates a column of booleans.
    #[must_use]
    pub const fn boolean(title: &'static str, path: &'static str) -> Self {
        Self {
            title,
            type_: "boolean",
            path,
        }
    }

    /// Creates a column of times, shown as ages.
    #[must_use]
    pub const fn date(title: &'static str, path: &'static str) -> Self {
        Self {
            title,
            type_: "date",
            path,
        }
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
        }
    }
}
