//! What happens after a reconcile.

use std::time::Duration;

/// The shortest delay that a plugin can ask for, so that it cannot keep a worker permanently busy.
pub(super) const MIN_DELAY: Duration = Duration::from_millis(100);

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

/// Converts the delay that a plugin asked for, with the minimum applied.
pub(super) fn after(milliseconds: u64) -> Duration {
    Duration::from_millis(milliseconds).max(MIN_DELAY)
}
