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

/// When a plugin asks to be called again.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Requeue {
    /// After this time.
    pub(super) after: Option<Duration>,
    /// When the host's clock, which the plugin sees in whole seconds, has reached this time.
    pub(super) at: Option<Timestamp>,
}

impl Requeue {
    /// Reads what an answer says. The minimum delay is applied. A time that is not after `seen`, the time in the request,
    /// is ignored: otherwise the reconciles would never end.
    pub(super) fn of(after_ms: Option<u64>, at: Option<Timestamp>, seen: Timestamp) -> Self {
        let at = at.filter(|at| *at > seen);
        Self {
            after: after_ms.map(|after| Duration::from_millis(after).max(MIN_DELAY)),
            at: at.map(|at| match at.subsec_nanosecond() {
                0 => at,
                // The plugin sees the next whole second first.
                part => {
                    Timestamp::from_second(at.as_second() + i64::from(part > 0)).unwrap_or(Timestamp::MAX)
                }
            }),
        }
    }

    /// Adds a delay. The earlier one counts.
    pub(super) fn or_after(self, delay: Option<Duration>) -> Self {
        Self {
            after: self.after.into_iter().chain(delay).min(),
            ..self
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_plugin_names_a_delay_and_a_time_after_the_one_that_it_has_seen() {
        let seen: Timestamp = "2026-01-02T03:04:05Z".parse().unwrap();
        let at = |text: &str| Some(text.parse::<Timestamp>().unwrap());
        let requeue = |after_ms, at| Requeue::of(after_ms, at, seen);
        assert_eq!(requeue(None, None), Requeue::default());
        assert_eq!(requeue(Some(0), None).after, Some(MIN_DELAY));
        assert_eq!(
            requeue(None, Some(seen)).at,
            None,
            "the plugin has seen this time"
        );
        let next = at("2026-01-02T03:04:06Z");
        assert_eq!(requeue(None, next).at, next);
        assert_eq!(
            requeue(None, at("2026-01-02T03:04:05.001Z")).at,
            next,
            "it sees whole seconds"
        );
        let both = requeue(Some(u64::MAX), next).or_after(Some(OBSTRUCTED));
        assert_eq!((both.after, both.at), (Some(OBSTRUCTED), next));
    }
}
