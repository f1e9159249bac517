//! What a plugin may use, and how much of it.

use std::time::Duration;

/// One mebibyte in bytes.
pub const MIB: usize = 1 << 20;

/// The caps on one plugin: some on its file, the others on each call of it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Limits {
    /// Bytes of linear memory and tables that one call may have.
    pub memory: usize,
    /// Wall-clock time of one call, from the making of its sandbox to its response.
    pub deadline: Duration,
    /// Bytes that one call may answer with.
    pub response: usize,
    /// Lines that one call may write to the log; more are counted and dropped.
    pub log_lines: u32,
    /// Bytes of one log line; the rest of it is cut.
    pub log_line: usize,
    /// Bytes of the WebAssembly file.
    pub module: usize,
    /// Processor time that compiling the file may take; ten times as long by the clock. Compiled inside of the process: time
    /// by the clock.
    pub compile: Duration,
}

impl Limits {
    /// What holds where nobody says otherwise.
    pub const DEFAULT: Self = Self {
        memory: 64 * MIB,
        deadline: Duration::from_secs(5),
        response: 8 * MIB,
        log_lines: 100,
        log_line: 4096,
        module: 32 * MIB,
        compile: Duration::from_secs(60),
    };
}

impl Default for Limits {
    fn default() -> Self {
        Self::DEFAULT
    }
}

/// How the engine that all plugins share is built.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct EngineOptions {
    /// Calls that may be under way at the same time in the whole process; more wait for their turn.
    pub concurrency: u32,
    /// Whether to keep the address space of finished calls for the next ones. Faster; reserves about
    /// 4 GiB of address space (not of memory) for each concurrent call.
    pub pooling: bool,
}

impl Default for EngineOptions {
    fn default() -> Self {
        Self {
            concurrency: 32,
            pooling: true,
        }
    }
}
