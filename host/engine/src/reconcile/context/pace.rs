//! How often one child, or the status, is written without a change of the spec or of the plugin, and who keeps changing it
//! back. No I/O, and the time is an argument.

use std::fmt;
use std::time::Duration;

use tokio::time::Instant;

use operator_host_core::metrics::ContestedChild;

/// Why something is written again.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Cause {
    /// The plugin wants another child.
    Change,
    /// The child was removed within moments of its creation, or failed soon.
    Removal,
    /// The plugin or the host has something else to say in the status.
    Progress,
    /// Another client changed the status back.
    Correction,
    /// Another client changed the child back.
    Contest,
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
            Self::Progress => (10, 2, 60, 1),
            Self::Correction => (5, 5, 300, 60),
            // Fewer are the edits of a user. Other operators look every few minutes.
            Self::Contest => (4, 5, 300, 1800),
        };
        Limits {
            burst,
            delay: Duration::from_secs(delay),
            longest: Duration::from_secs(longest),
            memory: Duration::from_secs(memory),
        }
    }
}

/// How long a contested child must stay as applied until it is no longer contested: this many times the longest time that
/// the other client has taken so far, within these bounds.
const QUIET_FACTOR: u32 = 4;
const QUIET: (Duration, Duration) = (Duration::from_secs(30), Duration::from_secs(3600));

/// Who changes which field of a child back.
#[derive(Debug)]
pub(in crate::reconcile) struct Report {
    /// The path of the field.
    pub(in crate::reconcile) path: String,
    /// Who changed it, in words.
    pub(in crate::reconcile) by: String,
}

/// The writes of one child, or of the status.
#[derive(Debug)]
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
    /// The fingerprint of the body that was last written.
    body: Option<Box<str>>,
    /// Whether another client has changed it back since.
    is_changed: bool,
    /// The longest time that the other client has taken.
    slowest: Duration,
    /// What was reported about the other client. The metrics count the child as long as it is here.
    report: Option<Box<(Report, ContestedChild)>>,
}

impl Pace {
    /// Begins with no write.
    pub(super) const fn new(now: Instant) -> Self {
        Self {
            writes: 0,
            last: now,
            cause: Cause::Progress,
            removed: None,
            is_gone: false,
            is_published: false,
            body: None,
            is_changed: false,
            slowest: Duration::ZERO,
            report: None,
        }
    }

    /// Notes that the child was removed within moments of its creation, and why.
    pub(in crate::reconcile) fn removed(&mut self, why: String) {
        self.removed = Some(why.into());
        self.is_gone = true;
    }

    /// Notes that the child was created, which counts if it was removed before.
    pub(in crate::reconcile) fn created(&mut self, now: Instant) {
        if std::mem::take(&mut self.is_gone) {
            self.wrote(Cause::Removal, now);
        }
    }

    /// Notes a write.
    pub(in crate::reconcile) fn wrote(&mut self, mut cause: Cause, now: Instant) {
        match (self.cause, cause) {
            (Cause::Contest, Cause::Change) if self.report.is_some() => cause = Cause::Contest,
            (Cause::Contest, Cause::Contest) => {}
            // The changes that the plugin wanted are no contest.
            (_, Cause::Contest) => self.writes = 0,
            _ => {}
        }
        self.is_changed = false;
        self.writes = self.counted(now).saturating_add(1);
        self.is_published &= self.delay().is_some();
        (self.cause, self.last) = (cause, now);
    }

    /// Notes that this body was written to a child.
    pub(in crate::reconcile) fn wrote_body(&mut self, cause: Cause, fingerprint: &str, now: Instant) {
        self.wrote(cause, now);
        self.body = Some(fingerprint.into());
    }

    /// Reports whether this is the body that was last written.
    pub(in crate::reconcile) fn is_of(&self, fingerprint: &str) -> bool {
        self.body.as_deref() == Some(fingerprint)
    }

    /// Notes that another client has changed what was written last.
    pub(in crate::reconcile) fn changed_back(&mut self, now: Instant) {
        if !std::mem::replace(&mut self.is_changed, true) {
            self.slowest = self.slowest.max(now - self.last);
        }
    }

    /// Notes that a child is as desired.
    pub(in crate::reconcile) const fn is_as_desired(&mut self) {
        self.is_changed = false;
    }

    /// Reports whether the last writes were necessary because of another client.
    pub(in crate::reconcile) fn is_contest(&self) -> bool {
        self.cause == Cause::Contest
    }

    /// Reports whether another client has changed it back too often for edits of a user.
    pub(in crate::reconcile) fn is_contested(&self) -> bool {
        self.is_contest() && self.delay().is_some()
    }

    /// Stores who contests the child this time. Returns whether this is the first report; `counted` then counts the child.
    pub(in crate::reconcile) fn report(
        &mut self,
        report: Report,
        counted: impl FnOnce() -> ContestedChild,
    ) -> bool {
        let is_first = self.report.is_none();
        let counted = self.report.take().map_or_else(counted, |known| known.1);
        self.report = Some(Box::new((report, counted)));
        is_first
    }

    /// Returns the field that was contested and is no longer changed back.
    pub(in crate::reconcile) fn ended(&self, now: Instant) -> Option<&str> {
        let (report, _) = self.report.as_deref()?;
        (!self.is_changed && now - self.last >= self.quiet()).then_some(&report.path)
    }

    /// Reports whether it was reported that the child is contested.
    pub(in crate::reconcile) const fn is_reported(&self) -> bool {
        self.report.is_some()
    }

    fn quiet(&self) -> Duration {
        self.slowest.saturating_mul(QUIET_FACTOR).clamp(QUIET.0, QUIET.1)
    }

    /// Returns how many writes still count.
    fn counted(&self, now: Instant) -> u32 {
        let memory = 2 * self.cause.limits().memory.max(self.delay().unwrap_or_default());
        let forgotten = (now - self.last).as_millis() / memory.as_millis();
        self.writes
            .saturating_sub(forgotten.try_into().unwrap_or(u32::MAX))
    }

    /// Returns the least time between the last write and the next one.
    fn delay(&self) -> Option<Duration> {
        let Limits {
            burst,
            delay,
            longest,
            ..
        } = self.cause.limits();
        let doublings = self.writes.checked_sub(burst)?;
        Some(delay.saturating_mul(2_u32.saturating_pow(doublings)).min(longest))
    }

    /// Returns how long the next write has to wait; `None` when it need not.
    pub(in crate::reconcile) fn wait(&self, now: Instant) -> Option<Duration> {
        let due = self.last + self.delay()?;
        Some(due.saturating_duration_since(now)).filter(|wait| !wait.is_zero())
    }

    /// Returns when something is to be done: when it may be written, or is no longer contested.
    pub(in crate::reconcile) fn next(&self, now: Instant) -> Option<Duration> {
        match self.report {
            Some(_) if !self.is_changed => Some((self.last + self.quiet()).saturating_duration_since(now)),
            None if self.is_contest() => None,
            _ => self.wait(now),
        }
    }

    /// Reports whether it can be forgotten.
    pub(in crate::reconcile) fn is_over(&self, now: Instant) -> bool {
        self.counted(now) == 0 && (now - self.last) > 2 * self.cause.limits().memory
    }

    /// Reports whether to publish that it backs off, and notes that it is. A rollout of many children changes the status
    /// often, and ends: only what goes on in spite of the back-off is worth a warning.
    pub(in crate::reconcile) fn is_to_be_published(&mut self) -> bool {
        let goes_on = self.cause != Cause::Progress || self.writes > self.cause.limits().burst + 1;
        goes_on && !std::mem::replace(&mut self.is_published, true)
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
            Cause::Contest => {
                write!(f, "was changed back {} times", times + u32::from(self.is_changed))?;
                if let Some((Report { path, by }, _)) = self.report.as_deref() {
                    write!(f, ", the last time {path} {by}")?;
                }
                write!(
                    f,
                    ". The host applies this child at most once in {delay:?}. Stop the other client, or leave the field out \
                     of what the plugin wants"
                )
            }
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
    fn a_status_is_worth_a_warning_when_its_writes_go_on_in_spite_of_the_back_off() {
        let start = Instant::now();
        let mut pace = Pace::new(start);
        let mut warned = Vec::new();
        let mut now = start;
        for _ in 0..14 {
            now += pace.wait(now).unwrap_or(Duration::from_millis(10));
            pace.wrote(Cause::Progress, now);
            warned.push(pace.wait(now).is_some() && pace.is_to_be_published());
        }
        assert_eq!(warned.iter().position(|warned| *warned), Some(11), "{warned:?}");
        assert_eq!(warned.iter().filter(|warned| **warned).count(), 1, "once");
    }

    #[test]
    fn what_is_written_again_and_again_backs_off() {
        for cause in [Cause::Change, Cause::Removal, Cause::Correction, Cause::Contest] {
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

    fn counted() -> ContestedChild {
        let parent = operator_host_contract::Kind {
            api_version: "a/v1".into(),
            kind: "K".into(),
        };
        let metrics = std::sync::Arc::new(operator_host_core::metrics::Metrics::unread());
        metrics.of("a", &parent).contested()
    }

    /// Lets a client change a child back `times` times, `after` each write, and the host write it as soon as it may. Returns
    /// the times of the writes.
    fn fight(pace: &mut Pace, times: usize, after: Duration, now: &mut Instant) -> Vec<Instant> {
        let write = |_| {
            *now += after;
            pace.changed_back(*now);
            if pace.is_contested() {
                let report = Report {
                    path: "spec.replicas".into(),
                    by: "by the field manager \"rival\"".into(),
                };
                pace.report(report, counted);
            }
            *now += pace.wait(*now).unwrap_or_default();
            pace.wrote(Cause::Contest, *now);
            *now
        };
        (0..times).map(write).collect()
    }

    #[test]
    fn edits_are_corrected_at_once_and_a_contested_child_less_and_less_often() {
        let mut now = Instant::now();
        let mut pace = Pace::new(now);
        let writes = fight(&mut pace, 16, Duration::from_millis(10), &mut now);
        let gaps = writes.windows(2).map(|pair| (pair[1] - pair[0]).as_secs());
        assert_eq!(
            gaps.collect::<Vec<_>>(),
            [0, 0, 0, 5, 10, 20, 40, 80, 160, 300, 300, 300, 300, 300, 300]
        );
        let text = pace.to_string();
        assert!(
            text.starts_with(
                "was changed back 16 times, the last time spec.replicas by the field manager \"rival\". The host applies \
                 this child at most once in 300s"
            ),
            "{text}"
        );
    }

    #[test]
    fn a_contest_ends_when_the_child_stays_as_applied_for_longer_than_the_other_client_has_taken() {
        for (after, quiet) in [(1, 30), (60, 240), (600, 2400)] {
            let mut now = Instant::now();
            let mut pace = Pace::new(now);
            fight(&mut pace, 8, Duration::from_secs(after), &mut now);
            let quiet = Duration::from_secs(quiet);
            assert_eq!(pace.next(now), Some(quiet));
            assert_eq!(pace.ended(now + quiet - Duration::from_secs(1)), None);
            pace.changed_back(now + Duration::from_millis(1));
            assert_eq!(pace.ended(now + quiet), None, "it is changed");
            pace.is_as_desired();
            assert_eq!(pace.ended(now + quiet), Some("spec.replicas"));
        }
    }

    #[test]
    fn edits_an_hour_apart_and_changes_that_the_plugin_wants_are_no_contest() {
        let mut now = Instant::now();
        let mut pace = Pace::new(now);
        fight(&mut pace, 10, Duration::from_secs(3600), &mut now);
        assert!(!pace.is_reported());
        (0..7).for_each(|_| pace.wrote_body(Cause::Change, "f", now));
        fight(&mut pace, 1, Duration::ZERO, &mut now);
        assert!(pace.is_of("f") && !pace.is_contested() && pace.next(now).is_none());
    }
}
