//! How often one child, or a text in the status, is written without a change of the spec or of the plugin. No I/O, and the time
//! is an argument.

use std::fmt;
use std::time::Duration;

use tokio::time::Instant;

/// Why something is written again.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Cause {
    /// The plugin wants another child.
    Change,
    /// The child was removed within moments of its creation, or failed soon.
    Removal,
    /// The plugin or the host has another text or number for the status. A condition that changes does not wait.
    Progress,
    /// Another client changed the status, or a child, back.
    Correction,
    /// The last write of the child was not answered in time.
    Silence,
    /// The last write of the child was given up, since too many others were not answered.
    Crowd,
}

/// What is written at once, and what backs off.
struct Limits {
    /// How many writes in quick succession are made at once.
    burst: u32,
    /// The delay before the next one. It doubles each time, up to `longest`.
    delay: Duration,
    longest: Duration,
    /// After the last write, one write is forgotten each time that twice this time, or twice the delay if that is longer, has
    /// passed.
    memory: Duration,
}

impl Cause {
    const fn limits(self) -> Limits {
        let (burst, delay, longest, memory) = match self {
            // A reconcile whose plugin does not settle makes fewer writes, and reports `PluginUnsettled`.
            Self::Change => (8, 5, 60, 2),
            Self::Removal => (5, 5, 300, 30),
            Self::Progress => (10, 2, 10, 1),
            Self::Correction => (5, 5, 300, 60),
            Self::Silence => (1, 5, 300, 60),
            Self::Crowd => (1, 1, 60, 5),
        };
        Limits {
            burst,
            delay: Duration::from_secs(delay),
            longest: Duration::from_secs(longest),
            memory: Duration::from_secs(memory),
        }
    }

    /// Returns the least time between the last of so many writes and the next one; `None` when that is made at once.
    pub(super) fn delay_after(self, writes: u32) -> Option<Duration> {
        let limits = self.limits();
        let doublings = writes.checked_sub(limits.burst)?;
        let delay = limits.delay.saturating_mul(2_u32.saturating_pow(doublings));
        Some(delay.min(limits.longest))
    }
}

/// The writes of one child, or of the status.
#[derive(Clone, Debug)]
pub(crate) struct Pace {
    writes: u32,
    last: Instant,
    cause: Cause,
    /// Why the child was last removed.
    removed: Option<Box<str>>,
    /// Whether it was removed since it was last created.
    is_gone: bool,
    /// Whether it was published that it backs off.
    is_published: bool,
}

impl Pace {
    pub(crate) const fn new(now: Instant) -> Self {
        Self {
            writes: 0,
            last: now,
            cause: Cause::Progress,
            removed: None,
            is_gone: false,
            is_published: false,
        }
    }

    /// Notes that the child was removed within moments of its creation, and why.
    pub(crate) fn removed(&mut self, why: String) {
        self.removed = Some(why.into());
        self.is_gone = true;
    }

    /// Notes that the child was created, which counts if it was removed before.
    pub(crate) fn created(&mut self, now: Instant) {
        if std::mem::take(&mut self.is_gone) {
            self.wrote(Cause::Removal, now);
        }
    }

    pub(crate) fn wrote(&mut self, cause: Cause, now: Instant) {
        self.writes = self.counted(now).saturating_add(1);
        self.is_published &= self.delay().is_some();
        (self.cause, self.last) = (cause, now);
    }

    /// Returns how many writes still count.
    fn counted(&self, now: Instant) -> u32 {
        let memory = 2 * self.cause.limits().memory.max(self.delay().unwrap_or_default());
        let forgotten = (now - self.last).as_millis() / memory.as_millis();
        let forgotten = u32::try_from(forgotten).unwrap_or(u32::MAX);
        self.writes.saturating_sub(forgotten)
    }

    /// Returns the least time between the last write and the next one.
    fn delay(&self) -> Option<Duration> {
        self.cause.delay_after(self.writes)
    }

    /// Returns how long the next write has to wait; `None` when it need not.
    pub(crate) fn wait(&self, now: Instant) -> Option<Duration> {
        let due = self.last + self.delay()?;
        Some(due.saturating_duration_since(now)).filter(|wait| !wait.is_zero())
    }

    /// Reports whether it can be forgotten.
    pub(crate) fn is_over(&self, now: Instant) -> bool {
        self.counted(now) == 0 && (now - self.last) > 2 * self.cause.limits().memory
    }

    /// Reports whether to publish that it backs off, and notes that it is. That a text is slowed is no warning: a rollout of
    /// many children changes it often.
    pub(crate) fn is_to_be_published(&mut self) -> bool {
        self.cause != Cause::Progress && !std::mem::replace(&mut self.is_published, true)
    }
}

/// What is said about something that backs off.
impl fmt::Display for Pace {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (times, delay) = (self.writes, self.delay().unwrap_or_default());
        match self.cause {
            Cause::Removal => {
                write!(f, "was created {times} times and did not last")?;
                if let Some(why) = &self.removed {
                    write!(f, ", the last time {why}")?;
                }
                write!(f, ". The host creates it again after {delay:?}")
            }
            Cause::Silence | Cause::Crowd => write!(
                f,
                "was not answered {times} times. The host sends it again after {delay:?}"
            ),
            Cause::Change | Cause::Progress => write!(
                f,
                "was written {times} times within seconds, each time otherwise, without a change of the spec. The host \
                 writes it again after {delay:?}"
            ),
            Cause::Correction => write!(
                f,
                "was changed back {times} times by another client. The host writes it again after {delay:?}: stop the \
                 other client, or give the list of conditions in the definition `x-kubernetes-list-type: map`"
            ),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Returns the number of writes within `seconds` when one is wanted every `every` milliseconds.
    fn writes(cause: Cause, every: u64, seconds: u64) -> usize {
        let start = Instant::now();
        let mut pace = Pace::new(start);
        let times = (0..seconds * 1000 / every).map(|step| start + Duration::from_millis(step * every));
        let mut writes = 0;
        for now in times {
            if pace.wait(now).is_none() {
                pace.wrote(cause, now);
                writes += 1;
            }
        }
        writes
    }

    #[test]
    fn a_text_that_is_slowed_is_no_warning_and_a_status_that_is_changed_back_is_one() {
        let warnings = |cause| {
            let mut now = Instant::now();
            let mut pace = Pace::new(now);
            let mut warnings = 0;
            for _ in 0..40 {
                now += pace.wait(now).unwrap_or(Duration::from_millis(10));
                pace.wrote(cause, now);
                assert!(pace.wait(now) <= Some(cause.limits().longest));
                warnings += usize::from(pace.wait(now).is_some() && pace.is_to_be_published());
            }
            warnings
        };
        assert_eq!(warnings(Cause::Progress), 0);
        assert_eq!(warnings(Cause::Correction), 1);
    }

    #[test]
    fn what_is_written_again_and_again_backs_off() {
        for cause in [Cause::Change, Cause::Removal, Cause::Correction] {
            assert!(writes(cause, 20, 10) <= 9, "{cause:?}");
            assert!(
                writes(cause, 20, 3600) < 80,
                "{cause:?}: {}",
                writes(cause, 20, 3600)
            );
        }
        assert!(writes(Cause::Progress, 20, 10) <= 13);
        // A pod that fails after three seconds each time.
        assert!(writes(Cause::Removal, 3000, 600) < 15);
    }

    #[test]
    fn what_is_written_now_and_then_does_not_back_off() {
        assert_eq!(writes(Cause::Change, 10_000, 3600), 360);
        assert_eq!(writes(Cause::Progress, 4000, 3600), 900);
        assert_eq!(writes(Cause::Removal, 60_000, 36_000), 600);
    }

    #[test]
    fn a_child_counts_when_it_is_created_again_and_not_the_first_time() {
        let now = Instant::now();
        let mut pace = Pace::new(now);
        pace.created(now);
        assert_eq!(pace.writes, 0);
        for _ in 0..5 {
            pace.removed("its phase was Failed (OutOfcpu)".into());
            pace.created(now);
        }
        assert_eq!(pace.wait(now), Some(Duration::from_secs(5)));
        let text = pace.to_string();
        assert!(
            text.contains("5 times") && text.contains("OutOfcpu") && text.contains("5s"),
            "{text}"
        );
        let later = now + Duration::from_secs(600);
        assert!(pace.wait(later).is_none() && pace.is_over(later));
    }
}
