//! The resource limits of a plugin.

use std::time::Duration;

/// One mebibyte in bytes.
pub const MIB: usize = 1 << 20;

/// The caps on one plugin: some apply to its file, the others to each call.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Limits {
    /// Bytes of linear memory and tables that one call may have.
    pub memory: usize,
    /// Wall-clock time of one call, from creating its sandbox to its response.
    pub deadline: Duration,
    /// Bytes of JSON in the request of one call.
    pub request: usize,
    /// Bytes in the answer of one call.
    pub response: usize,
    /// JSON values in one answer, because a small text can become a large tree.
    pub values: usize,
    /// Children in one answer, including those that it keeps or asks to generate.
    pub children: usize,
    /// Lines that one call may write to the log; additional lines are counted and dropped.
    pub log_lines: u32,
    /// Bytes of one log line; longer lines are truncated.
    pub log_line: usize,
    /// Bytes of the WebAssembly file.
    pub module: usize,
    /// Processor time for compiling the file; its wall-clock limit is ten times as long. When the compiler
    /// runs inside the process, this is a limit on wall-clock time.
    pub compile: Duration,
}

impl Limits {
    /// The limits used when the configuration does not set them.
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

    /// Returns the limits for `describe`: its result stays in memory as long as the plugin is live. The
    /// largest CustomResourceDefinitions in use have a third of that size.
    #[must_use]
    pub const fn of_description(self) -> Self {
        Self {
            response: DESCRIPTION,
            values: DESCRIPTION_VALUES,
            ..self
        }
    }
}

/// Three minutes: plugins with objects that change now and then keep their code.
const CODE_IDLE: Duration = Duration::from_secs(180);

/// Bytes that `describe` may answer with. The API server rejects a larger CustomResourceDefinition.
pub const DESCRIPTION: usize = 2 * MIB;
/// JSON values in the CustomResourceDefinition that `describe` answers with.
pub const DESCRIPTION_VALUES: usize = 50_000;
/// Kinds that a description may list as made or read.
pub const DESCRIPTION_KINDS: usize = 100;
/// Versions that a description may list.
pub const DESCRIPTION_VERSIONS: usize = 16;
/// Conditions in one answer.
pub const CONDITIONS: usize = 64;
/// Events in one answer, and needs in one answer. Plugins use fewer of both.
pub const LISTED: usize = 1_000;

/// Core instances of one call: the modules that a component consists of, and how often it has each. The largest
/// plugin known, a Python interpreter, has 38.
pub const INSTANCES_PER_CALL: u32 = 256;
/// Memories of one call. A component that is composed of several has one for each of them.
pub const MEMORIES_PER_CALL: u32 = 16;
/// Tables of one call.
pub const TABLES_PER_CALL: u32 = 64;

impl Default for Limits {
    fn default() -> Self {
        Self::DEFAULT
    }
}

/// The options of the engine that all plugins share.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct EngineOptions {
    /// Maximum number of concurrent calls in the whole process; further calls wait for their turn.
    pub concurrency: u32,
    /// Whether to keep the address space of finished calls for later calls. Faster, but reserves about 8 GiB
    /// of address space (not of memory) per concurrent call. Plugins that need more run without it.
    pub pooling: bool,
    /// Bytes that all calls together may hold.
    pub memory: usize,
    /// Bytes that the files of plugins may take while they are compiled. At least one has room.
    pub files: usize,
    /// How long the machine code of a plugin stays in memory without a call, if it can be loaded from the cache.
    pub idle: Duration,
}

impl Default for EngineOptions {
    fn default() -> Self {
        Self {
            concurrency: 32,
            pooling: true,
            memory: usize::MAX,
            files: usize::MAX,
            idle: CODE_IDLE,
        }
    }
}
