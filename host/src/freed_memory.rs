//! Returns freed memory to the system.
//!
//! glibc keeps what is freed between blocks that are still in use, as after a first list or a resync of all parents. It
//! gives those pages back only when asked. That costs a few milliseconds, so it is done only after some work.

use std::time::Duration;

use rustix::time::{ClockId, clock_gettime};
use tokio::time::{MissedTickBehavior, interval};

/// How often memory is returned at most.
const PERIOD: Duration = Duration::from_secs(5);
/// Less processor time than this since the last time is not worth the effort.
const WORK: Duration = Duration::from_millis(100);

/// Returns freed memory after work. Never returns.
pub(crate) async fn keep_returning() {
    let mut tick = interval(PERIOD);
    tick.set_missed_tick_behavior(MissedTickBehavior::Delay);
    let mut trimmed = Duration::ZERO;
    loop {
        tick.tick().await;
        if processor_time().saturating_sub(trimmed) >= WORK {
            trim();
            trimmed = processor_time();
        }
    }
}

fn processor_time() -> Duration {
    let time = clock_gettime(ClockId::ProcessCPUTime);
    Duration::try_from(time).unwrap_or_default()
}

#[cfg(all(target_os = "linux", target_env = "gnu"))]
#[allow(unsafe_code, reason = "see SAFETY")]
fn trim() {
    // SAFETY: the function has no precondition, and every thread may call it at any time.
    unsafe { libc::malloc_trim(0) };
}

/// Other allocators decide for themselves.
#[cfg(not(all(target_os = "linux", target_env = "gnu")))]
const fn trim() {}
