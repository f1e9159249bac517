//! Compiles a plugin's file to machine code bytes: the work of the compiling process. Tests do it in theirs.

use wasmtime::Engine;

use crate::component;
use crate::error::LoadError;
use crate::inspect::{Shape, inspect};

/// Compiles a file without limits on time or memory.
///
/// # Errors
/// Returns an error when the file is not a plugin, or is one that no compiler writes.
pub(crate) fn machine_code(engine: &Engine, file: &[u8]) -> Result<Vec<u8>, LoadError> {
    let code = match inspect(file)? {
        Shape::Component => engine.precompile_component(file),
        Shape::Bindings => engine.precompile_component(&component::encode(file)?),
        Shape::Command => engine.precompile_module(file),
    };
    code.map_err(|error| {
        if error.is::<wasmtime::OutOfMemory>() {
            return LoadError::host(error);
        }
        LoadError::malformed(error)
    })
}
