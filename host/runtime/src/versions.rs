//! The versions of the contract that this host speaks. The host knows the present one only; what is different for a plugin
//! that was made for an earlier one is all in this file.

use std::fmt;

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use wasmtime::Store;
use wasmtime::component::{ComponentExportIndex, ComponentNamedList, ComponentType, Instance, Lift, Lower};

use crate::bindings::operator_host::plugin::types as wit;
use crate::contract::Request;

/// A version of the contract: that of the WIT package.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize, JsonSchema)]
pub enum ContractVersion {
    /// The first.
    #[serde(rename = "0.1.0")]
    V0_1,
    /// The request says `namespaceTerminating`, and the description of a command says `contract`.
    #[serde(rename = "0.2.0")]
    V0_2,
}

impl ContractVersion {
    /// All that a plugin may be made for.
    pub const ALL: [Self; 2] = [Self::FIRST, Self::PRESENT];
    /// The one in which every command is asked to describe itself, and that it is made for unless it says otherwise.
    pub const FIRST: Self = Self::V0_1;
    /// The one in `wit/`.
    pub const PRESENT: Self = Self::V0_2;

    /// As it stands in the WIT package.
    #[must_use]
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::V0_1 => "0.1.0",
            Self::V0_2 => "0.2.0",
        }
    }

    /// The version of that text; `None` when this host does not speak it.
    #[must_use]
    pub fn of(text: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|version| version.as_str() == text)
    }

    /// The request as a command of this version reads it.
    pub(crate) fn request(self, request: Request) -> Request {
        match self {
            // What is false is not written.
            Self::V0_1 => Request {
                namespace_terminating: false,
                ..request
            },
            Self::V0_2 => request,
        }
    }

    /// Whether an export that takes a request is as a component of this version has it.
    pub(crate) fn check<S: 'static, A>(
        self,
        store: &mut Store<S>,
        instance: &Instance,
        export: &ComponentExportIndex,
    ) -> wasmtime::Result<()>
    where
        (A,): ComponentNamedList + Lift + 'static,
    {
        match self {
            Self::V0_1 => drop(instance.get_typed_func::<(RequestV0_1,), (A,)>(store, export)?),
            Self::V0_2 => drop(instance.get_typed_func::<(wit::Request,), (A,)>(store, export)?),
        }
        Ok(())
    }

    /// Calls an export that takes a request, as a component of this version has it.
    pub(crate) async fn ask<S: Send + 'static, A>(
        self,
        store: &mut Store<S>,
        instance: &Instance,
        export: &ComponentExportIndex,
        request: wit::Request,
    ) -> wasmtime::Result<A>
    where
        (A,): ComponentNamedList + Lift + Send + Sync + 'static,
    {
        match self {
            Self::V0_1 => call(store, instance, export, (RequestV0_1::from(request),)).await,
            Self::V0_2 => call(store, instance, export, (request,)).await,
        }
    }
}

impl fmt::Display for ContractVersion {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.as_str())
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

/// The request of 0.1.0. All other records are the same in both.
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
