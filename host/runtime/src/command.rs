//! The second binary form: a plain WASI command, with JSON on standard input and output.
//!
//! It runs as the core module that it is, without being made a component first: one instance instead of
//! four, and no copy of the input and the output through the adapter.

use std::sync::Arc;

use wasmtime::{Engine, InstancePre, Module};
use wasmtime_wasi::I32Exit;
use wasmtime_wasi::p1::{self, WasiP1Ctx};
use wasmtime_wasi::p2::pipe::MemoryInputPipe;

use crate::call::{self, Call, CallError};
use crate::contract::{
    CONTRACT_VERSION, CleanupResponse, CommandInput, CommandOutput, Description, Export, Request, Response,
};
use crate::convert::not_an_object;
use crate::deterministic::Origin;
use crate::limits::Limits;
use crate::load::LoadError;
use crate::log::{CallLog, Speaker};
use crate::sandbox::{self, Output, Sandbox};

type State = Sandbox<WasiP1Ctx>;
pub(crate) type Linker = wasmtime::Linker<State>;

/// Defines WASI preview 1 and nothing else.
pub(crate) fn linker(engine: &Engine) -> wasmtime::Result<Linker> {
    let mut linker = Linker::new(engine);
    p1::add_to_linker_async(&mut linker, |state: &mut State| &mut state.wasi)?;
    Ok(linker)
}

/// A command, linked.
pub(crate) struct CommandForm {
    pre: InstancePre<State>,
}

impl CommandForm {
    pub(crate) fn new(linker: &Linker, module: &Module) -> Result<Self, LoadError> {
        let start = module
            .get_export("_start")
            .and_then(|export| export.func().cloned());
        if !start.is_some_and(|start| start.params().len() == 0 && start.results().len() == 0) {
            return Err(LoadError::Bindings {
                message: "`_start` is not a function without parameters and results".into(),
            });
        }
        let pre = linker.instantiate_pre(module).map_err(LoadError::bindings)?;
        Ok(Self { pre })
    }

    pub(crate) async fn describe(&self, speaker: &Arc<Speaker>, limits: &Limits) -> Call<Description> {
        self.call(Export::Describe, None, &Origin::fixed(), speaker, limits)
            .await
            .and_then(|output| match output {
                CommandOutput::Description(description) => Ok(description),
                other => Err(unexpected(Export::Describe, other)),
            })
    }

    pub(crate) async fn reconcile(
        &self,
        request: &Request,
        origin: &Origin,
        speaker: &Arc<Speaker>,
        limits: &Limits,
    ) -> Call<Response> {
        self.call(Export::Reconcile, Some(request), origin, speaker, limits)
            .await
            .and_then(|output| match output {
                CommandOutput::Response(response) => Ok(*response),
                other => Err(unexpected(Export::Reconcile, other)),
            })
    }

    pub(crate) async fn cleanup(
        &self,
        request: &Request,
        origin: &Origin,
        speaker: &Arc<Speaker>,
        limits: &Limits,
    ) -> Call<CleanupResponse> {
        self.call(Export::Cleanup, Some(request), origin, speaker, limits)
            .await
            .and_then(|output| match output {
                CommandOutput::Cleanup(response) => Ok(*response),
                other => Err(unexpected(Export::Cleanup, other)),
            })
    }

    /// One run of the program in a sandbox of its own.
    async fn call(
        &self,
        export: Export,
        request: Option<&Request>,
        origin: &Origin,
        speaker: &Arc<Speaker>,
        limits: &Limits,
    ) -> Call<CommandOutput> {
        let input = match input(export, request) {
            Ok(input) => input,
            Err(error) => return Call::failed(CallError::host(error)),
        };
        let request_bytes = input.len();
        let log = CallLog::new(Arc::clone(speaker), limits);
        let output = Output::new(limits.response);
        let wasi = sandbox::wasi(origin, &log)
            .stdin(MemoryInputPipe::new(input))
            .stdout(output.clone())
            .build_p1();
        let sandbox = Sandbox::new(wasi, limits, log);
        let mut store = call::store(self.pre.module().engine(), limits, sandbox);
        // For WASI this bounds one buffer that the guest reads or writes; a guest that has a larger one is told
        // that memory is out. What it writes in all is bounded by `Output`.
        store.set_hostcall_fuel(limits.memory);
        let (result, guest_time) = call::within(limits.deadline, async {
            let instance = self.pre.instantiate_async(&mut store).await?;
            let start = instance.get_typed_func::<(), ()>(&mut store, "_start")?;
            match start.call_async(&mut store, ()).await {
                // How a program says that it is done.
                Err(error) if matches!(error.downcast_ref(), Some(I32Exit(0))) => Ok(()),
                result => result,
            }
        })
        .await;
        let sandbox = store.data();
        let mut stats = sandbox.stats(guest_time, request_bytes);
        let outcome = match result {
            Ok(()) => {
                let bytes = output.take();
                stats.response_bytes = bytes.len();
                parse(&bytes)
            }
            Err(_) if output.overflowed() => Err(CallError::Output {
                limit: limits.response,
            }),
            Err(error) => Err(call::explain(error, sandbox, limits)),
        };
        Call { outcome, stats }
    }
}

fn input(export: Export, request: Option<&Request>) -> Result<Vec<u8>, serde_json::Error> {
    serde_json::to_vec(&CommandInput {
        contract: CONTRACT_VERSION.to_owned(),
        call: export,
        // The clone shares the objects.
        request: request.map(|request| Arc::new(request.clone())),
    })
}

/// The error that a failure document stands for, or that of a document that answers another call.
fn unexpected(export: Export, output: CommandOutput) -> CallError {
    let found = match output {
        CommandOutput::Failure(failure) => return failure.into(),
        CommandOutput::Description(_) => "description",
        CommandOutput::Response(_) => "response",
        CommandOutput::Cleanup(_) => "cleanup",
    };
    CallError::protocol(format!(
        "it answered `{export}` with a document whose field is `{found}`"
    ))
}

pub(crate) fn parse(bytes: &[u8]) -> Result<CommandOutput, CallError> {
    let text = std::str::from_utf8(bytes).map_err(|error| {
        CallError::protocol(format!(
            "standard output is not UTF-8 after {} bytes",
            error.valid_up_to()
        ))
    })?;
    if text.trim().is_empty() {
        return Err(CallError::protocol(
            "standard output is empty; it must be one JSON document, such as {\"response\": {}}",
        ));
    }
    let output: CommandOutput = serde_json::from_str(text)
        .map_err(|error| CallError::protocol(format!("standard output cannot be read: {error}")))?;
    let children = match &output {
        CommandOutput::Response(response) => response.children.as_slice(),
        CommandOutput::Cleanup(response) => response.children.as_slice(),
        CommandOutput::Description(_) | CommandOutput::Failure(_) => &[],
    };
    match children.iter().enumerate().find(|(_, child)| !child.is_object()) {
        Some((index, child)) => Err(not_an_object(format_args!("children[{index}]"), child)),
        None => Ok(output),
    }
}
