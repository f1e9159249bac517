//! Compiles a plugin's file to machine code bytes. This is the work of the compiling process.

use std::any::Any;
use std::panic::{AssertUnwindSafe, catch_unwind};

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
            return LoadError::Host {
                message: format!("{error:#}"),
            };
        }
        LoadError::Malformed {
            message: format!("{error:#}"),
        }
    })
}

/// Does what [`machine_code`] does in a process that goes on when the compiler panics.
///
/// # Errors
/// See [`machine_code`].
pub(crate) fn without_panic(engine: &Engine, file: &[u8]) -> Result<Vec<u8>, LoadError> {
    // Nothing that the compiler has changed is used after a panic.
    catch_unwind(AssertUnwindSafe(|| machine_code(engine, file))).unwrap_or_else(|panic| {
        Err(LoadError::Compiler {
            message: words(&*panic).to_owned(),
        })
    })
}

/// Returns the message of a panic.
fn words(panic: &(dyn Any + Send)) -> &str {
    let owned = panic.downcast_ref::<String>().map(String::as_str);
    owned
        .or_else(|| panic.downcast_ref::<&str>().copied())
        .unwrap_or("it panicked")
}
