//! Writes a guest's output to the host's log, with a cap per call.

use std::collections::VecDeque;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Instant;

use bytes::Bytes;
use tokio::io::AsyncWrite;
use wasmtime_wasi::cli::{IsTerminal, StdoutStream};
use wasmtime_wasi::p2::{OutputStream, Pollable, StreamResult};

use crate::bindings::operator_host::plugin::logging::Level;
use crate::limits::Limits;
use operator_host_core::digest::Digest;

/// Bytes that a guest may write to a stream in one step. A guest may ask a stream for the same number of
/// zeroes at once.
pub(crate) const WRITE_CHUNK: usize = 64 << 10;
/// The `target` of the tracing events with the output of plugins.
pub const TARGET: &str = "plugin";

/// Number of last lines on standard error that are kept to explain a trap.
const TAIL_LINES: usize = 8;
/// Number of lines that are not logged until it is known whether the call fails.
const HELD_LINES: usize = 4 * TAIL_LINES;

/// The plugin that writes the lines.
#[derive(Debug)]
pub(crate) struct LogSource {
    pub(crate) name: String,
    pub(crate) digest: Digest,
    pub(crate) rate: Rate,
}

/// Maximum number of lines a plugin may write per second, over all of its calls, and in a burst.
const LINES_PER_SECOND: u32 = 500;
const LINES_AT_ONCE: u32 = 2000;

/// Prevents a plugin that is called often from flooding the log although each call stays below its cap.
#[derive(Debug)]
pub(crate) struct Rate(Mutex<(Instant, f64)>);

impl Default for Rate {
    fn default() -> Self {
        Self(Mutex::new((Instant::now(), f64::from(LINES_AT_ONCE))))
    }
}

impl Rate {
    fn take(&self, now: Instant) -> bool {
        let mut state = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let (last, left) = &mut *state;
        let earned = now.saturating_duration_since(*last).as_secs_f64() * f64::from(LINES_PER_SECOND);
        *left = (*left + earned).min(f64::from(LINES_AT_ONCE));
        *last = now;
        let may = *left >= 1.0;
        if may {
            *left -= 1.0;
        }
        may
    }
}

/// The log of one call. Clones share it.
///
/// Lines become tracing events in the span that is current when the guest writes them, so they carry the
/// parent's reference.
#[derive(Clone)]
pub(crate) struct CallLog(Arc<Mutex<State>>);

struct State {
    log_source: Arc<LogSource>,
    lines_left: u32,
    line_cap: usize,
    written: u32,
    dropped: u32,
    /// Bytes that the guest wrote to standard error since the last end of line.
    unfinished: Vec<u8>,
    /// The last lines on standard error, including those over the cap.
    tail: VecDeque<String>,
    /// The last exception with its stack, from the `log` import.
    exception: Option<String>,
    /// The last lines, which are not logged yet: the error of a call that fails contains them.
    held: VecDeque<(Level, String)>,
}

impl CallLog {
    pub(crate) fn new(log_source: Arc<LogSource>, limits: &Limits) -> Self {
        Self(Arc::new(Mutex::new(State {
            log_source,
            lines_left: limits.log_lines,
            line_cap: limits.log_line,
            written: 0,
            dropped: 0,
            unfinished: Vec::new(),
            tail: VecDeque::new(),
            exception: None,
            held: VecDeque::new(),
        })))
    }

    /// Writes one whole line, from the `log` import. An error of several lines is an exception of the guest's language
    /// with its stack: how the language's runtime then ends the guest says less.
    pub(crate) fn line(&self, level: Level, text: &str) {
        let mut state = self.state();
        let text = text.trim_end();
        let is_exception = level == Level::Error && text.contains('\n');
        if is_exception {
            state.exception = Some(cut(text, state.line_cap).to_owned());
        }
        state.release(0);
        state.line(level, text);
        if !is_exception {
            state.release(0);
        }
    }

    /// Ends the log of the call: writes the last line even without an end of line. Returns the number of
    /// lines written and of lines dropped.
    pub(crate) fn finish(&self) -> (u32, u32) {
        let mut state = self.state();
        state.end_line();
        (state.written, state.dropped)
    }

    /// Returns the last exception, or otherwise the last lines on standard error, which contain a panic message. The log
    /// does not repeat them: they are part of an error, which is logged.
    pub(crate) fn tail(&self) -> String {
        let mut state = self.state();
        if state.exception.is_none() {
            state.release(TAIL_LINES);
        }
        // After an exception these are lines of the language's runtime about its end, which say less.
        state.held.clear();
        if let Some(exception) = &state.exception {
            return exception.clone();
        }
        let lines: Vec<&str> = state.tail.iter().map(String::as_str).collect();
        lines.join("\n")
    }

    fn state(&self) -> MutexGuard<'_, State> {
        // No code panics while it holds the lock, and a log must not make a call fail.
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl State {
    fn write(&mut self, bytes: &[u8]) {
        for piece in bytes.split_inclusive(|&byte| byte == b'\n') {
            let (text, ended) = match piece.strip_suffix(b"\n") {
                Some(text) => (text, true),
                None => (piece, false),
            };
            // One byte over the cap lets `line` detect that there is something to truncate.
            let room = (self.line_cap + 1).saturating_sub(self.unfinished.len());
            self.unfinished.extend_from_slice(&text[..text.len().min(room)]);
            if ended {
                self.end_line();
            }
        }
    }

    fn end_line(&mut self) {
        if self.unfinished.is_empty() {
            return;
        }
        let bytes = std::mem::take(&mut self.unfinished);
        let text = String::from_utf8_lossy(&bytes);
        let text = cut(text.trim_end(), self.line_cap);
        // Rust's advice about an environment variable that a plugin does not have.
        if text.starts_with("note: run with `RUST_BACKTRACE") {
            return;
        }
        if self.tail.len() == TAIL_LINES {
            self.tail.pop_front();
        }
        self.tail.push_back(text.to_owned());
        self.line(Level::Info, text);
        self.release(HELD_LINES);
    }

    fn line(&mut self, level: Level, text: &str) {
        if self.lines_left == 0 || !self.log_source.rate.take(Instant::now()) {
            self.dropped = self.dropped.saturating_add(1);
            return;
        }
        self.lines_left -= 1;
        self.written += 1;
        self.held.push_back((level, cut(text, self.line_cap).to_owned()));
    }

    /// Logs the lines that are held, except for a number of the last ones.
    fn release(&mut self, kept: usize) {
        while self.held.len() > kept {
            if let Some((level, text)) = self.held.pop_front() {
                emit(level, &self.log_source, &text);
            }
        }
    }
}

/// What no error contains is logged when the call ends.
impl Drop for State {
    fn drop(&mut self) {
        self.end_line();
        self.release(0);
    }
}

/// Returns the longest prefix of `text` with at most `cap` bytes.
fn cut(text: &str, cap: usize) -> &str {
    &text[..text.floor_char_boundary(cap)]
}

fn emit(level: Level, log_source: &LogSource, message: &str) {
    // The level of a tracing event is part of its static metadata, so each level needs its own call site.
    macro_rules! event {
        ($level:ident) => {
            tracing::event!(
                target: TARGET,
                tracing::Level::$level,
                plugin = log_source.name,
                digest = %log_source.digest,
                "{message}"
            )
        };
    }
    match level {
        Level::Trace => event!(TRACE),
        Level::Debug => event!(DEBUG),
        Level::Info => event!(INFO),
        Level::Warn => event!(WARN),
        Level::Error => event!(ERROR),
    }
}

/// Standard error, and for a component standard output too.
impl StdoutStream for CallLog {
    fn p2_stream(&self) -> Box<dyn OutputStream> {
        Box::new(self.clone())
    }

    fn async_stream(&self) -> Box<dyn AsyncWrite + Send + Sync> {
        // Requested only by preview 3, which is not linked.
        Box::new(tokio::io::sink())
    }
}

impl IsTerminal for CallLog {
    fn is_terminal(&self) -> bool {
        false
    }
}

impl OutputStream for CallLog {
    fn write(&mut self, bytes: Bytes) -> StreamResult<()> {
        self.state().write(&bytes);
        Ok(())
    }

    fn flush(&mut self) -> StreamResult<()> {
        Ok(())
    }

    fn check_write(&mut self) -> StreamResult<usize> {
        Ok(WRITE_CHUNK)
    }
}

#[async_trait::async_trait]
impl Pollable for CallLog {
    async fn ready(&mut self) {}
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    #[test]
    fn a_plugin_may_write_a_burst_and_then_so_much_a_second() {
        let rate = Rate::default();
        let start = Instant::now() + Duration::from_secs(1);
        let taken = |at| (0..10_000).filter(|_| rate.take(at)).count();
        assert_eq!(taken(start), LINES_AT_ONCE as usize);
        assert_eq!(taken(start + Duration::from_secs(1)), LINES_PER_SECOND as usize);
        assert_eq!(taken(start + Duration::from_secs(3600)), LINES_AT_ONCE as usize);
    }
}
