//! Parts of this crate that fuzz targets call directly. Not an interface for other callers.

use crate::contract::{CommandOutput, Response};
use crate::convert::Reader;
use crate::error::{CallError, LoadError};
use crate::limits::Limits;
use crate::memory_budget::CallMemory;
use crate::{command, inspect};

/// Checks what can be checked before a file is compiled.
///
/// # Errors
/// Returns an error when the file is not a plugin.
pub fn inspect(bytes: &[u8]) -> Result<(), LoadError> {
    inspect::inspect(bytes).map(|_shape| ())
}

/// Parses a command's standard output.
///
/// # Errors
/// Returns an error when the output is not a valid answer.
pub fn command_answer(output: &[u8], limits: &Limits) -> Result<CommandOutput, CallError> {
    command::parse(output, None, limits, &CallMemory::of(limits))
}

/// Parses the texts in a component's answer.
///
/// # Errors
/// Returns an error when a text is not a valid answer.
pub fn component_answer(
    children: &[String],
    status: Option<&str>,
    limits: &Limits,
) -> Result<CommandOutput, CallError> {
    let room = CallMemory::of(limits);
    let mut reader = Reader::new(limits, &room);
    Ok(CommandOutput::Response(Box::new(Response {
        children: reader.children(children)?,
        status: reader.status(status)?,
        ..Response::default()
    })))
}
