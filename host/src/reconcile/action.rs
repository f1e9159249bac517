//! What comes after a reconcile.

use std::time::Duration;

/// The shortest time that a plugin can ask for, so that none can keep a worker busy by itself.
pub(super) const MIN_DELAY: Duration = Duration::from_millis(100);

/// When to look at the parent again, though nothing changes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Action {
    /// When something changes.
    OnChange,
    /// After this time.
    After(Duration),
    /// After the back-off of a parent that has failed so many times in a row.
    Backoff,
    /// The same, and not before the API server wants to be asked again.
    BackoffAtLeast(Duration),
}

/// What a plugin asked for, but not less than the shortest.
pub(super) fn after(milliseconds: u64) -> Duration {
    Duration::from_millis(milliseconds).max(MIN_DELAY)
}
