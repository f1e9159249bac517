//! Records failed compilations across restarts. A retry would fail again, and cost a minute and a gigabyte.

use std::time::{Duration, SystemTime, UNIX_EPOCH};

use serde::{Deserialize, Serialize};

use crate::error::LoadError;

/// How long a failure is remembered. It can depend on the machine, so no failure is permanent.
const REMEMBERED: Duration = Duration::from_secs(60 * 60);
/// Maximum number of bytes stored of the reason.
const REASON: usize = 2048;

/// A failed compilation: the reason, the time, and the limits it ran with.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(crate) struct Failure {
    reason: String,
    /// Seconds since 1970.
    at: u64,
    within: CompileLimits,
}

/// The limits for compiling one file.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct CompileLimits {
    /// Processor time.
    pub(crate) time: Duration,
    /// Bytes of memory.
    pub(crate) memory: usize,
}

impl Failure {
    pub(crate) fn now(error: &LoadError, within: CompileLimits) -> Self {
        let mut reason = error.to_string();
        reason.truncate(reason.floor_char_boundary(REASON));
        Self {
            reason,
            at: now(),
            within,
        }
    }

    pub(crate) fn read(text: &[u8]) -> Option<Self> {
        serde_json::from_slice(text).ok()
    }

    pub(crate) fn write(&self) -> Vec<u8> {
        // A `Failure` contains nothing that JSON cannot represent.
        serde_json::to_vec(self).unwrap_or_default()
    }

    /// Returns the remembered error; `None` when it has expired, or when there is more time or memory than
    /// before.
    pub(crate) fn still(self, within: CompileLimits) -> Option<LoadError> {
        let more = within.time > self.within.time || within.memory > self.within.memory;
        let age = now().checked_sub(self.at).map(Duration::from_secs)?;
        let rest = REMEMBERED.checked_sub(age).filter(|rest| !rest.is_zero())?;
        (!more).then_some(LoadError::FailedBefore {
            reason: self.reason,
            age,
            rest,
        })
    }
}

fn now() -> u64 {
    SystemTime::now()
        .duration_since(UNIX_EPOCH)
        .map_or(0, |since| since.as_secs())
}

#[cfg(test)]
mod tests {
    use super::*;

    const WITHIN: CompileLimits = CompileLimits {
        time: Duration::from_secs(60),
        memory: 100,
    };

    fn failure() -> Failure {
        let failure = Failure::now(&LoadError::CompileTimeout(WITHIN.time), WITHIN);
        Failure::read(&failure.write()).unwrap()
    }

    #[test]
    fn a_failure_is_tried_again_with_more_time_or_memory_or_an_hour_later() {
        let error = failure().still(WITHIN).unwrap().to_string();
        assert!(error.contains("not compiled within 60s"), "{error}");
        let (time, memory) = (WITHIN.time * 2, WITHIN.memory / 2);
        assert!(failure().still(CompileLimits { memory, ..WITHIN }).is_some());
        assert!(failure().still(CompileLimits { time, ..WITHIN }).is_none());
        let memory = WITHIN.memory + 1;
        assert!(failure().still(CompileLimits { memory, ..WITHIN }).is_none());
        let ago = |seconds| Failure {
            at: now() - seconds,
            ..failure()
        };
        assert!(ago(3500).still(WITHIN).is_some());
        assert!(ago(3600).still(WITHIN).is_none());
        // The clock was set back.
        let later = Failure {
            at: now() + 100,
            ..failure()
        };
        assert!(later.still(WITHIN).is_none());
    }

    #[test]
    fn a_long_reason_is_cut() {
        let error = LoadError::Refused {
            part: crate::Part::Form,
            message: "é".repeat(5000),
        };
        assert!(Failure::now(&error, WITHIN).reason.len() <= REASON);
    }
}
