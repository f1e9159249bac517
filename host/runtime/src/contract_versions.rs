//! The contract versions that this host supports. The rest of the host knows the present version only; all
//! differences for plugins built for an earlier version are in this file.

use wasmtime::Store;
use wasmtime::component::{ComponentExportIndex, ComponentNamedList, ComponentType, Instance, Lift, Lower};

use crate::bindings::operator_host::plugin::types as wit;
use crate::contract::ContractVersion;

/// Checks that an export that takes a request has the signature of a component of this version.
pub(crate) fn check<S: 'static, A>(
    version: ContractVersion,
    store: &mut Store<S>,
    instance: &Instance,
    export: &ComponentExportIndex,
) -> wasmtime::Result<()>
where
    (A,): ComponentNamedList + Lift + 'static,
{
    match version {
        ContractVersion::V0_1 => drop(instance.get_typed_func::<(RequestV0_1,), (A,)>(store, export)?),
        ContractVersion::V0_2 => drop(instance.get_typed_func::<(wit::Request,), (A,)>(store, export)?),
    }
    Ok(())
}

/// Calls an export that takes a request, with the signature of this version.
pub(crate) async fn ask<S: Send + 'static, A>(
    version: ContractVersion,
    store: &mut Store<S>,
    instance: &Instance,
    export: &ComponentExportIndex,
    request: wit::Request,
) -> wasmtime::Result<A>
where
    (A,): ComponentNamedList + Lift + Send + Sync + 'static,
{
    match version {
        ContractVersion::V0_1 => call(store, instance, export, (RequestV0_1::from(request),)).await,
        ContractVersion::V0_2 => call(store, instance, export, (request,)).await,
    }
}
/// Calls an export.
pub(crate) async fn call<S: Send + 'static, P, A>(
    store: &mut Store<S>,
    instance: &Instance,
    export: &ComponentExportIndex,
    parameters: P,
) -> wasmtime::Result<A>
where
    P: ComponentNamedList + Lower + Send + Sync + 'static,
    (A,): ComponentNamedList + Lift + Send + Sync + 'static,
{
    let function = instance.get_typed_func::<P, (A,)>(&mut *store, export)?;
    let (answer,) = function.call_async(store, parameters).await?;
    Ok(answer)
}

/// The request of 0.1.0. All other records are the same in both versions.
#[derive(ComponentType, Lower)]
#[component(record)]
struct RequestV0_1 {
    parent: String,
    children: Vec<String>,
    related: Vec<wit::Related>,
    now: String,
    traceparent: Option<String>,
}

impl From<wit::Request> for RequestV0_1 {
    fn from(request: wit::Request) -> Self {
        let wit::Request {
            parent,
            children,
            related,
            now,
            traceparent,
            namespace_terminating: _,
        } = request;
        Self {
            parent,
            children,
            related,
            now,
            traceparent,
        }
    }
}
