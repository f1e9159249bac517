//! Plugin calls kept as files, without the values of Secrets: written by `run --record`, run again by `replay`.
//!
//! A record is the two documents of a WASI command with the name of who answered beside them, whatever the plugin's
//! form, so that a case can also be written by hand: `plugin` may be left out, and empty fields of the answer too.

mod keeper;
mod mask;

use serde::{Deserialize, Serialize};

pub use keeper::{Bounds, KeepError, Keeper, Recorder};
pub use mask::mask;

use crate::plugin::contract::{
    CleanupResponse, CommandInput, ContractVersion, Export, Failure, Request, Response,
};
use crate::plugin::{CallError, Plugin};

/// One call of a plugin, and what came of it.
#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct Record {
    /// Who answered.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub plugin: Option<Version>,
    /// The request, as a command reads it.
    pub input: CommandInput,
    /// The answer.
    pub output: Answer,
}

/// One version of a plugin.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct Version {
    /// The plugin's name.
    pub name: String,
    /// Its own version.
    pub version: String,
    /// `sha256:` and 64 hexadecimal digits.
    pub digest: String,
}

impl Version {
    /// The version that a loaded plugin is.
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

/// What came of a call: as a command writes it, or that it failed.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub enum Answer {
    /// Of `reconcile`.
    Response(Box<Response>),
    /// Of `cleanup`.
    Cleanup(Box<CleanupResponse>),
    /// The plugin says why there is none.
    Failure(Failure),
    /// The call failed.
    Fault(Fault),
}

/// A call that failed without a word of the plugin.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct Fault {
    /// As in the metrics: `trap`, `timeout` and the like.
    pub class: String,
    /// What is known of it.
    pub message: String,
}

impl From<Response> for Answer {
    fn from(response: Response) -> Self {
        Self::Response(Box::new(response))
    }
}

impl From<CleanupResponse> for Answer {
    fn from(response: CleanupResponse) -> Self {
        Self::Cleanup(Box::new(response))
    }
}

impl Answer {
    /// Of the outcome of a call.
    pub fn of<T: Clone + Into<Self>>(outcome: &Result<T, CallError>) -> Self {
        match outcome {
            Ok(response) => response.clone().into(),
            Err(CallError::Invalid { reason, message }) => Self::Failure(Failure::Invalid {
                reason: reason.clone(),
                message: message.clone(),
            }),
            Err(CallError::Retry { message, after }) => Self::Failure(Failure::Retry {
                message: message.clone(),
                after_ms: after.map(|after| u64::try_from(after.as_millis()).unwrap_or(u64::MAX)),
            }),
            Err(error) => Self::Fault(Fault {
                class: error.class().as_str().to_owned(),
                message: error.to_string(),
            }),
        }
    }
}

impl Record {
    /// Of one call.
    #[must_use]
    pub fn new(plugin: Version, call: Export, request: Request, output: Answer) -> Self {
        Self {
            plugin: Some(plugin),
            input: CommandInput {
                contract: ContractVersion::PRESENT,
                call,
                request: Some(request.into()),
            },
            output,
        }
    }
}
