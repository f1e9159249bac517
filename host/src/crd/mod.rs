//! What the API server does with a CustomResourceDefinition, without one: the rules for the definition itself, defaults
//! and validation by its schema.

pub mod definition;
pub mod schema;
pub mod structural;

/// One thing that is wrong, and where.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Problem {
    /// Such as `spec.ports[0].name`.
    pub path: String,
    /// What the rule is and what it should be.
    pub message: String,
}

impl Problem {
    /// Puts the two together.
    #[must_use]
    pub fn new(path: impl Into<String>, message: impl Into<String>) -> Self {
        Self {
            path: path.into(),
            message: message.into(),
        }
    }
}

impl std::fmt::Display for Problem {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{}: {}", self.path, self.message)
    }
}

/// A path with one more field.
fn field(path: &str, name: &str) -> String {
    if path.is_empty() {
        return name.to_owned();
    }
    if name.is_empty() || name.contains(['.', '/', '[']) {
        return format!("{path}[{name}]");
    }
    format!("{path}.{name}")
}
