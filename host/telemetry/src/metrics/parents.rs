//! Counts the parents of a controller by their conditions, and remembers since when each is not Ready.
//!
//! Each parent keeps what it counts for, and no longer counts when that is dropped. So a scrape reads no object, and a
//! replica that does not lead counts no parent.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use jiff::Timestamp;

use operator_host_core::sync::lock;

/// The type and the status of a condition, both from the program.
pub type ConditionLabels = (&'static str, &'static str);

/// The parents of one controller.
#[derive(Debug, Default)]
pub struct Parents(Mutex<State>);

#[derive(Debug, Default)]
struct State {
    /// A count that has become 0 stays, so that its series goes on.
    counts: BTreeMap<ConditionLabels, u64>,
    /// How many parents are not Ready since each time.
    unready: BTreeMap<Timestamp, u64>,
}

/// What one parent counts for, until it is dropped.
#[derive(Debug)]
pub struct CountedParent {
    parents: Arc<Parents>,
    conditions: Vec<ConditionLabels>,
    unready_since: Option<Timestamp>,
}

impl Parents {
    /// Counts a parent with these conditions. `unready_since` is the time since which it is not Ready.
    #[must_use]
    pub fn count(
        self: &Arc<Self>,
        conditions: Vec<ConditionLabels>,
        unready_since: Option<Timestamp>,
    ) -> CountedParent {
        let mut state = lock(&self.0);
        for condition in &conditions {
            *state.counts.entry(*condition).or_default() += 1;
        }
        if let Some(since) = unready_since {
            *state.unready.entry(since).or_default() += 1;
        }
        drop(state);
        CountedParent {
            parents: Arc::clone(self),
            conditions,
            unready_since,
        }
    }

    /// Returns the number of parents for each condition that some parent has had.
    pub fn counts(&self) -> BTreeMap<ConditionLabels, u64> {
        lock(&self.0).counts.clone()
    }

    /// Returns for how long the parent that has been unready the longest has been so; zero when all parents are Ready.
    pub(super) fn unready_for(&self) -> Duration {
        let first = lock(&self.0).unready.keys().next().copied();
        // Another host's clock may have been ahead of this one.
        first.map_or(Duration::ZERO, |first| {
            Duration::try_from(Timestamp::now().duration_since(first)).unwrap_or_default()
        })
    }
}

impl Drop for CountedParent {
    fn drop(&mut self) {
        let mut state = lock(&self.parents.0);
        for condition in &self.conditions {
            if let Some(count) = state.counts.get_mut(condition) {
                *count -= 1;
            }
        }
        let Some(since) = self.unready_since else {
            return;
        };
        if let Some(count) = state.unready.get_mut(&since) {
            *count -= 1;
            if *count == 0 {
                state.unready.remove(&since);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_parent_counts_for_its_conditions_until_it_has_others_or_is_gone() {
        let parents = Arc::new(Parents::default());
        let count = |status, minutes_unready: Option<u64>| {
            let since = minutes_unready.map(|minutes| Timestamp::now() - Duration::from_secs(60 * minutes));
            parents.count(vec![("Ready", status), ("Synced", "True")], since)
        };
        let minutes = || parents.unready_for().as_secs() / 60;
        let (good, bad, worse) = (
            count("True", None),
            count("False", Some(5)),
            count("Unknown", Some(60)),
        );
        assert_eq!(parents.counts()[&("Ready", "True")], 1);
        assert_eq!(parents.counts()[&("Ready", "False")], 1);
        assert_eq!(parents.counts()[&("Synced", "True")], 3);
        assert_eq!(minutes(), 60);
        let better = count("True", None);
        drop(worse);
        assert_eq!(parents.counts()[&("Ready", "True")], 2);
        assert_eq!(parents.counts()[&("Ready", "Unknown")], 0);
        assert_eq!(minutes(), 5);
        drop((good, bad, better));
        assert!(parents.counts().values().all(|count| *count == 0));
        assert_eq!(parents.unready_for(), Duration::ZERO);
    }
}
