//! The contested children of one parent. No I/O, and the time is an argument.

use std::collections::HashMap;
use std::time::Duration;

use tokio::time::Instant;

use super::pace::Cause;
use operator_host_core::object::{ChildRef, first_few};
use operator_host_desired::conditions::{FIELD_CONTESTED, Reason};
use operator_host_telemetry::metrics::ContestedChild;

/// The shortest and the longest time after which a child that was not changed back is no longer contested. It is
/// [`QUIET_FACTOR`] times the longest time that the other client has taken so far.
const QUIET: (Duration, Duration) = (Duration::from_secs(30), Duration::from_secs(3600));
const QUIET_FACTOR: u32 = 4;
/// How many children the condition names.
const SHOWN: usize = 3;

/// The children of one parent that others may be changing back.
#[derive(Debug, Default)]
pub struct Conflicts(HashMap<ChildRef, Conflict>);

#[derive(Debug)]
struct Conflict {
    /// The fingerprint of the last applied body.
    fingerprint: String,
    /// When it was last applied, or was last seen as applied.
    applied: Instant,
    /// Whether it was changed back since then.
    is_changed: bool,
    /// How many times it was changed back.
    times: u32,
    /// The longest time from an apply to the change back.
    slowest: Duration,
    /// What was reported, once it is contested.
    report: Option<(Report, ContestedChild)>,
}

/// Who changes which field.
#[derive(Debug)]
pub(crate) struct Report {
    /// The path of the field.
    pub(crate) path: String,
    /// Who changed it, in words.
    pub(crate) by: String,
}

/// What a difference between a child and its desired state means.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Seen {
    /// It is to be applied: the plugin wants something new, or somebody has made a few edits.
    Edit,
    /// It is contested. `hold`: it is too early to apply it again.
    Contested { hold: bool },
}

impl Conflict {
    fn new(fingerprint: &str, now: Instant) -> Self {
        Self {
            fingerprint: fingerprint.to_owned(),
            applied: now,
            is_changed: false,
            times: 0,
            slowest: Duration::ZERO,
            report: None,
        }
    }

    /// Reports whether it was changed back often. Fewer times are the edits of a user.
    fn is_contested(&self) -> bool {
        self.delay().is_some()
    }

    fn change_back(&mut self, now: Instant) {
        self.is_changed = true;
        self.times = self.times.saturating_add(1);
        self.slowest = self.slowest.max(now - self.applied);
    }

    /// Returns the least time between two applies of a contested child.
    fn delay(&self) -> Option<Duration> {
        Cause::Correction.delay_after(self.times)
    }

    /// Returns how long a child must stay as applied until the conflict is over.
    fn quiet(&self) -> Duration {
        match self.is_contested() {
            true => self.slowest.saturating_mul(QUIET_FACTOR).clamp(QUIET.0, QUIET.1),
            false => QUIET.1,
        }
    }

    /// Returns when something is to be done about it.
    fn due(&self) -> Instant {
        let delay = || self.delay().unwrap_or_default();
        self.applied + if self.is_changed { delay() } else { self.quiet() }
    }

    fn message(&self, key: &ChildRef, Report { path, by }: &Report) -> String {
        let (times, delay) = (self.times, self.delay().unwrap_or_default());
        format!(
            "{key} was changed back {times} times, the last time {path} {by}. The host applies this child at most \
             once in {delay:?}. Stop the other client, or leave the field out of what the plugin wants"
        )
    }
}

impl Conflicts {
    /// Notes that a child differs from the body with this `fingerprint`, which is desired. `applied` is the fingerprint
    /// of the body that was last applied, according to the child.
    pub(crate) fn differs(
        &mut self,
        key: &ChildRef,
        fingerprint: &str,
        applied: Option<&str>,
        now: Instant,
    ) -> Seen {
        let Some(conflict) = self.0.get_mut(key) else {
            if applied == Some(fingerprint) {
                let mut conflict = Conflict::new(fingerprint, now);
                conflict.change_back(now);
                self.0.insert(key.clone(), conflict);
            }
            return Seen::Edit;
        };
        if conflict.fingerprint != fingerprint {
            return Seen::Edit;
        }
        if !conflict.is_changed {
            if !conflict.is_contested() && conflict.due() <= now {
                // The earlier edits are too long ago to matter.
                *conflict = Conflict::new(fingerprint, now);
            }
            conflict.change_back(now);
        }
        let hold = now < conflict.due();
        match conflict.is_contested() {
            true => Seen::Contested { hold },
            false => Seen::Edit,
        }
    }

    /// Notes that the body with this fingerprint was applied to an existing child. `is_other_body`: it replaced
    /// another body, which somebody may restore.
    pub(crate) fn applied(&mut self, key: &ChildRef, fingerprint: &str, is_other_body: bool, now: Instant) {
        match self.0.get_mut(key) {
            Some(conflict) => {
                if conflict.fingerprint != fingerprint {
                    fingerprint.clone_into(&mut conflict.fingerprint);
                }
                conflict.applied = now;
                conflict.is_changed = false;
            }
            None if is_other_body => {
                self.0.insert(key.clone(), Conflict::new(fingerprint, now));
            }
            None => {}
        }
    }

    /// Notes that a child is as desired.
    pub(crate) fn is_as_desired(&mut self, key: &ChildRef, now: Instant) {
        let changed = self.0.get_mut(key).filter(|conflict| conflict.is_changed);
        // While the host waits, others may change it back and forth.
        if let Some(conflict) = changed.filter(|conflict| !conflict.is_contested() || conflict.due() <= now) {
            conflict.is_changed = false;
            conflict.applied = now;
        }
    }

    pub(crate) fn forget(&mut self, key: &ChildRef) {
        self.0.remove(key);
    }

    pub(crate) fn clear(&mut self) {
        self.0.clear();
    }

    /// Stores who changes a child back this time. Returns the message when this is its first report; `counted` then counts it as long
    /// as the conflict lasts.
    pub(crate) fn report(
        &mut self,
        key: &ChildRef,
        report: Report,
        counted: impl FnOnce() -> ContestedChild,
    ) -> Option<String> {
        let conflict = self.0.get_mut(key)?;
        let message = conflict.message(key, &report);
        match &mut conflict.report {
            Some((known, _)) => {
                *known = report;
                None
            }
            None => {
                conflict.report = Some((report, counted()));
                Some(message)
            }
        }
    }

    /// Ends what is over, and returns a message for each child that was contested and is still wanted.
    pub(crate) fn end(&mut self, is_wanted: impl Fn(&ChildRef) -> bool, now: Instant) -> Vec<String> {
        let is_over = |key: &ChildRef, conflict: &mut Conflict| {
            !is_wanted(key) || (!conflict.is_changed && conflict.due() <= now)
        };
        let ended = self.0.extract_if(is_over).filter_map(|(key, conflict)| {
            let (report, _) = conflict.report.filter(|_| is_wanted(&key))?;
            Some(format!("{key}: {} is no longer changed back", report.path))
        });
        ended.collect()
    }

    /// Returns when the first contested child is to be applied again, or its conflict ends.
    pub(crate) fn next(&self, now: Instant) -> Option<Duration> {
        let contested = self.0.values().filter(|conflict| conflict.is_contested());
        contested
            .map(|conflict| conflict.due().saturating_duration_since(now))
            .min()
    }

    /// Returns the condition about the contested children; `None` when there are none.
    pub(crate) fn condition(&self) -> Option<Reason> {
        let contested = self.0.iter();
        let contested = contested.filter_map(|(key, it)| Some((key, it, &it.report.as_ref()?.0)));
        let mut contested: Vec<_> = contested.collect();
        contested.sort_by_key(|(key, ..)| *key);
        let messages = contested.iter().map(|(key, it, report)| it.message(key, report));
        (!contested.is_empty()).then(|| Reason::new(FIELD_CONTESTED, first_few(messages, SHOWN, ". ")))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use operator_host_contract::Kind;
    use operator_host_core::object::NamespacedName;
    use operator_host_telemetry::metrics::Metrics;

    /// How many times a child is changed back until it is contested.
    const CONTESTED_AFTER: u32 = 5;

    fn child(name: &str) -> ChildRef {
        ChildRef::new(Kind::new("apps/v1", "Deployment"), NamespacedName::parse(name))
    }

    fn counted() -> ContestedChild {
        let metrics = std::sync::Arc::new(Metrics::unread());
        let parent = Kind::new("a/v1", "K");
        metrics.of("a", &parent).contested()
    }

    fn report() -> Report {
        Report {
            path: "spec.replicas".into(),
            by: "by the field manager \"rival\"".into(),
        }
    }

    /// Lets a client change a child back `times` times, `after` each apply, and the host apply it as soon as it may.
    /// Returns the applies' times.
    fn fight(conflicts: &mut Conflicts, times: u32, after: Duration, now: &mut Instant) -> Vec<Instant> {
        let key = child("a/web");
        let mut applies = Vec::new();
        for _ in 0..times {
            *now += after;
            while let Seen::Contested { hold } = conflicts.differs(&key, "f", Some("f"), *now) {
                conflicts.report(&key, report(), counted);
                if !hold {
                    break;
                }
                *now += conflicts.next(*now).unwrap();
            }
            conflicts.applied(&key, "f", false, *now);
            applies.push(*now);
        }
        applies
    }

    #[test]
    fn edits_are_corrected_at_once_and_a_contested_child_less_and_less_often() {
        let (mut conflicts, mut now) = (Conflicts::default(), Instant::now());
        let soon = Duration::from_millis(10);
        let applies = fight(&mut conflicts, 16, soon, &mut now);
        let gaps = applies.windows(2).map(|pair| (pair[1] - pair[0]).as_secs());
        let gaps: Vec<_> = gaps.collect();
        let expected = [0, 0, 0, 5, 10, 20, 40, 80, 160, 300, 300, 300, 300, 300, 300];
        assert_eq!(gaps, expected);
        let message = conflicts.condition().unwrap().message;
        assert!(
            message.starts_with(
                "Deployment a/web was changed back 16 times, the last time spec.replicas by the field manager \"rival\". \
                 The host applies this child at most once in 300s"
            ),
            "{message}"
        );
    }

    #[test]
    fn a_client_that_is_slow_is_corrected_at_once_for_a_while() {
        let (mut conflicts, mut now) = (Conflicts::default(), Instant::now());
        let start = now;
        let minute = Duration::from_secs(60);
        let applies = fight(&mut conflicts, 7, minute, &mut now);
        assert_eq!(*applies.last().unwrap(), start + 7 * minute);
        assert!(conflicts.condition().is_some());
    }

    #[test]
    fn a_conflict_ends_when_the_child_stays_as_applied_and_edits_are_corrected_at_once_again() {
        let (mut conflicts, mut now) = (Conflicts::default(), Instant::now());
        fight(&mut conflicts, 8, Duration::from_secs(1), &mut now);
        assert_eq!(conflicts.end(|_| true, now + Duration::from_secs(29)), [""; 0]);
        assert_eq!(conflicts.next(now), Some(Duration::from_secs(30)));
        now += Duration::from_secs(30);
        let expected = ["Deployment a/web: spec.replicas is no longer changed back"];
        assert_eq!(conflicts.end(|_| true, now), expected);
        assert_eq!(conflicts.condition(), None);
        let key = child("a/web");
        assert_eq!(conflicts.differs(&key, "f", Some("f"), now), Seen::Edit);
    }

    #[test]
    fn a_slow_client_must_be_quiet_for_longer() {
        let (mut conflicts, mut now) = (Conflicts::default(), Instant::now());
        fight(&mut conflicts, 6, Duration::from_secs(600), &mut now);
        assert_eq!(conflicts.next(now), Some(Duration::from_secs(2400)));
    }

    #[test]
    fn what_the_plugin_wants_anew_is_applied_at_once() {
        let (mut conflicts, mut now) = (Conflicts::default(), Instant::now());
        fight(&mut conflicts, 8, Duration::from_millis(1), &mut now);
        let (key, held) = (child("a/web"), Seen::Contested { hold: true });
        assert_eq!(conflicts.differs(&key, "f", Some("f"), now), held);
        assert_eq!(conflicts.differs(&key, "g", Some("f"), now), Seen::Edit);
        conflicts.applied(&key, "g", false, now);
        assert_eq!(conflicts.differs(&key, "g", Some("g"), now), held);
        // The plugin no longer wants the child.
        assert_eq!(conflicts.end(|_| false, now), [""; 0]);
        assert_eq!(conflicts.condition(), None);
    }

    #[test]
    fn a_second_host_that_wants_another_body_conflicts_as_well() {
        let (mut conflicts, now) = (Conflicts::default(), Instant::now());
        let key = child("a/web");
        for _ in 0..CONTESTED_AFTER {
            assert_eq!(conflicts.differs(&key, "ours", Some("theirs"), now), Seen::Edit);
            conflicts.applied(&key, "ours", true, now);
        }
        let seen = conflicts.differs(&key, "ours", Some("theirs"), now);
        assert!(matches!(seen, Seen::Contested { .. }));
    }

    #[test]
    fn a_client_that_restores_the_field_ends_the_conflict() {
        let (mut conflicts, mut now) = (Conflicts::default(), Instant::now());
        fight(&mut conflicts, 8, Duration::from_secs(1), &mut now);
        let key = child("a/web");
        conflicts.differs(&key, "f", Some("f"), now);
        // It may be changed back and forth until it is the host's turn.
        conflicts.is_as_desired(&key, now);
        now += conflicts.next(now).unwrap();
        conflicts.is_as_desired(&key, now);
        assert_eq!(conflicts.end(|_| true, now + QUIET.0).len(), 1);
    }

    #[test]
    fn edits_an_hour_apart_are_no_conflict() {
        let (mut conflicts, mut now) = (Conflicts::default(), Instant::now());
        fight(&mut conflicts, 2 * CONTESTED_AFTER, QUIET.1, &mut now);
        assert_eq!(conflicts.condition(), None);
    }
}
