//! Plugin calls stored as files, without the values of Secrets: `run --record` writes them, and `replay` repeats them.
//!
//! A record consists of the two documents of a WASI command and the version that answered, whatever the plugin's form.
//! A case can therefore also be written by hand: `plugin` may be omitted, and so may empty fields of the answer.

mod keeper;
mod mask;

use serde::de::Error as _;
use serde::{Deserialize, Deserializer, Serialize};
use serde_json::{Value, json};

pub use keeper::{Bounds, KeepError, Recorder};
pub use mask::mask;

use operator_host_contract::{CommandInput, CommandOutput, Export};
use operator_host_runtime::{CallError, Plugin};

/// One plugin call and its result.
#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct Record {
    /// The plugin that answered.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub plugin: Option<Version>,
    /// The request, in the form that a command reads.
    pub input: CommandInput,
    /// The answer or the failure, see [`output`].
    #[serde(deserialize_with = "complete")]
    pub output: Value,
}

/// One version of a plugin.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct Version {
    /// The plugin's name.
    pub name: String,
    /// The plugin's own version.
    pub version: String,
    /// `sha256:` and 64 hexadecimal digits.
    pub digest: String,
}

impl Version {
    /// Returns the version of a loaded plugin.
    pub fn of(plugin: &Plugin) -> Self {
        Self {
            name: plugin.description().name.clone(),
            version: plugin.description().version.clone(),
            digest: plugin.digest().to_string(),
        }
    }
}

impl std::fmt::Display for Version {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{} {}, {}", self.name, self.version, self.digest)
    }
}

/// Returns the result of a call as a record contains it: the document that a command writes, or the `fault` of a call that
/// failed without an answer of the plugin.
pub fn output<T: Serialize>(call: Export, outcome: &Result<T, CallError>) -> Value {
    // An answer can be represented as JSON, from which it was read.
    let (field, body) = match outcome {
        Ok(answer) => (answered(call), serde_json::to_value(answer)),
        Err(CallError::Failure(failure)) => ("failure", serde_json::to_value(failure)),
        Err(error) => (
            FAULT,
            Ok(json!({ "class": error.class().as_str(), "message": error.to_string() })),
        ),
    };
    json!({ field: body.unwrap_or_default() })
}

/// The field of a call that failed.
pub const FAULT: &str = "fault";

/// Returns the field with the answer to a call.
const fn answered(call: Export) -> &'static str {
    match call {
        Export::Describe => "description",
        Export::Validate => "validated",
        Export::Reconcile | Export::Cleanup => "response",
        Export::Convert => "converted",
        Export::Default => "defaulted",
    }
}

/// Reads an output, and gives what is left out its default.
fn complete<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Value, D::Error> {
    let output = Value::deserialize(deserializer)?;
    if output.get(FAULT).is_some() {
        return Ok(output);
    }
    let output: CommandOutput = serde_json::from_value(output).map_err(D::Error::custom)?;
    serde_json::to_value(output).map_err(D::Error::custom)
}
