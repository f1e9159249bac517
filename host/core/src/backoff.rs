//! Delays between attempts for one failing object.

use std::time::Duration;

/// Delays between retries of one object: they double from `initial` to `max`, with jitter.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct BackoffConfig {
    /// The first delay.
    pub initial: Duration,
    /// The longest delay.
    pub max: Duration,
}

/// Returns the delay after this many consecutive failures: doubled each time up to the maximum, then shortened by
/// up to a quarter at random, so that objects that failed together are not all retried together.
pub fn delay(config: &BackoffConfig, failures: u32) -> Duration {
    let doublings = failures.saturating_sub(1).min(31);
    let full = config.initial.saturating_mul(1 << doublings).min(config.max);
    jittered(full, 0.25)
}

/// Shortens a time at random by up to this fraction, so that tasks that began together drift apart.
pub fn jittered(time: Duration, part: f64) -> Duration {
    // Without randomness there is no jitter, which is no reason to fail.
    let random = f64::from(getrandom::u32().unwrap_or_default()) / f64::from(u32::MAX);
    time.mul_f64(1.0 - random * part)
}

/// Longest `Retry-After` that is honored.
pub const MAX_RETRY_AFTER: Duration = Duration::from_secs(60);

/// Returns the delay that the API server asks for, with jitter that is added to it.
pub fn at_least(asked: Duration) -> Duration {
    let asked = asked.min(MAX_RETRY_AFTER);
    asked + jittered(asked / 2, 1.0)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn delays_double_up_to_the_maximum_and_jitter_takes_at_most_a_quarter() {
        let config = BackoffConfig {
            initial: Duration::from_secs(1),
            max: Duration::from_secs(60),
        };
        for (failures, full) in [(1, 1), (2, 2), (3, 4), (6, 32), (7, 60), (1000, 60)] {
            let full = Duration::from_secs(full);
            for _ in 0..100 {
                let delay = delay(&config, failures);
                assert!(
                    delay <= full && delay >= full.mul_f64(0.749),
                    "{failures}: {delay:?}"
                );
            }
        }
    }
}
