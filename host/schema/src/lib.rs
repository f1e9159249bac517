//! Judges objects by the schemas of CustomResourceDefinitions without an API server: validates a schema, fills in its
//! defaults, and validates resources by it. What this crate does not know is left to the API server, and reported as such.

#[cfg(feature = "judge")]
pub mod accepts;
#[cfg(feature = "judge")]
pub mod cel;
#[cfg(feature = "judge")]
pub mod difference;
#[cfg(feature = "judge")]
mod embedded;
#[cfg(feature = "judge")]
mod formats;
#[cfg(feature = "judge")]
pub mod metadata;
#[cfg(feature = "judge")]
mod numbers;
#[cfg(feature = "judge")]
pub mod pruned;
pub mod quantity;
#[cfg(feature = "judge")]
pub mod schema;
#[cfg(feature = "judge")]
pub mod status;
#[cfg(feature = "judge")]
pub mod structural;
#[cfg(all(test, feature = "judge"))]
mod tests;

#[cfg(feature = "judge")]
use serde_json::Value;

#[cfg(all(doctest, feature = "judge"))]
#[doc = include_str!("../README.md")]
struct Readme;

/// One problem with its location.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Problem {
    /// The location, such as `spec.ports[0].name`.
    pub path: String,
    /// The violated rule and the expected value.
    pub message: String,
}

impl Problem {
    /// Creates a problem from a path and a message.
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

/// Returns the path of a field below `path`.
#[must_use]
pub fn field(path: &str, name: &str) -> String {
    if path.is_empty() {
        return name.to_owned();
    }
    if name.is_empty() || name.contains(['.', '/', '[']) {
        return format!("{path}[{name}]");
    }
    format!("{path}.{name}")
}

#[cfg(feature = "judge")]
fn properties(schema: &Value) -> impl Iterator<Item = (&String, &Value)> {
    schema["properties"].as_object().into_iter().flatten()
}

/// Returns the schemas directly within a schema: a keyword, the name of a property, and the schema.
#[cfg(feature = "judge")]
fn inner(schema: &Value) -> impl Iterator<Item = (&'static str, Option<&String>, &Value)> {
    let properties = properties(schema).map(|(name, inner)| ("properties", Some(name), inner));
    let others = ["items", "additionalProperties"].into_iter();
    properties.chain(others.filter_map(|keyword| Some((keyword, None, schema.get(keyword)?))))
}
