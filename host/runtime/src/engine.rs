//! The WebAssembly engine shared by all plugins of a process.

use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

use wasmtime::{Config, Enabled, InstanceAllocationStrategy, PoolingAllocationConfig};

use crate::fair::{Fair, Member, Permit};
use crate::lane::{Lane, Slow};
use crate::limits::EngineOptions;
use crate::memory_budget::{Budget, Owner};
use crate::ticker::{Ticker, Ticking};

/// Limits of one component: a compiler's module, its adapter and the code that connects them need four core
/// instances and one memory. The pool is sized for these limits in every concurrent call, so it cannot be
/// exhausted.
const INSTANCES_PER_CALL: u32 = 16;
const TABLES_PER_CALL: u32 = 8;
const MEMORIES_PER_CALL: u32 = 2;
/// Large programs have one table element for each function whose address is taken.
const TABLE_ELEMENTS: usize = 200_000;

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
    /// The thread that interrupts guests could not be started.
    #[error("cannot start the thread that interrupts plugins: {0}")]
    Ticker(std::io::Error),
    /// The threads for slow plugin calls could not be started.
    #[error("cannot start the threads for slow plugin calls: {0}")]
    Lane(std::io::Error),
}

/// The compiler and allocator, with the process-wide resources of every call: a turn and a ticking epoch.
pub(crate) struct Engine {
    wasm: wasmtime::Engine,
    ticker: Ticker,
    turns: Fair,
    memory: Budget,
    lane: Lane,
    next: AtomicU64,
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
        let wasm = match pooled {
            Some(Ok(engine)) => engine,
            // A container with a limit on address space cannot reserve the pool; plugins run without it.
            Some(Err(error)) => {
                tracing::warn!(
                    error = format!("{error:#}"),
                    "cannot reserve a pool for plugin memory: calls are slower"
                );
                wasmtime::Engine::new(&config(None)).map_err(EngineError::Engine)?
            }
            None => wasmtime::Engine::new(&config(None)).map_err(EngineError::Engine)?,
        };
        let ticker = Ticker::start(wasm.weak()).map_err(EngineError::Ticker)?;
        let turns = Fair::new(memory.turns() as usize, 1);
        let lane = Lane::start().map_err(EngineError::Lane)?;
        let next = AtomicU64::new(0);
        Ok(Self {
            wasm,
            ticker,
            turns,
            memory,
            lane,
            next,
        })
    }

    pub(crate) fn wasm(&self) -> &wasmtime::Engine {
        &self.wasm
    }

    /// Registers one more plugin.
    pub(crate) fn seat(&self) -> Seat {
        let key = self.next.fetch_add(1, Relaxed);
        Seat {
            turns: self.turns.join(key),
            memory: self.memory.join(key),
            slow: self.lane.join(key),
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
        // The same request gives the same response, byte for byte, on every machine.
        .cranelift_nan_canonicalization(true)
        .relaxed_simd_deterministic(true)
        .wasm_memory64(false)
        .wasm_multi_memory(false);
    if let Some(calls) = pool {
        config.allocation_strategy(InstanceAllocationStrategy::Pooling(pooling(calls)));
    }
    config
}

fn pooling(calls: u32) -> PoolingAllocationConfig {
    let mut pool = PoolingAllocationConfig::default();
    pool.total_component_instances(calls)
        .total_core_instances(calls * INSTANCES_PER_CALL)
        .total_memories(calls * MEMORIES_PER_CALL)
        .total_tables(calls * TABLES_PER_CALL)
        .total_stacks(calls)
        .max_core_instances_per_component(INSTANCES_PER_CALL)
        .max_memories_per_component(MEMORIES_PER_CALL)
        .max_tables_per_component(TABLES_PER_CALL)
        .max_tables_per_module(TABLES_PER_CALL)
        .table_elements(TABLE_ELEMENTS)
        .max_unused_warm_slots(WARM)
        .linear_memory_keep_resident(KEEP_RESIDENT)
        .table_keep_resident(16 << 10)
        .async_stack_keep_resident(16 << 10)
        .pagemap_scan(Enabled::Auto);
    pool
}
