//! What happens after a reconcile.

use std::time::Duration;

use jiff::Timestamp;

/// The shortest delay that a plugin can ask for, so that it cannot keep a worker permanently busy.
pub(super) const MIN_DELAY: Duration = Duration::from_millis(100);

/// How soon the host looks again whether an object is still in the way of a child. It gets no event when that object is
/// deleted or changes its owner.
pub(super) const OBSTRUCTED: Duration = Duration::from_secs(30);

/// When to reconcile the parent again if nothing changes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Action {
    /// Only when something changes.
    OnChange,
    /// After this time.
    After(Duration),
    /// After the parent's back-off delay.
    Backoff,
    /// After the parent's back-off delay, but not after this time.
    BackoffAtMost(Duration),
    /// After the parent's back-off delay, but not before the `Retry-After` of the API server.
    BackoffAtLeast(Duration),
}

/// Returns the delay that a plugin asked for, as a duration or as a time of the host's clock, with the minimum applied.
/// A time that is not after `seen`, the time in the request, is ignored: otherwise the reconciles would never end.
pub(super) fn requeue(after_ms: Option<u64>, at: Option<Timestamp>, seen: Timestamp) -> Option<Duration> {
    let after = after_ms.map(Duration::from_millis);
    let at = at.filter(|at| *at > seen).map(|at| until(at, Timestamp::now()));
    let delay = after.into_iter().chain(at).min()?;
    Some(delay.max(MIN_DELAY))
}

/// Returns how long it takes until the clock, which plugins see in whole seconds, has reached a time.
fn until(at: Timestamp, now: Timestamp) -> Duration {
    let reached = match at.subsec_nanosecond() {
        0 => at,
        // The plugin sees the next whole second first.
        part => Timestamp::from_second(at.as_second() + i64::from(part > 0)).unwrap_or(Timestamp::MAX),
    };
    // A time that has passed is no time to wait.
    Duration::try_from(reached.duration_since(now)).unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_earlier_of_both_counts_and_a_time_that_has_passed_since_the_call_is_soon() {
        let seen = Timestamp::now() - Duration::from_secs(2);
        let requeue = |after_ms, at| requeue(after_ms, at, seen);
        let in_an_hour = Timestamp::now() + Duration::from_secs(3600);
        assert_eq!(requeue(None, None), None);
        assert_eq!(requeue(Some(0), Some(in_an_hour)), Some(MIN_DELAY));
        assert_eq!(
            requeue(None, Some(seen + Duration::from_secs(1))),
            Some(MIN_DELAY)
        );
        assert_eq!(requeue(None, Some(seen)), None, "the plugin has seen this time");
        assert_eq!(
            requeue(Some(5000), Some(in_an_hour)),
            Some(Duration::from_secs(5))
        );
        let hour = requeue(Some(u64::MAX), Some(in_an_hour)).unwrap();
        assert!(
            hour > Duration::from_secs(3500) && hour <= Duration::from_secs(3601),
            "{hour:?}"
        );
    }

    #[test]
    fn the_wait_ends_when_a_plugin_sees_the_time() {
        let now: Timestamp = "2026-01-02T03:04:05.25Z".parse().unwrap();
        let wait = |at: &str| until(at.parse().unwrap(), now);
        assert_eq!(wait("2026-01-02T03:04:06Z"), Duration::from_millis(750));
        assert_eq!(wait("2026-01-02T03:04:06.001Z"), Duration::from_millis(1750));
        assert_eq!(wait("2026-01-02T03:04:05Z"), Duration::ZERO);
    }
}
