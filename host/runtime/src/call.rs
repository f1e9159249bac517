//! One plugin call: its result, its errors and its deadline.

use std::future::{Future, poll_fn};
use std::io;
use std::pin::pin;
use std::sync::Arc;
use std::task::Poll;
use std::time::{Duration, Instant};

use wasmtime::{Store, Trap, WasmBacktrace};
use wasmtime_wasi::I32Exit;

use crate::deterministic::Origin;
use crate::error::{CallError, shortened, with_causes};
use crate::limits::Limits;
use crate::log::{CallLog, LogSource};
use crate::memory_budget::{CallMemory, Share};
use crate::refusals::Refused;
use crate::sandbox::Sandbox;
use crate::stats::CallStats;

/// Result of a call, with the resources it used.
#[derive(Debug)]
pub struct Call<T> {
    /// The response, or the reason why there is none.
    pub outcome: Result<T, CallError>,
    /// The resources the call used, also when it failed.
    pub stats: CallStats,
    /// The memory that the response occupies; must be held as long as the response.
    pub share: Option<Share>,
}

impl<T> Call<T> {
    /// Builds the result of a call that was not started.
    pub(crate) fn failed(error: CallError) -> Self {
        Self {
            outcome: Err(error),
            stats: CallStats::default(),
            share: None,
        }
    }

    /// Converts the response with `read`, which can fail.
    pub(crate) fn and_then<U>(self, read: impl FnOnce(T) -> Result<U, CallError>) -> Call<U> {
        Call {
            outcome: self.outcome.and_then(read),
            stats: self.stats,
            share: self.share,
        }
    }
}

/// Creates a store with the caps in `limits`, whose guest yields to tokio at every tick of the epoch.
pub(crate) fn store<W: Send + 'static>(
    engine: &wasmtime::Engine,
    limits: &Limits,
    sandbox: Sandbox<W>,
) -> Store<Sandbox<W>> {
    let mut store = Store::new(engine, sandbox);
    store.limiter(|sandbox| &mut sandbox.memory);
    store.epoch_deadline_async_yield_and_update(1);
    store.set_epoch_deadline(1);
    // A guest can return a long list of references to one long string. This limit prevents the host from
    // copying the string for each reference.
    store.set_hostcall_fuel(limits.response);
    store
}

/// Everything a call needs except its request. It is owned, because the call can continue on another thread.
pub(crate) struct Setting {
    pub(crate) origin: Origin,
    pub(crate) log_source: Arc<LogSource>,
    pub(crate) limits: Limits,
    /// When the guest is stopped.
    pub(crate) deadline: Instant,
    /// How much memory the call may hold.
    pub(crate) room: CallMemory,
}

impl Setting {
    /// Counts the request and starts the log of the call.
    ///
    /// # Errors
    /// Returns an error when the call has no room for its request.
    pub(crate) fn begin(&self, request_bytes: usize) -> Result<CallLog, CallError> {
        if self.room.hold(request_bytes) {
            Ok(CallLog::new(Arc::clone(&self.log_source), &self.limits))
        } else {
            Err(CallError::heavy(&self.limits))
        }
    }
}

/// Runs a guest until it ends or reaches its deadline, after which it is not polled again. Also returns the
/// processor time used. The caller must make sure that the future is woken at the deadline.
///
/// # Errors
/// The error contains `None` when the deadline passed.
pub(crate) async fn within<T>(
    deadline: Instant,
    guest: impl Future<Output = wasmtime::Result<T>>,
) -> (Result<T, Option<wasmtime::Error>>, Duration) {
    let mut busy = Duration::ZERO;
    let mut guest = pin!(guest);
    let result = poll_fn(|context| {
        let start = Instant::now();
        if start >= deadline {
            return Poll::Ready(Err(None));
        }
        let result = guest.as_mut().poll(context);
        busy += start.elapsed();
        result.map_err(Some)
    })
    .await;
    (result, busy)
}

/// Converts the failure of a guest into the error to report.
///
/// `error` is the engine's error, or `None` when the deadline passed.
pub(crate) fn explain<W>(error: Option<wasmtime::Error>, sandbox: &Sandbox<W>, limits: &Limits) -> CallError {
    let Some(error) = error else {
        return CallError::timeout(limits.deadline);
    };
    if let Some(wanted) = sandbox.memory.refused {
        return CallError::memory(wanted, limits.memory);
    }
    if sandbox.memory.room.is_outgrown() {
        return CallError::heavy(limits);
    }
    if let Some(&I32Exit(code)) = error.downcast_ref() {
        return CallError::Trap {
            message: with_stderr(sandbox, &format!("it exited with code {code}")),
            backtrace: String::new(),
        };
    }
    if let Some(refused) = error.downcast_ref::<Refused>() {
        return CallError::Trap {
            message: with_stderr(sandbox, &refused.to_string()),
            backtrace: functions(&error).join("\n"),
        };
    }
    if let Some(&trap) = error.downcast_ref::<Trap>() {
        let functions = functions(&error);
        return CallError::Trap {
            message: with_stderr(sandbox, &end(trap, &functions)),
            backtrace: functions.join("\n"),
        };
    }
    if error.is::<std::str::Utf8Error>() {
        return CallError::protocol("a string in it is not UTF-8");
    }
    if error.is::<wasmtime::PoolConcurrencyLimitError>() || error.chain().any(is_of_system) {
        return CallError::host(with_causes(&error));
    }
    let cause = error.root_cause().to_string();
    // The engine's error type for this is private. A test of each binary form checks the message.
    if cause.contains("fuel allocated for hostcalls has been exhausted") {
        return CallError::output(limits.response);
    }
    if let Some(message) = cause.strip_prefix("resource limit exceeded: ") {
        return CallError::too_many_parts(message);
    }
    CallError::protocol(cause)
}

/// Reports whether the operating system refused something that the engine asked for, such as memory. No answer of a guest
/// ends in such an error.
fn is_of_system(cause: &(dyn std::error::Error + 'static)) -> bool {
    cause.is::<io::Error>() || cause.is::<rustix::io::Errno>()
}

/// Combines what the guest wrote last, which for a panic or an exception contains the reason, with how it ended.
fn with_stderr<W>(sandbox: &Sandbox<W>, end: &str) -> String {
    sandbox.log.finish();
    let tail = sandbox.log.tail();
    if tail.is_empty() {
        end.to_owned()
    } else {
        format!("{tail} ({end})")
    }
}

/// Returns the guest's functions at a trap, innermost first. The engine lists at most [`FRAMES`].
fn functions(error: &wasmtime::Error) -> Vec<String> {
    let Some(backtrace) = error.downcast_ref::<WasmBacktrace>() else {
        return Vec::new();
    };
    let names = backtrace.frames().iter().map(|frame| match frame.func_name() {
        Some(name) => shortened(name),
        None => format!("{UNNAMED}{}", frame.func_index()),
    });
    names.collect()
}

/// Precedes the number of a function without a name.
const UNNAMED: &str = "function ";

/// The number of frames in a backtrace, by the engine's default.
const FRAMES: usize = 20;

/// Describes a trap. A stack overflow has two forms: of the engine's stack, and of the compiler's own stack for large
/// variables, which grows down to the address 0 of the memory.
fn end(trap: Trap, functions: &[String]) -> String {
    let mut names = functions.iter();
    let repeated = names.find(|name| functions.iter().filter(|other| other == name).count() > 1);
    let question = match repeated {
        // The engine of an interpreted language has no names.
        Some(name) if name.starts_with(UNNAMED) => "does a function call itself without end?".to_owned(),
        Some(name) => format!("does `{name}` call itself without end?"),
        None => String::new(),
    };
    match trap {
        Trap::StackOverflow if repeated.is_none() => format!("stack overflow ({trap})"),
        Trap::StackOverflow => format!("stack overflow: {question} ({trap})"),
        Trap::MemoryOutOfBounds if repeated.is_some() && functions.len() >= FRAMES => {
            format!("probably a stack overflow: {question} ({trap})")
        }
        _ => trap.to_string(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn is_of_system_error(error: wasmtime::Error) -> bool {
        error.context("the engine says where").chain().any(is_of_system)
    }

    #[test]
    fn what_the_operating_system_refuses_is_told_from_a_wrong_answer() {
        let no_memory = rustix::io::Errno::NOMEM;
        assert!(is_of_system_error(no_memory.into()));
        assert!(is_of_system_error(io::Error::from(no_memory).into()));
        assert!(!is_of_system_error(wasmtime::Error::msg(no_memory)));
    }
}
