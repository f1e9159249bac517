//! Parts of this crate that fuzz targets call by themselves. No interface for anybody else.

use crate::bindings::operator_host::plugin::types as wit;
use crate::contract::{CommandOutput, Response};
use crate::error::{CallError, LoadError};
use crate::limits::Limits;
use crate::share::Room;
use crate::{command, convert, inspect};

/// What can be told of a file before anything is compiled.
///
/// # Errors
/// When it is no plugin.
pub fn inspect(bytes: &[u8]) -> Result<(), LoadError> {
    inspect::inspect(bytes).map(|_shape| ())
}

/// What a command wrote to standard output.
///
/// # Errors
/// When it is no answer.
pub fn command_answer(output: &[u8], limits: &Limits) -> Result<CommandOutput, CallError> {
    command::parse(output, limits, &Room::of(limits))
}

/// What a component answered, of its texts.
///
/// # Errors
/// When it is no answer.
pub fn component_answer(
    children: Vec<String>,
    status: Option<String>,
    limits: &Limits,
) -> Result<Response, CallError> {
    let record = wit::Response {
        children,
        status,
        keep: Vec::new(),
        generate: Vec::new(),
        conditions: Vec::new(),
        events: Vec::new(),
        requeue_after_ms: None,
        needs: Vec::new(),
    };
    convert::response(record, limits, &Room::of(limits)).map(|(response, _size)| response)
}
