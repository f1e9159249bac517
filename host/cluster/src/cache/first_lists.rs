//! Bounds how many pages of first lists are fetched at once.
//!
//! A host starts with a list of every kind that it needs. All at once they would load the API server and take memory for
//! a page of each. A page that does not arrive must not hold up the others, so a turn is short: the request goes on
//! without it.

use std::time::Duration;

use tokio::sync::{Semaphore, SemaphorePermit};
use tokio::time::timeout;

/// How many pages are fetched at a time.
const AT_A_TIME: usize = 4;
/// How long a turn is. Most pages arrive within a fraction of it.
const TURN: Duration = Duration::from_secs(5);

/// The turns of all watches of the process.
pub(super) struct FirstLists {
    turns: Semaphore,
    length: Duration,
}

impl Default for FirstLists {
    fn default() -> Self {
        Self::new(AT_A_TIME, TURN)
    }
}

impl FirstLists {
    pub(super) const fn new(at_a_time: usize, length: Duration) -> Self {
        Self {
            turns: Semaphore::const_new(at_a_time),
            length,
        }
    }

    /// Waits for a turn. Turns are taken in the order in which they were asked for.
    pub(super) async fn turn(&self) -> Option<SemaphorePermit<'_>> {
        // The semaphore is never closed.
        self.turns.acquire().await.ok()
    }

    /// Waits for a page, and ends the turn if that takes too long.
    pub(super) async fn within<T>(
        &self,
        turn: Option<SemaphorePermit<'_>>,
        page: impl Future<Output = T>,
    ) -> T {
        let mut page = std::pin::pin!(page);
        match timeout(self.length, &mut page).await {
            Ok(page) => page,
            Err(_elapsed) => {
                drop(turn);
                page.await
            }
        }
    }
}
