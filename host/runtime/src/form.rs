//! The two binary forms that a plugin can have.

use serde::{Deserialize, Serialize};

/// The binary form of a plugin.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub enum Form {
    /// The WIT world: a component, or a module to be encoded as one.
    Component,
    /// A WASI command with JSON on standard input and output.
    Command,
}

impl Form {
    /// Returns the form in lower case.
    #[must_use]
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Component => "component",
            Self::Command => "command",
        }
    }
}
