//! Compiles in this process, for tests, and for when no other process can be started.
//!
//! A panic of the compiler ends the compilation, but an overflow of the stack would end this process. For a process that
//! must go on, [`compile_or_refuse`] therefore refuses what can make the compiler recurse without a bound: types in a
//! component that nest as deep as they like, and the bindings of a module if they name several packages, since
//! wit-component follows packages that refer to each other in a circle without end. Bindings for the contract name one
//! package.

use std::any::Any;
use std::collections::BTreeSet;
use std::thread;

use wasmparser::{ComponentType, ComponentTypeDeclaration, InstanceTypeDeclaration, Parser, Payload};
use wasmtime::Engine;

use crate::compile::machine_code;
use crate::error::LoadError;
use crate::inspect::{Shape, inspect};
use crate::limits::MIB;

/// Maximum number of bytes of types in one section. Each level of nested types takes three or more.
const TYPES: usize = 64 << 10;
/// The stack of the compiling thread: for each level of nested types that fit into [`TYPES`], several times as much as the
/// parser takes. Pages that are not used cost nothing.
const STACK: usize = 256 * MIB;

/// Does what [`machine_code`] does, on a thread that may panic.
///
/// # Errors
/// See [`machine_code`].
pub(crate) fn compile(engine: &Engine, file: &[u8]) -> Result<Vec<u8>, LoadError> {
    on_large_stack(|| machine_code(engine, file))
}

/// Does what [`compile`] does, for files that cannot overflow the stack.
///
/// # Errors
/// See [`machine_code`]. Also refuses files that are left to a separate process.
pub(crate) fn compile_or_refuse(engine: &Engine, file: &[u8]) -> Result<Vec<u8>, LoadError> {
    on_large_stack(|| {
        check(file, inspect(file)?)?;
        machine_code(engine, file)
    })
}

fn on_large_stack<T: Send>(work: impl FnOnce() -> Result<T, LoadError> + Send) -> Result<T, LoadError> {
    thread::scope(|scope| {
        let thread = thread::Builder::new()
            .name("compiler".into())
            .stack_size(STACK)
            .spawn_scoped(scope, work)
            .map_err(|error| LoadError::Host {
                message: format!("cannot start a thread to compile: {error}"),
            })?;
        thread.join().unwrap_or_else(|panic| {
            Err(LoadError::Compiler {
                message: words(&*panic).to_owned(),
            })
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

/// Refuses a file on which the compiler could recurse without a bound.
fn check(file: &[u8], shape: Shape) -> Result<(), LoadError> {
    // Those of a command are not read.
    let has_bindings = shape == Shape::Bindings;
    let mut packages = BTreeSet::new();
    for payload in Parser::new(0).parse_all(file) {
        match payload? {
            Payload::ComponentTypeSection(section) => limit(section.range().len())?,
            Payload::CustomSection(section)
                if has_bindings && section.name().starts_with("component-type") =>
            {
                add_packages(section.data(), &mut packages)?;
            }
            _ => {}
        }
    }
    if packages.len() > 1 {
        return Err(refused("bindings that name more than one package"));
    }
    Ok(())
}

fn limit(types: usize) -> Result<(), LoadError> {
    if types > TYPES {
        return Err(refused("more than 64 KiB of types in one section"));
    }
    Ok(())
}

fn refused(what: &'static str) -> LoadError {
    LoadError::NeedsProcess { what }
}

/// Adds the packages that bindings name, which are an encoded component.
fn add_packages(bindings: &[u8], packages: &mut BTreeSet<String>) -> Result<(), LoadError> {
    if !Parser::is_component(bindings) {
        return Err(refused("bindings in an old format"));
    }
    for payload in Parser::new(0).parse_all(bindings) {
        match payload? {
            Payload::ComponentTypeSection(section) => {
                limit(section.range().len())?;
                for declared in section {
                    add_names(&declared?, packages);
                }
            }
            Payload::ComponentImportSection(section) => {
                for import in section {
                    add_name(import?.name.name, packages);
                }
            }
            Payload::ComponentExportSection(section) => {
                for export in section {
                    add_name(export?.name.name, packages);
                }
            }
            _ => {}
        }
    }
    Ok(())
}

fn add_names(declared: &ComponentType<'_>, packages: &mut BTreeSet<String>) {
    match declared {
        ComponentType::Component(declarations) => {
            for declaration in declarations {
                match declaration {
                    ComponentTypeDeclaration::Type(inner) => add_names(inner, packages),
                    ComponentTypeDeclaration::Import(import) => add_name(import.name.name, packages),
                    ComponentTypeDeclaration::Export { name, .. } => add_name(name.name, packages),
                    ComponentTypeDeclaration::CoreType(_) | ComponentTypeDeclaration::Alias(_) => {}
                }
            }
        }
        ComponentType::Instance(declarations) => {
            for declaration in declarations {
                match declaration {
                    InstanceTypeDeclaration::Type(inner) => add_names(inner, packages),
                    InstanceTypeDeclaration::Export { name, .. } => add_name(name.name, packages),
                    InstanceTypeDeclaration::CoreType(_) | InstanceTypeDeclaration::Alias(_) => {}
                }
            }
        }
        ComponentType::Defined(_) | ComponentType::Func(_) | ComponentType::Resource { .. } => {}
    }
}

/// Adds the package of a name such as `operator-host:plugin/types@1.0.0`. Other names have none.
fn add_name(name: &str, packages: &mut BTreeSet<String>) {
    if let Some((package, rest)) = name.split_once('/') {
        let version = rest.split_once('@').map_or("", |(_, version)| version);
        packages.insert(format!("{package}@{version}"));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn compiled(file: &[u8]) -> Result<Vec<u8>, LoadError> {
        compile_or_refuse(&crate::engine::compiling().unwrap(), file)
    }

    fn plugin(form: plugin_fixtures::Form) -> Vec<u8> {
        plugin_fixtures::Fixture::new(plugin_fixtures::cases::ANSWER).build(form)
    }

    #[test]
    fn plugins_of_both_forms_are_compiled() {
        for form in [plugin_fixtures::Form::Command, plugin_fixtures::Form::Component] {
            assert!(!compiled(&plugin(form)).unwrap().is_empty());
        }
    }

    /// Regression: wit-component overflowed the stack, which ended the process.
    #[test]
    fn packages_that_may_be_circular_are_refused() {
        let corpus = concat!(
            env!("CARGO_MANIFEST_DIR"),
            "/../../tests/fuzz/corpora/plugin-file"
        );
        let file = std::fs::read(format!("{corpus}/circular-packages")).unwrap();
        let error = compiled(&file).unwrap_err();
        assert!(matches!(error, LoadError::NeedsProcess { .. }), "{error}");
        for words in ["more than one package", "allow the container to start processes"] {
            assert!(error.to_string().contains(words), "{error}");
        }
        assert!(!error.is_repeatable(), "with a process it may be compiled");
    }

    /// A component, or bindings, with types that nest in each other: as many as fit into a number of bytes.
    fn nested(bytes: usize) -> Vec<u8> {
        // An instance type with one declaration: a type.
        let mut types = vec![0x01];
        types.extend([0x42, 0x01, 0x01].repeat(bytes / 3));
        types.extend([0x42, 0x00]);
        let mut component = b"\0asm\x0d\0\x01\0".to_vec();
        component.push(7);
        let mut length = types.len();
        while length > 0x7f {
            component.push(u8::try_from(length & 0x7f).unwrap() | 0x80);
            length >>= 7;
        }
        component.push(u8::try_from(length).unwrap());
        component.extend(types);
        component
    }

    #[test]
    fn types_that_nest_as_deep_as_they_can_do_not_overflow_the_stack() {
        let engine = crate::engine::compiling().unwrap();
        let deep = nested(TYPES - 10);
        let compiled = on_large_stack(|| {
            check(&deep, Shape::Component)?;
            add_packages(&deep, &mut BTreeSet::new())?;
            engine.precompile_component(&deep).map_err(LoadError::bindings)
        });
        compiled.unwrap();
        let error = check(&nested(TYPES + 10), Shape::Component).unwrap_err();
        assert!(matches!(error, LoadError::NeedsProcess { .. }), "{error}");
    }
}
