//! Paths of fields in an object.

use std::fmt;
use std::sync::Arc;

use serde_json::Value;

/// The path of a field, from the root of its object.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct FieldPath(Vec<Step>);

/// A step of a path.
#[derive(Clone, Debug, PartialEq)]
pub enum Step {
    /// A field of an object.
    Field(String),
    /// This element of a list. It is shared because paths are copied, and an element and those within it may be large.
    Element(Arc<Value>),
}

impl FieldPath {
    /// Returns the steps from the root of the object.
    pub fn steps(&self) -> &[Step] {
        &self.0
    }

    /// Returns the path of a field of this object.
    #[must_use]
    pub fn field(mut self, name: &str) -> Self {
        self.0.push(Step::Field(name.to_owned()));
        self
    }

    /// Returns the path of an element of this list.
    #[must_use]
    pub fn element(mut self, element: &Value) -> Self {
        self.0.push(Step::Element(Arc::new(element.clone())));
        self
    }

    /// Returns the path with its steps in the reverse order.
    #[must_use]
    pub fn reversed(mut self) -> Self {
        self.0.reverse();
        self
    }
}

impl fmt::Display for FieldPath {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let is_plain = |name: &str| {
            name.chars()
                .all(|c| c.is_ascii_alphanumeric() || matches!(c, '-' | '_'))
        };
        for (index, step) in self.0.iter().enumerate() {
            match step {
                Step::Field(name) if !is_plain(name) => write!(f, "[{name:?}]")?,
                Step::Field(name) if index == 0 => f.write_str(name)?,
                Step::Field(name) => write!(f, ".{name}")?,
                Step::Element(element) => {
                    let fields = || element.as_object().into_iter().flatten();
                    let name = fields().find(|(key, _)| *key == "name");
                    let is_plain = |value: &Value| value.is_string() || value.is_number();
                    match name.or_else(|| fields().find(|(_, value)| is_plain(value))) {
                        Some((key, Value::String(value))) => write!(f, "[{key}={value}]")?,
                        Some((key, value)) => write!(f, "[{key}={value}]")?,
                        None if is_plain(element) => write!(f, "[{element}]")?,
                        None => f.write_str("[]")?,
                    }
                }
            }
        }
        Ok(())
    }
}
