//! Plugin calls stored as files, without the values of Secrets: `run --record` writes them, and `replay` repeats them.
//!
//! A record consists of the two documents of a WASI command and the version that answered, whatever the plugin's form.
//! A case can therefore also be written by hand: `plugin` may be omitted, and so may empty fields of the answer.

mod keeper;
mod mask;

use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};

pub use keeper::{Bounds, KeepError, Recorder};
pub use mask::mask;

use operator_host_contract::{Asked, CommandInput, Converted, Failure, FieldError, Response};
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
    /// The answer or the failure.
    pub output: RecordedAnswer,
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
    #[must_use]
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

/// The result of a call: the document that a command writes, or the failure of the call.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub enum RecordedAnswer {
    /// The answer of `reconcile` and of `cleanup`.
    Response(Box<Response>),
    /// The answers of `convert`, each with `object` or `error`.
    Converted(Vec<Value>),
    /// The answer of `default`: the spec.
    Defaulted(Map<String, Value>),
    /// The answer of `validate`.
    Validated(Vec<FieldError>),
    /// The plugin's reason for giving no answer.
    Failure(Failure),
    /// The call failed.
    Fault(FailedCall),
}

/// A call that failed without an answer of the plugin.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct FailedCall {
    /// The class, as in the metrics: for example `trap` or `timeout`.
    pub class: String,
    /// The details.
    pub message: String,
}

impl From<Response> for RecordedAnswer {
    fn from(response: Response) -> Self {
        Self::Response(Box::new(response))
    }
}

impl From<Vec<Converted>> for RecordedAnswer {
    fn from(converted: Vec<Converted>) -> Self {
        // JSON text is a value.
        let values = converted
            .iter()
            .map(|one| serde_json::to_value(one).unwrap_or_default());
        Self::Converted(values.collect())
    }
}

impl From<Map<String, Value>> for RecordedAnswer {
    fn from(spec: Map<String, Value>) -> Self {
        Self::Defaulted(spec)
    }
}

impl From<Vec<FieldError>> for RecordedAnswer {
    fn from(errors: Vec<FieldError>) -> Self {
        Self::Validated(errors)
    }
}

impl RecordedAnswer {
    /// Converts the outcome of a call.
    pub fn of<T: Clone + Into<Self>>(outcome: &Result<T, CallError>) -> Self {
        match outcome {
            Ok(response) => response.clone().into(),
            Err(CallError::Invalid {
                reason,
                message,
                shown,
            }) => Self::Failure(Failure::Invalid {
                reason: reason.clone(),
                message: message.clone(),
                status: shown.status.clone(),
                conditions: shown.conditions.clone(),
            }),
            Err(CallError::Retry {
                message,
                after,
                shown,
            }) => Self::Failure(Failure::Retry {
                message: message.clone(),
                after_ms: after.map(|after| u64::try_from(after.as_millis()).unwrap_or(u64::MAX)),
                status: shown.status.clone(),
                conditions: shown.conditions.clone(),
            }),
            Err(error) => Self::Fault(FailedCall {
                class: error.class().as_str().to_owned(),
                message: error.to_string(),
            }),
        }
    }
}

impl Record {
    /// Creates the record of one call.
    #[must_use]
    pub fn new(plugin: Version, asked: Asked, output: RecordedAnswer) -> Self {
        Self {
            plugin: Some(plugin),
            input: asked.into(),
            output,
        }
    }
}
