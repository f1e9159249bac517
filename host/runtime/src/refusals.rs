//! Imports that tool-chains bring whether a plugin uses them or not, such as sockets: defined so that the plugin loads, as
//! functions that end it when it calls one of them.
//!
//! No code of the host stands behind such a function. The engine reads its arguments, within the fuel of the store
//! (see `call::store`), and the error ends the guest. A guest never has a handle to one of their resources, since only a
//! function that returns could give it one.

use wasmtime::Engine;
use wasmtime::component::types::{ComponentInstance, ComponentItem};
use wasmtime::component::{Component, LinkerInstance, ResourceType};

use crate::error::LoadError;
use crate::linker::{Linker, State, gives};

/// The packages of WASI 0.2. An interface of theirs that the host does not provide is refused when it is called; an
/// interface of any other package, when the plugin is loaded.
const PACKAGES: [&str; 7] = [
    "wasi:cli",
    "wasi:clocks",
    "wasi:filesystem",
    "wasi:http",
    "wasi:io",
    "wasi:random",
    "wasi:sockets",
];

/// Ends a guest that calls what the host does not provide.
#[derive(Debug, thiserror::Error)]
#[error("it called `{import}`, which this host does not provide: plugins have no network and no files")]
pub(crate) struct Refused {
    /// Such as `wasi:sockets/tcp-create-socket@0.2.9#create-tcp-socket`.
    import: String,
}

/// The type of each resource in a refused interface.
struct Nothing;

/// Whether an interface, such as `wasi:sockets/tcp@0.2.6`, is refused when a function of it is called.
pub(crate) fn refuses(import: &str) -> bool {
    let Some((interface, version)) = import.split_once('@') else {
        return false;
    };
    let package = interface
        .split_once('/')
        .map_or(interface, |(package, _)| package);
    PACKAGES.contains(&package) && version.starts_with("0.2.") && !gives(import)
}

/// Returns the interfaces that a component imports and that are refused when they are called.
pub(crate) fn of_component(engine: &Engine, component: &Component) -> Vec<String> {
    let types = component.component_type();
    let names = types.imports(engine).map(|(name, _)| name);
    names.filter(|name| refuses(name)).map(str::to_owned).collect()
}

/// Defines the refused interfaces that a component imports, in a linker for that component alone.
///
/// # Errors
/// Returns an error when an interface has something else than functions, types and resources.
pub(crate) fn define(engine: &Engine, linker: &mut Linker, component: &Component) -> Result<(), LoadError> {
    // The resources of the interfaces so far. An interface repeats those that it uses of another one, and the linker
    // must not define them again.
    let mut known = Vec::new();
    for (name, import) in component.component_type().imports(engine) {
        let ComponentItem::ComponentInstance(interface) = &import.ty else {
            continue;
        };
        if refuses(name) {
            let mut instance = linker.instance(name).map_err(LoadError::bindings)?;
            define_interface(engine, &mut instance, name, interface, &known).map_err(LoadError::bindings)?;
        }
        known.extend(resources(engine, interface).map(|(_, resource)| resource));
    }
    Ok(())
}

fn define_interface(
    engine: &Engine,
    linker: &mut LinkerInstance<'_, State>,
    name: &str,
    interface: &ComponentInstance,
    known: &[ResourceType],
) -> wasmtime::Result<()> {
    for (resource_name, resource) in resources(engine, interface) {
        if !known.contains(&resource) {
            linker.resource(&resource_name, ResourceType::host::<Nothing>(), |_, _| Ok(()))?;
        }
    }
    for (function, item) in interface.exports(engine) {
        if matches!(item.ty, ComponentItem::ComponentFunc(_)) {
            let import = format!("{name}#{function}");
            linker.func_new(function, move |_, _, _, _| {
                Err(Refused {
                    import: import.clone(),
                }
                .into())
            })?;
        }
    }
    Ok(())
}

/// Returns the resources of an interface by their names.
fn resources<'a>(
    engine: &'a Engine,
    interface: &'a ComponentInstance,
) -> impl Iterator<Item = (String, ResourceType)> + 'a {
    interface
        .exports(engine)
        .filter_map(|(name, item)| match item.ty {
            ComponentItem::Resource(resource) => Some((name.to_owned(), resource)),
            _ => None,
        })
}
