//! Bounds how many kinds are listed for the first time at once.
//!
//! A host starts with a list of every kind that it needs. All at once they would load the API server and take memory for
//! a page of each. A list that hangs must not hold up the others, so a turn is short: a list that takes longer goes on
//! without one.

use std::sync::Arc;
use std::time::Duration;

use tokio::sync::{OwnedSemaphorePermit, Semaphore};
use tokio::time::Instant;

/// How many first lists have a turn at a time.
const AT_A_TIME: usize = 4;
/// How long a turn is. Most lists are complete within a fraction of it.
const TURN: Duration = Duration::from_secs(5);

/// The turns of all watches of the process.
pub(super) struct FirstLists {
    turns: Arc<Semaphore>,
    length: Duration,
}

impl Default for FirstLists {
    fn default() -> Self {
        Self::new(AT_A_TIME, TURN)
    }
}

/// The turn of one list. The next list has its turn when this is dropped or over.
pub(super) struct Turn {
    permit: Option<OwnedSemaphorePermit>,
    end: Instant,
}

impl FirstLists {
    pub(super) fn new(at_a_time: usize, length: Duration) -> Self {
        Self {
            turns: Arc::new(Semaphore::new(at_a_time)),
            length,
        }
    }

    /// Waits for a turn. Turns are taken in the order in which they were asked for.
    pub(super) async fn turn(&self) -> Turn {
        // The semaphore is never closed.
        let permit = Arc::clone(&self.turns).acquire_owned().await.ok();
        Turn {
            permit,
            end: Instant::now() + self.length,
        }
    }
}

impl Turn {
    /// Waits for a request of the list, and ends the turn if that takes too long.
    pub(super) async fn wait_for<T>(&mut self, request: impl Future<Output = T>) -> T {
        let mut request = std::pin::pin!(request);
        tokio::select! {
            biased;
            answer = &mut request => return answer,
            () = tokio::time::sleep_until(self.end) => self.permit = None,
        }
        request.await
    }
}
