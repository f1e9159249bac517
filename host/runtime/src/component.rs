//! The first binary form: a component, or a core module with the WIT world's bindings embedded.

use std::sync::Arc;

use serde_json::{Map, Value};
use wasi_preview1_component_adapter_provider::{
    WASI_SNAPSHOT_PREVIEW1_ADAPTER_NAME, WASI_SNAPSHOT_PREVIEW1_REACTOR_ADAPTER,
};
use wasmtime::component::{
    Component, ComponentExportIndex, ComponentNamedList, Instance, InstancePre, Lift, Lower,
};
use wasmtime::{Engine, Store, StoreContextMut};
use wasmtime_wasi::p2;

use crate::bindings::operator_host::plugin::{logging, types};
use crate::call::{self, Call, Setting};
use crate::contract::{
    CleanupResponse, ContractVersion, Conversion, Converted, Description, Export, FieldError, Json, Request,
    Response,
};
use crate::convert;
use crate::error::{CallError, LoadError, Part};
use crate::lane::Owned;
use crate::limits::Limits;
use crate::log::Level;
use crate::memory_budget::CallMemory;
use crate::refusals;
use crate::sandbox::{self, Preview2, Sandbox};
use crate::stats::CallStats;

type State = Sandbox<Preview2>;
pub(crate) type Linker = wasmtime::component::Linker<State>;

/// The export that identifies a component as a plugin, without its version.
const RECONCILER: &str = "operator-host:plugin/reconciler";

/// The interfaces that a component may import, without versions: those of the contract, and those that the
/// preview-1 adapter and the standard libraries for preview 2 import whether they use them or not. There is
/// no preopened directory, so the two `wasi:filesystem` interfaces give no access to files.
const IMPORTS: [&str; 22] = [
    "operator-host:plugin/logging",
    "operator-host:plugin/types",
    "wasi:cli/environment",
    "wasi:cli/exit",
    "wasi:cli/stderr",
    "wasi:cli/stdin",
    "wasi:cli/stdout",
    "wasi:cli/terminal-input",
    "wasi:cli/terminal-output",
    "wasi:cli/terminal-stderr",
    "wasi:cli/terminal-stdin",
    "wasi:cli/terminal-stdout",
    "wasi:clocks/monotonic-clock",
    "wasi:clocks/wall-clock",
    "wasi:filesystem/preopens",
    "wasi:filesystem/types",
    "wasi:io/error",
    "wasi:io/poll",
    "wasi:io/streams",
    "wasi:random/insecure",
    "wasi:random/insecure-seed",
    "wasi:random/random",
];

/// Defines the interfaces in [`IMPORTS`] only.
pub(crate) fn linker(engine: &Engine) -> wasmtime::Result<Linker> {
    use p2::bindings::{cli, filesystem, random};
    use wasmtime_wasi::cli::{WasiCli, WasiCliView as _};
    use wasmtime_wasi::filesystem::{WasiFilesystem, WasiFilesystemView as _};
    use wasmtime_wasi::random::{WasiRandom, WasiRandomView as _};

    let mut linker = Linker::new(engine);
    let l = &mut linker;
    // Clocks, streams, standard input and output, and `wasi:random/random`.
    p2::add_to_linker_proxy_interfaces_async(l)?;
    cli::environment::add_to_linker::<State, WasiCli>(l, State::cli)?;
    cli::exit::add_to_linker::<State, WasiCli>(l, State::cli)?;
    cli::terminal_input::add_to_linker::<State, WasiCli>(l, State::cli)?;
    cli::terminal_output::add_to_linker::<State, WasiCli>(l, State::cli)?;
    cli::terminal_stdin::add_to_linker::<State, WasiCli>(l, State::cli)?;
    cli::terminal_stdout::add_to_linker::<State, WasiCli>(l, State::cli)?;
    cli::terminal_stderr::add_to_linker::<State, WasiCli>(l, State::cli)?;
    filesystem::preopens::add_to_linker::<State, WasiFilesystem>(l, State::filesystem)?;
    filesystem::types::add_to_linker::<State, WasiFilesystem>(l, State::filesystem)?;
    random::insecure::add_to_linker::<State, WasiRandom>(l, State::random)?;
    random::insecure_seed::add_to_linker::<State, WasiRandom>(l, State::random)?;
    add_logging(l)?;
    Ok(linker)
}

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
    describe: ComponentExportIndex,
    validate: ComponentExportIndex,
    reconcile: ComponentExportIndex,
    cleanup: ComponentExportIndex,
    convert: ComponentExportIndex,
    default: ComponentExportIndex,
}

/// The result of an export that can fail.
type Answer<R> = Result<R, types::Failure>;

/// The result of `convert`.
type Conversions = Vec<Result<String, String>>;

/// Reads a record from the guest; also returns the bytes of text in it.
type Read<R, T> = fn(R, &Limits, &CallMemory) -> Result<(T, usize), CallError>;

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
        let linked = Linked {
            describe: export(Export::Describe)?,
            validate: export(Export::Validate)?,
            reconcile: export(Export::Reconcile)?,
            cleanup: export(Export::Cleanup)?,
            convert: export(Export::Convert)?,
            default: export(Export::Default)?,
            pre,
        };
        Ok(Self {
            linked: Arc::new(linked),
            refused,
        })
    }

    pub(crate) fn describe(&self, setting: Setting) -> Owned<Call<Description>> {
        let linked = Arc::clone(&self.linked);
        Box::pin(async move {
            call(&linked, &setting, 0, async |instance, store| {
                // Checked when the plugin is loaded, rather than when the first parent is reconciled.
                let Linked {
                    validate,
                    reconcile,
                    cleanup,
                    convert,
                    default,
                    ..
                } = &*linked;
                has_type::<(String, Option<String>), Vec<types::FieldError>>(store, instance, validate)?;
                has_type::<(types::Request,), Answer<types::Response>>(store, instance, reconcile)?;
                has_type::<(types::Request,), Answer<types::CleanupResponse>>(store, instance, cleanup)?;
                has_type::<(String, Vec<String>), Conversions>(store, instance, convert)?;
                has_type::<(String,), Answer<String>>(store, instance, default)?;
                ask(store, instance, &linked.describe, ()).await.map(Ok)
            })
            .await
            .convert(|record| convert::description(record, &setting.limits, &setting.room))
        })
    }

    pub(crate) fn validate(
        &self,
        parent: Json,
        old_parent: Option<Json>,
        setting: Setting,
    ) -> Owned<Call<Vec<FieldError>>> {
        let linked = Arc::clone(&self.linked);
        Box::pin(async move {
            let parameters = (
                parent.get().to_owned(),
                old_parent.map(|old| old.get().to_owned()),
            );
            let size = parameters.0.len() + parameters.1.as_ref().map_or(0, String::len);
            call(&linked, &setting, size, async |instance, store| {
                ask(store, instance, &linked.validate, parameters).await.map(Ok)
            })
            .await
            .convert(|records| convert::validated(records, &setting.limits))
        })
    }

    pub(crate) fn reconcile(&self, request: Request, setting: Setting) -> Owned<Call<Response>> {
        self.with_request(request, setting, |linked| &linked.reconcile, convert::response)
    }

    pub(crate) fn cleanup(&self, request: Request, setting: Setting) -> Owned<Call<CleanupResponse>> {
        self.with_request(request, setting, |linked| &linked.cleanup, convert::cleanup)
    }

    pub(crate) fn convert(
        &self,
        conversion: Arc<Conversion>,
        setting: Setting,
    ) -> Owned<Call<Vec<Converted>>> {
        let linked = Arc::clone(&self.linked);
        Box::pin(async move {
            let (objects, size) = match convert::objects(&conversion, setting.limits.request) {
                Ok(objects) => objects,
                Err(error) => return Call::failed(error),
            };
            let parameters = (conversion.api_version.clone(), objects);
            call(&linked, &setting, size, async |instance, store| {
                let converted: Conversions = ask(store, instance, &linked.convert, parameters).await?;
                Ok(Ok(converted))
            })
            .await
            .convert(|records| convert::converted(records, &setting.room, &setting.limits))
        })
    }

    pub(crate) fn default(&self, parent: Json, setting: Setting) -> Owned<Call<Map<String, Value>>> {
        let linked = Arc::clone(&self.linked);
        Box::pin(async move {
            let text = parent.get().to_owned();
            call(&linked, &setting, text.len(), async |instance, store| {
                ask(store, instance, &linked.default, (text,)).await
            })
            .await
            .convert(|text: String| convert::defaulted(&text, &setting.limits, &setting.room))
        })
    }

    /// Calls an export that takes a request; `read` reads the record that it returns.
    fn with_request<R, T>(
        &self,
        request: Request,
        setting: Setting,
        export: fn(&Linked) -> &ComponentExportIndex,
        read: Read<R, T>,
    ) -> Owned<Call<T>>
    where
        (Answer<R>,): ComponentNamedList + Lift + Send + Sync + 'static,
        R: Send + 'static,
        T: Send + 'static,
    {
        let linked = Arc::clone(&self.linked);
        Box::pin(async move {
            let (record, size) = match convert::request(&request, setting.limits.request) {
                Ok(record) => record,
                Err(error) => return Call::failed(error),
            };
            call(&linked, &setting, size, async |instance, store| {
                ask(store, instance, export(&linked), (record,)).await
            })
            .await
            .convert(|record| read(record, &setting.limits, &setting.room))
        })
    }
}

/// Checks the signature of an export.
fn has_type<P, R>(
    store: &mut Store<State>,
    instance: &Instance,
    export: &ComponentExportIndex,
) -> wasmtime::Result<()>
where
    P: ComponentNamedList + Lower + Send + Sync + 'static,
    (R,): ComponentNamedList + Lift + Send + Sync + 'static,
{
    instance.get_typed_func::<P, (R,)>(store, export).map(drop)
}

/// Calls an export of an instance.
async fn ask<P, R>(
    store: &mut Store<State>,
    instance: &Instance,
    export: &ComponentExportIndex,
    parameters: P,
) -> wasmtime::Result<R>
where
    P: ComponentNamedList + Lower + Send + Sync + 'static,
    (R,): ComponentNamedList + Lift + Send + Sync + 'static,
{
    let function = instance.get_typed_func::<P, (R,)>(&mut *store, export)?;
    let (answer,) = function.call_async(store, parameters).await?;
    Ok(answer)
}

/// Calls an export once in its own sandbox.
async fn call<T>(
    linked: &Linked,
    setting: &Setting,
    request_bytes: usize,
    export: impl AsyncFnOnce(&Instance, &mut Store<State>) -> wasmtime::Result<Answer<T>>,
) -> Call<T> {
    let Setting {
        origin,
        limits,
        deadline,
        room,
        ..
    } = setting;
    let log = match setting.begin(request_bytes) {
        Ok(log) => log,
        Err(error) => return Call::failed(error),
    };
    let wasi = sandbox::wasi(origin, &log).stdout(log.clone()).build();
    let sandbox = Sandbox::new(Preview2::new(wasi), limits, log, room.clone());
    let mut store = call::store(linked.pre.engine(), limits, sandbox);
    let (result, guest_time) = call::within(*deadline, async {
        let instance = linked.pre.instantiate_async(&mut store).await?;
        export(&instance, &mut store).await
    })
    .await;
    // The guest's memory is released before its answer is parsed.
    let sandbox = store.into_data();
    let outcome = match result {
        Ok(answer) => answer.map_err(|failure| convert::failure(failure, limits, room)),
        Err(error) => Err(call::explain(error, &sandbox, limits)),
    };
    Call {
        outcome,
        stats: sandbox.stats(guest_time, request_bytes),
        share: None,
    }
}

impl<T> Call<T> {
    /// Reads the JSON in a record from the guest.
    fn convert<U>(self, read: impl FnOnce(T) -> Result<(U, usize), CallError>) -> Call<U> {
        let mut stats: CallStats = self.stats;
        let outcome = self.outcome.and_then(read).map(|(value, size)| {
            stats.response_bytes = size;
            value
        });
        Call {
            outcome,
            stats,
            share: self.share,
        }
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

/// Whether this host provides an interface, such as `wasi:io/poll@0.2.6`, to plugins.
pub(crate) fn gives(import: &str) -> bool {
    let interface = import.split_once('@').map_or(import, |(interface, _)| interface);
    IMPORTS.contains(&interface) && !is_of_other_wasi(import)
}

/// Whether an interface is of another version of WASI than 0.2, such as `wasi:cli/stdout@0.3.0`.
pub(crate) fn is_of_other_wasi(interface: &str) -> bool {
    let version = interface.split_once('@').map(|(_, version)| version);
    interface.starts_with("wasi:") && version.is_some_and(|version| !version.starts_with("0.2."))
}

fn add_logging(linker: &mut Linker) -> wasmtime::Result<()> {
    let name = format!("operator-host:plugin/logging@{}", ContractVersion::V1);
    let mut instance = linker.instance(&name)?;
    instance.func_wrap(
        "log",
        |store: StoreContextMut<'_, State>, (level, message): (logging::Level, String)| {
            let level = match level {
                logging::Level::Trace => Level::Trace,
                logging::Level::Debug => Level::Debug,
                logging::Level::Info => Level::Info,
                logging::Level::Warn => Level::Warn,
                logging::Level::Error => Level::Error,
            };
            store.data().log.line(level, &message);
            Ok(())
        },
    )
}
