//! Limits the iterations of one reconcile. In each, the plugin is called until its needs settle.

use super::outcome::Changes;

/// Maximum number of iterations of a reconcile that write or delete no child for the first time.
const MAX_REPEATS: usize = 4;
/// Maximum number of iterations of a reconcile, even if each of them changes another child, besides those for children that take
/// turns.
const MAX_STEPS: usize = 64;

/// Distinguishes a plugin that makes progress, one child after the other, from one that changes its mind each time.
#[derive(Default)]
pub(super) struct Iterations {
    calls: usize,
    repeats: usize,
    touched: usize,
    /// How many children of the last answer take turns: each of them is changed, or deleted and created, in iterations of its own.
    pub(super) turns: usize,
}

impl Iterations {
    /// Begins another iteration, if one is allowed, and returns whether it is; `changes` contains the changes of the
    /// reconcile so far.
    pub(super) fn begin_next(&mut self, changes: &Changes) -> bool {
        let touched = changes.touched();
        if self.calls > 0 && touched == self.touched {
            self.repeats += 1;
        }
        self.touched = touched;
        let is_allowed = self.calls < MAX_STEPS + 2 * self.turns && self.repeats < MAX_REPEATS;
        self.calls += usize::from(is_allowed);
        is_allowed
    }

    /// Returns how many iterations were allowed.
    pub(super) const fn calls(&self) -> usize {
        self.calls
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use operator_host_contract::Kind;
    use operator_host_core::object::{ChildRef, NamespacedName};

    fn rounds(mut change: impl FnMut(usize, &mut Changes)) -> usize {
        let (mut rounds, mut changes, mut count) = (Iterations::default(), Changes::default(), 0);
        while rounds.begin_next(&changes) {
            change(count, &mut changes);
            count += 1;
        }
        assert_eq!(rounds.calls(), count);
        count
    }

    fn child(name: &str) -> ChildRef {
        ChildRef {
            kind: Kind::new("v1", "Pod"),
            name: NamespacedName::parse(name),
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
        let mut many = Iterations {
            turns: 100,
            ..Iterations::default()
        };
        let mut changes = Changes::default();
        while many.begin_next(&changes) {
            endless(many.calls(), &mut changes);
        }
        assert_eq!(many.calls(), MAX_STEPS + 200);
    }
}
