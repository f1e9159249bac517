//! How often a plugin is asked in one reconcile.

use super::answer::Changes;

/// How often a plugin may change, in one pass, what it has changed in that pass before.
pub(super) const MAX_REPEATS: usize = 4;
/// How often it is asked in one pass although each time it changes a child that it had not changed before.
const MAX_STEPS: usize = 64;
/// Tells a plugin that gets on, one child after the other, from one that wants something else each time.
#[derive(Default)]
pub(super) struct Iterations {
    all: usize,
    repeats: usize,
    touched: usize,
}

impl Iterations {
    /// Whether there may be another round; `changes` is what the pass has changed so far.
    pub(super) fn may_go_on(&mut self, changes: &Changes) -> bool {
        let touched = changes.touched();
        if self.all > 0 && touched == self.touched {
            self.repeats += 1;
        }
        self.touched = touched;
        self.all += 1;
        self.all <= MAX_STEPS && self.repeats < MAX_REPEATS
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::object::{ChildKey, ObjectName};
    use crate::plugin::contract::Kind;

    fn rounds(mut change: impl FnMut(usize, &mut Changes)) -> usize {
        let (mut rounds, mut changes, mut count) = (Iterations::default(), Changes::default(), 0);
        while rounds.may_go_on(&changes) {
            change(count, &mut changes);
            count += 1;
        }
        count
    }

    fn child(name: &str) -> ChildKey {
        ChildKey {
            kind: Kind {
                api_version: "v1".into(),
                kind: "Pod".into(),
            },
            name: ObjectName::parse(name),
        }
    }

    #[test]
    fn each_new_child_is_progress_and_the_same_ones_again_are_not() {
        assert_eq!(
            rounds(|_, changes| changes.updated.push(child("a"))),
            MAX_REPEATS + 1
        );
        assert_eq!(rounds(|_, _| ()), MAX_REPEATS);
        let ten = |round: usize, changes: &mut Changes| {
            changes.created.push(child(&format!("n{}", round.min(9))));
        };
        assert_eq!(rounds(ten), 10 + MAX_REPEATS);
    }

    #[test]
    fn a_plugin_that_makes_something_new_each_time_is_stopped_in_the_end() {
        let endless = |round: usize, changes: &mut Changes| changes.created.push(child(&round.to_string()));
        assert_eq!(rounds(endless), MAX_STEPS);
    }
}
