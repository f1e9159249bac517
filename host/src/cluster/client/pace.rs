//! How fast one controller may write.

use std::sync::{Mutex, PoisonError};
use std::time::Duration;

use tokio::time::Instant;

/// A share of the API server's time: so many writes a second, and so many at once after a silence. Who comes first goes
/// first.
#[derive(Debug)]
pub struct Pace {
    /// The time of one write.
    each: Duration,
    /// How far a silence may be made up for.
    burst: Duration,
    /// When the next write is due, were there no burst.
    due: Mutex<Instant>,
}

impl Pace {
    /// `qps` writes a second on the average, `burst` at once.
    #[must_use]
    pub fn new(qps: u32, burst: u32) -> Self {
        let each = Duration::from_secs(1) / qps.max(1);
        let burst = each * burst.max(1);
        Self {
            each,
            burst,
            due: Mutex::new(Instant::now()),
        }
    }

    /// Waits until the next write may go, and says how long that took.
    pub async fn wait(&self) -> Duration {
        let now = Instant::now();
        let at = self.next(now);
        tokio::time::sleep_until(at).await;
        at.saturating_duration_since(now)
    }

    fn next(&self, now: Instant) -> Instant {
        let mut due = self.due.lock().unwrap_or_else(PoisonError::into_inner);
        *due = (*due).max(now) + self.each;
        // The whole burst is there when nothing is due.
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
        // All that was reserved has passed, and a silence is worth one burst and no more.
        assert_eq!(waits(5, now + Duration::from_secs(3600)), [0, 0, 0, 100, 200]);
    }
}
