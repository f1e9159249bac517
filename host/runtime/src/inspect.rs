//! Tells from a file's contents which of the two binary forms it is, and refuses what is neither.

use wasmparser::{Parser, Payload};

use crate::component;
use crate::counts::Counts;
use crate::error::LoadError;

/// The module name of WASI preview 1.
const PREVIEW_1: &str = "wasi_snapshot_preview1";

/// What a file is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Shape {
    /// An encoded component.
    Component,
    /// A core module with the WIT world's bindings embedded, to be encoded as a component.
    Bindings,
    /// A core module with `_start`.
    Command,
}

/// Reads the file's sections, all of them: a truncated file fails here.
///
/// # Errors
/// Whatever can be told without compiling: not WebAssembly, cut off, nothing to call, a forbidden import, more of
/// something than any compiler writes.
pub(crate) fn inspect(bytes: &[u8]) -> Result<Shape, LoadError> {
    let mut counts = Counts::default();
    if Parser::is_component(bytes) {
        for payload in Parser::new(0).parse_all(bytes) {
            counts.add(&payload?)?;
        }
        return Ok(Shape::Component);
    }
    if !Parser::is_core_wasm(bytes) {
        return Err(LoadError::NotWasm);
    }
    let mut bindings = false;
    let mut exports = Vec::new();
    let mut imports = Vec::new();
    for payload in Parser::new(0).parse_all(bytes) {
        let payload = payload?;
        counts.add(&payload)?;
        match payload {
            Payload::CustomSection(section) if section.name().starts_with("component-type") => {
                bindings = true;
            }
            Payload::ImportSection(section) => {
                for import in section.into_imports() {
                    let import = import?;
                    imports.push((import.module, import.name));
                }
            }
            Payload::ExportSection(section) => {
                for export in section {
                    exports.push(export?.name.to_owned());
                }
            }
            _ => {}
        }
    }
    // `_start` first: a command that is built with a library of bindings carries them too, without using
    // them, and a module with bindings has no `_start`.
    let shape = if exports.iter().any(|name| name == "_start") {
        Shape::Command
    } else if bindings {
        Shape::Bindings
    } else {
        return Err(LoadError::other_world("_start", exports));
    };
    let forbidden = imports
        .into_iter()
        .filter(|(module, name)| !allowed(shape, module, name));
    let forbidden = forbidden.map(|(module, name)| {
        // The functions of a WIT interface come and go together.
        if module.contains(':') {
            module.to_owned()
        } else {
            format!("{module}.{name}")
        }
    });
    LoadError::forbidden(forbidden)?;
    Ok(shape)
}

/// Whether a core module may import this function. File functions of preview 1 are allowed, since the
/// standard libraries of most languages import some of them whether they are used or not; a call finds no
/// file. Sockets are only imported by programs that mean to use them.
fn allowed(shape: Shape, module: &str, name: &str) -> bool {
    match module {
        PREVIEW_1 => !name.starts_with("sock_"),
        _ => shape == Shape::Bindings && component::gives(module),
    }
}
