//! The contents of one call's store. Nothing in it outlives the call, and only the request comes from
//! outside.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use bytes::{Bytes, BytesMut};
use tokio::io::AsyncWrite;
use wasmtime::ResourceLimiter;
use wasmtime::component::ResourceTable;
use wasmtime_wasi::cli::{IsTerminal, StdoutStream};
use wasmtime_wasi::p2::{OutputStream, Pollable, StreamError, StreamResult};
use wasmtime_wasi::{WasiCtx, WasiCtxBuilder, WasiCtxView, WasiView};

use crate::deterministic::{MonotonicClock, Origin};
use crate::limits::{INSTANCES_PER_CALL, Limits, MEMORIES_PER_CALL, TABLES_PER_CALL};
use crate::log::{CallLog, WRITE_CHUNK};
use crate::memory_budget::CallMemory;
use crate::stats::CallStats;

/// Random bytes that a guest may request in one step.
const MAX_RANDOM: u64 = 64 << 10;

/// Handles to the host's streams, errors and pollables that a component may hold at once. A guest that
/// created them in a loop would fill the host's memory instead of its own.
pub(crate) const MAX_RESOURCES: usize = 1_000;

/// Creates a WASI context without files, environment, arguments or network, and with clocks and randomness
/// derived from the request. Standard error is written to the log.
pub(crate) fn wasi(origin: &Origin, log: &CallLog) -> WasiCtxBuilder {
    let mut wasi = WasiCtxBuilder::new();
    wasi.stderr(log.clone())
        .wall_clock(origin.wall_clock())
        .monotonic_clock(MonotonicClock::default())
        .secure_random(origin.random())
        .insecure_random(origin.insecure_random())
        .insecure_random_seed(origin.insecure_seed())
        // The host generates all bytes at once before it copies them into the guest.
        .max_random_size(MAX_RANDOM);
    wasi
}

/// The state for components.
pub(crate) struct Preview2 {
    wasi: WasiCtx,
    table: ResourceTable,
}

impl Preview2 {
    pub(crate) fn new(wasi: WasiCtx) -> Self {
        let mut table = ResourceTable::new();
        table.set_max_capacity(MAX_RESOURCES);
        Self { wasi, table }
    }
}

/// The data of one call's store.
pub(crate) struct Sandbox<W> {
    pub(crate) wasi: W,
    pub(crate) memory: Memory,
    pub(crate) log: CallLog,
}

impl<W> Sandbox<W> {
    pub(crate) fn new(wasi: W, limits: &Limits, log: CallLog, room: CallMemory) -> Self {
        Self {
            wasi,
            memory: Memory::new(limits.memory, room),
            log,
        }
    }

    /// Returns the resources the call used. `guest_time` is processor time.
    pub(crate) fn stats(&self, guest_time: Duration, request_bytes: usize) -> CallStats {
        let (log_lines, log_lines_dropped) = self.log.finish();
        CallStats {
            guest_time,
            peak_memory: self.memory.used,
            waited: Duration::ZERO,
            request_bytes,
            response_bytes: 0,
            log_lines,
            log_lines_dropped,
        }
    }
}

impl WasiView for Sandbox<Preview2> {
    fn ctx(&mut self) -> WasiCtxView<'_> {
        WasiCtxView {
            ctx: &mut self.wasi.wasi,
            table: &mut self.wasi.table,
        }
    }
}

/// Counts the size of a call's linear memories and tables, and refuses growth over the cap.
pub(crate) struct Memory {
    limit: usize,
    /// The bytes in use, at the end of the call the peak as well: WebAssembly never releases memory.
    used: usize,
    /// The size that ended the guest because it exceeded the limit.
    pub(crate) refused: Option<usize>,
    pub(crate) room: CallMemory,
}

impl Memory {
    fn new(limit: usize, room: CallMemory) -> Self {
        Self {
            limit,
            used: 0,
            refused: None,
            room,
        }
    }

    fn grow(&mut self, by: usize) -> wasmtime::Result<bool> {
        let wanted = self.used.saturating_add(by);
        if wanted > self.limit {
            self.refused = Some(wanted);
            // If `memory.grow` returned −1 instead, the guest's allocator would decide what happens.
            return Err(wasmtime::Error::msg("over the memory limit"));
        }
        if !self.room.hold(by) {
            // The guest is then called again with more memory.
            return Err(wasmtime::Error::msg("over its share of the memory"));
        }
        self.used = wanted;
        Ok(true)
    }
}

impl ResourceLimiter for Memory {
    fn memory_growing(
        &mut self,
        current: usize,
        desired: usize,
        maximum: Option<usize>,
    ) -> wasmtime::Result<bool> {
        // Growth over the module's own maximum is refused by the engine in any case, and uses nothing.
        if maximum.is_some_and(|maximum| desired > maximum) {
            return Ok(false);
        }
        self.grow(desired.saturating_sub(current))
    }

    fn table_growing(
        &mut self,
        current: usize,
        desired: usize,
        maximum: Option<usize>,
    ) -> wasmtime::Result<bool> {
        if maximum.is_some_and(|maximum| desired > maximum) {
            return Ok(false);
        }
        self.grow(desired.saturating_sub(current).saturating_mul(size_of::<usize>()))
    }

    // Each of them takes address space of the host, or a mapping.
    fn instances(&self) -> usize {
        INSTANCES_PER_CALL as usize
    }

    fn tables(&self) -> usize {
        TABLES_PER_CALL as usize
    }

    fn memories(&self) -> usize {
        MEMORIES_PER_CALL as usize
    }
}

/// A command's standard output, stored up to a cap. Clones share it.
#[derive(Clone)]
pub(crate) struct Output(Arc<Mutex<Written>>);

struct Written {
    bytes: BytesMut,
    limit: usize,
    overflowed: bool,
    room: CallMemory,
}

impl Output {
    pub(crate) fn new(limit: usize, room: CallMemory) -> Self {
        Self(Arc::new(Mutex::new(Written {
            bytes: BytesMut::new(),
            limit,
            overflowed: false,
            room,
        })))
    }

    /// Takes the bytes that the guest wrote so far.
    pub(crate) fn take(&self) -> Bytes {
        std::mem::take(&mut self.written().bytes).freeze()
    }

    /// Whether the guest wrote more than the cap, which ended it.
    pub(crate) fn overflowed(&self) -> bool {
        self.written().overflowed
    }

    fn written(&self) -> MutexGuard<'_, Written> {
        // The bytes are complete whenever the lock is free.
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl StdoutStream for Output {
    fn p2_stream(&self) -> Box<dyn OutputStream> {
        Box::new(self.clone())
    }

    fn async_stream(&self) -> Box<dyn AsyncWrite + Send + Sync> {
        // Requested only by preview 3, which is not linked.
        Box::new(tokio::io::sink())
    }
}

impl IsTerminal for Output {
    fn is_terminal(&self) -> bool {
        false
    }
}

impl OutputStream for Output {
    fn write(&mut self, bytes: Bytes) -> StreamResult<()> {
        let mut written = self.written();
        if bytes.len() > written.limit - written.bytes.len() {
            written.overflowed = true;
            return Err(StreamError::trap("over the response limit"));
        }
        if !written.room.hold(bytes.len()) {
            return Err(StreamError::trap("over its share of the memory"));
        }
        written.bytes.extend_from_slice(&bytes);
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
impl Pollable for Output {
    async fn ready(&mut self) {}
}
