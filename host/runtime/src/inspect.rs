//! Detects from a file's contents which of the two binary forms it has, and rejects all others.

use wasmparser::{Parser, Payload};

use crate::command::MODULE as PREVIEW_1;
use crate::component;
use crate::error::{LoadError, Part};
use crate::linker;
use crate::refusals;

/// The form of a file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Shape {
    /// An encoded component.
    Component,
    /// A core module with the WIT world's bindings embedded, to be encoded as a component.
    Bindings,
    /// A core module with `_start`.
    Command,
}

/// Reads all sections of the file, so that a truncated file fails here.
///
/// # Errors
/// Returns every error that can be detected without compiling: not WebAssembly, truncated, no export to call,
/// a forbidden import.
pub(crate) fn inspect(bytes: &[u8]) -> Result<Shape, LoadError> {
    if Parser::is_component(bytes) {
        inspect_component(bytes)?;
        return Ok(Shape::Component);
    }
    if !Parser::is_core_wasm(bytes) {
        return Err(LoadError::new(
            Part::Form,
            "the file is not WebAssembly: a plugin is the output of a compiler for `wasm32-wasip1`",
        ));
    }
    let mut bindings = false;
    let mut exports = Vec::new();
    let mut imports = Vec::new();
    for payload in Parser::new(0).parse_all(bytes) {
        let payload = payload?;
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
    // `_start` is checked first: a command built with a library of bindings contains them without using them,
    // and a module with bindings has no `_start`.
    let shape = if exports.iter().any(|name| name == "_start") {
        Shape::Command
    } else if bindings {
        Shape::Bindings
    } else {
        return Err(LoadError::other_world("_start"));
    };
    let forbidden = imports
        .into_iter()
        .filter(|(module, name)| !allowed(shape, module, name));
    let forbidden = forbidden.map(|(module, name)| {
        // The functions of a WIT interface are always imported together.
        if module.contains(':') {
            module.to_owned()
        } else {
            format!("{module}.{name}")
        }
    });
    LoadError::forbidden(forbidden)?;
    Ok(shape)
}

/// Checks a component before it is compiled, which can take long.
fn inspect_component(bytes: &[u8]) -> Result<(), LoadError> {
    let (imports, exports) = surface(bytes)?;
    component::check_exports(&exports)?;
    component::check_imports(imports.into_iter())
}

/// Returns what a component imports and exports, for the description of an artifact. `None`: it is a core module, or
/// cannot be read.
#[must_use]
pub fn interfaces(bytes: &[u8]) -> Option<(Vec<String>, Vec<String>)> {
    let is_component = Parser::is_component(bytes);
    is_component.then(|| surface(bytes).ok()).flatten()
}

/// Returns what a component imports and exports.
fn surface(bytes: &[u8]) -> Result<(Vec<String>, Vec<String>), LoadError> {
    let (mut imports, mut exports) = (Vec::new(), Vec::new());
    // The nested modules and components have imports and exports of their own.
    let mut depth = 0;
    for payload in Parser::new(0).parse_all(bytes) {
        let payload = payload?;
        match payload {
            Payload::Version { .. } => depth += 1,
            Payload::End(_) => depth -= 1,
            Payload::ComponentImportSection(section) if depth == 1 => {
                for import in section {
                    imports.push(import?.name.name.to_owned());
                }
            }
            Payload::ComponentExportSection(section) if depth == 1 => {
                for export in section {
                    exports.push(export?.name.name.to_owned());
                }
            }
            _ => {}
        }
    }
    Ok((imports, exports))
}

/// Whether a core module may import this function. File functions of preview 1 are allowed, because the
/// standard libraries of most languages import some of them whether they are used or not; a call finds no
/// files. Sockets are allowed to a command, since Go's standard library imports them for the packages that a
/// Kubernetes type needs; a call finds none. Of the languages with bindings, only programs that use sockets import them.
fn allowed(shape: Shape, module: &str, name: &str) -> bool {
    match module {
        PREVIEW_1 => shape == Shape::Command || !name.starts_with("sock_"),
        _ => shape == Shape::Bindings && (linker::gives(module) || refusals::refuses(module)),
    }
}
