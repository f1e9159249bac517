//! The second binary form: a plain WASI command, with JSON on standard input and output.
//!
//! It runs as a core module and is not converted to a component: that needs one instance instead of four, and
//! the input and output are not copied through the adapter.

use std::collections::BTreeMap;

use serde::de::IgnoredAny;
use wasmtime::{AsContextMut, Caller, Engine, Extern, InstancePre, Module, bail};
use wasmtime_wasi::I32Exit;
use wasmtime_wasi::p1::wasi_snapshot_preview1::{self, WasiSnapshotPreview1 as _};
use wasmtime_wasi::p1::{self, WasiP1Ctx};
use wasmtime_wasi::p2::pipe::MemoryInputPipe;
use wiggle::GuestMemory;

use crate::call::{self, Call, Setting};
use crate::contract::{Asked, CommandInput, CommandOutput};
use crate::convert::{self, Text, not_an_object};
use crate::error::{CallError, LoadError, shortened};
use crate::estimate::{end_of_string, estimate};
use crate::lane::Owned;
use crate::limits::Limits;
use crate::memory_budget::CallMemory;
use crate::sandbox::{self, MAX_RESOURCES, Output, Sandbox};

type State = Sandbox<WasiP1Ctx>;
pub(crate) type Linker = wasmtime::Linker<State>;

/// Defines WASI preview 1 only.
pub(crate) fn linker(engine: &Engine) -> wasmtime::Result<Linker> {
    let mut linker = Linker::new(engine);
    p1::add_to_linker_async(&mut linker, |state: &mut State| &mut state.wasi)?;
    linker.allow_shadowing(true);
    linker.func_wrap_async(MODULE, "poll_oneoff", |caller, parameters| {
        Box::new(poll_oneoff(caller, parameters))
    })?;
    // The crate's own function allows codes below 126 only, as WASI says. Programs exit with others, too.
    linker.func_wrap(MODULE, "proc_exit", |code: i32| -> wasmtime::Result<()> {
        Err(I32Exit(code).into())
    })?;
    linker.allow_shadowing(false);
    Ok(linker)
}

/// The only argument, the name of the program: some libraries need one, such as `klog` when it is initialized.
const NAME: &str = "plugin";

/// The module name of WASI preview 1.
pub(crate) const MODULE: &str = "wasi_snapshot_preview1";
/// `errno::nomem`.
const NO_MEMORY: i32 = 48;

/// Calls the crate's own function, unless there are more subscriptions than a component may have pollables.
/// Each subscription is an object of the host, and in this form the table that contains them has no cap.
async fn poll_oneoff(
    mut caller: Caller<'_, State>,
    (subscriptions, events, count, result): (i32, i32, i32, i32),
) -> wasmtime::Result<i32> {
    if usize::try_from(count.cast_unsigned()).unwrap_or(usize::MAX) > MAX_RESOURCES {
        return Ok(NO_MEMORY);
    }
    let Some(Extern::Memory(memory)) = caller.get_export("memory") else {
        bail!("the plugin exports no memory");
    };
    let fuel = caller.as_context_mut().hostcall_fuel();
    let (memory, state) = memory.data_and_store_mut(&mut caller);
    let mut memory = GuestMemory::Unshared(memory);
    state.wasi.set_hostcall_fuel(fuel);
    wasi_snapshot_preview1::poll_oneoff(&mut state.wasi, &mut memory, subscriptions, events, count, result)
        .await
}

/// A linked command.
pub(crate) struct CommandForm {
    pre: InstancePre<State>,
}

impl CommandForm {
    pub(crate) fn new(linker: &Linker, module: &Module) -> Result<Self, LoadError> {
        let start = module
            .get_export("_start")
            .and_then(|export| export.func().cloned());
        if !start.is_some_and(|start| start.params().len() == 0 && start.results().len() == 0) {
            return Err(LoadError::bindings(
                "`_start` is not a function without parameters and results",
            ));
        }
        let pre = linker.instantiate_pre(module).map_err(LoadError::bindings)?;
        Ok(Self { pre })
    }

    /// Runs the program once in its own sandbox.
    pub(crate) fn ask(&self, asked: Asked, setting: Setting) -> Owned<Call<CommandOutput>> {
        let pre = self.pre.clone();
        Box::pin(async move { call(&pre, asked.into(), &setting).await })
    }
}

async fn call(pre: &InstancePre<State>, input: CommandInput, setting: &Setting) -> Call<CommandOutput> {
    let Setting {
        origin,
        limits,
        deadline,
        room,
        ..
    } = setting;
    let to_convert = input
        .conversion
        .as_ref()
        .map(|conversion| conversion.objects.len());
    let input = match text(&input, limits.request) {
        Ok(input) => input,
        Err(error) => return Call::failed(error),
    };
    let request_bytes = input.len();
    let log = match setting.begin(request_bytes) {
        Ok(log) => log,
        Err(error) => return Call::failed(error),
    };
    let output = Output::new(limits.response, room.clone());
    let wasi = sandbox::wasi(origin, &log)
        .arg(NAME)
        .stdin(MemoryInputPipe::new(input))
        .stdout(output.clone())
        .build_p1();
    let sandbox = Sandbox::new(wasi, limits, log, room.clone());
    let mut store = call::store(pre.module().engine(), limits, sandbox);
    // For WASI this bounds one buffer that the guest reads or writes; a larger one fails with out of memory.
    // `Output` bounds the total that it writes.
    store.set_hostcall_fuel(limits.memory);
    let (result, guest_time) = call::within(*deadline, async {
        let instance = pre.instantiate_async(&mut store).await?;
        let start = instance.get_typed_func::<(), ()>(&mut store, "_start")?;
        match start.call_async(&mut store, ()).await {
            // A program signals success this way.
            Err(error) if matches!(error.downcast_ref(), Some(I32Exit(0))) => Ok(()),
            result => result,
        }
    })
    .await;
    // The guest's memory is released before its answer is parsed.
    let sandbox = store.into_data();
    let mut stats = sandbox.stats(guest_time, request_bytes);
    let outcome = match result {
        Ok(()) => {
            let bytes = output.take();
            stats.response_bytes = bytes.len();
            parse(&bytes, to_convert, limits, room)
        }
        Err(_) if output.overflowed() => Err(CallError::output(limits.response)),
        Err(error) => Err(call::explain(error, &sandbox, limits)),
    };
    Call {
        outcome,
        stats,
        share: None,
    }
}

fn text(input: &CommandInput, limit: usize) -> Result<Vec<u8>, CallError> {
    if let Some(request) = &input.request {
        return Text::with_capacity(INPUT, limit).of(input, request, limit);
    }
    if let Some(conversion) = &input.conversion {
        let size: usize = conversion.objects.iter().map(|object| object.get().len()).sum();
        if size > limit {
            return Err(CallError::too_many_objects(limit, conversion.objects.len()));
        }
    }
    serde_json::to_vec(input).map_err(CallError::host)
}

/// As large as most inputs, so that the text is rarely reallocated while it grows.
const INPUT: usize = 16 << 10;

/// Parses an answer. `to_convert` is the number of objects in a call of `convert`.
pub(crate) fn parse(
    bytes: &[u8],
    to_convert: Option<usize>,
    limits: &Limits,
    room: &CallMemory,
) -> Result<CommandOutput, CallError> {
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
    // Converted objects stay text.
    if let Some(count) = to_convert
        && text.trim_start().starts_with("{\"converted\"")
    {
        let found = items(text);
        if found > count {
            return Err(CallError::protocol(format!(
                "it was asked to convert {count} objects and converted {found}"
            )));
        }
        if !room.keep(text.len().saturating_add(found * CONVERTED)) {
            return Err(CallError::heavy(limits));
        }
    } else {
        let estimate = estimate(text);
        if estimate.values > limits.values {
            return Err(CallError::values(limits.values));
        }
        if !room.keep(estimate.bytes) {
            return Err(CallError::heavy(limits));
        }
    }
    let output: CommandOutput = serde_json::from_str(text).map_err(|error| {
        let fields = serde_json::from_str::<BTreeMap<String, IgnoredAny>>(text).unwrap_or_default();
        let fields: Vec<_> = fields.into_keys().collect();
        CallError::protocol(match fields.len() {
            0 | 1 => format!("standard output is not a valid answer: {error}"),
            _ => format!(
                "standard output must have one field, and has {}",
                shortened(&fields.join(", "))
            ),
        })
    })?;
    let children = match &output {
        CommandOutput::Response(response) => response.children.as_slice(),
        _ => &[],
    };
    convert::check_lists(&output, limits)?;
    match children.iter().enumerate().find(|(_, child)| !child.is_object()) {
        Some((index, child)) => Err(not_an_object(format_args!("children[{index}]"), child)),
        None => Ok(output),
    }
}

/// An upper bound for the memory of a converted object besides its text, in bytes, twice, because lists double when they
/// grow; and the allocator's overhead.
const CONVERTED: usize = 128;

/// Returns the number of values in the lists of an answer that is an object, at most one too many for each list.
fn items(text: &str) -> usize {
    let bytes = text.as_bytes();
    let (mut depth, mut items, mut at) = (0_usize, 0, 0);
    while let Some(&byte) = bytes.get(at) {
        at += 1;
        match byte {
            b'"' => at = end_of_string(bytes, at),
            b'[' | b'{' => {
                items += usize::from(depth == 1);
                depth += 1;
            }
            b']' | b'}' => depth = depth.saturating_sub(1),
            b',' => items += usize::from(depth == 2),
            _ => {}
        }
    }
    items
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_answer_is_text_only_to_convert_and_then_has_no_more_objects_than_were_asked_for() {
        let limits = Limits::default();
        let ask = |text: &str, to_convert: Option<usize>| {
            let parsed = parse(text.as_bytes(), to_convert, &limits, &CallMemory::of(&limits));
            parsed.map_err(|error| error.to_string())
        };
        let two = r#"{"converted": [{"object": {"a": [1, 2, {"b": "],\",["}]}}, {"error": "no"}]}"#;
        assert!(matches!(ask(two, Some(2)), Ok(CommandOutput::Converted(all)) if all.len() == 2));
        assert!(
            ask(two, Some(1))
                .unwrap_err()
                .contains("asked to convert 1 objects and converted 2")
        );
        // It may be the answer to another call.
        let many = format!("{{\"converted\": [{}0]}}", "0,".repeat(limits.values));
        let message = ask(&many, None).unwrap_err();
        assert!(message.contains(&limits.values.to_string()), "{message}");
        assert!(
            ask(&many, Some(500))
                .unwrap_err()
                .contains("asked to convert 500 objects")
        );
    }
}
