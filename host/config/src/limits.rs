//! What the file says about limits, of controllers and in the ceilings.

use std::time::Duration;

use schemars::JsonSchema;
use serde::Deserialize;

use super::values::{AtMost, Positive, Text};
use operator_host_runtime::Limits;

/// How many objects may be reconciled at the same time.
pub(super) type Concurrency = AtMost<1000>;

#[derive(Default, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields, default)]
pub(super) struct RawLimits {
    /// The plugin's memory, such as `64Mi`.
    memory: Option<Text<usize>>,
    /// The time of one call, such as `5s`.
    deadline: Option<Text<Duration>>,
    /// The bytes of a request, such as `4Mi`.
    request: Option<Text<usize>>,
    /// The bytes of a response, such as `4Mi`.
    response: Option<Text<usize>>,
    /// The time in which a plugin must be compiled, such as `1m`.
    compile: Option<Text<Duration>>,
    /// The number of JSON values of a response.
    #[schemars(with = "Option<u32>")]
    values: Option<Positive>,
    /// The number of children of one object.
    #[schemars(with = "Option<u32>")]
    children: Option<Positive>,
}

impl From<RawLimits> for Limits {
    fn from(raw: RawLimits) -> Self {
        let default = Self::DEFAULT;
        Self {
            memory: raw.memory.map_or(default.memory, |it| it.0),
            deadline: raw.deadline.map_or(default.deadline, |it| it.0),
            request: raw.request.map_or(default.request, |it| it.0),
            response: raw.response.map_or(default.response, |it| it.0),
            values: raw.values.map_or(default.values, |it| it.0),
            children: raw.children.map_or(default.children, |it| it.0),
            compile: raw.compile.map_or(default.compile, |it| it.0),
            ..default
        }
    }
}
