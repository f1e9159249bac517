//! The write rate limit of one controller.

use std::sync::Mutex;
use std::time::Duration;

use tokio::time::Instant;

use operator_host_core::sync::lock;

/// A rate limit: an average number of writes per second, and a burst after an idle time. Waiters are served in the
/// order in which they arrive.
#[derive(Debug)]
pub struct Pace {
    /// The time that one write takes up.
    each: Duration,
    /// The idle time that may be caught up.
    burst: Duration,
    /// When the next write would be due without a burst.
    due: Mutex<Instant>,
}

impl Pace {
    /// Creates a limit of `qps` writes per second on average, and `burst` at once.
    pub fn new(qps: u32, burst: u32) -> Self {
        let each = Duration::from_secs(1) / qps.max(1);
        let burst = each * burst.max(1);
        Self {
            each,
            burst,
            due: Mutex::new(Instant::now()),
        }
    }

    /// Waits until the next write is allowed, and returns the time waited.
    pub async fn wait(&self) -> Duration {
        let now = Instant::now();
        let at = self.next(now);
        if at > now {
            // Even a sleep until now takes until the timer's next millisecond.
            tokio::time::sleep_until(at).await;
        }
        at - now
    }

    fn next(&self, now: Instant) -> Instant {
        let mut due = lock(&self.due);
        *due = (*due).max(now) + self.each;
        // With nothing due, the whole burst is available.
        (*due).checked_sub(self.burst).map_or(now, |at| at.max(now))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_burst_goes_at_once_and_the_rest_at_its_pace() {
        let pace = Pace::new(10, 3);
        let now = Instant::now() + Duration::from_secs(1);
        let waits = |count: u32, now: Instant| -> Vec<u128> {
            (0..count).map(|_| (pace.next(now) - now).as_millis()).collect()
        };
        assert_eq!(waits(6, now), [0, 0, 0, 100, 200, 300]);
        // All reservations have expired; an idle time allows for one burst and no more.
        assert_eq!(waits(5, now + Duration::from_secs(3600)), [0, 0, 0, 100, 200]);
    }
}
