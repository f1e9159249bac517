//! One call: what it gives back, how it can fail, and the deadline around it.

use std::future::Future;
use std::pin::{Pin, pin};
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::{Duration, Instant};

use wasmtime::{Store, Trap, WasmBacktrace};
use wasmtime_wasi::I32Exit;

use crate::contract::Failure;
use crate::deterministic::Origin;
use crate::limits::{Limits, MIB};
use crate::log::{CallLog, Speaker};
use crate::sandbox::{Sandbox, Wasi};
use crate::share::{self, Room, Share};

/// What came of a call, with what it took.
#[derive(Debug)]
pub struct Call<T> {
    /// The response, or why there is none.
    pub outcome: Result<T, CallError>,
    /// What the call used, also when it failed.
    pub stats: CallStats,
    /// The memory that the response takes: to be kept as long as that is.
    pub share: Option<Share>,
}

impl<T> Call<T> {
    /// A call that was never made.
    pub(crate) fn failed(error: CallError) -> Self {
        Self {
            outcome: Err(error),
            stats: CallStats::default(),
            share: None,
        }
    }

    /// Takes the response apart, which may fail.
    pub(crate) fn and_then<U>(self, read: impl FnOnce(T) -> Result<U, CallError>) -> Call<U> {
        Call {
            outcome: self.outcome.and_then(read),
            stats: self.stats,
            share: self.share,
        }
    }
}

/// What a call used.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct CallStats {
    /// Time until the call had its turn and its share of the memory.
    pub waited: Duration,
    /// Time on a processor: making the sandbox and running the guest, without the time in which other calls
    /// had the thread.
    pub guest_time: Duration,
    /// Bytes of linear memory and tables at the end, which is also the most there were.
    pub peak_memory: usize,
    /// Bytes of JSON that went in.
    pub request_bytes: usize,
    /// Bytes of JSON that came out.
    pub response_bytes: usize,
    /// Lines that reached the log.
    pub log_lines: u32,
    /// Lines over the cap.
    pub log_lines_dropped: u32,
}

/// How a call ended, in one word: a metric label.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Class {
    /// The plugin says that the user must change the resource.
    Invalid,
    /// The plugin says to try again.
    Retry,
    /// The guest trapped or exited.
    Trap,
    /// Over the deadline.
    Timeout,
    /// Over the memory limit.
    Memory,
    /// The request would be over its limit.
    Request,
    /// Over a limit of the response.
    Output,
    /// The response does not follow the contract.
    Protocol,
    /// Other calls had all the memory or all the turns.
    Busy,
    /// The host could not make the call: no fault of the plugin.
    Host,
}

impl Class {
    /// The class in lower case.
    #[must_use]
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Invalid => "invalid",
            Self::Retry => "retry",
            Self::Trap => "trap",
            Self::Timeout => "timeout",
            Self::Memory => "memory",
            Self::Request => "request",
            Self::Output => "output",
            Self::Protocol => "protocol",
            Self::Busy => "busy",
            Self::Host => "host",
        }
    }
}

/// Why a call gave no response. The messages are for people: what happened, and what to do next.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum CallError {
    /// The plugin says that the user must change the resource.
    #[error("{message}")]
    Invalid {
        /// CamelCase.
        reason: Option<String>,
        /// In the plugin's words.
        message: String,
    },
    /// The plugin says that something is not there yet.
    #[error("{message}")]
    Retry {
        /// In the plugin's words.
        message: String,
        /// When to try again; absent: the host's back-off.
        after: Option<Duration>,
    },
    /// The guest trapped, panicked or exited with an error.
    #[error("the plugin stopped: {message}")]
    Trap {
        /// The guest's last words on standard error and the trap.
        message: String,
        /// Guest functions, innermost first, one on each line; empty when there is none.
        backtrace: String,
    },
    /// The call took longer than its deadline.
    #[error(
        "the plugin did not answer within {limit:?}: make it do less in one call (a plugin cannot wait \
         or sleep), or raise `limits.deadline` of this controller"
    )]
    Timeout {
        /// The deadline.
        limit: Duration,
    },
    /// The guest asked for more memory than it may have.
    #[error(
        "the plugin asked for {} of memory; the limit is {}: make it need less, or raise `limits.memory` \
         of this controller", mebibytes(*wanted), mebibytes(*limit)
    )]
    Memory {
        /// Bytes that the call may have.
        limit: usize,
        /// Bytes that it would have had.
        wanted: usize,
    },
    /// The guest answered with more than it may.
    #[error(
        "the plugin answered with more than {}: make it answer with less, or raise `limits.response` of \
         this controller", mebibytes(*limit)
    )]
    Output {
        /// Bytes that a response may have.
        limit: usize,
    },
    /// The answer is a small text that would be a large tree.
    #[error(
        "the plugin answered with more than {limit} JSON values: make it answer with less, or raise `limits.values` of \
         this controller"
    )]
    Values {
        /// JSON values that a response may have.
        limit: usize,
    },
    /// The answer is a small text that would be a large tree, of not too many values.
    #[error(
        "the plugin's answer would take more than {} in the host: make it answer with less, or raise `limits.memory` of this \
         controller, which bounds that together with `limits.request` and `limits.response`", mebibytes(*limit)
    )]
    Heavy {
        /// Bytes that it may take.
        limit: usize,
    },
    /// A list in the answer is too long.
    #[error(
        "the plugin answered with {count} {what}; it may answer with {limit}: make it answer with fewer{}",
        raise(*key)
    )]
    TooMany {
        /// What the list holds.
        what: &'static str,
        /// How many there are.
        count: usize,
        /// How many there may be.
        limit: usize,
        /// Where the configuration sets the limit, when it can.
        key: Option<&'static str>,
    },
    /// What the plugin would be given is too much; it was not called.
    #[error(
        "the request to the plugin would be larger than {}: {children} children and {related} objects that it asked to read \
         are too much for one call; make it need less (a label selector, a name), or raise `limits.request` of this \
         controller", mebibytes(*limit)
    )]
    Request {
        /// Bytes that a request may have.
        limit: usize,
        /// How many children it would show.
        children: usize,
        /// How many objects it would show beside them.
        related: usize,
    },
    /// The response does not follow the contract.
    #[error("the plugin's answer does not follow the contract: {message}")]
    Protocol {
        /// What is wrong, and where in the response.
        message: String,
    },
    /// Other calls had all the memory or all the turns, for as long as the call itself may take.
    #[error(
        "the plugin was not called: for {waited:?} other calls had all the memory that plugin calls may hold; it is tried \
         again. Give the host more memory (or a larger `--memory`), or lower `limits.memory`, `limits.deadline` or \
         `concurrency` of controllers whose plugins take much"
    )]
    Busy {
        /// How long it waited.
        waited: Duration,
    },
    /// The host could not make the call.
    #[error("the host could not call the plugin: {message}")]
    Host {
        /// What went wrong.
        message: String,
    },
}

impl CallError {
    /// The class of this error.
    #[must_use]
    pub const fn class(&self) -> Class {
        match self {
            Self::Invalid { .. } => Class::Invalid,
            Self::Retry { .. } => Class::Retry,
            Self::Trap { .. } => Class::Trap,
            Self::Timeout { .. } => Class::Timeout,
            Self::Memory { .. } => Class::Memory,
            Self::Request { .. } => Class::Request,
            Self::Output { .. } | Self::Values { .. } | Self::Heavy { .. } | Self::TooMany { .. } => {
                Class::Output
            }
            Self::Protocol { .. } => Class::Protocol,
            Self::Busy { .. } => Class::Busy,
            Self::Host { .. } => Class::Host,
        }
    }

    pub(crate) fn protocol(message: impl Into<String>) -> Self {
        Self::Protocol {
            message: message.into(),
        }
    }

    /// Seen only when the call had all that it may have.
    pub(crate) const fn heavy(limits: &Limits) -> Self {
        Self::Heavy {
            limit: share::most(limits),
        }
    }

    pub(crate) fn host(error: impl std::fmt::Display) -> Self {
        Self::Host {
            message: error.to_string(),
        }
    }
}

impl From<Failure> for CallError {
    fn from(failure: Failure) -> Self {
        match failure {
            Failure::Invalid { reason, message } => Self::Invalid { reason, message },
            Failure::Retry { message, after_ms } => Self::Retry {
                message,
                after: after_ms.map(Duration::from_millis),
            },
        }
    }
}

fn raise(key: Option<&str>) -> String {
    key.map_or_else(String::new, |key| {
        format!(", or raise `{key}` of this controller")
    })
}

pub(crate) fn mebibytes(bytes: usize) -> String {
    // Rounded up, so that a little over a limit does not read as the limit.
    let tenths = (bytes * 10).div_ceil(MIB);
    match (tenths / 10, tenths % 10) {
        (whole, 0) => format!("{whole} MiB"),
        (whole, tenth) => format!("{whole}.{tenth} MiB"),
    }
}

/// A store whose guest yields to tokio at every tick of the epoch and may use what `limits` say.
pub(crate) fn store<W: Wasi>(
    engine: &wasmtime::Engine,
    limits: &Limits,
    sandbox: Sandbox<W>,
) -> Store<Sandbox<W>> {
    let mut store = Store::new(engine, sandbox);
    store.limiter(|sandbox| &mut sandbox.memory);
    store.epoch_deadline_async_yield_and_update(1);
    store.set_epoch_deadline(1);
    // A guest may return a long list of references to one long string: it is this that keeps the host from
    // copying the string as often.
    store.set_hostcall_fuel(limits.response);
    store
}

/// What a call is given beside its request. It owns all of it, since it may go on in another thread.
pub(crate) struct Setting {
    pub(crate) origin: Origin,
    pub(crate) speaker: Arc<Speaker>,
    pub(crate) limits: Limits,
    /// When the guest is ended.
    pub(crate) deadline: Instant,
    /// What it may hold.
    pub(crate) room: Room,
}

impl Setting {
    /// Counts the request, and begins the log of the call.
    ///
    /// # Errors
    /// When the call has no room for its request.
    pub(crate) fn begin(&self, request_bytes: usize) -> Result<CallLog, CallError> {
        if self.room.hold(request_bytes) {
            Ok(CallLog::new(Arc::clone(&self.speaker), &self.limits))
        } else {
            Err(CallError::heavy(&self.limits))
        }
    }
}

/// Runs a guest to its end or to its deadline, whichever comes first: after that it is not polled again. Gives the time
/// on a processor too. Somebody else must wake it at the deadline.
///
/// # Errors
/// `None` inside the error stands for the deadline.
pub(crate) async fn within<T>(
    deadline: Instant,
    guest: impl Future<Output = wasmtime::Result<T>>,
) -> (Result<T, Option<wasmtime::Error>>, Duration) {
    let mut busy = Duration::ZERO;
    let timed = Timed {
        guest: pin!(guest),
        deadline,
        busy: &mut busy,
    };
    let result = timed.await;
    (result, busy)
}

/// Adds up the time in which a guest is polled, and stops at its deadline.
struct Timed<'a, F> {
    guest: Pin<&'a mut F>,
    deadline: Instant,
    busy: &'a mut Duration,
}

impl<T, F: Future<Output = wasmtime::Result<T>>> Future for Timed<'_, F> {
    type Output = Result<T, Option<wasmtime::Error>>;

    fn poll(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Self::Output> {
        let start = Instant::now();
        if start >= self.deadline {
            return Poll::Ready(Err(None));
        }
        let result = self.guest.as_mut().poll(context);
        *self.busy += start.elapsed();
        result.map_err(Some)
    }
}

/// Why a guest ended without a result.
///
/// `error` is what the engine says, or `None` when the deadline passed.
pub(crate) fn explain<W: Wasi>(
    error: Option<wasmtime::Error>,
    sandbox: &Sandbox<W>,
    limits: &Limits,
) -> CallError {
    let Some(error) = error else {
        return CallError::Timeout {
            limit: limits.deadline,
        };
    };
    if let Some(wanted) = sandbox.memory.refused() {
        return CallError::Memory {
            limit: limits.memory,
            wanted,
        };
    }
    if sandbox.memory.is_outgrown() {
        return CallError::heavy(limits);
    }
    if let Some(&I32Exit(code)) = error.downcast_ref() {
        return CallError::Trap {
            message: said(sandbox, &format!("it exited with code {code}")),
            backtrace: String::new(),
        };
    }
    if let Some(trap) = error.downcast_ref::<Trap>() {
        return CallError::Trap {
            message: said(sandbox, &trap.to_string()),
            backtrace: backtrace(&error),
        };
    }
    if error.is::<std::str::Utf8Error>() {
        return CallError::protocol("a string in it is not UTF-8");
    }
    if error.is::<wasmtime::PoolConcurrencyLimitError>() {
        return CallError::host(error);
    }
    let cause = error.root_cause().to_string();
    // The engine's error type for this is private to it; a test of each form watches over the words.
    if cause.contains("fuel allocated for hostcalls has been exhausted") {
        return CallError::Output {
            limit: limits.response,
        };
    }
    CallError::protocol(cause)
}

/// What the guest last wrote to standard error, which for a panic is the reason, before what stopped it.
fn said<W: Wasi>(sandbox: &Sandbox<W>, end: &str) -> String {
    sandbox.log.finish();
    let tail = sandbox.log.tail();
    if tail.is_empty() {
        end.to_owned()
    } else {
        format!("{tail} ({end})")
    }
}

fn backtrace(error: &wasmtime::Error) -> String {
    let Some(backtrace) = error.downcast_ref::<WasmBacktrace>() else {
        return String::new();
    };
    let names: Vec<String> = backtrace
        .frames()
        .iter()
        .map(|frame| match frame.func_name() {
            Some(name) => name.to_owned(),
            None => format!("function {}", frame.func_index()),
        })
        .collect();
    names.join("\n")
}
