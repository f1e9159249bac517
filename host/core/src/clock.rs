//! The host's clocks. Times that the API server wrote are compared with another one, `ServerClock` of the crate for the cluster.

use std::time::Duration;

use jiff::{RoundMode, Timestamp, TimestampRound, Unit};
use rustix::time::{ClockId, clock_gettime};

/// Returns the host's clock in whole seconds: a finer one would make equal requests differ.
pub fn now() -> Timestamp {
    whole_seconds(Timestamp::now())
}

/// Drops the fraction of a second. Rounded up, the time would be in the future, and a plugin would act too early.
pub fn whole_seconds(time: Timestamp) -> Timestamp {
    let down = TimestampRound::new()
        .smallest(Unit::Second)
        .mode(RoundMode::Floor);
    time.round(down).unwrap_or(time)
}

/// Returns the time since the machine was started, also while it was suspended. Nobody sets this clock, so it measures what
/// passes when the clock that tells the time is set.
pub fn since_boot() -> Duration {
    #[cfg(target_os = "linux")]
    let clock = ClockId::Boottime;
    #[cfg(not(target_os = "linux"))]
    let clock = ClockId::Monotonic;
    // The kernel never reports a negative time since its start.
    clock_gettime(clock).try_into().unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_clock_is_never_ahead() {
        let at = |text: &str| text.parse::<Timestamp>().unwrap();
        for time in "2026-01-02T03:04:05Z 2026-01-02T03:04:05.5Z 2026-01-02T03:04:05.999999Z".split(' ') {
            assert_eq!(whole_seconds(at(time)), at("2026-01-02T03:04:05Z"));
        }
    }
}
