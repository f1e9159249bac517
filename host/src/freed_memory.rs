//! Returns freed memory to the system after a burst of work.
//!
//! glibc keeps what is freed between blocks that are still in use, as after a first list or a resync of all parents. It
//! gives those pages back only when asked. That costs a few milliseconds, so it is done when the work has ended.

use std::time::Duration;

use rustix::time::{ClockId, clock_gettime};
use tokio::time::{MissedTickBehavior, interval};

/// How often the processor time of the process is read.
const STEP: Duration = Duration::from_millis(500);
/// Less processor time than this in one step means that the work has ended.
const QUIET: Duration = Duration::from_millis(10);
/// Less processor time than this since the last time is not worth the effort.
const BURST: Duration = Duration::from_millis(100);
/// A process that always has work does it after this many steps.
const AT_LATEST: u32 = 120;

/// Returns freed memory after each burst of work. Never returns.
pub(crate) async fn keep_returning() {
    let mut tick = interval(STEP);
    tick.set_missed_tick_behavior(MissedTickBehavior::Delay);
    let mut bursts = Bursts::default();
    loop {
        tick.tick().await;
        if bursts.step(processor_time()) {
            trim();
            bursts.trimmed(processor_time());
        }
    }
}

/// Recognizes the end of a burst by the processor time of the process.
#[derive(Default)]
struct Bursts {
    /// The processor time at the last step.
    last: Duration,
    /// The same when memory was last returned.
    trimmed: Duration,
    /// The number of steps since then.
    steps: u32,
}

impl Bursts {
    /// Takes the processor time so far and reports whether memory should be returned now.
    fn step(&mut self, now: Duration) -> bool {
        let in_step = now.saturating_sub(self.last);
        let since = now.saturating_sub(self.trimmed);
        self.last = now;
        self.steps = self.steps.saturating_add(1);
        since >= BURST && (in_step < QUIET || self.steps >= AT_LATEST)
    }

    fn trimmed(&mut self, now: Duration) {
        (self.last, self.trimmed, self.steps) = (now, now, 0);
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

#[cfg(test)]
mod tests {
    use super::*;

    const fn ms(milliseconds: u64) -> Duration {
        Duration::from_millis(milliseconds)
    }

    #[test]
    fn memory_is_returned_when_a_burst_has_ended() {
        let mut bursts = Bursts::default();
        assert!(!bursts.step(ms(50)), "too little work");
        assert!(!bursts.step(ms(200)), "in the middle of it");
        assert!(bursts.step(ms(205)));
        bursts.trimmed(ms(208));
        assert!(!bursts.step(ms(209)), "nothing since");
    }

    #[test]
    fn memory_is_returned_under_steady_load() {
        let mut bursts = Bursts::default();
        let steps = (1..=u64::from(AT_LATEST)).map(|step| bursts.step(ms(step * 400)));
        let returned: Vec<bool> = steps.collect();
        assert_eq!(returned.iter().position(|now| *now), Some(AT_LATEST as usize - 1));
    }
}
