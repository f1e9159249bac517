//! The turn of a worker with one reconcile, which the reconcile gives up while it waits for an answer that takes long: the
//! worker takes the next parent meanwhile.

use std::sync::Arc;

use tokio::sync::Notify;

tokio::task_local! {
    /// That of the reconcile which this task runs.
    static TURN: Turn;
}

/// A worker's turn with one reconcile. Clones share it.
#[derive(Clone, Default)]
pub struct Turn(Arc<Notify>);

impl Turn {
    /// Runs a reconcile, whose requests may give up this turn.
    pub async fn run<F: Future>(self, reconcile: F) -> F::Output {
        TURN.scope(self, reconcile).await
    }

    /// Waits until the turn is given up, even if it was before.
    pub async fn given_up(&self) {
        self.0.notified().await;
    }
}

/// Gives up the turn of the reconcile that this task runs. Has no effect in other tasks.
pub(crate) fn give_up() {
    // Requests outside of a reconcile have no turn.
    let _ = TURN.try_with(|turn| turn.0.notify_one());
}

#[cfg(test)]
mod tests {
    use futures::FutureExt;

    use super::*;

    #[tokio::test]
    async fn a_turn_is_given_up_by_its_own_reconcile_only() {
        let (one, two) = (Turn::default(), Turn::default());
        give_up();
        one.clone().run(async { give_up() }).await;
        one.given_up().await;
        assert!(two.given_up().now_or_never().is_none());
    }
}
