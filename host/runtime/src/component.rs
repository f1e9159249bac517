//! The first binary form: a component, or a core module with the WIT world's bindings embedded.

use std::collections::HashMap;
use std::sync::Arc;

use wasi_preview1_component_adapter_provider::{
    WASI_SNAPSHOT_PREVIEW1_ADAPTER_NAME, WASI_SNAPSHOT_PREVIEW1_REACTOR_ADAPTER,
};
use wasmtime::component::{
    Component, ComponentExportIndex, ComponentNamedList, Instance, InstancePre, Lift, Lower, TypedFunc,
};
use wasmtime::{Engine, Store};

use crate::bindings::operator_host::plugin::types;
use crate::call::{self, Call, Setting};
use crate::contract::{Asked, CommandOutput, ContractVersion, Export};
use crate::convert::{self, Answer, Conversions, Reader};
use crate::error::{CallError, LoadError, Part};
use crate::lane::Owned;
use crate::linker::{Linker, State, gives};
use crate::refusals;
use crate::sandbox::{self, Preview2, Sandbox};

/// The export that identifies a component as a plugin, without its version.
const RECONCILER: &str = "operator-host:plugin/reconciler";

/// The adapter between a core module's WASI preview 1 and a component's preview 2.
pub(crate) const ADAPTER: &[u8] = WASI_SNAPSHOT_PREVIEW1_REACTOR_ADAPTER;

/// Encodes a core module with embedded bindings as a component.
pub(crate) fn encode(module: &[u8]) -> Result<Vec<u8>, LoadError> {
    let encoder = wit_component::ComponentEncoder::default();
    encoder
        .module(module)
        .and_then(|it| it.adapter(WASI_SNAPSHOT_PREVIEW1_ADAPTER_NAME, ADAPTER))
        .and_then(|mut it| it.encode())
        .map_err(LoadError::bindings)
}

/// A linked component.
pub(crate) struct ComponentForm {
    linked: Arc<Linked>,
    /// Interfaces that it imports and may not call.
    pub(crate) refused: Vec<String>,
}

struct Linked {
    pre: InstancePre<State>,
    exports: HashMap<Export, ComponentExportIndex>,
}

impl ComponentForm {
    pub(crate) fn new(engine: &Engine, linker: &Linker, component: &Component) -> Result<Self, LoadError> {
        // Checked again: an earlier host may have compiled it.
        let types = component.component_type();
        let exports = types.exports(engine).map(|(name, _)| name.to_owned());
        check_exports(&exports.collect::<Vec<_>>())?;
        check_imports(types.imports(engine).map(|(name, _)| name.to_owned()))?;
        let refused = refusals::of_component(engine, component);
        let pre = if refused.is_empty() {
            linker.instantiate_pre(component)
        } else {
            let mut linker = linker.clone();
            refusals::define(engine, &mut linker, component)?;
            linker.instantiate_pre(component)
        };
        let pre = pre.map_err(LoadError::bindings)?;
        let reconciler = component.get_export_index(None, present().as_str());
        let export = |name: Export| {
            component
                .get_export_index(reconciler.as_ref(), name.as_str())
                .ok_or_else(|| LoadError::bindings(format!("`{name}` is not exported")))
        };
        let exports = [
            Export::Describe,
            Export::Validate,
            Export::Reconcile,
            Export::Cleanup,
            Export::Convert,
            Export::Default,
        ];
        let exports = exports.map(|name| Ok((name, export(name)?)));
        let linked = Linked {
            exports: exports.into_iter().collect::<Result<_, LoadError>>()?,
            pre,
        };
        Ok(Self {
            linked: Arc::new(linked),
            refused,
        })
    }

    /// Calls an export once in its own sandbox.
    pub(crate) fn ask(&self, asked: Asked, setting: Setting) -> Owned<Call<CommandOutput>> {
        let linked = Arc::clone(&self.linked);
        let export = asked.export();
        match asked {
            Asked::Describe => run(linked, export, setting, |_| Ok(((), 0)), convert::description),
            Asked::Validate(parent, old_parent) => {
                let parameters = move |_| {
                    let old_parent = old_parent.map(|old| old.get().to_owned());
                    let size = parent.get().len() + old_parent.as_ref().map_or(0, String::len);
                    Ok(((parent.get().to_owned(), old_parent), size))
                };
                run(linked, export, setting, parameters, convert::validated)
            }
            Asked::Reconcile(request) | Asked::Cleanup(request) => {
                let parameters = move |limit| convert::request(&request, limit);
                run(linked, export, setting, parameters, convert::response)
            }
            Asked::Convert(conversion) => {
                let parameters = move |limit| convert::conversion(&conversion, limit);
                run(linked, export, setting, parameters, convert::converted)
            }
            Asked::Default(parent) => {
                let parameters = move |_| Ok(((parent.get().to_owned(),), parent.get().len()));
                run(linked, export, setting, parameters, convert::defaulted)
            }
        }
    }
}

/// Calls an export once in its own sandbox. `parameters` makes them within a limit of bytes, and returns their size.
fn run<P, R>(
    linked: Arc<Linked>,
    export: Export,
    setting: Setting,
    parameters: impl FnOnce(usize) -> Result<(P, usize), CallError> + Send + 'static,
    read: fn(R, &mut Reader<'_>) -> Result<CommandOutput, CallError>,
) -> Owned<Call<CommandOutput>>
where
    P: ComponentNamedList + Lower + Send + Sync + 'static,
    (R,): ComponentNamedList + Lift + Send + Sync + 'static,
    R: Send + 'static,
{
    Box::pin(async move {
        let Setting {
            origin,
            limits,
            deadline,
            room,
            ..
        } = &setting;
        let begun = parameters(limits.request)
            .and_then(|(parameters, size)| Ok((parameters, size, setting.begin(size)?)));
        let (parameters, request_bytes, log) = match begun {
            Ok(begun) => begun,
            Err(error) => return Call::failed(error),
        };
        let wasi = sandbox::wasi(origin, &log).stdout(log.clone()).build();
        let sandbox = Sandbox::new(Preview2::new(wasi), limits, log, room.clone());
        let mut store = call::store(linked.pre.engine(), limits, sandbox);
        let (result, guest_time) = call::within(*deadline, async {
            let instance = linked.pre.instantiate_async(&mut store).await?;
            if export == Export::Describe {
                // Now, rather than when the first parent is reconciled.
                linked.check_types(&mut store, &instance)?;
            }
            let function = linked.function::<P, R>(&mut store, &instance, export)?;
            let (answer,) = function.call_async(&mut store, parameters).await?;
            Ok(answer)
        })
        .await;
        // The guest's memory is released before its answer is parsed.
        let sandbox = store.into_data();
        let mut stats = sandbox.stats(guest_time, request_bytes);
        let outcome = match result {
            Ok(answer) => {
                let mut reader = Reader::new(limits, room);
                let output = read(answer, &mut reader);
                stats.response_bytes = reader.size;
                output.and_then(|output| convert::check_lists(&output, limits).map(|()| output))
            }
            Err(error) => Err(call::explain(error, &sandbox, limits)),
        };
        Call {
            outcome,
            stats,
            share: None,
        }
    })
}

impl Linked {
    /// Checks the signatures of all exports but `describe`.
    fn check_types(&self, store: &mut Store<State>, instance: &Instance) -> wasmtime::Result<()> {
        self.function::<(String, Option<String>), Vec<types::FieldError>>(store, instance, Export::Validate)?;
        for export in [Export::Reconcile, Export::Cleanup] {
            self.function::<(types::Request,), Answer<types::Response>>(store, instance, export)?;
        }
        self.function::<(String, Vec<String>), Conversions>(store, instance, Export::Convert)?;
        self.function::<(String,), Answer<String>>(store, instance, Export::Default)?;
        Ok(())
    }

    fn function<P, R>(
        &self,
        store: &mut Store<State>,
        instance: &Instance,
        export: Export,
    ) -> wasmtime::Result<TypedFunc<P, (R,)>>
    where
        P: ComponentNamedList + Lower + Send + Sync + 'static,
        (R,): ComponentNamedList + Lift + Send + Sync + 'static,
    {
        let index = self.exports.get(&export);
        let index = index.ok_or_else(|| wasmtime::format_err!("`{export}` is not exported"))?;
        instance.get_typed_func(store, index)
    }
}

/// Checks that a component is built for this host's version of the contract.
pub(crate) fn check_exports(exports: &[String]) -> Result<(), LoadError> {
    let version = exports.iter().find_map(|name| {
        let (interface, version) = name.split_once('@')?;
        (interface == RECONCILER).then_some(version)
    });
    match version {
        Some(version) if version == ContractVersion::V1.as_str() => Ok(()),
        Some(version) => {
            let message = format!(
                "the plugin is built for version {version} of the contract; this host supports {own}: use a host that \
                 supports {version}, or build the plugin against {own}",
                own = ContractVersion::V1
            );
            Err(LoadError::new(Part::Contract, message))
        }
        None => Err(LoadError::other_world(&present())),
    }
}

/// The export of a plugin.
fn present() -> String {
    format!("{RECONCILER}@{}", ContractVersion::V1)
}

/// Returns an error that names the imports which this host neither provides nor refuses when they are called.
pub(crate) fn check_imports(imports: impl Iterator<Item = String>) -> Result<(), LoadError> {
    LoadError::forbidden(imports.filter(|name| !gives(name) && !refusals::refuses(name)))
}
