//! The host's clock.

use jiff::{Timestamp, Unit};

/// Returns the host's clock in whole seconds: a finer one would make equal requests differ.
pub(crate) fn now() -> Timestamp {
    let now = Timestamp::now();
    now.round(Unit::Second).unwrap_or(now)
}
