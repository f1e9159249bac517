//! The WebAssembly engine shared by all plugins of a process.

use wasmtime::{Config, Enabled, InstanceAllocationStrategy, PoolingAllocationConfig};

use crate::error::with_causes;
use crate::fair::{Fair, Member, Permit};
use crate::lane::{Lane, Slow};
use crate::limits::{EngineOptions, INSTANCES_PER_CALL};
use crate::memory_budget::{Budget, Owner};
use crate::ticker::{Ticker, Ticking};

/// What one call has in the pool, which is sized for these limits in every concurrent call, so that it cannot be
/// exhausted. A compiler's module, its adapter and the code that connects them need four core instances, a Python
/// interpreter 38, both with one memory. A plugin that needs more is called outside of the pool.
const POOLED_TABLES: u32 = 8;
const POOLED_MEMORIES: u32 = 2;
/// Large programs have one table element for each function whose address is taken.
const POOLED_TABLE_ELEMENTS: usize = 200_000;

/// Maximum number of unused pool slots that stay warm for the next call of the same plugin. Beyond it,
/// another plugin or version reuses one of them instead of a slot that was never used; otherwise each reload
/// would increase the host's memory.
const WARM: u32 = 16;

/// Bytes of a finished call's memory that are cleared and kept for the next call, instead of being returned
/// to the operating system and faulted in again.
const KEEP_RESIDENT: usize = 1 << 20;

/// Why the engine could not be built.
#[derive(Debug, thiserror::Error)]
pub enum EngineError {
    /// The configuration is not possible on this machine.
    #[error("cannot start the WebAssembly engine: {0:#}")]
    Engine(wasmtime::Error),
    /// The thread that interrupts guests, or those for slow calls, could not be started.
    #[error("cannot start the threads for plugin calls: {0}")]
    Threads(std::io::Error),
}

/// The compilers and allocators, with the process-wide resources of every call: a turn and a ticking epoch.
pub(crate) struct Engine {
    /// With a pool of memory, if it could be reserved.
    pooled: Option<wasmtime::Engine>,
    /// For plugins that do not fit into the pool.
    on_demand: wasmtime::Engine,
    ticker: Ticker,
    turns: Fair,
    memory: Budget,
    lane: Lane,
}

/// Registers a plugin with the resources that all plugins share.
pub(crate) struct Seat {
    turns: Member,
    pub(crate) memory: Owner,
    pub(crate) slow: Slow,
}

/// The permission to run a call; held as long as its sandbox exists.
pub(crate) struct Turn<'a> {
    _ticking: Ticking<'a>,
    _permit: Permit,
}

impl Engine {
    pub(crate) fn new(options: EngineOptions) -> Result<Self, EngineError> {
        let memory = Budget::new(options.memory, options.concurrency);
        let pooled = options
            .pooling
            .then(|| wasmtime::Engine::new(&config(Some(memory.turns()))));
        // A container with a limit on address space cannot reserve the pool; plugins run without it.
        let pooled = pooled.and_then(|engine| {
            engine
                .inspect_err(|error| {
                    tracing::warn!(
                        error = with_causes(error),
                        "cannot reserve a pool for plugin memory: calls are slower"
                    );
                })
                .ok()
        });
        let on_demand = wasmtime::Engine::new(&config(None)).map_err(EngineError::Engine)?;
        let engines = pooled.iter().chain([&on_demand]);
        let ticker =
            Ticker::start(engines.map(wasmtime::Engine::weak).collect()).map_err(EngineError::Threads)?;
        let turns = Fair::new(memory.turns() as usize, 1);
        let lane = Lane::start().map_err(EngineError::Threads)?;
        Ok(Self {
            pooled,
            on_demand,
            ticker,
            turns,
            memory,
            lane,
        })
    }

    /// Returns the engine that calls plugins in a pool of memory, if there is one.
    pub(crate) fn pooled(&self) -> Option<&wasmtime::Engine> {
        self.pooled.as_ref()
    }

    /// Returns the engine that calls the plugins that do not fit into the pool.
    pub(crate) fn on_demand(&self) -> &wasmtime::Engine {
        &self.on_demand
    }

    /// Registers one more plugin.
    pub(crate) fn seat(&self) -> Seat {
        Seat {
            turns: self.turns.join(),
            memory: self.memory.join(),
            slow: self.lane.join(),
        }
    }

    /// Waits until one of the process's concurrent calls may start. Plugins are served in turn, and each may
    /// have one call at any time.
    pub(crate) async fn turn(&self, seat: &Seat) -> Turn<'_> {
        let permit = seat.turns.acquire(1).await;
        Turn {
            _ticking: self.ticker.tick(),
            _permit: permit,
        }
    }
}

/// Creates an engine that compiles for the engine that calls plugins, and that makes no calls itself.
pub(crate) fn compiling() -> wasmtime::Result<wasmtime::Engine> {
    wasmtime::Engine::new(&config(None))
}

fn config(pool: Option<u32>) -> Config {
    let mut config = Config::new();
    config
        .epoch_interruption(true)
        // The contract has no asynchronous functions; without them a call is cheaper to set up.
        .concurrency_support(false)
        // An interpreter takes much of it for each function of the plugin: this is enough for some thousand.
        .max_wasm_stack(4 << 20)
        .async_stack_size(6 << 20)
        // The same request gives the same response, byte for byte, on every machine.
        .cranelift_nan_canonicalization(true)
        .relaxed_simd_deterministic(true)
        .wasm_memory64(false)
        // The compiler connects two components by code that has the memories of both.
        .wasm_multi_memory(true);
    if let Some(calls) = pool {
        config.allocation_strategy(InstanceAllocationStrategy::Pooling(pooling(calls)));
    }
    config
}

fn pooling(calls: u32) -> PoolingAllocationConfig {
    let mut pool = PoolingAllocationConfig::default();
    pool.total_component_instances(calls)
        // Instances take no room in the pool.
        .total_core_instances(calls * INSTANCES_PER_CALL)
        .total_memories(calls * POOLED_MEMORIES)
        .total_tables(calls * POOLED_TABLES)
        .total_stacks(calls)
        .max_core_instances_per_component(INSTANCES_PER_CALL)
        .max_memories_per_component(POOLED_MEMORIES)
        .max_memories_per_module(POOLED_MEMORIES)
        .max_tables_per_component(POOLED_TABLES)
        .max_tables_per_module(POOLED_TABLES)
        .table_elements(POOLED_TABLE_ELEMENTS)
        .max_unused_warm_slots(WARM)
        .linear_memory_keep_resident(KEEP_RESIDENT)
        .table_keep_resident(16 << 10)
        .async_stack_keep_resident(16 << 10)
        .pagemap_scan(Enabled::Auto);
    pool
}
