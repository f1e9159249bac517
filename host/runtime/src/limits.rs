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
    /// Bytes of JSON that one call may be given.
    pub request: usize,
    /// Bytes that one call may answer with.
    pub response: usize,
    /// JSON values in one answer: a small text becomes a large tree.
    pub values: usize,
    /// Children in one answer, those that it keeps or has generated among them.
    pub children: usize,
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
        request: 16 * MIB,
        response: 8 * MIB,
        values: 100_000,
        children: 1_000,
        log_lines: 100,
        log_line: 4096,
        module: 32 * MIB,
        compile: Duration::from_secs(60),
    };

    /// What holds for `describe` in place of these: what it says stays in memory for as long as the plugin is live.
    /// The largest CustomResourceDefinitions in use have a third of it.
    #[must_use]
    pub const fn of_description(self) -> Self {
        Self {
            response: DESCRIPTION,
            values: DESCRIPTION_VALUES,
            ..self
        }
    }
}

/// Bytes that `describe` may answer with. The API server takes no larger CustomResourceDefinition.
pub const DESCRIPTION: usize = 2 * MIB;
/// JSON values in the CustomResourceDefinition that `describe` answers with.
pub const DESCRIPTION_VALUES: usize = 50_000;
/// Kinds that a description may list as made or read.
pub const DESCRIPTION_KINDS: usize = 100;
/// Conditions in one answer.
pub const CONDITIONS: usize = 64;
/// Events, and needs, in one answer. Of both fewer are used.
pub const LISTED: usize = 1_000;

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
    /// Bytes that all calls together may hold.
    pub memory: usize,
}

impl Default for EngineOptions {
    fn default() -> Self {
        Self {
            concurrency: 32,
            pooling: true,
            memory: usize::MAX,
        }
    }
}
