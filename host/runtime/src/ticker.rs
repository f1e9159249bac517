//! The clock that interrupts guests.
//!
//! Compiled guest code compares its engine's epoch with its deadline at every loop head and function entry.
//! One thread advances the epochs while any call is running, so that a guest that computes for long returns
//! its thread to tokio at every tick. This lets other calls continue, and lets the call's own deadline fire.
//! While no call is running the thread sleeps without a timer, so an idle host does not wake up.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering::SeqCst};
use std::thread::{self, Thread};
use std::time::Duration;

use wasmtime::EngineWeak;

/// How long a guest may run before it yields.
pub(crate) const TICK: Duration = Duration::from_millis(10);

/// Number of ticks without a call after which the thread parks. Waking it costs a system call, so it should
/// stay awake during a stream of calls with short gaps.
const IDLE_TICKS: u32 = 100;

/// Owns the thread, which ends when this is dropped or when the engines are dropped.
pub(crate) struct Ticker {
    shared: Arc<Shared>,
    thread: Thread,
}

struct Shared {
    /// Number of running calls.
    active: AtomicUsize,
    /// Whether the thread is parked or about to park.
    parked: AtomicBool,
    stop: AtomicBool,
}

impl Ticker {
    pub(crate) fn start(engines: Vec<EngineWeak>) -> std::io::Result<Self> {
        let shared = Arc::new(Shared {
            active: AtomicUsize::new(0),
            parked: AtomicBool::new(false),
            stop: AtomicBool::new(false),
        });
        let handle = thread::Builder::new().name("plugin-epoch".into()).spawn({
            let shared = Arc::clone(&shared);
            move || shared.run(&engines)
        })?;
        Ok(Self {
            shared,
            thread: handle.thread().clone(),
        })
    }

    /// Advances the epochs until the guard is dropped.
    pub(crate) fn tick(&self) -> Ticking<'_> {
        self.shared.active.fetch_add(1, SeqCst);
        // The thread sets `parked` before it reads `active` for the last time, and this code accesses them in
        // the reverse order: one of the two sees the other's write.
        if self.shared.parked.load(SeqCst) {
            self.thread.unpark();
        }
        Ticking(&self.shared)
    }
}

impl Drop for Ticker {
    fn drop(&mut self) {
        self.shared.stop.store(true, SeqCst);
        self.thread.unpark();
    }
}

/// See [`Ticker::tick`].
pub(crate) struct Ticking<'a>(&'a Shared);

impl Drop for Ticking<'_> {
    fn drop(&mut self) {
        self.0.active.fetch_sub(1, SeqCst);
    }
}

impl Shared {
    fn run(&self, engines: &[EngineWeak]) {
        let mut idle = 0;
        while !self.stop.load(SeqCst) {
            if idle >= IDLE_TICKS {
                self.park();
                idle = 0;
            }
            thread::sleep(TICK);
            let mut is_in_use = false;
            for engine in engines.iter().filter_map(EngineWeak::upgrade) {
                engine.increment_epoch();
                is_in_use = true;
            }
            if !is_in_use {
                return;
            }
            idle = if self.active.load(SeqCst) == 0 {
                idle + 1
            } else {
                0
            };
        }
    }

    fn park(&self) {
        self.parked.store(true, SeqCst);
        while self.active.load(SeqCst) == 0 && !self.stop.load(SeqCst) {
            thread::park();
        }
        self.parked.store(false, SeqCst);
    }
}

#[cfg(test)]
mod tests {
    use std::time::Instant;

    use super::*;

    fn wait_until(what: &str, condition: impl Fn() -> bool) {
        let start = Instant::now();
        while !condition() {
            assert!(start.elapsed() < Duration::from_secs(10), "{what}");
            thread::sleep(Duration::from_millis(1));
        }
    }

    #[test]
    fn the_thread_parks_when_idle_wakes_for_a_call_and_ends_with_its_owner() {
        let engine = wasmtime::Engine::default();
        let ticker = Ticker::start(vec![engine.weak()]).unwrap();
        let shared = Arc::clone(&ticker.shared);
        wait_until("parks when idle", || shared.parked.load(SeqCst));

        let ticking = ticker.tick();
        wait_until("wakes for a call", || !shared.parked.load(SeqCst));
        drop(ticking);
        wait_until("parks again", || shared.parked.load(SeqCst));

        drop(ticker);
        wait_until("ends with its owner", || Arc::strong_count(&shared) == 1);
    }
}
