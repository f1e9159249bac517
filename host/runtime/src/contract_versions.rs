//! The contract versions that this host supports. The rest of the host knows the present version only; all
//! differences for plugins built for an earlier version are in this file.

use wasmtime::Store;
use wasmtime::component::{ComponentExportIndex, ComponentNamedList, ComponentType, Instance, Lift, Lower};

use crate::bindings::operator_host::plugin::types as wit;
use crate::contract::ContractVersion;

/// What an export that takes a request answers.
pub(crate) type Answer<R> = Result<R, wit::Failure>;

/// Checks that an export that takes a request has the signature of a component of this version.
pub(crate) fn check<S: 'static, R>(
    version: ContractVersion,
    store: &mut Store<S>,
    instance: &Instance,
    export: &ComponentExportIndex,
) -> wasmtime::Result<()>
where
    (Answer<R>,): ComponentNamedList + Lift + 'static,
    (Result<R, FailureV0_2>,): ComponentNamedList + Lift + 'static,
{
    type Old<R> = (Result<R, FailureV0_2>,);
    match version {
        ContractVersion::V0_1 => {
            instance.get_typed_func::<(RequestV0_1,), Old<R>>(store, export)?;
        }
        ContractVersion::V0_2 => {
            instance.get_typed_func::<(RequestV0_2,), Old<R>>(store, export)?;
        }
        ContractVersion::V0_3 => {
            instance.get_typed_func::<(wit::Request,), (Answer<R>,)>(store, export)?;
        }
    }
    Ok(())
}

/// Calls `describe`.
pub(crate) async fn describe<S: Send + 'static>(
    version: ContractVersion,
    store: &mut Store<S>,
    instance: &Instance,
    export: &ComponentExportIndex,
) -> wasmtime::Result<wit::Description> {
    match version {
        ContractVersion::V0_1 | ContractVersion::V0_2 => {
            let description: DescriptionV0_2 = call(store, instance, export, ()).await?;
            Ok(description.into())
        }
        ContractVersion::V0_3 => call(store, instance, export, ()).await,
    }
}

/// Calls an export that takes a request, with the signature of this version.
pub(crate) async fn ask<S: Send + 'static, R>(
    version: ContractVersion,
    store: &mut Store<S>,
    instance: &Instance,
    export: &ComponentExportIndex,
    request: wit::Request,
) -> wasmtime::Result<Answer<R>>
where
    (Answer<R>,): ComponentNamedList + Lift + Send + Sync + 'static,
    (Result<R, FailureV0_2>,): ComponentNamedList + Lift + Send + Sync + 'static,
{
    let old: Result<R, FailureV0_2> = match version {
        ContractVersion::V0_1 => call(store, instance, export, (RequestV0_1::from(request),)).await?,
        ContractVersion::V0_2 => call(store, instance, export, (RequestV0_2::from(request),)).await?,
        ContractVersion::V0_3 => return call(store, instance, export, (request,)).await,
    };
    Ok(old.map_err(Into::into))
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

/// The request of 0.1.0. All other records are the same as in 0.2.0.
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
        Self {
            parent: request.parent,
            children: request.children,
            related: request.related,
            now: request.now,
            traceparent: request.traceparent,
        }
    }
}

/// The request of 0.2.0. Responses are the same in all versions.
#[derive(ComponentType, Lower)]
#[component(record)]
struct RequestV0_2 {
    parent: String,
    children: Vec<String>,
    related: Vec<wit::Related>,
    now: String,
    traceparent: Option<String>,
    #[component(name = "namespace-terminating")]
    namespace_terminating: bool,
}

impl From<wit::Request> for RequestV0_2 {
    fn from(request: wit::Request) -> Self {
        Self {
            parent: request.parent,
            children: request.children,
            related: request.related,
            now: request.now,
            traceparent: request.traceparent,
            namespace_terminating: request.namespace_terminating,
        }
    }
}

/// The description of 0.2.0.
#[derive(ComponentType, Lift)]
#[component(record)]
struct DescriptionV0_2 {
    name: String,
    version: String,
    parent: wit::Kind,
    makes: Vec<wit::Kind>,
    reads: Vec<wit::Kind>,
    finalizer: bool,
    crd: Option<String>,
}

impl From<DescriptionV0_2> for wit::Description {
    fn from(description: DescriptionV0_2) -> Self {
        Self {
            name: description.name,
            version: description.version,
            parent: description.parent,
            makes: description.makes,
            reads: description.reads,
            finalizer: description.finalizer,
            crd: description.crd,
            versions: Vec::new(),
            defaults: false,
        }
    }
}

/// The failure of 0.2.0.
#[derive(ComponentType, Lift)]
#[component(variant)]
pub(crate) enum FailureV0_2 {
    #[component(name = "invalid")]
    Invalid(InvalidV0_2),
    #[component(name = "retry")]
    Retry(RetryV0_2),
}

#[derive(ComponentType, Lift)]
#[component(record)]
pub(crate) struct InvalidV0_2 {
    reason: Option<String>,
    message: String,
}

#[derive(ComponentType, Lift)]
#[component(record)]
pub(crate) struct RetryV0_2 {
    message: String,
    #[component(name = "after-ms")]
    after_ms: Option<u64>,
}

impl From<FailureV0_2> for wit::Failure {
    fn from(failure: FailureV0_2) -> Self {
        match failure {
            FailureV0_2::Invalid(InvalidV0_2 { reason, message }) => Self::Invalid(wit::Invalid {
                reason,
                message,
                status: None,
                conditions: Vec::new(),
            }),
            FailureV0_2::Retry(RetryV0_2 { message, after_ms }) => Self::Retry(wit::Retry {
                message,
                after_ms,
                status: None,
                conditions: Vec::new(),
            }),
        }
    }
}
